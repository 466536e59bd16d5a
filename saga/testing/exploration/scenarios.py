"""What is explored: small services, messages in two topics, and how many faults of each kind may happen."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec

from saga.messages import Message
from saga.progress.document import Entry, Snapshot
from saga.testing.exploration.services import Explored, Reacts, message
from saga.testing.exploration.world import State, World

AtTheEnd = Callable[[Snapshot, tuple[Entry, ...]], str | None]


def nothing_more(p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
    """No promise of the scenario's own."""
    return None


def has_run(*names: str) -> AtTheEnd:
    """These handlers have run."""

    def check(p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
        ran = {t.handler for t in entries if t.outcome == "handled"}
        return next((f"NEVER RAN {name}" for name in names if name not in ran), None)

    return check


def has_ended(p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
    """The service has decided."""
    return None if p.outcome else "NO OUTCOME"


def told_of_other_content(p: Snapshot, entries: tuple[Entry, ...]) -> str | None:
    """A repetition with other content is a dead letter."""
    told = any(letter.reason.startswith("already handled with other content") for t in entries for letter in t.letters)
    return None if told else "OTHER CONTENT NOT TOLD"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One thing to explore."""

    name: str
    service: Explored
    a: tuple[Message, ...]
    b: tuple[Message, ...] = ()
    stock: int | None = None
    """How much the business document holds at first; `None`: there is none."""
    crash: int = 0
    move: int = 0
    """Rebalances; the old worker goes on as a zombie."""
    fail: int = 0
    """Steps that fail or whose answer is lost."""
    lost: int = 0
    """Writes and publishes whose answer is lost, landed or landing later."""
    evict: int = 0
    """Times that a worker drops its cache."""
    prune: int = 0
    """Markers dropped by others, once no intent of their cause is open."""
    other: int = 0
    """Times that another saga gives one to the business document."""
    owner: tuple[int, int] = (0, 0)
    may_die: bool = False
    """Whether dead letters are part of it."""
    at_the_end: AtTheEnd = nothing_more

    @property
    def logs(self) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        return self.a, self.b

    def deeper(self) -> "Scenario":
        """With one more fault of each kind that may happen."""
        more = {name: count + 1 for name in ("crash", "move", "fail", "lost") if (count := getattr(self, name))}
        return replace(self, **more)

    def first(self, world: World) -> State:
        """Where the search begins."""
        stock = 0 if self.stock is None else world.version(msgspec.json.encode({"left": self.stock}))
        return State(
            stock=stock,
            owner=self.owner,
            crash=self.crash,
            move=self.move,
            fail=self.fail,
            lost=self.lost,
            evict=self.evict,
            prune=self.prune,
            other=self.other,
        )


O, O_OTHER, O_SAME = message("o1", "O", "x"), message("o2", "O", "y"), message("o3", "O", "x")
N, M, Q, X = message("n1", "N"), message("m1", "M"), message("q1", "Q"), message("x1", "X")
S, F, G = message("s1", "S"), message("f1", "F"), message("g1", "G")
BAD_Q = message("q2", "Q", bad=True)

STEP = ("step",)
reserve = Reacts(name="reserve", to=(("O",),), does=STEP, emits=("R",), undo=STEP)
two_steps = Reacts(name="two", to=(("O",),), does=("step", "step"), emits=("R",))
two_undone = Reacts(name="two", to=(("O",),), does=("step", "step"), emits=("R",), undo=("step", "step"))
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


def of(*handlers: Reacts, attempts_max: int = 9, starts: frozenset[str] = frozenset()) -> Explored:
    """A service with these handlers; `X` is the failure outcome."""
    return Explored(handlers=handlers, outcomes=OUTCOMES, failures=FAILURE, starts=starts, attempts_max=attempts_max)


def scenarios() -> Iterator[Scenario]:
    """All of them, the shortest of each kind first."""
    two = of(two_steps, note)
    ran = has_run("two", "note")
    yield Scenario(
        name="two steps, another message between: crash", service=two, a=(O,), b=(N,), crash=1, move=1, at_the_end=ran
    )
    yield Scenario(name="two steps: a step fails", service=two, a=(O,), b=(N,), crash=1, fail=1, at_the_end=ran)
    yield Scenario(name="two steps: lost answers", service=two, a=(O,), b=(N,), move=1, lost=1, at_the_end=ran)
    yield Scenario(
        name="two steps: insert without a read",
        service=of(two_steps, note, starts=frozenset({"O"})),
        a=(O,),
        b=(N,),
        crash=1,
        owner=(0, 1),
        at_the_end=ran,
    )
    noted = has_run("reserve", "note")
    yield Scenario(
        name="a step fails, a rebalance",
        service=of(reserve, note),
        a=(O,),
        b=(N,),
        fail=1,
        move=1,
        crash=1,
        at_the_end=noted,
    )
    yield Scenario(
        name="a step fails, lost answers",
        service=of(reserve, note),
        a=(O,),
        b=(N,),
        fail=1,
        lost=1,
        crash=1,
        at_the_end=noted,
    )
    yield Scenario(
        name="stale cache: moves to and fro", service=of(reserve, note), a=(N, O), fail=1, move=2, at_the_end=noted
    )
    yield Scenario(
        name="stale cache: an exception",
        service=of(note, needs),
        a=(N, M),
        move=2,
        crash=1,
        at_the_end=has_run("note", "needs"),
    )
    yield Scenario(
        name="stale cache: an exception, two owners",
        service=of(note, needs, Reacts(name="third", to=(("K",),), emits=("kk",)), attempts_max=1),
        a=(message("k1", "K"), M),
        b=(N,),
        owner=(0, 1),
        may_die=True,
    )
    yield from _deciding()
    yield from _outcomes()
    yield from _fan_ins()
    yield from _documents()
    yield from _repetitions()
    yield from _dead_letters()


def _deciding() -> Iterator[Scenario]:
    decider = of(place, confirm, cancel)
    for name, crash, move, lost in (("crash", 1, 0, 0), ("rebalance", 0, 1, 0), ("lost answers", 0, 1, 1)):
        yield Scenario(
            name=f"the decider's race: {name}",
            service=decider,
            a=(O, S),
            b=(F,),
            crash=crash,
            move=move,
            lost=lost,
            at_the_end=has_ended,
        )
    by_step = of(place, cancel_by_step)
    yield Scenario(
        name="the decider's race: by a step", service=by_step, a=(O,), b=(F,), move=1, fail=1, at_the_end=has_ended
    )
    yield Scenario(
        name="the decider's race: crash and lost",
        service=decider,
        a=(O, S),
        b=(F,),
        lost=1,
        crash=1,
        at_the_end=has_ended,
    )
    yield Scenario(
        name="two kinds of failure", service=of(place, cancel), a=(O, F), b=(G,), crash=1, move=1, at_the_end=has_ended
    )
    yield Scenario(
        name="two kinds of failure: by a step", service=by_step, a=(O, F), b=(G,), crash=1, fail=1, at_the_end=has_ended
    )
    own = Explored(handlers=(reserve, give_up), outcomes=FAILURE, failures=FAILURE)
    yield Scenario(name="an own failure outcome", service=own, a=(O,), b=(F,), crash=1, fail=1)
    yield Scenario(name="an own failure outcome: rebalance", service=own, a=(O,), b=(F,), crash=1, move=1)


def _outcomes() -> Iterator[Scenario]:
    for name, crash, move, fail, lost in (
        ("crash, rebalance", 1, 1, 0, 0),
        ("a step fails, zombie", 0, 1, 2, 0),
        ("lost answers, zombie", 0, 1, 0, 1),
        ("lost answers, crash", 1, 1, 0, 1),
    ):
        yield Scenario(
            name=f"the outcome, at any time: {name}",
            service=of(reserve),
            a=(O,),
            b=(X,),
            crash=crash,
            move=move,
            fail=fail,
            lost=lost,
        )
    yield Scenario(name="the outcome: two steps to undo", service=of(two_undone), a=(O,), b=(X,), crash=1, move=1)
    yield Scenario(
        name="the outcome: with a note",
        service=of(reserve, note),
        a=(O, N),
        b=(X,),
        crash=1,
        fail=1,
        at_the_end=has_run("note"),
    )
    yield Scenario(
        name="the outcome: another's intent",
        service=of(reserve, pay),
        a=(O, N),
        b=(X,),
        crash=1,
        fail=1,
        owner=(0, 1),
        at_the_end=has_run("pay"),
    )
    yield Scenario(
        name="the outcome: an own part withdrawn", service=of(reserve_own, join), a=(O, Q), b=(X,), crash=1, fail=1
    )
    yield Scenario(name="the outcome: two originals", service=of(reserve), a=(O, O_SAME), b=(X,), crash=1, move=1)
    yield Scenario(name="the outcome: a fan-in undone", service=of(meet_undone), a=(O, X), b=(Q,), crash=1, move=1)
    yield Scenario(
        name="the outcome: two handlers undone", service=of(reserve, hold), a=(O, N), b=(X,), crash=1, fail=1
    )
    yield Scenario(name="many: undone one by one", service=of(many), a=(O, O_OTHER), b=(X,), crash=1, move=1)
    yield Scenario(name="many: a step fails", service=of(many), a=(O, O_OTHER), b=(X,), fail=1, move=1)
    yield Scenario(name="many: two owners", service=of(many), a=(O,), b=(O_OTHER, X), crash=1, lost=1, owner=(0, 1))


def _fan_ins() -> Iterator[Scenario]:
    ran = has_run("place", "join")
    yield Scenario(
        name="a fan-in with an own part", service=of(place, join), a=(O,), b=(Q,), crash=1, move=1, at_the_end=ran
    )
    yield Scenario(
        name="a fan-in with an own part: by a step",
        service=of(place, join_step, note),
        a=(O, N),
        b=(Q,),
        crash=1,
        fail=1,
        at_the_end=ran,
    )
    yield Scenario(
        name="a fan-in of others",
        service=of(meet_step, note),
        a=(O, N),
        b=(Q,),
        crash=1,
        fail=1,
        at_the_end=has_run("meet", "note"),
    )
    yield Scenario(
        name="a settle chain of three",
        service=of(place, on_own, after_that, last_of_all),
        a=(O,),
        crash=3,
        at_the_end=has_run("last_of_all"),
    )
    yield Scenario(
        name="a settle chain: rebalance",
        service=of(place, on_own, after_that),
        a=(O,),
        crash=2,
        move=1,
        at_the_end=has_run("after_that"),
    )
    yield Scenario(
        name="a zombie settles a chain",
        service=of(place, on_own, note),
        a=(N,),
        b=(O,),
        crash=1,
        move=1,
        owner=(0, 1),
        at_the_end=has_run("on_own", "note"),
    )
    yield Scenario(
        name="a zombie settles a wait",
        service=of(meet, note),
        a=(N, O),
        b=(Q,),
        crash=1,
        move=1,
        owner=(0, 1),
        at_the_end=has_run("meet", "note"),
    )
    yield Scenario(
        name="a step on an own event, two owners",
        service=of(place, on_own_step, note),
        a=(O,),
        b=(N,),
        crash=1,
        owner=(0, 1),
        at_the_end=has_run("on_own", "note"),
    )
    yield Scenario(
        name="a step on an own event fails",
        service=of(place, on_own_step, note),
        a=(O,),
        b=(N,),
        fail=1,
        crash=1,
        at_the_end=has_run("on_own", "note"),
    )
    yield Scenario(
        name="a queue behind an intent",
        service=of(reserve, note, memo),
        a=(O, N),
        b=(M,),
        crash=1,
        fail=1,
        at_the_end=has_run("reserve", "note", "memo"),
    )
    yield Scenario(
        name="a queue behind an intent: rebalance",
        service=of(reserve, note, memo),
        a=(O, N, M),
        fail=1,
        move=1,
        at_the_end=has_run("reserve", "note", "memo"),
    )
    both = of(reserve, Reacts(name="log", to=(("O",), ("P",)), emits=("g",)), pay)
    yield Scenario(
        name="two handlers of one message",
        service=both,
        a=(O,),
        b=(N,),
        crash=1,
        move=1,
        fail=1,
        at_the_end=has_run("reserve", "pay"),
    )


def _documents() -> Iterator[Scenario]:
    yield Scenario(name="an update", service=of(take), a=(O,), b=(X,), stock=1, crash=1, move=1)
    yield Scenario(name="an update refused", service=of(take, back), a=(O,), b=(N,), stock=0, crash=1, move=1)
    yield Scenario(name="an update refused: undone", service=of(take, back), a=(O,), b=(N, X), stock=0, crash=1)
    yield Scenario(name="an update: lost answers", service=of(take), a=(O,), b=(X,), stock=1, lost=1, move=1)
    yield Scenario(
        name="an update of an absent document",
        service=of(take, attempts_max=1),
        a=(O,),
        b=(X,),
        crash=1,
        move=1,
        may_die=True,
    )
    yield Scenario(name="an update that may create, refused", service=of(take_or_open), a=(O,), b=(X,), crash=1, move=1)
    yield Scenario(
        name="an update, then a step that dies",
        service=of(take_step, attempts_max=1),
        a=(O,),
        b=(X,),
        stock=1,
        fail=1,
        move=1,
        may_die=True,
    )
    yield Scenario(
        name="a step, then an update, zombies",
        service=of(step_take, attempts_max=1),
        a=(O,),
        b=(X,),
        stock=1,
        fail=1,
        move=2,
        may_die=True,
    )

    yield Scenario(name="an update, its marker pruned", service=of(take), a=(O,), b=(X,), stock=2, move=1, prune=1)
    yield Scenario(
        name="an update refused while another saga gives", service=of(take), a=(O,), b=(X,), stock=0, move=1, other=1
    )
    yield Scenario(
        name="an update refused while another saga gives, handled",
        service=of(take, note),
        a=(O, N),
        stock=0,
        move=1,
        other=1,
        crash=1,
    )
    yield Scenario(
        name="a dead update, a zombie inside it",
        service=of(take, attempts_max=1),
        a=(O,),
        b=(X,),
        move=1,
        other=1,
        may_die=True,
    )


def _repetitions() -> Iterator[Scenario]:
    yield Scenario(
        name="a repetition with equal content", service=of(reserve, note), a=(O, O_SAME), b=(N,), crash=1, fail=1
    )
    yield Scenario(
        name="a repetition with other content",
        service=of(reserve, note),
        a=(O, O_OTHER),
        b=(N,),
        crash=1,
        move=1,
        may_die=True,
        at_the_end=told_of_other_content,
    )
    yield Scenario(
        name="a late original, published again", service=of(reserve, note), a=(O, O), b=(N,), crash=1, move=1
    )
    yield Scenario(name="a stray duplicate, no cache", service=of(reserve), a=(O, O), b=(O,), evict=2, move=1, fail=1)
    yield Scenario(
        name="a part with other content",
        service=of(meet),
        a=(O, O_OTHER),
        b=(Q,),
        crash=1,
        may_die=True,
        at_the_end=told_of_other_content,
    )


def _dead_letters() -> Iterator[Scenario]:
    dying = of(reserve, note, attempts_max=1)
    yield Scenario(
        name="a dead letter, then the failure outcome", service=dying, a=(O, N), b=(X,), fail=1, crash=1, may_die=True
    )
    yield Scenario(name="a dead letter: rebalance", service=dying, a=(O, N), b=(X,), fail=1, move=1, may_die=True)
    yield Scenario(
        name="a dead letter, another's result",
        service=of(reserve, hold, attempts_max=1),
        a=(O, N),
        b=(X,),
        fail=1,
        crash=1,
        may_die=True,
    )
    yield Scenario(
        name="a dead letter without an intent",
        service=of(
            Reacts(name="reserve", to=(("O",),), does=STEP, emits=("R",), undo=STEP, needs="note"), note, attempts_max=1
        ),
        a=(O, N),
        b=(X,),
        crash=1,
        move=1,
        may_die=True,
        at_the_end=has_run("note"),
    )
    yield Scenario(
        name="a part that cannot be decoded",
        service=of(meet, note),
        a=(O, BAD_Q),
        b=(N,),
        crash=1,
        move=1,
        may_die=True,
    )
