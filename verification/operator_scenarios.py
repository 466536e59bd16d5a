"""Scenarios about dead letters that people replay or discard, at any time after they have seen them."""

from collections.abc import Iterator

from saga.commands import OPERATOR, Command, Wanted, type_of
from saga.identity import identity
from saga.messages import Message
from saga.progress import ids
from saga.progress.document import Entry, Snapshot
from verification.building_blocks import (
    BAD_Q,
    ORD,
    F,
    M,
    N,
    Q,
    X,
    cancel_by_step,
    meet_step,
    needs,
    note,
    of,
    pay,
    place,
    reserve,
    take_step,
    two_steps,
)
from verification.handlers import SAGA, SERVICE, Reacts
from verification.scenario import AtTheEnd, Scenario, has_run
from verification.services import message, time_after

looks = Reacts(name="reserve", to=(("O",),), does=("read", "step"), emits=("R",))
ORD_UNDONE_BADLY = message("x1", "X", bad=["undo_reserve"])


def command(wanted: Wanted, handler: str, about: Message, *, replays: int = 0, who: str = "ada") -> Command:
    """A person's wish about the dead letter of a message, which was replayed so often before."""
    dead = ids.dead_id(SERVICE, SAGA, handler, about.id, replays)
    type_ = type_of(wanted)
    return Command(
        id=identity(OPERATOR, f"{wanted}-{who}-{replays}", type_, ""),
        type=type_,
        schema="",
        saga=SAGA,
        source=OPERATOR,
        time=time_after(0),
        value=b"",
        wanted=wanted,
        dead=dead,
        who=who,
        why="the cause is mended",
    )


def has_become(outcome: str, handler: str) -> AtTheEnd:
    """Check that, if there was a dead letter at all, a command about it has led to this."""

    def check(p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
        died = any(t.outcome == "dead" and t.handler == handler for t in entries)
        became = any(t.outcome == outcome and t.handler == handler for t in entries)
        return f"NEVER {outcome} {handler}" if died and not became else None

    return check


def at_last(*names: str) -> AtTheEnd:
    """Check that these handlers have run, unless one has died once more than it was replayed."""
    ran = has_run(*names)

    def check(p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
        return ran(p, entries) if stays_dead(p, entries) else None

    return check


def both(*checks: AtTheEnd) -> AtTheEnd:
    """Check all of these."""

    def check(p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
        return next((wrong for one in checks if (wrong := one(p, entries)) is not None), None)

    return check


def operators() -> Iterator[Scenario]:
    """All scenarios about commands."""
    yield from replays()
    yield from discards()
    yield from refusals()


def replays() -> Iterator[Scenario]:  # a list: one scenario after another
    """Dead letters that are tried again, with what they had got."""
    noted = of(reserve, note, attempts_max=1)
    again = command("replay", "reserve", ORD)
    ran = at_last("reserve", "note")
    yield Scenario(
        name="replay: crash",
        service=noted,
        a=(ORD, N),
        b=(again,),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=ran,
    )
    yield Scenario(
        name="replay: rebalance", service=noted, a=(ORD, N), b=(again,), fail=1, move=1, may_die=True, at_the_end=ran
    )
    yield Scenario(
        name="replay: lost answers", service=noted, a=(ORD, N), b=(again,), fail=1, lost=1, may_die=True, at_the_end=ran
    )
    yield Scenario(
        name="replay: of two steps, others queue",
        service=of(two_steps, pay, attempts_max=1),
        a=(ORD, command("replay", "two", ORD)),
        b=(N, command("replay", "pay", N)),
        fail=1,
        crash=1,
        owner=(0, 1),
        may_die=True,
        at_the_end=at_last("two", "pay"),
    )
    yield Scenario(
        name="replay: it dies again, and is replayed again",
        service=of(reserve, attempts_max=1),
        a=(ORD,),
        b=(again, command("replay", "reserve", ORD, replays=1)),
        fail=2,
        crash=1,
        may_die=True,
        at_the_end=at_last("reserve"),
    )
    yield Scenario(
        name="replay: two people want it",
        service=noted,
        a=(ORD, N),
        b=(again, command("replay", "reserve", ORD, who="bob")),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=ran,
    )
    yield Scenario(
        name="replay: what was read stays, while another saga gives",
        service=of(looks, attempts_max=1),
        a=(ORD,),
        b=(again,),
        stock=1,
        other=1,
        fail=1,
        may_die=True,
        at_the_end=at_last("reserve"),
    )
    for name, a, b in (("behind", (ORD, X), (again,)), ("before", (ORD,), (X, again)), ("beside", (ORD, again), (X,))):
        yield Scenario(
            name=f"replay: the outcome {name} it",
            service=of(reserve, attempts_max=1),
            a=a,
            b=b,
            fail=1,
            crash=1,
            may_die=True,
        )
    yield Scenario(
        name="replay: of a compensation",
        service=of(reserve, note),
        a=(ORD, ORD_UNDONE_BADLY, N),
        b=(command("replay", "undo_reserve", ORD_UNDONE_BADLY),),
        crash=1,
        may_die=True,
        at_the_end=has_become("replayed", "undo_reserve"),
    )
    yield Scenario(
        name="replay: of a fan-in",
        service=of(meet_step, attempts_max=1),
        a=(ORD, command("replay", "meet", ORD)),
        b=(Q, command("replay", "meet", Q)),
        fail=1,
        move=1,
        may_die=True,
        at_the_end=at_last("meet"),
    )


def discards() -> Iterator[Scenario]:  # a list: one scenario after another
    """Dead letters that are never handled; what their runs began is told to a person."""
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


def refusals() -> Iterator[Scenario]:
    """Dead letters that nobody may discard: they stay, and can be replayed."""
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


def stays_dead(p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
    """Check that a dead letter is still in the way."""
    return None if any(k.dead for k in (*p.queue, *p.compensating)) else "DISCARDED WHAT NOBODY MAY"
