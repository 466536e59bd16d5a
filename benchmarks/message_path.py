"""Part p of the benchmarks: how many functions and files one message visits on its path through the code.

The fewer functions and files the path visits, and the less often it returns to a file, the easier it is to follow for a
reader of the code.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType

import saga
from benchmarks.parts import Figure
from benchmarks.running import running
from saga.broker.embedded.broker import EmbeddedBroker
from saga.clients.events import to_record
from saga.support.clock import SystemClock
from services.payment import payment
from services.payment.bank import Bank
from services.payment.events import OrderPlaced

ROOT = str(Path(saga.__file__).parent)
EMBEDDED = (f"{ROOT}/broker/embedded", f"{ROOT}/store/sqlite")
"""Folders with code that a message does not reach on Kafka and Couchbase."""
WARM_UP, FOLLOWED, IDLE_S, AFTER_S = 3, 4, 3.0, 1.0
"""Number of messages before the followed ones; number of followed messages; seconds for which an idle worker is
watched; and seconds after each message, in which the worker commits its position twenty times."""
LOOK_S = 0.01

Callback = tuple[CodeType, ...]
"""Functions of the toolkit that one callback of the event loop has called, in order."""


def message_path() -> list[Figure]:
    """(p) Count the path of a message whose handler takes one step, from publish to commit, without idle work"""
    calls = list(chain.from_iterable(asyncio.run(_callbacks_of_a_message())))
    files = [code.co_filename for code in calls]
    engine = [file for file in files if not file.startswith(EMBEDDED)]
    moves = [after for before, after in pairwise(files) if before != after]
    first_visits = len({*files} - {files[0]})
    counts = {
        "calls": len(calls),
        "functions": len({*calls}),
        "files": len({*files}),
        "changes of file": len(moves),
        "returns to a file already left": len(moves) - first_visits,
        "calls outside the embedded broker and store": len(engine),
        "files outside the embedded broker and store": len({*engine}),
    }
    return [Figure(f"p {name}", count, "/message") for name, count in counts.items()]


async def _callbacks_of_a_message() -> Sequence[Callback]:
    """Follow messages through a worker that has already handled others. Return the callbacks of the message that caused
    the fewest calls, because on a slow machine the event loop has additional iterations."""
    with TemporaryDirectory() as folder:
        async with running(Path(folder), [payment.declared], {"payment": [Bank()]}) as run:

            async def one(number: int) -> None:
                await asyncio.to_thread(asyncio.run, _publish(Path(folder) / "broker.db", number))
                while run.counted.handled <= number:
                    await asyncio.sleep(LOOK_S)
                await asyncio.sleep(AFTER_S)

            for number in range(WARM_UP):
                await one(number)
            idle = set(await _watched(lambda: asyncio.sleep(IDLE_S)))
            followed = [
                [callback for callback in await _watched(partial(one, number)) if callback not in idle]
                for number in range(WARM_UP, WARM_UP + FOLLOWED)
            ]
            assert not run.counted.troubles, run.counted.troubles
    return min(followed, key=lambda callbacks: sum(map(len, callbacks)))


async def _publish(file: Path, number: int) -> None:
    placed = OrderPlaced(
        order_id=f"order-{number}",
        customer_id="c-1",
        sku="tea",
        quantity=2,
        total=Decimal("9.80"),
        card="4242",
        address="Kiel",
    )
    clock = SystemClock()
    async with EmbeddedBroker(file, clock=clock) as broker:
        await broker.publish([to_record(placed, clock.now_ms())])


async def _watched(wait: Callable[[], Awaitable[None]]) -> Iterable[Callback]:
    """Return the calls of toolkit functions while `wait` runs, grouped by callback of the event loop. Resuming a
    coroutine does not count as a call."""
    callbacks: list[list[CodeType]] = [[]]
    known: list[FrameType] = []  # kept, because a new frame could get the id of a deleted one
    identities = set[int]()

    def called(frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code.co_qualname == "Handle._run":
            callbacks.append([])
        elif code.co_filename.startswith(ROOT) and id(frame) not in identities:
            identities.add(id(frame))
            known.append(frame)
            callbacks[-1].append(code)

    sys.setprofile(called)
    try:
        await wait()
    finally:
        sys.setprofile(None)
    return [tuple(callback) for callback in callbacks if callback]
