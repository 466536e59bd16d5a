"""Beginning of a turn: the message in hand and the progress, as this version of the service can read them."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from saga.contracts.encryption import split_encrypted
from saga.encryption.text import find_key_names
from saga.engine.foreign_values import check_schema
from saga.engine.persistence import progress_repository
from saga.engine.prepared_service import PreparedService
from saga.engine.processing_state import HeldBack, Measurements, ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import BadInput, SchemaUnasked
from saga.messages import Message, Position
from saga.messaging.operator_commands import Command
from saga.progress import journal
from saga.progress.actions import NO_HANDLERS
from saga.progress.document import PendingMessage, SagaProgress
from saga.progress.handlers import HandlerRole
from saga.support.clock import from_iso
from saga.telemetry.events import StartInFuture

UNJUDGED: Mapping[str, str] = {"": "a schema registry has to be asked first"}
"""Mark of a message of which nobody can tell yet who can decode it: the turn finds out."""


def begin(
    service: ServiceRuntime,
    message: Message,
    position: Position,
    cached: tuple[SagaProgress, int] | None,
    stages: Measurements | None = None,
) -> ProcessingState:
    """State of a new turn, on what the cache has; for a message that starts a young saga, without a read."""
    p, cas = cached or (None, 0)
    if p is None:
        if message.type in service.starts and not progress_repository.is_older_than_retention(service, message):
            p = journal.new_progress(service.name, message.saga, service.version)
            if message.started is not None and message.started > progress_repository.decision_time(service).future:
                _report_future(service, message, message.started)
    elif p.started is None and progress_repository.is_older_than_retention(service, message):
        p, cas = None, 0
    # Looked at only where the message may have to wait: it waits for nothing if it can never be decoded.
    bad: Mapping[str, str] = NO_HANDLERS
    if message.started is None or message.type in service.roles.joined:
        try:
            bad = _find_undecodable(service, message)
        except SchemaUnasked:
            bad = UNJUDGED
    return ProcessingState(
        message=message, position=position, bad=bad, progress=p, cas=cas, measurements=stages or Measurements()
    )


def _report_future(service: ServiceRuntime, message: Message, started: str) -> None:
    """Tell people, once, of a saga that begins far ahead of this worker's clock."""
    watching = service.ports.outage_watch
    if watching.is_news(f"{message.saga} begins at {started}"):
        ahead_s = (from_iso(started) - service.ports.clock.now_ms()) / 1000
        watching.report(
            StartInFuture(
                service=service.name,
                saga=message.saga,
                message=message.id,
                type=message.type,
                begins=started,
                ahead_s=ahead_s,
            )
        )


def judge_decodable(service: PreparedService, turn: ProcessingState) -> ProcessingState:
    """Turn in which it is found out again who can decode the message: its schema may have been deployed meanwhile."""
    return replace(turn, bad=_find_undecodable(service, turn.message))


def _find_undecodable(service: PreparedService, message: Message) -> Mapping[str, str]:
    """Handlers that would have the message wait and can never decode it, each with the reason."""
    if isinstance(message, Command) and message.original is not None:
        message = message.original
    takers = service.roles.by_type.get(message.type, ())
    waits = [role for role in takers if role.is_joined() or message.started is None]
    return {role.name: why for role in waits if (why := why_undecodable(service, role, message)) is not None}


def why_undecodable(service: PreparedService, role: HandlerRole, message: Message) -> str | None:
    """Reason why the handler cannot decode the message; `None` if it can."""
    try:
        if not find_key_names(message.value):
            service.given(role.name, message)
        elif (parts := split_encrypted(message.value)) is not None and parts[
            0
        ]:  # nobody can tell the rest without its key
            check_schema(parts[0], service.schemas.library, service.schemas.writers.get)
        else:  # what is inside of a sealed document nobody can tell without its key
            service.decode(role.name, message)
    except BadInput as why:
        return str(why)
    return None


def hold_back(p: SagaProgress, stopped: Sequence[HeldBack], now_ms: int) -> SagaProgress:
    """Progress in which what is stopped is due later, whatever its time: what else there is goes on, and the current
    wake is sent on. Nothing is written down for it, or a pause of days would fill the history."""
    for handler, undoes, due_ms, message in stopped:
        at = max(due_ms, now_ms + 1)
        if undoes:
            p = replace(p, compensating=_move_due(p.compensating, handler, message, at))
        else:
            later = tuple(
                replace(c, due_ms=max(c.due_ms, at))
                if c.handler == handler and message in ("", *[m.id for m in c.parts])
                else c
                for c in p.later
            )
            queue, waits = _move_due(p.queue, handler, message, at), _move_due(p.deadlines, handler, message, at)
            p = replace(p, queue=queue, deadlines=waits, later=later)
    return p


def _move_due(kept: tuple[PendingMessage, ...], handler: str, message: str, due_ms: int) -> tuple[PendingMessage, ...]:
    return tuple(
        replace(k, due_ms=max(k.due_ms, due_ms), delay_ms=due_ms)  # however long: nobody's clock is wrong
        if k.handler == handler and k.due_ms and message in ("", k.message.id)
        else k
        for k in kept
    )


def read_progress(service: PreparedService, turn: ProcessingState, now_ms: int) -> SagaProgress | None:
    """Progress as this version of the service reads it: the first message in the queue, if it could not be decoded when
    it came, is decoded anew, for this version may know its schema."""
    if turn.progress is None or not (turn.recalled or turn.held_back or turn.progress.queue):
        return turn.progress  # nearly always
    p = hold_back(turn.loaded_progress, turn.held_back, now_ms) if turn.held_back else turn.loaded_progress
    if not p.queue or p.queue[0].bad is None:
        return p
    head = p.queue[0]
    bad = why_undecodable(service, service.roles.handlers[head.handler], head.message)
    return replace(p, queue=(replace(head, bad=bad), *p.queue[1:]))
