"""Faults of operations: drawn from the seed at the rates asked for, or as a schedule says."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from struct import unpack
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias, get_args

from saga.errors import SagaError
from saga.testing.fault_kinds import KINDS, FaultKind, FaultRule, Faults


class Chance:
    """All draws of one run."""

    __slots__ = ("_key", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._key = seed.to_bytes(8, "little", signed=True)

    def draw(self, what: str) -> float:
        """A number from 0 to 1, not 1 itself.

        >>> Chance(1).draw("payment-1#3") == Chance(1).draw("payment-1#3") != Chance(2).draw("payment-1#3")
        True
        """
        (number,) = unpack("<Q", blake2b(what.encode(), digest_size=8, key=self._key).digest())
        drawn: float = (number >> 11) / (1 << 53)
        return drawn

    def draws(self, what: str) -> tuple[float, float, float, float]:
        """Four numbers at once: cheaper than four questions."""
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
"""Operations that each kind can happen to."""
WAYS: Mapping[FaultKind, tuple[str, str]] = {
    "crash": (" before", " after"),
    "partition": (" of the service", " of the process"),
}
"""Kinds that come in two ways, with the names of these in a schedule."""
APPLICATION = "application"
"""Process that publishes from outside: it does not crash."""
OF_APPLICATION: frozenset[FaultKind] = frozenset({"duplicate", "expiry", "poison", "newer schema", "other partitioner"})
"""Kinds that happen to what the application publishes; the last one to nothing else, for services have our
partitioner."""


class Operation(NamedTuple):
    """One thing that a process asks of the outside."""

    process: str
    service: str
    number: int
    """Number among the operations of this process, its earlier lives counted."""
    what: What
    where: str
    """Subject of the operation, for people."""
    names: tuple[str, ...]
    """Names by which a fault's target may mean it: the topics of a publish, `service.handler` of a step."""


class Planned(NamedTuple):
    """A fault and the operation that it meets. The seed says the rest, how long and how much."""

    process: str
    number: int
    kind: FaultKind
    after: bool = False
    """True for a crash after the operation has taken effect, and for a partition of this process alone."""

    def __str__(self) -> str:
        return f"{self.process}#{self.number} {self.kind}{WAYS.get(self.kind, ('', ''))[self.after]}"

    @classmethod
    def parsed(cls, text: str) -> "Planned":
        """Read a text that `str` made. Raises `SagaError`.

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
    """Decision on the fault of each operation."""

    def at(self, operation: Operation, now_s: float) -> Planned | None:
        """Fault of this operation, if any."""


@dataclass(slots=True)
class RandomPlan:
    """Plan that draws for each operation: at most one fault each."""

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
    """Plan of these faults and no others."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._planned = {(p.process, p.number): p for p in planned}

    def at(self, operation: Operation, now_s: float) -> Planned | None:
        planned = self._planned.get((operation.process, operation.number))
        # Where less went wrong before, another operation may have this number.
        return planned if planned is not None and operation.what in POSSIBLE[planned.kind] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Schedule of one run, to be had again at any time. Without `drawn`, exactly the planted faults happen."""

    seed: int
    drawn: Faults | None = None
    """Faults to be drawn from the seed, instead of planted ones."""
    planted: tuple[Planned, ...] = ()
    without: frozenset[int] = frozenset()
    """Numbers of the events of the test that are left out."""

    @classmethod
    def parsed(cls, seed: int, faults: Iterable[str], without: Iterable[int]) -> Self:
        """Read a schedule from a regression test. Raises `SagaError` for a text that is no fault."""
        return cls(seed=seed, planted=tuple(map(Planned.parsed, faults)), without=frozenset(without))

    def plan(self) -> Plan | None:
        """Plan that decides, operation by operation."""
        if self.drawn is not None:
            return RandomPlan(self.drawn, Chance(self.seed)) if self.drawn.rules else None
        return ScheduledPlan(self.planted) if self.planted else None
