"""`check_idempotent`: whether the handlers of a service do the same when they have to run again."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from saga.clock import SystemClock, iso
from saga.contracts import codec
from saga.contracts.library import binding_of
from saga.declarations.outside import MARKERS
from saga.declarations.values import Declared
from saga.errors import Problems, SagaError
from saga.messages import Event, Message, Position, name_of
from saga.names import PROGRESS
from saga.progress import ids
from saga.progress.document import Call, Snapshot, decode, decode_entry, progress_key
from saga.progress.record import empty
from saga.runtime.beginning import begin
from saga.runtime.lifecycle import OPEN_S_MAX, open_resources
from saga.runtime.participant import Halted, Participant, participant_of
from saga.runtime.turn import take_turn
from saga.service import Service
from saga.store.sqlite import SqliteStore
from saga.testing.differences import Asked, Comparison, Seen, picture
from saga.testing.fakes import check_fakes
from saga.testing.scripts import Script, scripts_of
from saga.testing.trials import TrialClock, TrialPorts
from saga.testing.world import NO_DOCUMENTS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_RUN = ("handled", "compensated")
APART_S = 0.002
"""Between two runs: a time in milliseconds that a handler reads by itself is then another one for certain."""
REMEDY = (
    "A handler that runs again on the same events has to make the same steps, updates and events. Make ids with "
    "saga.key(...); take times, and all else, from the events, saga.state and what steps gave; call resources only "
    "through saga.step; keep nothing in variables."
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
    handlers take, a simple example is made from the contract. `use`, `real`, `documents`: as in `trial`.

    Each handler runs on the real runtime: once; again, after its process died before any of its writes, so also right
    after each step; on a progress as it was before the events; and once more after its end. Steps, their arguments,
    updates, emitted events, state and documents must be the same each time. A step that was called gives its first
    answer when it is called again, as an outside does that honours keys, and calls no fake.

    Not seen: an outside, or a fake, on which one key has two effects; the order of a set of texts, which only another
    process changes; a date that a handler reads by itself; what only other events would bring about.

    Raises `AssertionError` that names the handler and shows what was different; `SagaError` for handlers that did not
    run on these events, each with the reason; otherwise as `trial`.
    """
    declared, clock = service.declared, TrialClock()
    check_fakes([declared], use, real)
    unreached: dict[str, str] = {}
    reached: set[str] = set()
    async with AsyncExitStack() as stack:
        resources = await open_resources(declared, stack, clock, clock.monotonic_s() + OPEN_S_MAX, use)
        for script in scripts_of(declared, events):
            reason = await _checked(_House(declared, _copied(resources, use), documents), script)
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


async def _checked(house: "_House", script: Script) -> str | None:
    """Why the handler did not run, if it did not. Raises `AssertionError`."""
    name = script.handler.name
    if not script.events:
        return "it waits for an event of this service that no other handler here emits"
    once = await house.run(script)
    if not any(e.handler == name and e.outcome in _RUN and e.reason is None for e in once.entries):
        return _why_not(script, once)
    writes = [number for number, owner in enumerate(once.writes) if owner == name]
    for count, number in enumerate(writes, 1):
        again = await house.run(script, dies_before=number)
        house.compare(script, once, again, f"after its process died before write {count} of {len(writes)} of its run")
    last = type(script.events[-1]).__name__
    if len(script.events) > 1:
        again = await house.run(script, stale=True)
        house.compare(script, once, again, f"when {last} came to a worker with an old progress in its cache")
    again = await house.run(script, once_more=True)
    house.compare(script, once, again, f"when {last} came once more, to a worker with an old progress in its cache")
    return None


def _why_not(script: Script, seen: Seen) -> str:
    """What became of the handler's events: a dead letter in front of it, or what was last written of it."""
    dead = [entry for entry in seen.entries if entry.outcome == "dead"]
    entries = dead or [entry for entry in seen.entries if entry.handler == script.handler.name]
    what = f"{entries[-1].handler} {entries[-1].outcome}: {entries[-1].reason}" if entries else "nothing came to it"
    emitted = [event.type for entry in seen.entries for event in entry.events]
    return f"{what} (events: {_names(script)}; emitted: {', '.join(emitted) or 'none'})"


def _names(script: Script) -> str:
    return ", ".join(type(event).__name__ for event in script.events)


def _copied(resources: Mapping[type, object], use: Sequence[object]) -> Mapping[type, object]:
    """The resources with copies of the fakes, so that each script begins with them as they were handed over. What
    cannot be copied, a lock perhaps, goes on as it is."""
    memo: dict[int, object] = {id(given): given for given in resources.values() if not any(given is f for f in use)}
    try:
        return deepcopy(dict(resources), memo)
    except Exception:  # noqa: BLE001 - a fake may raise anything when it is copied
        return resources


class _Died(Halted):
    """The process is gone: as by a crash, and no attempt of anything."""


class _Store(SqliteStore):
    """Knows whose run each write belongs to, and dies before one of them."""

    def __init__(self, path: Path, clock: TrialClock, declared: Declared) -> None:
        super().__init__(path, clock=clock)
        self.writes: list[str] = []
        self.dies_before: int | None = None
        self._compensations = {c.undoes: c.name for c in declared.compensations}
        self._transitions = 0

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        self._about_to_write(collection, content)
        return await super().insert(collection, key, content, expiry_s=expiry_s)

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        self._about_to_write(collection, content)
        return await super().replace(collection, key, content, cas=cas, expiry_s=expiry_s, keep_expiry=keep_expiry)

    def _about_to_write(self, collection: str, content: bytes) -> None:
        if len(self.writes) == self.dies_before:
            self.dies_before = None
            raise _Died
        self.writes.append(self._whose(decode(content)) if collection == PROGRESS else self.writes[-1])

    def _whose(self, p: Snapshot) -> str:
        """An intent is written without a transition; a transition may leave the intents of others open."""
        if p.n == self._transitions and p.intents:
            intent = p.intents[-1]
            return self._compensations[intent.handler] if intent.kind == "undo" else intent.handler
        self._transitions = p.n
        return decode_entry(p.transitions[-1]).handler

    async def seed(self, collection: str, key: str, document: object) -> None:
        """A document that is there from the beginning."""
        await super().insert(collection, key, msgspec.json.encode(document))


@dataclass
class _Outside:
    """What the calls of steps gave, over all runs."""

    arguments: dict[Asked, Mapping[str, object]] = field(default_factory=dict)
    answers: dict[Asked, object] = field(default_factory=dict)
    refusals: dict[Asked, Exception] = field(default_factory=dict)
    calls: int = 0

    async def answer(
        self, asked: Asked, call: Callable[[], Awaitable[object]], declared: tuple[type[Exception], ...]
    ) -> object:
        """As it was answered the first time; what is no answer is called again."""
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


@dataclass
class _Ports(TrialPorts):
    """Those of a trial; what was asked of the outside before is not asked again."""

    record: _Outside = field(default_factory=_Outside)
    answers: Mapping[str, tuple[type[Exception], ...]] = field(default_factory=dict)
    """For each handler the exceptions that are answers."""

    def outside(
        self,
        saga: str,
        handler: str,
        asked: Call,
        call: Callable[..., Awaitable[Any]],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Awaitable[Any]:
        key = Asked(handler, asked.name, asked.number, asked.input)
        self.record.arguments[key] = {f"argument {n}": value for n, value in enumerate(args, 1)} | dict(kwargs)
        return self.record.answer(key, lambda: call(*args, **kwargs), self.answers[handler])


class _Known(NamedTuple):
    """A progress with its version, as a worker's cache has it."""

    progress: Snapshot
    cas: int


class _House:
    """Where one script is run, each time from the beginning, with the same fakes and the same outside."""

    def __init__(
        self,
        declared: Declared,
        resources: Mapping[type, object],
        documents: "Mapping[str, DataclassInstance]",
    ) -> None:
        self._declared, self._resources, self._documents = declared, resources, documents
        self._outside = _Outside()
        self._kinds = {document.kind: document.collection for document in declared.documents}
        for document in documents.values():
            if type(document) not in self._kinds:
                raise SagaError(f"{declared.name!r} declares no document {type(document).__name__}")

    async def run(
        self, script: Script, *, dies_before: int | None = None, stale: bool = False, once_more: bool = False
    ) -> Seen:
        """The script to its end. `stale`: its last message comes to a worker that knows the progress as it was before
        the one in front of it. `once_more`: the last message comes again, to one that knows it as before the first."""
        await SystemClock().sleep(APART_S)
        with TemporaryDirectory(prefix="saga-check-") as folder:
            clock = TrialClock()
            async with _Store(Path(folder) / "store.db", clock, self._declared) as store:
                for key, document in self._documents.items():
                    await store.seed(self._kinds[type(document)], key, document)
                store.dies_before = dies_before
                before, calls = self._pictures(), self._outside.calls
                p = await self._handled(store, clock, script, stale=stale, once_more=once_more)
                after = self._pictures() if calls == self._outside.calls else before
                return Seen(
                    entries=tuple(map(decode_entry, p.transitions)),
                    state=p.state,
                    documents={
                        (collection, key): self._told(document.content)
                        for collection in self._kinds.values()
                        async for key, document in store.scan(collection)
                    },
                    writes=tuple(store.writes),
                    touched=tuple(sorted(name for name, picture in after.items() if picture != before[name])),
                )

    async def _handled(
        self, store: _Store, clock: TrialClock, script: Script, *, stale: bool, once_more: bool
    ) -> Snapshot:
        """The progress after all of the script."""
        ports = _Ports(store, clock, record=self._outside)
        service = participant_of(self._declared, self._resources, ports)
        ports.answers = service.answers
        cached: list[_Known] = []
        arrivals = [(_message(service, event, clock), Position("", 0, n)) for n, event in enumerate(script.events)]
        for number, (message, position) in enumerate(arrivals, 1):
            cached.append(await _known(service, message.saga))
            old = cached[-2] if stale and number == len(arrivals) else None
            try:
                await take_turn(service, begin(service, message, position, old))
            except _Died:
                await take_turn(service, begin(service, message, position, None))
        message, position = arrivals[-1]
        if once_more:
            await take_turn(service, begin(service, message, position, cached[-1]))
        return (await _known(service, message.saga)).progress

    def _pictures(self) -> Mapping[str, object]:
        return {type(given).__name__: picture(given) for given in self._resources.values()}

    def _told(self, content: bytes) -> Mapping[str, object]:
        """A document without what the toolkit keeps in it."""
        document: dict[str, object] = msgspec.json.decode(content)
        return {name: value for name, value in document.items() if name != MARKERS}

    def _event_of(self, type_: str, value: bytes) -> Event:
        handlers = self._declared.reactions
        kind = next(event for handler in handlers for event in handler.emits if name_of(event) == type_)
        return codec.decode(value, kind, binding_of(kind).library)

    def compare(self, script: Script, once: Seen, again: Seen, when: str) -> None:
        """Raises `AssertionError` if what was done again is not what was done once."""
        comparison = Comparison(once, again, self._outside.arguments, self._event_of)
        handler, found = comparison.first()
        lines = [f"  {what}\n    first: {first}\n    again: {then}" for what, first, then in found]
        if not found:
            lines = [f"  {name} was changed by a call outside of saga.step" for name in again.touched]
        if lines:
            raise AssertionError(
                "\n".join(
                    [
                        f"{self._declared.name}.{handler or script.handler.name} did something else {when} "
                        f"(events: {_names(script)}):",
                        *lines,
                        REMEDY,
                    ]
                )
            )


async def _known(service: Participant, saga: str) -> _Known:
    """The progress as it is now."""
    found = await service.ports.store.get(PROGRESS, progress_key(service.name, saga))
    return _Known(empty(service.name, saga), 0) if found is None else _Known(decode(found.content), found.cas)


def _message(service: Participant, event: Event, clock: TrialClock) -> Message:
    contract = service.contracts[name_of(type(event))]
    saga, time, value = str(getattr(event, contract.key)), iso(clock.now_ms()), codec.encode(event)
    return Message(
        id=f"{contract.name}-{ids.digest('check', saga, value.hex())}",
        type=contract.name,
        schema=type(event).__contract__,
        saga=saga,
        source="check",
        time=time,
        value=value,
        started=time,
    )
