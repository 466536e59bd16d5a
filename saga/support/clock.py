"""The clock: the only place that reads the time, sleeps, or draws random numbers. All other code gets a `Clock` as a
parameter."""

import asyncio
import random
import time
from collections.abc import Awaitable, Coroutine, Generator
from datetime import UTC, datetime
from functools import lru_cache, partial
from types import CoroutineType, coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

LOOK_S = 0.25
"""Pause between two checks of `patiently`, in seconds."""
ON_ITS_WAY_S = 0.01
"""Pause, in seconds, until a time that is over ends a wait whose task was cancelled just before."""
LATEST_MS = 253_402_300_799_999
"""Latest time that can be represented: the end of the year 9999, in milliseconds since 1970."""


class Clock(Protocol):
    """Time, waiting and randomness as inputs, so that a simulation can control them."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970, UTC."""

    def monotonic_s(self) -> float:
        """Return seconds that never go back; only differences have a meaning."""

    def chance(self) -> float:
        """Return a random number from 0 to 1, to spread waiting times."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds`."""

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        """Wait for an awaitable, and return its result. After `seconds` cancel it and raise `TimeoutError`."""


class SystemClock:
    """Clock of the operating system."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic_s = staticmethod(time.monotonic)  # a wrapper around it would take longer than it does

    def chance(self) -> float:
        return random.random()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        if type(what) is asyncio.Future:
            return await _await_future_within(seconds, what)
        if not isinstance(what, CoroutineType):
            return await await_within(seconds, what)
        try:
            waits_for = what.send(None)
        except StopIteration as ended:  # most handlers never wait, so a timer is created only when one does
            value: T = ended.value
            return value
        return await await_within(seconds, _going_on(what, waits_for))


async def patiently(seconds: float, what: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a task of its own, and return its result.

    Time in which this process could not run does not count, for example because it loads a driver or gets little CPU
    time. After `seconds` of counted time the coroutine is cancelled, and `TimeoutError` is raised.
    """
    loop, waited_s = asyncio.get_running_loop(), 0.0
    task = loop.create_task(what)
    try:
        while not task.done():
            began_s = loop.time()
            await asyncio.wait({task}, timeout=LOOK_S)
            waited_s += counted_s(began_s, loop.time())
            if waited_s >= seconds and not task.done():
                raise TimeoutError
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def counted_s(began_s: float, now_s: float) -> float:
    """Return how many seconds of a pause count: at most twice `LOOK_S`. If the pause took longer, this process could
    not run in the remaining time."""
    return min(now_s - began_s, 2 * LOOK_S)


async def _await_future_within(seconds: float, future: "asyncio.Future[T]") -> T:
    """Wait for a future as with `asyncio.timeout`.

    Unlike it, this does not cancel and uncancel the task, which would take several times as long.
    """
    is_late, task = False, asyncio.current_task()
    cancelled_before = 0 if task is None else task.cancelling()  # a handler may have left some behind

    def end() -> None:
        nonlocal is_late
        is_late = future.cancel()

    timer = future.get_loop().call_later(seconds, end)
    try:
        return await future
    except asyncio.CancelledError:
        if is_late and (task is None or task.cancelling() <= cancelled_before):
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


async def await_within(seconds: float, what: Awaitable[T]) -> T:
    """Wait for an awaitable as with `asyncio.timeout`.

    Unlike it, this also works if `what` survives a cancellation before its time is over. Before Python 3.13, a task
    group whose task fails leaves one behind. A cancellation that has not reached `what` yet, or that `what` still
    cleans up after, is none of these.
    """
    task, survived, loop = asyncio.current_task(), -1, asyncio.get_running_loop()
    assert task is not None, "only a task can be cancelled"
    cancelled_before = task.cancelling()
    timer: asyncio.TimerHandle

    def end() -> None:
        nonlocal survived, timer
        if task.cancelling() > cancelled_before and _is_on_its_way(task):
            timer = loop.call_later(ON_ITS_WAY_S, end)  # else both would arrive as one, and it would be lost
            return
        survived = task.cancelling()
        task.cancel()

    timer = loop.call_later(seconds, end)
    try:
        return await what
    except asyncio.CancelledError as why:
        others = task.cancelling() - 1
        if survived < 0 or others > survived:
            raise
        if others > cancelled_before and isinstance(why.__context__, asyncio.CancelledError):
            raise  # the end of the time has interrupted the cleanup
        raise TimeoutError from why
    finally:
        timer.cancel()
        if survived >= 0:
            task.uncancel()


async def in_own_task(what: Awaitable[T]) -> T:
    """Await in a task of its own, so that the current task counts as cancelled only if it was cancelled itself.

    Before Python 3.13, a task group whose task fails leaves a cancellation behind in the task that runs the group.
    Without an event loop, `what` is awaited directly.
    """

    async def run() -> T | SystemExit:
        try:
            return await what
        except SystemExit as why:  # raised in a task, it would end the event loop
            return why

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return await what
    made = await loop.create_task(run())
    if isinstance(made, SystemExit):
        raise made
    return made


def is_cancelled() -> bool:
    """Return whether the current task was cancelled. A task that survived a cancellation counts as cancelled. Without
    an event loop there is no task, and the result is False."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False
    return task is not None and task.cancelling() > 0


def _is_on_its_way(task: "asyncio.Task[Any]") -> bool:
    """Return whether a task was cancelled, and its coroutine has not received the `CancelledError` yet.

    Only private attributes of asyncio's tasks show this. If they are missing, the result is False.
    """
    waits_for = getattr(task, "_fut_waiter", None)
    return getattr(task, "_must_cancel", False) or (
        waits_for is not None
        and (
            waits_for.cancelled()
            or getattr(waits_for, "_cancel_requested", False)  # of `gather`
            or (isinstance(waits_for, asyncio.Task) and waits_for.cancelling() > 0)
        )
    )


@coroutine
def _going_on(what: Coroutine[object, object, T], waits_for: object) -> Generator[object, object, T]:
    """Run the rest of a coroutine that has already yielded a future."""
    while True:
        try:
            sent = yield waits_for
        except BaseException as thrown:  # noqa: BLE001 - handed on, as `yield from` does
            step = partial(what.throw, thrown)
        else:
            step = partial(what.send, sent)
        try:
            waits_for = step()
        except StopIteration as ended:
            value: T = ended.value
            return value


@lru_cache(maxsize=64)  # cached, because most calls are for the current millisecond
def iso(ms: int) -> str:
    """Return a time as RFC 3339 text with milliseconds. Sorting such strings sorts the times.

    >>> iso(1_795_270_000_123)
    '2026-11-21T14:06:40.123Z'
    """
    seconds, rest = divmod(ms, 1000)
    return f"{_to_the_second(seconds)}.{rest:03}Z"


@lru_cache(maxsize=8)
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:19]  # four digits also of the year 1, unlike strftime


def from_iso(text: str) -> int:
    """Return the milliseconds since 1970 of an RFC 3339 text. Raises `ValueError` for any other text.

    >>> from_iso("2026-11-21T15:06:40.123+01:00")
    1795270000123
    """
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return round(when.timestamp() * 1000)
