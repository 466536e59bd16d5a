"""A running service: its prepared declarations with open resources and ports."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import NamedTuple

from msgspec import Raw

from saga.broker.port import value_bytes_max
from saga.contracts import codec
from saga.declarations.resources import Limits
from saga.declarations.values import Resource, find_flags
from saga.engine.known_schemas import KnownSchemas
from saga.engine.limits import CallGates, Limiter
from saga.engine.ports import Ports
from saga.engine.prepared_service import PreparedService
from saga.errors import BadInput, Permanent
from saga.messages import Event, Message, name_of
from saga.messaging.controls import ActiveControls, ControlEntry, DeclaredNames, Target
from saga.policies.breaker import LastGood, LastGoodCache
from saga.progress.actions import Now
from saga.progress.decisions import is_message_known
from saga.progress.document import SagaProgress


class EncodedEvent(NamedTuple):
    """An event that a handler returned, as it is published."""

    type: str
    schema: str
    value: bytes


class UsedResource(NamedTuple):
    """A resource with its limiter."""

    resource: Resource
    limiter: Limiter
    """Applies the limits of the resource."""


READ_S = 5.0
"""How long a cached copy of the control log is valid. Changes take effect everywhere within this time."""


@dataclass(slots=True)
class KnownControls:
    """Cached copy of the control log of a service."""

    in_force: ActiveControls = field(default_factory=ActiveControls)
    until_s: float = -inf
    """Monotonic time until which the copy is valid."""
    stops: bool = False
    """True if anything is paused, limited or routed. Otherwise runs need no check."""
    gate: AbstractAsyncContextManager[object] | None = None
    """Lock that lets one task at a time read or write the log and replace the copy. Other tasks wait for the result,
    because the copy may be very old."""
    cas: int | None = None
    """Version of the control log that was read; 0 if the store has none, `None` if it was not read yet."""
    reported: Mapping[Target, ControlEntry] = field(default_factory=dict)
    """Active controls when changes were last reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRuntime(PreparedService):
    """A prepared service with its open resources and ports."""

    resources: Mapping[type, object]
    """Open resources, by declared type."""
    used_resources: Mapping[type | int, UsedResource]
    """Open resources, by actual class: the class of the fake, if a fake replaces the resource. Resources that have the
    same class are here by their `id` instead."""
    ports: Ports
    controls: KnownControls = field(default_factory=KnownControls)
    limiters: dict[str, Limiter] = field(default_factory=dict)
    """Limiters by handler name, for handlers whose runs an operator has limited."""
    calls: dict[tuple[str, Limits], Limiter] = field(default_factory=dict)
    """Limiters of calls that have limits of their own, by resource name and limits. The name is empty for a function
    without a resource."""

    gates: CallGates = field(default_factory=CallGates)
    """Counters of limited calls, shared by all services of the process."""
    memories: dict[tuple[str, Limits], LastGoodCache[Raw]] = field(default_factory=dict)
    """Last good results of calls, with the same keys as `calls`."""

    @property
    def names(self) -> DeclaredNames:
        """Return the names to which controls may refer."""
        declared = self.declared
        return DeclaredNames(
            handlers=[handler.name for handler in declared.handlers],
            compensations=[handler.name for handler in declared.compensations],
            deadlines=[handler.name for handler in declared.deadlines],
            resources=[resource.name for resource in declared.resources],
            events={type_: tuple(r.name for r in self.roles.by_type.get(type_, ())) for type_ in self.consumed},
            flags=find_flags(declared),
        )

    def decision_time(self) -> Now:
        """Return the current time for a decision, with the retention and the absences of the service."""
        heartbeat = self.ports.heartbeat
        absences = () if heartbeat is None else heartbeat.absences
        return Now(self.ports.clock.now_ms(), self.retention_s, absences=absences)

    def is_older_than_retention(self, message: Message) -> bool:
        """Return True if the saga of the message began longer ago than the retention, so that it may have been handled
        and forgotten."""
        return message.started is not None and message.started < self.decision_time().forgotten

    def is_of_forgotten_saga(self, p: SagaProgress, message: Message) -> bool:
        """Return True if the message belongs to a forgotten saga: the saga began longer ago than the retention, and the
        progress is newer than that saga. Then it is unknown what the service did before.

        The progress is newer in two cases: it has no start; or an operator had another message of the forgotten saga
        handled as new, so that the start of the progress is the time of that command.
        """
        if p.started is not None:
            is_later = p.replays and message.started is not None and message.started < p.started
            if not is_later or is_message_known(p, self.roles, message):
                return False
        return self.is_older_than_retention(message)

    def limits(self, active: Mapping[Target, ControlEntry]) -> None:
        """Apply the limits that operators have set. Where none is set any more, the declared limit is restored."""
        limits = {target[1:]: entry.switch for target, entry in active.items() if target[0] == "limit"}
        for used in self.used_resources.values():
            used.limiter.limit(limits.get(("resource", used.resource.name)))
        runs = {name: switch for (what, name), switch in limits.items() if what == "handler"}
        for name in runs:
            if name not in self.limiters:
                self.limiters[name] = Limiter(self.name, _limited(name), self.ports)
        for name, limiter in self.limiters.items():  # runs may still wait at a limiter whose limit was removed
            limiter.limit(runs.get(name))

    def limiter_of(self, name: str, limits: Limits, used: UsedResource | None) -> Limiter | None:
        """Return the limiter for a call that has limits of its own; `None` if it has none."""
        if self.is_all_at_once or not limits.has_turns:
            return None
        resource = "" if used is None else used.resource.name
        limiter = self.calls.get((resource, limits))
        if limiter is None:
            what = _limited(f"{resource}.{name}" if resource else name, limits.at_once_max, limits.rate_per_s)
            gate = self.gates.of("call", resource, None if used is None else used.resource.gives, limits)
            limiter = self.calls[resource, limits] = Limiter(self.name, what, self.ports, gate)
        return limiter

    def memory_of(self, limits: Limits, used: UsedResource | None) -> LastGoodCache[Raw] | None:
        """Return the cache of a call's last good results; `None` if none are remembered."""
        if not isinstance(limits.fallback, LastGood):
            return None
        at = ("" if used is None else used.resource.name, limits)
        memory = self.memories.get(at)
        if memory is None:
            memory = self.memories[at] = LastGoodCache(limits.fallback)
        return memory

    def encode(self, event: Event, saga: str) -> EncodedEvent:
        """Encode an event to emit. Raises `Permanent` if the event belongs to another saga, cannot be encoded, or is
        too large for the log."""
        contract = self.contracts[name_of(type(event))]
        key = str(getattr(event, contract.key))
        if key != saga:
            raise Permanent(f"{contract.name} has {contract.key}={key!r}, but this is saga {saga!r}: emit its own id")
        try:
            value = codec.encode(event)
        except BadInput as why:
            raise Permanent(f"{contract.name} cannot be emitted: {why}") from why
        self.check_size(contract.name, value)
        return EncodedEvent(contract.name, event.__contract__, value)

    def check_size(self, type_: str, value: bytes) -> None:
        """Raise `Permanent` for an event that is too large for the log. Once stored in the progress, it would block the
        saga's other events."""
        bytes_max = value_bytes_max(self.ports.publisher.record_bytes_max)
        if len(value) > bytes_max:
            raise Permanent(
                f"{type_} has {len(value)} bytes, and may have {bytes_max}: emit a reference to what is large, "
                "or raise SAGA_RECORD_BYTES_MAX and what its topic takes"
            )


def make_service_runtime(
    prepared: PreparedService, resources: Mapping[type, object], ports: Ports, gates: CallGates | None = None
) -> ServiceRuntime:
    """Make a running service. `resources`: open resources, by declared type. `gates`: the gates of the process."""
    gates = gates or CallGates()
    declared = {resource.gives: resource for resource in prepared.declared.resources}
    count = Counter(map(type, resources.values()))
    prepared = replace(
        prepared, schemas=KnownSchemas(prepared.schemas.library)
    )  # each running service collects its own schemas
    return ServiceRuntime(
        **{each.name: getattr(prepared, each.name) for each in fields(PreparedService)},
        resources=resources,
        used_resources={
            type(given) if count[type(given)] == 1 else id(given): _use_resource(
                prepared.name, declared[gives], ports, gates
            )
            for gives, given in resources.items()
        },
        ports=ports,
        gates=gates,
    )


def _use_resource(service: str, resource: Resource, ports: Ports, gates: CallGates) -> UsedResource:
    gate = gates.of("resource", resource.name, resource.gives, resource.at_once_max, resource.rate_per_s)
    return UsedResource(resource, Limiter(service, resource, ports, gate))


def _limited(name: str, at_once_max: int | None = None, rate_per_s: float | None = None) -> Resource:
    """Make a resource that stands for the runs of a handler, or for one call, so that they can be limited."""
    return Resource(
        name=name,
        opener=_nothing,
        gives=object,
        timeout_s=0,
        expected_errors=(),
        at_once_max=at_once_max,
        rate_per_s=rate_per_s,
    )


async def _nothing() -> AsyncIterator[object]:
    """Open nothing, because such a resource is never passed to a handler."""
    yield None
