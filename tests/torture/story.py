"""The story: servers and workers start, customers order, accidents happen, all comes to rest, books are compared."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random  # noqa: TID251 - seeded

from saga.broker.kafka.adapter import kafka_settings
from saga.broker.kafka.administration import KafkaAdministration
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.engine.prepared_service import topics_of
from saga.messaging.transition_events import TOPIC
from saga.store.port import Store
from saga.support.clock import Clock, SystemClock
from saga.testing.servers.couchbase import BUCKET, JVM, CouchbaseMock
from saga.testing.servers.kafka import KafkaServer
from services.audit.__main__ import report, table
from services.audit.checks import Check, audit, outcomes
from services.demo.fleet import ROOT
from tests.torture.accidents import AccidentKind, Accidents
from tests.torture.books import READ, Readings, Shelves, log
from tests.torture.customers import Customers, NotRecovered
from tests.torture.in_time import check_answers_in_time
from tests.torture.operators import Operators
from tests.torture.traces import expired, traces
from tests.torture.troubled_payment import TROUBLE
from tests.torture.unreadable_records import Strangers
from tests.torture.workers import Workers

WORKERS = {"payment": 3, "order": 2, "inventory": 1, "shipping": 1}
FEWER = {**WORKERS, "payment": 2, "order": 1}
"""Workers of a short run: each takes time of the processor, whether it has work or not."""
WARM, WARM_SOON = 50, 10
"""So many orders have to end before the first fault; the second of a short run."""
WARM_S_MAX, SETTLED_S_MAX = 60.0, 120.0
LOOK_S = 0.2
SHOP = 640
"""For about so many orders the shop has articles: some cannot be had."""
PATIENCE_S = 10
"""Time that an order waits for an answer: less than some faults last, so deadlines race with the answers."""
SILENCE_S = PATIENCE_S + 4
"""Silence of the bank in which orders expire: those that came in its first seconds, unless workers die as well."""
LATER_S = 1.0
"""Time between two looks of operators, once the accidents are over."""
MEMORY = ("-XX:+UseG1GC", "-Xmx3g")
"""For a long run: CouchbaseMock keeps everything in memory, about 60 kB an order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Plan of the run."""

    seed: int
    faults_s: float
    """Time in which faults begin."""
    least: int
    """At least so many, however long they take."""
    per_s: float
    """Orders a second."""

    @property
    def is_short(self) -> bool:
        """True if it ends when each kind of accident has happened."""
        return not self.faults_s


@dataclass(frozen=True, slots=True)
class Servers:
    """Both of them, with what has to be set to use them."""

    kafka: KafkaServer
    mock: CouchbaseMock

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "SAGA_BROKER": f"kafka://{self.kafka.address}",
            "SAGA_KAFKA_REPLICATION": "1",
            "SAGA_KAFKA_MIN_INSYNC": "1",
            "SAGA_STORE": f"{self.mock.address}/{BUCKET}",
            "SAGA_STORE_DURABILITY": "none",
            "SAGA_COUCHBASE_USERNAME": "saga",
            "SAGA_COUCHBASE_PASSWORD": "secret",
            "SAGA_CONTRACTS": str(ROOT / "contracts"),
            "SAGA_LOG": "json",
        }


@contextmanager
def servers(folder: Path, *, short: bool) -> Iterator[Servers]:
    """Both, running; they end with the block."""
    kafka = KafkaServer.start(folder / "kafka")
    try:
        mock = CouchbaseMock.start(folder / "couchbase", jvm=JVM if short else MEMORY)
        try:
            yield Servers(kafka, mock)
        finally:
            mock.stop()
    finally:
        kafka.kill()


class Torture:
    """One run of it. Its logs and ledgers are in `folder`."""

    def __init__(self, folder: Path, plan: Plan, tell: Callable[[str], None]) -> None:
        self._folder, self._plan, self._say = folder, plan, tell
        self._trouble = folder / "trouble"
        self._clock: Clock = SystemClock()
        self._began_s = self._clock.monotonic_s()
        self.checks: list[Check] = []
        self.kinds: Set[AccidentKind] = frozenset()

    def _tell(self, line: str) -> None:
        self._say(f"[{self._clock.monotonic_s() - self._began_s:6.1f} s] {line}")

    async def run(self) -> bool:
        """Tell it; whether the books balance. Raises `Fallen` or `NotRecovered`."""
        try:
            return await self._run()
        except BaseExceptionGroup as several:
            raise _first(several) from several

    async def _run(self) -> bool:
        self._folder.mkdir(parents=True, exist_ok=True)
        with servers(self._folder, short=self._plan.is_short) as both:
            settings = Settings.read(both.settings)
            kept = {name: value for name, value in os.environ.items() if not name.startswith("SAGA_")}
            ledgers = {
                "PAYMENT_LEDGER": str(self._folder / "bank.db"),
                "SHIPPING_LEDGER": str(self._folder / "carrier.db"),
                TROUBLE: str(self._trouble),
                "ORDER_PATIENCE_S": str(PATIENCE_S),
            }
            self._tell("Kafka and CouchbaseMock run; the store is frozen and never killed: it would forget everything")
            with Workers(self._folder, kept | dict(both.settings) | ledgers, self._clock) as workers:
                await self._with_workers(both, settings, workers)
        self._say("\n".join(["", *report(self.checks)]))
        return not any(check.differences for check in self.checks)

    async def _with_workers(self, both: Servers, settings: Settings, workers: Workers) -> None:
        expected = self._plan.per_s * (self._plan.faults_s + 60)
        readings = Readings(lambda s: self._store(settings, s), self._folder, Shelves(1 + int(expected) // SHOP))
        async with (
            KafkaAdministration(kafka_settings(settings), clock=self._clock) as broker,
            readings,
        ):
            await readings.fill()
            chance = Random(self._plan.seed)
            customers = Customers(broker, self._plan.per_s, chance, self._clock)
            for declared in READ.values():
                await broker.ensure_topics([*topics_of(declared), TOPIC])  # on Kafka services make none
            for service, count in (FEWER if self._plan.is_short else WORKERS).items():
                for _ in range(count):
                    workers.hire(service)
            operators = Operators(broker, chance, self._clock)
            strangers = Strangers(broker, self._plan.seed, self._clock, customers.writing)
            accidents = Accidents(
                workers,
                both.kafka,
                both.mock,
                customers,
                operators,
                strangers,
                unread=lambda: _unread(broker),
                trouble=self._trouble,
                chance=chance,
                clock=self._clock,
                tell=self._tell,
            )
            await self._while_ordering(customers, strangers, workers, accidents)
            await self._until_settled(readings, customers, workers, operators, broker)
            await workers.dismiss_all()
            self._tell("all workers have drained and ended")
            await self._audit(readings, customers, broker, operators, accidents, strangers)

    def _store(self, settings: Settings, service: str) -> Store:
        return adapters.store_at(settings, service, self._clock)

    async def _while_ordering(
        self, customers: Customers, strangers: Strangers, workers: Workers, accidents: Accidents
    ) -> None:
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(customers.order(over), name="orders")
            tasks.create_task(strangers.write(over), name="strangers")
            watching = [
                tasks.create_task(customers.look(), name="outcomes"),
                tasks.create_task(self._check(workers, accidents), name="workers"),
            ]
            await self._until_warm(customers)
            self._tell(f"{customers.ended} orders have ended; the accidents begin, with seed {self._plan.seed}")
            self.kinds = await accidents.happen(self._plan.faults_s, self._plan.least)
            over.set()
            await self._until(lambda: customers.ended == len(customers.placed), SETTLED_S_MAX, "orders have not ended")
            for task in watching:
                task.cancel()
        self._tell(
            f"all {len(customers.placed)} orders have ended; {customers.repeated} were sent twice, "
            f"{strangers.written} unreadable records were between them, "
            f"{customers.refused} times the broker did not take some, and {workers.not_started} times a worker "
            f"could not start; {workers.opened()} times a breaker opened"
        )
        self._say("\n".join(["", *accidents.summary(), ""]))

    async def _until_warm(self, customers: Customers) -> None:
        warm = WARM_SOON if self._plan.is_short else WARM
        await self._until(lambda: customers.ended >= warm, WARM_S_MAX, f"{warm} orders have not ended")

    async def _until(self, holds: Callable[[], bool], within_s: float, otherwise: str) -> None:
        until_s = self._clock.monotonic_s() + within_s
        while not holds():
            if self._clock.monotonic_s() > until_s:
                raise NotRecovered(f"{otherwise} within {within_s:.0f} s")
            await self._clock.sleep(LOOK_S)

    async def _check(self, workers: Workers, accidents: Accidents) -> None:
        while True:
            workers.check(in_trouble=accidents.in_trouble)
            await self._clock.sleep(LOOK_S)

    async def _until_settled(
        self,
        readings: Readings,
        customers: Customers,
        workers: Workers,
        operators: Operators,
        broker: KafkaAdministration,
    ) -> None:
        """Every order has its outcome; now wait until all of them are carried out or undone, everywhere, and all is
        read: no order may be behind what a damaged partition has kept back."""
        until_s = self._clock.monotonic_s() + SETTLED_S_MAX
        while (left := await readings.unsettled(customers.placed)) or (unread := await _unread(broker)):
            workers.check(in_trouble=False)
            if self._clock.monotonic_s() > until_s:
                where = "; ".join(f"{len(of)} in {service}, {of[0]} for one" for service, of in left.items())
                raise NotRecovered(f"after {SETTLED_S_MAX:.0f} s this is not settled: {where or '; '.join(unread)}")
            await operators.cure()  # of what died just before the bank had put its books right
            await self._clock.sleep(LATER_S)
        self._tell("and all are settled in all services, which have read everything")

    async def _audit(
        self,
        readings: Readings,
        customers: Customers,
        broker: KafkaAdministration,
        operators: Operators,
        accidents: Accidents,
        strangers: Strangers,
    ) -> None:
        found = await readings.books(customers.placed)
        operator_checks = [await strangers.check_dead_letters(), await operators.check_replays()]
        left = traces(readings.histories, silences=accidents.alone("the bank silent", SILENCE_S), cures=operators.asked)
        left.append(
            await check_answers_in_time(broker, customers.placed, list(expired(readings.histories)), PATIENCE_S)
        )
        self.checks = [*audit(found), readings.chains(), *await log(broker), *operator_checks, *left]
        self._say("\n".join(["", *table(outcomes(found))]))


async def _unread(broker: KafkaAdministration) -> list[str]:
    return [difference for check in await log(broker) for difference in check.differences]


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """First error: groups only say through which tasks it came."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
