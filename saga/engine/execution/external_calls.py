"""Calls to the outside that one run of a handler makes: within their time, when their limits and those of their
resource let them through, and with what became of them."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable
from typing import Any

from msgspec import Raw
from msgspec.structs import replace as with_

from saga.declarations.annotations import returns_of
from saga.declarations.limits import Limits
from saga.declarations.values import Reaction, Resource
from saga.engine.execution.value_codec import ValueCodec, place_of_call
from saga.engine.known_schemas import READ_S_MIN
from saga.engine.limits import CallNotAdmitted
from saga.engine.ports import ExternalCall
from saga.engine.processing_state import ProcessingState, RunKey
from saga.engine.recorded_values import encode_recorded, record_answer
from saga.engine.service_runtime import ServiceRuntime, UsedResource
from saga.errors import BreakerOpen, NewerHandler, UnknownSchema
from saga.policies.last_good import LastGoodCache
from saga.policies.retry import RETRY, Retry, Rule, rule_for
from saga.progress.document import StepRecord
from saga.telemetry.events import FellBack, StepDone
from saga.view import Saga

REMEMBERED = "remembered"
"""Way by which an answer came that was given before."""

UNDEPLOYED = Rule(UnknownSchema.__name__, Retry(attempts_max=10, delay_s_first=READ_S_MIN, in_place_s=0))
"""Rules for a message of a schema that is not deployed here, whatever others say. It is tried without end: people are
told after each so many attempts."""
NEWER = Rule(NewerHandler.__name__, RETRY)
"""Rules for a run that a newer version of its handler began, whatever others say: it waits for a release."""


class Calling(Saga[Any]):
    """Part of a running saga that calls the outside."""

    service: ServiceRuntime
    turn: ProcessingState
    handler: Reaction
    run: RunKey
    begun_s: float
    """Time at which it began."""
    calls: list[StepRecord]
    """Answers of the outside so far, recorded or carried over."""
    seals: ValueCodec
    """Keys with which what it records is sealed."""
    failed_on: Resource | None = None
    """Resource on which that step was a call."""
    outside: BaseException | None = None
    """Exception of what the step called, or that it gave no answer; `None`: it failed otherwise."""
    put_off_s: float | None = None
    """Seconds after which to try again, if that step was not let through: the attempt does not count."""
    _refused: tuple[int, float] | None = None
    """The same for one whose handler is told so as an answer; with its number."""
    _recorded: int

    @property
    def until_s(self) -> float:
        """Time at which the handler's time is over."""
        return self.begun_s + self.handler.timeout_s

    _digest: str
    """Digest of the arguments of the call that is asked for, as it is without keys."""

    @property
    @abstractmethod
    def _begun_before(self) -> StepRecord | None:
        """The call that is asked for, if it has begun in an earlier attempt: nobody knows what came of it."""

    @abstractmethod
    async def _begin(self, asked: StepRecord) -> None:
        """Make the intent durable, with all answers so far: nothing new begins before."""

    async def let_through(self, step: ExternalCall, used: UsedResource | None, limits: Limits | None) -> StepRecord:
        """Make a call when its own limits let it through, and then those of its resource. Nothing is written before.

        Its own turn comes first: who waited for it with a place at the resource would keep others from that."""
        timeout_s = self.handler.timeout_s if used is None else used.resource.timeout_s
        if limits is not None and limits.timeout_s is not None:
            timeout_s = limits.timeout_s
        at, latest_s = self.turn.position, self.until_s - min(timeout_s, self.handler.timeout_s / 2)
        begun = self._begun_before
        if begun is not None and begun.instead and limits is not None:
            return await self._another_way(step, limits, timeout_s)
        memory = None if limits is None else self.service.memory_of(limits, used)

        async def make() -> StepRecord:
            await self._begin(step.record)
            return await self.made(step, used, timeout_s, memory)

        def at_resource() -> Awaitable[StepRecord]:
            if used is None or not used.limiter.is_needed:
                return make()
            return used.limiter.through(make, at, latest_s, self._is_fault)

        own = None if limits is None else self.service.limiter_of(step.record.name, limits, used)
        try:
            if own is None:
                return await at_resource()
            if used is not None:
                used.limiter.check_closed()  # who would be refused there takes no turn here
            return await own.through(at_resource, at, latest_s, self._has_ended)
        except CallNotAdmitted as refusal:
            if begun is None:  # else it may have happened, and another way could do it twice
                remembered = None if memory is None else self._remembered(step, memory)
                if remembered is not None:
                    return remembered
                if limits is not None and limits.fallback is not None and memory is None:
                    return await self._another_way(step, limits, timeout_s)
                if used is not None and isinstance(refusal.why, used.resource.expected_errors):
                    self._refused = (len(self.calls), refusal.left_s)
                    return record_answer(step.record, refusal.why, used.resource.expected_errors)
            self.put_off_s = refusal.left_s
            raise refusal.why from None

    def _seal_answer(self, asked: StepRecord, value: Raw) -> Raw:
        """Seal what is marked in the answer to a call."""
        return self.seals.encrypt_raw(value, place_of_call(self.run, asked))

    def _remembered(self, step: ExternalCall, memory: LastGoodCache[Raw]) -> StepRecord | None:
        """Answer with what the call gave last for these arguments; `None` if that is not known, or too old."""
        value = memory.recall(self._digest, self.service.ports.clock.monotonic_s())
        if value is None:
            return None
        self._falls_back(step, REMEMBERED)
        return with_(step.record, value=self._seal_answer(step.record, value), instead=REMEMBERED)

    async def _another_way(self, step: ExternalCall, limits: Limits, timeout_s: float) -> StepRecord:
        """Call the function that stands in for a call, under an intent that says so: a rerun goes the same way."""
        other = limits.fallback
        assert callable(other)
        asked = with_(step.record, instead=other.__name__)
        resource = getattr(step.call, "__self__", None)
        call = other if resource is None else getattr(resource, other.__name__)
        await self._begin(asked)
        self._falls_back(step, asked.instead)
        return await self.made(with_(step, record=asked, call=call), None, timeout_s)

    def _falls_back(self, step: ExternalCall, instead: str) -> None:
        self.service.ports.outage_watch.report(
            FellBack(
                service=self.service.name,
                saga=self.turn.message.saga,
                handler=self.handler.name,
                step=step.record.name,
                instead=instead,
            )
        )

    def _is_fault(self, why: BaseException) -> bool | None:
        """Return whether it is a resource's fault that a call failed; `None`: nobody knows."""
        if isinstance(why, Exception) and self.failed_on is not None:
            return not isinstance(why, self.rule(why).retry.never)
        is_late = isinstance(why, asyncio.CancelledError) and self.service.ports.clock.monotonic_s() >= self.until_s
        return True if is_late else None

    def _has_ended(self, why: BaseException) -> bool | None:
        """Return that a call has failed, which says how long it lasted; `None`: it was refused, or given up."""
        return True if self.outside is not None and isinstance(why, Exception) else self._is_fault(why)

    async def made(
        self, step: ExternalCall, used: UsedResource | None, timeout_s: float, memory: LastGoodCache[Raw] | None = None
    ) -> StepRecord:
        """Make the call itself, within its time. `memory`: takes note of what it gives."""
        asked = step.record
        clock, began = self.service.ports.clock, self.service.ports.clock.monotonic_s()
        spans, answers = self.turn.measurements.spans, self.service.expected_errors[self.handler.name]
        try:
            with self.turn.measurements.span("step", asked.name, answers=answers) as span:
                if spans is not None:
                    step = with_(step, trace=spans.header(span))
                value = await clock.within(timeout_s, self.service.ports.call_external(step))
        except answers as why:
            answered = record_answer(asked, why, answers)
            took_ms = (clock.monotonic_s() - began) * 1000
            answered = with_(answered, ms=round(took_ms))
        except BaseException as why:
            self.failed_on, self.outside = None if used is None else used.resource, why
            if not isinstance(why, TimeoutError):
                raise
            self.outside = TimeoutError(f"step {asked.name} gave no answer within {timeout_s} s")
            raise self.outside from why
        else:
            now_s = clock.monotonic_s()
            took_ms = (now_s - began) * 1000
            given = encode_recorded(value, asked.name, "what it returned by", returns_of(step.call))
            if memory is not None and len(memoryview(given)) <= self.service.bounds.value_bytes_max:
                memory.learn(self._digest, given, now_s)
            answered = with_(asked, value=self._seal_answer(asked, given), ms=round(took_ms))
        self.service.ports.outage_watch.report(
            StepDone(
                service=self.service.name,
                saga=self.turn.message.saga,
                handler=self.handler.name,
                step=asked.name,
                ms=took_ms,
            )
        )
        return answered

    def lets_pass(self, why: Exception) -> bool:
        """Return whether the handler was told that a breaker is open, and fails with it. Then that is no answer, unless
        it is written already."""
        if self._refused is None or not isinstance(why, BreakerOpen):
            return False
        number, left_s = self._refused
        if self._recorded > number:
            return False
        del self.calls[number:]
        self.put_off_s = left_s
        return True

    def rule(self, why: Exception) -> Rule:
        """Rules for trying it again: those of a resource only if it is a step on it that failed."""
        if isinstance(why, NewerHandler):
            return NEWER
        if isinstance(why, UnknownSchema):
            return UNDEPLOYED
        used = self.failed_on
        return rule_for(why, self.handler.retry, None if used is None else used.rule, self.service.declared.retry)
