"""Record of a turn that is not the last one of its run. Pure."""

from msgspec import Raw
from msgspec.structs import replace

from saga.progress import record
from saga.progress.document import Call, Continuation, Snapshot
from saga.progress.formats import format_of
from saga.progress.record import Ended, Hand, Written
from saga.progress.roles import Role
from saga.progress.taking_back import TakeBack, covers

CALLS_MAX = 64
"""Most calls of its turns that a run which goes on lists for a person: a job may have a hundred thousand turns."""


def gone_on(p: Snapshot, hand: Hand, role: Role, ended: Ended, next_turn: Continuation) -> Written:
    """A turn of a run has come to its end, and there will be another one. The messages that it needs stay.

    `next_turn`: without what its earlier turns did.
    """
    needed = ended.parts[: len(role.takes)]
    gone = [m.id for m in (needed[:1] if role.many else needed)] + list(ended.shown)
    results = record.with_results(p, hand, role, ended)
    calls: tuple[Call, ...] = ()
    undo_with: tuple[TakeBack, ...] = ()
    if role.undo is not None and len(results) == len(p.results):  # else a result covers all that was done
        said = next_turn.undo_with
        earlier = [c for c in p.later if c.handler == role.name and c.parts[0].id == needed[0].id]
        # Without arguments: the digests of a history count these calls, and an older toolkit would leave them out.
        here = [replace(call, arguments="") for call in left_of(ended.calls, said)]
        calls = newest_of((*[call for c in earlier if not said for call in c.calls], *here))
        undo_with = tuple([each for c in earlier for each in c.undo_with]) + tuple([replace(e, after=0) for e in said])
    p = replace(
        record.without_runs(p, role.name, gone),
        inbox=record.into_inbox(p, hand, role.name, ended.shown),
        queue=record.without(p.queue, role.name, gone),
        waiting=record.without(p.waiting, role.name, gone),
        intents=record.other_intents(p, role, ended),
        results=results,
        state={**p.state, **ended.delta} if ended.delta else p.state,
    )
    later = (*p.later, replace(next_turn, n=p.n, by=hand.message.id, calls=calls, undo_with=undo_with))
    p = replace(p, later=later, format=format_of(p.pages, p.deadlines, later, p.version))
    return record.append(record.emitted(p, hand.roles, ended.events), hand, "later", role.name, ended)


def newest_of(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """The newest of very many calls, behind one without a name whose number counts the others: the transitions have
    them all."""
    counted = calls[0].number if calls and not calls[0].name else 0
    named = calls[1:] if counted else calls
    over = len(named) - CALLS_MAX
    if over <= 0:
        return calls
    return (Call(kind="step", name="", number=counted + over, input=""), *named[over:])


def left_of(calls: tuple[Call, ...], said: tuple[TakeBack, ...]) -> tuple[Call, ...]:
    """Calls of a turn that changed something and that nothing takes back, without what they gave."""
    return tuple(
        [
            replace(call, value=Raw(b"null"), claim="")
            for i, call in enumerate(calls)
            if _stands(call) and not covers(said, i)
        ]
    )


def _stands(call: Call) -> bool:
    """True for a call that changed something."""
    return call.kind != "read" and call.answer is None
