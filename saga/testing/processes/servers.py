"""Real servers below a world of processes: where they are, what can go wrong with them, and who starts them.

Servers are given by the author of a test: a function `module:function` that takes a folder, and gives them inside a
`with` block, new and empty. Services and topics have the names that they have, so each world needs servers of its own.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from saga.errors import SagaError
from saga.store.port import Store
from saga.support.clock import Clock

if TYPE_CHECKING:
    from saga.broker.kafka.administration import KafkaAdministration

SESSION_S, REBALANCE_S, HEARTBEAT_S = 6.0, 8.0, 0.3
"""Timeouts shorter than for real use, and allowed by every Kafka: a dead or frozen worker is replaced while a test
looks on."""


class Place(Struct, frozen=True, kw_only=True):
    """Addresses of both servers. For tests: one node each, no TLS, and writes that are in memory count."""

    kafka: str
    """Address of Kafka: `127.0.0.1:9092`."""
    couchbase: str
    """Address of Couchbase: `couchbase://127.0.0.1`."""
    bucket: str
    username: str = "saga"
    password: str = "secret"

    def broker(self, clock: Clock) -> "KafkaAdministration":
        """Kafka for tools; not open yet."""
        from saga.broker.kafka.administration import KafkaAdministration
        from saga.broker.kafka.settings import KafkaSettings

        settings = KafkaSettings(
            servers=(self.kafka,),
            replication_factor=1,
            min_insync_replicas=1,
            session_s=SESSION_S,
            rebalance_s=REBALANCE_S,
            heartbeat_s=HEARTBEAT_S,
        )
        return KafkaAdministration(settings, clock=clock)

    def store(self, clock: Clock) -> Store:
        """Store of all services, whose documents have names of their own. Not open yet."""
        from saga.store.couchbase.adapter import CouchbaseSettings
        from saga.store.couchbase.store import CouchbaseStore

        settings = CouchbaseSettings(
            connection=self.couchbase,
            bucket=self.bucket,
            username=self.username,
            password=lambda: self.password,
            durability="none",
        )
        return CouchbaseStore(settings, clock=clock)


class Trouble(NamedTuple):
    """One thing that can go wrong with them."""

    what: str
    """Name in words: `the broker killed`."""
    lasts_s: tuple[float, float]
    """Shortest and longest time that it lasts."""
    begin: Callable[[], None]
    end: Callable[[], None]
    """Ends it, called at a later moment on the same thread; returns when the server answers again."""


class Servers(Protocol):
    """Kafka and Couchbase, running, as long as the `with` block of whoever gives them."""

    @property
    def place(self) -> Place:
        """Addresses for workers."""

    @property
    def aside(self) -> Place:
        """Addresses for the world itself, which publishes and looks on: the same servers, past what stands before
        them."""

    @property
    def troubles(self) -> Mapping[str, Sequence[Trouble]]:
        """Troubles by the kind of fault that they are. Each kind of a simulation that is not among them is left out."""


Giver: TypeAlias = Callable[[Path], AbstractContextManager[Servers]]


def giver_of(name: str) -> Giver:
    """The function that `module:function` names. Raises `SagaError`."""
    module, _, function = name.partition(":")
    try:
        found: Giver = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as why:
        raise SagaError(f"{name!r} names no function that gives servers ({why}): write module:function") from why
    return found
