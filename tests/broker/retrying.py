"""Publishing and reading through all troubles, as workers do."""

from dataclasses import dataclass, field

from saga.broker.port import Broker, Membership
from saga.errors import BrokerUnavailable, Fenced
from saga.messages import Partition, Record
from saga.support.clock import SystemClock
from saga.testing.conformance.broker_suite import RecordingListener, event, values

CLOCK = SystemClock()
WITHIN_S = 60.0


async def put(broker: Broker, topic: str, key: str, value: str) -> None:
    """Publish as lanes do: again until it is acknowledged."""
    while True:
        try:
            await broker.publish([event(topic, key, value)])
        except BrokerUnavailable:
            await CLOCK.sleep(0.1)
        else:
            return


@dataclass
class Reader:
    """Reads, and commits what it has read, through all troubles; as a worker does."""

    membership: Membership
    listening: RecordingListener
    records: list[Record] = field(default_factory=list)
    positions: dict[Partition, int] = field(default_factory=dict)
    """After what was read."""
    committed: dict[Partition, int] = field(default_factory=dict)
    unavailable: int = 0

    async def read(self) -> None:
        while True:
            try:
                got = await self.membership.poll(list(self.listening.has), records_max=50, timeout_s=0.2)
                self.records.extend(got)
                self.positions |= {Partition(r.topic, r.partition): r.offset + 1 for r in got}
                ours = {p: at for p, at in self.positions.items() if p in self.listening.has}
                await self.membership.commit(ours)
                self.committed = dict(self.positions)
            except Fenced:
                continue  # partitions move: the listener has heard of it, or will in a moment
            except BrokerUnavailable:
                self.unavailable += 1
                await CLOCK.sleep(0.05)

    async def until(self, wanted: set[str]) -> None:
        """Return when all of these have been read, and everything that was is committed."""

        async def all_there() -> None:
            while not (wanted <= set(values(self.records)) and self.committed == self.positions):
                await CLOCK.sleep(0.05)

        await CLOCK.within(WITHIN_S, all_there())
