"""Messages and handlers from which scenarios are built."""

from verification.handlers import Reacts
from verification.services import Explored, message

ORD, OTHER, SAME = message("o1", "O", "x"), message("o2", "O", "y"), message("o3", "O", "x")
N, M, Q, X = message("n1", "N"), message("m1", "M"), message("q1", "Q"), message("x1", "X")
NEXT_N = message("n2", "N")
S, F, G = message("s1", "S"), message("f1", "F"), message("g1", "G")
BAD_Q = message("q2", "Q", bad=True)
BAD_F = message("f2", "F", bad=True)

STEP = ("step",)
reserve = Reacts(name="reserve", to=(("O",),), does=STEP, emits=("R",), undo=STEP)
step_look = Reacts(name="reserve", to=(("O",),), does=("step", "look"), emits=("R",), undo=("step", "nothing"))
two_steps = Reacts(name="two", to=(("O",),), does=("step", "step"), emits=("R",))
two_undone = Reacts(name="two", to=(("O",),), does=("step", "step"), emits=("R",), undo=("step", "step"))
two_events = Reacts(name="two", to=(("O",),), emits=("P", "R"))
note = Reacts(name="note", to=(("N",),), emits=("n",))
memo = Reacts(name="memo", to=(("M",),), emits=("k",))
pay = Reacts(name="pay", to=(("N",),), does=STEP, emits=("n",))
hold = Reacts(name="hold", to=(("N",),), does=STEP, emits=("h",), undo=STEP)
place = Reacts(name="place", to=(("O",),), emits=("P",))
confirm = Reacts(name="confirm", to=(("S",),), emits=("Confirmed",))
cancel = Reacts(name="cancel", to=(("F", "G"),), emits=("Cancelled",))
cancel_by_step = Reacts(name="cancel", to=(("F", "G"),), does=STEP, emits=("Cancelled",))
give_up = Reacts(name="give_up", to=(("F",),), emits=("X",))
on_own = Reacts(name="on_own", to=(("P",),), emits=("P2",))
on_own_step = Reacts(name="on_own", to=(("P",),), does=STEP, emits=("P2",))
after_that = Reacts(name="after_that", to=(("P2",),), emits=("P3",))
last_of_all = Reacts(name="last_of_all", to=(("P3",),), emits=("P4",))
reserve_own = Reacts(name="reserve", to=(("O",),), does=STEP, emits=("P",), undo=STEP)
join = Reacts(name="join", to=(("Q",), ("P",)), emits=("j",))
join_step = Reacts(name="join", to=(("Q",), ("P",)), does=STEP, emits=("j",))
join_each = Reacts(name="join", to=(("N",), ("P",)), emits=("j",), many=True)
look_each = Reacts(name="look", to=(("N",),), does=("look",), emits=("n",), many=True)
look_each_own = Reacts(name="look", to=(("N",), ("P",)), does=("look",), emits=("n",), many=True)
look_own = Reacts(name="look", to=(("P",),), does=("look",), emits=("n",))
meet = Reacts(name="meet", to=(("O",), ("Q",)), emits=("j",))
meet_step = Reacts(name="meet", to=(("O",), ("Q",)), does=STEP, emits=("j",))
meet_undone = Reacts(name="meet", to=(("O",), ("Q",)), does=STEP, emits=("j",), undo=STEP)
many = Reacts(name="reserve", to=(("O",),), does=STEP, emits=("R",), undo=STEP, many=True)
needs = Reacts(name="needs", to=(("M",),), emits=("k",), needs="note")
take = Reacts(name="take", to=(("O",),), does=("take",), emits=("R",), undo=("give",))
take_or_open = Reacts(name="take", to=(("O",),), does=("take or open",), emits=("R",), undo=("give or open",))
take_step = Reacts(name="take", to=(("O",),), does=("take", "step"), emits=("R",), undo=("give", "step"))
step_take = Reacts(name="take", to=(("O",),), does=("step", "take"), emits=("R",), undo=("step", "give"))
back = Reacts(name="back", to=(("N",),), does=("give",), emits=("b",))

FAILURE = frozenset({"X"})
OUTCOMES = frozenset({"Confirmed", "Cancelled", "X"})


def of(
    *handlers: Reacts,
    attempts_max: int = 9,
    starts: frozenset[str] = frozenset(),
    added: tuple[Reacts, ...] = (),
    tight: bool = False,
    parks: bool = False,
) -> Explored:
    """Return a service with these handlers, whose failure outcome is `X`. `added`: handlers that only a later release
    has."""
    return Explored(
        handlers=handlers,
        outcomes=OUTCOMES,
        failures=FAILURE,
        starts=starts,
        attempts_max=attempts_max,
        added=added,
        tight=tight,
        parks=parks,
    )
