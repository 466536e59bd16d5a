"""Trust of a client of Kafka: with an authority of one's own in that one, and in none that the system trusts."""

from dataclasses import replace
from pathlib import Path

import pytest

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.errors import BrokerError
from saga.support.clock import SystemClock
from tests.servers.trusted_tls import impostor

TLS = KafkaSettings(servers=("127.0.0.1:1",), tls=True, connect_s=1, replication_factor=1, min_insync_replicas=1)


async def opened(settings: KafkaSettings) -> None:
    with pytest.raises(BrokerError):
        async with KafkaBroker(settings, clock=SystemClock()):
            pass


async def test_an_authority_of_ones_own_is_the_only_one(tmp_path: Path) -> None:
    async with impostor(tmp_path) as found:
        settings = replace(TLS, servers=(f"127.0.0.1:{found.port}",))
        with pytest.raises(BrokerError, match="its certificate is not trusted"):
            async with KafkaBroker(replace(settings, ca_file=found.ours), clock=SystemClock()):
                pass
        assert found.heard == []
        for trusting in (settings, replace(settings, ca_file=found.of_the_system)):
            found.heard.clear()
            await opened(trusting)
            assert found.heard, "it would have been trusted"
