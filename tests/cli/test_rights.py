"""Tools as a user who may little: what is allowed is looked at, and what is not is told, with what to allow."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Schema, String

from tests.cli.conftest import Call
from tests.cli.pottery import CLOCK, Pottery
from tests.servers.kafka import KafkaServer
from tests.servers.server import free_ports

EXTRA = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PLAIN://127.0.0.1:%(plain)d
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PLAIN://127.0.0.1:%(plain)d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PLAIN:SASL_PLAINTEXT
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_potter="sesame";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
TOPIC, GROUP = 2, 3
READ, WRITE, DESCRIBE = 3, 4, 8
LITERALLY, ALLOW = 3, 3
_TEXT = String("utf-8")


class AllowedResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 30
    API_VERSION = 1
    SCHEMA = Schema(("throttle_time_ms", Int32), ("results", Array(("error_code", Int16), ("error_message", _TEXT))))


class AllowStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 30
    API_VERSION = 1
    RESPONSE_TYPE = AllowedResponse
    SCHEMA = Schema(
        (
            "creations",
            Array(
                ("resource_type", Int8),
                ("resource_name", _TEXT),
                ("pattern_type", Int8),
                ("principal", _TEXT),
                ("host", _TEXT),
                ("operation", Int8),
                ("permission_type", Int8),
            ),
        )
    )


class Right(NamedTuple):
    kind: int
    name: str
    operation: int


class Allow(Request[AllowStruct]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 30

    def __init__(self, rights: Sequence[Right]) -> None:
        self._rights = rights

    def build(self, request_struct_class: type[AllowStruct]) -> AllowStruct:
        return request_struct_class(
            [(kind, name, LITERALLY, "User:potter", "*", operation, ALLOW) for kind, name, operation in self._rights]
        )


@asynccontextmanager
async def a_client(address: str, **options: str) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=address, **options)
    try:
        await admin.start()
        yield admin
    finally:
        await admin.close()


class Guarded(NamedTuple):
    """A broker with a port for whoever may everything, and one for a user who may what was allowed."""

    kafka: KafkaServer
    plain: int

    def allow(self, *rights: Right) -> None:
        async def allowed() -> None:
            async with a_client(self.kafka.address) as admin:
                answer = await admin._send_request(Allow(rights))
                assert [code for code, _ in answer.results] == [0] * len(rights)
            names = {name for kind, name, _ in rights if kind == TOPIC}
            user = {"sasl_plain_username": "potter", "sasl_plain_password": "sesame"}
            async with a_client(f"127.0.0.1:{self.plain}", security_protocol="SASL_PLAINTEXT", **user) as admin:
                while not names <= set(await admin.list_topics()):  # the broker hears of rights a moment later
                    await CLOCK.sleep(0.05)

        asyncio.run(CLOCK.within(10, allowed()))


@pytest.fixture(scope="module")
def guarded(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    (plain,) = free_ports(1)
    kafka = KafkaServer.start(tmp_path_factory.mktemp("kafka"), extra=EXTRA % {"plain": plain})
    yield Guarded(kafka, plain)
    kafka.kill()


@pytest.fixture
def pottery(guarded: Guarded, embedded_pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch) -> Pottery:
    """Its topics are there; from here on tools are a user who may nothing yet."""
    for name, value in (("REPLICATION", "1"), ("MIN_INSYNC", "1")):
        monkeypatch.setenv(f"SAGA_KAFKA_{name}", value)
    monkeypatch.setenv("SAGA_BROKER", f"kafka://{guarded.kafka.address}")
    assert saga("topics", "apply", embedded_pottery.module).exit_code == 0
    monkeypatch.setenv("SAGA_BROKER", f"kafka://127.0.0.1:{guarded.plain}")
    for name, value in (("SASL", "plain"), ("USERNAME", "potter"), ("PASSWORD", "sesame")):
        monkeypatch.setenv(f"SAGA_KAFKA_{name}", value)
    return embedded_pottery


def test_a_user_who_may_too_little_is_told_what_is_missing(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    guarded.allow(
        Right(TOPIC, pottery.topic, READ),
        Right(TOPIC, pottery.sold, DESCRIBE),
        Right(TOPIC, pottery.made, WRITE),
        Right(TOPIC, pottery.dead, WRITE),
        Right(GROUP, pottery.service, READ),
    )
    result = saga("doctor", pottery.module)
    assert result.exit_code == 1, result.output
    errors = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert errors == [f"error    {pottery.sold}: this user may not read it, and {pottery.service} has to"]
    assert f"warning  {pottery.topic}: this user may not see its settings" in result.stdout
    assert "DescribeConfigs on the cluster" in result.stdout
    assert "no record could be written as a probe" in result.stdout


def test_a_plan_is_not_made_of_what_may_not_be_seen(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    guarded.allow(Right(TOPIC, pottery.topic, READ), Right(TOPIC, pottery.dead, WRITE))
    result = saga("topics", "plan", pottery.module)
    assert result.exit_code == 2
    assert "DescribeConfigs" in result.stderr
    assert result.stdout == ""


def test_a_group_that_may_not_be_seen_is_told_as_such(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    guarded.allow(Right(TOPIC, pottery.topic, READ), Right(TOPIC, pottery.dead, WRITE))
    result = saga("positions", "show", pottery.service)
    assert result.exit_code == 2
    assert "allowed Read on the group" in result.stderr
