"""Commands of people about dead letters: what becomes of each, and its record. Pure.

A command passes queue and quarantine. It names the dead letter, whose id counts replays: so one that comes twice, or
late, finds nothing to do.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from saga.commands import Command, Wanted
from saga.progress import decide, ids, record
from saga.progress.actions import CloseSealed, Discard, Disregard, Heeds, Replay, Seal
from saga.progress.document import DeadLetter, Kept, Snapshot
from saga.progress.record import Ended, Hand, Written
from saga.progress.roles import COMMAND, Role, Roles


def heed(p: Snapshot, roles: Roles, command: Command) -> Heeds | Seal | CloseSealed | None:
    """Step because of a command; `None` if it was heeded before, or nothing is known of its saga."""
    if not p.n or ids.entry(command.id, COMMAND) in p.inbox:
        return None
    kept = next((k for k in (*p.queue, *p.compensating) if k.dead == command.dead), None)
    if kept is None:
        return Disregard(command, f"no dead letter {command.dead} is in the saga's way here: it may have gone before")
    if command.wanted == "replay":
        refusal = _irreplayable(p, kept)
        return Disregard(command, refusal) if refusal else Replay(command, kept)
    role = roles.handlers[kept.handler]
    refusal = _indispensable(p, roles, role, kept)
    if refusal:
        return Disregard(command, refusal)
    if decide.intent_with(p, kept.handler, kept.message) is not None:  # from here on nothing revives it
        return Seal(role, command)
    sealed = decide.intent_with(p, kept.handler, kept.message, "lieu")
    return Discard(command, kept) if sealed is None else CloseSealed(role, command, sealed)


def _irreplayable(p: Snapshot, kept: Kept) -> str | None:
    if not kept.message.value:
        return (
            "the progress had no room for the message: its bytes are in the dead letter alone; let its sender repeat it"
        )
    if decide.intent_with(p, kept.handler, kept.message, "lieu") is not None:
        return f"{kept.handler} is being closed: what it began is put out of reach"
    return None


def _indispensable(p: Snapshot, roles: Roles, role: Role, kept: Kept) -> str | None:
    """Why nobody may decide that the message is never handled; `None` if somebody may."""
    if any(k is kept for k in p.compensating):
        return f"what {role.name} did would stand for ever: replay it, once what undoes it can succeed"
    if role.after_outcome:
        return f"an outcome sets {role.name} off, and others count on it: replay it, once it can succeed"
    if roles.outcomes:
        return f"{roles.service} decides how sagas end, and without {role.name} this one might not: replay it"
    return None


# -------------------------------------------------------------------- records


def heeded(p: Snapshot, hand: Hand, action: Heeds) -> Written:
    """The progress with what has become of a command."""
    command = action.command
    p = replace(p, inbox=record.into_inbox(p, hand, COMMAND, [command.id]))
    match action:
        case Replay(kept=kept):
            return _replayed(p, hand, command, kept)
        case Discard(kept=kept):
            return discarded(p, hand, command, kept)
        case Disregard(reason=reason):  # pragma: no branch - it is the last one, and checkers would see another
            reason = f"not {_PAST[command.wanted]}: {reason} ({_wanted_by(command)})"
            return record.append(p, hand, "ignored", COMMAND, Ended(message=command, reason=reason))


def _replayed(p: Snapshot, hand: Hand, command: Command, kept: Kept) -> Written:
    """The message stays where it is, and is tried as if it had never been: it is at the head of what waits."""
    again = replace(kept, dead=None, attempts=0)
    p = replace(
        p,
        queue=tuple(again if k is kept else k for k in p.queue),
        compensating=tuple(again if k is kept else k for k in p.compensating),
        replays=p.replays + 1,
    )
    role = hand.roles.handlers[kept.handler]
    undoes = role.undo is not None and any(k is again for k in p.compensating)
    end = _end(command, kept, "replayed", "it is tried again", role.undo.name if undoes and role.undo else role.name)
    ended = Ended(message=command, cause=kept.message.id, reason=_wanted_by(command), letters=(end,))
    return record.append(p, hand, "replayed", end.handler, ended)


def discarded(p: Snapshot, hand: Hand, command: Command, kept: Kept, *, remains: Sequence[str] = ()) -> Written:
    """The message will never be handled; other parts of a fan-in stay, for another one may come in its place.

    `remains`: what its run did and nobody can undo, for a person to put right.
    """
    sealed = decide.intent_with(p, kept.handler, kept.message, "lieu")
    gone = [kept.message.id]
    inbox = record.into_inbox(p, hand, kept.handler, gone)
    inbox[ids.entry(command.id, COMMAND)] = hand.entered_s
    letters = [_end(command, kept, "discarded", "it is never handled", kept.handler)]
    if remains:
        letters.append(
            DeadLetter(
                id=ids.dead_id(p.service, p.saga, f"{kept.handler}|escalation", command.id, p.replays),
                what="escalation",
                handler=kept.handler,
                reason=f"{kept.handler} had begun, and is discarded; what it did has to be put right by hand",
                remedy="put right each of these calls by hand",
                message=kept.message,
                calls=tuple(remains),
            )
        )
    p = replace(
        p,
        inbox=inbox,
        queue=record.without(p.queue, kept.handler, gone),
        waiting=record.without(p.waiting, kept.handler, gone),
        intents=tuple(i for i in p.intents if i is not sealed),
    )
    ended = Ended(message=command, cause=kept.message.id, reason=_wanted_by(command), letters=tuple(letters))
    return record.append(p, hand, "discarded", kept.handler, ended)


def _end(command: Command, kept: Kept, what: Literal["replayed", "discarded"], so: str, handler: str) -> DeadLetter:
    """Record of the end of a dead letter, of a handler or a compensation."""
    return DeadLetter(
        id=f"{kept.dead}-{what}",
        what=what,
        handler=handler,
        reason=f"{so}: {_wanted_by(command)}",
        remedy="nothing to do",
        message=kept.message,
    )


_PAST: Mapping[Wanted, str] = {"replay": "replayed", "discard": "discarded"}


def _wanted_by(command: Command) -> str:
    return f"{command.who} wants it: {command.why}"
