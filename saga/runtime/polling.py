"""Polling of one source: the loop that takes in as many records as there is room for."""

import asyncio
from dataclasses import dataclass

from saga.broker.port import Membership
from saga.errors import BrokerUnavailable
from saga.messages import Message, Partition, Position, Record
from saga.runtime.intake import Letter, Skip, received
from saga.runtime.lanes import Item, Lanes
from saga.runtime.participant import Participant
from saga.runtime.room import Room
from saga.runtime.standstills import Standstills
from saga.runtime.unreadable import Unreadable
from saga.runtime.worker_ports import WorkerAssignment

POLL_S = 86_400.0
"""Longest wait of an idle poll: whatever changes wakes it."""
AGAIN_S = 0.2
"""Pause before a log that cannot be read is read again."""
FULL_S = 0.005
"""Longest wait while a partition is left out because it has its share of what is in flight."""
GATHER_S = 0.002
"""Time that a worker without room waits for more of it, once there is some."""


@dataclass(slots=True)
class Polling:
    """Takes records from where they come to where they go."""

    service: Participant
    assignment: WorkerAssignment
    room: Room
    lanes: Lanes
    unreadable: Unreadable

    async def run(self, membership: Membership, stop: asyncio.Event) -> None:
        """Take from one source until `stop`."""
        ports, prefixes, leaving = self.service.ports, self.assignment.prefixes, self.assignment.leaving
        away, standstills = False, Standstills(self.service.name, ports.watching.report)
        while not stop.is_set():
            open_, room = self.room.open()
            if not open_ and prefixes:  # without any, what keeps it so comes out of the poll
                self.lanes.freed.clear()
                await self.lanes.freed.wait()
                if not stop.is_set():
                    await ports.clock.sleep(GATHER_S)
                continue
            try:
                # One that has its share may have room again in a moment: then the others are not waited for for long.
                timeout_s = POLL_S if len(open_) == len(prefixes.keys() - leaving) else FULL_S
                records = await membership.poll(open_, records_max=max(1, room), timeout_s=timeout_s)
            except BrokerUnavailable as why:
                away = True
                ports.watching.unavailable("poll", why)
                await ports.clock.sleep(AGAIN_S)
                continue
            standstills.update(membership.standstills())
            if away:  # else nothing is said: a log that can be read may be full
                away = False
                ports.watching.answered("broker")
            partition: Partition | None = None
            for record in records:  # those of one partition come together
                if record[:2] != partition:
                    partition = Partition(record.topic, record.partition)
                self._take(record, partition)

    def _take(self, record: Record, partition: Partition) -> None:
        """Begin a record, and see it to where it goes."""
        prefix = self.assignment.prefixes.get(partition)
        if prefix is None or partition in self.assignment.leaving:
            return
        prefix.begun(record.offset)
        match received(record, self.service):
            case Message() as message:
                position = Position(record.topic, record.partition, record.offset)
                self.lanes.add(Item(message, position, prefix, self.service.ports.clock.monotonic_s()))
            case Letter(reason=reason):
                self.unreadable.give_up(record, prefix, reason)
            case Skip():
                self.lanes.finish(prefix, record.offset)
