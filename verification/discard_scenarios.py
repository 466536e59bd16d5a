"""Scenarios about dead letters that operators discard, or are not allowed to discard."""

from collections.abc import Iterator

from saga.progress.document import SagaProgress, Transition
from verification.building_blocks import (
    BAD_F,
    BAD_Q,
    ORD,
    OTHER,
    F,
    M,
    N,
    Q,
    S,
    X,
    cancel,
    cancel_by_step,
    many,
    meet_step,
    needs,
    note,
    of,
    place,
    reserve,
    take_step,
    two_steps,
)
from verification.deadline_scenarios import expire, expire_unless
from verification.operator_scenarios import at_last, both, command, has_become, stays_dead
from verification.scenario import AtTheEnd, Scenario, has_ended, has_run
from verification.services import message

ORD_UNDONE_BADLY = message("x1", "X", bad=["undo_reserve"])


def all_discards() -> Iterator[Scenario]:
    """Yield all scenarios about discarding dead letters."""
    yield from discards()
    yield from discards_beside_results()
    yield from ended_by_deadlines()
    yield from refusals()


def discards() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of dead letters that are discarded. The effects of their runs are reported."""
    gone = command("discard", "needs", M)
    noted = both(has_become("discarded", "needs"), has_run("note"))
    for name, crash, move, lost in (("crash", 1, 0, 0), ("rebalance", 0, 1, 0), ("lost answers", 0, 0, 1)):
        yield Scenario(
            name=f"discard: {name}",
            service=of(needs, note, attempts_max=1),
            a=(M, N),
            b=(gone,),
            crash=crash,
            move=move,
            lost=lost,
            may_die=True,
            at_the_end=noted,
        )
    begun = both(has_become("discarded", "two"), at_last("note"))
    for name, crash, move in (("crash", 1, 0), ("rebalance", 0, 1)):
        yield Scenario(
            name=f"discard: of what has begun: {name}",
            service=of(two_steps, note, attempts_max=1),
            a=(ORD, N),
            b=(command("discard", "two", ORD),),
            fail=1,
            crash=crash,
            move=move,
            may_die=True,
            at_the_end=begun,
        )
    of_stock = command("discard", "take", ORD)
    yield Scenario(
        name="discard: of what has changed a document",
        service=of(take_step, attempts_max=1),
        a=(ORD,),
        b=(of_stock,),
        stock=1,
        fail=1,
        move=1,
        may_die=True,
        at_the_end=has_become("discarded", "take"),
    )
    for name, a, b in (("behind", (ORD, X), (of_stock,)), ("beside", (ORD, of_stock), (X,))):
        yield Scenario(
            name=f"discard: the outcome {name} it",
            service=of(take_step, attempts_max=1),
            a=a,
            b=b,
            stock=1,
            fail=1,
            crash=1,
            may_die=True,
        )
    yield Scenario(
        name="discard and replay: two people disagree",
        service=of(reserve, note, attempts_max=1),
        a=(ORD, N, command("replay", "reserve", ORD)),
        b=(command("discard", "reserve", ORD),),
        fail=1,
        crash=1,
        owner=(0, 1),
        may_die=True,
        at_the_end=at_last("note"),
    )
    yield Scenario(
        name="discard: of a fan-in",
        service=of(meet_step, note, attempts_max=1),
        a=(ORD, N, command("discard", "meet", ORD)),
        b=(Q, command("discard", "meet", Q)),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=at_last("note"),
    )

    yield Scenario(
        name="discard: a part that nobody can decode, and one that comes in its place",
        service=of(meet_step),
        a=(ORD, Q),
        b=(BAD_Q, command("discard", "meet", BAD_Q)),
        crash=1,
        move=1,
        may_die=True,
        at_the_end=has_run("meet"),
    )


def never_discarded(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that no dead letter was discarded."""
    return "DISCARDED WITHOUT PERMISSION" if any(t.outcome == "discarded" for t in entries) else None


def has_undone_results(name: str) -> AtTheEnd:
    """Check that a handler whose compensation has ended has no results left."""

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        is_left = name in p.closed and any(result.handler == name for result in p.results)
        return f"CLOSED WITH RESULTS {name}" if is_left else None

    return check


def discards_beside_results() -> Iterator[Scenario]:
    """Yield scenarios in which a discarded run belongs to a handler with earlier results, and the failure outcome comes
    before the discard ends."""
    wish = command("discard", "reserve", OTHER)
    once = of(many, attempts_max=1)
    yield Scenario(
        name="discard: one of many runs, behind a result",
        service=once,
        a=(ORD, OTHER, wish),
        b=(X,),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=has_undone_results("reserve"),
    )
    yield Scenario(
        name="discard: one of many runs, behind a result, two owners",
        service=once,
        a=(ORD, OTHER, wish),
        b=(X,),
        fail=1,
        owner=(0, 1),
        may_die=True,
        at_the_end=has_undone_results("reserve"),
    )


def ended_by_deadlines() -> Iterator[Scenario]:
    """Yield scenarios of dead letters at the deciding service. They may be discarded while an open deadline is certain
    to end the saga."""
    discard, replay = command("discard", "cancel", BAD_F), command("replay", "cancel", BAD_F)
    for name, crash, lost in (("crash", 1, 0), ("lost answers", 0, 1)):
        yield Scenario(
            name=f"discard: at who decides, a deadline ends it: {name}",
            service=of(cancel, expire),
            a=(ORD, BAD_F),
            b=(discard,),
            crash=crash,
            lost=lost,
            ticks_max=1,
            at_the_end=has_ended,
        )
    yield Scenario(
        name="discard: refused where something may close the deadline",
        service=of(cancel, expire_unless),
        a=(ORD, BAD_F, S),
        b=(discard, replay),
        ticks_max=1,
        at_the_end=never_discarded,
    )


def refusals() -> Iterator[Scenario]:
    """Yield scenarios of dead letters that may not be discarded: they stay, and can be replayed."""
    yield Scenario(
        name="discard: refused by who decides, then replayed",
        service=of(place, cancel_by_step, attempts_max=1),
        a=(ORD, F),
        b=(command("discard", "cancel", F), command("replay", "cancel", F)),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=at_last("cancel"),
    )
    yield Scenario(
        name="discard: refused for a compensation",
        service=of(reserve),
        a=(ORD, ORD_UNDONE_BADLY),
        b=(command("discard", "undo_reserve", ORD_UNDONE_BADLY),),
        crash=1,
        may_die=True,
        at_the_end=stays_dead,
    )
