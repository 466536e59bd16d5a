"""Abort a run that never finishes: make the calls that it declared with `saga.on_abort`.

Pending updates of its documents are prevented, the declared calls are made, and the effects that no call undoes are
reported to an operator.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from saga.declarations.annotations import NothingReturned
from saga.declarations.values import Parameter
from saga.engine.errors import describe_exception
from saga.engine.execution import document_updates
from saga.engine.execution.abort_actions import NotFound, find_call, secrets_in
from saga.engine.execution.runs import RunRequest
from saga.engine.execution.saga_context import SagaContext
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.messaging.operator_commands import OperatorCommand
from saga.progress import compensation, ids, operator_commands
from saga.progress.actions import Abort
from saga.progress.document import ABORT, Intent, SagaProgress, StepRecord
from saga.progress.journal import Commit, WriteContext


def make_abort_request(service: ServiceRuntime, action: Abort) -> RunRequest:
    """Make the request for the calls that a run declared with `on_abort`."""
    intent, remains = action.intent, list[str]()

    async def take_back(saga: SagaContext) -> None:
        remains.extend(await _call_abort_actions(service, saga, intent))

    handler = replace(
        service.handlers[intent.handler],
        kind="compensation",
        function=take_back,
        parameters=(Parameter(name="saga", role="saga"),),
        emits=(),
        shape=NothingReturned(),
        version=intent.handler_version,
    )
    return RunRequest(action=action, handler=handler, run=(ABORT, intent.handler, intent.cause), remains=remains)


async def close_documents(service: ServiceRuntime, state: ProcessingState, intent: Intent) -> list[str]:
    """Prevent pending document updates of a run. Returns descriptions of the calls that nothing undoes, newest first,
    for an operator to correct.

    Raises `Permanent` if a document cannot be read or marked.
    """
    remains = []
    for call, sure in _find_begun_calls(intent):
        if call.kind == "step":
            remains.append(_describe(call, f"ran{call.attribution}" if sure else "may have happened"))
        elif call.kind == "update" and not _is_declared(service, call):
            remains.append(_describe(call, "may have been applied, and this version declares no such collection"))
        elif call.kind == "update" and await _was_applied(service, state, intent, call):
            remains.append(_describe(call, "was applied"))
    return remains + [
        _describe(call, f"ran{call.attribution}" if call.kind == "step" else "was applied")
        for call in reversed(intent.not_undone)
    ]


def record_abort(
    p: SagaProgress, context: WriteContext, action: Abort, remains: Sequence[str], calls: tuple[StepRecord, ...]
) -> Commit:
    """Record that a run was aborted, and which of its effects remain for an operator to correct."""
    command = action.message
    if isinstance(command, OperatorCommand):
        pending = next(k for k in p.queue if k.dead == command.dead)
        return operator_commands.discard_message(p, context, command, pending, remains=remains, calls=calls)
    return compensation.complete_abort(p, context, action.role, action.message, remains=remains, calls=calls)


async def _call_abort_actions(service: ServiceRuntime, context: SagaContext, intent: Intent) -> list[str]:
    """Make the calls that undo a run, newest first. Returns descriptions of those that could not be made, or were
    refused."""
    left = []
    for action in reversed(intent.undo_with):
        try:
            action = await context.codec.decrypt_abort_call(intent.handler, action)
            context.hides += secrets_in(action)
            call, args, named = find_call(service, context, action)
            await (call(*args, **named) if action.saga else context.step(cast(Any, call), *args, **named))
        except NotFound as why:
            left.append(str(why))
        except service.expected_errors[intent.handler] as why:
            left.append(f"{action.call} was refused: {describe_exception(why)}")
    return left


def _find_begun_calls(intent: Intent) -> list[tuple[StepRecord, bool]]:
    """Return the calls that the run began, newest first, each with True if its answer is known."""
    if intent.undo_with:  # then `calls` are the calls of the abort
        return [] if intent.unanswered_call is None else [(intent.unanswered_call, False)]
    calls = [(call, True) for call in intent.calls if call.answer is None]
    if (begun := intent.open_call) is not None:
        calls.append((begun, False))
    return calls[::-1]


def _is_declared(service: ServiceRuntime, call: StepRecord) -> bool:
    """Return whether the service declares the collection of an update. The collection's name comes from a stored
    document."""
    collection = (call.document or "").partition("/")[0]
    return any(collection == declared.collection for declared in service.documents.values())


async def _was_applied(service: ServiceRuntime, state: ProcessingState, intent: Intent, call: StepRecord) -> bool:
    """Return True if an update took effect. Otherwise mark it in the document, so that it never will."""
    assert call.document is not None
    saga = state.message.saga
    collection, _, key = call.document.partition("/")
    marker = ids.update_id(service.name, saga, intent.handler, intent.cause, call.name, call.number)
    mark = document_updates.Marker(saga=saga, handler=intent.handler, kind="do", cause=intent.cause, never=True)
    found = await document_updates.withdraw(service, state.position, collection, key, marker, mark)
    return not found.never and found.answer is None


def _describe(call: StepRecord, what: str) -> str:
    if not call.name:
        return f"and {call.number} before these, listed by `saga sagas show --steps`, {what}"
    where = f" on {call.document}" if call.document else ""
    return f"{call.description}{where} {what}"
