"""Roles of a service's handlers, as far as decisions have to know them: names and event types, no functions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from saga.messaging import operator_commands

COMMAND = "a command"
"""The name under which the inbox holds commands: no handler's."""
DEADLINE = "a deadline"
"""The name under which the inbox holds what opens or closes deadlines, and is for nothing else: no handler's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensationRole:
    """The compensation of a handler: its name, and the events it consumes."""

    name: str
    outcomes: frozenset[str]
    """The failure outcomes it acts on."""
    results: frozenset[str]
    """The results of its original that it undoes."""
    took: frozenset[str] = frozenset()
    """Types of what its original takes that it is handed, too: kept with the results."""
    expected_errors: frozenset[str] = frozenset()
    """Names of the exceptions by which its resources answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRole:
    """One handler: which events it needs, and what they mean."""

    name: str
    takes: tuple[frozenset[str], ...]
    """For each event parameter the types it accepts; never overlapping."""
    optional: tuple[frozenset[str], ...] = ()
    """For each event parameter that is not waited for the types it accepts; none of those in `takes`."""
    many: bool = False
    changes: frozenset[str] = frozenset()
    """Types of `takes` that are changes of documents: of those after the first nothing is wrong."""
    decides: bool = False
    """True if it may emit an outcome."""
    closes: bool = False
    """True if it may emit an event that closes a deadline and is no outcome."""
    undo: CompensationRole | None = None
    after_outcome: bool = False
    """True if it takes an outcome: nobody may decide that it never runs."""
    within_ms: int = 0
    """Milliseconds after its event that a deadline runs; 0: it is none."""
    grace_ms: int | None = None
    """Milliseconds after a deadline's due time from which on it waits for the log no longer; `None`: it waits until the
    log has been handled."""
    unless: frozenset[str] = frozenset()
    """Types that close a deadline, the outcomes that this service knows among them."""
    ends_surely: bool = False
    """True for a deadline that nothing but an outcome closes, and that always says one: once open, the saga ends."""
    expected_errors: frozenset[str] = frozenset()
    """Names of the exceptions by which its resources answer."""
    takes_one: bool = field(init=False)
    """True if it takes one event and no more."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "takes_one", len(self.takes) == 1 and not self.optional)

    @property
    def closes_deadlines(self) -> bool:
        """Return True if a run of it may close a deadline."""
        return self.decides or self.closes

    @property
    def is_deadline(self) -> bool:
        return self.within_ms > 0

    def is_joined(self) -> bool:
        """Return whether it is a fan-in: it needs several events."""
        return not self.takes_one

    def may_do_without(self, type_: str) -> bool:
        """Return whether it takes `type_` without waiting for it."""
        return any(type_ in types for types in self.optional)

    def parameter_of(self, type_: str) -> int:
        """Return the number of the parameter that needs `type_`; -1 if none does."""
        for i, types in enumerate(self.takes):
            if type_ in types:
                return i
        return -1


@dataclass(frozen=True, slots=True)
class HandlerRoles:
    """The handlers of one service, in declaration order."""

    service: str
    handlers: Mapping[str, HandlerRole]
    outcomes: frozenset[str]
    """Every outcome this service may emit."""
    by_type: Mapping[str, tuple[HandlerRole, ...]] = field(init=False)
    deadlines: Mapping[str, HandlerRole] = field(init=False)
    """The handlers that run at a time, by name: messages are not for them, but open and close them."""
    opening: Mapping[str, tuple[HandlerRole, ...]] = field(init=False)
    """For each type the deadlines that it opens."""
    closing: Mapping[str, tuple[HandlerRole, ...]] = field(init=False)
    """For each type the deadlines that it closes."""
    noted: frozenset[str] = field(init=False)
    """The types that open or close a deadline and are for nothing else here."""
    undone_by: Mapping[str, tuple[HandlerRole, ...]] = field(init=False)
    """For each failure outcome the handlers that it undoes."""
    names: Mapping[str, Sequence[str]] = field(init=False)
    """For each type the names under which the inbox may hold a message of it."""
    affecting: frozenset[str] = field(init=False)
    """Emitted types that also change this service's own progress."""
    ready_from_kept: frozenset[str] = field(init=False)
    """The handlers that something kept can make ready: fan-ins, and those of own events."""
    joined: frozenset[str] = field(init=False)
    """The types that some handler takes together with others, whether it needs them or not."""
    lookers: tuple[HandlerRole, ...] = field(init=False)
    """The handlers of an event that may be absent."""
    heard: tuple[str, ...] = field(init=False)
    """The types that this service both emits and takes, sorted."""

    def __init__(
        self, service: str, handlers: Iterable[HandlerRole], *, outcomes: frozenset[str], emitted: frozenset[str]
    ) -> None:
        """`emitted`: every type this service may emit, or may have emitted before it was changed."""
        named = {role.name: role for role in handlers}
        by_type: dict[str, tuple[HandlerRole, ...]] = {}
        undone: dict[str, tuple[HandlerRole, ...]] = {}
        names: defaultdict[str, list[str]] = defaultdict(list)
        opening: defaultdict[str, tuple[HandlerRole, ...]] = defaultdict(tuple)
        closing: defaultdict[str, tuple[HandlerRole, ...]] = defaultdict(tuple)
        for role in named.values():
            if role.is_deadline:
                for type_ in role.takes[0]:
                    opening[type_] += (role,)
                for type_ in role.unless:
                    closing[type_] += (role,)
                continue
            for type_ in sorted(set().union(*role.takes, *role.optional)):
                by_type[type_] = (*by_type.get(type_, ()), role)
                names[type_].append(role.name)
            for outcome in sorted(role.undo.outcomes) if role.undo else ():
                undone[outcome] = (*undone.get(outcome, ()), role)
                names[outcome].append(compensation_name(role.name))
        noted = frozenset((*opening, *closing)) - by_type.keys() - undone.keys()
        for type_ in noted:
            names[type_].append(DEADLINE)
        ready_from_kept = frozenset(
            r.name for r in named.values() if len(r.takes) > 1 or any(t & emitted for t in r.takes)
        )
        for name, value in (
            ("service", service),
            ("handlers", named),
            ("outcomes", outcomes),
            ("by_type", by_type),
            ("deadlines", {name: role for name, role in named.items() if role.is_deadline}),
            ("opening", dict(opening)),
            ("closing", dict(closing)),
            ("noted", noted),
            ("undone_by", undone),
            ("names", {**dict.fromkeys(operator_commands.TYPES, (COMMAND,)), **names}),
            ("affecting", frozenset((*outcomes, *by_type, *undone))),
            ("ready_from_kept", ready_from_kept),
            ("joined", frozenset(t for t, takers in by_type.items() if any(map(HandlerRole.is_joined, takers)))),
            ("lookers", tuple(role for role in named.values() if role.optional)),
            ("heard", tuple(sorted(emitted & by_type.keys()))),
        ):
            object.__setattr__(self, name, value)


def compensation_name(handler: str) -> str:
    """Return the name under which the inbox holds an outcome for the compensation of `handler`."""
    return f"undo {handler}"
