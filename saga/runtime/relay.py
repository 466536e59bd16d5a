"""Relay of changes: from the store that has noted them, in order, to the topic from which workers take them.

Published first, forgotten then: whoever dies in between publishes again, and a change has the same id wherever it comes
from, so receivers drop it. Of several processes of a service one relays; what lies there for `STALE_MS` any of them
takes on, for the one may be frozen.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from saga.broker.port import Broker, size_of
from saga.changes.port import ChangeSource, Noted
from saga.changes.records import to_record
from saga.clock import Clock
from saga.errors import Broken, BrokerError, BrokerUnavailable, SagaError, StoreError
from saga.messages import Outgoing
from saga.names import changes_of
from saga.runtime.watching import Watching

AT_ONCE_MAX = 500
"""Most changes that are published together."""
IDLE_S_MIN, IDLE_S_MAX = 0.002, 0.05
"""Pauses between two looks while nothing changes: they grow, for a look costs some 10 us."""
AGAIN_S = 0.2
"""Pause after a failure."""
STALE_MS = 5000
"""Age of a change from which on any process of the service takes it on."""


@dataclass(frozen=True, slots=True)
class Relay:
    """Relay of one service in one process."""

    service: str
    source: ChangeSource
    broker: Broker
    clock: Clock
    watching: Watching

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop`, or until it is cancelled. Raises `Broken` for a file that no waiting mends."""
        pause_s, away = IDLE_S_MIN, dict[str, SagaError]()
        while not stop.is_set():
            try:
                count = await self.once()
            except Broken:
                raise
            except (BrokerUnavailable, StoreError) as why:  # also if it may be forgotten already: it is published again
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

    async def once(self) -> int:
        """Relay what there is, up to a bound; returns how many changes."""
        stale_ms = None if self.source.leads(self.service) else self.clock.now_ms() - STALE_MS
        noted = self.source.noted(self.service, AT_ONCE_MAX, before_ms=stale_ms)
        if noted:
            await self.broker.publish(self._records(noted))
            await self.source.forget(self.service, noted[-1].number)
        return len(noted)

    def _records(self, noted: Sequence[Noted]) -> list[Outgoing]:
        """Records of changes. One that is larger than the log takes goes without the document before, then without the
        document: its dead letter says so."""
        records = []
        for _, collection, changed in noted:
            topic = changes_of(self.service, collection)
            record = to_record(topic, changed)
            if size_of(record) > self.broker.record_bytes_max:
                record = to_record(topic, replace(changed, before=None))
            if size_of(record) > self.broker.record_bytes_max:
                record = to_record(topic, replace(changed, before=None, after=None), left_out=len(changed.after or b""))
            records.append(record)
        return records
