"""Roles of a service's handlers, as decisions use them: names and event types, without functions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from saga.messaging import operator_commands

COMMAND = "a command"
"""Name that replaces the handler's name in inbox entries of operator commands."""
DEADLINE = "a deadline"
"""Name that replaces the handler's name in inbox entries of messages that only open or close deadlines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompensationRole:
    """The compensation of a handler: its name, and the events it consumes."""

    name: str
    outcomes: frozenset[str]
    """The failure outcomes that it reacts to."""
    results: frozenset[str]
    """Types of the handler's events that it undoes."""
    took: frozenset[str] = frozenset()
    """Types of the events that its handler consumed and that the compensation gets as parameters, too. They are stored
    with the results."""
    expected_errors: frozenset[str] = frozenset()
    """Class names of the declared exceptions of its resources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRole:
    """One handler, as decisions see it: the events that it takes, and what it may emit or close."""

    name: str
    takes: tuple[frozenset[str], ...]
    """For each required event parameter, the types that it accepts; parameters never overlap."""
    optional: tuple[frozenset[str], ...] = ()
    """For each optional event parameter, the types that it accepts; none of them is in `takes`."""
    many: bool = False
    """True for a handler with `repeats`: it runs for each event of its first parameter."""
    changes: frozenset[str] = frozenset()
    """Types in `takes` that are document changes: a second change of a document is not an error."""
    decides: bool = False
    """True if it may emit an outcome."""
    closes: bool = False
    """True if it may emit an event that closes a deadline and is not an outcome."""
    undo: CompensationRole | None = None
    after_outcome: bool = False
    """True if it consumes an outcome: then it may run even after the saga has ended."""
    within_ms: int = 0
    """Milliseconds after its event at which a deadline runs; 0 for a handler that is not a deadline."""
    grace_ms: int | None = None
    """Maximum milliseconds after its due time that a deadline waits for the log to be handled; `None` if it waits as
    long as necessary."""
    unless: frozenset[str] = frozenset()
    """Types that close a deadline, including the outcomes that this service knows."""
    ends_surely: bool = False
    """True for a deadline that only an outcome closes and that always emits an outcome: once it is open, the saga will
    end."""
    expected_errors: frozenset[str] = frozenset()
    """Class names of the declared exceptions of its resources."""
    takes_one: bool = field(init=False)
    """True if it has a single event parameter."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "takes_one", len(self.takes) == 1 and not self.optional)

    @property
    def closes_deadlines(self) -> bool:
        """Return True if a run of the handler may close a deadline."""
        return self.decides or self.closes

    @property
    def is_deadline(self) -> bool:
        return self.within_ms > 0

    def is_joined(self) -> bool:
        """Return whether the handler is a fan-in: it takes several events together, optional ones included."""
        return not self.takes_one

    def may_do_without(self, type_: str) -> bool:
        """Return whether `type_` is a type of an optional parameter of the handler."""
        return any(type_ in types for types in self.optional)

    def parameter_of(self, type_: str) -> int:
        """Return the index of the required parameter that accepts `type_`; -1 if there is none."""
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
    """Every outcome that this service may emit."""
    by_type: Mapping[str, tuple[HandlerRole, ...]] = field(init=False)
    deadlines: Mapping[str, HandlerRole] = field(init=False)
    """Deadline handlers, by name. Messages open and close them, but are not passed to them when they arrive."""
    opening: Mapping[str, tuple[HandlerRole, ...]] = field(init=False)
    """For each type, the deadlines that it opens."""
    closing: Mapping[str, tuple[HandlerRole, ...]] = field(init=False)
    """For each type, the deadlines that it closes."""
    noted: frozenset[str] = field(init=False)
    """Types that only open or close deadlines here."""
    undone_by: Mapping[str, tuple[HandlerRole, ...]] = field(init=False)
    """For each failure outcome, the handlers that it undoes."""
    names: Mapping[str, Sequence[str]] = field(init=False)
    """For each type, the names that inbox entries of its messages may contain."""
    affecting: frozenset[str] = field(init=False)
    """Emitted types that also change this service's own progress."""
    ready_from_kept: frozenset[str] = field(init=False)
    """Handlers that stored messages can make ready: fan-ins, and handlers of self-consumed events. Deadlines are left
    out: only time makes them ready."""
    joined: frozenset[str] = field(init=False)
    """Types that a fan-in consumes, as required or optional ones."""
    lookers: tuple[HandlerRole, ...] = field(init=False)
    """Handlers with an optional event parameter."""
    self_consumed_types: tuple[str, ...] = field(init=False)
    """Types that this service both emits and consumes, sorted."""

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
            r.name
            for r in named.values()
            if not r.is_deadline and (len(r.takes) > 1 or any(t & emitted for t in r.takes))
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
            ("self_consumed_types", tuple(sorted(emitted & by_type.keys()))),
        ):
            object.__setattr__(self, name, value)


def compensation_name(handler: str) -> str:
    """Return the name that inbox entries contain for the compensation of `handler`."""
    return f"undo {handler}"
