"""What the checkers must accept, and the types they must see: only checked, never run."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import assert_type

from saga import Client, Event, Progress, Retry, Saga, SagaError, Service
from saga.testing import a_saga, trial
from services.inventory.stock import Stock
from services.payment import payment, reserve
from services.payment.bank import Bank
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined, PaymentReserved
from tests.typing.values import Cabin, free, take


@dataclass(frozen=True)
class Memory:
    seen: int = 0


plain = Service("plain")
stateful = Service("stateful", state=Memory, memory=timedelta(days=7))
assert_type(plain, Service[None])
assert_type(stateful, Service[Memory])
every: tuple[Service[None] | Service[Memory], ...] = (payment, stateful)


@plain.resource
async def bank() -> AsyncGenerator[Bank]:
    yield Bank()


@plain.resource(timeout_s=1, answers=(KeyError,))
async def stock() -> AsyncGenerator[Stock]:
    yield Stock(left=1)


plain.document(Cabin, "cabins", answers=(KeyError,))


async def steps(bank: Bank, saga: Saga) -> None:
    assert_type(saga.state, None)
    assert_type(await saga.step(bank.reserve, saga.key("charge"), "4242", Decimal(1)), str)
    assert_type(await saga.step(bank.reserve, saga.key("charge"), card="4242", amount=Decimal(1)), str)
    await saga.step(bank.release, saga.key("release"), "c-1")


async def headers(url: str) -> Mapping[str, tuple[int | None, ...]]:
    return {url: (1, None)}


async def documents(saga: Saga) -> None:
    assert_type(await saga.step(headers, "url"), Mapping[str, tuple[int | None, ...]])
    assert_type(await saga.update(Cabin, "LH1", take, "Ada"), str)
    await saga.update(Stock, "tea", Stock.set_aside, 3)
    await saga.update(Stock, "tea", Stock.set_aside, quantity=3)
    await saga.update(Cabin, "LH1", free, "1A")
    assert_type(await saga.read(Cabin, "LH1"), Cabin | None)


async def state(saga: Saga[Memory]) -> None:
    assert_type(saga.state, Memory)
    saga.state = Memory(seen=saga.state.seen + 1)


# Every shape of return annotation.
@plain.handler
async def one(order: OrderPlaced) -> PaymentReserved | PaymentDeclined | None:
    return None


@plain.handler(many=True)
async def many(reserved: PaymentReserved) -> list[PaymentDeclined]:
    return [PaymentDeclined(order_id=reserved.order_id, reason="")]


@plain.handler(retry=Retry(never=(KeyError,)), timeout_s=1)
async def both(declined: PaymentDeclined | OrderConfirmed) -> tuple[PaymentDeclined, OrderConfirmed]:
    return PaymentDeclined(order_id="", reason=""), OrderConfirmed(order_id="")


@plain.handler
async def maybe(declined: PaymentDeclined, bank: Bank) -> tuple[PaymentDeclined | None, OrderConfirmed] | None:
    return None


@stateful.handler
async def silent(order: OrderPlaced, declined: PaymentDeclined, saga: Saga[Memory]) -> None: ...


# A compensation of a handler that may run many times undoes one result at a time: no list.
@plain.compensation(many)
async def undo(cancelled: OrderCancelled, one: PaymentDeclined, bank: Bank, saga: Saga) -> PaymentReserved | None:
    return None


# Decorators leave the function as it is.
async def by_hand(order: OrderPlaced, bank: Bank) -> None:
    assert_type(await reserve(order, bank, a_saga()), PaymentReserved | PaymentDeclined)
    assert_type(await reserve(order=order, bank=bank, saga=a_saga()), PaymentReserved | PaymentDeclined)
    assert_type(await many(PaymentReserved(order_id="", charge_id="", amount=Decimal(1))), list[PaymentDeclined])
    assert_type(a_saga(), Saga[None])
    assert_type(a_saga(documents={"tea": Stock(left=1), "LH1": Cabin()}), Saga[None])
    assert_type(a_saga(state=Memory()), Saga[Memory])
    await silent(order, PaymentDeclined(order_id="", reason=""), a_saga(state=Memory()))


async def outside(order: OrderPlaced, progress: Progress[Memory]) -> None:
    assert_type(progress.state, Memory)
    try:
        async with Client() as client:
            assert_type(client, Client)
            await client.publish(order, order)
    except SagaError as why:
        assert_type(why, SagaError)


events: list[type[Event]] = [OrderPlaced, OrderCancelled]


async def by_trial(order: OrderPlaced, bank: Bank) -> None:
    result = await trial(stateful, order, use=[bank])
    assert_type(result.state, Memory)
    assert_type(result.progress, Progress[Memory])
    assert_type((await trial(plain, order)).state, None)
    assert_type(result.emitted, Sequence[Event])
    assert_type(result.read(Stock, "tea"), Stock | None)
