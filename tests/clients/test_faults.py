"""Each public method of a client, with each call that it makes of the broker failing once, in each way it can fail.

What can be waited for is waited for; the rest is a `SagaError`, after which the same call succeeds."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaConnectionError

from saga import Client, SagaError
from saga.broker.kafka import client as kafka_client
from saga.broker.kafka import consumers
from saga.clients.client import OutcomeReader
from saga.errors import BrokerUnavailable
from tests.broker.waiting import until
from tests.clients.test_listening import Shop as Parcels
from tests.clients.test_listening import heard
from tests.clients.test_outcomes import Shop as Orders
from tests.clients.test_outcomes import a_task

SOON, LONG = timedelta(0), timedelta(seconds=30)
CALLS = ("count_partitions", "find_missing_rights", "fetch_bounds", "fetch_log_ids", "publish")
ENTERED = ("open_reader", "join")
INSIDE = ("poll", "commit")


class FailingBroker:
    """A broker for tools of which one call fails: the `n`-th of its kind, before it is done or after."""

    def __init__(self, broker: Any) -> None:
        self.broker = broker
        self.calls = Counter[str]()
        self.fault: tuple[str, int, str] | None = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.broker, name)
        if name in CALLS:
            return lambda *args, **more: self.do(name, lambda: found(*args, **more))
        if name in ENTERED:
            return lambda *args, **more: self._entered(name, found, *args, **more)
        return found

    async def do(self, kind: str, act: Callable[[], Awaitable[Any]]) -> Any:
        self.calls[kind] += 1
        mode = self.fault[2] if self.fault is not None and self.fault[:2] == (kind, self.calls[kind]) else ""
        if mode == "before":
            self._fail()
        done = await act()
        if mode == "after":
            self._fail()
        return done

    def _fail(self) -> None:
        self.fault = None
        raise BrokerUnavailable("planted: the broker is away")

    @asynccontextmanager
    async def _entered(self, kind: str, enter: Callable[..., Any], *args: Any, **more: Any) -> AsyncIterator[Any]:
        async def nothing() -> None: ...

        await self.do(kind, nothing)
        async with enter(*args, **more) as entered:
            for name in INSIDE:
                if hasattr(entered, name):
                    self._wrap(entered, name)
            yield entered
        await self.do(f"end of {kind}", nothing)

    def _wrap(self, entered: Any, name: str) -> None:
        act = getattr(entered, name)
        setattr(entered, name, lambda *args, **more: self.do(name, lambda: act(*args, **more)))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saga.clients.client.AGAIN_S", 0.01)
    monkeypatch.setattr("saga.clients.subscription.AGAIN_S", 0.01)
    monkeypatch.setattr("saga.clients.subscription.COMMIT_EVERY_S", 0.0)


Used = Callable[[Client], Awaitable[object]]


async def again(use: Callable[[], Awaitable[object]]) -> object:
    """What it gives; after a `SagaError` what it gives then."""
    try:
        return await use()
    except SagaError:
        return await use()


async def check_each_fault(use: Used, expected: object, *, is_patient: bool = False) -> None:
    """Use a client without a fault, then with each single one. Only a `SagaError` may come out of it, and once; and
    nothing if it `is_patient`."""
    async with Client() as client:
        client._broker = counting = FailingBroker(client._broker)
        assert await use(client) == expected
    assert counting.calls
    for kind, count in sorted(counting.calls.items()):
        for n in range(1, min(count, 3) + 1):
            for mode in ("before",) if kind == "poll" else ("before", "after"):  # what a poll gave, it gave
                async with Client() as client:
                    client._broker = failing = FailingBroker(client._broker)
                    failing.fault = kind, n, mode
                    once = partial(use, client)
                    found = await asyncio.wait_for(once() if is_patient else again(once), 60)
                assert found == expected, (kind, n, mode)


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    return Orders(tmp_path)


@pytest.fixture
def parcels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parcels:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    return Parcels(tmp_path)


async def test_publishing_is_done_or_a_saga_error(orders: Orders) -> None:
    async def publish(client: Client) -> str:
        await client.publish(orders.placed(order_id="o-1"))
        return "published"

    await orders.publish()
    await check_each_fault(publish, "published")


async def test_an_outcome_that_was_there_is_given_or_a_saga_error(orders: Orders) -> None:
    both, confirmed = (orders.confirmed, orders.cancelled), orders.confirmed(order_id="o-1")
    await orders.publish(confirmed, orders.cancelled(order_id="o-2", reason="no"))
    await check_each_fault(lambda client: client.outcome("o-1", *both, within=SOON), confirmed)


async def test_an_outcome_that_is_not_there_is_none_or_a_saga_error(orders: Orders) -> None:
    both = orders.confirmed, orders.cancelled
    await orders.publish(orders.confirmed(order_id="o-1"))
    await check_each_fault(lambda client: client.outcome("o-3", *both, within=SOON), None)


@pytest.mark.parametrize("options", [{"begin": "beginning"}, {"group": "mailer"}], ids=["alone", "in a group"])
async def test_all_is_heard_whatever_fails_also_before_the_first_event(
    parcels: Parcels, options: dict[str, str]
) -> None:
    sent = [parcels.sent(order_id=f"o-{n}") for n in range(4)]
    await parcels.publish(*sent)
    groups = iter(range(1000))

    async def listen(client: Client) -> set[Any]:
        given = {"group": f"mailer-{next(groups)}"} if "group" in options else options
        listening = client.listen(parcels.sent, **given)  # type: ignore[call-overload]
        found = await heard(listening, len(sent))
        await listening.aclose()
        return set(found)

    await check_each_fault(listen, set(sent), is_patient=True)


async def test_many_ask_at_every_moment_and_none_gets_the_error_that_the_client_was_closed(orders: Orders) -> None:
    both = orders.confirmed, orders.cancelled
    outcomes = [orders.confirmed(order_id=f"o-{n}") for n in range(5)]
    await orders.publish(*outcomes)

    async def ask(client: Client, turns: int) -> None:
        for n in range(60):
            for _ in range(turns * n % 7):
                await asyncio.sleep(0)  # noqa: TID251 - another moment of the loop each time
            assert await client.outcome(f"o-{n % 5}", *both, within=LONG) == outcomes[n % 5]

    async with Client() as client:
        for askers in (1, 3, 8):
            await asyncio.gather(*(a_task(ask(client, turns)) for turns in range(askers)))


async def test_a_reader_that_has_ended_gives_no_answer_to_later_questions(orders: Orders) -> None:
    both = orders.confirmed, orders.cancelled
    await orders.publish(orders.confirmed(order_id="o-1"))
    async with Client() as client:
        await client.outcome("o-1", *both, within=SOON)
        [outcomes] = client._outcomes.values()
        assert isinstance(outcomes, OutcomeReader)
        ended = outcomes._reader
        assert ended is not None
        await asyncio.wait([ended])
        asked = a_task(client.outcome("o-2", *both, within=LONG))
        await until(lambda: outcomes._askers)
        outcomes._end_reading(ended)
        await orders.publish(orders.cancelled(order_id="o-2", reason="no"))
        assert await asked == orders.cancelled(order_id="o-2", reason="no")


# -------------------------------------------------------------------- on Kafka


@pytest.fixture
def orders_on_kafka(kafka_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Orders:
    monkeypatch.setenv("SAGA_BROKER", f"kafka://{kafka_address}")
    monkeypatch.setenv("SAGA_KAFKA_REPLICATION", "1")
    monkeypatch.setenv("SAGA_KAFKA_MIN_INSYNC", "1")
    return Orders(tmp_path)


async def test_a_consumer_that_closes_slowly_is_ended_by_force(
    orders_on_kafka: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, confirmed = (orders_on_kafka.confirmed, orders_on_kafka.cancelled), orders_on_kafka.confirmed(order_id="o-1")
    await orders_on_kafka.publish(confirmed)
    monkeypatch.setattr(consumers, "END_S", 0.01)
    consumer_names = list[str]()

    async def never(consumer: AIOKafkaConsumer) -> None:
        kafka_client.check_consumer(consumer)
        consumer_names.append(type(consumer._coordinator).__name__)
        consumer._closed = True  # aiokafka sets it before it waits
        await asyncio.Event().wait()

    async with Client() as client:
        monkeypatch.setattr(AIOKafkaConsumer, "stop", never)
        assert await client.outcome("o-1", *both, within=SOON) == confirmed
    assert {*consumer_names} == {"NoGroupCoordinator"}


@pytest.mark.parametrize("n", range(1, 4))
async def test_a_consumer_that_cannot_connect_is_waited_for_or_a_saga_error(
    orders_on_kafka: Orders, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    both, confirmed = (orders_on_kafka.confirmed, orders_on_kafka.cancelled), orders_on_kafka.confirmed(order_id="o-1")
    await orders_on_kafka.publish(confirmed)
    start, begun = AIOKafkaConsumer.start, list[int]()

    async def refused(consumer: AIOKafkaConsumer) -> None:
        begun.append(1)
        if len(begun) == n:
            raise KafkaConnectionError("Unable to bootstrap from [...]")
        await start(consumer)

    monkeypatch.setattr(AIOKafkaConsumer, "start", refused)
    async with Client() as client:
        assert await again(lambda: client.outcome("o-1", *both, within=SOON)) == confirmed
