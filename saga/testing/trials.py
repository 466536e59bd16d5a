"""Test one service on its real runtime, in memory and in milliseconds: `trial`."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, overload

import msgspec
from typing_extensions import TypeVar

from saga.change import Change, DocumentChange
from saga.contracts import codec
from saga.contracts.library import contract_of
from saga.declarations.annotations import accepts_none
from saga.declarations.changes import describe_change, kind_of
from saga.engine import recorded_values
from saga.engine.consumer.keyed_executor import Batcher
from saga.engine.consumer.record_router import make_change_message
from saga.engine.execution.document_updates import as_kind, check_key
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import RecordingPublisher, StaticAssignment
from saga.engine.lifecycle import open_resources
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import EventPublisher, ExternalCall, Ports
from saga.engine.prepared_service import PreparedService, prepare
from saga.engine.progress_cache import OverflowCache
from saga.engine.recorded_values import fields_of
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.errors import Permanent, SagaError
from saga.messages import Event, Message, Outgoing, Position, name_of, texts_of
from saga.messaging import controls, timers
from saga.messaging.controls import OPERATOR, Control, ControlLog, Switch
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.messaging.timers import SagaTimer
from saga.policies.retry import RETRY, Retry
from saga.progress import ids
from saga.progress.document import (
    Progress,
    SagaProgress,
    build_view,
    compute_format,
    decode_progress,
    encode,
    progress_key,
)
from saga.progress.timers import find_timed_work
from saga.service import Service
from saga.store.port import Store
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import await_within, iso
from saga.support.settings import OPEN_S_MAX
from saga.telemetry.events import TelemetryEvent, Unavailable
from saga.testing.code_mistakes import is_failed_check
from saga.testing.world import check_fakes, check_time, is_call_of
from saga.view import Recordable, Saga

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


T = TypeVar("T")
_S = TypeVar("_S", bound="DataclassInstance | None", default=None)
_S_co = TypeVar("_S_co", bound="DataclassInstance | None", default=None, covariant=True)
_D = TypeVar("_D", bound="DataclassInstance")
_P = ParamSpec("_P")
_T = TypeVar("_T", bound=Recordable)
_R = TypeVar("_R", bound=Recordable, default=None)

_NONE: "Mapping[str, DataclassInstance]" = MappingProxyType({})
FOR_EVER_S = 1e12
"""A time limit in seconds that is never reached, because it is longer than all delays of a trial together."""
DELAY_S_MAX = 30
"""Maximum delay in seconds between two attempts in a trial, so that failed attempts do not advance the clock by hours.
Only the script advances it that far.
"""
_NOTHING = timedelta(0)
TURNS_MAX = 2000
"""Maximum number of times that due deadlines and suspended runs are processed within one time span of a script."""
PAUSES_MAX = 1000
"""Maximum number of failed attempts in one trial. A trial with more ends with an error, because it would probably never
finish.
"""


class TrialClock:
    """A clock whose `sleep` advances the time at once instead of waiting. Calls of external systems take real time, and
    so do their timeouts.
    """

    def __init__(self) -> None:
        self._now_ms = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_s(self) -> float:
        return self._now_ms / 1000

    def chance(self) -> float:
        return 0.5

    async def sleep(self, seconds: float) -> None:
        self._now_ms += round(seconds * 1000)

    def set_to(self, ms: int) -> None:
        """Set the time, even to one in the past."""
        self._now_ms = ms

    def pass_until(self, ms: int) -> None:
        """Advance to this time, unless it is in the past."""
        self._now_ms = max(self._now_ms, ms)

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        return await await_within(seconds, what)


@dataclass
class _Patience:
    """Counts failed attempts, and ends a trial with an error after too many."""

    clock: TrialClock
    moments: list[TelemetryEvent]
    pauses: int = 0

    def report(self, moment: TelemetryEvent) -> None:
        if isinstance(moment, Unavailable):
            raise SagaError(f"the store of the trial cannot be used: {moment.error}")
        self.moments.append(moment)

    async def pause(self, seconds: float, position: Position) -> None:
        self.pauses += 1
        if self.pauses > PAUSES_MAX:
            failures = [moment for moment in self.moments if hasattr(moment, "error")]
            raise SagaError(
                f"the trial does not come to an end: {PAUSES_MAX} attempts failed, the last: {failures[-1:]}"
            )
        await self.clock.sleep(seconds)


@dataclass
class FakeChecks:
    """Makes the calls of steps, and keeps the first failure of a check in a fake. A handler would take the failure for
    an error of the external system.
    """

    fakes: Sequence[object]
    failed: BaseException | None = None

    async def call(self, step: ExternalCall) -> object:
        try:
            return await step.make()
        except BaseException as why:
            if is_failed_check(why) and is_call_of(step, self.fakes):
                self.failed = self.failed or why
            raise

    def raise_failed(self) -> None:
        """Raise the first failure, if there is one."""
        if self.failed is not None:
            raise self.failed


def trial_ports(
    service: str, store: Store, clock: TrialClock, log: EventPublisher, moments: list[TelemetryEvent] | None = None
) -> Ports:
    """Return the ports of a trial, with the given store and a clock that never really waits.

    `moments`: list to which telemetry events are appended.
    """
    patience = _Patience(clock, [] if moments is None else moments)
    return Ports(
        store=store,
        publisher=log,
        clock=clock,
        outage_watch=OutageWatch(service, clock, patience.report),
        assignment=StaticAssignment(patience.pause),
        batch=Batcher().submit,
        overflow_cache=OverflowCache(bytes_max=0),
    )


class Trial(Generic[_S_co]):
    """The result of a trial: emitted events, state, progress and documents."""

    def __init__(
        self,
        emitted: Sequence[Event],
        progress: Progress[_S_co],
        documents: Mapping[tuple[type, str], object],
        kinds: Collection[type],
    ) -> None:
        self._emitted, self._progress, self._documents, self._kinds = emitted, progress, documents, kinds

    @property
    def emitted(self) -> Sequence[Event]:
        """Events that the service emitted, in order."""
        return self._emitted

    @property
    def state(self) -> _S_co:
        """The saga's state at the end; `None` for a service without state."""
        return self._progress.state

    @property
    def progress(self) -> Progress[_S_co]:
        """Progress of the saga with each transition. Ignored messages have transitions too, with the reason."""
        return self._progress

    def read(self, kind: type[_D], key: str, /) -> _D | None:
        """Return a document as it was when the trial ended; `None` if it does not exist. Raises `SagaError` for a kind
        that the service does not declare.
        """
        if kind not in self._kinds:
            raise SagaError(f"{self._progress.service!r} declares no document {kind.__name__}")
        document = self._documents.get((kind, key))
        assert document is None or isinstance(document, kind)
        return document


async def trial(  # one parameter for each kind of initial condition
    service: Service[_S],
    *script: "Event | Change[Any] | timedelta",
    use: Sequence[object] = (),
    real: Sequence[type] = (),
    documents: "Mapping[str, DataclassInstance]" = {},  # noqa: B006 - never changed
    state: "DataclassInstance | None" = None,
    flags: Collection[str] = (),
) -> Trial[_S]:
    """Run one service on its real runtime in memory: `await trial(payment, an_order(), cancelled(), use=[FakeBank()])`.

    Args:
        script: events of one saga. Each arrives once the previous ones are finished. A `timedelta` lets that much time
            pass; deadlines and suspended runs that become due in it run at their time. A `Change` of a document arrives
            as from a change stream; an equal `Change` counts as the same one delivered again.
        use: fakes. Each replaces the resources whose type it is an instance of.
        real: types of resources that have no fake and are opened for real. A resource without a fake must be listed
            here, so that no test calls an external system by mistake.
        documents: documents by key that exist from the beginning.
        state: the saga's state as recorded by an earlier message. It may be of the class of an older release if a
            migration takes that class.
        flags: flags that are on; all others are off.

    Guarantees:
    - It takes milliseconds, needs no server, and waits no real time. The delay after a failed attempt advances the
      trial's clock, by at most 30 seconds for each attempt.
    - A dead letter raises nothing: it is recorded in `progress.transitions`.

    Raises `ConfigurationError` for a resource of `real` that does not open; `DeclarationError` for a fake that no
    resource uses, and for a resource that has no fake and is not in `real`; `SagaError` for a script that is not about
    exactly one saga; the failure of an `assert` or `pytest.fail` in a fake.
    """
    declared, clock = service.declared, TrialClock()
    check_fakes([declared], use, real)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="saga-trial-"))
        store = await stack.enter_async_context(SqliteStore(Path(folder) / "store.db", clock=clock))
        resources = await open_resources(declared, stack, clock, OPEN_S_MAX, use)
        log = RecordingPublisher()
        prepared = retry_at_once(prepare(declared))
        checks = FakeChecks(use)
        ports = replace(trial_ports(declared.name, store, clock, log), call_external=checks.call)
        participant = make_service_runtime(prepared, resources, ports)
        kinds = {document.kind: document.collection for document in declared.documents}
        for key, document in documents.items():
            if type(document) not in kinds:
                raise SagaError(f"{declared.name!r} declares no document {type(document).__name__}")
            await store.insert(kinds[type(document)], key, msgspec.json.encode(document))
        sagas = [saga for each in script if (saga := _find_saga(participant, each, clock)) is not None]
        if len(set(sagas)) != 1:
            raise SagaError(f"a trial is of one saga, the script is of {sorted(set(sagas))}")
        if state is not None:
            old = make_progress(prepared, sagas[0], state, clock.now_ms())
            await store.insert(PROGRESS, progress_key(declared.name, sagas[0]), encode(old))
        if flags:
            control_log = make_control_log(declared.name, flags, iso(clock.now_ms()))
            await store.insert(ARCHIVES, controls.control_log_key(declared.name), control_log)
        try:
            await _run_script(participant, clock, sagas[0], script)
        finally:
            checks.raise_failed()
        found = await store.get(PROGRESS, progress_key(declared.name, sagas[0]))
        p = SagaProgress(service=declared.name, saga=sagas[0]) if found is None else decode_progress(found.content)
        left: dict[tuple[type, str], object] = {
            (kind, key): as_kind(document.content, kind)
            for kind, collection in kinds.items()
            async for key, document in store.scan(collection)
        }
        fields = recorded_values.migrate_fields(participant, p.state, p.version, p.saga)
        return Trial(_list_emitted(participant, log), build_view(p, participant.state_of(fields)), left, kinds)


def retry_at_once(prepared: PreparedService) -> PreparedService:
    """Return the service without parked runs, circuit breakers and limits on calls, because no real time passes in a
    trial. Failed runs are retried at once.
    """
    handlers = {
        name: replace(handler, retry=handler.retry and _retry_at_once(handler.retry))
        for name, handler in prepared.handlers.items()
    }
    declared = prepared.declared
    resources = [
        replace(each, retry=each.retry and _retry_at_once(each.retry), breaker=None, at_once_max=None, rate_per_s=None)
        for each in declared.resources
    ]
    declared = replace(declared, retry=_retry_at_once(declared.retry or RETRY), resources=resources)
    return replace(prepared, handlers=handlers, declared=declared, is_all_at_once=True)


def _retry_at_once(retry: Retry) -> Retry:
    by = {kind: _retry_at_once(rules) for kind, rules in retry.by.items()}
    return replace(retry, in_place_s=FOR_EVER_S, delay_s_max=min(retry.delay_s_max, DELAY_S_MAX), by=by)


async def _run_script(
    participant: ServiceRuntime, clock: TrialClock, saga: str, script: "Sequence[Event | Change[Any] | timedelta]"
) -> None:
    for number, event in enumerate(script):
        if isinstance(event, timedelta):
            check_time(event)
            await _pass_time(participant, clock, saga, event)
        else:
            await _process_arrival(participant, clock, number, event)
            await _pass_time(participant, clock, saga, _NOTHING)


async def _pass_time(service: ServiceRuntime, clock: TrialClock, saga: str, time: timedelta) -> None:
    """Let a time span of the script pass. Run each deadline and suspended run at the time when it is due."""
    until_ms = clock.now_ms() + round(time.total_seconds() * 1000)
    waits: frozenset[tuple[str, str, int]] = frozenset()
    for turn in range(TURNS_MAX):
        found = await service.ports.store.get(PROGRESS, progress_key(service.name, saga))
        waits = find_timed_work(decode_progress(found.content)) if found else waits
        due_ms = min([due_ms for _, _, due_ms in waits], default=until_ms + 1)
        if due_ms > until_ms:
            break
        clock.pass_until(due_ms)
        wake = make_timer(service, saga, clock, due_ms, turn)
        await MessageProcessor(service).process(MessageProcessor(service).begin(wake, Position("trial", 0, 0), None))
        after = await service.ports.store.get(PROGRESS, progress_key(service.name, saga))
        if after is None or (found is not None and after.cas == found.cas):  # the due work cannot run yet
            break
    else:
        raise SagaError(
            f"the trial does not come to an end: {TURNS_MAX} turns within {time}, the last of {min(waits)[0]}"
        )
    clock.pass_until(until_ms)


def make_timer(service: PreparedService, saga: str, clock: TrialClock, due_ms: int, number: int) -> SagaTimer:
    """Return the timer message for work that is due at `due_ms`. `number` makes its id unique."""
    return SagaTimer(
        id=f"trial-{due_ms}-{number}",
        type=timers.TYPE,
        schema="",
        saga=saga,
        source=service.name,
        time=iso(clock.now_ms()),
        value=b"",
        due_ms=due_ms,
    )


def _find_saga(service: PreparedService, each: "Event | Change[Any] | timedelta", clock: TrialClock) -> str | None:
    """Return the saga of an event or change in the script; `None` for a time span."""
    if isinstance(each, timedelta):
        return None
    if isinstance(each, Change):
        return make_arriving_change(service, each, clock).saga
    return str(getattr(each, contract_of(type(each)).key))


async def _process_arrival(
    service: ServiceRuntime, clock: TrialClock, number: int, event: "Event | Change[Any]"
) -> None:
    """Process one event or change of the script until it is finished. Skip an event that the service does not
    consume.
    """
    if isinstance(event, Change):
        message = make_arriving_change(service, event, clock)
    elif name_of(type(event)) not in service.contracts:
        return
    else:
        message = make_arriving_event(service, event, clock)
    position = Position(service.contracts[message.type].topic, 0, number)
    await MessageProcessor(service).process(MessageProcessor(service).begin(message, position, None))


def make_arriving_event(service: PreparedService, event: Event, clock: TrialClock) -> Message:
    """Make the message that delivers an event at the current time. Equal events get the same id."""
    contract = service.contracts[name_of(type(event))]
    saga, time = str(getattr(event, contract.key)), iso(clock.now_ms())
    value = codec.encode(event)
    return Message(
        id=f"{contract.name}-{ids.digest('trial', saga, codec.content(type(event), value).hex())}",
        type=contract.name,
        schema=type(event).__contract__,
        saga=saga,
        source="trial",
        time=time,
        value=value,
        started=time,
    )


def make_arriving_change(service: PreparedService, change: Change[Any], clock: TrialClock) -> Message:
    """Make the message that delivers a document change at the current time. Equal changes get the same id.

    Raises `SagaError` if the change fits several of the collections whose changes the service takes, or none.
    """
    document = change.document if change.document is not None else change.before
    kinds = {kind: event for event in service.changes.values() if (kind := kind_of(event)) is not None}
    fitting = [kind for kind in kinds if document is None or kind.kind is type(document)]
    if len(fitting) != 1:
        what = f"of a {type(document).__name__}" if document is not None else "without a document"
        raise SagaError(
            f"a change {what} fits {len(fitting)} of the documents whose changes {service.name!r} takes "
            f"({', '.join(sorted(kind.kind.__name__ for kind in kinds)) or 'none'}): give it one; `before=` if it is "
            "gone"
        )
    before, after = (None if each is None else msgspec.json.encode(each) for each in (change.before, change.document))
    word = describe_change(change)
    version = int(ids.digest("trial", f"{change.key}/{word}", f"{before!r}/{after!r}")[:12], 16)
    changed = DocumentChange(
        kind="delete" if word == "change" and after is None else word,
        key=change.key,
        version=version,
        time_ms=clock.now_ms(),
        before=before,
        after=after,
    )
    return make_change_message(changed, kinds[fitting[0]], clock.now_ms())


def _list_emitted(service: PreparedService, log: RecordingPublisher) -> list[Event]:
    """Return the published events, each once, as instances of the classes that the service's handlers emit."""
    classes = [event for reaction in service.declared.reactions for event in reaction.emits]
    library = service.schemas.library
    first: dict[str, Outgoing] = {}
    for record in log.messages:
        headers = texts_of(record.headers)
        if "dead_id" not in headers and record.topic not in service.wakes:
            first.setdefault(headers["ce_id"], record)
    values = [record.value or b"" for record in first.values()]
    return [codec.decode(value, codec.find_class(classes, value, library), library) for value in values]


# ---------------------------------------------------------------- a handler by itself


@overload
def a_saga(
    *,
    elapsed: timedelta = ...,
    documents: "Mapping[str, DataclassInstance]" = ...,
    flags: Collection[str] = ...,
    principal: str | None = ...,
    version: int = ...,
) -> Saga: ...
@overload
def a_saga(
    *,
    state: _S,
    elapsed: timedelta = ...,
    documents: "Mapping[str, DataclassInstance]" = ...,
    flags: Collection[str] = ...,
    principal: str | None = ...,
    version: int = ...,
) -> Saga[_S]: ...
def a_saga(
    *,
    state: _S | None = None,
    elapsed: timedelta = timedelta(0),
    documents: "Mapping[str, DataclassInstance]" = _NONE,
    flags: Collection[str] = (),
    principal: str | None = None,
    version: int = 1,
) -> Saga[_S] | Saga[_S | None]:
    """Return a saga object with which a test calls a handler directly: `assert await reserve(an_order(), FakeBank(),
    a_saga()) == PaymentReserved(...)`.

    Guarantees:
    - Steps are called, and updates are applied to a copy of `documents`. Nothing is recorded or retried.
    - After the call, `.state` and `await saga.read(...)` return the results.
    - `idempotency_key` returns the same key for the same name in every saga made by this function.

    Args:
        documents: documents by key; the mapping itself does not change.
        elapsed: value of `saga.elapsed`.
        flags: flags that are on; all others are off.
        principal: on whose behalf the saga was started.
        version: version of the handler under which this run began.

    Raises `Permanent` for mistakes that would also fail in a running service, such as an update of a missing document.
    """
    return PlainSaga(state, elapsed, documents, frozenset(flags), principal, version)


class PlainSaga(Saga[_S]):
    """A saga object without a runtime, with which a test calls a handler directly: see `a_saga`."""

    def __init__(
        self,
        state: _S,
        elapsed: timedelta,
        documents: "Mapping[str, DataclassInstance]",
        flags: Collection[str] = (),
        principal: str | None = None,
        version: int = 1,
    ) -> None:
        self._state, self._elapsed, self._flags, self._principal = state, elapsed, flags, principal
        self._version = version
        self._documents: dict[tuple[type, str], DataclassInstance] = {
            (type(document), key): document for key, document in documents.items()
        }

    @property
    def state(self) -> _S:
        return self._state

    @state.setter
    def state(self, state: _S, /) -> None:
        if type(state) is not type(self._state):
            raise Permanent(
                f"saga.state is a {type(self._state).__name__} here and is assigned a {type(state).__name__}: "
                "begin with a_saga(state=...) as the service does"
            )
        self._state = state

    @property
    def elapsed(self) -> timedelta:
        return self._elapsed

    @property
    def principal(self) -> str | None:
        return self._principal

    @property
    def version(self) -> int:
        return self._version

    def idempotency_key(self, name: str, /) -> str:
        return ids.idempotency_key(name, "a_saga", "", "", "")

    async def step(self, call: Callable[_P, Awaitable[_T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await call(*args, **kwargs)

    def on_abort(self, call: Callable[_P, Awaitable[object]], /, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Do nothing: a direct call is never aborted."""

    async def update(
        self,
        kind: type[_D],
        key: str,
        change: Callable[Concatenate[_D, _P], _D | tuple[_D, _R]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R:
        document = self._document(kind, key)
        name = getattr(change, "__name__", repr(change))
        if document is None and not accepts_none(change):
            raise Permanent(
                f"there is no {kind.__name__} {key!r}: give it to a_saga(documents={{{key!r}: ...}}), "
                f"or let the first parameter of {name} be `{kind.__name__} | None`"
            )
        returned = change(document, *args, **kwargs)  # type: ignore[arg-type] # checked above: it accepts None
        changed, result = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
        if not isinstance(changed, kind):
            raise Permanent(
                f"{name} returned a {type(changed).__name__}: it must return the new {kind.__name__}, "
                "or that and a result"
            )
        self._documents[kind, key] = changed
        return result  # type: ignore[return-value] # without a result _R is None, its default

    async def flag(self, name: str, /) -> bool:
        return name in self._flags

    async def read(self, kind: type[_D], key: str, /) -> _D | None:
        return self._document(kind, key)

    def _document(self, kind: type[_D], key: str) -> _D | None:
        check_key(kind, key)
        document = self._documents.get((kind, key))
        assert document is None or isinstance(document, kind)
        return document


def migrated(service: Service[_S], old: "DataclassInstance") -> _S:
    """Migrate an old state to the current one: `assert migrated(order, OrderStateV1(9.8)) == OrderState(980)`.

    As in a running service, all migrations from the version of `old` on are applied, and each result is encoded and
    decoded again.

    Raises `SagaError` if no release had a state of the class of `old`, and for a migration that fails or returns
    another result the second time.
    """
    prepared = prepare(service.declared)
    version, fields = encode_state(prepared, old)
    once, again = (recorded_values.migrate_fields(prepared, fields, version, "a test") for _ in range(2))
    if once != again:
        raise SagaError(
            f"the migrations of {prepared.name!r} make {once} of {old}, and {again} the second time: a migration runs "
            "again for each run of a handler until one of them ends, so let it give the same for the same"
        )
    state: _S = prepared.state_of(once)
    return state


def encode_state(prepared: PreparedService, state: object) -> tuple[int, dict[str, Any]]:
    """Return the version and the fields of a state, as recorded by the release that had this state class.

    Raises `SagaError` if no release had a state of this class.
    """
    kinds = [*(migration.takes for migration in prepared.migrations), prepared.state]
    if type(state) not in kinds:
        known = " or ".join(kind.__name__ for kind in kinds if kind is not None) or "none"
        raise SagaError(f"{state!r} is no state that {prepared.name!r} has had: give {known}")
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields_of(state)))
    return kinds.index(type(state)) + 1, fields


def make_progress(prepared: PreparedService, saga: str, state: object, now_ms: int) -> SagaProgress:
    """Return a progress that contains only this state. Raises `SagaError` if no release had a state of this class."""
    version, fields = encode_state(prepared, state)
    return SagaProgress(
        service=prepared.name,
        saga=saga,
        started=iso(now_ms),
        state=fields,
        version=version,
        format=compute_format((), (), (), version),
        self_consumed_types=prepared.roles.self_consumed_types,
    )


def make_control_log(service: str, flags: Collection[str], time: str) -> bytes:
    """Return an encoded control log of a service in which these flags are on for all sagas."""
    control_log = ControlLog(service=service)
    for flag in flags:
        control = Control(
            id=f"control-{flag}",
            type=controls.TYPE,
            schema="",
            saga=service,
            source=OPERATOR,
            time=time,
            value=b"",
            switch=Switch(flag=flag, percent=100),
            who="a trial",
            why="a trial",
        )
        control_log = controls.append_control(control_log, control) or control_log
    return controls.encode(control_log)
