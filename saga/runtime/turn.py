"""The heart: what a service does with one message. docs/protocol.md gives the reason for each line.

| dies | then |
|---|---|
| before the write | redelivered; steps and updates that finished are not repeated, their results are recorded |
| after the write, before publishing | redelivered; whoever reads the progress publishes what may not be |
| after publishing, before the commit | redelivered; found in the inbox; receivers drop repeats by id |
| two workers own the partition | the second write is refused, reloads, decides again |
| the write's answer is lost | never written again blindly: reload and decide again |
| the publish's answer is lost | publish again; same ids |
"""

from collections.abc import Mapping

from msgspec.structs import replace

from saga.errors import BadInput, TooLarge
from saga.messages import Message, Position
from saga.progress import ids, record
from saga.progress.decide import NOBODY, Decision, Do, Work, decide, jobs, next_ready
from saga.progress.document import Snapshot
from saga.progress.record import Written
from saga.progress.roles import Role
from saga.runtime import handling, oversized, persistence, spilling, undoing
from saga.runtime.participant import Participant, Refused
from saga.runtime.standing import Stages, Turn


async def take_turn(service: Participant, turn: Turn) -> Turn:
    """Handle one message to its end. When this returns nothing is left to do, and its offset may be committed."""
    while not turn.over:
        turn = await advance(service, turn)
    return turn


async def advance(service: Participant, turn: Turn) -> Turn:
    """Go to the next write, or to the end. What is refused is decided again, on the progress as it is by then."""
    try:
        if turn.progress is None:
            turn = await persistence.load(service, turn)
            if turn.over:
                return turn
        if turn.known.pages and turn.recalled is None:
            turn = await spilling.recalled(service, turn)
        p, only_answered = turn.known, True
        found = jobs(p, service.roles, turn.message, turn.bad)  # what the message in hand is for
        for work in found:
            if work.undo:
                if undoing.is_done(p, work):
                    continue
                only_answered = False
                if not undoing.is_kept_waiting(p, work):
                    return await go(service, turn, work)
                continue
            if work.role.name in turn.paged:  # it is kept already
                only_answered = False
                continue
            forgotten = persistence.forgotten_before(service) if work.role.many else ""
            bad = work.bad is not None
            decision = decide(p, work.role, work.message, in_hand=True, bad=bad, forgotten=forgotten)
            if decision.do is Do.NOTHING:
                continue
            only_answered = False
            if decision.do is not Do.LEAVE:
                turn = await go(service, turn, work, decision)
                return replace(turn, over=True) if len(found) == 1 and _is_all(turn, work) else turn
        ready = next_ready(p, service.roles)
        if ready is not None:  # settle: whatever of the saga is ready, before the offset is committed
            if ready.undo:
                return await go(service, turn, ready)
            ready = _looked_at_again(service, ready)
            decision = decide(p, ready.role, ready.message, in_hand=False, bad=ready.bad is not None)
            return await go(service, turn, ready, decision)
        if not (turn.certain or only_answered):  # what ends without a write is decided on a progress read in this turn
            return turn.unread()
        return replace(turn, over=True)
    except Refused:
        return turn.unread()


def _is_all(turn: Turn, work: Work) -> bool:
    """True if the message has come to its end for this handler, and the saga is at rest: to decide once more would find
    the message in the inbox and nothing ready. That is how by far the most turns end."""
    p = turn.progress
    return (
        p is not None
        and turn.certain
        and not (p.intents or p.queue or p.waiting or p.own or p.compensating or p.pages)
        and ids.entry(work.message.id, work.role.name) in p.inbox
    )


async def go(service: Participant, turn: Turn, work: Work, decision: Decision | None = None) -> Turn:
    """Do what was decided for one handler, or what its compensation needs, up to its next write."""
    try:
        if decision is None:
            return await undoing.compensate(service, turn, work)
        written = _only_recorded(service, turn, work, decision)
        if written is None:
            return await handling.handle(service, turn, work, decision)
        return await persistence.write(service, turn, written)
    except TooLarge as why:
        return await oversized.given_up(service, turn, work, why)


def _only_recorded(service: Participant, turn: Turn, work: Work, decision: Decision) -> Written | None:
    """What is written down of a decision by which no handler runs; `None` if one does."""
    if decision.do is Do.RUN or decision.do is Do.GO_ON:
        return None
    p, hand, reason = turn.known, persistence.in_hand(service, turn), decision.reason or ""
    match decision.do:
        case Do.IGNORE:
            return record.ignored(p, hand, work.role, work.message, reason)
        case Do.OTHER:
            reason, remedy = (
                f"already handled with other content: {reason}",
                "look why two differ; the first one counts",
            )
            return record.refused(p, hand, work.role, work.message, reason, remedy)
        case Do.OLD:
            remedy = "look why it comes so late; a longer memory= of the service would know it"
            return record.refused(p, hand, work.role, work.message, reason, remedy)
        case Do.WAIT:
            return record.waiting(p, hand, work.role, work.message, reason)
        case Do.QUEUE:
            return record.queued(p, hand, work.role, work.message, reason, work.bad)
    return None


def begin(
    service: Participant,
    message: Message,
    position: Position,
    cached: tuple[Snapshot, int] | None,
    stages: Stages | None = None,
) -> Turn:
    """The turn on what the cache has; for a message that starts a young saga on nothing known, without a read."""
    p, cas = cached or (None, 0)
    if (p is None or p.started is None) and persistence.is_older_than_memory(service, message):
        p, cas = None, 0
    elif p is None and service.contracts[message.type].starts:
        p = record.empty(service.name, message.saga)
    bad = _bad(service, message)
    return Turn(message=message, position=position, bad=bad, progress=p, cas=cas, stages=stages or Stages())


def _bad(service: Participant, message: Message) -> Mapping[str, str]:
    """Which handlers can never decode the message: for them it waits for nothing. Looked at only where it may have to
    wait."""
    roles = service.roles
    if message.started is not None and message.type not in roles.joined:
        return NOBODY
    waits = [r for r in roles.by_type.get(message.type, ()) if len(r.takes) > 1 or message.started is None]
    return {role.name: why for role in waits if (why := _undecodable(service, role, message)) is not None}


def _undecodable(service: Participant, role: Role, message: Message) -> str | None:
    try:
        service.decode(role.name, message)
    except BadInput as why:
        return str(why)
    return None


def _looked_at_again(service: Participant, work: Work) -> Work:
    """Decode anew what could not be decoded when it was kept: this version of the service may know its schema."""
    return work if work.bad is None else replace(work, bad=_undecodable(service, work.role, work.message))
