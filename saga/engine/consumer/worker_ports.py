"""Ports of a running worker: a store and a broker, and the partitions that its group has assigned to it."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from saga.broker.port import Broker
from saga.encryption.port import Keys
from saga.engine.consumer.batching import Batches
from saga.engine.consumer.offset_tracker import Prefix
from saga.engine.errors import Draining
from saga.engine.known_schemas import ReloadContracts, reload_in_thread
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import CallExternal, ExternalCall, Ports, TransitionListener
from saga.engine.progress_cache import OverflowCache
from saga.messages import Partition, Position
from saga.registry.edge import RegistryEdge
from saga.store.port import Store


class Fence(Protocol):
    """How far the log has been handled: see `saga.engine.consumer.deadline_fence`."""

    async def handled_ms(self, saga: str, due_ms: int, /) -> int:
        """See `saga.engine.ports.Assignment`."""

    def is_at_home(self, saga: str, position: Position, /) -> bool:
        """See `saga.engine.ports.Assignment`."""

    def forget(self, partitions: Collection[Partition], /) -> None:
        """Forget what was taken of these partitions."""


@dataclass(slots=True)
class WorkerAssignment:
    """See `saga.engine.ports.Assignment` for the promises."""

    watching: OutageWatch
    prefixes: dict[Partition, Prefix] = field(default_factory=dict)
    """Partitions that are ours, each with what of it is done."""
    leaving: set[Partition] = field(default_factory=set)
    """Partitions that were let go, and may come back: no message of them begins, what is in hand goes on."""
    fence: Fence | None = None
    """How far the log has been handled; `None`: nobody here reads it."""
    scattered: set[str] = field(default_factory=set)
    """Topics in which a key may lie in any partition: somebody writes there with another partitioner, or the partitions
    were raised. Each was reported once."""
    _stopping: bool = False
    _pauses: dict[asyncio.Future[None], None] = field(default_factory=dict)

    def is_committed(self, position: Position) -> bool:
        prefix = self.prefixes.get(Partition(position.topic, position.partition))
        # An offset of another log says nothing of this one: what it names may never have been published.
        return prefix is not None and prefix.log_id == position.log_id and prefix.is_committed(position.offset)

    def is_of_current_log(self, position: Position) -> bool:
        return any(
            p.topic == position.topic and prefix.log_id == position.log_id for p, prefix in self.prefixes.items()
        )

    def check_running(self, position: Position) -> None:
        partition = position[:2]  # as good as a `Partition`, and asked for with every message
        if self._stopping or (partition not in self.prefixes and partition not in self.leaving):
            raise Draining

    async def handled_ms(self, saga: str, due_ms: int) -> int:
        return 0 if self.fence is None else await self.fence.handled_ms(saga, due_ms)

    def is_at_home(self, saga: str, position: Position) -> bool:
        return self.fence is None or self.fence.is_at_home(saga, position)

    async def pause(self, seconds: float, position: Position) -> None:
        self.check_running(position)
        woken = asyncio.get_running_loop().create_future()
        self._pauses[woken] = None
        pause = self.watching.clock.within(seconds, woken)
        try:
            if self.watching.away():  # it waits for store or log, and will come back to them with all others
                await pause
            else:
                await self.watching.idling(pause)
        except TimeoutError:
            pass
        finally:
            del self._pauses[woken]
        self.check_running(position)

    def stop(self) -> None:
        """Let nothing new begin from here on."""
        self._stopping = True
        self._wake()

    def let_go(self, partitions: Collection[Partition]) -> None:
        """Let no message of these begin until they are assigned again."""
        self.leaving.update(partitions)

    def lose(self, partitions: Collection[Partition]) -> None:
        """Forget these: another member has them. Nothing new of what is in hand begins either."""
        self.leaving.difference_update(partitions)
        for partition in partitions:
            self.prefixes.pop(partition, None)
        self._wake()

    def _wake(self) -> None:
        for woken in self._pauses:
            if not woken.done():
                woken.set_result(None)


def worker_ports(  # what a worker stands on
    store: Store,
    broker: Broker,
    assignment: WorkerAssignment,
    through: CallExternal = ExternalCall.make,
    worker: str = "",
    contracts: ReloadContracts = reload_in_thread,
    keys: Keys | None = None,
    telling: TransitionListener | None = None,
) -> Ports:
    """Ports of whoever runs turns on a real store and a real broker. `through`: the way of steps to the outside.
    `worker`: its name, for people. `contracts`: the way to what is deployed by now. `telling`: told of all that is
    written and loaded."""
    watching = assignment.watching
    return Ports(
        store=store,
        publisher=broker,
        clock=watching.clock,
        outage_watch=watching,
        assignment=assignment,
        batch=Batches().together,
        overflow_cache=OverflowCache(),
        worker=worker,
        call_external=lambda step: watching.idling(through(step)),
        reload_contracts=contracts,
        ask_registry=broker.writer if isinstance(broker, RegistryEdge) else None,
        keys=keys,
        transition_listener=telling,
    )
