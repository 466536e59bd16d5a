"""What is closed leaves nothing behind; for most of this no broker is needed."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import aiokafka.client
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.errors import KafkaConnectionError, RequestTimedOutError
from aiokafka.protocol.admin import ApiVersionResponse_v0
from aiokafka.protocol.metadata import MetadataRequest

from saga.broker.kafka import client, consumers, producer
from saga.broker.kafka.access import KafkaAccess
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.producer import Publisher
from saga.errors import BrokerError, BrokerUnavailable
from saga.testing.conformance.broker_suite import event
from tests.broker.waiting import CLOCK, until
from tests.servers.listening import listening

VERSIONS = [(1, 0, 1), (3, 0, 1), (18, 0, 0)]
"""Requests that a broker knows, and their versions: fetch, metadata, versions."""


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_publisher_that_is_closed_asks_for_no_topic_any_more(
    monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """All publishing callers have their answer; the brokers do not list their topics."""
    asked = list[asyncio.Task[Any] | None]()

    async def silent(*_: object) -> None:
        asked.append(asyncio.current_task())
        await asyncio.get_running_loop().create_future()

    async def ended(*_: object) -> None: ...

    _replace_producers(monkeypatch, silent, ended)
    settings = KafkaSettings(servers=("127.0.0.1:9",), publish_s=0.02)
    publisher = Publisher(settings, KafkaAccess(settings), CLOCK)
    await publisher.open()
    for _ in range(1 + replaced):  # each time another producer, asked only for its own records
        with pytest.raises(BrokerUnavailable, match="not acknowledged"):
            await publisher.publish([event("orders", "k", "v")])
    await publisher.close()
    assert len(asked) == 1 + replaced
    assert all(task is not None and task.cancelled() for task in asked)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("kind", [AIOKafkaProducer, AIOKafkaConsumer, AIOKafkaAdminClient])
async def test_a_start_that_is_given_up_leaves_no_connection_open(kind: type) -> None:
    """The broker says which requests it knows, and then nothing: aiokafka forgets the connection that waits."""
    asked, ended, given_up = asyncio.Event(), asyncio.Event(), asyncio.timeout(None)

    async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _versions(reader, writer)
        await _asked(reader)
        if not asked.is_set():
            asked.set()
            given_up.reschedule(0)
        await reader.read()
        ended.set()

    async with listening(answers_once) as port:
        started = kind(bootstrap_servers=f"127.0.0.1:{port}")
        with pytest.raises(TimeoutError), client.closing_on_failure(_client_of(started)):
            async with given_up:
                await started.start()
        assert asked.is_set()
        await CLOCK.within(5, ended.wait())
        await (started.close if kind is AIOKafkaAdminClient else started.stop)()


async def test_a_producer_whose_end_is_cut_short_leaves_nothing_behind(kafka_address: str) -> None:
    before = asyncio.all_tasks()
    old = AIOKafkaProducer(bootstrap_servers=kafka_address, enable_idempotence=True)
    with client.closing_on_failure(old.client):
        await old.start()
    stops = asyncio.Event()

    async def stop() -> None:  # waits for brokers that do not answer
        old._closed = True
        stops.set()
        await asyncio.get_running_loop().create_future()

    old.stop = stop
    ending = asyncio.get_running_loop().create_task(client.end_producer(old, CLOCK, 60))
    await CLOCK.within(5, stops.wait())
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    await until(lambda: asyncio.all_tasks() <= before)


async def test_a_reader_that_is_cancelled_while_it_closes_has_closed_when_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closing, closed = asyncio.Event(), list[bool]()

    async def slow(*_: object) -> None:
        closing.set()
        await CLOCK.sleep(0.05)
        closed.append(True)

    async def begun(*_: object) -> None: ...

    monkeypatch.setattr(consumers, "end_consumer", slow)
    never_there = SimpleNamespace(_client=SimpleNamespace(_conns={}), start=begun)
    monkeypatch.setattr(consumers, "_create_consumer", lambda *_, **__: never_there)
    settings = KafkaSettings(servers=("127.0.0.1:9",))

    async def read() -> None:
        async with consumers.open_reading_consumer(settings, KafkaAccess(settings), CLOCK, 1):
            pass

    reading = asyncio.get_running_loop().create_task(read())
    await closing.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert closed == [True]


def _client_of(started: object) -> AIOKafkaClient:
    found = vars(started).get("client") or vars(started)["_client"]
    assert isinstance(found, AIOKafkaClient)
    return found


async def test_a_connection_that_aiokafka_forgets_is_closed() -> None:
    """The other end has hung up, and a request comes before the task that reads has seen it."""
    ended = asyncio.Event()

    async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _versions(reader, writer)
        await reader.read()
        ended.set()

    async with listening(answers_once) as port:
        forgetful = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{port}")
        forgetful._conns[0, ConnectionGroup.DEFAULT] = await aiokafka.client.create_conn(
            "127.0.0.1", port, client_id="any"
        )
        reader = forgetful._conns[0, ConnectionGroup.DEFAULT]._reader
        assert reader is not None
        reader.feed_eof()
        assert not await forgetful.ready(0)
        await CLOCK.within(5, ended.wait())
        await forgetful.close()


async def end_producer_at_once(ended: AIOKafkaProducer) -> None:
    await client.end_producer(ended, CLOCK, 0)


async def end_producer(ended: AIOKafkaProducer) -> None:
    await client.end_producer(ended, CLOCK, 5)


async def end_consumer(ended: AIOKafkaConsumer) -> None:
    await client.end_consumer(ended, CLOCK, 5)


@pytest.mark.parametrize(
    ("kind", "end"),
    [(AIOKafkaProducer, end_producer), (AIOKafkaProducer, end_producer_at_once), (AIOKafkaConsumer, end_consumer)],
)
async def test_a_request_that_connects_while_its_client_is_closed_leaves_no_connection_open(
    kind: type, end: Callable[[Any], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, is_closed, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def answers_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connecting.set()
        await is_closed.wait()
        await _versions(reader, writer)
        await reader.read()
        ended.set()

    async with listening(answers_late) as port:
        closed = kind(bootstrap_servers=f"127.0.0.1:{port}")
        node = SimpleNamespace(host="127.0.0.1", port=port)
        monkeypatch.setattr(_client_of(closed).cluster, "broker_metadata", lambda _: node)
        asking = asyncio.get_running_loop().create_task(_client_of(closed).send(0, MetadataRequest([])))
        await connecting.wait()
        await end(closed)
        is_closed.set()
        with pytest.raises(KafkaConnectionError):
            await asking
        await CLOCK.within(5, ended.wait())


async def test_no_caller_waits_for_metadata_of_a_closed_client() -> None:
    """Its task that fetches the metadata has ended. A caller that asks later would wait for ever, too."""
    closed = AIOKafkaClient(bootstrap_servers="127.0.0.1:9")
    waiting = closed.force_metadata_update()
    client.close_connections(closed)
    assert await CLOCK.within(5, waiting) is False
    with pytest.raises(KafkaConnectionError, match="closed"):
        await CLOCK.within(5, closed.force_metadata_update())


async def test_a_request_without_an_answer_ends_its_own_connection_though_its_session_has_ended() -> None:
    """New requests have used another connection since then, which has to stay open."""
    answered, ended = asyncio.Event(), asyncio.Event()

    async def answers_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _versions(reader, writer)
        await _asked(reader)
        answered.set()
        await reader.read()
        ended.set()

    async with listening(answers_once) as port:
        asking, name = AIOKafkaClient(bootstrap_servers=f"127.0.0.1:{port}"), (0, ConnectionGroup.DEFAULT)
        with client.closing_on_failure(asking):
            asking._conns[name] = first = await aiokafka.client.create_conn("127.0.0.1", port, client_id="any")
            first._request_timeout = 0.1  # connecting may take longer
            request = asyncio.get_running_loop().create_task(asking.send(0, MetadataRequest([])))
            await answered.wait()
            asking._conns._put_aside(name)
            asking._conns[name] = second = await aiokafka.client.create_conn("127.0.0.1", port, client_id="any")
            with pytest.raises(RequestTimedOutError):
                await request
            await CLOCK.within(5, ended.wait())
        assert not first.connected()
        assert second.connected()
        await asking.close()


@pytest.mark.parametrize("times", [1, 3])
async def test_a_publisher_whose_end_is_cancelled_while_records_are_under_way_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Some frameworks cancel a task again at each of its waits."""
    looking, ended = asyncio.Event(), list[float]()

    async def silent(*_: object) -> None:
        looking.set()
        await asyncio.get_running_loop().create_future()

    async def end(_: object, __: object, seconds: float) -> None:
        await CLOCK.sleep(0)
        ended.append(seconds)

    _replace_producers(monkeypatch, silent, end)
    settings = KafkaSettings(servers=("127.0.0.1:9",), publish_s=60)
    publisher = Publisher(settings, KafkaAccess(settings), CLOCK)
    await publisher.open()
    publishing = asyncio.get_running_loop().create_task(publisher.publish([event("orders", "k", "v")]))
    await looking.wait()
    closing = asyncio.get_running_loop().create_task(publisher.close())
    for _ in range(times):
        await CLOCK.sleep(0)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: asyncio.all_tasks() <= {asyncio.current_task(), publishing})
    assert ended == [0]
    with pytest.raises(BrokerUnavailable):
        await publishing
    with pytest.raises(BrokerUnavailable, match="not connected"):  # at once, so that other tasks go on
        await publisher.publish([event("orders", "k", "v")])


async def test_no_call_waits_for_a_producer_of_a_closed_publisher() -> None:
    settings = KafkaSettings(servers=("127.0.0.1:9",), publish_s=60)
    publisher = Publisher(settings, KafkaAccess(settings), CLOCK)  # as while a producer is replaced
    publishing = asyncio.get_running_loop().create_task(publisher.publish([event("orders", "k", "v")]))
    await until(lambda: not publisher._idle.is_set())
    closing = asyncio.get_running_loop().create_task(publisher.close())
    await CLOCK.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(BrokerUnavailable, match="not connected"):
        await CLOCK.within(5, publishing)


async def test_a_broker_whose_end_is_cancelled_is_not_connected() -> None:
    broker = KafkaBroker(KafkaSettings(servers=("127.0.0.1:9",)), clock=CLOCK)
    broker._opened = SimpleNamespace(), SimpleNamespace()  # type: ignore[assignment]
    broker._closing.push_async_callback(asyncio.get_running_loop().create_future)
    closing = asyncio.get_running_loop().create_task(broker.__aexit__())
    await CLOCK.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    with pytest.raises(BrokerError, match="Kafka is not connected here"):
        await broker.publish([event("orders", "k", "v")])


@pytest.mark.parametrize(("kind", "end"), [(AIOKafkaProducer, end_producer), (AIOKafkaConsumer, end_consumer)])
async def test_an_end_that_is_cancelled_again_and_again_leaves_nothing_behind(
    kind: type, end: Callable[[Any], Coroutine[Any, Any, None]]
) -> None:
    async def busy() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        await CLOCK.sleep(0.05)  # finishes its work

    before = asyncio.all_tasks()
    ended = kind(bootstrap_servers="127.0.0.1:9")
    _client_of(ended)._sync_task = asyncio.get_running_loop().create_task(busy())
    ended._closed, ended.stop = True, asyncio.get_running_loop().create_future  # waits for brokers that do not answer
    closing = asyncio.get_running_loop().create_task(end(ended))
    for _ in range(5):
        await CLOCK.sleep(0)
        closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await until(lambda: asyncio.all_tasks() <= before)
    assert _client_of(ended)._conns.is_closed


async def _versions(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the question which requests the broker knows, the first on each connection."""
    await _asked(reader)
    answer = (1).to_bytes(4) + ApiVersionResponse_v0(0, VERSIONS).encode()
    writer.write(len(answer).to_bytes(4) + answer)


async def _asked(reader: asyncio.StreamReader) -> None:
    await reader.readexactly(int.from_bytes(await reader.readexactly(4)))


def _replace_producers(
    monkeypatch: pytest.MonkeyPatch,
    look_up: Callable[..., Awaitable[None]],
    end: Callable[..., Awaitable[None]],
) -> None:
    """Have a publisher use producers that reach no broker. `look_up` looks up a topic, and `end` ends a producer."""

    async def start(_: Publisher) -> object:
        return SimpleNamespace(client=None, _sender=SimpleNamespace(sender_task=None))

    monkeypatch.setattr(client, "count_partitions", look_up)
    monkeypatch.setattr(client, "end_producer", end)
    monkeypatch.setattr(producer, "enqueue_record", lambda *_: None)
    monkeypatch.setattr(Publisher, "_start_producer", start)
