"""The relay moves changes from the store that noted them to the topic, in order; repetitions have the same ids."""

import asyncio
import errno
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from saga.broker.port import RECORD_BYTES_LEAST, Broker, record_size
from saga.change import from_record
from saga.engine.consumer.change_relay import AT_ONCE_MAX, STALE_MS, ChangeRelay
from saga.engine.outage_watch import OutageWatch
from saga.errors import Ambiguous, BadInput, BrokerError, BrokerUnavailable, StoreBroken, StoreUnavailable
from saga.messages import Outgoing, Record
from saga.store.sqlite.state_file import WriteLock
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.telemetry.events import Recovered, TelemetryEvent
from tests.broker.waiting import until

TOPIC = "s.changes.bags"


@dataclass
class Log:
    """Broker as far as a relay uses it."""

    record_bytes_max: int = RECORD_BYTES_LEAST
    failures: list[Exception] = field(default_factory=list)
    published: list[Outgoing] = field(default_factory=list)

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        self.published += messages
        if self.failures:
            raise self.failures.pop(0)

    def keys(self) -> list[str]:
        return [each.key.decode() for each in self.published]


class AheadClock(SystemClock):
    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "store.db", clock=SystemClock()) as store:
        await store.watch("s", ["bags"], from_beginning=False)
        yield store


def relay_of(store: SqliteStore, log: Log, moments: list[TelemetryEvent] | None = None) -> ChangeRelay:
    clock = AheadClock()
    reported: list[TelemetryEvent] = [] if moments is None else moments
    return ChangeRelay("s", store, cast(Broker, log), clock, OutageWatch("s", clock, reported.append))


async def test_changes_go_to_the_topic_in_order_and_are_forgotten_then(store: SqliteStore) -> None:
    cas = await store.insert("bags", "a", b'{"n":1}')
    await store.replace("bags", "a", b'{"n":2}', cas=cas)
    await store.insert("bags", "b", b'{"n":3}')
    log = Log()
    relay = relay_of(store, log)
    assert await relay.relay_once() == 3
    assert await relay.relay_once() == 0
    assert [each.topic for each in log.published] == [TOPIC] * 3
    assert log.keys() == ["a", "a", "b"]
    assert not store.read_recorded("s", 10)


async def test_unacknowledged_changes_are_published_again_unchanged(store: SqliteStore) -> None:
    await store.insert("bags", "a", b'{"n":1}')
    log = Log(failures=[BrokerUnavailable("away")])
    relay = relay_of(store, log)
    with pytest.raises(BrokerUnavailable):
        await relay.relay_once()
    assert await relay.relay_once() == 1
    first, again = log.published
    assert first == again


async def test_a_relay_continues_after_each_failure_and_ends_when_stopped(store: SqliteStore) -> None:
    log = Log(failures=[BrokerUnavailable("away"), StoreUnavailable("full"), Ambiguous("perhaps")])
    moments: list[TelemetryEvent] = []
    relay, stop = relay_of(store, log, moments), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(relay.run(stop))
        for n in range(AT_ONCE_MAX + 7):
            await store.insert("bags", f"{n}", b"{}")
        await until(lambda: not store.read_recorded("s", 1))
        stop.set()
    assert not log.failures
    assert len(moments) >= 2
    assert {moment.what for moment in moments if isinstance(moment, Recovered)} == {"broker", "store"}
    first = list(dict.fromkeys(log.keys()))
    assert first == [f"{n}" for n in range(AT_ONCE_MAX + 7)]


async def test_a_permanent_error_ends_a_relay(store: SqliteStore) -> None:
    await store.insert("bags", "a", b"{}")
    with pytest.raises(StoreBroken, match="it was replaced"):
        await relay_of(store, Log(failures=[StoreBroken("it was replaced")])).run(asyncio.Event())


async def test_a_lock_that_cannot_be_taken_is_an_outage(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(lock: WriteLock) -> bool:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(WriteLock, "try_acquire", fails)
    with pytest.raises(StoreUnavailable, match=r"the lock of who takes on the changes of 's': .*no locks"):
        await relay_of(store, Log()).relay_once()


async def test_of_two_relays_one_publishes_and_the_other_takes_over_old_changes(
    store: SqliteStore, tmp_path: Path
) -> None:
    assert relay_of(store, Log()).source.leads("s")
    await store.insert("bags", "a", b"{}")
    async with SqliteStore(tmp_path / "store.db", clock=SystemClock()) as other:
        log = Log()
        relay = relay_of(other, log)
        assert await relay.relay_once() == 0
        assert not log.published
        cast(AheadClock, relay.clock).ahead_ms = STALE_MS + 60_000
        assert await relay.relay_once() == 1
        assert log.keys() == ["a"]


async def test_a_change_too_large_for_the_log_goes_without_what_was_before_then_as_a_dead_letter(
    store: SqliteStore,
) -> None:
    half, whole = b'{"t":"%b"}' % (b"x" * (RECORD_BYTES_LEAST // 2)), b'{"t":"%b"}' % (b"x" * RECORD_BYTES_LEAST)
    cas = await store.insert("bags", "a", half)
    cas = await store.replace("bags", "a", half.replace(b"t", b"u"), cas=cas)
    await store.replace("bags", "a", whole, cas=cas)
    log = Log()
    await relay_of(store, log).relay_once()
    one, two, three = (Record(TOPIC, 0, 0, each.key, each.value, (), 1) for each in log.published)
    assert [(c and c.before, c and c.after) for c in map(from_record, (one, two))] == [
        (None, half),
        (None, half.replace(b"t", b"u")),
    ]
    with pytest.raises(
        BadInput,
        match=rf"the document 'a' cannot be taken: it has {len(whole)} bytes, more than a record of the log takes",
    ):
        from_record(three)


async def test_a_change_that_is_no_json_is_published_to_be_reported(store: SqliteStore) -> None:
    await store.insert("bags", "a", b"\xff no json")
    await store.insert("bags", "b", b'"text"')
    log = Log()
    await relay_of(store, log).relay_once()
    with pytest.raises(BadInput, match="the document 'a' is no JSON object"):
        from_record(Record(TOPIC, 0, 0, b"a", log.published[0].value, (), 1))
    assert log.keys() == ["a", "b"]


ODD_KEYS = [("k" * 2_000_000, "its key has 2000000 bytes: from 1 to 1024 can be"), ("", "the change's key has 0 bytes")]


@pytest.mark.parametrize(("key", "says"), ODD_KEYS)
async def test_a_key_that_no_message_can_have_becomes_a_dead_letter_and_the_next_document_is_relayed(
    store: SqliteStore, key: str, says: str
) -> None:
    await store.insert("bags", key, b"{}")
    await store.insert("bags", "b", b"{}")
    log = Log()
    await relay_of(store, log).relay_once()
    odd, plain = (Record(TOPIC, 0, 0, each.key, each.value, (), 1) for each in log.published)
    with pytest.raises(BadInput, match=says):
        from_record(odd)
    assert (changed := from_record(plain)) is not None
    assert changed.key == "b"


async def test_a_key_that_is_no_text_becomes_a_dead_letter_and_the_next_document_is_relayed(store: SqliteStore) -> None:
    with closing(sqlite3.connect(store.path, timeout=30)) as connection, connection:
        for key in ("X'ff41'", "CAST(X'ff42' AS TEXT)", "CAST(X'6100ff' AS TEXT)"):
            connection.execute(
                f"INSERT INTO documents (collection, key, cas, sum, content) VALUES ('bags', {key}, 1, -1, X'7b7d')"
            )
    await store.insert("bags", "b", b"{}")
    log = Log()
    await relay_of(store, log).relay_once()
    *odd, plain = (Record(TOPIC, 0, 0, each.key, each.value, (), 1) for each in log.published)
    assert len(odd) == 3
    for each in odd:
        with pytest.raises(BadInput, match=r"the document '.*\\xff.*' cannot be taken: its key is no text in UTF-8"):
            from_record(each)
    assert (changed := from_record(plain)) is not None
    assert changed.key == "b"


@dataclass
class Refusing(Log):
    """Broker whose topic takes less than its setting says, as Kafka's `max.message.bytes` has it."""

    takes_bytes: int = 1000

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        if any(record_size(each) > self.takes_bytes for each in messages):
            raise BrokerError("MessageSizeTooLarge")
        await super().publish(messages)


async def test_a_change_that_the_topic_refuses_is_published_in_the_next_smaller_form_and_the_others_are_published_too(
    store: SqliteStore,
) -> None:
    text = b"x" * 700
    cas = await store.insert("bags", "a", b'{"t":"%b"}' % text)
    await store.replace("bags", "a", b'{"u":"%b"}' % text, cas=cas)
    await store.insert("bags", "b", b'{"t":"%b"}' % (b"x" * 3000))
    await store.insert("bags", "c", b"{}")
    log = Refusing()
    assert await relay_of(store, log).relay_once() == 4
    *whole, large, last = (Record(TOPIC, 0, 0, each.key, each.value, (), 1) for each in log.published)
    assert [(c and c.before, c and c.after and c.after[:3]) for c in map(from_record, whole)] == [
        (None, b'{"t'),
        (None, b'{"u'),
    ]
    with pytest.raises(BadInput, match="the document 'b' cannot be taken: it has 3008 bytes"):
        from_record(large)
    assert last.key == b"c"


async def test_a_topic_that_takes_nothing_is_an_outage_and_nothing_is_forgotten(store: SqliteStore) -> None:
    await store.insert("bags", "a", b"{}")
    with pytest.raises(BrokerUnavailable, match="relaying changes of 'bags': MessageSizeTooLarge"):
        await relay_of(store, Refusing(takes_bytes=0)).relay_once()
    assert len(store.read_recorded("s", 10)) == 1


async def test_an_outage_while_the_log_refuses_a_change_is_an_outage(store: SqliteStore) -> None:
    await store.insert("bags", "a", b"{}")
    log = Log(failures=[BrokerError("refused"), BrokerUnavailable("away")])
    with pytest.raises(BrokerUnavailable, match="away"):
        await relay_of(store, log).relay_once()
    assert len(store.read_recorded("s", 10)) == 1
