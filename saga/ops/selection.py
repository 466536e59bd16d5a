"""What an operator selects, who the operator is, and the deployment that commands read and write."""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from saga.configuration.settings import Settings
from saga.ops.dead_letters import DeadLetter
from saga.ops.sources import ServiceStore, Warn, open_stores
from saga.support.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Sagas, runs or dead letters that a command is about: those that match every field that is set."""

    services: Sequence[str] = ()
    """Services to look at; empty: all."""
    sagas: Sequence[str] = ()
    """Saga ids. Each is read directly in each service; without them the stores have to list their sagas."""
    prefix: str = ""
    """Beginning of the saga ids."""
    principal: str | None = None
    """Principal that started the sagas, as any service knows it."""
    handler: str | None = None
    type: str | None = None
    """Event type of the message."""
    reason: str | None = None
    """Part of the failure's reason."""
    category: str | None = None
    """Who can fix it: see `saga.policies.retry.BLAMES`."""
    owner: str | None = None
    """Service that owns the event's contract."""
    before: str | None = None
    """RFC 3339 time before which the record was written."""
    limit: int = 50
    """Largest number of sagas or records to return."""
    only_open: bool = False
    only_dead: bool = False

    @property
    def is_unrestricted(self) -> bool:
        """True if it selects every dead letter or parked run of its services."""
        return not (
            self.sagas or self.handler or self.type or self.reason or self.category or self.owner or self.before
        )

    def includes_saga(self, saga: str | None) -> bool:
        """True if this saga id is selected."""
        return (saga or "").startswith(self.prefix) and (not self.sagas or saga in self.sagas)

    def matches(self, record: DeadLetter) -> bool:
        """True if this dead letter or parked run is selected."""
        expected = (
            (self.handler, record.handler),
            (self.type, record.type),
            (self.category, record.blame),
            (self.owner, record.owner),
        )
        return (
            self.includes_saga(record.saga)
            and all(wanted is None or wanted == value for wanted, value in expected)
            and (self.reason is None or self.reason in record.reason)
            and (self.before is None or record.time < self.before)
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """Person who changes something: the name and the reason are kept in the audit."""

    who: str
    why: str
    wait_s: float = 10.0
    """How long to wait for the service's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Stores and broker that a command reads and writes."""

    warn: Warn
    """Called with each reason why a part of the answer is missing."""
    stores: Sequence[str] = ()
    """Addresses of the stores; empty: the setting `SAGA_STORE`."""
    settings: Settings | None = None
    """`None`: the settings of the environment, read when the broker is needed. A store may not need them."""
    clock: Clock = field(default_factory=SystemClock)

    @property
    def broker_settings(self) -> Settings:
        """Settings of the broker. Raises `ConfigurationError`."""
        return self.settings if self.settings is not None else Settings.from_environment()

    def open_stores(self, services: Collection[str] = ()) -> AbstractAsyncContextManager[list[ServiceStore]]:
        """Open the stores of these services, or of all, for reading: see `saga.ops.sources.open_stores`."""
        return open_stores(self.stores, self.clock, services, self.settings)
