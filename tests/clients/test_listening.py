"""What an application hears that listens: from now, from the beginning, or as a group, on both brokers."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from saga import Client, Event, SagaError, upcast
from saga.broker.embedded.broker import EmbeddedAdministration, EmbeddedReader
from saga.broker.port import partition_of
from saga.clients.subscription import EventSubscription, GroupReader
from saga.configuration.settings import Settings
from saga.contracts.library import binding_of
from saga.encryption.key_folder import KeyFolder
from saga.errors import BrokerUnavailable, Fenced, KeyMissing, UnknownSchema, UpcasterFailed
from saga.messages import Outgoing, Partition, Record
from saga.messaging.names import CLIENTS
from saga.ops.sources import open_administration
from saga.support.clock import SystemClock
from tests.clients.test_outcomes import a_task, outgoing
from tests.contracts.folders import field, generated, put, schema, write

CLOCK = SystemClock()
NUMBERS = iter(range(10_000))
WITHIN_S = 60.0


class Shop:
    """Contracts of parcels that others hear of, and of one thing that is for services alone; and a broker."""

    def __init__(self, folder: Path, *, on_kafka: bool = False) -> None:
        self.on_kafka = on_kafka
        topic = f"parcels-{os.getpid()}-{next(NUMBERS)}"
        self.topic = topic
        write(
            folder,
            schema("Sent", topic=topic, consumed_by="external"),
            schema("Lost", topic=topic, consumed_by="external"),
            schema("Packed", topic=topic),
        )
        put(folder / "contracts" / topic / "topic.json", '{"partitions": 3}')
        events = generated(folder, "Sent", "Lost", "Packed")
        self.sent: Any = events.Sent
        self.lost: Any = events.Lost
        self.packed: Any = events.Packed

    async def publish(self, *events: Event | Outgoing) -> None:
        records = [event if isinstance(event, Outgoing) else outgoing(event) for event in events]
        async with open_administration(Settings.from_environment(), CLOCK) as broker:
            await broker.ensure_topics([binding_of(self.sent).library.topics[self.topic]])
            await broker.publish(records)


@pytest.fixture(params=["embedded", "kafka"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    if request.param == "kafka":
        monkeypatch.setenv("SAGA_BROKER", f"kafka://{request.getfixturevalue('kafka_address')}")
        monkeypatch.setenv("SAGA_KAFKA_REPLICATION", "1")
        monkeypatch.setenv("SAGA_KAFKA_MIN_INSYNC", "1")
    return Shop(tmp_path, on_kafka=request.param == "kafka")


@pytest.fixture
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    return Shop(tmp_path)


async def heard(events: AsyncIterator[Any], count: int) -> Counter[Any]:
    """Read so many events; only the request for another one acknowledges the last one."""

    async def take() -> Counter[Any]:
        found = Counter[Any]()
        while found.total() < count:
            found[await anext(events)] += 1
        return found

    return await CLOCK.within(WITHIN_S, take())


async def heard_until(events: AsyncIterator[Any], last: Event) -> Counter[Any]:
    """What comes up to this event."""

    async def take() -> Counter[Any]:
        found = Counter[Any]()
        while last not in found:
            found[await anext(events)] += 1
        return found

    return await CLOCK.within(WITHIN_S, take())


async def quiet(events: AsyncIterator[Any]) -> bool:
    """True if nothing more comes for a moment."""
    try:
        await CLOCK.within(0.3, anext(events))
    except TimeoutError:
        return True
    return False


# -------------------------------------------------------------------- both brokers


async def test_from_the_beginning_all_is_heard_and_then_what_comes(shop: Shop) -> None:
    sent = [shop.sent(order_id=f"o-{n}") for n in range(5)]
    lost = shop.lost(order_id="o-1")
    await shop.publish(*sent, shop.packed(order_id="o-1"))
    async with Client() as client, client.listen(shop.sent, shop.lost, begin="beginning") as events:
        assert await heard(events, 5) == Counter(sent)
        await shop.publish(lost, shop.packed(order_id="o-2"))
        assert await heard(events, 1) == Counter([lost])


async def test_from_now_on_only_what_comes_is_heard(shop: Shop) -> None:
    await shop.publish(shop.sent(order_id="o-1"))
    async with Client() as client, client.listen(shop.sent) as events:
        await shop.publish(shop.sent(order_id="o-2"))
        assert await heard(events, 1) == Counter([shop.sent(order_id="o-2")])


@pytest.mark.parametrize("shop", ["kafka"], indirect=True)  # the embedded broker adds no partitions
async def test_without_a_group_partitions_that_are_added_are_heard_from_their_first_event(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await shop.publish(shop.sent(order_id="o-1"))
    async with Client() as client, client.listen(shop.sent) as events:
        async with open_administration(Settings.from_environment(), CLOCK) as broker:
            await broker.add_partitions(shop.topic, 6)
            sent = [shop.sent(order_id=f"o-{n}") for n in range(20)]
            assert {partition_of(event.order_id.encode(), 6) for event in sent} == set(range(6))
            await broker.publish([outgoing(event) for event in sent])
        monkeypatch.setattr("saga.clients.subscription.LOOK_S", 0.2)
        cast("Any", events)._source._look_s = 0.0
        assert await heard(events, 20) == Counter(sent)
        assert await quiet(events)
    assert [each.getMessage() for each in caplog.records if "6 partitions instead of 3" in each.getMessage()]


async def test_a_group_continues_where_it_was_and_repeats_what_was_given_last(shop: Shop) -> None:
    sent = [shop.sent(order_id="o-1") for _ in range(3)] + [shop.lost(order_id="o-1")]
    await shop.publish(*sent)
    async with Client() as client:
        events = client.listen(shop.sent, shop.lost, group="mailer")
        assert await heard(events, 4) == Counter(sent)
    async with Client() as client, client.listen(shop.sent, shop.lost, group="mailer") as events:
        assert await heard(events, 1) == Counter([shop.lost(order_id="o-1")]), "it was not acknowledged"
        await shop.publish(shop.sent(order_id="o-2"))
        # Nor is it until the next one is requested, so a rebalance in between may give it once more.
        assert set(await heard_until(events, shop.sent(order_id="o-2"))) <= {sent[-1], shop.sent(order_id="o-2")}
    async with Client() as client, client.listen(shop.sent, group="another") as events:
        assert (await heard(events, 4)).total() == 4


# -------------------------------------------------------------------- groups


async def test_two_who_listen_in_one_group_share_the_work(embedded: Shop) -> None:
    events = [embedded.sent(order_id=f"o-{n}") for n in range(60)]
    found = [Counter[Any](), Counter[Any]()]

    async def listening(number: int, client: Client) -> None:
        async for event in client.listen(embedded.sent, group="mailer"):
            found[number][event] += 1

    async with Client() as one, Client() as two:
        tasks = [a_task(listening(number, client)) for number, client in enumerate((one, two))]
        async with open_administration(Settings.from_environment(), CLOCK) as broker:

            async def shared() -> None:
                while len((await broker.describe_group(f"{CLIENTS}mailer")).members) < 2:
                    await CLOCK.sleep(0.02)

            await CLOCK.within(WITHIN_S, shared())
        for event in events:
            await embedded.publish(event)

        async def all_heard() -> None:
            while (found[0] | found[1]).keys() != set(events) or not all(found):
                await CLOCK.sleep(0.02)

        await CLOCK.within(WITHIN_S, all_heard())
    for task in tasks:
        await CLOCK.within(WITHIN_S, task)


async def process_first(client: Client, event: Any, group: str | None, leaves_by: str) -> None:
    """Leave a loop over events while the first one is processed."""
    async for _ in client.listen(event, begin="now" if group else "beginning", group=group):
        if leaves_by == "break":
            break
        if leaves_by == "return":
            return
        raise ConnectionError("the mail server is away")


@pytest.mark.parametrize("leaves_by", ["break", "return", "exception"])
async def test_a_loop_that_was_left_gives_its_partitions_and_its_event_to_the_next_one(
    embedded: Shop, leaves_by: str
) -> None:
    sent = [embedded.sent(order_id=f"o-{n}") for n in range(12)]
    await embedded.publish(*sent)
    async with Client() as client:
        for _ in range(3):
            with suppress(ConnectionError):
                await CLOCK.within(WITHIN_S, process_first(client, embedded.sent, "mailer", leaves_by))
        async with client.listen(embedded.sent, group="mailer") as events:
            assert await heard(events, 12) == Counter(sent)


@pytest.mark.parametrize("leaves_by", ["break", "return", "exception"])
async def test_a_loop_that_was_left_leaves_no_reader_behind(embedded: Shop, leaves_by: str) -> None:
    await embedded.publish(embedded.sent(order_id="o-1"))
    async with Client() as client:
        broker = client._broker
        assert isinstance(broker, EmbeddedAdministration)
        with suppress(ConnectionError):
            await CLOCK.within(WITHIN_S, process_first(client, embedded.sent, None, leaves_by))

        async def closed() -> None:
            while broker._readers:
                await CLOCK.sleep(0.01)

        await CLOCK.within(WITHIN_S, closed())


@pytest.mark.parametrize("begins_by", ["async with", "anext"])
@pytest.mark.parametrize("group", [None, "mailer"])
async def test_a_subscription_that_is_closed_while_it_begins_leaves_no_reader_behind(
    embedded: Shop, monkeypatch: pytest.MonkeyPatch, group: str | None, begins_by: str
) -> None:
    await embedded.publish(embedded.lost(order_id="o-1"))
    begins, may_go_on = asyncio.Event(), asyncio.Event()
    async with Client() as client:
        check = client._with_topics

        async def check_later(*args: Any, **options: Any) -> None:
            begins.set()
            await may_go_on.wait()
            await check(*args, **options)

        monkeypatch.setattr(client, "_with_topics", check_later)
        events: EventSubscription[Any] = client.listen(embedded.sent, group=group)
        begin = events.__aenter__ if begins_by == "async with" else events.__anext__
        beginning = asyncio.get_running_loop().create_task(cast("Any", begin()))
        await begins.wait()
        await events.aclose()
        may_go_on.set()
        await asyncio.wait([beginning])
        assert begins_by == "async with" or isinstance(beginning.exception(), StopAsyncIteration)
        source: Any = events._source
        assert (source._membership if group else source._reading) is None
        async with open_administration(Settings.from_environment(), CLOCK) as broker:
            assert not (await broker.describe_group(f"{CLIENTS}mailer")).members


async def test_a_loop_may_be_left_and_continued_while_its_subscription_is_referred_to(embedded: Shop) -> None:
    await embedded.publish(embedded.sent(order_id="o-1"), embedded.lost(order_id="o-1"))
    async with Client() as client:
        events = client.listen(embedded.sent, embedded.lost, group="mailer")
        found = []
        for _ in range(2):
            async for event in events:
                found.append(event)
                break
        assert found == [embedded.sent(order_id="o-1"), embedded.lost(order_id="o-1")]


async def test_closing_the_client_waits_for_a_subscription_that_was_just_dropped(embedded: Shop) -> None:
    await embedded.publish(embedded.sent(order_id="o-1"))
    async with Client() as client:
        await CLOCK.within(WITHIN_S, process_first(client, embedded.sent, "mailer", "break"))
    async with open_administration(Settings.from_environment(), CLOCK) as broker:
        assert not (await broker.describe_group(f"{CLIENTS}mailer")).members


async def test_received_events_are_committed_while_more_are_waiting(
    embedded: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga.clients.subscription.COMMIT_EVERY_S", 0.0)
    await embedded.publish(*(embedded.sent(order_id="o-1") for _ in range(10)))
    async with Client() as client, client.listen(embedded.sent, group="mailer") as events:
        await heard(events, 6)
        async with open_administration(Settings.from_environment(), CLOCK) as broker:
            assert 5 in (await broker.describe_group(f"{CLIENTS}mailer")).positions.values()


async def test_received_events_of_other_partitions_are_committed_after_one_was_lost(
    embedded: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    await embedded.publish(*(embedded.sent(order_id=f"o-{n}") for n in range(30)))
    async with Client() as client, client.listen(embedded.sent, group="mailer") as events:
        await heard(events, 30)
        taking: Any = events._source
        commit, (lost, *others) = type(taking._membership).commit, sorted(taking._has)

        async def fenced(membership: Any, offsets: Mapping[Partition, int]) -> None:
            if lost in offsets:
                raise Fenced("it is not this member's")
            await commit(membership, offsets)

        monkeypatch.setattr(type(taking._membership), "commit", fenced)
        assert await quiet(events)
        taking.on_lost([lost])
        assert await quiet(events)
        async with open_administration(Settings.from_environment(), CLOCK) as broker:
            positions = (await broker.describe_group(f"{CLIENTS}mailer")).positions
            ends = {
                partition: bounds.end for partition, bounds in (await broker.fetch_bounds([embedded.topic])).items()
            }
    assert others
    assert {partition: positions[partition] for partition in others} == {each: ends[each] for each in others}


async def test_a_partition_that_comes_back_is_not_heard_twice(embedded: Shop) -> None:
    await embedded.publish(*(embedded.sent(order_id="o-1") for _ in range(4)))
    async with Client() as client, client.listen(embedded.sent, group="mailer") as events:
        await heard(events, 2)
        taking: Any = events._source
        [(partition, at)] = [(p, at) for p, at in taking._has.items() if at == 1]
        await taking.on_revoked([partition])
        assert partition not in taking._has
        taking.on_lost([Partition("elsewhere", 0)])
        await taking.on_assigned({partition: at})
        taking.backlog.waiting.extend(list(taking.backlog.waiting))
        assert (await heard(events, 2)).total() == 2, "each of the others once"
        assert await quiet(events)


@pytest.mark.parametrize("log_id", ["", "new"])
async def test_a_new_log_is_read_from_its_beginning_while_an_event_of_the_old_one_is_processed(
    embedded: Shop, monkeypatch: pytest.MonkeyPatch, log_id: str
) -> None:
    await embedded.publish(*(embedded.sent(order_id="o-1") for _ in range(5)))
    async with Client() as client, client.listen(embedded.sent, embedded.lost, group="mailer") as events:
        await heard(events, 3)
        taking: Any = events._source
        [partition] = [p for p, at in taking._has.items() if at == 2]
        taking.on_lost([partition])
        if log_id:  # the id alone shows it: nothing had been committed, so nothing is reported as lost
            monkeypatch.setattr(type(taking._membership), "log_id", lambda *_: log_id)
        else:
            taking.on_replaced(partition, 5)
        await taking.on_assigned({partition: 0})
        new = outgoing(embedded.lost(order_id="o-1"))
        taking.backlog.waiting.extend(
            Record(partition.topic, partition.number, offset, new.key, new.value, new.headers, 0, None, log_id)
            for offset in range(7)
        )
        assert await heard(events, 7) == Counter({embedded.lost(order_id="o-1"): 7})
        assert await quiet(events)


async def test_a_partition_that_another_member_has_read_further_does_not_go_back(embedded: Shop) -> None:
    await embedded.publish(*(embedded.sent(order_id="o-1") for _ in range(5)))
    async with Client() as client, client.listen(embedded.sent, group="mailer") as events:
        await heard(events, 2)
        taking: Any = events._source
        [partition] = [p for p, at in taking._has.items() if at == 1]
        await taking.on_revoked([partition])
        await taking.on_assigned({partition: 4})
        assert await heard(events, 1) == Counter([embedded.sent(order_id="o-1")])
        assert await quiet(events)


async def test_sealed_values_are_opened_with_the_keys_and_are_their_sealed_text_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    monkeypatch.setenv("SAGA_KEYS", str(tmp_path / "keys"))
    address = field("address", "string", sensitive=True)
    ends = {"topic": "moves", "produced_by": "external", "consumed_by": "external", "outcome": "success"}
    write(tmp_path, schema("Moved", address, field("note", "string"), **ends))
    moved: Any = generated(tmp_path, "Moved").Moved
    KeyFolder(tmp_path / "keys", CLOCK).create_wrapping_key("ada", "the first one")
    event = moved(order_id="o-1", address="Kiel", note=f"sealed:1:{'0' * 32}:AAAA")  # what anybody can type into a form
    async with Client() as client, client.listen(moved, begin="beginning") as events:
        await client.publish(event)
        assert await heard(events, 1) == Counter([event])
        assert await client.outcome("o-1", moved, within=timedelta(0)) == event
    monkeypatch.delenv("SAGA_KEYS")
    async with Client() as client, client.listen(moved, begin="beginning") as events:
        [sealed] = await heard(events, 1)
        assert sealed.address.startswith("sealed:1:")


async def test_an_event_is_refused_before_a_key_is_created_for_its_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    monkeypatch.setenv("SAGA_KEYS", str(tmp_path / "keys"))
    address = field("address", "string", sensitive=True)
    write(tmp_path, schema("Moved", address, topic="moves", produced_by="external"))
    write(tmp_path, schema("Kept", address, topic="moves"))
    events: Any = generated(tmp_path, "Moved", "Kept")
    moved, kept = events.Moved, events.Kept
    KeyFolder(tmp_path / "keys", CLOCK).create_wrapping_key("ada", "the first one")
    async with Client() as client:
        for order_id in ("half of a pair: \ud800", None, "", "o" * 1025):
            with pytest.raises(SagaError, match="Moved was not published"):
                await client.publish(moved(order_id=order_id, address="Kiel"))
        with pytest.raises(SagaError, match="only 'order' may say Kept"):
            await client.publish(kept(order_id="o-1", address="Kiel"))
    assert KeyFolder(tmp_path / "keys", CLOCK).summarize().subjects == 0


@pytest.mark.parametrize("group", [None, "mailer"])
async def test_an_event_that_nobody_can_read_is_left_out_by_the_application_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    ends = {"topic": "moves", "produced_by": "external", "consumed_by": "external"}
    write(tmp_path, schema("Moved", field("address", "string", sensitive=True), **ends))
    moved: Any = generated(tmp_path, "Moved").Moved
    async with Client() as forger:  # it has no keys, so it publishes the text as it is
        await forger.publish(moved(order_id="o-1", address=f"sealed:1:{'0' * 32}:{'A' * 60}"))
    KeyFolder(tmp_path / "keys", CLOCK).create_wrapping_key("ada", "the first one")
    monkeypatch.setenv("SAGA_KEYS", str(tmp_path / "keys"))
    begin: Any = {"begin": "beginning"} if group is None else {"group": group}
    good = moved(order_id="o-1", address="Kiel")
    async with Client() as client:
        await client.publish(good)
        async with client.listen(moved, **begin) as events:
            with pytest.raises(SagaError, match="no event can be skipped"):
                await events.skip()
            for _ in range(2):
                with pytest.raises(KeyMissing):
                    await CLOCK.within(WITHIN_S, anext(events))
            with caplog.at_level(logging.WARNING, "saga.client"):
                await events.skip()
            assert [message.endswith("/0 is left out: the application skips it") for message in caplog.messages] == [
                True
            ]
            with pytest.raises(SagaError, match="no event can be skipped"):
                await events.skip()
            assert await heard(events, 1) == Counter([good])
            with pytest.raises(SagaError, match="no event can be skipped"):
                await events.skip()
    async with open_administration(Settings.from_environment(), CLOCK) as broker:
        positions = (await broker.describe_group(f"{CLIENTS}mailer")).positions.values()
    assert sum(positions) == (0 if group is None else 1), "the good one was not completed"


# -------------------------------------------------------------------- what is refused


async def test_an_invalid_subscription_is_refused_with_all_problems(embedded: Shop) -> None:
    async with Client() as client:
        with pytest.raises(SagaError) as raised:
            client.listen(embedded.sent, embedded.packed)
        assert str(raised.value) == (
            "these events cannot be received:\n"
            '  - Packed is for services: its contract has no "consumed_by": "external", with which '
            "'order' would promise it to others"
        )
        with pytest.raises(SagaError, match="name the classes of the events"):
            client.listen()
        with pytest.raises(SagaError, match="begin= and group= exclude each other"):
            client.listen(embedded.sent, begin="beginning", group="mailer")
        with pytest.raises(SagaError, match="cannot be a group"):
            client.listen(embedded.sent, group="a b")


async def test_topics_that_are_missing_on_kafka_are_named(
    kafka_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_BROKER", f"kafka://{kafka_address}")
    shop = Shop(tmp_path)
    async with Client() as client:
        with pytest.raises(
            SagaError, match=rf"nothing can be received: .*\n  - topic {shop.topic} is missing, or hidden"
        ):
            await anext(client.listen(shop.sent))


# -------------------------------------------------------------------- what goes wrong


async def test_a_permanently_unreadable_record_is_skipped_and_reported(
    embedded: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    bad = outgoing(embedded.sent(order_id="o-1"))
    await embedded.publish(
        bad._replace(value=bad.value and bad.value[:-2]),
        Outgoing(embedded.topic, b"o-1", b"a stranger's", ()),
        embedded.sent(order_id="o-1"),
    )
    async with Client() as client, client.listen(embedded.sent, begin="beginning") as events:
        with caplog.at_level(logging.WARNING, "saga.client"):
            assert await heard(events, 1) == Counter([embedded.sent(order_id="o-1")])
    [message] = caplog.messages
    assert message.startswith(f"{embedded.topic}/")
    assert "is left out: the value is partial" in message


async def test_an_event_of_a_version_that_is_not_here_yet_keeps_its_place(embedded: Shop) -> None:
    newer = outgoing(embedded.sent(order_id="o-1"))
    value = newer.value or b""
    await embedded.publish(newer._replace(value=value[:2] + b"12345678" + value[10:]))
    async with Client() as client, client.listen(embedded.sent, group="mailer") as events:
        for _ in range(2):
            with pytest.raises(UnknownSchema, match="get the newest contracts"):
                await CLOCK.within(WITHIN_S, anext(events))
    async with open_administration(Settings.from_environment(), CLOCK) as broker:
        assert set((await broker.describe_group(f"{CLIENTS}mailer")).positions.values()) <= {0}


class Amounts:
    """Payments in cents (version 1) and in euros (version 2), which reads version 1 by an upcaster."""

    def __init__(self, folder: Path) -> None:
        ends = {"topic": "payments", "produced_by": "external", "consumed_by": "external"}
        write(folder, schema("Paid", field("cents", "long"), **ends))
        write(
            folder,
            schema("Paid", field("euros", "double"), upcasts=[1], compatible="backward_transitive", **ends),
            version=2,
        )
        events = generated(folder, "Paid", "Paid.v1")
        self.paid: Any = events.Paid
        self.old: Any = events.PaidV1

    def declare_upcaster(self, euros_of: Callable[[Any], float]) -> None:
        def convert(old: Event) -> Event:
            made: Event = self.paid(order_id=old.order_id, euros=euros_of(old))  # type: ignore[attr-defined] # of Paid
            return made

        convert.__annotations__ = {"old": self.old, "return": self.paid}
        upcast(self.paid, 1)(convert)


@pytest.fixture
def amounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Amounts:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path / 'broker.db'}")
    return Amounts(tmp_path)


@pytest.mark.parametrize("group", [None, "mailer"])
async def test_listening_without_an_upcaster_that_is_needed_is_refused(amounts: Amounts, group: str | None) -> None:
    async with Client() as client:
        with pytest.raises(SagaError, match=r"reads version 1 by an upcaster, and there is none.*@upcast\(Paid, 1\)"):
            client.listen(amounts.paid, group=group)
        amounts.declare_upcaster(lambda old: old.cents / 100)
        await client.publish(amounts.old(order_id="o-1", cents=250))
        async with client.listen(amounts.paid, group="mailer") as events:
            assert await heard(events, 1) == Counter([amounts.paid(order_id="o-1", euros=2.5)])


async def test_an_event_whose_upcaster_fails_keeps_its_place(amounts: Amounts) -> None:
    cents_per_euro = [0]
    amounts.declare_upcaster(lambda old: old.cents / cents_per_euro[0])
    async with Client() as client:
        await client.publish(amounts.old(order_id="o-1", cents=250))
        async with client.listen(amounts.paid, group="mailer") as events:
            for _ in range(2):
                with pytest.raises(UpcasterFailed, match="ZeroDivisionError"):
                    await CLOCK.within(WITHIN_S, anext(events))
        cents_per_euro[0] = 100
        async with client.listen(amounts.paid, group="mailer") as events:
            assert await heard(events, 1) == Counter([amounts.paid(order_id="o-1", euros=2.5)])


async def test_an_outage_is_reported_once_and_waited_for_and_nothing_is_lost(
    embedded: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("saga.clients.subscription.AGAIN_S", 0.01)
    poll, refused = EmbeddedReader.poll, list[bool]()

    async def away(reader: EmbeddedReader, *, records_max: int, timeout_s: float) -> Any:
        if len(refused) % 4 != 3:
            refused.append(True)
            raise BrokerUnavailable("the disk is away")
        return await poll(reader, records_max=records_max, timeout_s=timeout_s)

    async with Client() as client, client.listen(embedded.sent) as events:
        await embedded.publish(embedded.sent(order_id="o-1"), embedded.sent(order_id="o-2"))
        monkeypatch.setattr(EmbeddedReader, "poll", away)
        with caplog.at_level(logging.WARNING, "saga.client"):
            assert (await heard(events, 2)).total() == 2
        assert caplog.messages == ["no events can be received, will retry: the disk is away"]
        broker = client._broker
        assert isinstance(broker, EmbeddedAdministration)
        assert len(broker._readers) == 1


async def test_a_partition_that_cannot_be_read_is_reported_once_and_the_others_continue(
    embedded: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    await embedded.publish(*(embedded.sent(order_id=f"o-{n}") for n in range(20)))
    async with Client() as client:
        broker: Any = client._broker
        first = broker._find_topic(embedded.topic).first_log
        broker.connection.execute(f"UPDATE log_{first} SET value = 'x' WHERE offset = 0")
        ends = await broker.fetch_bounds([embedded.topic])
        readable = 20 - ends[Partition(embedded.topic, 0)].end
        async with client.listen(embedded.sent, begin="beginning") as events:
            with caplog.at_level(logging.WARNING, "saga.client"):
                assert (await heard(events, readable)).total() == readable
                assert await quiet(events)
                assert await quiet(events)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("group", [None, "mailer"])
async def test_closing_the_client_ends_a_subscription(shop: Shop, group: str | None) -> None:
    found: list[Event] = []

    async def listening(events: EventSubscription[Any]) -> None:
        async for event in events:
            found.append(event)  # noqa: PERF401 - one after another, as they come

    await shop.publish()
    async with Client() as client:
        events = client.listen(shop.sent, group=group)
        await events.__aenter__()
        task = a_task(listening(events))
        await shop.publish(shop.sent(order_id="o-1"))

        async def has_heard() -> None:
            while not found:
                await CLOCK.sleep(0.02)

        await CLOCK.within(WITHIN_S, has_heard())
    await CLOCK.within(WITHIN_S, asyncio.shield(task))
    assert found == [shop.sent(order_id="o-1")]
    with pytest.raises(StopAsyncIteration):
        await anext(events)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_closing_the_client_ends_every_subscription_though_the_end_of_one_fails_or_is_cancelled(
    embedded: Shop, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    close, closing, groups = GroupReader.close, asyncio.Event(), ["a", "b", "c"]

    async def close_badly(source: GroupReader) -> None:
        await close(source)
        if not closing.is_set():
            closing.set()
            if is_cancelled:
                await asyncio.get_running_loop().create_future()
            raise SagaError("planted")

    async def listen() -> None:
        async with Client() as client:
            several: list[EventSubscription[Any]] = [client.listen(embedded.sent, group=group) for group in groups]
            for events in several:
                await events.__aenter__()
            monkeypatch.setattr(GroupReader, "close", close_badly)

    await embedded.publish()
    listening = a_task(listen())
    await closing.wait()
    if is_cancelled:
        listening.cancel()
    with pytest.raises(asyncio.CancelledError if is_cancelled else SagaError):
        await listening
    async with open_administration(Settings.from_environment(), CLOCK) as broker:
        for group in groups:
            assert not (await broker.describe_group(f"{CLIENTS}{group}")).members
