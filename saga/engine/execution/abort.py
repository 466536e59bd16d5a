"""An original that never finishes, half done: what it began is put out of reach, what it said with `on_abort` is done
in its place, and what nobody can undo is shown to a person."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from saga.declarations.returns import Nothing
from saga.declarations.values import Parameter
from saga.engine.errors import describe_exception
from saga.engine.execution import abort_actions, document_updates
from saga.engine.execution.failure_handling import RunRequest
from saga.engine.execution.handler_runner import admit
from saga.engine.execution.saga_context import RunningSaga
from saga.engine.persistence import progress_repository
from saga.engine.processing_state import ProcessingState, RunKey
from saga.engine.service_runtime import ServiceRuntime
from saga.messaging.operator_commands import Command
from saga.progress import compensation, ids, operator_commands
from saga.progress.actions import Abort
from saga.progress.document import Intent, SagaProgress, StepRecord
from saga.progress.journal import Commit, WriteContext
from saga.view import Saga


async def abort_run(service: ServiceRuntime, turn: ProcessingState, action: Abort) -> ProcessingState:
    """Close its documents to the original, take back what it said how to, and write down what remains of it."""
    remains, intent = await _describe_remains(service, turn, action.intent), action.intent
    if not intent.undo_with:
        return await progress_repository.commit(service, turn, _complete_abort, action, remains, ())

    async def take_back(saga: Saga[Any]) -> None:
        remains.extend(await _call_abort_actions(service, saga, intent))

    original = service.handlers[intent.handler]
    handler = replace(
        original,
        kind="compensation",
        function=take_back,
        parameters=(Parameter(name="saga", role="saga"),),
        emits=(),
        shape=Nothing(),
        version=intent.handler_version,
    )

    def complete(p: SagaProgress, hand: WriteContext, calls: tuple[StepRecord, ...]) -> Commit:
        return _complete_abort(p, hand, action, remains, calls)

    run: RunKey = ("lieu", intent.handler, intent.cause)
    return await admit(service, turn, RunRequest(action=action, handler=handler, run=run, ends=complete))


def _complete_abort(
    p: SagaProgress, hand: WriteContext, action: Abort, remains: Sequence[str], calls: tuple[StepRecord, ...]
) -> Commit:
    command = action.message
    if isinstance(command, Command):
        kept = next(k for k in p.queue if k.dead == command.dead)
        return operator_commands.discard_message(p, hand, command, kept, remains=remains, calls=calls)
    return compensation.complete_abort(p, hand, action.role, action.message, remains=remains, calls=calls)


async def _call_abort_actions(service: ServiceRuntime, saga: Saga[Any], intent: Intent) -> list[str]:
    """Make the calls with which a run is taken back, newest first; those that could not be made, or were refused."""
    left = []
    for said in reversed(intent.undo_with):
        try:
            if isinstance(saga, RunningSaga):
                said = await saga.seals.decrypt_abort_call(intent.handler, said)
                saga.hides += abort_actions.secrets_in(said)
            call, args, named = abort_actions.find_call(service, saga, said)
            await (call(*args, **named) if said.saga else saga.step(cast(Any, call), *args, **named))
        except abort_actions.NotFound as why:
            left.append(str(why))
        except service.expected_errors[intent.handler] as why:
            left.append(f"{said.call} was refused: {describe_exception(why)}")
    return left


async def _describe_remains(service: ServiceRuntime, turn: ProcessingState, intent: Intent) -> list[str]:
    """Calls of the original that nothing takes back, for a person to put right, newest first."""
    remains = []
    for call, sure in _find_begun_calls(intent):
        if call.kind == "step":
            how = "ran" if call.by is None else f"ran, as {call.by} says"
            remains.append(_describe(call, how if sure else "may have happened"))
        elif call.kind == "update" and not _is_declared(service, call):
            remains.append(_describe(call, "may have been applied, and this version declares no such collection"))
        elif call.kind == "update" and await _was_applied(service, turn, intent, call):
            remains.append(_describe(call, "was applied"))
    return remains + [_describe(c, "ran" if c.kind == "step" else "was applied") for c in reversed(intent.left)]


def _find_begun_calls(intent: Intent) -> list[tuple[StepRecord, bool]]:
    """Calls that the original began, newest first; true for those whose answer is known."""
    if intent.undo_with:  # the others are of what takes its place
        return [] if intent.maybe is None else [(intent.maybe, False)]
    calls = [(call, True) for call in intent.calls if call.answer is None]
    if (begun := intent.open_call) is not None:
        calls.append((begun, False))
    return calls[::-1]


def _is_declared(service: ServiceRuntime, call: StepRecord) -> bool:
    """Return whether the collection of an update is one of the service's: the name comes from a stored document, and
    nothing is written elsewhere."""
    collection = (call.document or "").partition("/")[0]
    return any(collection == declared.collection for declared in service.documents.values())


async def _was_applied(service: ServiceRuntime, turn: ProcessingState, intent: Intent, call: StepRecord) -> bool:
    """Return whether an update took effect; if not, it never will."""
    assert call.document is not None
    saga = turn.message.saga
    collection, _, key = call.document.partition("/")
    marker = ids.update_id(service.name, saga, intent.handler, intent.cause, call.name, call.number)
    mark = document_updates.Marker(saga=saga, handler=intent.handler, kind="do", cause=intent.cause, never=True)
    found = await document_updates.withdraw(service, turn.position, collection, key, marker, mark)
    return not found.never and found.answer is None


def _describe(call: StepRecord, what: str) -> str:
    if not call.name:
        return f"and {call.number} before these, which `saga sagas show --steps` tells, {what}"
    where = f" on {call.document}" if call.document else ""
    return f"{call.in_words}{where} {what}"
