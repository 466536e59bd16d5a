"""Sessions that brokers end: a client that signs in again in time is not cut off, and no error is reported."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import Subscription
from saga.messages import Topic
from saga.testing.conformance.broker_suite import RecordingListener, event
from saga.testing.servers.kafka import KafkaServer
from saga.testing.servers.server import free_ports
from tests.broker.waiting import CLOCK, until

USER, PASSWORD = "saga", "open sesame"
SESSION_S = 2.0
EXTRA = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PLAIN://127.0.0.1:%(plain)d
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PLAIN://127.0.0.1:%(plain)d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PLAIN:SASL_PLAINTEXT
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_%(user)s="%(password)s";
listener.name.plain.plain.connections.max.reauth.ms=%(session_ms)d
"""


@pytest.fixture(scope="module")
def short(server_jars: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaSettings]:
    """Settings for a broker whose sessions last for two seconds."""
    (plain,) = free_ports(1)
    names = {"plain": plain, "user": USER, "password": PASSWORD, "session_ms": int(SESSION_S * 1000)}
    kafka = KafkaServer.start(tmp_path_factory.mktemp("kafka"), extra=EXTRA % names)
    yield KafkaSettings(
        servers=(f"127.0.0.1:{plain}",),
        replication_factor=1,
        min_insync_replicas=1,
        heartbeat_s=0.2,
        sasl="PLAIN",
        username=USER,
        password=lambda: PASSWORD,
    )
    kafka.stop()


async def test_a_session_that_ends_is_renewed_before_and_no_error_is_reported(
    short: KafkaSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("aiokafka"), "level", logging.INFO)
    topic, troubles = "renewed", list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: troubles.append(str(context)))
    caplog.set_level(logging.INFO)
    async with KafkaBroker(short, clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 2)])
        async with broker.join(Subscription(topic, [topic]), listening := RecordingListener()) as membership:
            await until(lambda: listening.has)
            caplog.clear()
            until_s, read = CLOCK.monotonic_s() + 5 * SESSION_S, 0
            while CLOCK.monotonic_s() < until_s or not read:
                await broker.publish([event(topic, "k", "v")])
                records = await membership.poll(list(listening.has), records_max=10, timeout_s=5)
                read += len(records)
                for record in records:
                    place = next(p for p in listening.has if p.number == record.partition)
                    await membership.commit({place: record.offset + 1})
                await CLOCK.sleep(0.05)
        assert [event for event, _ in listening.calls] == ["assigned", "revoked"]
    signed_in = [r for r in caplog.records if "Authenticated as" in r.getMessage()]
    assert len(signed_in) > 6, "of each connection several sessions have ended"
    messages = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert [words for words in messages if "in the clear" not in words] == troubles == []
