"""Calls of the SDK, with an SDK that is only a thread: answers come over in one go, and nothing can cancel a call."""

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from saga.store.couchbase.driver import AnswerLoop, Calls
from saga.support.clock import SystemClock

PATIENCE_S = 5
CLOCK = SystemClock()


def arrivals() -> AnswerLoop:
    return AnswerLoop(asyncio.get_running_loop())


async def answered(future: Any) -> Any:
    """A call as the SDK makes them: a coroutine that waits for one of its futures."""
    return await future


def from_its_thread(act: Callable[[], None]) -> None:
    """Do it as the SDK does, from a thread of its own, while nothing else runs here."""
    thread = Thread(target=act)
    thread.start()
    thread.join()


async def test_an_answer_goes_straight_to_the_call_that_waits_for_it() -> None:
    loop, calls = arrivals(), Calls()
    future = loop.create_future()
    answer = calls.begin(answered(future))
    from_its_thread(lambda: loop.call_soon_threadsafe(future.set_result, 7))
    assert not answer.done()
    assert await asyncio.wait_for(answer, PATIENCE_S) == 7


async def test_answers_that_come_together_wake_the_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls, woken = arrivals(), Calls(), list[object]()
    running = asyncio.get_running_loop()
    wake = running.call_soon_threadsafe

    def counted(*args: Any, **kwargs: Any) -> object:
        woken.append(args)
        return wake(*args, **kwargs)

    monkeypatch.setattr(running, "call_soon_threadsafe", counted)
    futures = [loop.create_future() for _ in range(5)]
    waiting = [calls.begin(answered(future)) for future in futures]

    def answer_all() -> None:
        for number, future in enumerate(futures):
            loop.call_soon_threadsafe(future.set_result, number)

    from_its_thread(answer_all)
    assert await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S) == [0, 1, 2, 3, 4]
    assert len(woken) == 1
    from_its_thread(lambda: loop.call_soon_threadsafe(woken.append, "later"))
    await CLOCK.sleep(0)
    await CLOCK.sleep(0)
    assert woken[-1] == "later"  # and it is woken again for what comes afterwards


async def test_a_waiting_caller_may_be_cancelled_and_the_call_continues() -> None:
    loop, calls = arrivals(), Calls()
    future = loop.create_future()
    waits = calls.begin(answered(future))
    waits.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waits
    ended = asyncio.get_running_loop().create_task(calls.wait_until_ended())
    await CLOCK.sleep(0)
    assert not ended.done()
    assert not future.cancel()
    from_its_thread(lambda: loop.call_soon_threadsafe(future.set_result, 7))
    await asyncio.wait_for(ended, PATIENCE_S)
    assert future.result() == 7


async def test_two_may_wait_for_one_connection() -> None:
    loop, calls = arrivals(), Calls()
    connected = loop.create_future()
    both = [calls.begin(answered(connected)) for _ in range(2)]
    third = asyncio.get_running_loop().create_task(answered(connected))  # as the SDK itself does
    await CLOCK.sleep(0)
    from_its_thread(lambda: loop.call_soon_threadsafe(connected.set_result, "yes"))
    assert await asyncio.wait_for(asyncio.gather(*both, third), PATIENCE_S) == ["yes"] * 3


async def test_a_failure_is_raised_where_the_call_is_awaited() -> None:
    loop, calls = arrivals(), Calls()
    future = loop.create_future()
    answer = calls.begin(answered(future))
    from_its_thread(lambda: loop.call_soon_threadsafe(future.set_exception, OSError("gone")))
    with pytest.raises(OSError, match="gone"):
        await asyncio.wait_for(answer, PATIENCE_S)
    assert isinstance(future.exception(), OSError)


async def test_the_first_of_two_answers_completes_the_call() -> None:
    loop, calls, errors = arrivals(), Calls(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    future, never = loop.create_future(), loop.create_future()
    answer, open_ = calls.begin(answered(future)), calls.begin(answered(never))

    def answer_twice() -> None:
        loop.call_soon_threadsafe(future.set_result, 7)
        loop.call_soon_threadsafe(future.set_result, 8)

    from_its_thread(answer_twice)
    assert await asyncio.wait_for(answer, PATIENCE_S) == 7
    assert future.result() == 7
    ended = asyncio.get_running_loop().create_task(calls.wait_until_ended())
    await CLOCK.sleep(0)
    assert not ended.done()  # the other one is still open
    never.set_result(None)
    await asyncio.wait_for(ended, PATIENCE_S)
    assert open_.done()
    assert not errors


async def test_an_error_in_one_answer_does_not_affect_other_calls() -> None:
    loop, calls, errors = arrivals(), Calls(), list[Any]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    future = loop.create_future()
    answer = calls.begin(answered(future))

    def broken() -> None:
        raise ValueError("of a callback")

    def answer_both() -> None:
        loop.call_soon_threadsafe(broken)
        loop.call_soon_threadsafe(future.set_result, 7)

    from_its_thread(answer_both)
    assert await asyncio.wait_for(answer, PATIENCE_S) == 7
    assert [str(why) for why in errors] == ["of a callback"]


async def test_an_answer_that_is_there_already_is_not_waited_for() -> None:
    loop, calls = arrivals(), Calls()
    future = loop.create_future()
    future.set_result(7)
    notified = list[Any]()
    future.add_done_callback(notified.append)
    assert await calls.begin(answered(future)) == 7
    await CLOCK.sleep(0)
    assert notified == [future]
