"""`check_idempotent`: a check that the handlers of a service do the same when they have to run again."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, cast

import msgspec

from saga.contracts import codec
from saga.contracts.library import binding_of
from saga.declarations.resources import MARKERS
from saga.declarations.values import Declared
from saga.engine.execution.beginning import begin
from saga.engine.execution.message_processor import process
from saga.engine.isolated_ports import RecordingPublisher
from saga.engine.lifecycle import open_resources
from saga.engine.ports import ExternalCall
from saga.engine.prepared_service import PreparedService, prepare
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import Problems, SagaError
from saga.messages import Event, Message, Position, name_of
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress.document import SagaProgress, Transition, decode_progress, decode_transition
from saga.progress.journal import new_progress
from saga.service import Service
from saga.store.port import Document, Store
from saga.support.adapter_description import OPEN_S_MAX
from saga.support.clock import SystemClock
from saga.testing.differences import BEGUN, Asked, Comparison, Made, picture
from saga.testing.example_events import Script, scripts_of
from saga.testing.fakes import check_fakes
from saga.testing.invariants.rerun import RerunStore, Written
from saga.testing.trials import TrialClock, arriving, in_place, trial_ports, wake_for
from saga.testing.world import NO_DOCUMENTS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_RUN = ("handled", "compensated")
_TURNS_MAX = 5
"""Most turns of a run that goes on later."""
APART_S = 0.002
"""Pause between two runs: a time in milliseconds that a handler reads by itself is then another one for certain."""
REMEDY = (
    "A handler that runs again on the same events has to make the same steps, updates and events. Make ids with "
    "saga.idempotency_key(...); take times, and all else, from the events, saga.state and what steps gave; call "
    "resources only through saga.step; keep nothing in variables."
)


async def check_idempotent(
    service: "Service[DataclassInstance | None]",
    *events: Event,
    use: Sequence[object] = (),
    real: Sequence[type] = (),
    documents: "Mapping[str, DataclassInstance]" = NO_DOCUMENTS,
) -> None:
    """Run each handler and compensation again, as after a crash, and on an old progress: `await check_idempotent(pay)`.

    `events`: what arrives, of one saga; several of one kind are tried one after the other. Of the others that the
    handlers take, a simple example is made from the contract, and of each older version that an upcaster reads; for a
    deadline its time passes. `use`, `real`, `documents`: as in `trial`.

    Each handler runs on the real runtime once. Then each of its writes is made again on what was there before it, as
    after a crash at that point, so also right after each step; on a progress as it was before the events; and nothing
    may be written when the last event comes once more. Steps, their arguments, updates, emitted events, state and
    documents must be the same each time. A step that was called gives its first answer when it is called again, as an
    outside does that honours keys, and calls no fake.

    Not seen: an outside, or a fake, on which one key has two effects; the order of a set of texts, which only another
    process changes; a date that a handler reads by itself; what only other events would bring about.

    Raises `AssertionError` that names the handler and shows what was different; `SagaError` for handlers that did not
    run on these events, each with the reason; otherwise as `trial`.
    """
    declared, clock, prepared = service.declared, TrialClock(), prepare(service.declared)
    check_fakes([declared], use, real)
    unreached: dict[str, str] = {}
    reached: set[str] = set()
    async with AsyncExitStack() as stack:
        resources = await open_resources(declared, stack, clock, OPEN_S_MAX, use)
        for script in scripts_of(declared, events):
            reason = await _checked(_ScriptRuns(prepared, _copied(resources, use), documents), script)
            if reason is None:
                reached.add(script.handler.name)
            else:
                unreached.setdefault(script.handler.name, reason)
    missed = [f"{name}: {reason}" for name, reason in unreached.items() if name not in reached]
    if missed:
        raise Problems(
            f"nothing is known of these handlers of {declared.name!r}, for they have not run; give the events on which "
            "they do, or documents= and fakes with use=:",
            missed,
        )


async def _checked(runs: "_ScriptRuns", script: Script) -> str | None:
    """Run the script and its reruns; the reason if the handler did not run. Raises `AssertionError`."""
    name = script.handler.name
    if not script.events:
        return "it waits for an event of this service that no other handler here emits"
    await runs.run(script)
    if not any(e.handler == name and _ran(e) for e in runs.entries()):
        return _why_not(script, runs.entries())
    mine = [number for number, write in enumerate(runs.writes) if write.made.handler == name]
    for count, number in enumerate(mine, 1):
        await runs.rerun(script, number, f"after its process died before write {count} of {len(mine)} of its run")
    last = type(script.events[-1]).__name__ if script.handler.within is None else "its wake"
    for old in range(len(script.events) - 1):
        when = f"when {last} came to a worker with an old progress in its cache"
        await runs.rerun_on_old(script, runs.first_write(len(script.events) - 1), old, when)
    when = f"when {last} came once more, to a worker with an old progress in its cache"
    await runs.rerun_on_old(script, len(runs.writes), 0, when)
    return None


def _ran(entry: Transition) -> bool:
    return entry.outcome == "later" or (entry.outcome in _RUN and entry.reason is None)


def _why_not(script: Script, seen: Sequence[Transition]) -> str:
    """Reason that the handler did not run: a dead letter in front of it, or the last thing that was written of it."""
    dead = [entry for entry in seen if entry.outcome == "dead"]
    entries = dead or [entry for entry in seen if entry.handler == script.handler.name]
    what = f"{entries[-1].handler} {entries[-1].outcome}: {entries[-1].reason}" if entries else "nothing came to it"
    emitted = [event.type for entry in seen for event in entry.events]
    return f"{what} (events: {_names(script)}; emitted: {', '.join(emitted) or 'none'})"


def _names(script: Script) -> str:
    return ", ".join(type(event).__name__ for event in script.events)


def _copied(resources: Mapping[type, object], use: Sequence[object]) -> Mapping[type, object]:
    """Resources with copies of the fakes, so that each script begins with them as they were handed over. What cannot be
    copied, a lock perhaps, goes on as it is."""
    memo: dict[int, object] = {id(given): given for given in resources.values() if not any(given is f for f in use)}
    try:
        return deepcopy(dict(resources), memo)
    except Exception:  # noqa: BLE001 - a fake may raise anything when it is copied
        return resources


class _Write(NamedTuple):
    """One write of the first run to the store."""

    at: tuple[str, str]
    """Collection and key."""
    content: bytes
    made: Made
    arrival: int
    """Number of what came when it was made."""


_SEEDED = Made(handler="", outcome="there from the beginning")


class _Store(RerunStore):
    """Store that holds the results of these writes, and what lies apart. `ends`: a rerun is to end at its first
    write."""

    def __init__(
        self, declared: Declared, writes: Sequence[_Write], apart: dict[tuple[str, str], bytes], *, ends: bool
    ) -> None:
        super().__init__({})
        self._apart = apart
        for at, content in apart.items():
            self._put(at, content)
        self.writes, self.ends, self.arrival = list(writes), ends, 0
        self.made: Made | None = None
        """The first write of a rerun."""
        self._compensations = {c.undoes: c.name for c in declared.compensations}
        for write in writes:
            self._put(write.at, write.content)

    def written(self, at: tuple[str, str], content: bytes) -> int:
        """Keep the write, and end a rerun. One that has written an intent goes on until it calls: so the arguments of
        the call are known."""
        if at[0] == ARCHIVES:  # no write of its own: whatever refers to it names its content
            self._apart[at] = content
            return self._put(at, content)
        made = self._made(at, content)
        begun = self.made is None and made.outcome == BEGUN
        self.made = self.made or made
        if self.ends and not begun:
            raise Written
        self.writes.append(_Write(at, content, made, self.arrival))
        return self._put(at, content)

    def _put(self, at: tuple[str, str], content: bytes) -> int:
        cas = self.there[at].cas + 1 if at in self.there else 1
        self.there[at] = Document(content, cas)
        return cas

    def _made(self, at: tuple[str, str], content: bytes) -> Made:
        """Content of a write. An intent is written without a transition; a transition may leave the intents of others
        open."""
        if at[0] != PROGRESS:
            return Made(handler=self.writes[-1].made.handler, outcome="/".join(at), document=_as_the_user_sees(content))
        p = decode_progress(content)
        if p.intents and (decode_progress(self.there[at].content).n if at in self.there else 0) == p.n:
            intent = p.intents[-1]
            handler = self._compensations[intent.handler] if intent.kind == "undo" else intent.handler
            return Made(handler=handler, outcome=BEGUN, calls=(*intent.calls, *filter(None, [intent.begins])))
        t = decode_transition(p.transitions[-1])
        return Made(
            handler=t.handler, outcome=t.outcome, reason=t.reason, calls=t.calls, delta=t.delta, events=t.events
        )


@dataclass
class _Outside:
    """Arguments and answers of all calls of steps, over all runs."""

    arguments: dict[Asked, Mapping[str, object]] = field(default_factory=dict)
    answers: dict[Asked, object] = field(default_factory=dict)
    refusals: dict[Asked, Exception] = field(default_factory=dict)
    calls: int = 0

    async def answer(
        self, asked: Asked, call: Callable[[], Awaitable[object]], declared: tuple[type[Exception], ...]
    ) -> object:
        """The answer of the first time; a call that has no answer is made again."""
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
    """One run of a script, and reruns of each of its writes with the same fakes and the same outside."""

    def __init__(
        self,
        prepared: PreparedService,
        resources: Mapping[type, object],
        documents: "Mapping[str, DataclassInstance]",
    ) -> None:
        self._prepared, self._resources = in_place(prepared), resources
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
        """Large results of steps, archives and pages, by collection and key: the same for all runs."""
        self._arrivals: list[tuple[Message, Position, int]] = []
        """Messages that came, and at what time: events, and wakes of runs that go on later."""
        self._events: list[int] = []
        """Number of each event among what came."""

    async def run(self, script: Script) -> None:
        """Run the script from beginning to end."""
        store = _Store(self._declared, self.writes, self._apart, ends=False)
        service = self._service(store)
        for number, event in enumerate(script.events):
            self._events.append(len(self._arrivals))
            await self._comes(service, store, arriving(service, event, self._clock))
            is_last = number == len(script.events) - 1
            for turn in range(_TURNS_MAX):
                due_ms = self._due_ms(store, script.handler.name, is_last=is_last)
                if due_ms is None:
                    break
                self._clock.pass_until(due_ms)
                saga = self._arrivals[0][0].saga
                await self._comes(service, store, wake_for(service, saga, self._clock, due_ms, turn))
        self.writes = store.writes

    @staticmethod
    def _due_ms(store: "_Store", deadline: str, *, is_last: bool) -> int | None:
        """Time at which a run goes on that waits for no event, or a deadline runs; after the last event whatever it
        waits for."""
        found = [write.content for write in store.writes if write.at[0] == PROGRESS]
        if not found:
            return None
        p = decode_progress(found[-1])
        due = [c.due_ms for c in p.later if is_last or not c.until]
        return min([*due, *(k.due_ms for k in p.deadlines if is_last and k.handler == deadline)], default=None)

    async def _comes(self, service: ServiceRuntime, store: "_Store", message: Message) -> None:
        """Handle a message to its end."""
        number = len(self._arrivals)
        position = Position("", 0, number)
        self._arrivals.append((message, position, self._clock.now_ms()))
        store.arrival = number
        await process(service, begin(service, message, position, None))

    def entries(self) -> list[Transition]:
        """The transitions of the first run."""
        progresses = [write.content for write in self.writes if write.at[0] == PROGRESS]
        return list(map(decode_transition, decode_progress(progresses[-1]).transitions)) if progresses else []

    def first_write(self, event: int) -> int:
        """Number of the first write that was made at the arrival of an event, or later."""
        first = self._events[event]
        return next((n for n, write in enumerate(self.writes) if write.arrival >= first), len(self.writes))

    async def rerun(
        self, script: Script, number: int, when: str, cached: tuple[SagaProgress, int] | None = None
    ) -> None:
        """Make a write again on what was there before it; one past the last: nothing is to be written. `cached`: what a
        worker takes for the progress. Raises `AssertionError` if something else is made."""
        await SystemClock().sleep(APART_S)
        store = _Store(self._declared, self.writes[:number], self._apart, ends=True)
        service = self._service(store)
        once = self.writes[number] if number < len(self.writes) else None
        before, calls = self._pictures(), self._outside.calls
        message, position, now_ms = self._arrivals[once.arrival if once else -1]
        self._clock.set_to(now_ms)
        with suppress(Written):
            await process(service, begin(service, message, position, cached))
        touched = [] if calls != self._outside.calls else self._changed(before)
        self._compare(script, once and once.made, store.made, touched, when)

    async def rerun_on_old(self, script: Script, number: int, old: int, when: str) -> None:
        """Make a write again with a progress in the cache as it was before an older event; then all writes after it,
        which show whether that left something in variables."""
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
        ports = replace(ports, call_external=lambda step: self._called(store, step))
        return make_service_runtime(self._prepared, self._resources, ports)

    def _called(self, store: _Store, step: ExternalCall) -> Awaitable[object]:
        """Give what the call gave the first time. After a write it ends the run."""
        key = Asked(step.handler, step.record.name, step.record.number, step.record.input)
        arguments = {f"argument {n}": value for n, value in enumerate(step.args, 1)}
        self._outside.arguments[key] = arguments | dict(step.kwargs)
        if store.ends and store.made is not None:
            raise Written
        return self._outside.answer(key, step.make, self._prepared.expected_errors[step.handler])

    def _pictures(self) -> Mapping[str, object]:
        return {type(given).__name__: picture(given) for given in self._resources.values()}

    def _changed(self, before: Mapping[str, object]) -> list[str]:
        return sorted(name for name, picture in self._pictures().items() if picture != before[name])

    def _event_of(self, type_: str, value: bytes) -> Event:
        emitted = [e for reaction in self._declared.reactions for e in reaction.emits if name_of(e) == type_]
        library = binding_of(emitted[0]).library
        return codec.decode(value, codec.find_class(emitted, value, library), library)

    def _compare(
        self, script: Script, once: Made | None, again: Made | None, touched: Sequence[str], when: str
    ) -> None:
        comparison = Comparison(self._outside.arguments, self._event_of)
        found = list(comparison.of(once, again))
        lines = [f"  {what}\n    first: {first}\n    again: {then}" for what, first, then in found]
        if not found:
            lines = [f"  {name} was changed by a call outside of saga.step" for name in touched]
        if lines:
            whose = once.handler if once else script.handler.name
            said = f"{self._declared.name}.{whose} did something else {when} (events: {_names(script)}):"
            raise AssertionError("\n".join([said, *lines, REMEDY]))


def _as_the_user_sees(content: bytes) -> Mapping[str, object]:
    """A document without what the toolkit keeps in it."""
    document: dict[str, object] = msgspec.json.decode(content)
    return {name: value for name, value in document.items() if name != MARKERS}
