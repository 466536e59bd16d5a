"""Messages, handlers and progresses as pure values, for tests of decisions."""

from saga.messages import Message, Position
from saga.progress.document import CompletedRun, Intent, PendingMessage, SagaProgress
from saga.progress.handlers import CompensationRole, HandlerRole, HandlerRoles
from saga.progress.journal import WriteContext

NOW_MS = 1_795_270_000_000
START = "2026-11-21T14:00:00.000Z"


def a_message(type_: str = "A", id: str = "", value: bytes = b"1", started: str | None = START) -> Message:
    return Message(
        id=id or f"{type_}-{value.decode()}",
        type=type_,
        schema=f"things/{type_}.v1",
        saga="s",
        source="other",
        time=START,
        value=value,
        started=started,
    )


def a_role(
    name: str, *takes: str, many: bool = False, decides: bool = False, undo: CompensationRole | None = None
) -> HandlerRole:
    """`takes`: for each parameter its types, as in `"A B"`."""
    types = tuple(frozenset(parameter.split()) for parameter in takes)
    return HandlerRole(name=name, takes=types, many=many, decides=decides, undo=undo)


def roles_of(*roles: HandlerRole, outcomes: str = "", emitted: str = "") -> HandlerRoles:
    return HandlerRoles("svc", roles, outcomes=frozenset(outcomes.split()), emitted=frozenset(emitted.split()))


def a_hand(
    message: Message, *, roles: HandlerRoles | None = None, now_ms: int = NOW_MS, retention_s: int = 100
) -> WriteContext:
    position = Position("things", 0, 0)
    roles = roles or roles_of()
    return WriteContext(
        message=message,
        position=position,
        roles=roles,
        self_consumed_types=roles.self_consumed_types,
        now_ms=now_ms,
        retention_s=retention_s,
    )


def blank(started: str | None = START) -> SagaProgress:
    return SagaProgress(service="svc", saga="s", started=started)


def kept(handler: str, message: Message, n: int = 0, dead: str | None = None) -> PendingMessage:
    return PendingMessage(handler=handler, message=message, n=n, dead=dead)


def an_intent(handler: str, *parts: Message) -> Intent:
    cause = "+".join(sorted(part.id for part in parts))
    return Intent(handler=handler, kind="do", cause=cause, message=parts[0], parts=parts, state={}, time=START)


def ran(handler: str, message: Message, content: str, parameter: int = 0) -> CompletedRun:
    return CompletedRun(
        handler=handler,
        parameter=parameter,
        type=message.type,
        schema=message.schema,
        content=content,
        message=message.id,
    )
