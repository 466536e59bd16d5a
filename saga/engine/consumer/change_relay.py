"""Relay of changes: from the store that has noted them, in order, to the topic from which workers take them.

Published first, forgotten then: whoever dies in between publishes again, and a change has the same id wherever it comes
from, so receivers drop it. Of several processes of a service one relays; what lies there for `STALE_MS` any of them
takes on, for the one may be frozen.

No change keeps back those behind it because of what is in it. One that the log does not take goes without the document
before, then without the document, but with the reason: the service makes a dead letter of it.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from saga.broker.port import Broker, size_of
from saga.changes.port import ChangeSource, Noted
from saga.changes.records import to_record
from saga.engine.outage_watch import OutageWatch
from saga.errors import Broken, BrokerError, BrokerUnavailable, SagaError, StoreError
from saga.messages import Outgoing
from saga.messaging.names import changes_of
from saga.support.clock import Clock

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
    watching: OutageWatch

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
            try:
                await self.broker.publish([next(self._forms(each)) for each in noted])
            except BrokerUnavailable:
                raise
            except BrokerError:  # which of them the log does not take, each shows alone
                for each in noted:
                    await self._publish(each)
            await self.source.forget(self.service, noted[-1].number)
        return len(noted)

    async def _publish(self, noted: Noted) -> None:
        """Publish one change, in the first form that the log takes. Raises `BrokerUnavailable` if it takes none: then
        it is not because of what is in it, and a person has to look."""
        refusal: BrokerError | None = None
        for form in self._forms(noted):
            try:
                return await self.broker.publish([form])
            except BrokerUnavailable:
                raise
            except BrokerError as why:
                refusal = why
        raise BrokerUnavailable(f"relaying changes of {noted.collection!r}: {refusal}") from refusal

    def _forms(self, noted: Noted) -> Iterator[Outgoing]:
        """Records of a change, each smaller than the one before: whole, without the document before, and with the
        reason in place of the document; none that is larger than the log takes."""
        topic, changed = changes_of(self.service, noted.collection), noted.changed
        refused = changed.refused or (
            f"it has {len(changed.after or b'')} bytes, more than a record of the log takes: keep less in it, or raise "
            "the log's limit"
        )
        for form in (changed, replace(changed, before=None)):
            record = to_record(topic, form)
            if size_of(record) <= self.broker.record_bytes_max:
                yield record
        yield to_record(topic, replace(changed, refused=refused))
