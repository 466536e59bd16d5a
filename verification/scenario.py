"""Scenario: a small service, messages in two topics, and how many faults of each kind may happen."""

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
    """Check nothing: the scenario has no promise of its own."""
    return None


def has_run(*names: str) -> AtTheEnd:
    """Check that these handlers have run."""

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        ran = {t.handler for t in entries if t.outcome == "handled"}
        return next((f"NEVER RAN {name}" for name in names if name not in ran), None)

    return check


def has_ended(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that the service has decided."""
    return None if p.outcome else "NO OUTCOME"


def runs_once(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that no more than one run was made."""
    count = sum(t.outcome == "handled" for t in entries)
    return None if count == 1 else f"{count} RUNS"


def check_other_content_reported(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that a repetition with other content is a dead letter."""
    reported = any(
        letter.reason.startswith("already handled with other content") for t in entries for letter in t.letters
    )
    return None if reported else "OTHER CONTENT NOT REPORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Scenario to explore; each number is how often something may happen."""

    name: str
    service: Explored
    a: tuple[Message, ...]
    b: tuple[Message, ...] = ()
    stock: int | None = None
    """Stock that the business document holds at first; `None`: there is none."""
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
    batch: int = 0
    """Updates that go into one replace with another saga's."""
    age: int = 0
    """Times that more than half of the memory passes."""
    ahead: int = 0
    """Turns of a worker whose clock is ahead by more than the memory."""
    fast: int = 0
    """Messages that a worker takes by a clock that is ahead by a little."""
    early: int = 0
    """Wakes that come before their time."""
    again: int = 0
    """Times that the second topic is deleted and created again."""
    grows: bool = False
    """True if messages are published one by one, at any time, and not before all begins: then what the log held when a
    deadline was due is a choice."""
    steady: bool = False
    """True if wakes come by a clock that is never ahead, though the date may be."""
    books: tuple[ControlLog, ...] = ()
    """Book of controls at first, and as people write it on: at any time after. Without it no run looks into one."""
    owner: tuple[int, int] = (0, 0)
    ticks_max: int = 5
    """Times that it becomes later, at most."""
    wakes_at: int = 0
    """Owner of the log of wakes."""
    wakes_max: int = 8
    """Wakes that are published, at most: more, and they multiply."""
    counts_calls: bool = False
    """True if no worker may make a call twice, as long as it lives."""
    stranger: bool = False
    """True if the second worker is of another project with a service of that name: it has an empty store of its own.
    Only the log of wakes moves."""
    may_die: bool = False
    """True if dead letters are part of it."""
    at_the_end: AtTheEnd = nothing_more

    @property
    def logs(self) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
        return self.a, self.b

    def deeper(self) -> "Scenario":
        """The same scenario with one more fault of each kind that may happen."""
        more = {name: count + 1 for name in ("crash", "move", "fail", "lost") if (count := getattr(self, name))}
        # Each more may bring another copy of a wake, which no worker is there to hold and to finish.
        return replace(self, **more, wakes_max=3 * self.wakes_max)

    def space(self) -> StateSpace:
        """Its state space, with nothing visited yet."""
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
        """State in which the search begins."""
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
