"""Scenarios about business documents and dead letters."""

from collections.abc import Iterator

from verification.building_blocks import (
    BAD_Q,
    ORD,
    OTHER,
    STEP,
    N,
    X,
    back,
    hold,
    many,
    meet,
    note,
    of,
    reserve,
    step_take,
    take,
    take_or_open,
    take_step,
)
from verification.handlers import Reacts
from verification.scenario import Scenario, has_run


def documents() -> Iterator[Scenario]:
    """Yield scenarios of updates of the business document: refused updates, updates of an absent document, updates by
    zombies, and updates alongside other sagas."""
    yield Scenario(name="an update", service=of(take), a=(ORD,), b=(X,), stock=1, crash=1, move=1)
    yield Scenario(name="an update refused", service=of(take, back), a=(ORD,), b=(N,), stock=0, crash=1, move=1)
    yield Scenario(name="an update refused: undone", service=of(take, back), a=(ORD,), b=(N, X), stock=0, crash=1)
    yield Scenario(name="an update: lost answers", service=of(take), a=(ORD,), b=(X,), stock=1, lost=1, move=1)
    yield Scenario(
        name="an update of an absent document",
        service=of(take, attempts_max=1),
        a=(ORD,),
        b=(X,),
        crash=1,
        move=1,
        may_die=True,
    )
    yield Scenario(
        name="an update that may create, refused", service=of(take_or_open), a=(ORD,), b=(X,), crash=1, move=1
    )
    yield Scenario(
        name="an update, then a step that dies",
        service=of(take_step, attempts_max=1),
        a=(ORD,),
        b=(X,),
        stock=1,
        fail=1,
        move=1,
        may_die=True,
    )
    yield Scenario(
        name="a step, then an update, zombies",
        service=of(step_take, attempts_max=1),
        a=(ORD,),
        b=(X,),
        stock=1,
        fail=1,
        move=2,
        may_die=True,
    )

    yield Scenario(name="an update, its marker pruned", service=of(take), a=(ORD,), b=(X,), stock=2, move=1, prune=1)
    yield Scenario(
        name="an update refused while another saga gives",
        service=of(take),
        a=(ORD,),
        b=(X,),
        stock=0,
        move=1,
        other=1,
    )
    yield Scenario(
        name="an update refused while another saga gives, handled",
        service=of(take, note),
        a=(ORD, N),
        stock=0,
        move=1,
        other=1,
        crash=1,
    )
    yield Scenario(
        name="a dead update, a zombie inside it",
        service=of(take, attempts_max=1),
        a=(ORD,),
        b=(X,),
        move=1,
        other=1,
        may_die=True,
    )


def dead_letters() -> Iterator[Scenario]:
    """Yield scenarios of messages that become dead letters, and of the messages behind them."""
    dying = of(reserve, note, attempts_max=1)
    yield Scenario(
        name="a dead letter, then the failure outcome",
        service=dying,
        a=(ORD, N),
        b=(X,),
        fail=1,
        crash=1,
        may_die=True,
    )
    yield Scenario(name="a dead letter: rebalance", service=dying, a=(ORD, N), b=(X,), fail=1, move=1, may_die=True)
    yield Scenario(
        name="a dead letter, another's result",
        service=of(reserve, hold, attempts_max=1),
        a=(ORD, N),
        b=(X,),
        fail=1,
        crash=1,
        may_die=True,
    )
    yield Scenario(
        name="a dead letter of many, two owners",
        service=of(many, attempts_max=1),
        a=(X,),
        b=(ORD, OTHER),
        fail=1,
        owner=(0, 1),
        may_die=True,
    )
    yield Scenario(
        name="a dead letter without an intent",
        service=of(
            Reacts(name="reserve", to=(("O",),), does=STEP, emits=("R",), undo=STEP, needs="note"), note, attempts_max=1
        ),
        a=(ORD, N),
        b=(X,),
        crash=1,
        move=1,
        may_die=True,
        at_the_end=has_run("note"),
    )
    yield Scenario(
        name="a part that cannot be decoded",
        service=of(meet, note),
        a=(ORD, BAD_Q),
        b=(N,),
        crash=1,
        move=1,
        may_die=True,
    )
