"""A Kafka broker with authentication, and a user whose rights are granted and revoked."""

import shlex
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Int8, Int16, Int32, Schema, String

from saga.broker.kafka.client import Topics
from saga.support.clock import SystemClock
from saga.testing.servers.kafka import KafkaServer
from saga.testing.servers.server import free_ports
from tests.servers.plain_clients import started

CLOCK = SystemClock()
USER, PASSWORD = "potter", "sesame"
WITHIN_S = 60.0
LOOK_S = 0.05
EXTRA = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PLAIN://127.0.0.1:%(plain)d
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PLAIN://127.0.0.1:%(plain)d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PLAIN:SASL_PLAINTEXT
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
%(users)s;
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
TOPIC, GROUP, CLUSTER = 2, 3, 4
READ, WRITE, CREATE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE = 3, 4, 5, 7, 8, 10, 11, 12
OPERATIONS = {
    "Read": READ,
    "Write": WRITE,
    "Create": CREATE,
    "Alter": ALTER,
    "Describe": DESCRIBE,
    "DescribeConfigs": DESCRIBE_CONFIGS,
    "AlterConfigs": ALTER_CONFIGS,
    "IdempotentWrite": IDEMPOTENT_WRITE,
}
LITERALLY, ALLOW = 3, 3
ANY = 1
_TEXT = String("utf-8")
_RIGHT = (
    ("resource_type", Int8),
    ("resource_name", _TEXT),
    ("pattern_type", Int8),
    ("principal", _TEXT),
    ("host", _TEXT),
    ("operation", Int8),
    ("permission_type", Int8),
)


class AllowedResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 30
    API_VERSION = 1
    SCHEMA = Schema(("throttle_time_ms", Int32), ("results", Array(("error_code", Int16), ("error_message", _TEXT))))


class AllowStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 30
    API_VERSION = 1
    RESPONSE_TYPE = AllowedResponse
    SCHEMA = Schema(("creations", Array(*_RIGHT)))


class TakenResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 31
    API_VERSION = 1
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            Array(
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("matching", Array(("error_code", Int16), ("error_message", _TEXT), *_RIGHT)),
            ),
        ),
    )


class TakeStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 31
    API_VERSION = 1
    RESPONSE_TYPE = TakenResponse
    SCHEMA = Schema(("filters", Array(*_RIGHT)))


class Right(NamedTuple):
    """Right of a user on something."""

    kind: int
    name: str
    operation: int
    user: str = USER

    def to_request_fields(self) -> tuple[int, str, int, str, str, int, int]:
        """The right as Kafka's requests have it."""
        return self.kind, self.name, LITERALLY, f"User:{self.user}", "*", self.operation, ALLOW


def rights_in(command: str) -> Sequence[Right]:
    """Rights that a command of Kafka's own tool gives: `kafka-acls.sh --add --operation Read --topic orders`."""
    tool, *words = shlex.split(command)
    kinds = {"--topic": TOPIC, "--group": GROUP}
    given = list(pairwise([*words, ""]))
    operation = OPERATIONS[dict(given)["--operation"]]
    kind, _, user = dict(given)["--allow-principal"].partition(":")
    assert (tool, kind) == ("kafka-acls.sh", "User")
    cluster = [Right(CLUSTER, "kafka-cluster", operation, user)] if "--cluster" in words else []
    return [*(Right(kinds[option], name, operation, user) for option, name in given if option in kinds), *cluster]


class Everything(NamedTuple):
    """All that the user may, as a pattern."""

    def to_request_fields(self) -> tuple[int, None, int, str, None, int, int]:
        return ANY, None, ANY, f"User:{USER}", None, ANY, ANY


class Allow(Request[AllowStruct]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 30

    def __init__(self, rights: Sequence[Right]) -> None:
        self._rights = rights

    def build(self, request_struct_class: type[AllowStruct]) -> AllowStruct:
        return request_struct_class([right.to_request_fields() for right in self._rights])


class Take(Request[TakeStruct]):  # type: ignore[misc]  # aiokafka has no types
    API_KEY = 31

    def __init__(self, rights: Sequence[Right | Everything]) -> None:
        self._rights = rights

    def build(self, request_struct_class: type[TakeStruct]) -> TakeStruct:
        return request_struct_class([right.to_request_fields() for right in self._rights])


@asynccontextmanager
async def a_client(address: str, **options: str) -> AsyncIterator[AIOKafkaAdminClient]:
    async with started(AIOKafkaAdminClient(bootstrap_servers=address, **options)) as admin:
        yield admin


class Guarded(NamedTuple):
    """Run a broker with a port for an administrator, and one for a user with the granted rights."""

    kafka: KafkaServer
    plain: int

    @property
    def address(self) -> str:
        """Address at which it asks for the password."""
        return f"127.0.0.1:{self.plain}"

    async def allow(self, *rights: Right) -> None:
        """Return when it counts."""
        async with a_client(self.kafka.address) as admin:
            answer = await admin._send_request(Allow(rights))
            assert [code for code, _ in answer.results] == [0] * len(rights)
            there = await self._there(rights, admin)
        await self._in_force(there, True)

    async def take(self, *rights: Right) -> None:
        """Return when it counts."""
        async with a_client(self.kafka.address) as admin:
            answer = await admin._send_request(Take(rights))
            assert [(code, len(matching)) for code, _, matching in answer.results] == [(0, 1)] * len(rights)
            there = await self._there(rights, admin)
        await self._in_force(there, False)

    async def take_all(self) -> None:
        """Take all rights, of whatever kind; it counts a moment later."""
        async with a_client(self.kafka.address) as admin:
            answer = await admin._send_request(Take([Everything()]))
            assert [code for code, _, _ in answer.results] == [0]

    async def _there(self, rights: Sequence[Right], admin: AIOKafkaAdminClient) -> Sequence[Right]:
        """Return the rights on existing topics: a user does not learn about those on others."""
        answer = await admin._send_request(Topics())
        names = {name for _, name, *_ in answer.topics}
        return [right for right in rights if right.kind == TOPIC and right.name in names]

    async def _in_force(self, on_topics: Sequence[Right], given: bool) -> None:
        """The broker hears of rights a moment later. Those on groups cannot be asked for: they come with the others."""
        for user in sorted({right.user for right in on_topics}):
            await self._in_force_for(user, [right for right in on_topics if right.user == user], given)

    async def _in_force_for(self, user: str, on_topics: Sequence[Right], given: bool) -> None:
        shown = {"sasl_plain_username": user, "sasl_plain_password": PASSWORD}
        async with a_client(self.address, security_protocol="SASL_PLAINTEXT", **shown) as admin:

            async def looked() -> None:
                while True:
                    answer = await admin._send_request(Topics(sorted({right.name for right in on_topics})))
                    allowed = {name: bits if code == 0 else 0 for code, name, _, _, bits in answer.topics}
                    if all(bool(allowed[right.name] & 1 << right.operation) == given for right in on_topics):
                        return
                    await CLOCK.sleep(LOOK_S)

            await CLOCK.within(WITHIN_S, looked())


@contextmanager
def guarded_kafka(folder: Path, users: Sequence[str] = (USER,)) -> Iterator[Guarded]:
    """One in which these users may do nothing yet; it ends with the block."""
    (plain,) = free_ports(1)
    known = " ".join(f'user_{user}="{PASSWORD}"' for user in users)
    kafka = KafkaServer.start(folder, extra=EXTRA % {"plain": plain, "users": known})
    try:
        yield Guarded(kafka, plain)
    finally:
        kafka.kill()
