"""The saga as a running handler sees it. Steps, updates and reads are recorded, and replayed in a rerun."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import replace as with_

from saga.contracts.sensitive_fields import collect_secrets
from saga.declarations.annotations import return_type_of
from saga.declarations.resources import MARK, Limits
from saga.declarations.values import DocumentKind, Resource
from saga.encryption.sensitive_fields import find_marks, find_secrets, mark
from saga.engine import recorded_values
from saga.engine.errors import Halted, NotDeterministic, describe_exception, wrap_base_exception
from saga.engine.execution import abort_actions, control_log, document_updates
from saga.engine.execution.runs import RunRequest
from saga.engine.execution.step_replay import StepReplay
from saga.engine.execution.value_codec import STATE, ValueCodec, place_of_call
from saga.engine.limits import CallNotAdmitted
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.ports import ExternalCall, RunScope
from saga.engine.processing_state import ProcessingState
from saga.engine.recorded_values import (
    changed_fields,
    encode_recorded,
    fields_of,
    flag_named,
    record_answer,
    replay_result,
)
from saga.engine.service_runtime import UsedResource
from saga.errors import BadInput, BreakerOpen, KeyMissing, NewerHandler, Permanent, StoreError, TooLarge, UnknownSchema
from saga.messages import Event
from saga.policies.breaker import LastGoodCache
from saga.policies.retry import RETRY, FailureRule, Retry, choose_rule
from saga.progress import ids, journal
from saga.progress.document import ABORT, AbortAction, Intent, StepRecord, SuspendedRun
from saga.progress.failed_attempts import READ_S_MIN
from saga.support.clock import from_iso, is_cancelled, iso
from saga.telemetry.events import FellBack, StepDone
from saga.view import Saga

P = ParamSpec("P")
T = TypeVar("T")


REMEMBERED = "remembered"
"""Recorded in `StepRecord.instead` if an answer is the last good result of an earlier call."""

UNDEPLOYED = FailureRule(UnknownSchema.__name__, Retry(attempts_max=10, delay_s_first=READ_S_MIN, in_place_s=0))
"""Retry rule for a message whose schema is not deployed here; it overrides all declared rules. Attempts continue
without limit, and each round of `attempts_max` attempts is reported."""
NEWER = FailureRule(NewerHandler.__name__, RETRY)
"""Retry rule for a run that a newer version of its handler began; it overrides all declared rules. The run waits for a
release that has this version."""


class SagaContext(Saga[Any]):
    """One attempt of a handler's run, as the handler sees it.

    Before each call, the intent to make it is written to the store: see `_begin`.
    """

    failure: Exception | None = None
    """Error of a step. It fails the attempt even if the handler catches it."""
    halt: BaseException | None = None
    """Reason why this attempt has to end as in a crash."""
    is_abandoned = False
    """True if the attempt is abandoned as in a crash. Then only writes in progress are awaited."""
    has_ended = False
    """True if the run may begin no further call."""
    given: Mapping[str, object] = MappingProxyType({})
    """Arguments that the handler got."""
    failed_on: Resource | None = None
    """Resource that was called by the step that failed."""
    called_failure: BaseException | None = None
    """Exception of the function that a step called, or of its timeout; `None` if the step failed for another reason."""
    postponed_s: float | None = None
    """Seconds after which to try again, if limits did not admit the step. Then the attempt does not count."""
    _refused_answer: tuple[int, float] | None = None
    """Number of the call that a breaker refused, and the seconds after which to try it again."""
    _scope: RunScope | None = None
    _state: Any = None
    _time_ms = 0
    _written = b""
    """Arguments of the current call, as JSON."""
    _digest = ""
    """Digest of `_written`, made without a key."""
    _abort_actions: tuple[AbortAction, ...] = ()

    def __init__(
        self,
        repository: ProgressRepository,
        processing: ProcessingState,
        request: RunRequest,
        intent: Intent,
        codec: ValueCodec,
    ) -> None:
        """`intent`: the open intent, or the one to write before the first step. `codec`: has the state of the intent,
        decrypted."""
        self.service = service = repository.service
        self.repository, self.processing, self.codec = repository, processing, codec
        self.request, self.intent = request, intent
        self.handler, self.run = request.handler, request.run
        self.begun_s = service.ports.clock.monotonic_s()
        self.outages = service.ports.outage_watch.outages
        """Value of `OutageWatch.outages` when the attempt began."""
        self.seen: list[tuple[Any, object]] = []
        """Values with sensitive parts that steps, reads and updates returned, each with its type."""
        self.hides: list[str] = []
        """Further strings to hide in reports about the run."""
        self._numbers: dict[str, int] = {}
        self.replay = StepReplay(self.handler, intent.handler_version, codec.may_be_same)
        if intent.calls or intent.begins is not None or processing.results:  # else nothing is recorded yet
            self.replay.load(intent, processing.results_of(self.run))
        if service.state is not None:
            fields = codec.state
            if service.migrations:
                fields = recorded_values.migrate_fields(service, fields, intent.version, processing.message.saga)
            self._fields = fields
            self._state = service.state_of(fields)
            self._before = fields_of(self._state)

    @property
    def suspended_run(self) -> SuspendedRun | None:
        """The suspended run that this one continues; `None` if this is its first turn."""
        return self.request.action.goes_on

    @property
    def reusable_answers(self) -> tuple[StepRecord, ...]:
        """Step results that a rerun can reuse. Without a persisted intent there are none."""
        return self.replay.answers if self.intent.begins is not None else ()

    @property
    def until_s(self) -> float:
        """Monotonic time at which the handler times out."""
        return self.begun_s + self.handler.timeout_s

    @property
    def time_ms(self) -> int:
        """Return the time of the run, in milliseconds since 1970.

        Once an intent is written, a rerun sees the same time.
        """
        if not self._time_ms:
            self._time_ms = from_iso(self.intent.time) if self.intent.time else self._now_ms()
        return self._time_ms

    def _now_ms(self) -> int:
        now_ms, c = self.service.ports.clock.now_ms(), self.suspended_run
        if c is None:
            return now_ms
        # This worker's clock may be behind the clock of the worker that made the previous turn, or found this one due.
        is_awaited = any(message.type in c.awaited_types for message in self.intent.parts[len(c.parts) :])
        return max(now_ms, c.seen_ms if is_awaited or c.attempts else c.due_ms)

    @property
    def elapsed(self) -> timedelta:
        return timedelta(milliseconds=0 if self.suspended_run is None else self.time_ms - self.suspended_run.first_ms)

    @property
    def version(self) -> int:
        return self.intent.handler_version

    @property
    def principal(self) -> str | None:
        return journal.determine_principal(self.processing.loaded_progress, self.processing.message)

    @property
    def has_begun(self) -> bool:
        """True if the handler has called a step, an update, a read or a flag."""
        return self._scope is not None

    @property
    def state(self) -> Any:
        return self._state

    @state.setter
    def state(self, state: Any, /) -> None:
        self._state = state

    def changed_state(self) -> dict[str, Any]:
        """Return the fields of the state that this run has changed."""
        if self.service.state is None and self._state is None:
            return {}
        if self.service.state is None or not isinstance(self._state, self.service.state):
            raise Permanent(
                f"{self.handler.name} assigned {self._state!r} to saga.state: it must be an instance of "
                f"{'the state= of Service(...)' if self.service.state is None else self.service.state.__name__}"
            )
        changed = changed_fields(self._before, self._state, lambda new: self.service.state_of({**self._fields, **new}))
        marks = self.service.state_marks
        return (
            changed
            if marks is None or not changed
            else self.codec.encrypt(marks.change(self._state, changed, mark), STATE)
        )

    def idempotency_key(self, name: str, /) -> str:
        return ids.idempotency_key(
            name, self.service.name, self.processing.message.saga, self._whose, self.intent.cause
        )

    @property
    def _whose(self) -> str:
        """Return the name of the run for keys and markers. An abort must not share these with the run that it
        undoes."""
        return f"{self.handler.name}|lieu" if self.intent.kind == ABORT else self.handler.name

    def on_abort(self, call: Callable[P, Awaitable[object]], /, *args: P.args, **kwargs: P.kwargs) -> None:
        role = self.service.roles.handlers.get(self.handler.name)
        try:
            if self.intent.kind != "do" or role is None or role.undo is None:
                raise Permanent(
                    f"{self.handler.name} says how to take back what it did, but has no compensation, so nothing ever "
                    f"would: declare one, or leave out saga.on_abort"
                )
            action = abort_actions.record_action(self.service, self, call, args, kwargs)
        except Permanent as why:
            self.failure = self.failure or why
            raise
        self._abort_actions += (
            with_(self.codec.encrypt_abort_call(self.handler.name, action), after=self.replay.position),
        )

    @property
    def abort_actions(self) -> tuple[AbortAction, ...]:
        """Calls that undo this run.

        If an earlier attempt declared more of them than this rerun so far, those of the earlier attempt count.
        """
        known = self.intent.undo_with if self.intent.kind == "do" else ()
        return self._abort_actions if len(self._abort_actions) >= len(known) else known

    async def step(self, call: Callable[P, Awaitable[Any]], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        async with self._exclusive():
            answered, type_ = await self._or_fail(self._make_step(call, args, kwargs))
            return await self._replay_result(answered, type_, self.service.expected_errors[self.handler.name])

    async def _make_step(
        self, call: Callable[..., Awaitable[Any]], args: Sequence[object], kwargs: Mapping[str, object]
    ) -> tuple[StepRecord, Any]:
        """Make a step, or take its answer from the record. Returns the step's record, and the type of its result."""
        name = getattr(call, "__name__", type(call).__name__)
        asked, type_ = self._make_record("step", name, args, kwargs), return_type_of(call)
        answered = self.replay.answer_of(asked, self._digest)
        if answered is None:
            asked = self._with_arguments(asked, self._written, call, args, kwargs)
            owner, resources = getattr(call, "__self__", None), self.service.used_resources
            used = resources.get(type(owner)) or resources.get(id(owner))
            step = ExternalCall(
                self.processing.message.saga, self.handler.name, asked, call, args, kwargs, self.secrets
            )
            limits = getattr(call, MARK, None)
            if limits is None and (used is None or not used.limiter.is_needed):
                await self._begin(asked)
                timeout_s = self.handler.timeout_s if used is None else used.resource.timeout_s
                answered = await self.call_external(step, used, timeout_s)
            else:
                answered = await self.call_when_admitted(step, used, limits)
            large = len(memoryview(answered.value)) > self.service.bounds.value_bytes_max
            self.replay.calls.append(await self._store_claim(answered) if large else answered)
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
        async with self._exclusive():
            answered, type_ = await self._or_fail(self._make_update(kind, key, change, args, kwargs))
            return await self._replay_result(answered, type_, self._document_kind(kind).expected_errors)

    async def _make_update(
        self,
        kind: type[Any],
        key: str,
        change: Callable[..., Any],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> tuple[StepRecord, Any]:
        declared = self._document_kind(kind)
        document_updates.check_key(kind, key)
        name = getattr(change, "__name__", type(change).__name__)
        asked = self._make_record("update", name, args, kwargs, document=f"{declared.collection}/{key}")
        type_ = document_updates.result_of(change, declared.kind)
        answered = self.replay.answer_of(asked, self._digest)
        if answered is None:
            asked = self._with_arguments(asked, self._written, change, args, kwargs, first=1)
            await self._begin(asked)
            update = document_updates.DocumentUpdate(
                declared=declared,
                key=key,
                marker=self.marker(asked),
                saga=self.processing.message.saga,
                run=self.run,
                change=change,
                args=args,
                kwargs=kwargs,
                until_s=self.until_s,
                seen=self.seen,
                close=partial(self._encrypt_answer, asked),
            )
            with self.processing.measurements.span("store", f"update {declared.collection}"):
                marker = await self._shielded(document_updates.apply(self.service, self.processing.position, update))
            answered = with_(asked, answer=marker.answer, value=marker.value)
            self.replay.calls.append(answered)
        return answered, type_

    async def read(self, kind: type[Any], key: str, /) -> Any:
        async with self._exclusive():
            return await self._replay_result(*await self._or_fail(self._read_document(kind, key)), ())

    async def _read_document(self, kind: type[Any], key: str) -> tuple[StepRecord, Any]:
        declared = self._document_kind(kind)
        document_updates.check_key(kind, key)
        asked = self._make_record("read", declared.collection, (), {}, document=f"{declared.collection}/{key}")
        answered = self.replay.answer_of(asked, self._digest)
        if answered is None:
            with self.processing.measurements.span("store", f"read {declared.collection}"):
                value = await self._or_halt(
                    document_updates.read(self.service, self.processing.position, declared, key)
                )
            content = encode_recorded(value, declared.collection, "the document read by", declared.kind | None)
            answered = with_(asked, value=self._encrypt_answer(asked, content))
            large = len(memoryview(answered.value)) > self.service.bounds.value_bytes_max
            self.replay.calls.append(await self._store_claim(answered) if large else answered)
        return answered, declared.kind | None

    async def flag(self, name: str, /) -> bool:
        async with self._exclusive():
            return bool(await self._replay_result(await self._or_fail(self._read_flag(name)), bool, ()))

    async def _read_flag(self, name: str) -> StepRecord:
        asked = self._make_record("read", flag_named(name), (), {}, document=f"flag/{name}")
        answered = self.replay.answer_of(asked, self._digest)
        if answered is None:
            on = await self._or_halt(
                control_log.is_on(self.service, self.processing.position, name, self.processing.message.saga)
            )
            self.replay.calls.append(answered := with_(asked, value=encode_recorded(on, name, "the flag")))
        return answered

    async def _or_fail(self, work: Coroutine[object, object, T]) -> T:
        """Await an answer. Any error fails this attempt, even if the handler catches it."""
        try:
            return await work
        except Halted as halt:
            self.halt = halt
            raise
        except Exception as why:
            self.failure = self.failure or why
            raise
        except asyncio.CancelledError:  # the update continues to its end, unknown to a handler that continued
            self.failure = self.failure or TimeoutError("a step, update or read was cancelled before it answered")
            raise
        except BaseException as why:
            self.failure = self.failure or wrap_base_exception(why, "a step, update or read")
            raise

    def marker(self, call: StepRecord) -> str:
        """Return the id of an update of this run. The marker in the document has this id."""
        return ids.update_id(
            self.service.name, self.processing.message.saga, self._whose, self.intent.cause, call.name, call.number
        )

    def _exclusive(self) -> AbstractAsyncContextManager[object]:
        """Return the lock of this run, so that steps never overlap: a step that is called during another one waits."""
        if self._scope is None:
            self._scope = self.service.ports.make_run_scope()
        return self._scope.gate

    async def settle(self) -> None:
        """Wait until no call of this run is in progress. From now on, the run may begin no further call."""
        self.has_ended = True
        if self._scope is not None and self.is_abandoned:
            await self._scope.wait_for_writes()
        elif self._scope is not None:
            async with self._scope.gate:  # let a step finish that the handler did not await
                await self._scope.wait_for_writes()

    def _document_kind(self, kind: type[Any]) -> DocumentKind:
        declared = self.service.documents.get(kind)
        if declared is None:
            raise Permanent(
                f"{self.handler.name} asks for a {kind.__name__}, which is no document of {self.service.name!r}: "
                f'declare it with {self.service.name}.document({kind.__name__}, "...")'
            )
        return declared

    def _make_record(
        self, kind: Any, name: str, args: Sequence[object], kwargs: Mapping[str, object], document: str | None = None
    ) -> StepRecord:
        """Make the record of a call, to compare it with the recorded calls."""
        if self.has_ended:
            raise Permanent(f"{self.handler.name} asks for {kind} {name!r} after its end: await what it begins")
        if self.halt is not None:
            raise self.halt
        if self.failure is not None:
            raise self.failure
        self._numbers[name] = number = self._numbers.get(name, 0) + 1
        self._written = recorded_values.encode_arguments(name, args, kwargs)
        self._digest = recorded_values.digest_arguments(self._written)
        input_ = self.codec.digest(self._digest)
        return self.replay.as_begun(
            StepRecord(kind=kind, name=name, number=number, input=input_, document=document), self._digest
        )

    async def _begin(self, asked: StepRecord) -> None:
        """Write the intent to make a call, with all answers so far. No call begins before this write."""
        try:
            self.service.ports.assignment.check_running(self.processing.position)
        except Halted as halt:
            self.halt = halt
            raise
        begun = self.replay.begun_before
        if begun is not None and begun.instead == asked.instead:
            return  # its intent is stored already
        if begun is not None:  # it may have happened, and a fallback could do it twice
            raise NotDeterministic(
                f"{self.handler.name} has begun {begun.instead!r} for step {begun.name!r} (number {begun.number}), and "
                "this code has no such way: put its fallback back"
            )
        intent = with_(self.intent, begins=asked, calls=self.replay.answers, time=self.intent.time or iso(self.time_ms))
        if self._abort_actions:
            intent = with_(intent, undo_with=self.abort_actions)
        await self._shielded(self._save(intent))

    async def _save(self, intent: Intent) -> None:
        self.processing = await self.repository.write_intent(self.processing, intent)
        self.intent = intent  # only now: an intent that is not written does not bind a rerun
        self.replay.mark_saved(intent.begins)

    async def _or_halt(self, work: Awaitable[T]) -> T:
        """Await an operation of the store.

        If the store fails, the attempt ends as in a crash, because that is not a failure of the handler.
        """
        try:
            return await work
        except TooLarge:
            raise
        except (Halted, StoreError) as why:
            self.halt = why
            raise

    def _shielded(self, work: Coroutine[object, object, Any]) -> Coroutine[object, object, Any]:
        """Await a write. A timeout ends the waiting, never the write."""
        assert self._scope is not None
        return self._or_halt(self._scope.write(work))

    def _store_claim(self, answered: StepRecord) -> Coroutine[object, object, StepRecord]:
        """Store a large answer as a claim check, and return its record without the value."""
        return self._shielded(self.repository.overflow.store_claim(self.processing, answered))

    async def _replay_result(self, call: StepRecord, type_: Any, answers: tuple[type[Exception], ...]) -> Any:
        """Return a recorded result as the handler sees it. The first attempt and every rerun get the same value."""
        if call.claim:
            call = await self._or_fail(self._or_halt(self.repository.overflow.load_claim(self.processing, call)))
        if find_marks(type_) is not None or call.by is not None:
            call = await self._or_fail(self._or_halt(self.codec.decrypt_call(self.run, call)))
        if call.by is not None:  # encrypted as a whole, whatever its type
            self.hides += find_secrets(msgspec.json.decode(call.value))
        try:
            value = replay_result(self.handler.name, call, type_, answers)
            if find_marks(type_) is not None:
                self.seen.append((type_, value))
            return value
        except Permanent as why:
            self.failure = why
            raise

    # ---------------------------------------------------------------- external calls

    async def call_when_admitted(
        self, step: ExternalCall, used: UsedResource | None, limits: Limits | None
    ) -> StepRecord:
        """Make a call when its own limits and those of its resource admit it. The intent is written only after that.

        The call's own limits come first, because a call that waits for them must not occupy a place at the resource.
        """
        timeout_s = self.handler.timeout_s if used is None else used.resource.timeout_s
        if limits is not None and limits.timeout_s is not None:
            timeout_s = limits.timeout_s
        at, latest_s = self.processing.position, self.until_s - min(timeout_s, self.handler.timeout_s / 2)
        begun = self.replay.begun_before
        # Without this fallback the call goes on to `_begin`, which says that this code has no such way.
        if begun is not None and begun.instead and limits is not None and callable(limits.fallback):
            return await self._call_fallback(step, limits, timeout_s)
        memory = None if limits is None else self.service.memory_of(limits, used)

        async def make() -> StepRecord:
            await self._begin(step.record)
            return await self.call_external(step, used, timeout_s, memory)

        def at_resource() -> Awaitable[StepRecord]:
            if used is None or not used.limiter.is_needed:
                return make()
            return used.limiter.through(make, at, latest_s, self._is_fault)

        own = None if limits is None else self.service.limiter_of(step.record.name, limits, used)
        try:
            if own is None:
                return await at_resource()
            if used is not None:
                used.limiter.check_closed()  # a call that the breaker refuses must not use up its own limit
            return await own.through(at_resource, at, latest_s, self._has_failed)
        except CallNotAdmitted as refusal:
            if begun is None:  # else it may have happened, and a fallback could do it twice
                remembered = None if memory is None else self._recall_last_good(step, memory)
                if remembered is not None:
                    return remembered
                if limits is not None and limits.fallback is not None and memory is None:
                    return await self._call_fallback(step, limits, timeout_s)
                if used is not None and isinstance(refusal.why, used.resource.expected_errors):
                    self._refused_answer = (len(self.replay.calls), refusal.left_s)
                    return record_answer(step.record, refusal.why, used.resource.expected_errors)
            self.postponed_s = refusal.left_s
            raise refusal.why from None

    def _encrypt_answer(self, asked: StepRecord, value: Raw) -> Raw:
        """Encrypt the sensitive parts of the answer to a call."""
        return self.codec.encrypt_raw(value, place_of_call(self.run, asked))

    def _recall_last_good(self, step: ExternalCall, memory: LastGoodCache[Raw]) -> StepRecord | None:
        """Answer with the last good result for these arguments; `None` if there is none, or if it is too old."""
        value = memory.recall(self._digest, self.service.ports.clock.monotonic_s())
        if value is None:
            return None
        self._report_fallback(step, REMEMBERED)
        return with_(step.record, value=self._encrypt_answer(step.record, value), instead=REMEMBERED)

    async def _call_fallback(self, step: ExternalCall, limits: Limits, timeout_s: float) -> StepRecord:
        """Call the fallback function in place of a call. The intent names it, so that a rerun calls the same
        function."""
        other = limits.fallback
        assert callable(other)
        asked = with_(step.record, instead=other.__name__)
        resource = getattr(step.call, "__self__", None)
        call = other if resource is None else getattr(resource, other.__name__)
        await self._begin(asked)
        self._report_fallback(step, asked.instead)
        return await self.call_external(with_(step, record=asked, call=call), None, timeout_s)

    def _report_fallback(self, step: ExternalCall, instead: str) -> None:
        self.service.ports.outage_watch.report(
            FellBack(
                service=self.service.name,
                saga=self.processing.message.saga,
                handler=self.handler.name,
                step=step.record.name,
                instead=instead,
            )
        )

    def _is_fault(self, why: BaseException) -> bool | None:
        """Return True if the resource is to blame for a failed call; `None` if the call was abandoned before its
        timeout."""
        if isinstance(why, Exception) and self.failed_on is not None:
            return not isinstance(why, self.retry_rule(why).retry.never)
        is_late = isinstance(why, asyncio.CancelledError) and self.service.ports.clock.monotonic_s() >= self.until_s
        return True if is_late else None

    def _has_failed(self, why: BaseException) -> bool | None:
        """Return True if a call counts as failed for the call's own limits; `None` if it was abandoned."""
        return True if self.called_failure is not None and isinstance(why, Exception) else self._is_fault(why)

    async def call_external(
        self, step: ExternalCall, used: UsedResource | None, timeout_s: float, memory: LastGoodCache[Raw] | None = None
    ) -> StepRecord:
        """Make the call itself, within its timeout. `memory`: cache for the last good result."""
        asked = step.record
        clock, began = self.service.ports.clock, self.service.ports.clock.monotonic_s()
        spans, answers = self.processing.measurements.spans, self.service.expected_errors[self.handler.name]
        try:
            with self.processing.measurements.span("step", asked.name) as span:
                if spans is not None:
                    step = with_(step, trace=spans.header(span))
                call = _call_or_answer(self.service.ports.call_external(step), answers)
                value, answer = await clock.within(timeout_s, call)
        except BaseException as why:
            self.failed_on, self.called_failure = None if used is None else used.resource, why
            if not isinstance(why, TimeoutError):
                raise
            self.called_failure = TimeoutError(f"step {asked.name} gave no answer within {timeout_s} s")
            raise self.called_failure from why
        now_s = clock.monotonic_s()
        took_ms = (now_s - began) * 1000
        if answer is not None:
            answered = with_(record_answer(asked, answer, answers), ms=round(took_ms))
        else:
            given = encode_recorded(value, asked.name, "what it returned by", return_type_of(step.call))
            if memory is not None and len(memoryview(given)) <= self.service.bounds.value_bytes_max:
                memory.learn(self._digest, given, now_s)
            answered = with_(asked, value=self._encrypt_answer(asked, given), ms=round(took_ms))
        self.service.ports.outage_watch.report(
            StepDone(
                service=self.service.name,
                saga=self.processing.message.saga,
                handler=self.handler.name,
                step=asked.name,
                ms=took_ms,
            )
        )
        return answered

    def withdraw_refused_answer(self, why: Exception) -> None:
        """Withdraw the recorded answer `BreakerOpen` if the handler fails because of it. Then the attempt is postponed.

        An answer that is in a written intent stays.
        """
        if self._refused_answer is None or not isinstance(why, BreakerOpen):
            return
        number, left_s = self._refused_answer
        if self.replay.recorded <= number:
            del self.replay.calls[number:]
            self.postponed_s = left_s

    def retry_rule(self, why: Exception) -> FailureRule:
        """Return the retry rule for a failure. The rule of a resource applies only if a step that called the resource
        has failed."""
        if isinstance(why, NewerHandler):
            return NEWER
        if isinstance(why, UnknownSchema):
            return UNDEPLOYED
        used = self.failed_on
        return choose_rule(why, self.handler.retry, None if used is None else used.rule, self.service.declared.retry)

    # ---------------------------------------------------------------- redaction

    def _state_secrets(self) -> list[str]:
        """Return the sensitive strings of the state, as it was before the run and as it is now."""
        marks = self.service.state_marks
        if marks is None:
            return []
        return [*marks.texts(self.service.state_of(self._fields)), *marks.texts(self._state)]

    def secrets(self) -> list[str]:
        """Return the strings of all sensitive values that this run was given, so that reports about the run can hide
        them."""
        texts = []
        if self.service.sensitive:
            events = [event for event in self.given.values() if isinstance(event, Event)] or self._events()
            texts = [text for event in events for text in collect_secrets(event)]
        texts += self.hides
        texts += self._state_secrets()
        for type_, value in self.seen:
            if (marks := find_marks(type_)) is not None:
                texts += marks.texts(value)
        return texts

    def _with_arguments(
        self,
        asked: StepRecord,
        written: bytes,
        call: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
        *,
        first: int = 0,
    ) -> StepRecord:
        """Return the record of a call with its arguments as readable text, if they are short. `written`: the arguments
        as JSON.

        A run that was given any sensitive value, even a boolean, records no arguments, because values that its handler
        derives from the sensitive one could not be recognized.
        """
        if len(written) > recorded_values.ARGUMENT_BYTES_MAX or not (args or kwargs) or any(self.secrets()):
            return asked
        return with_(asked, arguments=recorded_values.describe_arguments(call, args, kwargs, first=first))

    def _events(self) -> list[Event]:
        """Decode the events of a run that is aborted, because the abort itself does not get them."""
        found = []
        for part in self.intent.parts:
            with suppress(BadInput, KeyError, KeyMissing):
                found.append(self.service.decode(self.handler.name, part))
        return found

    def describe(self, why: Exception) -> str:
        """Describe an exception without the sensitive values of this run."""
        return describe_exception(why, self.secrets())


async def _call_or_answer(
    call: Awaitable[object], answers: tuple[type[Exception], ...]
) -> tuple[object, Exception | None]:
    """Await a call. Return its result, or the expected error with which it answered.

    The error is caught here, within the time limit: the `TimeoutError` of the limit itself is no answer, even if
    `answers` contains `OSError` or `TimeoutError`. The call may have had its effect, so it has to be repeated. The same
    holds for an error that a client raises because it was cancelled, as by the limit.
    """
    try:
        return await call, None
    except answers as why:
        if _is_caused_by_cancellation(why) and is_cancelled():
            raise
        return None, why


def _is_caused_by_cancellation(why: BaseException | None) -> bool:
    """Return whether an exception was raised while a cancellation was handled, directly or through other exceptions."""
    while why is not None and not isinstance(why, asyncio.CancelledError):
        why = why.__context__
    return why is not None
