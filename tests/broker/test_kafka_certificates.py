"""A broker that asks for certificates: a client with a good one works, and another one learns what to do."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from saga.broker.kafka.adapter import KafkaSettings
from saga.errors import BrokerError, ConfigurationError
from saga.testing.servers.kafka import KafkaServer
from saga.testing.servers.server import free_ports
from tests.broker.test_kafka_connecting import everything_works, refusal
from tests.cli.conftest import Call, embedded_pottery, folder, saga
from tests.cli.pottery_service import Pottery
from tests.cli.test_missing_topics import refused
from tests.servers.certificates import Authority, Certificate

__all__ = ["embedded_pottery", "folder", "saga"]

EXTRA = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},TLS://127.0.0.1:%(tls)d,\
TLS12://127.0.0.1:%(tls12)d
advertised.listeners=PLAINTEXT://127.0.0.1:{port},TLS://127.0.0.1:%(tls)d,TLS12://127.0.0.1:%(tls12)d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,TLS12:SSL
listener.name.tls12.ssl.enabled.protocols=TLSv1.2
ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location=%(keystore)s
ssl.truststore.type=PEM
ssl.truststore.location=%(truststore)s
"""


@dataclass(frozen=True)
class Asking:
    """A broker whose TLS ports ask who we are."""

    ports: dict[str, int]
    """By the newest TLS that they speak."""
    ca_file: Path
    good: Certificate
    of_another: Certificate
    """Certificate of an authority that the broker does not trust."""

    def settings(self, shown: Certificate | None, tls: str = "1.3") -> KafkaSettings:
        known = KafkaSettings(
            servers=(f"127.0.0.1:{self.ports[tls]}",),
            replication_factor=1,
            min_insync_replicas=1,
            connect_s=4,
            tls=True,
            ca_file=self.ca_file,
        )
        return known if shown is None else replace(known, cert_file=shown.cert_file, key_file=shown.key_file)


@pytest.fixture(scope="module")
def asking(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asking]:
    place = tmp_path_factory.mktemp("kafka")
    ours, another = Authority(place, "ours"), Authority(place, "another")
    new, old = free_ports(2)
    names = {"tls": new, "tls12": old, "keystore": ours.issue("kafka").together(), "truststore": ours.ca_file}
    kafka = KafkaServer.start(place, extra=EXTRA % names)
    yield Asking({"1.3": new, "1.2": old}, ours.ca_file, ours.issue("potter"), another.issue("potter"))
    kafka.kill()


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
async def test_a_client_with_a_valid_certificate_is_accepted(asking: Asking, tls: str) -> None:
    await everything_works(asking.settings(asking.good, tls), f"tls-{tls}")


async def test_an_encrypted_key_is_opened_with_its_password_without_a_prompt_at_the_terminal(
    asking: Asking,
) -> None:
    settings = asking.settings(asking.good.encrypted("alohomora"))
    await everything_works(replace(settings, key_password=lambda: "alohomora"), "encrypted-key")
    why = await refusal(settings)
    assert isinstance(why, ConfigurationError)
    assert "give the file with its password in SAGA_KAFKA_KEY_PASSWORD_FILE" in str(why)
    for password, expected in ((lambda: "alakazam", "encrypted.key"), (lambda: str(1 // 0), "ZeroDivisionError")):
        assert expected in str(await refusal(replace(settings, key_password=password)))


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
async def test_a_client_without_a_certificate_is_asked_to_give_one(asking: Asking, tls: str) -> None:
    why = await refusal(asking.settings(None, tls))
    assert isinstance(why, BrokerError)
    assert "certificate of ours" in str(why)
    assert "give SAGA_KAFKA_CERT_FILE and SAGA_KAFKA_KEY_FILE" in str(why)


@pytest.mark.parametrize("tls", ["1.2", "1.3"])
async def test_a_client_with_a_certificate_of_another_authority_learns_whose_is_wanted(
    asking: Asking, tls: str
) -> None:
    why = await refusal(asking.settings(asking.of_another, tls))
    assert isinstance(why, BrokerError)
    assert str(asking.of_another.cert_file) in str(why)
    assert "an authority that the brokers trust" in str(why)


def test_a_service_runs_with_a_certificate_and_ends_with_exit_code_2_without(
    asking: Asking, embedded_pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "SAGA_BROKER": f"kafka://127.0.0.1:{asking.ports['1.3']}",
        "SAGA_KAFKA_REPLICATION": "1",
        "SAGA_KAFKA_MIN_INSYNC": "1",
        "SAGA_KAFKA_TLS": "true",
        "SAGA_KAFKA_CA_FILE": str(asking.ca_file),
    }.items():
        monkeypatch.setenv(name, value)
    assert "SAGA_KAFKA_CERT_FILE" in refused("run", embedded_pottery.module)
    monkeypatch.setenv("SAGA_KAFKA_CERT_FILE", str(asking.good.cert_file))
    monkeypatch.setenv("SAGA_KAFKA_KEY_FILE", str(asking.good.key_file))
    assert saga("topics", "apply", embedded_pottery.module).exit_code == 0
