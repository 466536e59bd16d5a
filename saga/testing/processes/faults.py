"""Schedule faults in a world of real processes. A seeded generator draws their kinds, numbers and times.

The same seed gives the same kinds and times. It does not hit the same operations, because the processes run at their
own pace.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random  # noqa: TID251 - seeded: the seed of a world gives its faults
from types import MappingProxyType
from typing import Literal, get_args

from saga.errors import SagaError
from saga.support.clock import Clock
from saga.testing.processes.servers import ServerFault
from saga.testing.processes.worker_processes import WorkerPool, WorkerProcess

AccidentKind = Literal["crash", "duplicate", "freeze", "rebalance"]
"""Kinds of faults that also exist without servers.

- `crash`: a worker is killed by SIGKILL and started again.
- `duplicate`: a client's event is published once more.
- `freeze`: a worker is stopped by SIGSTOP, sometimes for so long that it loses its partitions.
- `rebalance`: a third worker joins a service and leaves it again.
"""

FAULTS_MAX = 20
"""Maximum number of faults in one world, because each of them costs real time."""
PER_RATE = 100
"""Number of faults of one kind that a rate of 1 stands for; see `count_of`."""
GAP_S_MAX = 0.1
"""Maximum time in seconds between two faults: about as long as a saga takes."""
FROZEN_S_MAX, FROZEN_S_MAX_SERVERS = 2.0, 8.0
"""Maximum time of a freeze in seconds, on the embedded broker and on servers. Each is longer than the silence after
which the broker considers a member dead (`TIMING` of `saga.testing.processes.shared_files`, `SESSION_S` of
`saga.testing.processes.servers`).
"""
BUSY_S = 0.1
"""Seconds by which a fault of a server is delayed while another one is active."""
STAYS_S_MAX = 0.3
"""Maximum time in seconds that a third worker stays once it has its share of the partitions."""

LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "lost answer": "the stores are files, so an answer is lost only when the calling process dies (`crash`)",
        "late answer": "a write to a file takes effect while its caller waits, or never",
        "delay": "the processes access the log directly, so there is nothing that could delay it",
        "partition": "the log is a file, so a process loses access to it only while it is paused (`freeze`)",
        "clock": "all processes use the clock of this machine, which a test must not change",
        "full disk": "other processes need the disk of this machine",
        "slow store": "the speed of the disk cannot be controlled",
        "throttle": "the stores are files, which have no rate limit",
        "expiry": "documents expire after days of real time",
        "newer schema": "all processes run the same code and contracts",
        "poison": "only this test publishes, and its messages are valid",
        "deploy": "each service is started as one release and keeps it",
        "slow handler": "the duration of a call is that of the test's fake",
        "gap": "the stores record changes themselves, and keep each until it is published",
        "recreated topic": "the log is a file, in which no topic is ever deleted",
        "outage": "time is real, so an outage longer than a deadline would take just as long",
        "lag": "the log is a file, so every process can read a message at once",
        "backlog": "the pace at which processes read the log cannot be controlled",
        "other partitioner": "the test publishes through the toolkit's own client",
    }
)
"""Kinds of faults that do not exist with the embedded broker and stores, each with the reason."""

OF_SERVERS = "the provider of the servers does not support it"
NOWHERE_REAL = frozenset(
    {"clock", "expiry", "newer schema", "poison", "deploy", "gap", "slow handler", "outage", "other partitioner"}
)
"""Kinds of faults that do not exist in any world of real processes, not even with servers."""
LEFT_OUT_ON_SERVERS: Mapping[str, str] = MappingProxyType(
    {kind: why if kind in NOWHERE_REAL else OF_SERVERS for kind, why in LEFT_OUT.items()}
)
"""Kinds of faults that may not exist in a world with servers, each with the reason. Those that the provider of the
servers supports do exist.
"""


def describe_left_out(kinds: Iterable[str], why: Mapping[str, str] = LEFT_OUT) -> list[str]:
    """Return a sentence for each of `kinds` that this world does not have. Raises `SagaError` for an unknown kind."""
    sentences = []
    for kind in kinds:
        if kind in why:
            sentences.append(f"{kind}: left out in a world of real processes: {why[kind]}")
        elif kind not in get_args(AccidentKind) and kind not in LEFT_OUT:
            raise SagaError(
                f"there is no fault {kind!r}: choose from {', '.join([*get_args(AccidentKind), *LEFT_OUT])}"
            )
    return sentences


def count_of(rate: float) -> int:
    """Return how many faults of one kind are scheduled each time the test has published something.

    In the simulation a rate is the probability for each operation. Operations of real processes cannot be counted from
    outside, so here a rate of 0.01 means one fault and 0.03 means three. Any rate above 0 means at least one.
    """
    return max(1, round(rate * PER_RATE)) if rate > 0 else 0


@dataclass(slots=True)
class ScheduledFault:
    """Something that happens at a time: the beginning or the end of a fault."""

    at_s: float
    act: Callable[[], None]


@dataclass(slots=True)
class ExtraWorker:
    """A third worker of a service, which leaves again after a while."""

    member: WorkerProcess
    leaves_at_s: float | None = None
    """Time at which the worker leaves; `None` while it does not have its share of the partitions yet."""


@dataclass(slots=True, kw_only=True)
class ProcessFaults:
    """Schedules the faults of a world of real processes, and makes each happen at its time. A fault hits a worker, an
    event or a server.
    """

    seed: int
    rates: Mapping[str, float]
    """Rate of each kind of fault, as in the simulation; see `count_of`."""
    crew: WorkerPool
    clock: Clock
    hire: Callable[[str], WorkerProcess]
    """Starts one more worker of a service."""
    publish_again: Callable[[Random], None]
    """Publishes one of the clients' events once more."""
    troubles: Mapping[str, Sequence[ServerFault]] = field(default_factory=dict)
    """Faults that the servers can have, by kind."""
    frozen_s_max: float = FROZEN_S_MAX
    happened: list[str] = field(default_factory=list)
    """Descriptions of the faults that have happened, in order."""
    _due: list[ScheduledFault] = field(default_factory=list)
    _guests: list[ExtraWorker] = field(default_factory=list)
    _drawn: int = 0
    _in_trouble: bool = False
    _chance: Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = Random(self.seed)

    @property
    def are_over(self) -> bool:
        """True if no fault is scheduled, and no fault still has an effect."""
        return not self._due and not self._guests and self.crew.is_steady

    def begin(self) -> None:
        """Schedule faults, beginning now. Call this method after something was published."""
        kinds = [
            kind for kind in (*get_args(AccidentKind), *self.troubles) for _ in range(count_of(self.rates.get(kind, 0)))
        ]
        self._chance.shuffle(kinds)
        kinds = kinds[: FAULTS_MAX - self._drawn]
        self._drawn += len(kinds)
        at_s = self.clock.monotonic_s()
        for kind in kinds:
            at_s += self._chance.uniform(0, GAP_S_MAX)
            self._due.append(ScheduledFault(at_s, self._find_action(kind)))

    def happen(self, is_whole: Callable[[str], bool]) -> None:
        """Make the faults happen that are due, and let extra workers leave whose time is over.

        `is_whole`: returns True if all workers of a service have their share of the partitions.
        """
        now_s = self.clock.monotonic_s()
        due = [each for each in self._due if each.at_s <= now_s]
        self._due = [each for each in self._due if each.at_s > now_s]
        for each in due:
            each.act()
        for guest in list(self._guests):
            if guest.leaves_at_s is None and is_whole(guest.member.service):
                guest.leaves_at_s = now_s + self._chance.uniform(0, STAYS_S_MAX)
            elif guest.leaves_at_s is not None and guest.leaves_at_s <= now_s:
                self._guests.remove(guest)
                self._dismiss(guest.member)

    def _find_action(self, kind: str) -> Callable[[], None]:
        match kind:
            case "crash":
                return self._crash
            case "duplicate":
                return self._duplicate
            case "freeze":
                return self._freeze
            case "rebalance":
                return self._rebalance
            case _:
                return lambda: self._trouble(kind)

    def _crash(self) -> None:
        victim = self._pick(self.crew.members)
        if victim is None:
            return
        again = self.crew.restart(victim)
        for guest in self._guests:
            if guest.member is victim:
                guest.member = again
        self.happened.append(f"{victim.name} killed")

    def _duplicate(self) -> None:
        self.publish_again(self._chance)
        self.happened.append("an event published again")

    def _freeze(self) -> None:
        victim = self._pick([member for member in self.crew.members if not member.frozen])
        if victim is None:
            return
        self.crew.freeze(victim)
        for_s = self._chance.uniform(0, self.frozen_s_max)
        self._due.append(ScheduledFault(self.clock.monotonic_s() + for_s, lambda: self.crew.thaw(victim)))
        self.happened.append(f"{victim.name} frozen for {for_s:.1f} s")

    def _rebalance(self) -> None:
        service = self._chance.choice(sorted(self.crew.sizes))
        guest = self.hire(service)
        self._guests.append(ExtraWorker(guest))
        self.happened.append(f"{guest.name} joined")

    def _trouble(self, kind: str) -> None:
        """Begin a fault of a server. If another fault of a server is active, postpone this one, because the end of one
        would end both.
        """
        if self._in_trouble:
            self._due.append(ScheduledFault(self.clock.monotonic_s() + BUSY_S, lambda: self._trouble(kind)))
            return
        trouble = self._chance.choice(self.troubles[kind])
        for_s = self._chance.uniform(*trouble.lasts_s)
        self._in_trouble = True
        trouble.begin()
        self._due.append(ScheduledFault(self.clock.monotonic_s() + for_s, lambda: self._end_trouble(trouble)))
        self.happened.append(f"{trouble.what} for {for_s:.1f} s" if for_s else trouble.what)

    def _end_trouble(self, trouble: ServerFault) -> None:
        trouble.end()
        self._in_trouble = False

    def _dismiss(self, member: WorkerProcess) -> None:
        self.crew.dismiss(member)
        self.happened.append(f"{member.name} told to leave")

    def _pick(self, members: Sequence[WorkerProcess]) -> WorkerProcess | None:
        return self._chance.choice(members) if members else None
