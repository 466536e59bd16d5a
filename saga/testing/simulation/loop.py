"""An event loop without a real clock, threads or network. Time jumps to the next timer, and the seed decides which task
runs next.

asyncio works on this loop unchanged: tasks, futures, locks, timeouts. The loop knows which process each callback
belongs to. So a process can die at any point without running its `finally` blocks, or freeze and continue later.
"""

import asyncio
import heapq
import warnings
from asyncio import AbstractEventLoop, Future, Handle, Task, TimerHandle
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random  # noqa: TID251 - seeded: the one source of which task runs next
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack

from saga.errors import SagaError
from saga.support.clock import await_within
from saga.testing.fault_plans import Chance


@dataclass(eq=False, slots=True)
class Process:
    """A process of the world during one life: a worker from one start to its end, or the application. Everything that
    it starts on the event loop carries this value in its context.
    """

    name: str
    """Name such as `payment-1`. It stays the same when the worker is started again."""
    service: str
    life: int = 1
    """Number of this life, counted from 1."""
    alive: bool = True
    frozen: bool = False
    skew_ms: int = 0
    """Error of the process's clock, in milliseconds."""
    deferred: list[tuple[Handle, int]] = field(default_factory=list)
    """Callbacks that became ready while the process was frozen. Each is followed by the number of its task if it is a
    task's next step, otherwise by 0.
    """


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""Process whose code is running; `None` for the world itself."""


def _refuse(what: str) -> Any:  # any signature: the method only raises
    def method(self: AbstractEventLoop, *_: object, **__: object) -> NoReturn:
        raise SagaError(what)

    return method


_NETWORK = _refuse("a simulated world has no network: make it a resource and give the world a fake")
_PROCESS = _refuse("a simulated world has no other programs: make it a resource and give the world a fake")
_THREAD = _refuse("a simulated world has no threads: make it a resource and give the world a fake")
_SIGNAL = _refuse("a simulated world gets no signals: its services are stopped by the world")
_SETTING = _refuse("the event loop of a simulated world is as it is: services do not set it up")
_ENDLESS = _refuse("a simulated world is run by its test: services neither run nor stop its event loop")


class LoopWithoutSystem(AbstractEventLoop):
    """Base class with the methods of an event loop that would need the operating system. Each raises `SagaError`."""

    add_reader = add_writer = remove_reader = remove_writer = _NETWORK
    create_connection = create_server = create_datagram_endpoint = create_unix_connection = _NETWORK
    create_unix_server = connect_accepted_socket = start_tls = getaddrinfo = getnameinfo = _NETWORK
    sock_accept = sock_connect = sock_recv = sock_recv_into = sock_recvfrom = sock_recvfrom_into = _NETWORK
    sock_sendall = sock_sendfile = sock_sendto = sendfile = _NETWORK
    subprocess_exec = subprocess_shell = connect_read_pipe = connect_write_pipe = _PROCESS
    call_soon_threadsafe = set_default_executor = _THREAD
    add_signal_handler = remove_signal_handler = _SIGNAL
    get_exception_handler = set_exception_handler = get_task_factory = set_task_factory = _SETTING
    run_forever = stop = _ENDLESS


T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CALLBACKS_MAX = 1_000_000
"""Maximum number of callbacks of a run. A run with more ends with an error, because it would probably never finish."""
TASKS_MAX = 2_000
"""Number of remembered tasks above which finished tasks are forgotten."""


class NotQuiet(SagaError):
    """Raised when the world does not become quiet."""


class WorldEnded(BaseException):
    """Thrown into every unfinished coroutine when its world ends, even into those of dead processes."""


class SimulatedTimer(TimerHandle):
    """A timer that knows which process it belongs to, and whether it keeps the run going."""

    __slots__ = ("idle", "pending", "process")

    idle: bool
    pending: bool
    process: Process | None

    def __lt__(
        self, other: object
    ) -> bool:  # never decides: the heap compares times and numbers first, and these are unique
        return NotImplemented


class NumberedTask(Task[T]):
    """A task that knows its number in the order of creation."""

    def __init__(self, coro: Generator[Any, None, T] | Coroutine[Any, Any, T], number: int, **given: Any) -> None:
        self.number = number  # set first: `Task.__init__` already schedules the first step, which needs it
        super().__init__(coro, **given)


class SimulatedLoop(LoopWithoutSystem):
    """The event loop of a simulated world, as described in this module. Methods that would need the operating system
    raise `SagaError`.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self._ready: deque[tuple[Process | None, Handle, int]] = deque()
        """Ready callbacks, each with its process, and with the number of its task if it is a task's next step
        (otherwise 0).
        """
        self._timers: list[tuple[float, int, SimulatedTimer]] = []
        self._now_s = 0.0
        self._number = 0
        self._awaited = 0
        """Number of pending timers that keep a run going."""
        self._tasks: list[tuple[Process | None, Task[Any]]] = []
        self._tasks_max = TASKS_MAX
        self._made = 0
        self._closed = False
        self._running = False
        self.callbacks = 0
        self.after: Callable[[], None] | None = None
        """Function called after each callback, to check invariants. An exception from it ends the run."""
        self.failure: BaseException | None = None
        """Error that ends the run; `run` raises it."""

    # ---------------------------------------------------------------- used by the world

    def run(self, until_s: float | None = None) -> None:
        """Run until only idle timers are left, or until the time `until_s`.

        Raises `NotQuiet` if the run exceeds `CALLBACKS_MAX`; `failure`, once it is set; and any exception of `after`.
        """
        if self._running:
            raise RuntimeError("the loop runs already")
        self._running, before = True, asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            limit = self.callbacks + CALLBACKS_MAX
            while self._turn(until_s):
                if self.failure is not None:
                    raise self.failure
                if self.callbacks > limit:
                    raise NotQuiet(f"after {CALLBACKS_MAX} callbacks at {self._now_s:.3f} s the world is not quiet")
        finally:
            asyncio._set_running_loop(before)
            self._running = False
        if until_s is not None:
            self._now_s = max(self._now_s, until_s)

    def run_inside(self, act: Callable[[], object]) -> None:
        """Call a function that needs a running loop, without running the loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            act()
        finally:
            asyncio._set_running_loop(before)

    def idle_later(self, delay_s: float, callback: Callable[[], object]) -> TimerHandle:
        """Schedule a callback as `call_later` does, but without keeping the run going. If nothing else is left to do,
        the run ends before the callback.
        """
        return self._timer(self._now_s + delay_s, callback, (), None, idle=True)

    def kill(self, process: Process) -> None:
        """Kill a process at once. Operations that it has already sent still take effect."""
        process.alive = False
        process.deferred.clear()
        self._ready = deque(entry for entry in self._ready if entry[0] is not process)
        for _, _, timer in self._timers:
            if timer.process is process:
                self._forget(timer)

    def freeze(self, process: Process) -> None:
        """Freeze a process. Its callbacks are kept, and run after `thaw`."""
        process.frozen = True
        process.deferred += [(handle, step) for owner, handle, step in self._ready if owner is process]
        self._ready = deque(entry for entry in self._ready if entry[0] is not process)

    def thaw(self, process: Process) -> None:
        """Let a frozen process continue where it stopped."""
        process.frozen = False
        deferred, process.deferred = process.deferred, []
        self._ready.extend((process, handle, step) for handle, step in deferred)

    def pending(self) -> list[str]:
        """Return the names of all unfinished tasks of living processes, without repetitions."""
        living = (task for process, task in self._tasks if process is None or process.alive)
        return sorted({task.get_name() for task in living if not task.done()})

    def end(self) -> None:
        """End every unfinished coroutine, even those of dead processes, so that Python prints no warnings about
        them.
        """
        self._closed = True
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="coroutine .* was never awaited")  # those that never began
            self.run_inside(self._throw_out)
        self._ready.clear()
        self._timers.clear()

    def _throw_out(self) -> None:
        while self._tasks:  # a coroutine may start others while it ends
            _, task = self._tasks.pop()
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined] # as asyncio does it itself
                _throw_out_task(task.get_coro())

    # ---------------------------------------------------------------- one callback

    def _turn(self, until_s: float | None) -> bool:
        """Run one callback; return False if there is none to run."""
        if not self._ready and not self._advance(until_s):
            return False
        ready = self._ready
        if len(ready) > 1 and ready[0][2]:
            steps = 1
            while steps < len(ready) and ready[steps][2]:
                steps += 1
            # Tasks have no order among themselves, so the seed picks one. asyncio's own callbacks keep theirs.
            chosen = self._choose(steps)
            _, handle, _ = ready[chosen]
            del ready[chosen]
        else:
            _, handle, _ = ready.popleft()
        self.callbacks += 1
        if not handle.cancelled():
            handle._run()
            if self.after is not None:
                self.after()
        return True

    def _choose(self, steps: int) -> int:
        """Choose the ready task that runs next, and return its index.

        The tasks are sorted by number first, because their order of arrival can differ between runs of one seed: in
        some places asyncio iterates over sets.
        """
        by_number = sorted(range(steps), key=lambda at: self._ready[at][2])
        return by_number[int(self._random.random() * steps)]

    def _advance(self, until_s: float | None) -> bool:
        """Advance to the next timer that makes a callback ready. Return False if there is no such timer."""
        timers = self._timers
        while not self._ready:
            while timers and not timers[0][2].pending:
                heapq.heappop(timers)
            if not timers or (not self._awaited and until_s is None):
                return False
            when_s = timers[0][0]
            if until_s is not None and when_s > until_s:
                return False
            self._now_s = max(self._now_s, when_s)
            _, _, timer = heapq.heappop(timers)
            self._forget(timer)
            process = timer.process
            if process is not None and process.frozen:
                process.deferred.append((timer, 0))
            else:
                self._ready.append((process, timer, 0))
        return True

    def _timer(
        self,
        when_s: float,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: Context | None,
        *,
        idle: bool,
    ) -> SimulatedTimer:
        context = copy_context() if context is None else context
        timer = SimulatedTimer(when_s, callback, args, self, context)
        timer.process, timer.idle = context.get(CURRENT), idle
        timer.pending = timer.process is None or timer.process.alive
        if timer.pending:
            self._number += 1
            self._awaited += not idle
            heapq.heappush(self._timers, (when_s, self._number, timer))
        return timer

    def _forget(self, timer: SimulatedTimer) -> None:
        if timer.pending:
            timer.pending = False
            self._awaited -= not timer.idle

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        assert isinstance(handle, SimulatedTimer)
        self._forget(handle)

    # ---------------------------------------------------------------- the interface that asyncio requires

    def time(self) -> float:
        return self._now_s

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None) -> Handle:
        context = copy_context() if context is None else context
        handle = Handle(callback, args, self, context)
        process = context.get(CURRENT)
        task = getattr(callback, "__self__", None)
        step = task.number if isinstance(task, NumberedTask) else 0
        if process is None or (process.alive and not process.frozen):
            self._ready.append((process, handle, step))
        elif process.alive:
            process.deferred.append((handle, step))
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> TimerHandle:
        return self._timer(self._now_s + delay, callback, args, context, idle=False)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> TimerHandle:
        return self._timer(when, callback, args, context, idle=False)

    def create_future(self) -> "Future[Any]":
        return Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: object = None,
        context: Context | None = None,
        **_: Any,
    ) -> "Task[T]":
        context = copy_context() if context is None else context
        self._made += 1
        named = str(name) if name is not None else "task"
        task: NumberedTask[T] = NumberedTask(coro, self._made, loop=self, name=named, context=context)
        if len(self._tasks) > self._tasks_max:
            self._tasks = [(owner, each) for owner, each in self._tasks if not each.done()]
            self._tasks_max = max(TASKS_MAX, 2 * len(self._tasks))
        self._tasks.append((context.get(CURRENT), task))
        return task

    def run_until_complete(self, future: Awaitable[T]) -> T:  # type: ignore[override] # no coroutines as of Python 3.4
        ended = asyncio.ensure_future(future, loop=self)  # noqa: TID251 - this is a loop
        self.run()
        if not ended.done():
            raise NotQuiet("everything waits, and nothing will come")
        return ended.result()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the run on an error in a callback that belongs to no task. An operation's answer that is never retrieved
        is not an error, because the caller of the operation may have died.
        """
        why = context.get("exception")
        if isinstance(why, Exception) and "handle" in context and self.failure is None:
            self.failure = why

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        return None

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self.end()

    async def shutdown_asyncgens(self) -> None:
        return None

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as asyncio has it
        return None

    def run_in_executor(self, executor: object, func: Callable[..., Any], *_: Any) -> NoReturn:  # type: ignore[override] # raises for any arguments
        called = getattr(func, "__qualname__", repr(func))
        raise SagaError(
            f"{called} is to run in a thread (to_thread, run_in_executor), and a simulated world has none: "
            "make it a resource and give the world a fake"
        )


def _throw_out_task(coroutine: Any) -> None:
    """End a coroutine wherever it is suspended. Its `finally` blocks run, but no longer affect the world."""
    for _ in range(100):  # a `finally` block may await something that would never finish
        try:
            coroutine.throw(WorldEnded())
        except BaseException:  # noqa: BLE001 - its errors no longer matter
            return


BEGINNING_MS = round(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
"""Time of day at which every simulated world begins."""


class SimulatedClock:
    """The virtual clock of one process: see `saga.support.clock.Clock` for the guarantees."""

    __slots__ = ("_chance", "_draws", "_process")

    def __init__(self, process: Process, chance: Chance) -> None:
        self._process, self._chance, self._draws = process, chance, 0

    def now_ms(self) -> int:
        return BEGINNING_MS + int(asyncio.get_running_loop().time() * 1000) + self._process.skew_ms

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()

    def chance(self) -> float:
        self._draws += 1
        return self._chance.draw(f"{self._process.name} {self._process.life}?{self._draws}")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251 - on a loop whose time is virtual

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        return await await_within(seconds, what)
