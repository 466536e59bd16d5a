"""One worker of a service: one intake, bounded in flight; lanes side by side; commits in the background."""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from saga import envelope, names
from saga.broker.port import Broker, Membership
from saga.clock import from_iso
from saga.contracts import codec
from saga.errors import BadInput, Broken, BrokerUnavailable, Fenced, StoreUnavailable
from saga.messages import Partition, Position, Record, Standstill
from saga.observe.moments import Assigned, DeadLettered, Expired, Handled, Lost, Revoked, Stuck
from saga.printable import printable, shortened
from saga.progress.document import Snapshot, decode_entry, progress_key
from saga.runtime import deadletters, persistence
from saga.runtime.beginning import begin
from saga.runtime.errors import Draining
from saga.runtime.handling import said_by
from saga.runtime.lanes import Cache, Item, Lanes
from saga.runtime.offsets import Prefix
from saga.runtime.participant import Participant
from saga.runtime.ports import RunningPorts
from saga.runtime.room import Limits, Room
from saga.runtime.standstills import Standstills
from saga.runtime.turn import take_turn
from saga.runtime.turn_state import Stages

POLL_S = 86_400.0
"""The longest that an idle intake waits: whatever changes wakes it."""
AGAIN_S = 0.2
"""Before a log that cannot be read is read again."""
FULL_S = 0.005
"""The longest while a partition is left out because it has its share of what is in flight."""
GATHER_S = 0.002
"""How long a worker that had no room waits for more of it, once there is some."""
COMMIT_S = 0.05
STUCK_S_FIRST, STUCK_S_MAX = 0.5, 30.0
"""The pauses of a lane that cannot decide: nothing of it is lost, and other lanes go on."""


@dataclass(slots=True)
class Worker:
    """Handles what a membership gives. Also the membership's listener, and a `saga.observe.worker_view.WorkerView`."""

    service: Participant
    ports: RunningPorts
    limits: Limits
    tasks: asyncio.TaskGroup
    """Where lanes run."""
    _cache: Cache = field(init=False)
    _lanes: Lanes = field(init=False)
    _room: Room = field(init=False)
    _membership: Membership | None = None
    _letters: set[asyncio.Task[None]] = field(default_factory=set)
    """Dead letters under way of records that belong to no lane."""
    _committing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._cache = Cache(self.limits.cache_max, self.service.memory_s / 2)
        self._lanes = Lanes(self.tasks, self._handle)
        self._room = Room(self.limits, self.ports, self._lanes)

    @property
    def topics(self) -> tuple[str, ...]:
        """Where what the service consumes lies."""
        return tuple(sorted(self.service.topics))

    async def run(self, broker: Broker, stop: asyncio.Event) -> float:
        """Be a member of the service's group until `stop`; then drain: what runs may end, nothing new begins.
        Returns how many seconds draining took.

        The order of the end: intake, lanes, commits, group.
        """
        async with broker.join(self.service.name, self.topics, self) as membership:
            self._membership = membership
            commits = self.tasks.create_task(self._commit_often(), name=f"{self.service.name} commits")
            ending = self.tasks.create_task(self._nothing_new_after(stop), name=f"{self.service.name} stop")
            try:
                await self._take_in(membership, stop)
            finally:
                began = self.ports.clock.monotonic_s()
                self.ports.stop()
                await self._lanes.drained(None, self.limits.drain_s)
                if self._letters:
                    await asyncio.wait(self._letters, timeout=self.limits.drain_s)
                commits.cancel()
                ending.cancel()
                await asyncio.wait([commits, ending])
                await self._commit()
            return self.ports.clock.monotonic_s() - began

    async def _nothing_new_after(self, stop: asyncio.Event) -> None:
        """From the very moment on: the intake, which may be polling, is seldom the first to see it."""
        await stop.wait()
        self.ports.stop()
        self._look_again()

    # ---------------------------------------------------------------- intake

    async def _take_in(self, membership: Membership, stop: asyncio.Event) -> None:
        away, standstills = False, Standstills(self.name, self.ports.report)
        while not stop.is_set():
            open_, room = self._room.open()
            if not open_ and self.ports.prefixes:  # without any, what keeps it so comes out of the poll
                self._lanes.room.clear()
                await self._lanes.room.wait()  # set whenever a message leaves, and by `_look_again`
                if not stop.is_set():
                    await self.ports.clock.sleep(GATHER_S)
                continue
            try:
                # One that has its share may have room again in a moment: then the others are not waited for for long.
                timeout_s = POLL_S if len(open_) == len(self.ports.prefixes.keys() - self.ports.leaving) else FULL_S
                records = await membership.poll(open_, records_max=max(1, room), timeout_s=timeout_s)
            except BrokerUnavailable as why:
                away = True
                self.ports.unavailable("poll", why)
                await self.ports.clock.sleep(AGAIN_S)
                continue
            standstills.are(membership.standstills())
            if away:  # else nothing is said: a log that can be read may be full
                away = False
                self.ports.answered("broker")
            partition = None
            for record in records:  # those of one partition come together
                if partition is None or record.partition != partition.number or record.topic != partition.topic:
                    partition = Partition(record.topic, record.partition)
                self._take(record, partition)

    def _look_again(self) -> None:
        """The intake is to see what has changed: that the worker stops, or that partitions have come or gone."""
        self._lanes.room.set()
        if self._membership is not None:
            self._membership.wake()

    def _take(self, record: Record, partition: Partition) -> None:
        """Into its lane; what no handler here names is finished at once."""
        prefix = self.ports.prefixes.get(partition)
        if prefix is None or partition in self.ports.leaving:
            return
        prefix.begun(record.offset)
        try:
            type_, schema = self._identified(record)
            if type_ not in self.service.consumed:
                self._lanes.is_finished(prefix, record.offset)
                return
            contract = self.service.contracts[type_]
            message = envelope.to_message(record, type_=type_, schema=schema, contract=contract)
        except BadInput as why:
            self._give_up(record, prefix, str(why))
            return
        except Exception as why:  # noqa: BLE001 - records are written by anybody: none of them ends a worker
            self._give_up(record, prefix, f"it cannot be read as a message: {said_by(why)}")
            return
        if message.source == self.service.name:  # the copy of an own event: the progress has it
            self._lanes.is_finished(prefix, record.offset)
            return
        position = Position(record.topic, record.partition, record.offset)
        self._lanes.add(Item(message, position, prefix, self.ports.clock.monotonic_s()))

    def _give_up(self, record: Record, prefix: Prefix, reason: str) -> None:
        """Its dead letter is on its way from here on; other records go on meanwhile, within what may be in flight."""
        self._lanes.inflight += 1
        letter = self.tasks.create_task(self._dead(record, prefix, reason), name="dead letter")
        self._letters.add(letter)
        letter.add_done_callback(self._dead_is_over)

    def _identified(self, record: Record) -> tuple[str, str]:
        """Type and schema: as the headers say, or, from a sender without headers, as the bytes say."""
        type_ = envelope.type_of(record)
        if type_ is not None:
            return type_, ""
        version = codec.identify(record.value, self.service.library)
        return version.name, version.path

    async def _dead(self, record: Record, prefix: Prefix, reason: str) -> None:
        """A record of which not even the saga can be told: its dead letter is durable before its offset moves."""
        position = Position(record.topic, record.partition, record.offset)
        letter = deadletters.unreadable(self.service.name, record, reason, self.ports.clock.now_ms())
        try:
            await persistence.send_letter(self.service, position, letter)
        except Draining:
            return
        self._lanes.is_finished(prefix, record.offset)
        self.ports.report(
            DeadLettered(
                service=self.service.name,
                reason=shortened(printable(reason), deadletters.REASON_BYTES_MAX),
                remedy="mend its sender; its dead letter has it, or says where it lies",
            )
        )

    def _dead_is_over(self, letter: asyncio.Task[None]) -> None:
        self._letters.discard(letter)
        self._lanes.inflight -= 1
        self._lanes.room.set()

    # ---------------------------------------------------------------- for those who watch

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
        return self._lanes.inflight

    @property
    def inflight_max(self) -> int:
        return self._room.now.limit

    @property
    def partitions(self) -> int:
        return len(self.ports.prefixes)

    def lag(self) -> Mapping[Partition, int] | None:
        return None if self._membership is None else self._membership.lag()

    def away(self) -> Mapping[str, float]:
        return self.ports.away()

    def standstills(self) -> Sequence[Standstill]:
        return () if self._membership is None else self._membership.standstills()

    async def look(self) -> None:
        """See `saga.observe.worker_view.WorkerView`. Lanes know better than a read whether the store takes writes."""
        try:
            await self.ports.store.get(names.PROGRESS, progress_key(self.service.name, ""))
        except StoreUnavailable as why:
            self.ports.unavailable("get", why)
        except Broken as why:
            self.tasks.create_task(_end(why), name="end")
        else:
            if not self._lanes.inflight:
                self.ports.answered("store")
        self.ports.forget_failures()

    # ---------------------------------------------------------------- one message

    async def _handle(self, item: Item) -> bool:
        """One message to its end, however often it takes; whether it is finished."""
        pause_s = STUCK_S_FIRST
        while True:
            try:
                self.ports.check_running(item.position)
                stages = await self._turn(item)
            except Draining:
                return False
            except Broken:
                raise  # ends the service
            except Exception as why:  # noqa: BLE001 - a lane that cannot decide waits and tells; it never skips a message
                self.ports.report(
                    Stuck(
                        service=self.service.name,
                        saga=item.message.saga,
                        message=item.message.id,
                        error=f"{type(why).__name__}: {why}",
                        retry_s=pause_s,
                    )
                )
                try:
                    await self.ports.pause(pause_s, item.position)
                except Draining:
                    return False
                pause_s = min(pause_s * 2, STUCK_S_MAX)
                continue
            self._tell(item, stages)
            return True

    async def _turn(self, item: Item) -> Stages:
        saga = item.message.saga
        stages = Stages(received_s=item.received_s, begun_s=self.ports.clock.monotonic_s())
        cached = self._cache.take(saga, stages.begun_s)
        known = None if cached is None else cached[:2]
        turn = await take_turn(self.service, begin(self.service, item.message, item.position, known, stages))
        if turn.progress is not None and turn.cas:
            if not stages.outcomes and cached is not None and turn.progress is cached[0]:
                written_s = cached[2]
            else:
                written_s = stages.begun_s - (0.0 if stages.outcomes else self._age_s(turn.progress))
            self._cache.put(saga, turn.progress, turn.cas, written_s)
        return stages

    def _age_s(self, p: Snapshot) -> float:
        """How long ago a progress was written that was only read now."""
        if not p.transitions:
            return 0.0
        return max(0.0, (self.ports.clock.now_ms() - from_iso(decode_entry(p.transitions[-1]).time)) / 1000)

    def _tell(self, item: Item, stages: Stages) -> None:
        now = self.ports.clock.monotonic_s()
        self.ports.report(
            Handled(
                service=self.service.name,
                saga=item.message.saga,
                message=item.message.id,
                type=item.message.type,
                topic=item.position.topic,
                partition=item.position.partition,
                offset=item.position.offset,
                outcomes=tuple(stages.outcomes),
                queued_ms=(stages.begun_s - stages.received_s) * 1000,
                handler_ms=stages.handler_s * 1000,
                persisted_ms=stages.persisted_s * 1000,
                published_ms=stages.published_s * 1000,
                total_ms=(now - stages.received_s) * 1000,
                attempts=stages.attempts,
            )
        )

    # ---------------------------------------------------------------- commits

    async def _commit_often(self) -> None:
        while True:
            await self._lanes.finished.wait()
            await self.ports.clock.sleep(COMMIT_S)
            self._lanes.finished.clear()
            await self._commit()

    async def _commit(self) -> None:
        """The contiguous prefix of each partition, if it has moved."""
        if self._membership is None:
            return
        async with self._committing:
            moved = {
                partition: (prefix, offset)
                for partition, prefix in self.ports.prefixes.items()
                if (offset := prefix.to_commit()) is not None
            }
            if not moved:
                return
            try:
                await self._membership.commit({partition: offset for partition, (_, offset) in moved.items()})
            except Fenced:
                return  # the partitions are somebody else's by now; `lost` says which
            except BrokerUnavailable as why:
                self.ports.unavailable("commit", why)
                self._lanes.finished.set()
                return
            self.ports.answered("broker")
            for prefix, offset in moved.values():
                prefix.committed(offset)

    # ---------------------------------------------------------------- the listener of the membership

    async def assigned(self, partitions: Mapping[Partition, int]) -> None:
        for partition, offset in partitions.items():
            self.ports.prefixes[partition] = Prefix(offset)
            self.ports.leaving.discard(partition)
        self._look_again()
        self.ports.report(Assigned(service=self.service.name, partitions=tuple(partitions)))

    async def revoked(self, partitions: Collection[Partition]) -> None:
        """No new message and no new step begins; what runs may end until the limit, then is left as by a crash."""
        self.ports.leave(partitions)
        self._lanes.forget(partitions)
        await self._lanes.drained(partitions, self.limits.drain_s)
        await self._commit()
        self._drop(partitions)
        self.ports.report(Revoked(service=self.service.name, partitions=tuple(partitions)))

    def lost(self, partitions: Collection[Partition]) -> None:
        self.ports.leave(partitions)
        self._lanes.forget(partitions)
        self._drop(partitions)
        self.ports.report(Lost(service=self.service.name, partitions=tuple(partitions)))

    def expired(self, partition: Partition, first: int, after: int) -> None:
        prefix = self.ports.prefixes.get(partition)
        if prefix is not None:
            prefix.skipped(after)
        self._lanes.finished.set()  # the position moves behind them, so that this is told once
        self.ports.report(
            Expired(
                service=self.service.name,
                topic=partition.topic,
                partition=partition.number,
                first=first,
                last=after - 1,
                count=after - first,
            )
        )

    def _drop(self, partitions: Collection[Partition]) -> None:
        for partition in partitions:
            self.ports.prefixes.pop(partition, None)
        self._cache.clear()
        self._look_again()


async def _end(why: Broken) -> None:
    """Among the tasks of a service this ends it."""
    raise why
