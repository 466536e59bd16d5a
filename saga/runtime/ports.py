"""The ports of a turn in a running worker: store, broker and clock, and when nothing new may begin."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from saga.broker.port import Broker
from saga.clock import Clock
from saga.errors import SagaError, StoreError
from saga.messages import Outgoing, Partition, Position
from saga.observe.moments import Recovered, Report, Unavailable
from saga.progress.document import Call
from saga.runtime.batches import Batches
from saga.runtime.errors import Draining
from saga.runtime.offsets import Prefix
from saga.runtime.pages import KnownPages
from saga.store.port import Store

T = TypeVar("T")
Item = TypeVar("Item")

Outside: TypeAlias = Callable[[str, str, Call, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""How the calls of steps reach the outside: saga, handler, what is called, and the call. For worlds that break it."""

What: TypeAlias = Literal["store", "broker"]
WHAT: tuple[What, ...] = ("store", "broker")

NEWS_MAX = 1000
MOMENT_EVERY_S = 60.0
"""How often people are told that store or broker cannot be reached."""
QUIET_S = 60.0
"""If nobody has failed for so long, nobody waits: it can be reached, as far as anybody knows."""


class Load(Protocol):
    """Who has to know how store and log cope."""

    def took(self, seconds: float, now_s: float) -> None:
        """A write, or what was published, has been acknowledged after so long, just now."""

    def failed(self) -> None:
        """One was refused for being too much or out of reach, or its answer was lost."""

    def eased(self) -> None:
        """One more lane waits for something else."""


@dataclass(slots=True)
class RunningPorts:
    """See `saga.runtime.participant.Ports` for the promises."""

    service: str
    store: Store
    broker: Broker
    clock: Clock
    report: Report
    through: Outside | None = None
    prefixes: dict[Partition, Prefix] = field(default_factory=dict)
    """The partitions that are ours, each with what of it is done."""
    leaving: set[Partition] = field(default_factory=set)
    """Those of which nothing new may begin."""
    pages: KnownPages = field(default_factory=KnownPages)
    outages: int = 0
    load: Load | None = None
    idle: int = 0
    """How many lanes wait for what is neither store nor log: for the outside, or until they are tried again."""
    _news: dict[str, None] = field(default_factory=dict)
    """The dead letters of which people were told last, oldest first."""
    _batches: Batches = field(default_factory=Batches)
    _stopping: bool = False
    _pauses: dict[asyncio.Future[None], None] = field(default_factory=dict)
    _away: dict[str, float] = field(default_factory=dict)
    """Store or broker -> since when it cannot be reached."""
    _told: dict[str, float] = field(default_factory=dict)
    """Store or broker -> when people were last told so."""
    _failed: dict[str, float] = field(default_factory=dict)
    """Store or broker -> when it last could not be reached."""

    @property
    def record_bytes_max(self) -> int:
        return self.broker.record_bytes_max

    def publish(self, messages: Sequence[Outgoing]) -> Coroutine[object, object, None]:
        return self.broker.publish(messages)

    def outside(
        self,
        saga: str,
        handler: str,
        asked: Call,
        call: Callable[..., Awaitable[Any]],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Awaitable[Any]:
        if self.through is None:
            return self._idle(call(*args, **kwargs))
        return self._idle(self.through(saga, handler, asked, lambda: call(*args, **kwargs)))

    async def _idle(self, what: Awaitable[T]) -> T:
        self.idle += 1
        if self.load is not None:
            self.load.eased()
        try:
            return await what
        finally:
            self.idle -= 1

    def is_committed(self, position: Position) -> bool:
        prefix = self.prefixes.get(Partition(position.topic, position.partition))
        return prefix is not None and prefix.is_committed(position.offset)

    def check_running(self, position: Position) -> None:
        partition = position[:2]  # as good as a `Partition`, and asked for with every message
        if self._stopping or partition in self.leaving or partition not in self.prefixes:
            raise Draining

    async def pause(self, seconds: float, position: Position) -> None:
        self.check_running(position)
        woken = asyncio.get_running_loop().create_future()
        self._pauses[woken] = None
        try:
            if self._away:  # it waits for store or log, and will come back to them with all others
                await self.clock.within(seconds, woken)
            else:
                await self._idle(self.clock.within(seconds, woken))
        except TimeoutError:
            pass
        finally:
            del self._pauses[woken]
        self.check_running(position)

    def stop(self) -> None:
        """Nothing new begins from here on."""
        self._stopping = True
        self._wake()

    def leave(self, partitions: Collection[Partition]) -> None:
        """Nothing new of these begins until they are assigned again."""
        self.leaving.update(partitions)
        self._wake()

    def _wake(self) -> None:
        for woken in self._pauses:
            if not woken.done():
                woken.set_result(None)

    def is_news(self, id_: str) -> bool:
        if id_ in self._news:
            return False
        self._news[id_] = None
        if len(self._news) > NEWS_MAX:
            del self._news[next(iter(self._news))]
        return True

    async def together(self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]) -> T:
        return await self._batches.together(what, item, act)

    def one_run(self) -> "ShieldedRun":
        return ShieldedRun()

    def unavailable(self, operation: str, why: SagaError) -> None:
        self.outages += 1
        now, what = self.clock.monotonic_s(), _what(why)
        since = self._away.setdefault(what, now)
        self._failed[what] = now
        self.answer_lost()
        told = self._told.get(what)
        if told is None or now - told >= MOMENT_EVERY_S:
            self._told[what] = now
            self.report(
                Unavailable(service=self.service, what=what, operation=operation, error=str(why), since_s=now - since)
            )

    def away(self) -> dict[str, float]:
        """Store or broker -> for how many seconds it cannot be reached."""
        now = self.clock.monotonic_s()
        return {what: now - since for what, since in self._away.items()}

    def forget_failures(self) -> None:
        """Of lanes that have gone, as with their partition: whoever still waits for store or broker tries, and fails,
        more often than every `QUIET_S` seconds."""
        now = self.clock.monotonic_s()
        for what in WHAT:
            if what in self._away and now - self._failed[what] > QUIET_S:
                self.answered(what)

    def recovered(self, why: SagaError) -> None:
        self.answered(_what(why))

    def took(self, seconds: float, now_s: float) -> None:
        if self.load is not None:
            self.load.took(seconds, now_s)

    def answer_lost(self) -> None:
        if self.load is not None:
            self.load.failed()

    def answered(self, what: What) -> None:
        """It can be reached: told if it was told that it could not."""
        since = self._away.pop(what, None)
        if since is not None and self._told.get(what, since - 1) >= since:
            self.report(Recovered(service=self.service, what=what, away_s=self.clock.monotonic_s() - since))


def _what(why: SagaError) -> What:
    return "store" if isinstance(why, StoreError) else "broker"


@dataclass(slots=True)
class ShieldedRun:
    """See `saga.runtime.participant.OneRun` for the promises."""

    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    _writing: asyncio.Task[object] | None = None

    async def write(self, work: Coroutine[object, object, T]) -> T:
        task = asyncio.get_running_loop().create_task(work, name="write")
        self._writing = task
        return await asyncio.shield(task)

    async def settled(self) -> None:
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])
