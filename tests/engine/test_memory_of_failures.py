"""Failed attempts leave nothing in the memory of a worker.

The garbage collector does not track most values of the engine (`gc=False`). A cycle through one of them would never be
freed, and an error holds all frames through which it was raised.
"""

import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType

import pytest

from saga import Permanent, Retry, Saga, Service
from saga.engine.execution.saga_context import SagaContext
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import an_order, at_work, workplace

SAGAS = 20
SOME_IN_PLACE = Retry(attempts_max=4, delay_s_first=0.1, delay_s_max=0.2, in_place_s=0.15)
"""The first attempts are made in place, the others after the message was parked."""


async def refuse() -> str:
    raise Permanent("the card is unknown")


async def fail() -> str:
    raise ConnectionError("no answer from the bank")


@pytest.mark.parametrize("call", [refuse, fail])
async def test_failed_attempts_leave_nothing_in_memory(tmp_path: Path, call: Callable[[], Awaitable[str]]) -> None:
    payment = Service("payment", retry=SOME_IN_PLACE)

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id=await saga.step(call), amount=order.total)

    before = count_left()
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(*(an_order(f"order-{number}") for number in range(SAGAS)))
        await place.until(lambda: len(place.reported_dead_letters()) == SAGAS)
        await place.at_rest(payment)
        remaining = count_left() - before
    assert remaining < SAGAS, "a few may belong to what runs now; one for each failure would be a leak"


def count_left() -> int:
    """Number of objects that failures have left in this process; tests that ran before may have kept some."""
    gc.collect()
    return sum(isinstance(each, (TracebackType, SagaContext)) for each in gc.get_objects())
