"""Reads transition events from any broker, and applies them to the read model.

The reader joins no consumer group and commits no offset, so services do not depend on it. It begins with the oldest
record, or at a given time. The read model is only in memory, and is built again at each start.
"""

from collections.abc import Callable, Sequence

from saga.broker.administration import Administration
from saga.configuration.settings import Settings
from saga.errors import BadInput, BrokerUnavailable
from saga.messages import Record, StalledPartition
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import parse_transitions
from saga.monitor.read_model import ReadModel
from saga.ops.sources import missing_broker_file, open_administration
from saga.support.clock import Clock

RECORDS_MAX = 500
"""Maximum number of records that are fetched at once."""
SLICE_BYTES = 64 << 10
"""Queries get a chance to run whenever records of this size in bytes have been applied."""
POLL_S = 1.0
"""Maximum time in seconds to wait for records, and the pause before an unreachable broker is tried again."""
LOOK_S = 30.0
"""Seconds between two checks of whether the topic has more partitions."""

Report = Callable[[object], None]
"""Function that is called with each problem that keeps a monitor from reading."""


class TransitionReader:
    """Applies the transition events of a broker to a read model."""

    def __init__(self, folds: ReadModel, clock: Clock, tell: Report) -> None:
        self.folds = folds
        self.refused = 0
        """Number of records read that are not valid transition events."""
        self._clock, self._tell = clock, tell
        self._reported = ""

    # ---------------------------------------------------------------- once

    async def read_all(self, settings: Settings) -> bool:
        """Apply all records that are on the topic now. Return `False` if the topic does not exist. Raises `SagaError`
        if the broker cannot be read."""
        if missing_broker_file(settings) is not None:
            return False
        async with open_administration(settings, self._clock) as broker:
            if TRANSITIONS not in await broker.count_partitions([TRANSITIONS]):
                return False
            async for record in broker.scan(TRANSITIONS):
                self._apply(record)
        return True

    # ---------------------------------------------------------------- for ever

    async def follow(self, settings: Settings, since_ms: int | None = None) -> None:
        """Apply existing and new records until cancelled. With `since_ms`, apply only records that were appended since
        then.

        If the broker is unreachable, it is tried again. Raises `SagaError` for a problem that waiting does not solve.
        """
        while True:
            try:
                if missing_broker_file(settings) is None:
                    async with open_administration(settings, self._clock) as broker:
                        await self._wait_for_topic(broker)
                        await self._read_partitions(broker, since_ms)
                self._report(f"no service has published a transition yet: there is no {missing_broker_file(settings)}")
            except BrokerUnavailable as why:
                self._report(why)
            await self._clock.sleep(POLL_S)

    async def _wait_for_topic(self, broker: Administration) -> None:
        """Wait until the topic exists."""
        while TRANSITIONS not in await broker.count_partitions([TRANSITIONS]):
            self._report(f"no transition is published yet: topic {TRANSITIONS} is missing, or this user may not see it")
            await self._clock.sleep(POLL_S)

    async def _read_partitions(self, broker: Administration, since_ms: int | None) -> None:
        """Read all partitions until cancelled, including those that are added to the topic meanwhile."""
        log_ids = await broker.fetch_log_ids([TRANSITIONS])
        bounds = {partition: each.begin for partition, each in (await broker.fetch_bounds([TRANSITIONS])).items()}
        positions = bounds if since_ms is None else await broker.find_offsets(TRANSITIONS, since_ms)
        while True:
            async with broker.open_reader(positions, log_ids) as reading:
                look_s = self._clock.monotonic_s() + LOOK_S
                while self._clock.monotonic_s() < look_s:
                    records = await reading.poll(records_max=RECORDS_MAX, timeout_s=POLL_S)
                    self._report("; ".join(map(_describe, reading.stalled_partitions())))
                    await self._apply_all(records)
                positions, log_ids = reading.positions(), reading.log_ids()
            more = await broker.fetch_bounds([TRANSITIONS])
            positions = {**{partition: each.begin for partition, each in more.items()}, **positions}

    async def _apply_all(self, records: Sequence[Record]) -> None:
        folded = 0
        for record in records:
            self._apply(record)
            folded += len(record.value or b"")
            if folded > SLICE_BYTES:
                folded = 0
                await self._clock.sleep(0)

    def _apply(self, record: Record) -> None:
        try:
            several = parse_transitions(record)
        except BadInput:  # any client may write to the topic, and later versions may publish other records
            self.refused += 1
            return
        for event in several:
            self.folds.apply(event, record.time_ms)

    def _report(self, what: object) -> None:
        """Report a problem that keeps the monitor from reading. While a problem lasts, it is reported only once."""
        text = str(what)
        if text and text != self._reported:
            self._tell(text)
        self._reported = text


def _describe(standstill: StalledPartition) -> str:
    place = standstill.topic if standstill.partition is None else f"{standstill.topic}/{standstill.partition}"
    return f"{place} cannot be read: {standstill.reason}"
