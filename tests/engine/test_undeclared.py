"""A progress that another version of the service has written, with more to do than this one declares."""

from pathlib import Path

from saga import Service
from saga.telemetry.events import Handled, Stuck
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, an_order, at_work, workplace

newer = Service("payment")


@newer.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)


@newer.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...


older = Service("payment")
"""Before it could reserve."""


@older.handler
async def note(order: OrderPlaced) -> None: ...


@older.handler
async def close(cancelled: OrderCancelled) -> None: ...


without_undo = Service("payment")
without_undo.handler(reserve)


@without_undo.handler
async def close_too(cancelled: OrderCancelled) -> None: ...


async def test_work_of_an_undeclared_handler_waits_for_a_release_that_declares_it(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        async with at_work(place, newer):
            await place.publish(an_order())
            await place.at_rest(newer)
        await place.publish(OrderCancelled(order_id=SAGA, reason="changed his mind"), source="order")
        for version, missing in ((older, "handler reserve"), (without_undo, "compensation of reserve")):
            place.moments.clear()
            await place.publish(an_order(f"after {missing}"))
            async with at_work(place, version):
                await place.until(lambda: bool(place.reported(Stuck)) and bool(place.reported(Handled)))
            assert {handled.saga for handled in place.reported(Handled)} == {f"after {missing}"}
            (reported,) = {(stuck.saga, stuck.error) for stuck in place.reported(Stuck)}
            assert reported[0] == SAGA
            assert f"what this version of 'payment' does not declare: {missing}; deploy a version that" in reported[1]
        async with at_work(place, newer):
            await place.at_rest(newer)
        assert [entry.outcome for entry in await place.history(newer)] == ["handled", "compensated"]


async def test_parts_that_wait_for_a_handler_of_before_hold_nothing_up(tmp_path: Path) -> None:
    with_fan_in, without = Service("payment"), Service("payment")

    @with_fan_in.handler
    async def both(order: OrderPlaced, confirmed: OrderConfirmed) -> None: ...

    @with_fan_in.handler
    async def note_it(order: OrderPlaced) -> None: ...

    @without.handler
    async def close_it(cancelled: OrderCancelled) -> None: ...

    async with workplace(tmp_path) as place:
        async with at_work(place, with_fan_in):
            await place.publish(an_order())
            await place.at_rest(with_fan_in)
        await place.publish(OrderCancelled(order_id=SAGA, reason="changed his mind"), source="order")
        async with at_work(place, without):
            await place.at_rest(without)
        assert not place.reported(Stuck)
        assert [entry.handler for entry in await place.history(without)] == ["both", "note_it", "close_it"]
