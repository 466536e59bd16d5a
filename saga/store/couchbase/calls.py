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
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

from couchbase.exceptions import CouchbaseException  # type: ignore[import-untyped]  # the SDK has no types for checkers

T = TypeVar("T")


class Answer(Generic[T]):
    """Future for the SDK. It cannot be cancelled; `then`, if it is set, is called the moment the answer is there."""

    __slots__ = ("_asyncio_future_blocking", "_callbacks", "_done", "_loop", "_result", "_why", "then")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._done = self._asyncio_future_blocking = False
        self._result: T | None = None
        self._why: BaseException | None = None
        self._callbacks: list[tuple[Callable[[Answer[T]], object], Context | None]] = []
        self.then: Callable[[], None] | None = None

    def set_result(self, result: T) -> None:
        self._end(result, None)

    def set_exception(self, why: BaseException) -> None:
        self._end(None, why)

    def _end(self, result: T | None, why: BaseException | None) -> None:
        if self._done:  # the first answer counts
            return
        self._result, self._why = result, why
        self._done = True
        for callback, context in self._callbacks:
            self._loop.call_soon(callback, self, context=context)
        self._callbacks = []
        if self.then is not None:
            self.then()

    def done(self) -> bool:
        return self._done

    def cancelled(self) -> bool:
        return False

    def cancel(self, msg: object = None) -> bool:
        """Refuse: the SDK would go on all the same."""
        return False

    def exception(self) -> BaseException | None:
        return self._why

    def result(self) -> T:
        if self._why is not None:
            raise self._why
        return self._result  # type: ignore[return-value]  # asked for once it is done

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def add_done_callback(self, callback: Callable[["Answer[T]"], object], *, context: Context | None = None) -> None:
        if self._done:
            self._loop.call_soon(callback, self, context=context)
        else:
            self._callbacks.append((callback, context))

    def __await__(self) -> Generator["Answer[T]", None, T]:
        if not self._done:
            self._asyncio_future_blocking = True
            yield self
        return self.result()


class Arrivals:
    """Event loop as the SDK sees it: it takes answers that come close together in one go."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._called = False
        """True if the loop has been told of answers, and has not looked yet."""

    def create_future(self) -> Answer[Any]:
        return Answer(self._loop)

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
    """Calls of the SDK that go on to their end, whatever becomes of whoever waits for them."""

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
            self._end()
            if not answer.done():
                # Nobody here cancels: if the SDK does, that is no cancellation of whoever waits.
                answer.set_exception(why if isinstance(why, Exception) else CouchbaseException(message="cancelled"))
        else:
            if waits_for is None:
                asyncio.get_running_loop().call_soon(self._go_on, call, answer)
                return
            if isinstance(waits_for, Answer) and waits_for.then is None:
                waits_for.then = lambda: self._go_on(call, answer)
            else:  # two wait for one connection
                waits_for.add_done_callback(lambda _: self._go_on(call, answer))

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._ended is not None:
            self._ended.set_result(None)
            self._ended = None
