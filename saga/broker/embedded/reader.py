"""Reader outside of groups on the embedded broker, for tools."""

import asyncio
import sqlite3
from collections.abc import Collection, Mapping, Sequence

from saga.broker.embedded.log import Undecodable
from saga.broker.embedded.membership import BrokerFile
from saga.errors import BrokerError
from saga.messages import Partition, Record, StalledPartition
from saga.store.sqlite.errors import FileOperation


class EmbeddedReader:
    """Reader on the broker's file. See `saga.broker.administration.PartitionReader` for the promises."""

    def __init__(self, positions: Mapping[Partition, int], shared: BrokerFile) -> None:
        """Begin at these positions. Raises `BrokerError` for a partition that is not there."""
        self._shared, self._positions = shared, dict(positions)
        self._logs: dict[Partition, int] = {}
        for partition in positions:
            kept = shared.log.kept(partition.topic)
            if not 0 <= partition.number < kept.partitions:
                raise BrokerError(f"topic {partition.topic} has {kept.partitions} partitions: none is {partition}")
            self._logs[partition] = kept.first_log + partition.number
        self._order = list(positions)
        """Partitions, longest unread first."""
        self._standstills: dict[Partition, StalledPartition] = {}
        self._news = asyncio.Event()
        self._broken: BaseException | None = None

    async def poll(self, *, records_max: int, timeout_s: float) -> Sequence[Record]:
        clock = self._shared.clock
        deadline_s = clock.monotonic_s() + timeout_s
        while True:
            if self._broken is not None:
                raise self._broken
            self._news.clear()
            await clock.sleep(0)  # a reader that never runs dry would never let anybody else run
            try:
                if records := self._read(records_max):
                    return records
            except sqlite3.Error as why:
                raise self._shared.file.error(why, FileOperation.READ) from why
            try:
                await clock.within(max(0.0, deadline_s - clock.monotonic_s()), self._news.wait())
            except TimeoutError:
                return []

    @property
    def logs(self) -> Collection[int]:
        """Logs that are read here."""
        return self._logs.values()

    def positions(self) -> Mapping[Partition, int]:
        return dict(self._positions)

    def log_ids(self) -> Mapping[str, str]:
        return dict.fromkeys((partition.topic for partition in self._positions), self._shared.log.id)

    def standstills(self) -> Sequence[StalledPartition]:
        return list(self._standstills.values())

    def advanced(self, heads: Mapping[int, int]) -> None:
        """Take note that some logs have new ends."""
        self._news.set()

    def fail(self, why: BaseException) -> None:
        """Tell whoever polls so, from now on."""
        self._broken = self._broken or why
        self._news.set()

    def _read(self, records_max: int) -> list[Record]:
        log, records = self._shared.log, list[Record]()
        ends = log.ends(self._logs.values())
        for partition in list(self._order):
            number, position = self._logs[partition], self._positions[partition]
            if position >= ends[number]:
                continue
            self._order.remove(partition)
            self._order.append(partition)
            try:
                read = log.read(number, partition, position, records_max - len(records))
            except Undecodable as why:
                told = StalledPartition(*partition, why.offset, why.told(partition, self._shared.file.path))
                self._standstills[partition] = told
                continue
            self._standstills.pop(partition, None)
            # A log has no gaps: what lay between was removed.
            self._positions[partition] = read[-1].offset + 1 if read else ends[number]
            records += read
            if len(records) >= records_max:
                break
        return records
