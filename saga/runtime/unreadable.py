"""Records that are no message of any saga: each becomes a dead letter, beside the lanes."""

import asyncio
from dataclasses import dataclass, field

from saga.messages import Position, Record
from saga.observe.moments import DeadLettered
from saga.printable import printable, shortened
from saga.runtime import deadletters, persistence
from saga.runtime.errors import Draining
from saga.runtime.lanes import Lanes
from saga.runtime.offsets import Prefix
from saga.runtime.participant import Participant


@dataclass(slots=True)
class Unreadable:
    """Dead letters under way of records that belong to no lane. They count as messages in flight."""

    service: Participant
    lanes: Lanes
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    def give_up(self, record: Record, prefix: Prefix, reason: str) -> None:
        """Send its dead letter from here on; other records go on meanwhile, within what may be in flight."""
        self.lanes.inflight += 1
        letter = self.lanes.tasks.create_task(self._sent(record, prefix, reason), name="dead letter")
        self._under_way.add(letter)
        letter.add_done_callback(self._is_over)

    async def drained(self, limit_s: float) -> None:
        """Return when none is under way, or at the limit."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=limit_s)

    async def _sent(self, record: Record, prefix: Prefix, reason: str) -> None:
        """The dead letter is durable before the offset moves."""
        position = Position(record.topic, record.partition, record.offset)
        letter = deadletters.unreadable(self.service.name, record, reason, self.service.ports.clock.now_ms())
        try:
            await persistence.send_letter(self.service, position, letter)
        except Draining:
            return
        self.lanes.finish(prefix, record.offset)
        self.service.ports.watching.report(
            DeadLettered(
                service=self.service.name,
                reason=shortened(printable(reason), deadletters.REASON_BYTES_MAX),
                remedy="mend its sender; its dead letter has it, or says where it lies",
            )
        )

    def _is_over(self, letter: asyncio.Task[None]) -> None:
        self._under_way.discard(letter)
        self.lanes.inflight -= 1
        self.lanes.freed.set()
