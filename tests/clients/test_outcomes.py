"""Answers to an application that asks for the outcome of a saga: published before it or after it, on both brokers,
without a scan for each question, and with bounded memory."""

import asyncio
import os
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from saga import Client, Event, SagaError
from saga.broker.administration import Administration, OffsetBounds
from saga.broker.embedded.broker import EmbeddedAdministration, EmbeddedReader
from saga.broker.port import partition_of
from saga.clients import client as client_module
from saga.clients.client import OffsetIndex, OutcomeReader
from saga.configuration.settings import Settings
from saga.contracts import codec
from saga.contracts.library import binding_of
from saga.errors import BadInput, BrokerBroken, BrokerUnavailable
from saga.messages import Message, Outgoing, Partition, Record
from saga.messaging.envelope import to_record
from saga.ops.sources import open_administration
from saga.support.clock import SystemClock
from tests.broker.waiting import until
from tests.contracts.folders import field, generated, put, schema, write

CLOCK = SystemClock()
T = TypeVar("T")
SOON, LONG = timedelta(0), timedelta(seconds=60)
NUMBERS = iter(range(10_000))


def outgoing(event: Event, *, source: str = "order") -> Outgoing:
    """Record of an event as its owner publishes it."""
    contract, saga = binding_of(type(event)).contract, str(event.order_id)  # type: ignore[attr-defined]
    name = contract.name
    message = Message(
        id=f"{name}-{saga}", type=name, schema=type(event).__contract__, saga=saga, source=source,
        time="2026-01-01T00:00:00.000Z", value=codec.encode(event),
    )  # fmt: skip
    return to_record(message, contract)


def a_task(question: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    return asyncio.get_running_loop().create_task(question)


class Shop:
    """Contracts of orders that end in one of two ways, and of returns of goods, in topics of its own; and a broker."""

    def __init__(self, folder: Path) -> None:
        topic = f"orders-{os.getpid()}-{next(NUMBERS)}"
        self.topic, self.folder = topic, folder
        write(
            folder,
            schema("Placed", topic=topic, starts=True, produced_by="external"),
            schema("Confirmed", field("parcel", "string", default=""), topic=topic, outcome="success"),
            schema("Cancelled", field("reason", "string"), topic=topic, outcome="failure"),
        )
        put(folder / "contracts" / topic / "topic.json", '{"partitions": 3}')
        events: ModuleType = generated(folder, "Placed", "Confirmed", "Cancelled")
        self.placed: Any = events.Placed
        self.confirmed: Any = events.Confirmed
        self.cancelled: Any = events.Cancelled

    async def publish(self, *events: Event) -> None:
        async with open_administration(Settings.from_environment(), CLOCK) as broker:
            await broker.ensure_topics([binding_of(self.placed).library.topics[self.topic]])
            await broker.publish([outgoing(event) for event in events])


@pytest.fixture(params=["embedded", "kafka"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    if request.param == "kafka":
        monkeypatch.setenv("SAGA_BROKER", f"kafka://{request.getfixturevalue('kafka_address')}")
        monkeypatch.setenv("SAGA_KAFKA_REPLICATION", "1")
        monkeypatch.setenv("SAGA_KAFKA_MIN_INSYNC", "1")
    return Shop(tmp_path)


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    return Shop(tmp_path)


@pytest.fixture
async def client(embedded: Shop) -> AsyncIterator[Client]:
    async with Client() as client:
        yield client


# -------------------------------------------------------------------- both brokers


async def test_an_outcome_is_returned_whether_it_was_published_before_the_question_or_after(shop: Shop) -> None:
    await shop.publish(
        shop.placed(order_id="o-1"), shop.confirmed(order_id="o-1", parcel="p-7"), shop.placed(order_id="o-2")
    )
    async with Client() as client:
        both = shop.confirmed, shop.cancelled
        assert await client.outcome("o-1", *both, within=SOON) == shop.confirmed(order_id="o-1", parcel="p-7")
        assert await client.outcome("o-2", *both, within=SOON) is None
        asked = a_task(client.outcome("o-2", *both, within=LONG))
        await shop.publish(shop.confirmed(order_id="o-9"), shop.cancelled(order_id="o-2", reason="late"))
        assert await asked == shop.cancelled(order_id="o-2", reason="late")
        assert await client.outcome("o-2", *both, within=SOON) == shop.cancelled(order_id="o-2", reason="late")


async def test_many_ask_at_once_and_each_gets_its_own(shop: Shop) -> None:
    async with Client() as client:
        await shop.publish(*(shop.confirmed(order_id=f"o-{n}", parcel=str(n)) for n in range(0, 100, 2)))
        both = shop.confirmed, shop.cancelled
        asked = [a_task(client.outcome(f"o-{n}", *both, within=LONG)) for n in range(100)]
        await CLOCK.sleep(0)
        await shop.publish(*(shop.cancelled(order_id=f"o-{n}", reason=str(n)) for n in range(1, 100, 2)))
        outcomes = await asyncio.gather(*asked)
    assert outcomes == [
        shop.cancelled(order_id=f"o-{n}", reason=str(n)) if n % 2 else shop.confirmed(order_id=f"o-{n}", parcel=str(n))
        for n in range(100)
    ]


async def test_concurrent_requests_for_outcomes_share_one_read_of_the_topics(
    embedded: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, partitions, asking, ask = (
        list[object](),
        EmbeddedAdministration.count_partitions,
        list[object](),
        OutcomeReader._count_partitions,
    )

    async def counted(self: EmbeddedAdministration, topics: Collection[str]) -> Mapping[str, int]:
        looks.append(topics)
        await until(lambda: len(asking) == 50)
        return await partitions(self, topics)

    def asked_for(self: OutcomeReader[Any]) -> Any:
        asking.append(self)
        return ask(self)

    monkeypatch.setattr(EmbeddedAdministration, "count_partitions", counted)
    monkeypatch.setattr(OutcomeReader, "_count_partitions", asked_for)
    async with Client() as client:
        both = embedded.confirmed, embedded.cancelled
        asked = [a_task(client.outcome(f"o-{n}", *both, within=LONG)) for n in range(50)]
        await embedded.publish(*(embedded.cancelled(order_id=f"o-{n}", reason="-") for n in range(50)))
        assert len(await asyncio.gather(*asked)) == 50
    assert len(looks) == 1


# -------------------------------------------------------------------- from where it reads


async def test_a_question_reads_what_is_new_and_no_more(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, taken = (embedded.confirmed, embedded.cancelled), list[int]()
    poll = EmbeddedReader.poll

    async def counted(reader: EmbeddedReader, *, records_max: int, timeout_s: float) -> Any:
        records = await poll(reader, records_max=records_max, timeout_s=timeout_s)
        taken.append(len(records))
        return records

    monkeypatch.setattr(EmbeddedReader, "poll", counted)
    await embedded.publish(*(embedded.confirmed(order_id=f"o-{n}") for n in range(300)))
    assert await client.outcome("o-7", *both, within=SOON) == embedded.confirmed(order_id="o-7")
    of_partition = sum(taken)
    assert 50 < of_partition < 200, "of the saga's partition all, of the others nothing"
    taken.clear()
    for _ in range(20):
        assert await client.outcome("o-7", *both, within=SOON) == embedded.confirmed(order_id="o-7")
        assert await client.outcome("o-unknown-7", *both, within=SOON) is None
    assert sum(taken) < 20 + 200, "one record a question, and the partition of the other saga once"


async def test_an_outcome_evicted_from_the_cache_is_read_again_from_the_log(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CHUNK", 8)
    monkeypatch.setattr(client_module, "REMEMBERED_MAX", 20)
    both = embedded.confirmed, embedded.cancelled
    await embedded.publish(*(embedded.confirmed(order_id=f"o-{n}", parcel=str(n)) for n in range(300)))
    for n in (0, 1, 2, 150, 299):
        assert await client.outcome(f"o-{n}", *both, within=SOON) == embedded.confirmed(
            order_id=f"o-{n}", parcel=str(n)
        )
    assert await client.outcome("o-300", *both, within=SOON) is None
    (asked,) = client._outcomes.values()
    assert sum(len(strand.places) for strand in asked._strands.values()) <= 20


def test_places_of_a_saga_are_found_among_many_and_bounded() -> None:
    places = OffsetIndex(5)
    for n in range(20_000):
        places.add(f"o-{n}".encode(), n + 5)
    places.add(b"o-3", 30_000)
    assert [places.of(f"o-{n}".encode()) for n in (0, 3, 4095, 4096, 19_999, 20_000)] == [
        [5], [8, 30_000], [4100], [4101], [20_004], []
    ]  # fmt: skip
    places.forget_oldest()
    assert (places.begin, len(places)) == (4096 + 5, 20_001 - 4096)
    assert places.of(b"o-3") == [30_000]


async def test_the_first_outcome_that_was_published_counts(embedded: Shop, client: Client) -> None:
    await embedded.publish(
        embedded.cancelled(order_id="o-1", reason="a"), embedded.cancelled(order_id="o-1", reason="b")
    )
    outcome = await client.outcome("o-1", embedded.confirmed, embedded.cancelled, within=SOON)
    assert outcome == embedded.cancelled(order_id="o-1", reason="a")


async def test_an_outcome_counts_that_comes_with_the_first_record_of_another_partitioner(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = next(f"o-{n}" for n in range(2, 99) if partition_of(f"o-{n}".encode(), 3) == partition_of(b"o-1", 3))

    def expected_partition(key: bytes, count: int) -> int:
        return (partition_of(key, count) + (key == stranger.encode())) % count

    monkeypatch.setattr(client_module, "partition_of", expected_partition)
    both = embedded.confirmed, embedded.cancelled
    await embedded.publish()
    asked = a_task(client.outcome("o-1", *both, within=LONG))
    await until(lambda: any(each.caught_up.is_set() for reader in client._outcomes.values() for each in reader._askers))
    await embedded.publish(embedded.confirmed(order_id="o-1"), embedded.placed(order_id=stranger))
    assert await asked == embedded.confirmed(order_id="o-1")
    (reader,) = client._outcomes.values()
    assert reader._scattered == {embedded.topic}


async def test_an_outcome_counts_though_another_partitioner_is_noticed_when_the_question_has_been_looked_up(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question waits to be continued at that moment, and has to look in all partitions."""
    order = next(f"o-{n}" for n in range(99) if partition_of(f"o-{n}".encode(), 3) == 1)
    monkeypatch.setattr(client_module, "partition_of", lambda *_: 2)
    answer, noticed = OutcomeReader._answer_caught_up, list[Record]()

    def answer_and_notice(reader: OutcomeReader[Any]) -> None:
        answer(reader)
        if not noticed and any(asker.caught_up.is_set() for asker in reader._askers):
            noticed.append(Record(embedded.topic, 1, 0, order.encode(), None, (), 0))
            reader._check_partitioner(noticed)

    monkeypatch.setattr(OutcomeReader, "_answer_caught_up", answer_and_notice)
    await embedded.publish(embedded.confirmed(order_id=order))
    outcome = await client.outcome(order, embedded.confirmed, embedded.cancelled, within=SOON)
    assert outcome == embedded.confirmed(order_id=order)


async def test_a_broker_that_does_not_know_a_new_partition_yet_is_asked_again(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "AGAIN_S", 0)
    fetch_bounds, fetched = client._broker.fetch_bounds, list[object]()

    async def fetch_some(topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        bounds = await fetch_bounds(topics)
        fetched.append(bounds)
        return bounds if len(fetched) > 1 else {Partition(embedded.topic, 0): bounds[Partition(embedded.topic, 0)]}

    order = next(f"o-{n}" for n in range(99) if partition_of(f"o-{n}".encode(), 3) == 1)
    await embedded.publish(embedded.confirmed(order_id=order))
    monkeypatch.setattr(client._broker, "fetch_bounds", fetch_some)
    outcome = await client.outcome(order, embedded.confirmed, embedded.cancelled, within=SOON)
    assert outcome == embedded.confirmed(order_id=order)


async def test_a_broker_that_does_not_know_a_new_partition_yet_is_asked_again_though_another_partitioner_is_noticed(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sample shows that the outcome may be in partitions that the broker did not know when it was asked."""
    other, order = [name for n in range(99) if partition_of((name := f"o-{n}").encode(), 3) == 0][:2]
    monkeypatch.setattr(client_module, "AGAIN_S", 0)
    monkeypatch.setattr(client_module, "partition_of", lambda key, _: 0 if key == order.encode() else 1)
    fetch_bounds, fetched = client._broker.fetch_bounds, list[object]()

    async def fetch_some(topics: Collection[str]) -> Mapping[Partition, OffsetBounds]:
        bounds = await fetch_bounds(topics)
        fetched.append(bounds)
        return bounds if len(fetched) > 1 else {Partition(embedded.topic, 0): bounds[Partition(embedded.topic, 0)]}

    await embedded.publish(embedded.confirmed(order_id=other), embedded.confirmed(order_id=order))
    monkeypatch.setattr(client._broker, "fetch_bounds", fetch_some)
    outcome = await client.outcome(order, embedded.confirmed, embedded.cancelled, within=SOON)
    assert outcome == embedded.confirmed(order_id=order)
    assert len(fetched) > 1


# -------------------------------------------------------------------- who is asked


async def test_without_classes_it_is_recognized_by_the_contracts_that_are_there(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_CONTRACTS", str(embedded.folder / "contracts"))
    await embedded.publish(embedded.cancelled(order_id="o-1", reason="late"))
    outcome = await client.outcome("o-1", within=SOON)
    assert outcome is not None
    assert (type(outcome).__name__, outcome.reason) == ("Cancelled", "late")  # type: ignore[attr-defined]
    assert type(await client.outcome("o-1", within=SOON)) is type(outcome)


async def test_a_question_that_could_never_be_answered_is_refused_with_all_that_is_wrong(
    embedded: Shop, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SagaError) as raised:
        await client.outcome("o-1", embedded.placed, embedded.confirmed, within=SOON)
    assert str(raised.value) == (
        "these events are not the outcomes of one kind of saga:\n"
        '  - Placed is no outcome: its contract has no "outcome"\n'
        "  - Cancelled is an outcome, too, by its key order_id: name it, or a saga that ends so is never answered"
    )
    with pytest.raises(SagaError, match="two classes belong to one contract"):
        await client.outcome("o-1", embedded.confirmed, embedded.cancelled, embedded.confirmed, within=SOON)
    write(tmp_path / "none", schema("Placed"))
    monkeypatch.setenv("SAGA_CONTRACTS", str(tmp_path / "none/contracts"))
    with pytest.raises(SagaError, match=r"name the classes of the outcomes: .* has no outcome"):
        await client.outcome("o-1", within=SOON)


async def test_a_saga_id_that_cannot_be_encoded_is_refused(embedded: Shop, client: Client) -> None:
    for classes in [(embedded.confirmed, embedded.cancelled), ()]:
        with pytest.raises(BadInput, match="is no saga id: its character 1 is half of a surrogate pair"):
            await client.outcome("o\ud800", *classes, within=SOON)
    with pytest.raises(SagaError, match="order_id"):
        await client.publish(embedded.placed(order_id="o\ud800"))


# -------------------------------------------------------------------- what goes wrong


async def test_an_outage_is_waited_for_within_the_question(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, refused = (embedded.confirmed, embedded.cancelled), list[bool]()
    await embedded.publish(embedded.confirmed(order_id="o-1"))
    poll = EmbeddedReader.poll

    async def away(reader: EmbeddedReader, *, records_max: int, timeout_s: float) -> Any:
        if len(refused) < 3:
            refused.append(True)
            raise BrokerUnavailable("the disk is away")
        return await poll(reader, records_max=records_max, timeout_s=timeout_s)

    monkeypatch.setattr(EmbeddedReader, "poll", away)
    assert await client.outcome("o-1", *both, within=SOON) == embedded.confirmed(order_id="o-1")
    monkeypatch.setattr(client_module, "FOUND_S_MAX", 0.3)
    refused.clear()
    monkeypatch.setattr(client_module, "AGAIN_S", 10)
    with pytest.raises(BrokerUnavailable, match="within 0 s: the disk is away; ask again"):
        await client.outcome("o-2", *both, within=SOON) or await client.outcome("o-3", *both, within=SOON)


async def test_a_broker_that_falls_silent_while_an_outcome_is_read_again_ends_the_question(
    embedded: Shop, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka's client waits without an error while no broker answers."""
    both = embedded.confirmed, embedded.cancelled
    await embedded.publish(embedded.confirmed(order_id="o-1"))
    assert await client.outcome("o-1", *both, within=SOON) == embedded.confirmed(order_id="o-1")

    async def silent(reader: EmbeddedReader, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        await CLOCK.sleep(timeout_s)
        return []

    monkeypatch.setattr(client_module, "FOUND_S_MAX", 0.3)
    with monkeypatch.context() as patched:
        patched.setattr(EmbeddedReader, "poll", silent)
        with pytest.raises(BrokerUnavailable, match=r"has sent no record .* for 0 s: ask again"):
            async with asyncio.timeout(20):
                await client.outcome("o-1", *both, within=SOON)
    assert await client.outcome("o-1", *both, within=SOON) == embedded.confirmed(order_id="o-1")


async def test_all_who_ask_get_an_error_when_the_file_is_removed(embedded: Shop) -> None:
    both = embedded.confirmed, embedded.cancelled
    await embedded.publish(embedded.placed(order_id="o-1"))
    async with Client() as client:
        asked = [a_task(client.outcome("o-1", *both, within=LONG)) for _ in range(3)]
        await until(lambda: client._outcomes and len(next(iter(client._outcomes.values()))._askers) == 3)
        (embedded.folder / "broker.db").rename(embedded.folder / "elsewhere.db")
        for each in asked:
            with pytest.raises(BrokerBroken):
                await each


async def test_asking_while_the_client_is_closed_raises(embedded: Shop) -> None:
    await embedded.publish(embedded.placed(order_id="o-1"))
    async with Client() as client:
        asked = a_task(client.outcome("o-1", embedded.confirmed, embedded.cancelled, within=LONG))
        await until(lambda: client._outcomes and next(iter(client._outcomes.values()))._askers)
    with pytest.raises(SagaError, match="the client was closed while it was asked"):
        await asked


async def test_asking_while_the_client_is_closed_before_it_has_looked_raises(
    embedded: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that only waits for an answer must not end as if it had been cancelled."""
    both, begun = (embedded.confirmed, embedded.cancelled), asyncio.Event()
    answer: asyncio.Future[Mapping[str, int]] = asyncio.get_running_loop().create_future()

    async def silent(topics: Collection[str]) -> Mapping[str, int]:
        begun.set()
        return await answer

    await embedded.publish(embedded.placed(order_id="o-1"))
    async with Client() as client:
        assert await client.outcome("o-1", *both, within=SOON) is None
        monkeypatch.setattr(client._broker, "count_partitions", silent)
        asked, cancelled = [a_task(client.outcome("o-1", *both, within=LONG)) for _ in range(2)]
        await begun.wait()
        cancelled.cancel()
    with pytest.raises(SagaError, match="the client was closed while it was asked"):
        await asked
    assert cancelled.cancelled()


async def test_nothing_is_read_while_no_one_asks(embedded: Shop, client: Client) -> None:
    await client.outcome("o-1", embedded.confirmed, embedded.cancelled, within=SOON)
    (asked,) = client._outcomes.values()
    await until(lambda: asked._reader is not None and asked._reader.done())
    broker: Administration = client._broker
    assert isinstance(broker, EmbeddedAdministration)
    assert broker._readers == []
