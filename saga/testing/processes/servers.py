"""Real servers below a world of processes: where they are, what can go wrong with them, and who starts them.

Whoever tests has servers to give: a function `module:function` that takes a folder, and gives them inside a `with`
block, new and empty. Services and topics have the names that they have, so each world needs servers of its own.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from saga.clock import Clock
from saga.errors import SagaError
from saga.store.port import Store

if TYPE_CHECKING:
    from saga.broker.kafka.administration import KafkaAdministration

SESSION_S, REBALANCE_S, HEARTBEAT_S = 6.0, 8.0, 0.3
"""Shorter than for real use, and what every Kafka allows: a dead or frozen worker is replaced while a test looks on."""


class Place(Struct, frozen=True, kw_only=True):
    """Where both are. For tests: one node each, no TLS, and writes that are in memory count."""

    kafka: str
    """`127.0.0.1:9092`."""
    couchbase: str
    """`couchbase://127.0.0.1`."""
    bucket: str
    username: str = "saga"
    password: str = "secret"

    def broker(self, clock: Clock) -> "KafkaAdministration":
        """Not open yet."""
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
        """Of all services: their documents have names of their own. Not open yet."""
        from saga.store.couchbase.settings import CouchbaseSettings
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
    """In words: `the broker killed`."""
    lasts_s: tuple[float, float]
    """How long, at least and at most."""
    begin: Callable[[], None]
    end: Callable[[], None]
    """Called on another moment of the same thread; returns when the server answers again."""


class Servers(Protocol):
    """Both of them, running, as long as the `with` block of whoever gives them."""

    @property
    def place(self) -> Place:
        """For workers."""

    @property
    def aside(self) -> Place:
        """For the world itself, which publishes and looks on: the same servers, past what stands before them."""

    @property
    def troubles(self) -> Mapping[str, Sequence[Trouble]]:
        """By the kind of a fault what it can be here. Each kind of a simulation that is not among them is left out."""


Giver: TypeAlias = Callable[[Path], AbstractContextManager[Servers]]


def giver_of(name: str) -> Giver:
    """The function that `module:function` names. Raises `SagaError`."""
    module, _, function = name.partition(":")
    try:
        found: Giver = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as why:
        raise SagaError(f"{name!r} names no function that gives servers ({why}): write module:function") from why
    return found
