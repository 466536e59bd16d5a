"""Reader of the topic of transitions, on each broker: what is there, what comes, and what keeps it from reading."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from saga.broker.port import Broker
from saga.configuration.settings import Settings
from saga.configuration.wiring import open_broker
from saga.messages import Outgoing, Topic
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import TransitionEvent
from saga.monitor import reader as reader_module
from saga.monitor.queries import Queries
from saga.monitor.read_model import ReadModel
from saga.monitor.reader import TransitionReader
from saga.ops.sources import missing_broker_file, open_administration
from saga.support.clock import SystemClock
from tests.monitor.transition_events import BEGIN_MS, S, make_transition, record_of

CLOCK = SystemClock()
WITHIN_S = 60.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings with a log in a file that does not exist yet."""
    return Settings(broker=f"embedded:///{tmp_path}/broker.db")


@pytest.fixture(params=["embedded", "kafka"])
def either(request: pytest.FixtureRequest, settings: Settings) -> Settings:
    """Settings with each broker."""
    if request.param == "embedded":
        return settings
    address = request.getfixturevalue("kafka_address")
    return Settings.read(
        {"SAGA_BROKER": f"kafka://{address}", "SAGA_KAFKA_REPLICATION": "1", "SAGA_KAFKA_MIN_INSYNC": "1"}
    )


async def publish(settings: Settings, *transitions: TransitionEvent | Outgoing) -> None:
    """Tell these, as services do."""
    async with open_broker(None, CLOCK, settings) as broker:
        await with_topic(broker)
        await broker.publish([record_of(each) if isinstance(each, TransitionEvent) else each for each in transitions])


async def with_topic(broker: Broker) -> None:
    """Make the topic, unless it is there."""
    if TRANSITIONS not in await broker.count_partitions([TRANSITIONS]):
        await broker.ensure_topics([Topic(TRANSITIONS, 12)])


@asynccontextmanager
async def following(
    settings: Settings, since_ms: int | None = None
) -> AsyncIterator[tuple[TransitionReader, list[str]]]:
    """Reader that follows the log inside the block, and what it tells."""
    log: list[str] = []
    reader = TransitionReader(ReadModel(), CLOCK, lambda what: log.append(str(what)))
    following = asyncio.get_running_loop().create_task(reader.follow(settings, since_ms))
    try:
        yield reader, log
    finally:
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following


async def until(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    async with asyncio.timeout(WITHIN_S):
        while not holds():
            await CLOCK.sleep(0.02)


def sagas(reader: TransitionReader, prefix: str) -> list[str]:
    """Sagas that a reader knows; others may use the same Kafka."""
    return sorted(saga for saga in reader.folds.sagas if saga.startswith(prefix))


def some(prefix: str, numbers: Sequence[int] = (0, 1)) -> list[TransitionEvent]:
    """Transitions of three sagas."""
    return [make_transition("order", number, number * S, saga=f"{prefix}{n}") for n in range(3) for number in numbers]


async def test_it_folds_what_is_there_and_what_comes(either: Settings) -> None:
    await publish(either, *some("comes-"))
    async with following(either) as (reader, _):
        await until(lambda: sagas(reader, "comes-") == ["comes-0", "comes-1", "comes-2"])
        await publish(either, make_transition("payment", 0, 5 * S, saga="comes-3"))
        await until(lambda: "comes-3" in reader.folds.sagas)


async def test_it_reads_everything_again_at_each_start_and_knows_the_same(either: Settings) -> None:
    history = some("anew-")
    await publish(either, *history, *history[:3])

    async def known() -> list[object]:
        async with following(either) as (reader, _):
            await until(lambda: [reader.folds.sagas[saga].count for saga in sagas(reader, "anew-")] == [2, 2, 2])
            return [Queries(reader.folds).saga(saga, BEGIN_MS) for saga in sagas(reader, "anew-")]

    assert await known() == await known()


async def test_it_is_in_no_group(either: Settings) -> None:
    await publish(either, *some("nobody-"))
    async with open_administration(either, CLOCK) as broker:
        before = set(await broker.find_readers(TRANSITIONS))
        async with following(either) as (reader, _):
            await until(lambda: len(sagas(reader, "nobody-")) == 3)
            assert set(await broker.find_readers(TRANSITIONS)) == before


@pytest.mark.parametrize("either", ["kafka"], indirect=True)  # a file cannot give a topic more of them
async def test_it_reads_partitions_that_the_topic_gets_while_it_reads(
    either: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_module, "LOOK_S", 0.1)
    monkeypatch.setattr(reader_module, "TRANSITIONS", topic := f"growing-{CLOCK.now_ms()}")
    async with open_administration(either, CLOCK) as broker:
        await broker.ensure_topics([Topic(topic, 1)])
        async with following(either) as (reader, _):
            await broker.publish([record_of(make_transition("order", 0, 0))._replace(topic=topic)])
            await until(lambda: len(reader.folds.sagas) == 1)
            await broker.add_partitions(topic, 8)
            many = [record_of(make_transition("order", 0, 0, saga=f"s{n}"))._replace(topic=topic) for n in range(50)]
            await broker.publish(many)
            await until(lambda: len(reader.folds.sagas) == 51)


async def test_it_begins_at_a_time_if_one_is_given(either: Settings) -> None:
    await publish(either, *some("early-"))
    await CLOCK.sleep(0.05)
    since_ms = CLOCK.now_ms()
    await CLOCK.sleep(0.05)
    await publish(either, *some("late-"))
    async with following(either, since_ms) as (reader, _):
        await until(lambda: len(sagas(reader, "late-")) == 3)
        assert sagas(reader, "early-") == []


async def test_what_is_no_transition_is_counted_and_blocks_nothing(either: Settings) -> None:
    strangers = [Outgoing(TRANSITIONS, b"strange-0", value, ()) for value in (None, b"", b"{}", b"\xff", b"[" * 5000)]
    other = record_of(make_transition("order", 0, 0, saga="strange-0"))._replace(key=b"other")
    await publish(either, *strangers, other, *some("strange-"))
    async with following(either) as (reader, _):
        await until(lambda: len(sagas(reader, "strange-")) == 3 and reader.refused >= 6)


async def test_it_waits_for_a_log_and_a_topic_and_reports_that_once(settings: Settings) -> None:
    async with following(settings) as (reader, lines):
        await until(lambda: len(lines) == 1)
        assert "no service has published a transition yet: there is no " in lines[0]
        async with open_broker(None, CLOCK, settings):  # a file without the topic
            await until(lambda: len(lines) == 2)
        assert f"topic {TRANSITIONS} is missing" in lines[1]
        await publish(settings, *some("a-"))
        await until(lambda: len(sagas(reader, "a-")) == 3)
        assert [lines.count(each) for each in lines[:2]] == [1, 1]


async def test_reading_all_that_is_there_makes_nothing(settings: Settings) -> None:
    reader = TransitionReader(ReadModel(), CLOCK, lambda _: None)
    assert not await reader.read_all(settings)
    assert missing_broker_file(settings) is not None
    async with open_broker(None, CLOCK, settings):
        assert not await reader.read_all(settings)
    await publish(settings, *some("a-"))
    assert await reader.read_all(settings)
    assert sagas(reader, "a-") == ["a-0", "a-1", "a-2"]
