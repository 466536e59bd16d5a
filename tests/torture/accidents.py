"""Accidents: workers killed, added and frozen, the broker killed, the store frozen and failing, the bank silent,
slow or contradicting itself, transactions aborted, unexpected records, partitions damaged, orders where
another partitioner puts them, a topic created again. Drawn by a seed.

The store is frozen and never killed: CouchbaseMock keeps everything in memory and would come back empty.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random  # noqa: TID251 - seeded
from statistics import median
from typing import Literal, get_args

from saga.broker.kafka.adapter import KafkaSettings
from saga.support.clock import Clock
from saga.testing.servers.couchbase import CouchbaseMock
from saga.testing.servers.kafka import KafkaServer
from services.audit.books import SERVICES
from tests.torture.aborted_transactions import Foreigners
from tests.torture.customers import Customers, NotRecovered, Recovery
from tests.torture.operators import Operators
from tests.torture.troubled_payment import SLOW_S, Trouble
from tests.torture.unreadable_records import Strangers
from tests.torture.workers import Worker, Workers

DEAD_S_MAX = 3.0
SESSION_S = KafkaSettings(servers=("127.0.0.1:9092",)).session_s
"""After that the group takes a member that is frozen for dead, and others have its partitions when it goes on."""
ZOMBIE_S = (SESSION_S + 2, SESSION_S + 5)
GUEST_S = (5.0, 10.0)
"""Time that an added worker stays."""
BROKER_S = (0.5, 6.0)
STORE_S = 5.0
FAILURES = (20, 200)
"""Operations in a row that the store refuses."""
BURSTS, BURST_S = 5, 0.6
SILENT_S = (3.0, 16.0)
"""Longer, at most, than an order waits for an answer. It lasts until a breaker has opened, however few orders come."""
OPENS_S_MAX = 30.0
"""Time within which a breaker has to open that meets a silent bank."""
CONTRADICTS_S = (1.0, 3.0)
GUESTS_AT_SLOW_BANK = 2
OUTAGE_S, LAG_S = (11.0, 14.0), 12.0
"""Longer than an order waits for an answer."""
STEPS_S = (0.8, 0.1)
"""Times that a worker that lags behind stands still, and continues, in turn."""
FOREIGN_S = 2.0
"""Time in which customers order with a client of another partitioner."""
HANDLED_S_MAX = 60.0
"""Longest time until all that was ordered is handled."""
AT_ONCE = 2
PAUSE_S = (0.5, 3.0)
"""Between two faults."""
ON_TOP = 0.3
"""Share of faults that do not wait until nothing is felt of the last one."""
LOOK_S = 0.1
STARTING_S = 20.0
"""After a fault of a server a worker may still say that it could not start: it tries for 14 s."""
AccidentKind = Literal[
    "a worker killed",
    "a worker added",
    "a zombie",
    "the broker killed",
    "the store frozen",
    "the store refuses",
    "the bank silent",
    "the bank contradicts itself",
    "the bank slow across rebalances",
    "a transaction aborted",
    "odd records",
    "a partition damaged",
    "an outage",
    "a lag",
    "another partitioner",
    "a topic created again",
]
KINDS: tuple[AccidentKind, ...] = get_args(AccidentKind)
OF_SERVERS = frozenset[AccidentKind]({"the broker killed", "the store frozen", "the store refuses"})
OF_THE_BANK = frozenset[AccidentKind](
    {"the bank silent", "the bank contradicts itself", "the bank slow across rebalances"}
)
OF_FOREIGNERS = frozenset[AccidentKind](
    {"a transaction aborted", "odd records", "a partition damaged", "another partitioner", "a topic created again"}
)
"""Never beside the broker's death: when it starts again it cuts off a log where it is damaged. Nor beside each other:
they use one topic, and one transactional id."""
DECIDES = "order"
"""The service whose deadline ends unanswered orders: it is down, or behind, for longer than that takes."""
MOST_OFTEN = "payment"
"""The service with most workers: half of all faults of workers are there."""


@dataclass(slots=True, eq=False)
class Span:
    """A fault, from when to when."""

    kind: AccidentKind
    began_s: float
    ended_s: float = inf


class Accidents:
    """Makes them happen, one kind after the other, and prints each when it is felt no more."""

    def __init__(  # everything that can be hurt, and what says when
        self,
        workers: Workers,
        kafka: KafkaServer,
        mock: CouchbaseMock,
        customers: Customers,
        operators: Operators,
        strangers: Strangers,
        *,
        unread: Callable[[], Awaitable[Sequence[str]]],
        trouble: Path,
        chance: Random,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        self._workers, self._kafka, self._mock, self._customers = workers, kafka, mock, customers
        self._operators, self._strangers, self._unread, self._trouble = operators, strangers, unread, trouble
        self._chance, self._clock, self._tell = chance, clock, tell
        self._foreigners = Foreigners(kafka, chance, clock)
        self._under_way: set[AccidentKind] = set()
        self._times: list[Span] = []
        self._servers_last_s = -STARTING_S
        self._took_s: dict[AccidentKind, list[float]] = defaultdict(list)

    @property
    def in_trouble(self) -> bool:
        """True if a server does not answer, or did not a moment ago."""
        if self._under_way & OF_SERVERS:
            self._servers_last_s = self._clock.monotonic_s()
        return self._clock.monotonic_s() < self._servers_last_s + STARTING_S

    async def happen(self, for_s: float, least: int) -> Set[AccidentKind]:
        """One after the other, some on top of others, until `for_s` are over and there were `least`. The kinds that
        there were, once nothing is felt any more."""
        until_s, count = self._clock.monotonic_s() + for_s, 0
        async with asyncio.TaskGroup() as tasks:
            for kind in self._drawn():
                if count >= least and self._clock.monotonic_s() >= until_s:
                    break
                count += 1
                on_top = self._chance.random() < ON_TOP
                while len(self._under_way) >= (AT_ONCE if on_top else 1) or self._excludes(kind):
                    await self._clock.sleep(LOOK_S)
                if not on_top:
                    await self._until_recovered()
                await self._clock.sleep(self._chance.uniform(*PAUSE_S))
                self._under_way.add(kind)
                tasks.create_task(self._suffer(kind), name=kind)
        await self._until_recovered()
        return self._took_s.keys()

    def _excludes(self, kind: AccidentKind) -> bool:
        """True if something is under way beside which this cannot be."""
        if kind in OF_FOREIGNERS:
            return bool(self._under_way & {*OF_FOREIGNERS, "the broker killed"})
        if kind in OF_THE_BANK and self._under_way & OF_THE_BANK:
            return True
        return kind in self._under_way or (kind == "the broker killed" and bool(self._under_way & OF_FOREIGNERS))

    def _drawn(self) -> Iterator[AccidentKind]:
        """All kinds in some order, and all again in another."""
        while True:
            kinds = list(KINDS)
            self._chance.shuffle(kinds)
            yield from kinds

    async def _until_recovered(self) -> None:
        while not self._customers.is_recovered:
            await self._clock.sleep(LOOK_S)

    async def _suffer(self, kind: AccidentKind) -> None:
        span = Span(kind, self._clock.monotonic_s())
        self._times.append(span)
        try:
            what = await self._act_of(kind)()
        finally:
            _ = self.in_trouble  # noted once more, now that it ends
            self._under_way.discard(kind)
        span.ended_s = self._clock.monotonic_s()
        self._customers.feel(what, lambda recovery: self._felt(span, recovery))

    def _felt(self, span: Span, recovery: Recovery) -> None:
        assert recovery.took_s is not None
        self._took_s[span.kind].append(recovery.took_s)
        others = [other.kind for other in self._times if other is not span and other.ended_s > span.began_s]
        beside = f" (beside: {', '.join(others)})" if others else ""
        self._tell(
            f"{recovery.what}{beside}: orders end again after "
            f"{recovery.goes_on_s:.1f} s, all {recovery.under_way} that were under way after {recovery.took_s:.1f} s"
        )

    def alone(self, kind: AccidentKind, longer_s: float) -> int:
        """Number of those accidents that lasted for longer, with no other beside them."""
        return sum(
            span.ended_s - span.began_s > longer_s
            and all(
                other.ended_s < span.began_s or other.began_s > span.ended_s
                for other in self._times
                if other is not span
            )
            for span in self._times
            if span.kind == kind
        )

    def summary(self) -> list[str]:
        """Times of recovery, a line for each kind."""
        width = max(map(len, KINDS))
        return [
            f"{kind:<{width}}  {len(took):>3} times, recovered after {median(took):.1f} s, at most {max(took):.1f} s"
            for kind in KINDS
            if (took := self._took_s[kind])
        ]

    def _act_of(self, kind: AccidentKind) -> Callable[[], Awaitable[str]]:
        """Returns, when it is over, what it was."""
        acts: dict[AccidentKind, Callable[[], Awaitable[str]]] = {
            "a worker killed": self._kill,
            "a worker added": self._add,
            "a zombie": self._zombie,
            "the broker killed": self._kill_broker,
            "the store frozen": self._freeze_store,
            "the store refuses": self._refuse,
            "the bank silent": self._silence_bank,
            "the bank contradicts itself": self._confuse_bank,
            "the bank slow across rebalances": self._slow_bank,
            "a transaction aborted": self._foreigners.abort,
            "odd records": self._foreigners.write_oddities,
            "a partition damaged": self._foreigners.damage,
            "an outage": self._outage,
            "a lag": self._lag,
            "another partitioner": self._scatter,
            "a topic created again": self._recreate,
        }
        return acts[kind]

    # ---------------------------------------------------------------- workers

    async def _kill(self) -> str:
        worker, dead_s = self._taken(), self._chance.uniform(0, DEAD_S_MAX)
        self._workers.kill(worker)
        await self._clock.sleep(dead_s)
        self._workers.start_again(worker)
        worker.in_hand = False
        return f"{worker.name} killed, and started again {dead_s:.1f} s later"

    async def _zombie(self) -> str:
        worker, frozen_s = self._taken(), self._chance.uniform(*ZOMBIE_S)
        self._workers.freeze(worker)
        await self._clock.sleep(frozen_s)
        self._workers.thaw(worker)
        worker.in_hand = False
        return f"{worker.name} frozen for {frozen_s:.1f} s, and going on as a zombie"

    async def _add(self) -> str:
        worker = self._workers.hire(self._any_service(), guest=True)
        await self._clock.sleep(self._chance.uniform(*GUEST_S))
        await self._workers.dismiss(worker, in_trouble=self.in_trouble)
        return f"{worker.name} added, and asked to leave"

    async def _outage(self) -> str:
        workers, down_s = self._all_of(DECIDES), self._chance.uniform(*OUTAGE_S)
        for worker in workers:
            self._workers.kill(worker)
        await self._clock.sleep(down_s)
        for worker in workers:
            self._workers.start_again(worker)
            worker.in_hand = False
        return f"all {len(workers)} workers of {DECIDES} down for {down_s:.1f} s"

    async def _lag(self) -> str:
        workers, until_s = self._all_of(DECIDES), self._clock.monotonic_s() + LAG_S
        while self._clock.monotonic_s() < until_s:
            for act, time_s in zip((self._workers.freeze, self._workers.thaw), STEPS_S, strict=True):
                for worker in workers:
                    act(worker)
                await self._clock.sleep(time_s)
        for worker in workers:
            worker.in_hand = False
        return f"all {len(workers)} workers of {DECIDES} behind for {LAG_S:.1f} s"

    def _all_of(self, service: str) -> list[Worker]:
        """All workers of a service to which nothing is done yet."""
        workers = [worker for worker in self._workers.free if worker.service == service]
        for worker in workers:
            worker.in_hand = True
        return workers

    def _taken(self) -> Worker:
        """Any worker to which nothing is done yet."""
        service = self._any_service()
        free = [worker for worker in self._workers.free if worker.service == service]
        worker = self._chance.choice(free or self._workers.free)
        worker.in_hand = True
        return worker

    def _any_service(self) -> str:
        return MOST_OFTEN if self._chance.random() < 0.5 else self._chance.choice(SERVICES)

    # ---------------------------------------------------------------- the log

    async def _scatter(self) -> str:
        before = len(self._customers.placed)
        async with self._customers.publishing(self._foreigners.publish):
            await self._clock.sleep(FOREIGN_S)
        return f"{len(self._customers.placed) - before} orders by a client with another partitioner"

    async def _recreate(self) -> str:
        """No order is placed until all is handled, so the books lose nothing with the topic: a reader that continues in
        it at an offset of the old one loses what comes next."""
        customers = self._customers
        async with customers.writing:
            until_s = self._clock.monotonic_s() + HANDLED_S_MAX
            while (open_ := len(customers.placed) - customers.ended) or (unread := await self._unread()):
                if self._clock.monotonic_s() > until_s:
                    left = f"{open_} orders are open" if open_ else "; ".join(unread)
                    raise NotRecovered(f"after {HANDLED_S_MAX:.0f} s without orders: {left}")
                await self._clock.sleep(LOOK_S)
            await self._strangers.note()
            await self._foreigners.recreate()
        return "the topic of the orders deleted and created again"

    # ---------------------------------------------------------------- servers

    async def _kill_broker(self) -> str:
        dead_s = self._chance.uniform(*BROKER_S)
        await asyncio.to_thread(self._kafka.kill)
        await self._clock.sleep(dead_s)
        began_s = self._clock.monotonic_s()
        await asyncio.to_thread(self._kafka.restart)
        took_s = self._clock.monotonic_s() - began_s
        return f"the broker killed, and started again {dead_s:.1f} s later, which took it {took_s:.1f} s"

    async def _freeze_store(self) -> str:
        self._mock.pause()
        try:
            await self._clock.sleep(STORE_S)
        finally:
            self._mock.resume()
        return f"the store frozen for {STORE_S:.0f} s"

    async def _refuse(self) -> str:
        count = 0
        for _ in range(BURSTS):
            several = self._chance.randint(*FAILURES)
            count += several
            await asyncio.to_thread(self._mock.opfail, count=several)
            await self._clock.sleep(BURST_S)
        await asyncio.to_thread(self._mock.opfail, count=0)
        return f"the store made to refuse {count} operations, in {BURSTS} bursts"

    # ---------------------------------------------------------------- the bank

    async def _silence_bank(self) -> str:
        began_s, before = self._clock.monotonic_s(), self._workers.opened()
        with self._trouble_at_bank("silent"):
            await self._clock.sleep(self._chance.uniform(*SILENT_S))
            while self._workers.opened() == before and self._clock.monotonic_s() < began_s + OPENS_S_MAX:
                await self._clock.sleep(LOOK_S)
        return f"the bank silent for {self._clock.monotonic_s() - began_s:.1f} s"

    async def _confuse_bank(self) -> str:
        confused_s = self._chance.uniform(*CONTRADICTS_S)
        with self._trouble_at_bank("contradicts"):
            await self._clock.sleep(confused_s)
        count = await self._operators.cure()
        return f"the bank contradicted itself for {confused_s:.1f} s, and {count} dead letters were replayed"

    async def _slow_bank(self) -> str:
        """Partitions move while calls are under way: to a guest, back, and to another one."""
        began_s = self._clock.monotonic_s()
        with self._trouble_at_bank("slow"):
            for _ in range(GUESTS_AT_SLOW_BANK):
                await self._clock.sleep(self._chance.uniform(0.2, SLOW_S))
                guest = self._workers.hire("payment", guest=True)
                await self._clock.sleep(self._chance.uniform(*GUEST_S))
                await self._workers.dismiss(guest, in_trouble=self.in_trouble)
        slow_s = self._clock.monotonic_s() - began_s
        return f"the bank slow for {slow_s:.1f} s, while {GUESTS_AT_SLOW_BANK} workers came and went"

    @contextmanager
    def _trouble_at_bank(self, trouble: Trouble) -> Iterator[None]:
        self._trouble.write_text(trouble, "utf-8")
        try:
            yield
        finally:
            self._trouble.unlink()
