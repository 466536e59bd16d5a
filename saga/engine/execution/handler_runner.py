"""Call a handler or a compensation once, and return how it ended. The only writes here are checkpoints of steps."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from math import ceil
from typing import Any, NamedTuple, TypeAlias

from msgspec.structs import replace

from saga.declarations.values import Parameter, Reaction
from saga.engine.errors import Halted, Superseded, wrap_base_exception
from saga.engine.execution.runs import AttemptFailed, RunRequest
from saga.engine.execution.saga_context import SagaContext
from saga.engine.execution.value_codec import ValueCodec
from saga.engine.persistence.progress_repository import ProgressRepository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import EncodedEvent
from saga.errors import KeyMissing, NewerHandler, Permanent
from saga.messages import Event, Message, name_of
from saga.progress.document import Intent, SuspendedRun
from saga.support.clock import in_own_task

_MS = timedelta(milliseconds=1)
_LONGEST_MS = timedelta.max // _MS


class RunResult(NamedTuple):
    """A run that has ended or was suspended."""

    context: SagaContext
    """The handler's `SagaContext`: its answers, its time, and the progress after the last checkpoint."""
    events: list[EncodedEvent]
    changed_state: dict[str, Any]
    suspended: SuspendedRun | None = None
    """How the run continues; `None` if it has ended."""


class RunSuperseded(NamedTuple):
    """A run that was stopped because a checkpoint was refused: another worker has changed the progress."""

    state: ProcessingState
    """State from which the next action is decided again, with the answers that a rerun can reuse."""


RunOutcome: TypeAlias = RunResult | AttemptFailed | RunSuperseded
"""How a run ended."""


class HandlerRunner:
    """Calls user code. It keeps no state between calls."""

    def __init__(self, repository: ProgressRepository) -> None:
        """`repository`: writes the checkpoints of steps."""
        self.service, self.repository = repository.service, repository

    async def run(self, state: ProcessingState, request: RunRequest) -> RunOutcome:
        """Call the handler once.

        Raises `Draining` if the worker has to stop, and `SagaError` if the store cannot be read. In both cases the run
        is repeated.
        """
        p = state.loaded_progress
        context = await self.open(state, request, request.find_intent(p) or request.make_intent(p))
        measured, work = state.measurements, self.call(context)
        try:
            try:
                if (spans := measured.spans) is not None:
                    work = spans.around("handler", request.handler.name, work, context.intent.parts)
                return await work
            except Exception as why:
                if context.halt is why:
                    raise
                if context.halt is not None:
                    raise context.halt from why
                if self.service.ports.assignment.is_abandoned():  # a client may raise an error because it is cancelled
                    raise asyncio.CancelledError from why
                return self.make_failure(context, why)
            finally:
                measured.handler_s += self.service.ports.clock.monotonic_s() - context.begun_s
        except Superseded:
            return RunSuperseded(self.carry(context).drop_progress())

    async def open(self, state: ProcessingState, request: RunRequest, intent: Intent) -> SagaContext:
        """Create the `SagaContext` of a run and decrypt everything that the handler receives.

        If a value cannot be decrypted, for example because a key is missing, nothing is raised here. The error is kept
        in `ValueCodec.trouble`, and the attempt fails when the run decrypts its messages.
        """
        service, codec = self.service, ValueCodec(self.service, state, intent.state)
        # A service without keys, sensitive fields and migrations has nothing to decrypt or convert.
        if service.is_private or service.migrations or service.ports.keys is not None:
            try:
                await codec.open(request.handler.name, intent, state.loaded_progress)
            except (KeyMissing, Permanent) as why:
                codec.state, codec.trouble = {}, why
                intent = replace(intent, version=service.version)
        return SagaContext(self.repository, state, request, intent, codec)

    def make_failure(self, context: SagaContext, error: Exception) -> AttemptFailed:
        """Describe a failed attempt."""
        reason, service = context.describe(error), self.service
        if context.postponed_s is None:
            context.withdraw_refused_answer(error)
        return AttemptFailed(
            state=context.processing,
            error=error,
            reason=reason,
            secrets=tuple(context.secrets()),
            rule=context.retry_rule(error),
            is_of_call=error is context.called_failure,
            postponed_s=context.postponed_s,
            duration_s=service.ports.clock.monotonic_s() - context.begun_s,
            outages=context.outages,
            reusable_answers=context.reusable_answers,
            answers=context.replay.answers,
            abort_actions=context.abort_actions,
            recorded=context.intent.calls,
        )

    def carry(self, context: SagaContext) -> ProcessingState:
        """Return the state after a run, with the answers that a rerun can reuse."""
        state = context.processing
        return state.carry(context.run, context.reusable_answers, state.attempts_of(context.run))

    async def call(self, context: SagaContext) -> RunResult:
        """Call the handler and encode its result. Raises every error that fails the attempt."""
        service, handler, intent = self.service, context.handler, context.intent
        try:
            if context.version > handler.version and not context.replay.is_resolved:
                raise NewerHandler(handler.name, context.version, handler.version)
            parts = context.codec.decrypt_parts(intent.parts)
            context.given = arguments = self._arguments(context, parts)
            work = handler.function(**arguments)
            returned = await service.ports.clock.within(
                handler.timeout_s, work if service.ports.has_run_tasks else in_own_task(work)
            )
        except TimeoutError as why:
            if context.failure is not None:
                raise context.failure from why
            raise TimeoutError(f"{handler.name} took longer than its timeout_s={handler.timeout_s}, or: {why}") from why
        except asyncio.CancelledError as why:
            if service.ports.assignment.is_abandoned():
                context.is_abandoned = True
                raise
            if context.failure is not None:
                raise context.failure from why
            # This run was not cancelled: something that the handler waited for was, which is a failure like any other.
            raise RuntimeError(f"{handler.name} waited for something that was cancelled") from why
        except ExceptionGroup as why:  # from a task group: what is inside is more specific, and retry rules name that
            error = context.failure or _find_single(why)
            raise error from error.__cause__
        except (Exception, Halted, GeneratorExit, KeyboardInterrupt):
            raise
        except BaseException as why:  # it would end this process and, after redelivery, the next one
            # A task group wraps what its steps raise, and a halt is not an `Exception` either.
            raise context.halt or context.failure or wrap_base_exception(why, handler.name) from why
        finally:
            service.ports.assignment.forget_cancellations()
            if context.has_begun:
                await context.settle()
            context.has_ended = True
        if context.halt is not None:
            raise context.halt
        if context.failure is not None:
            raise context.failure
        context.replay.check_exhausted()
        events = handler.events_of(returned)
        if len(events) > 1:
            self._check_one_outcome(handler, events)
        encoded = [service.encode(event, context.processing.message.saga) for event in events]
        if service.ports.keys is not None:
            encoded = [await context.codec.encrypt_event(event, *e) for event, e in zip(events, encoded, strict=True)]
        suspended = self._suspend(context, returned) if handler.may_wait else None
        return RunResult(context, encoded, context.changed_state(), suspended)

    def _suspend(self, context: SagaContext, returned: object) -> SuspendedRun | None:
        """Return how the run continues; `None` if it has ended. Raises `Permanent` if the run would wait too long."""
        service, handler = self.service, context.handler
        later = handler.wait_of(returned)
        if later is None:
            return None
        until = () if later.until is None or not issubclass(later.until, Event) else (name_of(later.until),)
        c = context.suspended_run
        first_ms = context.time_ms if c is None else c.first_ms
        due_ms = context.time_ms + ceil(later.after / _MS)
        if due_ms - first_ms > service.retention_s * 1000:
            raise Permanent(
                f"{handler.name} returned {later!r}, and would have waited for "
                f"{min(due_ms - first_ms, _LONGEST_MS) * _MS} then: no handler waits longer in all than the retention "
                f"of {service.name!r}, {timedelta(seconds=service.retention_s)}. Give the service a longer retention="
            )
        return SuspendedRun(
            handler=handler.name,
            parts=context.intent.parts[: len(service.roles.handlers[handler.name].takes)],
            n=0,
            turn=1 if c is None else c.turn + 1,
            handler_version=context.version,
            first_ms=first_ms,
            seen_ms=context.time_ms,
            due_ms=due_ms,
            awaited_types=until,
            undo_with=context.abort_actions,
        )

    def _check_one_outcome(self, handler: Reaction, events: Sequence[Event]) -> None:
        outcomes = [name for name in map(name_of, map(type, events)) if name in self.service.roles.outcomes]
        if len(outcomes) > 1:
            raise Permanent(
                f"{handler.name} returned {' and '.join(outcomes)}: a saga ends with one outcome; return one"
            )

    def _arguments(self, context: SagaContext, parts: Sequence[Message]) -> Mapping[str, object]:
        """Return the handler's arguments by name."""
        arguments: dict[str, object] = {}
        service, handler = self.service, context.handler
        classes = service.classes[handler.name]
        for parameter in handler.parameters:
            if parameter.role == "event":
                if parameter.optional or len(parts) != 1:
                    part = next((m for m in parts if classes.get(m.type) in parameter.events), None)
                else:
                    part = parts[0]  # the event, or one that can never be decoded: then nothing else is looked for
                if part is None and not parameter.optional:
                    raise Permanent(_missing_argument(handler, parameter))
                arguments[parameter.name] = None if part is None else service.given(handler.name, part)
            elif parameter.role == "saga":
                arguments[parameter.name] = context
            else:
                assert parameter.gives is not None
                arguments[parameter.name] = service.resources[parameter.gives]
        return arguments


def _find_single(why: ExceptionGroup[Exception]) -> Exception:
    """Return the exception in a group that has only one; otherwise the group. A group of a class of its own stays,
    because a retry rule may name that class."""
    inner, *others = why.exceptions
    if others or type(why) is not ExceptionGroup:
        return why
    return _find_single(inner) if isinstance(inner, ExceptionGroup) else inner


def _missing_argument(handler: Reaction, parameter: Parameter) -> str:
    """Describe why a compensation cannot get a message that its handler consumed."""
    names = " | ".join(event.__name__ for event in parameter.events)
    return (
        f"{handler.name} takes {names}, which {handler.undoes} took, and that is not kept with what it did: the "
        f"release that did it did not name it. Let {handler.name} take {names} | None, or roll back until it is undone"
    )
