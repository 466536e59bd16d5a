"""Faults of a simulated world. A test requests kinds of faults, each with a rate, a target and a time window. A fault
plan then decides which fault hits which operation: drawn from the seed, or taken from a schedule.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from struct import unpack
from typing import Literal, NamedTuple, Protocol, Self, TypeAlias, get_args

from saga.errors import SagaError

FaultKind: TypeAlias = Literal[
    "crash",
    "lost answer",
    "late answer",
    "duplicate",
    "delay",
    "partition",
    "freeze",
    "rebalance",
    "clock",
    "full disk",
    "slow store",
    "throttle",
    "expiry",
    "newer schema",
    "poison",
    "deploy",
    "gap",
    "recreated topic",
    "slow handler",
    "outage",
    "lag",
    "backlog",
    "other partitioner",
]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)

EVERYTHING_RATES: dict[FaultKind, float] = {
    "crash": 0.010,
    "lost answer": 0.010,
    "late answer": 0.010,
    "duplicate": 0.020,
    "delay": 0.010,
    "partition": 0.002,
    "freeze": 0.002,
    "rebalance": 0.004,
    "clock": 0.002,
    "full disk": 0.002,
    "slow store": 0.002,
    "throttle": 0.010,
    "expiry": 0.004,
    "recreated topic": 0.001,
    "slow handler": 0.010,
    "outage": 0.0005,
    "lag": 0.001,
    "backlog": 0.0005,
    "other partitioner": 0.050,
}
"""Probability of each kind of fault for each operation, as used by `faults.everything()`.

Some kinds are left out. After a poison message or a newer schema, the saga waits until an operator replays its dead
letter. A deployment needs several releases, and most services have one. After a gap nothing can tell which documents
were removed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One kind of fault, with its rate, target and time window."""

    kind: FaultKind
    rate: float
    target: str
    window_s: tuple[float, float] | None

    def hits(self, names: Iterable[str]) -> bool:
        """Return True if the rule's target is one of these names or `*`."""
        return self.target == "*" or self.target in names


@dataclass(frozen=True, slots=True)
class Faults:
    """A set of fault rules. `|` combines two sets."""

    rules: tuple[FaultRule, ...] = ()

    def __or__(self, other: "Faults", /) -> "Faults":
        return Faults((*self.rules, *other.rules))


class faults:
    """Constructors of `Faults`. Join several with `|`: `faults.of("crash", rate=0.05) | faults.of("duplicate",
    target="payment")`.

    - crash: the process dies before or after any operation on the store, the broker or an external system, and another
      one starts.
    - lost answer: the operation takes effect, but its caller gets an error that leaves open whether it did.
    - late answer: the caller gets the same error, and the operation takes effect later.
    - duplicate: a published record is delivered a second time, at once or minutes later.
    - delay: an operation takes seconds, or a partition of a topic is delivered seconds late.
    - partition: a worker, or all workers of a service, cannot reach the store or the broker for a while.
    - freeze: a process is suspended, perhaps until it is considered dead, and then continues without noticing.
    - rebalance: partitions move among the workers, once or several times, or a worker is restarted gracefully.
    - clock: a process's clock is wrong from then on. The error is nearly always at most ten minutes, seldom days or
      years.
    - full disk: the store or the broker rejects writes for a while.
    - slow store: every operation of a service's store takes seconds, for a while.
    - throttle: the store rejects an operation once.
    - expiry: a published record is delivered a second time after the services have forgotten its saga.
    - recreated topic: a topic is deleted and created again. Records that some service has not finished are published
      again, at other offsets; timers are lost.
    - newer schema: a message arrives whose schema no service here knows yet.
    - poison: a message arrives that cannot be decoded.
    - deploy: a worker is restarted with another release of its service, and after a while with the newest. This happens
      only if `world.deploy` has deployed another release.
    - gap: a connector was away for so long that it starts from scratch. It delivers existing documents again, in their
      current state, and never delivers removals. This happens only in a world with `world.use_connector()`.
    - slow handler: a step is answered only after seconds, while partitions move among the workers.
    - outage: all workers of a service die, and others start minutes or hours later, which is longer than most
      deadlines.
    - lag: a published record, and all later ones in its partition, become visible minutes to an hour late.
    - backlog: a service gets one record after another, seconds apart, for up to an hour.
    - other partitioner: a record that the application publishes is not in the partition that the toolkit's partitioner
      chooses for its key.
    """

    @staticmethod
    def everything() -> Faults:
        """Return nearly all kinds of faults, for all targets and all the time, at rates that let most sagas end. Newer
        schemas, poison messages, deployments and gaps are left out.
        """
        return Faults(tuple(FaultRule(kind=k, rate=r, target="*", window_s=None) for k, r in EVERYTHING_RATES.items()))

    @staticmethod
    def of(
        *kinds: FaultKind, rate: float = 0.01, target: str = "*", window: tuple[timedelta, timedelta] | None = None
    ) -> Faults:
        """Return faults of these kinds.

        Args:
            rate: probability for each operation, from 0 to 1.
            target: a service, a topic, or `service.handler` for the steps of a handler; `*` means everything.
            window: beginning and end in virtual time since the start; `None` means always.

        Raises `SagaError` for an unknown kind, a rate that is not a probability, or a window that ends before it
        begins.
        """
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown or not kinds:
            raise SagaError(f"there is no fault {', '.join(map(repr, unknown)) or '(none given)'}: {', '.join(KINDS)}")
        if not 0 <= rate <= 1:
            raise SagaError(f"rate={rate}: it is the chance for each operation, from 0 to 1")
        window_s = None if window is None else (window[0].total_seconds(), window[1].total_seconds())
        if window_s is not None and window_s[0] >= window_s[1]:
            raise SagaError(f"window={window}: it ends before it begins")
        return Faults(tuple(FaultRule(kind=kind, rate=rate, target=target, window_s=window_s) for kind in kinds))


# ---------------------------------------------------------------- plans


class Chance:
    """Source of the random numbers of one run. Each number is derived from the seed and a string, so it does not depend
    on which numbers were drawn before it.
    """

    __slots__ = ("_key", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._key = seed.to_bytes(8, "little", signed=True)

    def draw(self, what: str) -> float:
        """Draw a number from 0 up to but not including 1.

        >>> Chance(1).draw("payment-1#3") == Chance(1).draw("payment-1#3") != Chance(2).draw("payment-1#3")
        True
        """
        (number,) = unpack("<Q", blake2b(what.encode(), digest_size=8, key=self._key).digest())
        drawn: float = (number >> 11) / (1 << 53)
        return drawn

    def draw_four(self, what: str) -> tuple[float, float, float, float]:
        """Draw four numbers at once, which is cheaper than four calls of `draw`."""
        a, b, c, d = unpack("<IIII", blake2b(what.encode(), digest_size=16, key=self._key).digest())
        return a / (1 << 32), b / (1 << 32), c / (1 << 32), d / (1 << 32)


OperationKind: TypeAlias = Literal["get", "insert", "replace", "remove", "changes", "publish", "poll", "commit", "step"]

WRITES = frozenset[OperationKind]({"insert", "replace", "remove"})
READS = frozenset[OperationKind]({"get", "changes"})
STORE = WRITES | READS
PUBLISH = frozenset[OperationKind]({"publish"})
EVERY = frozenset[OperationKind](get_args(OperationKind))
POSSIBLE: Mapping[FaultKind, frozenset[OperationKind]] = {
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
    "gap": frozenset[OperationKind]({"changes"}),
    "recreated topic": PUBLISH,
    "slow handler": frozenset[OperationKind]({"step"}),
    "outage": EVERY,
    "lag": PUBLISH,
    "backlog": EVERY,
    "other partitioner": PUBLISH,
}
"""Kinds of operations that each kind of fault can hit."""
VARIANTS: Mapping[FaultKind, tuple[str, str]] = {
    "crash": (" before", " after"),
    "partition": (" of the service", " of the process"),
}
"""The two variants of a kind of fault, as the suffixes that distinguish them in a schedule. Kinds without variants are
not listed.
"""
APPLICATION = "application"
"""Name of the process that plays the application: it is not part of any service, publishes events, and never crashes.
"""
APPLICATION_KINDS: frozenset[FaultKind] = frozenset(
    {"duplicate", "expiry", "poison", "newer schema", "other partitioner"}
)
"""Kinds of faults that can hit what the application publishes. `other partitioner` hits nothing else, because services
always use the toolkit's partitioner.
"""


class Operation(NamedTuple):
    """One request of a process to the store, the broker or an external system."""

    process: str
    service: str
    number: int
    """Number of the operation among all operations of this process, including those before a restart."""
    what: OperationKind
    where: str
    """Target of the operation, such as a document or a topic, as shown in reports."""
    names: tuple[str, ...]
    """Names that a fault rule's target can match: the topics of a publish, or `service.handler` for a step."""


class PlannedFault(NamedTuple):
    """A fault and the operation that it hits. How long it lasts and what it affects are derived from the seed."""

    process: str
    number: int
    kind: FaultKind
    after: bool = False
    """True for the second variant of the kind: a crash after the operation has taken effect, or a partition that
    affects only this process.
    """

    def __str__(self) -> str:
        return f"{self.process}#{self.number} {self.kind}{VARIANTS.get(self.kind, ('', ''))[self.after]}"

    @classmethod
    def parse(cls, text: str) -> "PlannedFault":
        """Parse the text form of a planned fault, as made by `str`. Raises `SagaError` for any other text.

        >>> PlannedFault.parse("payment-1#12 crash after")
        PlannedFault(process='payment-1', number=12, kind='crash', after=True)
        """
        where, _, what = text.partition(" ")
        process, _, number = where.rpartition("#")
        for kind in KINDS if process and number.isdigit() else ():
            for after, way in enumerate(VARIANTS.get(kind, ("",))):
                if f"{kind}{way}" == what:
                    return cls(process, int(number), kind, bool(after))
        raise SagaError(f"{text!r} is no fault of a schedule: it reads `payment-1#12 crash after`")


class FaultPlan(Protocol):
    """A plan that decides which fault hits each operation."""

    def fault_at(self, operation: Operation, now_s: float) -> PlannedFault | None:
        """Return the fault that hits this operation, if any."""


@dataclass(slots=True)
class RandomPlan:
    """A plan that draws at random which fault hits an operation. An operation is hit by at most one fault."""

    faults: Faults
    chance: Chance
    _fitting: dict[tuple[str, OperationKind, tuple[str, ...]], tuple[FaultRule, ...]] = field(default_factory=dict)

    @property
    def targets(self) -> set[str]:
        """Names that occurred in the operations of the run and that a rule's target can match: services, topics, and
        `service.handler`.
        """
        return {name for service, _, names in self._fitting for name in (service, *names)}

    def fault_at(self, operation: Operation, now_s: float) -> PlannedFault | None:
        key = (operation.service, operation.what, operation.names)
        rules = self._fitting.get(key)
        if rules is None:
            rules = self._fitting[key] = self._find_rules(operation)
        if not rules:
            return None
        drawn = self.chance.draw(f"{operation.process}#{operation.number}!")
        for rule in rules:
            if rule.window_s is not None and not rule.window_s[0] <= now_s < rule.window_s[1]:
                continue
            if drawn < rule.rate:
                after = rule.kind in VARIANTS and drawn < rule.rate / 2
                return PlannedFault(operation.process, operation.number, rule.kind, after)
            drawn -= rule.rate
        return None

    def _find_rules(self, operation: Operation) -> tuple[FaultRule, ...]:
        names = (operation.service, *operation.names)
        return tuple(
            rule
            for rule in self.faults.rules
            if operation.what in POSSIBLE[rule.kind]
            and rule.hits(names)
            and (
                rule.kind in APPLICATION_KINDS if operation.service == APPLICATION else rule.kind != "other partitioner"
            )
        )


class ScheduledPlan:
    """A plan with exactly the given faults."""

    def __init__(self, planned: Sequence[PlannedFault]) -> None:
        self._planned = {(p.process, p.number): p for p in planned}

    def fault_at(self, operation: Operation, now_s: float) -> PlannedFault | None:
        planned = self._planned.get((operation.process, operation.number))
        # In a run in which earlier faults were left out, another operation may have this number.
        return planned if planned is not None and operation.what in POSSIBLE[planned.kind] else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of one run, from which the run can be repeated. Faults are either drawn from the seed (`drawn`) or
    listed (`planted`).
    """

    seed: int
    drawn: Faults | None = None
    """Rules by which faults are drawn from the seed. If it is `None`, exactly the faults in `planted` happen; otherwise
    `planted` is ignored.
    """
    planted: tuple[PlannedFault, ...] = ()
    without: frozenset[int] = frozenset()
    """Numbers (from 0) of events and documents that this run leaves out, in the order in which the test publishes or
    writes them.
    """

    @classmethod
    def parse(cls, seed: int, faults: Iterable[str], without: Iterable[int]) -> Self:
        """Parse a schedule from a regression test. Raises `SagaError` for a string that does not describe a fault."""
        return cls(seed=seed, planted=tuple(map(PlannedFault.parse, faults)), without=frozenset(without))

    def plan(self) -> FaultPlan | None:
        """Return the fault plan of the run; `None` if there are no faults."""
        if self.drawn is not None:
            return RandomPlan(self.drawn, Chance(self.seed)) if self.drawn.rules else None
        return ScheduledPlan(self.planted) if self.planted else None
