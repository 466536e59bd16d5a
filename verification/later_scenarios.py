"""Scenarios of suspended runs: jobs with several turns, turns that wait for an event, and other messages in between."""

from collections.abc import Iterator

from saga.progress.document import SagaProgress, Transition
from verification.building_blocks import ORD, OTHER, STEP, F, M, N, Q, X, cancel, hold, note, of, place
from verification.handlers import Reacts
from verification.operator_scenarios import at_last, command, slow_job
from verification.scenario import Scenario, has_ended, has_run, nothing_more
from verification.services import message

NEXT_Q = message("q3", "Q")

long_job = Reacts(name="job", to=(("O",),), does=STEP, turns=2, says=("t",), emits=("d",))
job = Reacts(name="job", to=(("O",),), does=STEP, turns=1, emits=("d",))
each_job = Reacts(name="job", to=(("O",),), does=STEP, turns=1, emits=("d",), many=True)
emitting_job = Reacts(name="job", to=(("O",),), does=STEP, turns=1, says=("t",), emits=("d",))
each_of_two_parts = Reacts(name="job", to=(("O",), ("Q",)), does=STEP, turns=1, emits=("d",), many=True)
two_parts = Reacts(name="job", to=(("O",), ("M",)), turns=1, does=STEP, emits=("d",))
own_part = Reacts(name="job", to=(("P",), ("Q",)), turns=1, emits=("d",))
look = Reacts(name="look", to=(("O",),), until=("Q",), after=1, emits=("d",))
look_by_step = Reacts(name="look", to=(("O",),), until=("Q",), after=1, does=STEP, emits=("d",))
look_for_own = Reacts(name="look", to=(("O",),), until=("n",), after=2, emits=("d",))
look_twice = Reacts(name="look", to=(("O",),), until=("Q",), turns=2, after=1, does=STEP, emits=("d",))
decide_late = Reacts(name="decide", to=(("O",),), until=("S",), after=1, emits=("Confirmed",))
undone_job = Reacts(name="job", to=(("O",),), does=STEP, turns=1, says=("t",), emits=("d",), undo=STEP)
bare_job = Reacts(name="job", to=(("O",),), does=STEP, turns=1, emits=("d",), undo=STEP)
undone_look = Reacts(name="look", to=(("O",),), until=("Q",), after=1, emits=("d",), undo=("nothing",))
taking_job = Reacts(name="job", to=(("O",),), does=("take",), turns=1, says=("t",), emits=("d",), undo=("give",))


def runs_twice(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that exactly two runs have ended."""
    count = sum(t.outcome == "handled" for t in entries)
    return None if count == 2 else f"{count} RUNS"


def later() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of runs with several turns, with other messages between the turns."""
    done = has_run("job")
    yield Scenario(
        name="later: undone beside the result of another handler",
        service=of(hold, bare_job),
        a=(N, ORD),
        b=(X,),
        crash=1,
        wakes_max=16,
    )
    yield Scenario(
        name="later: undone beside the result of another handler, timers of another owner",
        service=of(hold, bare_job),
        a=(N, ORD, X),
        owner=(0, 0),
        wakes_at=1,
        wakes_max=16,
    )
    yield Scenario(name="later: a job", service=of(long_job), a=(ORD,), crash=1, at_the_end=done)
    yield Scenario(name="later: a job moves", service=of(job), a=(ORD,), move=1, crash=1, wakes_max=16, at_the_end=done)
    yield Scenario(name="later: lost answers", service=of(job), a=(ORD,), lost=1, move=1, wakes_max=16, at_the_end=done)
    yield Scenario(
        name="later: another message between turns",
        service=of(job, note),
        a=(ORD, N),
        crash=1,
        at_the_end=has_run("job", "note"),
    )
    yield Scenario(
        name="later: a turn fails",
        service=of(job, note, parks=True),
        a=(ORD,),
        b=(N,),
        fail=1,
        wakes_max=16,
        at_the_end=has_run("job", "note"),
    )
    yield Scenario(name="later: at a time", service=of(slow_job), a=(ORD,), crash=1, move=1, early=1, at_the_end=done)
    yield Scenario(
        name="later: a clock that is ahead",
        service=of(slow_job, note),
        a=(ORD, N),
        fast=1,
        crash=1,
        at_the_end=done,
    )
    yield Scenario(
        name="later: two jobs of one handler", service=of(each_job), a=(ORD, OTHER), crash=1, at_the_end=done
    )
    yield Scenario(name="later: the same again", service=of(slow_job), a=(ORD,), b=(ORD, OTHER), crash=1, may_die=True)
    for wanted in ("replay", "discard"):
        yield Scenario(
            name=f"{wanted}: a turn that is dead",
            service=of(emitting_job, note, attempts_max=1, parks=True),
            a=(ORD, N),
            b=(command("replay" if wanted == "replay" else "discard", "job", ORD),),
            fail=1,
            crash=1,
            may_die=True,
            at_the_end=at_last("job", "note") if wanted == "replay" else nothing_more,
        )
    yield from _of_several_events()
    yield from _waits()
    yield from _undone()


def _of_several_events() -> Iterator[Scenario]:
    done = has_run("job")
    yield Scenario(
        name="later: two jobs of one handler that share an event",
        service=of(each_of_two_parts),
        a=(ORD, OTHER),
        b=(Q,),
        crash=1,
        wakes_max=16,
        at_the_end=runs_twice,
    )
    yield Scenario(
        name="later: of two events", service=of(two_parts), a=(ORD,), b=(M,), crash=1, move=1, at_the_end=done
    )
    yield Scenario(
        name="later: of an own event", service=of(place, own_part), a=(ORD,), b=(Q,), crash=1, move=1, at_the_end=done
    )


def _waits() -> Iterator[Scenario]:
    looked = has_run("look")
    yield Scenario(
        name="later: an event or the time", service=of(look), a=(ORD,), b=(Q,), crash=1, move=1, at_the_end=looked
    )
    yield Scenario(
        name="later: an event and the time race",
        service=of(look_by_step),
        a=(ORD,),
        b=(Q,),
        wakes_at=1,
        crash=1,
        at_the_end=looked,
    )
    yield Scenario(
        name="later: the event comes twice", service=of(look), a=(ORD,), b=(Q, NEXT_Q), crash=1, at_the_end=looked
    )
    yield Scenario(
        name="later: it needs the event twice",
        service=of(look_twice),
        a=(ORD,),
        b=(Q, NEXT_Q),
        crash=1,
        ticks_max=2,
        at_the_end=looked,
    )
    yield Scenario(name="later: the event comes alone", service=of(look, note), a=(N,), b=(Q,), crash=1)
    yield Scenario(
        name="later: an own event", service=of(look_for_own, note), a=(ORD,), b=(N,), crash=1, at_the_end=looked
    )
    yield Scenario(
        name="later: a shown event, and the turn fails",
        service=of(look_by_step, note, parks=True),
        a=(ORD,),
        b=(Q, N),
        fail=1,
        at_the_end=has_run("look", "note"),
    )
    yield Scenario(
        name="later: it decides, or another",
        service=of(decide_late, cancel),
        a=(ORD,),
        b=(F,),
        crash=1,
        move=1,
        at_the_end=has_ended,
    )
    yield Scenario(
        name="later: it dies",
        service=of(look_by_step, note, attempts_max=1, parks=True),
        a=(ORD,),
        b=(Q, N),
        fail=1,
        crash=1,
        may_die=True,
    )


def _undone() -> Iterator[Scenario]:
    yield Scenario(name="later: undone between turns", service=of(undone_job), a=(ORD,), b=(X,), crash=1, wakes_max=16)
    yield Scenario(name="later: undone while it waits", service=of(undone_look), a=(ORD,), b=(X, Q), crash=1, move=1)
    yield Scenario(
        name="later: nothing covers its turns", service=of(bare_job), a=(ORD,), b=(X,), crash=1, wakes_max=16
    )
    yield Scenario(
        name="later: undone, and a turn fails",
        service=of(undone_job, parks=True),
        a=(ORD,),
        b=(X,),
        fail=1,
        crash=1,
    )
    yield Scenario(
        name="later: undone, with a document", service=of(taking_job), a=(ORD,), b=(X,), stock=3, crash=1, wakes_max=16
    )
    yield Scenario(
        name="later: undone, and it is dead",
        service=of(bare_job, attempts_max=1, parks=True),
        a=(ORD,),
        b=(X,),
        fail=1,
        crash=1,
        may_die=True,
    )
