"""Scenarios of runs that never finish and have registered abort actions."""

from collections.abc import Iterator

from verification.answer_scenarios import answers_before_aborts
from verification.building_blocks import ORD, STEP, N, X, note, of
from verification.handlers import Reacts
from verification.operator_scenarios import command
from verification.scenario import Scenario

emitter = Reacts(name="two", to=(("O",),), does=("step", "step"), emits=("R",), undo=("step", "step"), takes_back=True)
looker = Reacts(
    name="two",
    to=(("O",),),
    does=("nothing", "step", "look"),
    emits=("R",),
    undo=("nothing", "step", "nothing"),
    takes_back=True,
)
emitting_job = Reacts(name="job", to=(("O",),), does=STEP, turns=1, emits=("d",), undo=STEP, takes_back=True)


def taking_back() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of runs that never finish, and are aborted."""
    dying = of(emitter, note, attempts_max=1, parks=True)
    yield Scenario(name="taken back: crash", service=dying, a=(ORD,), b=(X, N), fail=1, crash=1, may_die=True)
    yield Scenario(name="taken back: rebalance", service=dying, a=(ORD,), b=(X,), fail=1, move=1, may_die=True)
    yield Scenario(name="taken back: lost answers", service=dying, a=(ORD,), b=(X,), fail=1, lost=1, may_die=True)
    yield Scenario(
        name="taken back: that fails too",
        service=of(emitter, parks=True, attempts_max=2),
        a=(ORD,),
        b=(X,),
        fail=3,
        may_die=True,
    )
    yield Scenario(
        name="taken back: that fails behind an answer",
        service=of(looker, attempts_max=1, parks=True),
        a=(ORD,),
        b=(X,),
        fail=3,
        counts_calls=True,
        may_die=True,
    )
    yield Scenario(
        name="taken back: and replayed by a person",
        service=dying,
        a=(ORD, command("replay", "two", ORD)),
        b=(X,),
        fail=1,
        crash=1,
        owner=(0, 1),
        may_die=True,
    )
    yield Scenario(
        name="taken back: discarded by a person",
        service=of(emitter, attempts_max=1),
        a=(ORD, command("discard", "two", ORD)),
        b=(X,),
        fail=1,
        crash=1,
        owner=(0, 1),
        may_die=True,
    )
    yield Scenario(
        name="taken back: turns that are over",
        service=of(emitting_job, attempts_max=1, parks=True),
        a=(ORD,),
        b=(X,),
        fail=1,
        crash=1,
        may_die=True,
    )
    yield from answers_before_aborts()
