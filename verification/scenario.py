"""A scenario: a small service, messages in two topics, and how many faults of each kind may happen."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from saga.messages import Message
from saga.messaging import controls
from saga.messaging.controls import ControlLog
from saga.progress.document import SagaProgress, Transition
from verification.environment import BOOK, OTHERS, others_progress
from verification.services import Explored
from verification.state import State
from verification.state_space import StateSpace

AtTheEnd = Callable[[SagaProgress, tuple[Transition, ...]], str | None]


def nothing_more(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check nothing, for a scenario without a guarantee of its own."""
    return None


def has_run(*names: str) -> AtTheEnd:
    """Check that these handlers have run."""

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        ran = {t.handler for t in entries if t.outcome == "handled"}
        return next((f"NEVER RAN {name}" for name in names if name not in ran), None)

    return check


def has_ended(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that the service has emitted an outcome."""
    return None if p.outcome else "NO OUTCOME"


def runs_once(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that exactly one run was made."""
    count = sum(t.outcome == "handled" for t in entries)
    return None if count == 1 else f"{count} RUNS"


def check_other_content_reported(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that a repeated message with different content has become a dead letter."""
    reported = any(
        letter.reason.startswith("already handled with other content") for t in entries for letter in t.letters
    )
    return None if reported else "OTHER CONTENT NOT REPORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A scenario to explore. A number is the maximum number of times that a fault may happen, unless its description
    says otherwise."""

    name: str
    service: Explored
    a: tuple[Message, ...]
    b: tuple[Message, ...] = ()
    stock: int | None = None
    """Initial stock in the business document; `None` if there is no document."""
    crash: int = 0
    move: int = 0
    """Rebalances, after which the old worker continues as a zombie."""
    fail: int = 0
    """Steps that fail, or whose answer is lost."""
    lost: int = 0
    """Writes and publishes whose answer is lost. They take effect at once or later."""
    evict: int = 0
    """Times that a worker drops its cache."""
    prune: int = 0
    """Markers in documents that are removed by others, after the intents of their causes have ended."""
    other: int = 0
    """Times that another saga gives one item to the business document."""
    batch: int = 0
    """Updates that go into one replace with an update of another saga."""
    age: int = 0
    """Times that more than half of the retention passes."""
    ahead: int = 0
    """Turns of a worker whose clock is ahead by more than the retention."""
    fast: int = 0
    """Messages that a worker handles while its clock is slightly ahead."""
    early: int = 0
    """Timers that come before their time."""
    again: int = 0
    """Times that the second topic is deleted and created again."""
    grows: bool = False
    """True if messages are published one by one at any time, instead of all before the beginning. Then the log at the
    due time of a deadline may be short or long."""
    steady: bool = False
    """True if workers wait for timers by a clock that is never ahead, even if the date on their machine is ahead."""
    books: tuple[ControlLog, ...] = ()
    """The initial control log, followed by the ones that operators write later, at any time. If there are no logs, no
    run reads the control log."""
    owner: tuple[int, int] = (0, 0)
    ticks_max: int = 5
    """Largest number of ticks that pass."""
    wakes_at: int = 0
    """Number of the worker that owns the log of timers at the beginning."""
    wakes_max: int = 8
    """Largest number of timers that may be published. More of them are a violation: timers multiply."""
    counts_calls: bool = False
    """True if it is a violation that a worker makes a step again after it was answered, without a crash."""
    stranger: bool = False
    """True if the second worker belongs to another project that has a service of the same name. It has an empty store
    of its own, and only the log of timers moves to it."""
    may_die: bool = False
    """True if dead letters are allowed."""
    at_the_end: AtTheEnd = nothing_more

    @property
    def logs(self) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        return self.a, self.b

    def deeper(self) -> "Scenario":
        """Return the same scenario with one more fault of each of its kinds."""
        more = {name: count + 1 for name in ("crash", "move", "fail", "lost") if (count := getattr(self, name))}
        # Each additional fault may bring another copy of a timer, which no live worker holds and finishes.
        return replace(self, **more, wakes_max=3 * self.wakes_max)

    def space(self) -> StateSpace:
        """Return a new state space for the scenario."""
        return StateSpace(
            self.service,
            self.logs,
            batched=bool(self.batch),
            books=self.books,
            counts_calls=self.counts_calls,
            stranger=self.stranger,
            grows=self.grows,
            steady=self.steady,
        )

    def first(self, space: StateSpace) -> State:
        """Return the state in which the search begins."""
        stock = 0 if self.stock is None else space.version(msgspec.json.encode({"left": self.stock}))
        begun = ((OTHERS, space.version(others_progress(ended=False))),) if self.batch else ()
        if self.books:
            begun = (*begun, (BOOK, space.version(controls.encode(self.books[0]))))
        return State(
            rest=begun,
            stock=stock,
            owner=(*self.owner, self.wakes_at),
            crash=self.crash,
            move=self.move,
            fail=self.fail,
            lost=self.lost,
            evict=self.evict,
            prune=self.prune,
            other=self.other,
            batch=self.batch,
            age=self.age,
            ahead=self.ahead,
            early=self.early,
            fast=self.fast,
            again=self.again,
            ticks_max=self.ticks_max,
            ends=(0, 0) if self.grows else (len(self.a), len(self.b)),
        )
