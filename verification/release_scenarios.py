"""Scenarios about parked runs that operators release, whenever the command comes."""

from collections.abc import Iterator

from saga.messages import Message
from saga.messaging.operator_commands import OperatorCommand
from saga.progress import ids
from saga.progress.document import SagaProgress, Transition
from verification.building_blocks import ORD, M, N, X, memo, note, of, reserve, reserve_own, two_steps
from verification.handlers import SAGA, SERVICE
from verification.operations import NOW_MS, TICK_MS
from verification.operator_scenarios import both, command
from verification.scenario import AtTheEnd, Scenario, has_run


def release(handler: str, about: Message, who: str = "ada") -> OperatorCommand:
    """Make the command that releases a run that is parked for the first time, before any time has passed."""
    wait = ids.parked_id(SERVICE, SAGA, handler, about.id, 1, NOW_MS + TICK_MS)
    return command("release", handler, about, who=who, names=wait)


def released_at_most(count: int) -> AtTheEnd:
    """Check that operators have released at most `count` runs."""

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        found = sum(t.outcome == "released" for t in entries)
        return f"RELEASED {found} TIMES" if found > count else None

    return check


def releases() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of parked runs that are released, together with other things that may happen meanwhile."""
    wish = release("reserve", ORD)
    reserved = both(has_run("reserve"), released_at_most(1))
    noted = both(has_run("reserve", "note"), released_at_most(1))
    parks = of(reserve, note, parks=True)
    yield Scenario(name="release: crash", service=parks, a=(ORD, N), b=(wish,), fail=1, crash=1, at_the_end=noted)
    yield Scenario(name="release: rebalance", service=parks, a=(ORD, N), b=(wish,), fail=1, move=1, at_the_end=noted)
    yield Scenario(
        name="release: lost answers",
        service=of(reserve, parks=True),
        a=(ORD,),
        b=(wish,),
        fail=1,
        lost=1,
        at_the_end=reserved,
    )
    yield Scenario(
        name="release: two owners, an old cache",
        service=of(reserve, parks=True),
        a=(ORD, ORD),
        b=(wish,),
        fail=1,
        owner=(0, 1),
        at_the_end=reserved,
    )
    yield Scenario(
        name="release: it fails again, and two people want it",
        service=of(reserve, parks=True),
        a=(ORD,),
        b=(wish, release("reserve", ORD, who="bob")),
        fail=2,
        crash=1,
        wakes_max=24,  # each of five messages may read it again after the crash, and publish it again
        at_the_end=reserved,
    )
    yield Scenario(
        name="release: of two steps, others queue",
        service=of(two_steps, note, memo, parks=True),
        a=(ORD, N),
        b=(M, release("two", ORD)),
        fail=1,
        crash=1,
        at_the_end=both(has_run("two", "note", "memo"), released_at_most(1)),
    )
    yield Scenario(
        name="release: wakes come too early",
        service=of(reserve, parks=True),
        a=(ORD,),
        b=(wish,),
        fail=1,
        early=1,
        crash=1,
        at_the_end=reserved,
    )
    yield Scenario(
        name="release: the outcome comes meanwhile",
        service=of(reserve, parks=True),
        a=(ORD, wish),
        b=(X,),
        fail=1,
        crash=1,
        at_the_end=released_at_most(1),
    )
    yield Scenario(
        name="release: of a compensation",
        service=of(reserve_own, parks=True),
        a=(ORD, X),
        b=(release("reserve", X),),
        fail=1,
        move=1,
        at_the_end=released_at_most(1),
    )
