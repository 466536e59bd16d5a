"""Ports of a running worker: a store, a broker, and the partitions assigned to the worker."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from saga.broker.port import Broker
from saga.engine.consumer.keyed_executor import Batcher
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.errors import Draining
from saga.engine.known_schemas import ReloadContracts, reload_in_thread
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import CallExternal, ExternalCall, Ports
from saga.engine.progress_cache import OverflowCache
from saga.messages import Partition, Position
from saga.registry.edge import RegistryBroker
from saga.store.port import Store
from saga.support.clock import is_cancelled


class LogProgress(Protocol):
    """Knows how far the log is processed: see `saga.engine.consumer.deadline_fence`."""

    async def handled_ms(self, saga: str, due_ms: int, /) -> int:
        """See `saga.engine.ports.Assignment`."""

    def is_at_home(self, saga: str, position: Position, /) -> bool:
        """See `saga.engine.ports.Assignment`."""

    def forget(self, partitions: Collection[Partition], /) -> None:
        """Drop everything that is known about these partitions."""


class Runs(Protocol):
    """Knows which runs it has cancelled: see `saga.engine.consumer.keyed_executor`."""

    def is_abandoned(self) -> bool:
        """See `saga.engine.ports.Assignment`."""

    def forget_cancellations(self) -> None:
        """See `saga.engine.ports.Assignment`."""


@dataclass(slots=True)
class WorkerAssignment:
    """The partitions that a worker owns. Implements `saga.engine.ports.Assignment`."""

    outage_watch: OutageWatch
    trackers: dict[Partition, OffsetTracker] = field(default_factory=dict)
    """Assigned partitions, each with the tracker of its offsets."""
    leaving: set[Partition] = field(default_factory=set)
    """Revoked partitions that may come back: none of their further messages start, but running handlers continue."""
    fence: LogProgress | None = None
    """Knows how far the log is processed; `None` if the service has no deadlines."""
    runs: Runs | None = None
    """Runs the handlers in tasks of their own; `None` if they run in the task of their caller."""
    scattered: set[str] = field(default_factory=set)
    """Topics in which the records of one key may be in any partition, because a producer uses another partitioner or
    partitions were added. Each was reported once."""
    _stopping: bool = False
    _pauses: dict[asyncio.Future[None], None] = field(default_factory=dict)

    def is_committed(self, position: Position) -> bool:
        tracker = self.trackers.get(Partition(position.topic, position.partition))
        # An offset of another log says nothing about this one: the record may never have been published.
        return tracker is not None and tracker.log_id == position.log_id and tracker.is_committed(position.offset)

    def is_of_current_log(self, position: Position) -> bool:
        return any(
            p.topic == position.topic and tracker.log_id == position.log_id for p, tracker in self.trackers.items()
        )

    def check_running(self, position: Position) -> None:
        partition = position[:2]  # compares equal to a `Partition`, without making one for each message
        if self._stopping or (partition not in self.trackers and partition not in self.leaving):
            raise Draining

    async def handled_ms(self, saga: str, due_ms: int) -> int:
        return 0 if self.fence is None else await self.fence.handled_ms(saga, due_ms)

    def is_at_home(self, saga: str, position: Position) -> bool:
        return self.fence is None or self.fence.is_at_home(saga, position)

    def is_abandoned(self) -> bool:
        return is_cancelled() if self.runs is None else self.runs.is_abandoned()

    def forget_cancellations(self) -> None:
        if self.runs is not None:
            self.runs.forget_cancellations()

    async def pause(self, seconds: float, position: Position) -> None:
        self.check_running(position)
        woken = asyncio.get_running_loop().create_future()
        self._pauses[woken] = None
        pause = self.outage_watch.clock.within(seconds, woken)
        try:
            if self.outage_watch.away():  # it waits for store or broker, and will load them again
                await pause
            else:
                await self.outage_watch.idling(pause)
        except TimeoutError:
            pass
        finally:
            del self._pauses[woken]
        self.check_running(position)

    def stop(self) -> None:
        """Stop: no further message, step or attempt may start."""
        self._stopping = True
        self._wake()

    def let_go(self, partitions: Collection[Partition]) -> None:
        """Stop starting messages of these partitions until they are assigned again."""
        self.leaving.update(partitions)

    def lose(self, partitions: Collection[Partition]) -> None:
        """Remove these partitions, because another member owns them now. Running handlers may not start a further step
        either."""
        self.leaving.difference_update(partitions)
        for partition in partitions:
            self.trackers.pop(partition, None)
        self._wake()

    def _wake(self) -> None:
        for woken in self._pauses:
            if not woken.done():
                woken.set_result(None)


def make_worker_ports(
    store: Store,
    broker: Broker,
    assignment: WorkerAssignment,
    through: CallExternal = ExternalCall.make,
    worker: str = "",
    contracts: ReloadContracts = reload_in_thread,
) -> Ports:
    """Make the ports for a real store and a real broker. Ports that only some workers need are set on a copy of the
    result.

    Args:
        through: Function that makes the external calls of steps.
        worker: Name of the worker, for reports.
        contracts: Function that reloads the contracts as currently deployed.
    """
    watching = assignment.outage_watch
    return Ports(
        store=store,
        publisher=broker,
        clock=watching.clock,
        outage_watch=watching,
        assignment=assignment,
        batch=Batcher().submit,
        overflow_cache=OverflowCache(),
        worker=worker,
        call_external=lambda step: watching.idling(through(step)),
        reload_contracts=contracts,
        ask_registry=broker.writer if isinstance(broker, RegistryBroker) else None,
    )
