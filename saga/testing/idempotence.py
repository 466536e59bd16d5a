"""Check that the handlers of a service give the same result when they run again: `check_idempotent`."""

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

import msgspec

from saga.change import Change
from saga.contracts import codec
from saga.contracts.conversion import Classes
from saga.contracts.library import binding_of, contract_of
from saga.contracts.schema import (
    ArrayType,
    DecimalType,
    EnumType,
    MapType,
    OptionalType,
    RecordType,
    ScalarKind,
    ScalarType,
    Type,
)
from saga.contracts.upcasters import upcaster_of
from saga.declarations.changes import is_change
from saga.declarations.resources import MARKERS
from saga.declarations.values import Declared, Parameter, Reaction
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import RecordingPublisher
from saga.engine.lifecycle import open_resources
from saga.engine.ports import ExternalCall
from saga.engine.prepared_service import PreparedService, consumed_by, prepare
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import Problems, SagaError
from saga.messages import Event, Message, Position, name_of
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress.document import (
    EmittedEvent,
    SagaProgress,
    StepRecord,
    Transition,
    decode_progress,
    decode_transition,
)
from saga.progress.journal import new_progress
from saga.service import Service
from saga.store.port import Document, Store
from saga.support.clock import SystemClock
from saga.support.settings import OPEN_S_MAX
from saga.testing.code_mistakes import MISTAKES, describe_mistake
from saga.testing.invariants.evidence import is_completed_run
from saga.testing.invariants.rerun import RerunComplete, RerunStore
from saga.testing.trials import (
    FakeChecks,
    TrialClock,
    make_arriving_change,
    make_arriving_event,
    make_timer,
    retry_at_once,
    trial_ports,
)
from saga.testing.world import NO_DOCUMENTS, check_fakes

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
_SIMPLE: Final[Mapping[ScalarKind, object]] = {
    "boolean": True,
    "int": 1,
    "long": 1,
    "float": 1.0,
    "double": 1.0,
    "bytes": b"1",
    "uuid": UUID(int=1),
    "date": date(2026, 1, 1),
    "timestamp-millis": _NEW_YEAR,
    "timestamp-micros": _NEW_YEAR,
}


class DueDeadline(NamedTuple):
    """Marks the point in a script at which a deadline becomes due and its handler runs."""

    handler: str


Arrival: TypeAlias = Event | Message | DueDeadline
"""An event, the message of a document change, or a deadline that becomes due."""
Arrivals: TypeAlias = tuple[Arrival, ...]
"""What arrives and becomes due, in this order."""


class Script(NamedTuple):
    """The events and deadlines after which a handler runs."""

    handler: Reaction
    arrivals: Arrivals


def find_scripts(declared: Declared, given: Sequence[Event | Message]) -> list[Script]:
    """Return scripts for each handler and compensation. Together they contain every event that the handler can take,
    and those document changes that are given as messages.

    A script contains only events from outside the service. A self-consumed event is replaced with the events and
    deadlines that make the service emit it. A script has no arrivals if its handler waits for an event that no other
    handler of the service emits, or for a document change that is not given.

    Raises `SagaError` if the given events belong to several sagas, or if the service does not consume one of them.
    """
    planner = _Planner(declared, given)
    return [Script(each, found) for each in declared.reactions for found in planner.handler(each, frozenset()) or [()]]


def make_example(event: type[Event], saga: str) -> Event:
    """Return a simple event of this class: every number is 1, every string is derived from the name of its field, and
    optional fields have a value.
    """
    binding = binding_of(event)
    record, classes = binding.version.record, binding.classes
    fields = {field.name: _make_simple(field.type, field.name, classes) for field in record.fields}
    key = binding.contract.key
    fields[key] = UUID(saga) if isinstance(fields[key], UUID) else saga
    return event(**fields)


def _make_simple(type_: Type, name: str, classes: Classes) -> Any:
    match type_:
        case ScalarType("string"):
            return f"{name.removesuffix('_id')}-1"
        case ScalarType(kind):
            return _SIMPLE[kind]
        case DecimalType(precision, scale):
            return Decimal((0, (1, *[0] * scale) if scale < precision else (1,), -scale))
        case EnumType(symbols=symbols):
            return classes[type_.name](symbols[0])
        case ArrayType(items):
            return (_make_simple(items, name, classes),)
        case MapType(values):
            return {f"{name}-1": _make_simple(values, name, classes)}
        case OptionalType(inner):
            return _make_simple(inner, name, classes)
        case RecordType():
            return classes[type_.name](**{f.name: _make_simple(f.type, f.name, classes) for f in type_.fields})


class _Planner:
    """Searches for the arrivals after which each handler runs. A method that returns a list returns alternatives: each
    element is one complete sequence of arrivals.
    """

    def __init__(self, declared: Declared, given: Sequence[Event | Message]) -> None:
        self._handlers = declared.reactions
        named = {e for h in self._handlers for e in (*h.emits, *h.taken_events)}
        contracts = self._contracts = {name_of(event): contract_of(event) for event in named}
        self._consumed = consumed_by(declared, contracts)
        self._given: dict[str, list[Event | Message]] = {}
        sagas = set[str]()
        for event in given:
            name = _name_arrival(event)
            if name not in self._consumed:
                raise SagaError(
                    f"a {name} never arrives at {declared.name!r}: give what its handlers take, and for an event of "
                    "its own what makes it say so"
                )
            self._given.setdefault(name, []).append(event)
            sagas.add(event.saga if isinstance(event, Message) else str(getattr(event, contracts[name].key)))
        if len(sagas) > 1:
            raise SagaError(f"the events that are given are of several sagas, {sorted(sagas)}: give those of one")
        self._saga = next(iter(sagas), str(UUID(int=1)))

    def handler(self, handler: Reaction, above: frozenset[str]) -> list[Arrivals]:
        """Return alternative arrivals after which the handler runs; an empty list if it waits for an event that only it
        emits.

        `above`: names of the handlers for which the search is already under way. The recursion stops at them.
        """
        if handler.name in above:
            return []
        above |= {handler.name}
        needed = [p for p in handler.parameters if self._is_needed(handler, p)]
        needed.sort(
            key=lambda p: all(name_of(e) in self._consumed for e in p.events)
        )  # self-consumed events come first
        needs = [self._parameter(p, above) for p in needed]
        if handler.undoes is not None:
            original = next(h for h in self._handlers if h.name == handler.undoes)
            needs.insert(0, self.handler(original, above))
        if not all(needs):
            return []
        due = [(DueDeadline(handler.name),)] if handler.within is not None else []
        return [_join([*(need[n % len(need)] for need in needs), *due]) for n in range(max(map(len, needs)))]

    def _is_needed(self, handler: Reaction, parameter: Parameter) -> bool:
        """Return True if an event must arrive for this parameter. A compensation's parameter for the result of its
        original handler needs no arrival, because the script of the original already makes the service emit that
        result.
        """
        if parameter.role != "event":
            return False
        return handler.undoes is None or all(self._contracts[name_of(e)].outcome for e in parameter.events)

    def _parameter(self, parameter: Parameter, above: frozenset[str]) -> list[Arrivals]:
        return [found for event in parameter.events for found in self._event(event, above)]

    def _event(self, event: type[Event], above: frozenset[str]) -> list[Arrivals]:
        name = name_of(event)
        if name in self._consumed:
            return [(one,) for one in self._given.get(name, ()) or self._examples(event)]
        sayers = [h for h in self._handlers if any(name_of(e) == name for e in h.emits)]
        return [found for sayer in sayers for found in self.handler(sayer, above)]

    def _examples(self, event: type[Event]) -> list[Event]:
        """Return an example of an event, and an example of each older version that has an upcaster. A document change
        has no example, because any document may be in it.
        """
        if is_change(event):
            return []
        older = [upcaster_of(event, number) for number in sorted(binding_of(event).version.upcasts)]
        return [make_example(each, self._saga) for each in (event, *(one.takes for one in older if one is not None))]


def _join(needs: Iterable[Arrivals]) -> Arrivals:
    """Join arrivals in order. Of several events of one type, only the first is kept."""
    first: dict[str | DueDeadline, Arrival] = {}
    for need in needs:
        for each in need:
            first.setdefault(each if isinstance(each, DueDeadline) else _name_arrival(each), each)
    return tuple(first.values())


def _name_arrival(arrival: Event | Message) -> str:
    return arrival.type if isinstance(arrival, Message) else name_of(type(arrival))


Difference: TypeAlias = tuple[str, str, str]
"""One difference between two writes: where it is, the value in the first run, and the value in the rerun."""
NOTHING = "nothing"
_PLAIN = (str, bytes, int, float, complex, Decimal, date, time, timedelta, UUID, Enum)


class CallIdentity(NamedTuple):
    """Identifies a step call within one saga. The same call with other arguments has another identity."""

    handler: str
    name: str
    number: int
    input: str


BEGUN = "begun"
"""Used as the outcome of a write that contains a new intent, because the run has no transition yet at that point."""
_RAN = (BEGUN, "handled", "compensated")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparableWrite:
    """One write to the store, split into parts that can be compared: an intent, a transition or a business document."""

    handler: str
    """Handler whose run made the write."""
    outcome: str
    """Outcome of the transition, or `begun` for an intent; for a document, its collection and key."""
    reason: str | None = None
    calls: tuple[StepRecord, ...] = ()
    delta: Mapping[str, object] = field(default_factory=dict)
    events: tuple[EmittedEvent, ...] = ()
    document: Mapping[str, object] = field(default_factory=dict)
    """Fields of the document, without the toolkit's markers."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Compares a write of the first run with the same write of a rerun."""

    arguments: Mapping[CallIdentity, Mapping[str, object]]
    """Arguments of each step call so far, by argument name."""
    event_of: Callable[[str, bytes], Event]
    """Decodes an emitted event from its type and bytes."""

    def of(self, one: ComparableWrite | None, other: ComparableWrite | None) -> Iterator[Difference]:
        """Return all differences between the two writes."""
        if one is None or other is None:
            if one is not other:
                yield "transition", _describe_write(one), _describe_write(other)
            return
        ran = one.handler == other.handler and {one.outcome, other.outcome} <= set(_RAN)
        if not ran and (one.handler, one.outcome) != (other.handler, other.outcome):
            yield "transition", _describe_write(one), _describe_write(other)
            return
        for call, repeated in zip_longest(one.calls, other.calls):
            yield from self._call(one.handler, call, repeated)
        yield from _values("saga.state", one.delta, other.delta)
        for event, repetition in zip_longest(one.events, other.events):
            yield from self._event(event, repetition)
        yield from _values(one.outcome, one.document, other.document)

    def _call(self, handler: str, one: StepRecord | None, other: StepRecord | None) -> Iterator[Difference]:
        if one is None or other is None or _describe_call(one) != _describe_call(other):
            yield "call", _describe_call(one), _describe_call(other)
        elif one.input != other.input:
            asked, repeated = (
                self.arguments.get(CallIdentity(handler, c.name, c.number, c.input), {}) for c in (one, other)
            )
            found = list(_values(_describe_call(one), asked, repeated)) if asked and repeated else []
            yield from found or [
                (f"arguments of {_describe_call(one)}", f"of digest {one.input}", f"of digest {other.input}")
            ]
        elif _describe_answer(one) != _describe_answer(other):
            yield f"what {_describe_call(one)} gave", _describe_answer(one), _describe_answer(other)

    def _event(self, one: EmittedEvent | None, other: EmittedEvent | None) -> Iterator[Difference]:
        if one is None or other is None or one.id != other.id:
            yield "event", one.type if one else NOTHING, other.type if other else NOTHING
        elif one.value != other.value:
            first, then = (_fields(self.event_of(e.type, e.value)) for e in (one, other))
            yield from list(_values(one.type, first, then)) or [(one.type, one.value.hex(), other.value.hex())]


def copy_for_comparison(value: object, seen: set[int] | None = None) -> object:
    """Return a representation of a value and all its parts. It can later be compared with another representation of the
    same object, to find out whether the object has changed. An object of a class of the standard library is represented
    only by the name of its class.
    """
    seen = set() if seen is None else seen
    kind = type(value).__name__
    if value is None or isinstance(value, _PLAIN):
        return kind, repr(value)
    if id(value) in seen:
        return kind
    seen.add(id(value))
    match value:
        case Mapping():
            return kind, [
                (copy_for_comparison(name, seen), copy_for_comparison(part, seen)) for name, part in value.items()
            ]
        case Set():
            return kind, sorted(map(repr, value))
        case Sequence():
            return kind, [copy_for_comparison(part, seen) for part in value]
        case _ if callable(value) or type(value).__module__.partition(".")[0] in sys.stdlib_module_names:
            return kind
        case _:
            names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
            return kind, [(name, copy_for_comparison(getattr(value, name, None), seen)) for name in names]


def _values(what: str, one: Mapping[str, object], other: Mapping[str, object]) -> Iterator[Difference]:
    for name in [*one, *(name for name in other if name not in one)]:
        first, then = (repr(side[name]) if name in side else NOTHING for side in (one, other))
        if first != then:
            yield f"{what}, {name}", first, then


def _fields(event: Event) -> Mapping[str, object]:
    return {part.name: getattr(event, part.name) for part in fields(event)}  # type: ignore[arg-type] # all events are dataclasses


def _describe_write(made: ComparableWrite | None) -> str:
    if made is None:
        return NOTHING
    return f"{made.handler} {made.outcome}" + (f": {made.reason}" if made.reason else "")


def _describe_call(call: StepRecord | None) -> str:
    """Describe a call without its arguments."""
    if call is None:
        return NOTHING
    document = f" of {call.document}" if call.kind == "update" else ""
    return f"{call.kind} {call.name}{document}" + (f", number {call.number}" if call.number > 1 else "")


def _describe_answer(call: StepRecord) -> str:
    return f"{call.answer or ''}{call.claim or bytes(call.value).decode()}"


_TURNS_MAX = 5
"""Maximum number of times that due suspended runs and deadlines are processed after each arrival of a script. The limit
is needed because a suspended run may never end.
"""
APART_S = 0.002
"""Pause in seconds before each rerun. A handler that reads the clock itself then gets another time than in the first
run, even if it reads only milliseconds.
"""
REMEDY = (
    "A handler that runs again on the same events has to make the same steps, updates and events. Make ids with "
    "saga.idempotency_key(...); take times, and all else, from the events, saga.state and what steps gave; call "
    "resources only through saga.step; keep nothing in variables."
)


async def check_idempotent(
    service: "Service[DataclassInstance | None]",
    *events: "Event | Change[Any]",
    use: Sequence[object] = (),
    real: Sequence[type] = (),
    documents: "Mapping[str, DataclassInstance]" = NO_DOCUMENTS,
) -> None:
    """Check that every handler and compensation gives the same result when it runs again, after a crash or with
    outdated progress: `await check_idempotent(pay)`.

    Each handler first runs once on the real runtime. Then the check repeats parts of that run:

    - each write of the run, starting from the state before it, as after a crash at that point (including crashes right
      after each step);
    - the processing of the last event in a worker whose cache holds the progress from before earlier events;
    - another delivery of the last event, on which nothing may be written.

    Steps, their arguments, updates, emitted events, state and documents must be the same each time. A step that is
    called again gets its first answer, as from an external system that honours idempotency keys. Its fake is not called
    again.

    Args:
        events: events of one saga that arrive, and changes of documents, as in `trial`. Several of one type are
            alternatives, tried one after the other. For every other event that the handlers take, the check makes
            simple examples: one from the contract, and one from each older version that has an upcaster. An event that
            only this service emits is not made: the check runs the handlers that emit it. If that is a deadline
            handler, its deadline becomes due.
        use: fakes, as in `trial`.
        real: types of resources that are opened for real, as in `trial`.
        documents: documents by key that exist from the beginning, as in `trial`.

    Not detected:
    - an external system, or a fake, in which one idempotency key has two effects;
    - a dependence on the order of a set of strings, which differs only in another process;
    - a date that a handler reads from the clock itself;
    - effects that only other events would cause.

    Raises `AssertionError` if a rerun differs: it names the handler and shows the differences. Raises `SagaError` for
    handlers that did not run on these events, each with the reason; otherwise the same errors as `trial`, also the
    failure of an `assert` or `pytest.fail` in a fake.
    """
    declared, clock, prepared = service.declared, TrialClock(), prepare(service.declared)
    check_fakes([declared], use, real)
    unreached: dict[str, str] = {}
    reached: set[str] = set()
    given = [make_arriving_change(prepared, each, clock) if isinstance(each, Change) else each for each in events]
    async with AsyncExitStack() as stack:
        resources = await open_resources(declared, stack, clock, OPEN_S_MAX, use)
        for script in find_scripts(declared, given):
            if script.arrivals:
                reason = await _check_script(_ScriptRuns(prepared, _copy_fakes(resources, use), use, documents), script)
            else:
                reason = _explain_no_arrivals(declared, given)
            if reason is None:
                reached.add(script.handler.name)
            else:
                unreached.setdefault(script.handler.name, reason)
    missed = [f"{name}: {reason}" for name, reason in unreached.items() if name not in reached]
    if missed:
        raise Problems(
            f"these handlers of {declared.name!r} were not tested, because they did not run; give the events on which "
            "they run, or documents= and fakes with use=:",
            missed,
        )


async def _check_script(runs: "_ScriptRuns", script: Script) -> str | None:
    """Run the script and then its reruns. Return why the handler did not run in the script; `None` if it ran. Raises
    `AssertionError` if a rerun differs.
    """
    name = script.handler.name
    await runs.run(script)
    if not any(e.handler == name and is_completed_run(e.outcome, e.reason) for e in runs.entries()):
        return "; ".join([*runs.mistakes, _explain_no_run(script, runs.entries())])
    mine = [number for number, write in enumerate(runs.writes) if write.made.handler == name]
    for count, number in enumerate(mine, 1):
        await runs.rerun(script, number, f"after its process died before write {count} of {len(mine)} of its run")
    last = _describe_arrival(script.arrivals[-1])
    for old in range(len(script.arrivals) - 1):
        when = f"when {last} came to a worker with an old progress in its cache"
        await runs.rerun_on_old(script, runs.first_write(len(script.arrivals) - 1), old, when)
    when = f"when {last} came once more, to a worker with an old progress in its cache"
    await runs.rerun_on_old(script, len(runs.writes), 0, when)
    return None


def _explain_no_arrivals(declared: Declared, given: Sequence[Event | Message]) -> str:
    taken = {name_of(event) for each in declared.reactions for event in each.taken_events if is_change(event)}
    if taken - set(map(_name_arrival, given)):
        return (
            "it waits for a change of a document, or for what a handler of one emits: give the change, "
            "Insert(key=..., document=...)"
        )
    return "it waits for an event of this service that no other handler here emits"


def _explain_no_run(script: Script, seen: Sequence[Transition]) -> str:
    """Explain why the handler did not run: with the last dead letter if there is one, otherwise with the handler's last
    transition.
    """
    dead = [entry for entry in seen if entry.outcome == "dead"]
    entries = dead or [entry for entry in seen if entry.handler == script.handler.name]
    what = f"{entries[-1].handler} {entries[-1].outcome}: {entries[-1].reason}" if entries else "no event reached it"
    emitted = [event.type for entry in seen for event in entry.events]
    return f"{what} (events: {_list_names(script)}; emitted: {', '.join(emitted) or 'none'})"


def _list_names(script: Script) -> str:
    return ", ".join(map(_describe_arrival, script.arrivals))


def _describe_arrival(arrival: Arrival) -> str:
    if isinstance(arrival, DueDeadline):
        return f"the deadline {arrival.handler}"
    return arrival.type if isinstance(arrival, Message) else type(arrival).__name__


def _copy_fakes(resources: Mapping[type, object], use: Sequence[object]) -> Mapping[type, object]:
    """Return the resources with copies of the fakes, so that each script begins with fakes in their original state.

    If a fake cannot be copied, for example because it holds a lock, the originals are used.
    """
    memo: dict[int, object] = {id(given): given for given in resources.values() if not any(given is f for f in use)}
    try:
        return deepcopy(dict(resources), memo)
    except Exception:  # noqa: BLE001 - a fake may raise anything when it is copied
        return resources


class _Write(NamedTuple):
    """One write to the store during the first run of a script."""

    at: tuple[str, str]
    """Collection and key of the written document."""
    content: bytes
    made: ComparableWrite
    arrival: int
    """Index of the message that was being processed."""


_SEEDED = ComparableWrite(handler="", outcome="there from the beginning")


class _Store(RerunStore):
    """An in-memory store for one run of a script. It contains the documents that `writes` produced, and records each
    new write.

    `writes`: the writes before this run, in order. `apart`: archives, claim checks and overflow segments, which all
    runs share and which are not compared separately. `ends`: True for a rerun, which ends at its first compared write.
    If that write is an intent, the rerun continues to the next step call or compared write, so that the arguments of
    the call are known.
    """

    def __init__(
        self, declared: Declared, writes: Sequence[_Write], apart: dict[tuple[str, str], bytes], *, ends: bool
    ) -> None:
        super().__init__({})
        self._apart = apart
        for at, content in apart.items():
            self._put(at, content)
        self.writes, self.ends, self.arrival = list(writes), ends, 0
        self.made: ComparableWrite | None = None
        """The first compared write of this run; `None` before it."""
        self._compensations = {c.undoes: c.name for c in declared.compensations}
        for write in writes:
            self._put(write.at, write.content)

    def accept_write(self, at: tuple[str, str], content: bytes) -> int:
        """Store a write. In a rerun, raise `RerunComplete` instead, unless the write is an intent and the first of the
        rerun.
        """
        if at[0] == ARCHIVES:  # not compared separately: its content is identified by the document that refers to it
            self._apart[at] = content
            return self._put(at, content)
        made = self._make_write(at, content)
        begun = self.made is None and made.outcome == BEGUN
        self.made = self.made or made
        if self.ends and not begun:
            raise RerunComplete
        self.writes.append(_Write(at, content, made, self.arrival))
        return self._put(at, content)

    def _put(self, at: tuple[str, str], content: bytes) -> int:
        cas = self.there[at].cas + 1 if at in self.there else 1
        self.there[at] = Document(content, cas)
        return cas

    def _make_write(self, at: tuple[str, str], content: bytes) -> ComparableWrite:
        """Split the content of a write into comparable parts.

        A progress with as many transitions as before is the write of an intent. A progress with a new transition is the
        write of that transition, even if it contains open intents of other runs.
        """
        if at[0] != PROGRESS:
            return ComparableWrite(
                handler=self.writes[-1].made.handler, outcome="/".join(at), document=_remove_markers(content)
            )
        p = decode_progress(content)
        if p.intents and (decode_progress(self.there[at].content).n if at in self.there else 0) == p.n:
            intent = p.intents[-1]
            handler = self._compensations[intent.handler] if intent.kind == "undo" else intent.handler
            return ComparableWrite(
                handler=handler, outcome=BEGUN, calls=(*intent.calls, *filter(None, [intent.begins]))
            )
        t = decode_transition(p.transitions[-1])
        return ComparableWrite(
            handler=t.handler, outcome=t.outcome, reason=t.reason, calls=t.calls, delta=t.delta, events=t.events
        )


@dataclass
class _Outside:
    """Plays the external systems: it remembers the arguments and the first answer of each step call, over all runs of a
    script.
    """

    arguments: dict[CallIdentity, Mapping[str, object]] = field(default_factory=dict)
    answers: dict[CallIdentity, object] = field(default_factory=dict)
    refusals: dict[CallIdentity, Exception] = field(default_factory=dict)
    calls: int = 0

    async def answer(
        self, asked: CallIdentity, call: Callable[[], Awaitable[object]], declared: tuple[type[Exception], ...]
    ) -> object:
        """Return the answer to the first call with the identity `asked`, or raise it if it was an exception. Make the
        call if there is no answer yet.

        `declared`: exceptions that count as answers.
        """
        if asked in self.refusals:
            raise self.refusals[asked]
        if asked not in self.answers:
            self.calls += 1
            try:
                self.answers[asked] = await call()
            except declared as why:
                self.refusals[asked] = why
                raise
        return self.answers[asked]


class _ScriptRuns:
    """Runs a script once, and then repeats its writes, with the same fakes and the same answers to steps."""

    def __init__(
        self,
        prepared: PreparedService,
        resources: Mapping[type, object],
        use: Sequence[object],
        documents: "Mapping[str, DataclassInstance]",
    ) -> None:
        self._prepared, self._resources = retry_at_once(prepared), resources
        self._declared = declared = prepared.declared
        self._outside, self._clock = _Outside(), TrialClock()
        kinds = {document.kind: document.collection for document in declared.documents}
        for document in documents.values():
            if type(document) not in kinds:
                raise SagaError(f"{declared.name!r} declares no document {type(document).__name__}")
        self.writes = [
            _Write((kinds[type(document)], key), msgspec.json.encode(document), _SEEDED, -1)
            for key, document in documents.items()
        ]
        """All writes of the first run, in order."""
        self._apart: dict[tuple[str, str], bytes] = {}
        """Claim checks, archives and overflow segments, by collection and key. The first run and all reruns share them.
        """
        self._arrivals: list[tuple[Message, Position, int]] = []
        """The messages that arrived, in order: events, and timers of suspended runs and deadlines. Each has its
        position and the time of its arrival.
        """
        self.mistakes: dict[str, None] = {}
        """Descriptions of the exceptions that fakes raised by mistake; see `describe_mistake`."""
        kinds_of_fakes = {type(fake) for fake in use}
        self._checks = FakeChecks([each for each in resources.values() if type(each) in kinds_of_fakes])
        self._starts: list[int] = []
        """For each arrival of the script, the index of its first message in `_arrivals`."""

    async def run(self, script: Script) -> None:
        """Run the script from beginning to end."""
        store = _Store(self._declared, self.writes, self._apart, ends=False)
        service = self._service(store)
        for number, arrival in enumerate(script.arrivals):
            self._starts.append(len(self._arrivals))
            deadline = arrival.handler if isinstance(arrival, DueDeadline) else None
            if isinstance(arrival, Message):
                await self._process(service, store, arrival)
            elif not isinstance(arrival, DueDeadline):
                await self._process(service, store, make_arriving_event(service, arrival, self._clock))
            is_last = number == len(script.arrivals) - 1
            for turn in range(_TURNS_MAX):
                due_ms = self._due_ms(store, deadline, is_last=is_last)
                if due_ms is None:
                    break
                self._clock.pass_until(due_ms)
                saga = self._arrivals[0][0].saga
                await self._process(service, store, make_timer(service, saga, self._clock, due_ms, turn))
        self.writes = store.writes

    @staticmethod
    def _due_ms(store: "_Store", deadline: str | None, *, is_last: bool) -> int | None:
        """Return the earliest time at which a suspended run continues or the deadline `deadline` runs; `None` if
        nothing is due.

        Before the last arrival, suspended runs that wait for an event do not count, because the event may still arrive.
        Deadlines of other handlers never count.
        """
        found = [write.content for write in store.writes if write.at[0] == PROGRESS]
        if not found:
            return None
        p = decode_progress(found[-1])
        due = [c.due_ms for c in p.suspended_runs if is_last or not c.awaited_types]
        return min([*due, *(k.due_ms for k in p.deadlines if k.handler == deadline)], default=None)

    async def _process(self, service: ServiceRuntime, store: "_Store", message: Message) -> None:
        """Process a message until it is finished. Raises the failure of a check in a fake."""
        number = len(self._arrivals)
        position = Position("", 0, number)
        self._arrivals.append((message, position, self._clock.now_ms()))
        store.arrival = number
        await MessageProcessor(service).process(MessageProcessor(service).begin(message, position, None))
        self._checks.raise_failed()

    def entries(self) -> list[Transition]:
        """Return the transitions of the first run."""
        progresses = [write.content for write in self.writes if write.at[0] == PROGRESS]
        return list(map(decode_transition, decode_progress(progresses[-1]).transitions)) if progresses else []

    def first_write(self, arrival: int) -> int:
        """Return the index of the first write that was made at or after this arrival of the script."""
        first = self._starts[arrival]
        return next((n for n, write in enumerate(self.writes) if write.arrival >= first), len(self.writes))

    async def rerun(
        self, script: Script, number: int, when: str, cached: tuple[SagaProgress, int] | None = None
    ) -> None:
        """Repeat the write with the index `number`, starting from the state before it. If `number` is one past the last
        write, check that nothing is written.

        `cached`: the progress in the worker's cache, with its CAS. `when`: describes the situation in the error
        message. Raises `AssertionError` if the rerun does not make the same write.
        """
        await SystemClock().sleep(APART_S)
        store = _Store(self._declared, self.writes[:number], self._apart, ends=True)
        service = self._service(store)
        once = self.writes[number] if number < len(self.writes) else None
        before, calls = self._copy_resources(), self._outside.calls
        message, position, now_ms = self._arrivals[once.arrival if once else -1]
        self._clock.set_to(now_ms)
        with suppress(RerunComplete):
            await MessageProcessor(service).process(MessageProcessor(service).begin(message, position, cached))
        self._checks.raise_failed()
        touched = [] if calls != self._outside.calls else self._find_changed_resources(before)
        self._compare(script, once and once.made, store.made, touched, when)

    async def rerun_on_old(self, script: Script, number: int, old: int, when: str) -> None:
        """Repeat the write `number` with a cached progress from before the arrival `old`. Then repeat all later writes,
        which show whether the first rerun has changed variables.
        """
        contents = [w.content for w in self.writes[: self.first_write(old)] if w.at[0] == PROGRESS]
        known = (
            decode_progress(contents[-1])
            if contents
            else new_progress(self._declared.name, self._arrivals[0][0].saga, self._prepared.version)
        )
        await self.rerun(script, number, when, (known, len(contents)))
        for later in range(number, len(self.writes)):
            await self.rerun(script, later, when)

    def _service(self, store: _Store) -> ServiceRuntime:
        ports = trial_ports(self._declared.name, cast(Store, store), self._clock, RecordingPublisher())
        ports = replace(ports, call_external=lambda step: self._call(store, step))
        return make_service_runtime(self._prepared, self._resources, ports)

    def _call(self, store: _Store, step: ExternalCall) -> Awaitable[object]:
        """Return the answer to the first call with the same identity. If the rerun has already made a write, end the
        rerun instead.
        """
        key = CallIdentity(step.handler, step.record.name, step.record.number, step.record.input)
        arguments = {f"argument {n}": value for n, value in enumerate(step.args, 1)}
        self._outside.arguments[key] = arguments | dict(step.kwargs)
        if store.ends and store.made is not None:
            raise RerunComplete
        return self._outside.answer(key, lambda: self._make(step), self._prepared.expected_errors[step.handler])

    async def _make(self, step: ExternalCall) -> object:
        try:
            return await self._checks.call(step)
        except MISTAKES as why:
            self.mistakes[describe_mistake(step, why)] = None
            raise

    def _copy_resources(self) -> Mapping[str, object]:
        return {type(given).__name__: copy_for_comparison(given) for given in self._resources.values()}

    def _find_changed_resources(self, before: Mapping[str, object]) -> list[str]:
        return sorted(name for name, picture in self._copy_resources().items() if picture != before[name])

    def _event_of(self, type_: str, value: bytes) -> Event:
        emitted = [e for reaction in self._declared.reactions for e in reaction.emits if name_of(e) == type_]
        library = binding_of(emitted[0]).library
        return codec.decode(value, codec.find_class(emitted, value, library), library)

    def _compare(
        self,
        script: Script,
        once: ComparableWrite | None,
        again: ComparableWrite | None,
        touched: Sequence[str],
        when: str,
    ) -> None:
        comparison = Comparison(self._outside.arguments, self._event_of)
        found = list(comparison.of(once, again))
        lines = [f"  {what}\n    first: {first}\n    again: {then}" for what, first, then in found]
        if not found:
            lines = [f"  {name} was changed by a call outside of saga.step" for name in touched]
        if lines:
            whose = once.handler if once else script.handler.name
            heading = f"{self._declared.name}.{whose} did something else {when} (events: {_list_names(script)}):"
            raise AssertionError("\n".join([heading, *lines, REMEDY]))


def _remove_markers(content: bytes) -> Mapping[str, object]:
    """Decode a document without the toolkit's markers."""
    document: dict[str, object] = msgspec.json.decode(content)
    return {name: value for name, value in document.items() if name != MARKERS}
