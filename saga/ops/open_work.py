"""Parts of a saga that have not come to their end, in words: who waits, for what, since when, and what would end it."""

from collections.abc import Mapping

from saga.ops.timeline import Parked, ServiceStatus, is_left
from saga.progress.document import Continuation, Intent, Kept, Snapshot
from saga.support.clock import LATEST_MS, iso
from saga.support.printable import counted

UNSTARTED = "for a message that tells when the saga began; without one for ever, for its service may have forgotten it"
"""Words for what waits of a saga without a start."""


def open_in(p: Snapshot, status: ServiceStatus, failing: Mapping[str, str]) -> list[str]:
    """Everything that is still open in one service. `failing`: reasons of compensations that fail, by event."""
    found = [_begun(i, failing) for i in p.intents]
    found += [_parked(each, status.queue) for each in status.retries]
    dead = [k for k in (*p.queue, *p.compensating) if k.dead]
    found += [f"{k.message.type} for {k.handler} is a dead letter and blocks the saga: {k.dead}" for k in dead]
    found += [_undoing(p, k) for k in p.compensating if _is_due(k)]
    found += [_deadline(k) for k in p.deadlines]
    found += [_later(c) for c in p.later]
    found += [f"{k.message.type} for {k.handler} is queued" for k in p.queue if _is_due(k)]
    waits = "is waiting" if p.started else f"waits {UNSTARTED}"
    found += [f"{k.message.type} for {k.handler} {waits}" for k in p.waiting if not is_left(p, k)]
    return found + [
        f"{k.message.type} for {k.handler} is left over: it can never run" for k in p.waiting if is_left(p, k)
    ]


def _undoing(p: Snapshot, kept: Kept) -> str:
    """A handler that is to be undone, in words."""
    if p.started is None:
        return f"{kept.message.type} waits {UNSTARTED}: whether {kept.handler} did something to be undone is not known"
    return f"{kept.handler} is to be undone because of {kept.message.type}"


def _is_due(kept: Kept) -> bool:
    """True if it waits for neither a person nor a time."""
    return not kept.dead and not kept.due_ms


def _deadline(kept: Kept) -> str:
    """A deadline that is open, in words."""
    when = f"at {iso(min(kept.due_ms, LATEST_MS))}, {kept.message.type} having opened it"
    if kept.attempts:
        return f"{kept.handler} runs again {when}: {counted(kept.attempts, 'attempt')} failed"
    return f"{kept.handler} runs {when}, unless the saga ends before"


def _later(c: Continuation) -> str:
    """A run that goes on later, in words."""
    until = f", or with {' or '.join(c.until)}" if c.until else ""
    told = f"{c.handler} goes on with {c.parts[0].type} at {iso(min(c.due_ms, LATEST_MS))}{until}"
    told += _under(c)
    return f"{told}: {counted(c.attempts, 'attempt')} failed" if c.attempts else told


def _under(begun: Intent | Continuation) -> str:
    """Version of the handler under which a run began, where that is not the first."""
    return f" (under version {begun.handler_version})" if begun.handler_version > 1 else ""


def _parked(each: Parked, behind: int) -> str:
    """A run that waits for its next attempt, in words. `behind`: messages in the queue."""
    what = each.handler if each.undoes is None else f"{each.handler}, which undoes what {each.undoes} did,"
    told = f"{what} is held up, and looked at each minute" if each.put_off else f"{what} is tried again at {each.next}"
    if each.attempts:
        told += f": {counted(each.attempts, 'attempt')} failed"
        told += f" since {each.since}" if each.since else ""
    if behind and each.undoes is None:
        told += f", {counted(behind, 'message')} wait{'s' if behind == 1 else ''} behind it"
    return told + (f"; the last said: {each.error}" if each.error else "")


def _begun(intent: Intent, failing: Mapping[str, str]) -> str:
    """A run that has begun, in words, with the call of which nobody knows what became."""
    told = _of_kind(intent, failing)
    return told if (call := intent.open_call) is None else f"{told}; {call.in_words} has no answer"


def _of_kind(intent: Intent, failing: Mapping[str, str]) -> str:
    """The run alone; for a compensation with the reason that it does not come to its end."""
    if intent.kind == "do":
        return f"{intent.handler} has begun on {intent.message.type}{_under(intent)}"
    if intent.kind == "lieu":
        return f"what {intent.handler} began is put right because of {intent.message.type}: it can never finish"
    name = intent.name or f"the compensation of {intent.handler}"
    begun = f"{name} undoes what {intent.handler} did, because of {intent.message.type}{_under(intent)}"
    return f"{begun}, and fails: {failing[intent.cause]}" if intent.cause in failing else begun
