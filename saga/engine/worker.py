"""One worker of a service: it connects the worker's parts, and shows its state to health checks and metrics."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from saga.engine.consumer.committer import Committer
from saga.engine.consumer.deadline_fence import DeadlineFence
from saga.engine.consumer.delivery import MessageDelivery
from saga.engine.consumer.flow_control import FlowControl, FlowLimits, LowPriorityBuffer
from saga.engine.consumer.keyed_executor import KeyedExecutor
from saga.engine.consumer.partition_listener import PartitionListener
from saga.engine.consumer.poison_guard import PoisonGuard
from saga.engine.consumer.poll_loop import PollLoop, UnreadableRecords
from saga.engine.consumer.sources import WorkerSources
from saga.engine.consumer.timers import LogIds, LostTimers, TimerBuffer
from saga.engine.consumer.worker_ports import WorkerAssignment
from saga.engine.persistence.transition_publisher import TransitionPublisher
from saga.engine.prepared_service import find_low_priority_types
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Broken, StoreUnavailable
from saga.messages import Partition, StalledPartition
from saga.messaging import names
from saga.policies.concurrency import postponed_max
from saga.progress.document import progress_key
from saga.telemetry.health import PartitionReach


@dataclass(slots=True)
class Worker:
    """Processes the messages of its sources. It implements `saga.telemetry.health.WorkerView`."""

    service: ServiceRuntime
    assignment: WorkerAssignment
    limits: FlowLimits
    tasks: asyncio.TaskGroup
    """Task group for everything that runs besides polling: runs, commits, dead letters."""
    sources: WorkerSources
    transition_publisher: TransitionPublisher | None = None
    """Publishes the transition events; `None` if they are not published."""
    log_ids: LogIds | None = None
    """Function that returns the current log ids, to be compared with those in the store; `None` if they are not
    compared."""
    executor: KeyedExecutor = field(init=False)
    timers: TimerBuffer = field(init=False)
    low_priority: LowPriorityBuffer | None = field(init=False)
    """Buffer for low-priority messages, so that other messages come first; `None` if no handler has low priority."""
    poll_loop: PollLoop = field(init=False)
    committer: Committer = field(init=False)
    listener: PartitionListener = field(init=False)

    def __post_init__(self) -> None:
        clock, look_again = self.service.ports.clock, lambda: self.listener.wake_polls()
        delivery = MessageDelivery(
            self.service, self.limits.cache_max, lambda item, awaits: self.timers.keep_until_handled(item, awaits)
        )
        guard = PoisonGuard(self.service, self.limits.deaths_max, delivery.deliver)
        self.executor = KeyedExecutor(self.tasks, delivery.deliver, guard.deliver_guarded, self.assignment.stop)
        self.assignment.runs = self.executor
        fence = DeadlineFence(
            clock, self.service.event_topics, self.sources, self.assignment, self.executor, self.service.wakes
        )
        if self.service.roles.deadlines:
            self.assignment.fence = fence
        self.timers = TimerBuffer(clock, self.executor, self.limits.inflight_max, look_again, fence)
        room = FlowControl(self.limits, self.assignment, self.executor, self.timers)
        types, topics = find_low_priority_types(self.service)
        if types:
            most = postponed_max(self.limits.inflight_max)
            room.low_priority = LowPriorityBuffer(
                clock, self.executor, types, topics, room.is_saturated, most, look_again
            )
            fence.is_low_priority = room.low_priority.has_saga
        self.low_priority = room.low_priority
        unreadable = UnreadableRecords(self.service, self.executor)
        self.poll_loop = PollLoop(
            self.service, self.assignment, room, self.executor, self.timers, unreadable, self.low_priority
        )
        self.committer = Committer(self.assignment, self.sources, self.executor.finished, self.transition_publisher)
        self.listener = PartitionListener(
            self.assignment,
            self.service.ports.outage_watch,
            self.executor,
            self.timers,
            delivery.cache,
            self.committer,
            self.limits.inflight_max,
            LostTimers(self.service, self.log_ids),
            self.low_priority,
        )

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def types(self) -> Collection[str]:
        return self.service.consumed

    @property
    def handlers(self) -> Collection[str]:
        return self.service.handlers

    @property
    def inflight(self) -> int:
        return self.executor.inflight

    @property
    def inflight_max(self) -> int:
        return self.poll_loop.flow.concurrency.limit

    @property
    def yields(self) -> int:
        return 0 if self.low_priority is None else self.low_priority.count

    @property
    def partitions(self) -> int:
        return len(self.assignment.trackers)

    def lag(self) -> Mapping[Partition, int] | None:
        lag = self.sources.lag()  # timers that wait in the log do not count as lag
        return None if lag is None else {p: n for p, n in lag.items() if p.topic not in self.service.wakes}

    def reach(self) -> Mapping[Partition, PartitionReach] | None:
        lag = self.lag()
        ours = {p: tracker for p, tracker in self.assignment.trackers.items() if p.topic not in self.service.wakes}
        if lag is None or not lag.keys() >= ours.keys():
            return None
        return {p: PartitionReach(tracker.done, tracker.end + lag[p]) for p, tracker in ours.items()}

    def away(self) -> Mapping[str, float]:
        return self.service.ports.outage_watch.away()

    def stalled_partitions(self) -> Sequence[StalledPartition]:
        return self.sources.stalled_partitions()

    async def look(self) -> None:
        """Read the store once, to check whether it answers.

        A successful read ends an outage only while no message is in flight. Otherwise the writes of the messages in
        flight decide, because they show better whether the store accepts writes.
        """
        ports = self.service.ports
        try:
            await ports.store.get(names.PROGRESS, progress_key(self.name, ""))
        except StoreUnavailable as why:
            ports.outage_watch.unavailable("get", why)
        except Broken as why:
            self.tasks.create_task(_end(why), name="end")
        else:
            if not self.executor.inflight:
                ports.outage_watch.answered("store")
        ports.outage_watch.forget_failures()


async def _end(why: Broken) -> None:
    """Raise an error in a task of its own: this ends the service."""
    raise why
