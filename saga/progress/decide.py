"""What to do with a message, and what is ready: the table of docs/protocol.md, line by line. Pure.

`Decision` says what to do and why; the runtime does it, `saga.progress.record` writes it down.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from types import MappingProxyType

from msgspec import Struct

from saga.messages import Message
from saga.progress import ids
from saga.progress.document import Intent, Kept, Kind, Snapshot
from saga.progress.roles import Role, Roles, undo_name


class Do(Enum):
    """What a decision says to do with a message for a handler."""

    NOTHING = "nothing"
    """It is in the inbox."""
    LEAVE = "leave"
    """It is kept already; settle goes on with it when it is ready."""
    GO_ON = "go on"
    """Its intent is open."""
    IGNORE = "ignore"
    OTHER = "dead letter: other content"
    OLD = "dead letter: older than memory"
    WAIT = "wait"
    QUEUE = "queue"
    RUN = "run"


class Decision(Struct, frozen=True, gc=False):
    """What to do, and the reason that people will read."""

    do: Do
    reason: str | None = None
    intent: Intent | None = None
    parts: tuple[Message, ...] = ()
    """For `RUN`: one for each event parameter of the handler."""


NOTHING, LEAVE = Decision(Do.NOTHING), Decision(Do.LEAVE)


def decide(
    p: Snapshot, role: Role, message: Message, *, in_hand: bool, bad: bool = False, forgotten: str = ""
) -> Decision:
    """The first line of the table that holds. `bad`: the handler cannot decode the message, so it waits for nothing.
    `forgotten`: a message from before this time may have been handled and be out of the inbox again.
    """
    if p.inbox and ids.entry(message.id, role.name) in p.inbox:  # line 1
        return NOTHING
    if (p.queue or p.waiting) and in_hand and kept(p, role.name, message):  # line 1a
        return LEAVE
    if p.intents:  # line 2
        if intent_with(p, role.name, message, "lieu") is not None:
            return LEAVE
        intent = intent_with(p, role.name, message)
        if intent is not None:
            return Decision(Do.GO_ON, intent=intent, parts=intent.parts)
    ended = why_over(p, role)
    if ended is not None:  # line 3
        return Decision(Do.IGNORE, ended)
    index = role.parameter_of(message.type)
    if p.ran or p.waiting or p.own:  # line 4
        repeated = _repetition(p, role, index, message)
        if repeated is not None:
            return repeated
    if p.started is None and message.started is None and not bad:
        return Decision(Do.WAIT, "no message has told yet when this saga began")
    if role.many and index == 0 and message.time < forgotten:
        return Decision(Do.OLD, f"older than memory: it is of {message.time}, and may have been handled then")
    parts = (message,) if bad or len(role.takes) == 1 else parts_with(p, role, message)
    if parts is None:  # line 5
        return Decision(Do.WAIT, f"for {missing(p, role, message)}")
    if role.many and index == 0 and p.waiting and not bad and waits_before(p, role, message):
        return Decision(Do.WAIT, "earlier ones wait and go first")
    if is_blocked(p, role.name, message):  # line 6
        return Decision(Do.QUEUE, why_blocked(p, role.name))
    return Decision(Do.RUN, parts=parts)  # line 7


def why_over(p: Snapshot, role: Role) -> str | None:
    """Line 3: why the handler runs no more in this saga; `None` if it may."""
    if role.name in p.closed:
        return "its compensation has closed this handler"
    if role.undo is not None and not role.undo.outcomes.isdisjoint(_failures(p, role)):
        return f"the saga has failed, and nobody would undo {role.name}"  # taken by a version without this handler
    if role.decides and p.outcome is not None:
        return f"the saga has ended here with {p.outcome}"
    return None


def _failures(p: Snapshot, role: Role) -> Iterable[str | None]:
    """The failure outcomes that came, or were emitted, and that this handler's compensation has not before it."""
    if not p.compensating or any(k.handler == role.name for k in p.compensating):
        return (*p.failed, p.outcome)
    return (*p.failed, p.outcome, *(k.message.type for k in p.compensating))


def kept(p: Snapshot, handler: str, message: Message) -> bool:
    """Whether the message is in queue or waiting for this handler."""
    return any(k.handler == handler and k.message.id == message.id for k in (*p.queue, *p.waiting))


def intent_with(p: Snapshot, handler: str, message: Message, kind: Kind = "do") -> Intent | None:
    """The open intent of `handler` that `message` belongs to."""
    for intent in p.intents:
        if intent.kind == kind and intent.handler == handler and any(m.id == message.id for m in intent.parts):
            return intent
    return None


def _repetition(p: Snapshot, role: Role, index: int, message: Message) -> Decision | None:
    """Line 4: it has run, or holds a part for this parameter."""
    if role.many and index == 0:
        return None
    earlier = [
        (r.type, r.schema, r.content)
        for r in p.ran
        if r.handler == role.name and r.parameter == index and r.message != message.id
    ]
    if p.waiting or p.own:
        earlier += [(m.type, m.schema, ids.content(m.value)) for m in _held_before(p, role, index, message)]
    if earlier:
        mine = ids.content(message.value)
        for type_, schema, content in earlier:
            # Two versions of a schema cannot be compared by bytes: such a repetition is given the benefit.
            if type_ == message.type and schema == message.schema and content != mine:
                return Decision(Do.OTHER, f"{role.name} has taken another {message.type} in this saga already")
        return Decision(Do.IGNORE, f"{role.name} has taken a message for this already")
    if not role.many and any(r.handler == role.name for r in p.ran):
        return Decision(Do.IGNORE, f"{role.name} has run in this saga already")
    return None


def _held_before(p: Snapshot, role: Role, index: int, message: Message) -> Iterator[Message]:
    """The parts held for a parameter that were there before `message`: all, if it is not held itself."""
    for _, part in sorted(held(p, role, index), key=lambda there: there[0]):
        if part.id == message.id:
            return
        yield part


def held(p: Snapshot, role: Role, index: int) -> Iterator[tuple[int, Message]]:
    """The parts that are there for a parameter, each with the number of the transition since which it is there."""
    types = role.takes[index]
    for k in p.waiting:
        if k.handler == role.name and k.message.type in types:
            yield k.n, k.message
    for own in p.own:
        if own.event.type in types and ids.entry(own.event.id, role.name) not in p.inbox:
            yield own.n, own.event


def parts_with(p: Snapshot, role: Role, message: Message) -> tuple[Message, ...] | None:
    """All parts of a run that `message` belongs to, in the order of the parameters; `None` if one is missing."""
    parts = []
    for index, types in enumerate(role.takes):
        if message.type in types:
            parts.append(message)
            continue
        part = next(held(p, role, index), None)
        if part is None:
            return None
        parts.append(part[1])
    return tuple(parts)


def missing(p: Snapshot, role: Role, message: Message) -> str:
    """The types that are not there yet, for people."""
    gaps = [
        " or ".join(sorted(types))
        for index, types in enumerate(role.takes)
        if message.type not in types and next(held(p, role, index), None) is None
    ]
    return ", ".join(gaps)


def waits_before(p: Snapshot, role: Role, message: Message) -> bool:
    """Whether another message waits for the first parameter of a `many` handler, and is to be handled before this one:
    what they wait for may have come just now, at another worker."""
    first = next((k for k in p.waiting if k.handler == role.name and k.message.type in role.takes[0]), None)
    return first is not None and first.message.id != message.id


def is_blocked(p: Snapshot, handler: str, message: Message) -> bool:
    """Line 6: quarantined, another intent open, what the handler did is being undone, or not at the head of the
    queue."""
    if p.intents or any(k.dead or k.handler == handler for k in p.compensating):
        return True
    if not p.queue:
        return False
    head = p.queue[0]
    return head.dead is not None or not (head.handler == handler and head.message.id == message.id)


def why_blocked(p: Snapshot, handler: str) -> str:
    """The reason of line 6, for people."""
    dead = next((k for k in (*p.queue, *p.compensating) if k.dead), None)
    if dead is not None:
        return f"the saga is quarantined: {dead.message.type} for {dead.handler} is a dead letter"
    if p.intents:
        return f"{p.intents[0].handler} has begun and is not at its end"
    undoing = next((k for k in p.compensating if k.handler == handler), None)
    if undoing is not None:
        return f"what {handler} did is undone because of {undoing.message.type}"
    return "others are queued before it"


NOBODY: Mapping[str, str] = MappingProxyType({})


class Work(Struct, frozen=True, gc=False):
    """Something to go on with: a message for a handler, or the compensation of a handler because of an outcome."""

    undo: bool
    role: Role
    message: Message
    bad: str | None = None
    """Why this handler can never decode the message."""


def jobs(p: Snapshot, roles: Roles, message: Message, bad: Mapping[str, str] = NOBODY) -> list[Work]:
    """What `message` is for, in order: handlers as declared, then compensations, newest result first. `bad`: the
    handlers that can never decode it, each with the reason."""
    work = [Work(False, role, message, bad.get(role.name)) for role in roles.by_type.get(message.type, ())]
    undone = roles.undone_by.get(message.type)
    if undone:
        latest = {result.handler: i for i, result in enumerate(p.results)}
        work += [Work(True, role, message) for role in sorted(undone, key=lambda r: -latest.get(r.name, -1))]
    return work


def next_ready(p: Snapshot, roles: Roles) -> Work | None:
    """The next thing to settle, `None` when nothing is ready: open intents whose message is kept, compensations whose
    originals have ended, the head of the queue, fulfilled waits when the queue is empty."""
    if p.intents:
        for intent in p.intents:
            work = _resumable(p, roles, intent)
            if work is not None:
                return work
    if p.compensating:
        latest = {result.handler: i for i, result in enumerate(p.results)}
        for k in sorted(p.compensating, key=lambda k: -latest.get(k.handler, -1)):
            if k.dead is None and undo_step(p, k.handler, k.message) not in WAITING:
                return Work(True, roles.handlers[k.handler], k.message, k.bad)
    if p.queue:
        k = p.queue[0]
        if k.dead is None:
            role = roles.handlers[k.handler]
            decision = decide(p, role, k.message, in_hand=False, bad=k.bad is not None)
            if decision.do not in (Do.QUEUE, Do.LEAVE, Do.NOTHING):
                return Work(False, role, k.message, k.bad)
        return None
    if p.own or p.waiting:
        return _fulfilled(p, roles)
    return None


def _resumable(p: Snapshot, roles: Roles, intent: Intent) -> Work | None:
    """An open intent that nobody's redelivery will bring to its end: its message is kept, or is an own event."""
    if intent.kind != "do":
        return None
    parts = {m.id for m in intent.parts}
    queued = next((k for k in p.queue if k.handler == intent.handler and k.message.id in parts), None)
    if queued is not None:
        return None if queued.dead else Work(False, roles.handlers[intent.handler], queued.message)
    waits = any(k.handler == intent.handler and k.message.id in parts for k in p.waiting)
    if waits or intent.message.source == p.service:
        return Work(False, roles.handlers[intent.handler], intent.message)
    return None


def _fulfilled(p: Snapshot, roles: Roles) -> Work | None:
    """The wait that was fulfilled first, with the message that stands for it: the part that came last."""
    found: list[tuple[int, Role, Message]] = []
    waiting_alone = {k.handler for k in p.waiting} if p.started is not None else set()
    for role in roles.handlers.values():
        if role.name not in roles.eager and role.name not in waiting_alone:
            continue
        if not role.many and any(r.handler == role.name for r in p.ran):
            continue
        parts = [next(held(p, role, index), None) for index in range(len(role.takes))]
        there = [part for part in parts if part is not None]
        if len(there) == len(parts):
            _, last = there[0] if role.many else max(there, key=lambda part: part[0])
            found.append((max(n for n, _ in there), role, last))
    for _, role, message in sorted(found, key=lambda f: f[0]):
        if decide(p, role, message, in_hand=False).do not in (Do.QUEUE, Do.LEAVE, Do.WAIT, Do.NOTHING):
            return Work(False, role, message)
    return None


class Undoing(Enum):
    """What the compensation of a handler does next."""

    UNKNOWN = "no message has told yet when this saga began: what it did here may be forgotten"
    WAIT = "the original has begun and will be brought to its end"
    LIEU = "the original can never finish: what stands is put right or shown to a person"
    UNDO = "undo the newest result"
    CLOSE = "nothing left to undo"


WAITING = (Undoing.UNKNOWN, Undoing.WAIT)
"""The compensation can do nothing yet."""


def undo_step(p: Snapshot, handler: str, outcome: Message) -> Undoing:
    """Where the compensation of `handler` because of `outcome` stands."""
    if p.started is None and outcome.started is None:
        return Undoing.UNKNOWN
    originals = [i for i in p.intents if i.handler == handler and i.kind == "do"]
    if any(not is_dead(p, i) for i in originals):
        return Undoing.WAIT
    if any(i.handler == handler and i.kind == "lieu" for i in p.intents):
        return Undoing.LIEU
    if any(result.handler == handler for result in p.results):
        return Undoing.UNDO
    return Undoing.LIEU if originals else Undoing.CLOSE


def is_dead(p: Snapshot, intent: Intent) -> bool:
    """Whether the message of an open intent is a dead letter."""
    parts = {m.id for m in intent.parts}
    return any(k.dead and k.handler == intent.handler and k.message.id in parts for k in p.queue)


def knows(p: Snapshot, roles: Roles, message: Message) -> bool:
    """Whether the progress has a word about the message already: in the inbox, or kept."""
    if not p.n:
        return False
    if p.inbox and any(ids.entry(message.id, name) in p.inbox for name in roles.names_for(message.type)):
        return True
    return any(k.message.id == message.id for k in (*p.queue, *p.waiting, *p.compensating))


def is_undone(p: Snapshot, role: Role, message: Message) -> bool:
    """Whether the compensation of `role` has come to its end for this outcome."""
    return ids.entry(message.id, undo_name(role.name)) in p.inbox


def kept_undo(p: Snapshot, handler: str, message: Message) -> Kept | None:
    """The outcome, kept for the compensation of `handler`."""
    return next((k for k in p.compensating if k.handler == handler and k.message.id == message.id), None)
