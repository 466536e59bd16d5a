"""Fault plans: the fault of each operation, drawn from the seed at the requested rates, or taken from a schedule."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import unpack
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias, get_args

from saga.errors import SagaError
from saga.testing.fault_kinds import KINDS, FaultKind, FaultRule, Faults


class Chance:
    """The random numbers of one run, each derived from the seed and a text, so that draws do not
    depend on their order.
    """

    __slots__ = ("_key", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._key = seed.to_bytes(8, "little", signed=True)

    def draw(self, what: str) -> float:
        """Return a number from 0 up to but not including 1.

        >>> Chance(1).draw("payment-1#3") == Chance(1).draw("payment-1#3") != Chance(2).draw("payment-1#3")
        True
        """
        (number,) = unpack("<Q", blake2b(what.encode(), digest_size=8, key=self._key).digest())
        drawn: float = (number >> 11) / (1 << 53)
        return drawn

    def draws(self, what: str) -> tuple[float, float, float, float]:
        """Return four numbers at once, which is cheaper than four calls of `draw`."""
        a, b, c, d = unpack("<IIII", blake2b(what.encode(), digest_size=16, key=self._key).digest())
        return a / (1 << 32), b / (1 << 32), c / (1 << 32), d / (1 << 32)


What: TypeAlias = Literal["get", "insert", "replace", "remove", "changes", "publish", "poll", "commit", "step"]

WRITES = frozenset[What]({"insert", "replace", "remove"})
READS = frozenset[What]({"get", "changes"})
STORE = WRITES | READS
PUBLISH = frozenset[What]({"publish"})
EVERY = frozenset[What](get_args(What))
POSSIBLE: Mapping[FaultKind, frozenset[What]] = {
    "crash": EVERY,
    "lost answer": EVERY - READS - {"poll"},
    "late answer": EVERY - READS - {"poll", "commit"},
    "duplicate": PUBLISH,
    "delay": EVERY - {"poll"},
    "partition": EVERY - {"step"},
    "freeze": EVERY,
    "rebalance": EVERY,
    "clock": EVERY,
    "full disk": WRITES | PUBLISH,
    "slow store": STORE,
    "throttle": STORE,
    "expiry": PUBLISH,
    "newer schema": PUBLISH,
    "poison": PUBLISH,
    "deploy": EVERY,
    "gap": frozenset[What]({"changes"}),
    "recreated topic": PUBLISH,
    "slow handler": frozenset[What]({"step"}),
    "outage": EVERY,
    "lag": PUBLISH,
    "backlog": EVERY,
    "other partitioner": PUBLISH,
}
"""Operations that each kind of fault can happen to."""
WAYS: Mapping[FaultKind, tuple[str, str]] = {
    "crash": (" before", " after"),
    "partition": (" of the service", " of the process"),
}
"""Kinds of faults with two variants, and the names of these in a schedule."""
APPLICATION = "application"
"""Name of the process that publishes from outside the services: it does not crash."""
OF_APPLICATION: frozenset[FaultKind] = frozenset({"duplicate", "expiry", "poison", "newer schema", "other partitioner"})
"""Kinds of faults that happen to what the application publishes. `other partitioner` happens to nothing else, because
services use our partitioner.
"""


class Operation(NamedTuple):
    """One request of a process to a store, the broker or an external system."""

    process: str
    service: str
    number: int
    """Number among the operations of this process, including its earlier lives."""
    what: What
    where: str
    """What the operation is about, as shown to people."""
    names: tuple[str, ...]
    """Names that a fault's target is compared with: the topics of a publish, `service.handler` of a step."""


class Planned(NamedTuple):
    """A fault and the operation that it hits. Its duration and extent follow from the seed."""

    process: str
    number: int
    kind: FaultKind
    after: bool = False
    """True for a crash after the operation has taken effect, and for a partition of this process alone."""

    def __str__(self) -> str:
        return f"{self.process}#{self.number} {self.kind}{WAYS.get(self.kind, ('', ''))[self.after]}"

    @classmethod
    def parsed(cls, text: str) -> "Planned":
        """Parse a text that `str` made. Raises `SagaError`.

        >>> Planned.parsed("payment-1#12 crash after")
        Planned(process='payment-1', number=12, kind='crash', after=True)
        """
        where, _, what = text.partition(" ")
        process, _, number = where.rpartition("#")
        for kind in KINDS if process and number.isdigit() else ():
            for after, way in enumerate(WAYS.get(kind, ("",))):
                if f"{kind}{way}" == what:
                    return cls(process, int(number), kind, bool(after))
        raise SagaError(f"{text!r} is no fault of a schedule: it reads `payment-1#12 crash after`")


class Plan(Protocol):
    """Decides on the fault of each operation."""

    def at(self, operation: Operation, now_s: float) -> Planned | None:
        """Return the fault of this operation, if any."""


@dataclass(slots=True)
class RandomPlan:
    """A plan that draws for each operation: at most one fault each."""

    faults: Faults
    chance: Chance
    _fitting: dict[tuple[str, What, tuple[str, ...]], tuple[FaultRule, ...]] = field(default_factory=dict)

    def at(self, operation: Operation, now_s: float) -> Planned | None:
        key = (operation.service, operation.what, operation.names)
        rules = self._fitting.get(key)
        if rules is None:
            rules = self._fitting[key] = self._rules(operation)
        if not rules:
            return None
        drawn = self.chance.draw(f"{operation.process}#{operation.number}!")
        for rule in rules:
            if rule.window_s is not None and not rule.window_s[0] <= now_s < rule.window_s[1]:
                continue
            if drawn < rule.rate:
                after = rule.kind in WAYS and drawn < rule.rate / 2
                return Planned(operation.process, operation.number, rule.kind, after)
            drawn -= rule.rate
        return None

    def _rules(self, operation: Operation) -> tuple[FaultRule, ...]:
        names = (operation.service, *operation.names)
        return tuple(
            rule
            for rule in self.faults.rules
            if operation.what in POSSIBLE[rule.kind]
            and rule.hits(names)
            and (rule.kind in OF_APPLICATION if operation.service == APPLICATION else rule.kind != "other partitioner")
        )


class ScheduledPlan:
    """A plan with exactly these faults."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._planned = {(p.process, p.number): p for p in planned}

    def at(self, operation: Operation, now_s: float) -> Planned | None:
        planned = self._planned.get((operation.process, operation.number))
        # In a run with fewer faults before, another operation may have this number.
        return planned if planned is not None and operation.what in POSSIBLE[planned.kind] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of one run, with which it can be repeated at any time. Without `drawn`, exactly the planted faults
    happen.
    """

    seed: int
    drawn: Faults | None = None
    """Rules for faults that are drawn from the seed, instead of planted ones."""
    planted: tuple[Planned, ...] = ()
    without: frozenset[int] = frozenset()
    """Numbers of the test's events that are left out."""

    @classmethod
    def parsed(cls, seed: int, faults: Iterable[str], without: Iterable[int]) -> Self:
        """Parse a schedule from a regression test. Raises `SagaError` for a text that is no fault."""
        return cls(seed=seed, planted=tuple(map(Planned.parsed, faults)), without=frozenset(without))

    def plan(self) -> Plan | None:
        """Return the plan that decides on the fault of each operation; `None` if there are no faults."""
        if self.drawn is not None:
            return RandomPlan(self.drawn, Chance(self.seed)) if self.drawn.rules else None
        return ScheduledPlan(self.planted) if self.planted else None
