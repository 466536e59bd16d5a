"""Arguments that many operator commands share: which sagas are meant, who acts, and which stores and broker to use."""

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from saga.configuration.settings import Settings
from saga.ops.dead_letters import DeadLetter
from saga.ops.sources import ServiceStore, Warn, open_stores
from saga.support.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Selection of sagas, runs or dead letters. What is selected has to match every field that is set."""

    services: Sequence[str] = ()
    """Names of the services to search; empty means all."""
    sagas: Sequence[str] = ()
    """Saga ids. Each of these sagas is read by its key in each service. If this is empty, the stores must be able to
    list their sagas."""
    prefix: str = ""
    """Beginning of the saga ids."""
    principal: str | None = None
    """Principal that started the sagas. It is enough if one service has recorded it."""
    handler: str | None = None
    type: str | None = None
    """Event type of the message."""
    reason: str | None = None
    """Text that the reason of the failure contains."""
    category: str | None = None
    """Who can fix the failure: see `saga.policies.retry.BLAMES`."""
    owner: str | None = None
    """The service that owns the event's contract."""
    before: str | None = None
    """RFC 3339 time; only older records match. A record whose time is not known does not."""
    limit: int = 50
    """Maximum number of sagas or records to return."""
    only_open: bool = False
    only_dead: bool = False

    @property
    def is_unrestricted(self) -> bool:
        """True if every dead letter or parked run of the services matches."""
        return not (
            self.sagas or self.handler or self.type or self.reason or self.category or self.owner or self.before
        )

    def includes_saga(self, saga: str | None) -> bool:
        """Return whether this saga id is selected."""
        return (saga or "").startswith(self.prefix) and (not self.sagas or saga in self.sagas)

    def matches(self, record: DeadLetter) -> bool:
        """Return whether this dead letter or parked run is selected."""
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
            and (self.before is None or "" < record.time < self.before)
        )


@dataclass(frozen=True, slots=True)
class Operator:
    """A person who changes something, with a reason. Both are recorded for the audit."""

    who: str
    why: str
    wait_s: float = 10.0
    """Maximum time in seconds to wait for the service's answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The stores and the broker that an operator's command uses."""

    warn: Warn
    """Function that is called with each reason why a part of the answer is missing."""
    stores: Sequence[str] = ()
    """Addresses of the stores. If this is empty, the setting `SAGA_STORE` is used."""
    settings: Settings | None = None
    """Settings of the broker. `None` means the settings of the environment. These are read only when the broker is
    used, because a command that needs only a store may run without them."""
    clock: Clock = field(default_factory=SystemClock)

    @property
    def broker_settings(self) -> Settings:
        """The settings of the broker. Raises `ConfigurationError` if the environment has invalid ones."""
        return self.settings if self.settings is not None else Settings.from_environment()

    def open_stores(self, services: Collection[str] = ()) -> AbstractAsyncContextManager[list[ServiceStore]]:
        """Open the stores of these services, or of all services, for reading. See `saga.ops.sources.open_stores`."""
        return open_stores(self.stores, self.clock, services, self.settings)
