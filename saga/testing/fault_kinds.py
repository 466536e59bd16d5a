"""Faults that may happen in a world: kinds, each with a rate, a target and a time window."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeAlias, get_args

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

EVERYTHING: dict[FaultKind, float] = {
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
"""Rates of `faults.everything()`.

Poison messages and newer schemas are left out: a saga that gets one waits for an operator to replay its dead letter.
Deployments are left out because most services have one release, and gaps because after one nobody can know which
documents were removed.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One kind of fault, with its rate, target and window."""

    kind: FaultKind
    rate: float
    target: str
    window_s: tuple[float, float] | None

    def hits(self, names: Iterable[str]) -> bool:
        """Return True if the rule applies to something with one of these names."""
        return self.target == "*" or self.target in names


@dataclass(frozen=True, slots=True)
class Faults:
    """A set of fault rules; `|` joins two of them."""

    rules: tuple[FaultRule, ...] = ()

    def __or__(self, other: "Faults", /) -> "Faults":
        return Faults((*self.rules, *other.rules))


class faults:
    """Constructors of `Faults`; `|` joins them: `faults.of("crash", rate=0.05) | faults.of("duplicate",
    target="payment")`.

    - crash: the process dies before or after any operation on the store, the broker or an external system, and another
      one starts.
    - lost answer: the operation took effect, but its caller gets an error that says that it may not have.
    - late answer: its caller gets the same error, and the operation takes effect later.
    - duplicate: a published record is delivered a second time, at once or minutes later.
    - delay: an operation takes seconds, or a partition of a topic is delivered seconds late.
    - partition: a worker, or all workers of a service, cannot reach the store or the broker for a while.
    - freeze: a process stands still, perhaps until it is considered dead, and continues as if nothing had happened.
    - rebalance: partitions move among the workers, once or several times, or a worker is restarted gracefully.
    - clock: a process's clock is wrong from then on, nearly always by up to ten minutes, seldom by days or years.
    - full disk: the store or the broker rejects writes for a while.
    - slow store: every operation of a service's store takes seconds, for a while.
    - throttle: the store rejects an operation once.
    - expiry: a published record is delivered a second time after the services have forgotten its saga.
    - recreated topic: a topic is deleted and created again. Records that not every service has finished with are
      published again, at other offsets; timers are lost.
    - newer schema: a message arrives whose schema no service here knows yet.
    - poison: a message arrives that cannot be decoded.
    - deploy: a worker is restarted as another release of its service, and after a while as the newest; only where
      `world.deploy` has deployed another one.
    - gap: a connector was away for so long that it starts from scratch: existing documents are delivered again, as they
      are now, and removals are never delivered; only in a world with `world.use_connector()`.
    - slow handler: a step is answered only after seconds, while partitions move among the workers.
    - outage: all workers of a service die, and others start minutes or hours later: longer than most deadlines.
    - lag: a published record, and all behind it in its partition, reaches its readers minutes to an hour late.
    - backlog: a service gets one record after another, seconds apart, for up to an hour.
    - other partitioner: a record that the application publishes is in another partition than its key says.
    """

    @staticmethod
    def everything() -> Faults:
        """Return all kinds, everywhere, all the time, at rates that let most sagas end. Newer schemas, poison,
        deployments and gaps are left out.
        """
        return Faults(tuple(FaultRule(kind=k, rate=r, target="*", window_s=None) for k, r in EVERYTHING.items()))

    @staticmethod
    def of(
        *kinds: FaultKind, rate: float = 0.01, target: str = "*", window: tuple[timedelta, timedelta] | None = None
    ) -> Faults:
        """Return faults of these kinds.

        Args:
            rate: probability for each operation, 0 to 1.
            target: a service, a topic or `service.handler` (its steps); `*` is any of them.
            window: from when to when, in virtual time since the start; `None` is always.

        Raises `SagaError` for an unknown kind, a rate that is no probability, or a window that ends before it begins.
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
