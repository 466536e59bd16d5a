"""Worker of a shared monitor with a log that lets go of records: they are asked for again, and positions are kept. And
a worker whose tables have another number of partitions than the topic does not begin."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IllegalStateError

from saga.errors import BrokerUnavailable, ConfigurationError, SagaError
from saga.messaging.names import TRANSITIONS
from saga.monitor.shared import server
from saga.monitor.shared.partitions import POSITION, PartitionModel
from saga.monitor.shared.worker import AGAIN_S, GAPS_MAX, KEPT, RATES, MonitorWorker, changelog_topic
from saga.support.clock import SystemClock
from tests.monitor.transition_events import make_transition, record_of


class Log:
    """Tables and consumer of an app, as a worker uses them: all is acknowledged at once."""

    def __init__(self) -> None:
        self.tables = {KEPT: self}
        self.consumer = self
        self.wrote: list[tuple[int, bytes, bytes | None]] = []
        self.sought: list[tuple[int, int]] = []
        self.moves = False
        """True while no partition is anybody's."""
        self.log_id: str | None = "one"
        """Id of the topic's log; `None`: the broker is away."""
        self.others: dict[str, str] = {}
        """Ids of other logs."""

    async def log_ids(self, topics: Collection[str]) -> Mapping[str, str]:
        if self.log_id is None:
            raise BrokerUnavailable("away")
        return dict.fromkeys(topics, "one") | {TRANSITIONS: self.log_id} | self.others

    def send_changelog(self, partition: int, key: bytes, value: bytes | None, value_serializer: str) -> None:
        assert value_serializer == "raw"
        self.wrote.append((partition, key, value))

    async def earliest_offsets(self, *places: Any) -> dict[Any, int]:
        return dict.fromkeys(places, 0)

    async def seek(self, place: Any, position: int) -> None:
        if self.moves:
            raise IllegalStateError("No current assignment for partition")
        self.sought.append((place.partition, position))

    def positions(self) -> list[bytes | None]:
        return [value for _, key, value in self.wrote if key == POSITION]


class HandClock(SystemClock):
    """Clock that stands still until the test moves it."""

    now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s


def working(clock: SystemClock | None = None) -> tuple[MonitorWorker, Log]:
    log = Log()
    worker = MonitorWorker("shared", "127.0.0.1:1", 1, 1000, clock or HandClock(), log.log_ids)
    worker._app, worker._windows = log, {}  # type: ignore[assignment] # what it uses of one
    worker.parts, worker.ready = {0: PartitionModel(0)}, True
    return worker, log


def fold(worker: MonitorWorker, *offsets: int) -> None:
    sent = [record_of(make_transition("payment", 0, 1, saga=f"order-{offset}")) for offset in offsets]
    asyncio.run(worker._apply(events_of(offsets, sent)))


def events_of(offsets: Sequence[int], sent: Sequence[Any]) -> list[Any]:
    return [
        SimpleNamespace(message=SimpleNamespace(partition=0, offset=n, key=r.key, value=r.value, timestamp=1.0))
        for n, r in zip(offsets, sent, strict=True)
    ]


def test_the_position_is_kept_behind_what_it_stands_for() -> None:
    worker, log = working()
    fold(worker, 0, 1)
    assert log.positions() == [b"2"]
    assert log.wrote[-1][1] == POSITION, "the changes come before"
    assert len(log.wrote) == 3


def test_records_that_are_missing_are_asked_for_again_and_nothing_behind_them_counts_until_then() -> None:
    worker, log = working()
    fold(worker, 0, 2, 3)
    assert (log.sought, log.positions()) == ([(0, 1)], [b"1"])
    fold(worker, 1, 2, 3)
    assert (log.sought, log.positions()) == ([(0, 1)], [b"1", b"4"])
    assert len(worker.parts[0].read_model.sagas) == 4


def test_what_was_read_before_it_was_asked_again_is_no_sign_that_it_is_gone() -> None:
    worker, log = working()
    for _ in range(2 * GAPS_MAX):
        fold(worker, 2, 3)
    assert log.sought == [(0, 0)]
    fold(worker, 0, 1, 2)
    assert log.positions()[-1] == b"3"


def test_what_is_asked_for_again_and_never_comes_counts_as_removed_and_blocks_nothing() -> None:
    clock = HandClock()
    worker, log = working(clock)
    fold(worker, 0)
    for _ in range(GAPS_MAX):
        fold(worker, 5, 6)
        clock.now_s += AGAIN_S
    assert log.sought == [(0, 1)] * GAPS_MAX
    fold(worker, 5, 6)
    assert (len(log.sought), log.positions()[-1]) == (GAPS_MAX, b"7")
    fold(worker, 5, 6)
    assert len(worker.parts[0].read_model.sagas) == 3, "what is here again is known"


def test_a_partition_that_moves_while_it_is_asked_for_again_is_left_to_its_new_worker() -> None:
    worker, log = working()
    log.moves = True
    fold(worker, 0, 2, 3)
    log.moves = False
    fold(worker, 2, 3)
    assert log.sought == [(0, 1)], "asked at once: it is the first question"
    fold(worker, 1, 2, 3)
    assert len(worker.parts[0].read_model.sagas) == 4


def test_a_topic_that_is_created_again_is_read_from_its_beginning() -> None:
    worker, log = working()
    asyncio.run(worker._restart_recreated())
    fold(worker, 0, 1, 2)
    assert log.positions()[-1] == b"3@one"
    log.log_id = None
    asyncio.run(worker._restart_recreated())
    log.log_id = "two"
    fold(worker, 0)
    assert len(worker.parts[0].read_model.sagas) == 3, "it was not looked at: it seems to be here again"
    asyncio.run(worker._restart_recreated())
    assert log.sought == [(0, 0)]
    fold(worker, 0)
    assert log.positions()[-1] == b"1@two"
    asyncio.run(worker._restart_recreated())
    assert log.sought == [(0, 0)], "once"


def test_a_position_of_another_log_does_not_count_after_a_restart() -> None:
    worker, log = working()
    asyncio.run(worker._restart_recreated())
    fold(worker, 0, 1, 2)
    again, log_again = working()
    for _, key, value in log.wrote:
        again.parts[0].restore(key, value)
    log_again.log_id = "two"
    assert asyncio.run(again._compare_log()) == {0}
    assert (again.parts[0].position, len(again.parts[0].read_model.sagas)) == (0, 3)
    fold(again, 0)
    assert log_again.positions() == [b"1@two"]


def test_a_worker_ends_whose_table_was_created_again_for_its_memory_is_not_written_there() -> None:
    worker, log = working()
    asyncio.run(worker._restart_recreated())
    log.others = {changelog_topic("shared"): "two"}
    with pytest.raises(SagaError, match=r"shared-transitions-changelog was deleted and created again; start all"):
        asyncio.run(worker._restart_recreated())


@pytest.mark.parametrize(
    ("kept", "position", "log_id"),
    [(b"7", 7, ""), (b"7@one", 7, "one"), (b"x@one", 0, ""), (b"7@\xff", 0, ""), (None, 0, "")],
)
def test_positions_that_are_kept_say_of_which_log_they_are(kept: bytes | None, position: int, log_id: str) -> None:
    part = PartitionModel(0)
    part.restore(POSITION, kept)
    assert (part.position, part.log_id) == (position, log_id)
    assert part.note_log_id("two") == (log_id == "one")


def test_tables_with_another_number_of_partitions_are_refused_by_name() -> None:
    rates = changelog_topic("shared", RATES)
    counts = {TRANSITIONS: 4, changelog_topic("shared"): 4, rates: 4}
    assert server._check_partitions("shared", counts) == server._check_partitions("shared", {TRANSITIONS: 4}) == 4
    with pytest.raises(ConfigurationError, match=rf"has 4 partitions, and {rates} .* has 3: choose another name"):
        server._check_partitions("shared", {**counts, rates: 3})
