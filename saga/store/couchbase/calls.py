"""Calls of Couchbase's SDK: how their answers come over from its thread, and go to whoever waits.

The SDK's futures must not be cancelled: it would go on all the same, and its late answer would be an
`InvalidStateError` in the loop's exception handler. And no write may be: see `saga.store.port`. So calls are driven
here by callbacks, and who waits for one waits for a future that the SDK does not know. It also costs less than a task.

The SDK hands each answer over from a thread of its own, by the loop that it is given. What it is given here is not the
loop itself: answers that come close together are taken in one go, and each goes straight on to the call that waits for
it. So there is one turn of the loop for several answers, where there were three for each.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from couchbase.exceptions import CouchbaseException  # type: ignore[import-untyped]  # the SDK has no types for checkers

T = TypeVar("T")


class SdkFuture(asyncio.Future[T]):
    """A future for the SDK. It cannot be cancelled, and its first result counts."""

    then: Callable[[], None] | None = None
    """Function that is called the moment the answer is there."""

    def set_result(self, result: T) -> None:
        if not self.done():
            super().set_result(result)
            if self.then is not None:
                self.then()

    def set_exception(self, why: type | BaseException) -> None:
        if not self.done():
            super().set_exception(why)
            if self.then is not None:
                self.then()

    def cancel(self, msg: object = None) -> bool:
        """Refuse: the SDK would go on all the same."""
        return False


def drop_frames(why: BaseException) -> None:
    """Drop the frames through which an exception of the SDK came, of it and of those behind it.

    They hold the request, which holds the exception, in part by references of C code that the collector does not see:
    each failed call would leave 7.5 KB for ever. A document that is not there is such a failure.
    """
    found: BaseException | None = why
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


class AnswerLoop:
    """The event loop that the SDK sees: it processes answers that arrive close together in one turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._called = False
        """True if the loop has been told of answers, and has not looked yet."""

    def create_future(self) -> SdkFuture[Any]:
        return SdkFuture(loop=self._loop)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        """Take an answer over from the SDK's thread."""
        self._arrived.append((callback, args))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._called = False  # first: what arrives from here on either is seen below, or calls again
        arrived = self._arrived
        while arrived:
            callback, args = arrived.popleft()
            try:
                callback(*args)
            except Exception as why:  # noqa: BLE001 - as the loop does with a callback of its own
                self._loop.call_exception_handler({"message": "an answer of Couchbase's SDK", "exception": why})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Calls:
    """Runs calls of the SDK to their end, even if the caller is cancelled."""

    def __init__(self) -> None:
        self._under_way = 0
        self._ended: asyncio.Future[None] | None = None

    def begin(self, call: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Begin a call now; the future tells what comes of it."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._go_on(call, answer)
        return answer

    def leave(self, call: Coroutine[Any, Any, object]) -> None:
        """Begin a call of which nobody wants to know what comes of it."""
        self.begin(call).add_done_callback(lambda answer: answer.exception())

    async def ended(self) -> None:
        """Return when no call is under way."""
        while self._under_way:
            self._ended = self._ended or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._ended)

    def _go_on(self, call: Coroutine[Any, Any, T], answer: asyncio.Future[T]) -> None:
        try:
            waits_for = call.send(None)
        except StopIteration as done:
            self._end()
            if not answer.done():
                answer.set_result(done.value)
        except (Exception, asyncio.CancelledError) as why:  # noqa: BLE001 - handed on to whoever waits
            drop_frames(why)
            self._end()
            if not answer.done():
                # Nobody here cancels: if the SDK does, that is no cancellation of whoever waits.
                answer.set_exception(why if isinstance(why, Exception) else CouchbaseException(message="cancelled"))
        else:
            if waits_for is None:
                asyncio.get_running_loop().call_soon(self._go_on, call, answer)
                return
            waits_for._asyncio_future_blocking = False  # as a task does: another one may wait for it, too
            if isinstance(waits_for, SdkFuture) and waits_for.then is None:
                waits_for.then = lambda: self._go_on(call, answer)
            else:  # two wait for one connection
                waits_for.add_done_callback(lambda _: self._go_on(call, answer))

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._ended is not None:
            self._ended.set_result(None)
            self._ended = None
