"""Faults that may happen in a world: kinds, each with a rate, a target and a window of time."""

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
"""Rates of `faults.everything()`. Poison and newer schemas are left out: a saga that they spoil waits for a person who
has its dead letter tried again. So are deployments, for of most services there is one release; and gaps, after which
nobody can tell what was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """One kind of fault, as asked for."""

    kind: FaultKind
    rate: float
    target: str
    window_s: tuple[float, float] | None

    def hits(self, names: Iterable[str]) -> bool:
        """True if the fault is meant for something with one of these names."""
        return self.target == "*" or self.target in names


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults with their rates, targets and windows; `|` joins them."""

    rules: tuple[FaultRule, ...] = ()

    def __or__(self, other: "Faults", /) -> "Faults":
        return Faults((*self.rules, *other.rules))


class faults:
    """Faults to ask for; `|` joins them: `faults.of("crash", rate=0.05) | faults.of("duplicate", target="payment")`.

    - crash: the process dies before or after any operation on store, broker or outside, and another one begins.
    - lost answer: the operation happened, and its caller is told that it may not have.
    - late answer: its caller is told the same, and it happens later.
    - duplicate: what was published comes a second time, at once or minutes later.
    - delay: an operation takes seconds, or a partition of a topic is delivered seconds late.
    - partition: a worker, or all of a service, cannot reach store or broker for a while.
    - freeze: a process stands still, perhaps until it is taken for dead, and goes on as if nothing had happened.
    - rebalance: partitions move among the workers, once or several times, or a worker is restarted in good order.
    - clock: a process's clock is wrong from then on, nearly always by up to ten minutes, seldom by days or years.
    - full disk: store or broker refuses what is written, for a while.
    - slow store: every operation of a service's store takes seconds, for a while.
    - throttle: an operation of the store is refused once.
    - expiry: what was published comes a second time after the services have forgotten its saga.
    - recreated topic: a topic is deleted and created again. What not every service had finished with is published
      again, so it lies at other offsets; of timers nothing is.
    - newer schema: a message comes whose schema nobody here knows yet.
    - poison: a message comes that nobody can read.
    - deploy: a worker is restarted as another release of its service, and after a while as the newest; only where
      `world.deploy` has given another one.
    - gap: a connector was away for so long that it begins anew: documents that are there come again, as they are now,
      and what was removed is never told; only in a world with `world.use_connector()`.
    - slow handler: a call of a step is answered only after seconds, while partitions move among the workers.
    - outage: all workers of a service die, and others begin minutes or hours later: longer than most deadlines.
    - lag: what was published reaches its readers, with all behind it in its partition, minutes later or up to an hour.
    - backlog: a service is given one record after another, seconds apart, for up to an hour.
    - other partitioner: what the application publishes lies in another partition than its key says.
    """

    @staticmethod
    def everything() -> Faults:
        """All kinds, everywhere, all the time, at rates that let most sagas end. Without newer schemas, poison,
        deployments and gaps."""
        return Faults(tuple(FaultRule(kind=k, rate=r, target="*", window_s=None) for k, r in EVERYTHING.items()))

    @staticmethod
    def of(
        *kinds: FaultKind, rate: float = 0.01, target: str = "*", window: tuple[timedelta, timedelta] | None = None
    ) -> Faults:
        """Faults of these kinds. `rate`: chance for each operation, 0 to 1. `target`: service, topic or
        `service.handler` (its steps), `*` any of them. `window`: from when to when, in virtual time since the start;
        `None`: always.

        Raises `SagaError` for a kind that there is not, or a rate that is no chance.
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
