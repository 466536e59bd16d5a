"""Relay document changes, in order, from the store that recorded them to the topic that workers consume.

A change is first published and then deleted from the store. After a crash in between it is published again, and
receivers recognize the duplicate by its id, which is the same each time. One process of a service relays. Any other
process takes over changes older than `STALE_MS`, because the first may be frozen.

A change that the log rejects does not block the changes behind it. It is published without the previous document or, if
that is not enough, without any document but with the reason. The service then makes a dead letter of it.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from saga.broker.port import Broker, record_size
from saga.change import ChangeSource, RecordedChange, to_record
from saga.engine.outage_watch import OutageWatch
from saga.errors import Broken, BrokerError, BrokerUnavailable, SagaError, StoreError
from saga.messages import Outgoing
from saga.messaging.names import change_topic
from saga.support.clock import Clock

AT_ONCE_MAX = 500
"""Maximum number of changes published in one batch."""
IDLE_S_MIN, IDLE_S_MAX = 0.002, 0.05
"""First and longest pause between two reads while nothing changes. A read costs about 10 us."""
AGAIN_S = 0.2
"""Pause after a failed read or publication."""
STALE_MS = 5000
"""Age in milliseconds from which any process of the service may relay a change."""


@dataclass(frozen=True, slots=True)
class ChangeRelay:
    """Relays the changes of one service in one process."""

    service: str
    source: ChangeSource
    broker: Broker
    clock: Clock
    watching: OutageWatch

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set or the task is cancelled. Raises `Broken` for a damaged file."""
        pause_s, away = IDLE_S_MIN, dict[str, SagaError]()
        while not stop.is_set():
            try:
                count = await self.relay_once()
            except Broken:
                raise
            except (
                BrokerUnavailable,
                StoreError,
            ) as why:  # even if the deletion may have worked: publishing again is harmless
                operation = "publish" if isinstance(why, BrokerError) else "get"
                away[operation] = why
                self.watching.unavailable(operation, why)
                await self.clock.sleep(AGAIN_S)
                continue
            for ended in away.values():
                self.watching.recovered(ended)
            away.clear()
            pause_s = IDLE_S_MIN if count else min(IDLE_S_MAX, pause_s * 2)
            if count < AT_ONCE_MAX:
                await self.source.pause(pause_s)

    async def relay_once(self) -> int:
        """Relay one batch. Returns the number of changes."""
        stale_ms = None if self.source.leads(self.service) else self.clock.now_ms() - STALE_MS
        noted = self.source.read_recorded(self.service, AT_ONCE_MAX, before_ms=stale_ms)
        if noted:
            try:
                await self.broker.publish([next(self._candidate_records(each)) for each in noted])
            except BrokerUnavailable:
                raise
            except BrokerError:  # publish one at a time, to find those that the log rejects
                for each in noted:
                    await self._publish(each)
            await self.source.forget(self.service, noted[-1].number)
        return len(noted)

    async def _publish(self, noted: RecordedChange) -> None:
        """Publish one change in the first form that the log accepts.

        Raises `BrokerUnavailable` if it accepts none: then the content is not the reason, and an operator has to look.
        """
        refusal: BrokerError | None = None
        for form in self._candidate_records(noted):
            try:
                return await self.broker.publish([form])
            except BrokerUnavailable:
                raise
            except BrokerError as why:
                refusal = why
        raise BrokerUnavailable(f"relaying changes of {noted.collection!r}: {refusal}") from refusal

    def _candidate_records(self, noted: RecordedChange) -> Iterator[Outgoing]:
        """Yield the forms of a change that fit into a record of the log, largest first: the whole change, the change
        without the previous document, and the reason without any document."""
        topic, changed = change_topic(self.service, noted.collection), noted.changed
        refused = changed.refused or (
            f"it has {len(changed.after or b'')} bytes, more than a record of the log takes: keep less in it, or raise "
            "the log's limit"
        )
        for form in (changed, replace(changed, before=None)):
            record = to_record(topic, form)
            if record_size(record) <= self.broker.record_bytes_max:
                yield record
        yield to_record(topic, replace(changed, refused=refused))
