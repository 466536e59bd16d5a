"""Saga as a running handler sees it: steps, updates and reads are recorded, and answered to a rerun without a call."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec.structs import replace as with_

from saga.declarations.annotations import returns_of
from saga.declarations.limits import MARK
from saga.declarations.values import DocumentKind, Reaction
from saga.encryption.sensitive_fields import find_marks, find_secrets, mark
from saga.engine import recorded_values
from saga.engine.errors import Halted, NotDeterministic, wrap_base_exception
from saga.engine.execution import abort_actions, call_arguments, control_log, document_updates
from saga.engine.execution.redaction import Hiding
from saga.engine.execution.step_replay import Recalling
from saga.engine.execution.value_codec import STATE, ValueCodec
from saga.engine.persistence import overflow_store, progress_repository
from saga.engine.ports import ExternalCall, RunScope
from saga.engine.processing_state import ProcessingState, RunKey
from saga.engine.recorded_values import changed_fields, encode_recorded, fields_of, flag_named, replay_result
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Permanent, StoreError, TooLarge
from saga.progress import ids, journal
from saga.progress.document import AbortAction, Intent, StepRecord, SuspendedRun
from saga.support.clock import from_iso, iso

P = ParamSpec("P")
T = TypeVar("T")


class RunningSaga(Recalling, Hiding):
    """One run of a handler on one cause. Made for each attempt."""

    failure: Exception | None = None
    """Failure of a step, and with it of this attempt, even if the handler catches it."""
    halt: BaseException | None = None
    left = False
    """True if it is left as by a crash: nobody waits for what the handler did not wait for, except for writes."""
    ended = False
    """True if nothing of it begins any more."""
    _one_run: RunScope | None = None
    _state: Any = None
    _time_ms = 0
    _numbers: dict[str, int]
    outages = 0
    """Outages that had been told when it began."""
    _written = b""
    """Arguments of the call that is asked for, as JSON."""
    older_state: Mapping[str, Any] = MappingProxyType({})
    """State of an older version that is to be migrated, opened."""
    _undo_with: tuple[AbortAction, ...] = ()

    def __init__(  # what a run consists of
        self,
        service: ServiceRuntime,
        turn: ProcessingState,
        handler: Reaction,
        run: RunKey,
        intent: Intent,
        goes_on: SuspendedRun | None,
        seals: ValueCodec,
        state: dict[str, Any],
        begun_s: float,
    ) -> None:
        """`intent`: as it is open in the progress, or as it will be written before the first step. `goes_on`: the run
        of which this is the next turn. `state`: that of the intent, opened. `begun_s`: time at which the run began."""
        self.service, self.turn, self.handler, self.run, self.intent = service, turn, handler, run, intent
        self.seals, self.goes_on, self.begun_s = seals, goes_on, begun_s
        self.calls, self._numbers, self.seen, self.hides = [], {}, [], []
        self.outages = service.ports.outage_watch.outages
        if intent.calls or intent.begins is not None or turn.results:  # else nothing is known yet
            self._learn(intent, turn.results_of(run))
        if service.state is not None:
            version, id_ = intent.version, turn.message.saga
            self._given = recorded_values.migrate_fields(service, state, version, id_) if service.migrations else state
            self._state = service.state_of(self._given)
            self._before = fields_of(self._state)

    @property
    def answers(self) -> tuple[StepRecord, ...]:
        """All calls with their answers, those last that a person gave."""
        return (*self.calls, *self._said.values()) if self._said else tuple(self.calls)

    @property
    def time_ms(self) -> int:
        """Time of the turn, in milliseconds since 1970: once something is written about it, a rerun has the same."""
        if not self._time_ms:
            self._time_ms = from_iso(self.intent.time) if self.intent.time else self._now_ms()
        return self._time_ms

    def _now_ms(self) -> int:
        now_ms, c = self.service.ports.clock.now_ms(), self.goes_on
        if c is None:
            return now_ms
        # This worker's clock may be behind the one by which the turn before was made, or this one found to be due.
        is_awaited = any(message.type in c.until for message in self.intent.parts[len(c.parts) :])
        return max(now_ms, c.seen_ms if is_awaited or c.attempts else c.due_ms)

    @property
    def elapsed(self) -> timedelta:
        return timedelta(milliseconds=0 if self.goes_on is None else self.time_ms - self.goes_on.first_ms)

    @property
    def version(self) -> int:
        return self.intent.handler_version

    @property
    def principal(self) -> str | None:
        return journal.determine_principal(self.turn.loaded_progress, self.turn.message)

    @property
    def has_begun(self) -> bool:
        """True if it has asked for a step, an update or a read."""
        return self._one_run is not None

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, state: Any, /) -> None:
        self._state = state

    def delta(self) -> dict[str, Any]:
        """The fields of the state that this run has changed."""
        if self.service.state is None and self._state is None:
            return {}
        if self.service.state is None or not isinstance(self._state, self.service.state):
            raise Permanent(
                f"{self.handler.name} assigned {self._state!r} to saga.state: it must be an instance of "
                f"{'the state= of Service(...)' if self.service.state is None else self.service.state.__name__}"
            )
        changed = changed_fields(self._before, self._state, lambda new: self.service.state_of({**self._given, **new}))
        marks = self.service.state_marks
        return (
            changed
            if marks is None or not changed
            else self.seals.encrypt(marks.change(self._state, changed, mark), STATE)
        )

    def idempotency_key(self, name: str, /) -> str:
        return ids.idempotency_key(name, self.service.name, self.turn.message.saga, self._whose, self.intent.cause)

    @property
    def _whose(self) -> str:
        """Name under which keys and updates are: what is done in place of a run is none of its own."""
        return f"{self.handler.name}|lieu" if self.intent.kind == "lieu" else self.handler.name

    def on_abort(self, call: Callable[P, Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs) -> None:
        role = self.service.roles.handlers.get(self.handler.name)
        try:
            if self.intent.kind != "do" or role is None or role.undo is None:
                raise Permanent(
                    f"{self.handler.name} says how to take back what it did, but has no compensation, so nothing ever "
                    f"would: declare one, or leave out saga.on_abort"
                )
            said = abort_actions.record_action(self.service, self, call, args, kwargs)
        except Permanent as why:
            self.failure = self.failure or why
            raise
        self._undo_with += (with_(self.seals.encrypt_abort_call(self.handler.name, said), after=self._next),)

    @property
    def taken_back_with(self) -> tuple[AbortAction, ...]:
        """Calls that take this run back. A rerun that has not come as far as an earlier one goes by that."""
        known = self.intent.undo_with if self.intent.kind == "do" else ()
        return self._undo_with if len(self._undo_with) >= len(known) else known

    async def step(self, call: Callable[P, Awaitable[Any]], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        async with self._one_at_a_time():
            answered, type_ = await self._or_failed(self._stepped(call, args, kwargs))
            return await self._given_back(answered, type_, self.service.expected_errors[self.handler.name])

    async def _stepped(
        self, call: Callable[..., Awaitable[Any]], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[StepRecord, Any]:
        """The answer as it is recorded, and the type as which it is given back."""
        name = getattr(call, "__name__", type(call).__name__)
        asked, type_ = self._asked("step", name, args, kwargs), returns_of(call)
        answered = self._recalled(asked)
        if answered is None:
            asked = self.with_arguments(asked, self._written, call, args, kwargs)
            used = self.service.used_resources.get(type(getattr(call, "__self__", None)))
            step = ExternalCall(self.turn.message.saga, self.handler.name, asked, call, args, kwargs, self.secrets)
            limits = getattr(call, MARK, None)
            if limits is None and (used is None or not used.limiter.is_needed):
                await self._begin(asked)
                timeout_s = self.handler.timeout_s if used is None else used.resource.timeout_s
                answered = await self.made(step, used, timeout_s)
            else:
                answered = await self.let_through(step, used, limits)
            large = len(memoryview(answered.value)) > self.service.bounds.value_bytes_max
            self.calls.append(await self._light(answered) if large else answered)
        return answered, type_

    async def update(
        self,
        kind: type[Any],
        key: str,
        change: Callable[Concatenate[Any, P], Any],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Any:
        async with self._one_at_a_time():
            answered, type_ = await self._or_failed(self._updated(kind, key, change, args, kwargs))
            return await self._given_back(answered, type_, self._declared(kind).expected_errors)

    async def _updated(
        self,
        kind: type[Any],
        key: str,
        change: Callable[..., Any],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> tuple[StepRecord, Any]:
        declared = self._declared(kind)
        name = getattr(change, "__name__", type(change).__name__)
        asked = self._asked("update", name, args, kwargs, document=f"{declared.collection}/{key}")
        type_ = document_updates.result_of(change, declared.kind)
        answered = self._recalled(asked)
        if answered is None:
            asked = self.with_arguments(asked, self._written, change, args, kwargs, first=1)
            await self._begin(asked)
            update = document_updates.Update(
                declared=declared,
                key=key,
                marker=self.marker(asked),
                saga=self.turn.message.saga,
                run=self.run,
                change=change,
                args=args,
                kwargs=kwargs,
                until_s=self.until_s,
                seen=self.seen,
                close=partial(self._seal_answer, asked),
            )
            with self.turn.measurements.span("store", f"update {declared.collection}"):
                marker = await self._shielded(document_updates.apply(self.service, self.turn.position, update))
            answered = with_(asked, answer=marker.answer, value=marker.value)
            self.calls.append(answered)
        return answered, type_

    async def read(self, kind: type[Any], key: str, /) -> Any:
        async with self._one_at_a_time():
            return await self._given_back(*await self._or_failed(self._looked_up(kind, key)), ())

    async def _looked_up(self, kind: type[Any], key: str) -> tuple[StepRecord, Any]:
        declared = self._declared(kind)
        asked = self._asked("read", declared.collection, (), {}, document=f"{declared.collection}/{key}")
        answered = self._recalled(asked)
        if answered is None:
            with self.turn.measurements.span("store", f"read {declared.collection}"):
                value = await self._of_store(document_updates.read(self.service, self.turn.position, declared, key))
            said = encode_recorded(value, declared.collection, "the document read by", declared.kind | None)
            answered = with_(asked, value=self._seal_answer(asked, said))
            large = len(memoryview(answered.value)) > self.service.bounds.value_bytes_max
            self.calls.append(await self._light(answered) if large else answered)
        return answered, declared.kind | None

    async def flag(self, name: str, /) -> bool:
        async with self._one_at_a_time():
            return bool(await self._given_back(await self._or_failed(self._switched(name)), bool, ()))

    async def _switched(self, name: str) -> StepRecord:
        asked = self._asked("read", flag_named(name), (), {}, document=f"flag/{name}")
        answered = self._recalled(asked)
        if answered is None:
            on = await self._of_store(control_log.is_on(self.service, self.turn.position, name, self.turn.message.saga))
            self.calls.append(answered := with_(asked, value=encode_recorded(on, name, "the flag")))
        return answered

    async def _or_failed(self, work: Coroutine[object, object, T]) -> T:
        """Await an answer. All else fails this attempt, even if the handler catches it."""
        try:
            return await work
        except Halted as halt:
            self.halt = halt
            raise
        except Exception as why:
            self.failure = self.failure or why
            raise
        except asyncio.CancelledError:  # an update goes on to its end: a handler that went on would not know of it
            self.failure = self.failure or TimeoutError("a step, update or read was cancelled before it answered")
            raise
        except BaseException as why:
            self.failure = self.failure or wrap_base_exception(why, "a step, update or read")
            raise

    def marker(self, call: StepRecord) -> str:
        """The id of an update of this run."""
        return ids.update_id(
            self.service.name, self.turn.message.saga, self._whose, self.intent.cause, call.name, call.number
        )

    def _one_at_a_time(self) -> AbstractAsyncContextManager[object]:
        """Gate of this run: its steps never overlap, one begun during another waits."""
        if self._one_run is None:
            self._one_run = self.service.ports.make_run_scope()
        return self._one_run.gate

    async def settled(self) -> None:
        """Return when nothing of this run is under way; nothing of it begins any more."""
        self.ended = True
        if self._one_run is not None and self.left:
            await self._one_run.wait_for_writes()
        elif self._one_run is not None:
            async with self._one_run.gate:  # a step that the handler did not wait for comes to its end
                await self._one_run.wait_for_writes()

    def _declared(self, kind: type[Any]) -> DocumentKind:
        declared = self.service.documents.get(kind)
        if declared is None:
            raise Permanent(
                f"{self.handler.name} asks for a {kind.__name__}, which is no document of {self.service.name!r}: "
                f'declare it with {self.service.name}.document({kind.__name__}, "...")'
            )
        return declared

    def _asked(
        self, kind: Any, name: str, args: Sequence[object], kwargs: Mapping[str, object], document: str | None = None
    ) -> StepRecord:
        """The call as it is compared with what is recorded."""
        if self.ended:
            raise Permanent(f"{self.handler.name} asks for {kind} {name!r} after its end: await what it begins")
        if self.halt is not None:
            raise self.halt
        if self.failure is not None:
            raise self.failure
        self._numbers[name] = number = self._numbers.get(name, 0) + 1
        self._written = call_arguments.encode_arguments(name, args, kwargs)
        self._digest = call_arguments.digest_of(self._written)
        input_ = self.seals.digest(self._digest)
        return self._as_begun(StepRecord(kind=kind, name=name, number=number, input=input_, document=document))

    async def _begin(self, asked: StepRecord) -> None:
        """Make the intent durable, with all answers so far: nothing new begins before."""
        try:
            self.service.ports.assignment.check_running(self.turn.position)
        except Halted as halt:
            self.halt = halt
            raise
        begun = self._begun_before
        if begun is not None and begun.instead == asked.instead:
            return  # its intent is there
        if begun is not None:  # it may have happened, and another way could do it twice
            raise NotDeterministic(
                f"{self.handler.name} has begun {begun.instead!r} for step {begun.name!r} (number {begun.number}), and "
                "this code has no such way: put its fallback back"
            )
        hand = progress_repository.write_context(self.service, self.turn, appends=False)
        intent = with_(self.intent, begins=asked, calls=self.answers, time=self.intent.time or iso(self.time_ms))
        if self._undo_with:
            intent = with_(intent, undo_with=self.taken_back_with)
        await self._shielded(self._save(intent, journal.open_intent(self.turn.loaded_progress, hand, intent)))

    async def _save(self, intent: Intent, written: journal.Commit) -> None:
        self.turn = await progress_repository.checkpoint(self.service, self.turn, written)
        # Only now: what is not written binds no rerun.
        self.intent, self._open, self._recorded = intent, intent.begins, len(self.calls)

    async def _of_store(self, work: Awaitable[T]) -> T:
        """Trouble of the store is no failure of the handler: the turn ends as by a crash, and the lane tells."""
        try:
            return await work
        except TooLarge:
            raise
        except (Halted, StoreError) as why:
            self.halt = why
            raise

    def _shielded(self, work: Coroutine[object, object, Any]) -> Coroutine[object, object, Any]:
        """Await a write: a timeout abandons the await, never the write."""
        assert self._one_run is not None
        return self._of_store(self._one_run.write(work))

    def _light(self, answered: StepRecord) -> Coroutine[object, object, StepRecord]:
        """A large answer without its value, once that is durable elsewhere."""
        return self._shielded(overflow_store.store_claim(self.service, self.turn, answered))

    async def _given_back(self, call: StepRecord, type_: Any, answers: tuple[type[Exception], ...]) -> Any:
        """Give a recorded result, as the first run and every rerun see it."""
        if call.claim:
            call = await self._or_failed(self._of_store(overflow_store.load_claim(self.service, self.turn, call)))
        if find_marks(type_) is not None or call.by is not None:
            call = await self._or_failed(self._of_store(self.seals.decrypt_call(self.run, call)))
        if call.by is not None:  # sealed as a whole, whatever its type
            self.hides += find_secrets(msgspec.json.decode(call.value))
        try:
            value = replay_result(self.handler.name, call, type_, answers)
            if find_marks(type_) is not None:
                self.seen.append((type_, value))
            return value
        except Permanent as why:
            self.failure = why
            raise
