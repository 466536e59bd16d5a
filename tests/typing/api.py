"""Code that the checkers must accept, and the types they must see: only checked, never run."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, assert_type

from saga import (
    Avro,
    Breaker,
    BreakerOpen,
    Client,
    Event,
    LastGood,
    Later,
    Progress,
    Retry,
    Saga,
    SagaError,
    Service,
    event,
    limited,
    record,
    sensitive,
    upcast,
)
from saga.testing import World, a_saga, check_idempotent, crash_everywhere, faults, migrated, replay, simulate, trial
from services.inventory import inventory
from services.inventory.stock import Stock
from services.payment import payment, reserve
from services.payment.bank import Bank
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined, PaymentReserved
from tests.testing.baskets.events import BasketFilled, BasketFilledV1
from tests.typing.values import Cabin, free, take


@dataclass(frozen=True)
class Memory:
    seen: int = 0


async def from_outside(client: Client) -> None:
    within = timedelta(seconds=5)
    assert_type(await client.outcome("o-1", within=within), Event | None)
    assert_type(await client.outcome("o-1", OrderConfirmed, within=within), OrderConfirmed | None)
    both = await client.outcome("o-1", OrderConfirmed, OrderCancelled, within=within)
    assert_type(both, OrderConfirmed | OrderCancelled | None)
    async for one in client.listen(OrderConfirmed, group="mailer"):
        assert_type(one, OrderConfirmed)
    async with client.listen(OrderConfirmed, OrderCancelled, begin="beginning") as events:
        async for each in events:
            assert_type(each, OrderConfirmed | OrderCancelled)


def events_as_classes() -> None:
    @record
    class Address:
        street: Annotated[str, sensitive]
        country: str = "CH"

    @record(aliases=("Way",))
    class Route:
        stops: tuple[Address, ...] = ()

    @event(topic="gifts", key="order_id", owner="plain", consumed_by="external")
    class GiftSent(Event):
        order_id: str
        value: Annotated[Decimal, Avro("decimal(9,2)")]
        to: Address
        route: Route = Route()

    gift = GiftSent(order_id="o-1", value=Decimal(3), to=Address(street="High Street"))
    assert_type(gift, GiftSent)
    assert_type(gift.value, Decimal)
    assert_type(gift.route.stops, tuple[Address, ...])

    service = Service("gifts")

    @service.handler
    async def give(order: OrderPlaced) -> GiftSent:
        return GiftSent(order_id=order.order_id, value=Decimal(3), to=Address(street=order.address))

    _ = give


plain = Service("plain")
stateful = Service("stateful", state=Memory, retention=timedelta(days=7))


@dataclass(frozen=True)
class MemoryV1:
    seen: int = 0


@stateful.migrate(1)
def remembered(old: MemoryV1) -> Memory:
    return Memory()


@upcast(BasketFilled, 1)
def in_tenths(old: BasketFilledV1) -> BasketFilled:
    return BasketFilled(basket_id=old.basket_id, amount=old.amount * 10)


assert_type(in_tenths(BasketFilledV1(basket_id="b", amount=1)), BasketFilled)
assert_type(plain, Service[None])
assert_type(stateful, Service[Memory])
every: tuple[Service[None] | Service[Memory], ...] = (payment, stateful)


@plain.resource
async def bank() -> AsyncGenerator[Bank]:
    yield Bank()


@plain.resource(
    timeout_s=1,
    expected_errors=(KeyError, BreakerOpen),
    breaker=Breaker(open_s=5),
    at_once_max=3,
    rate_per_s=0.5,
    retry=Retry(),
)
async def stock() -> AsyncGenerator[Stock]:
    yield Stock(left=1)


plain.document(Cabin, "cabins", expected_errors=(KeyError,))


async def steps(bank: Bank, saga: Saga) -> None:
    assert_type(saga.state, None)
    assert_type(await saga.step(bank.reserve, saga.idempotency_key("charge"), "4242", Decimal(1)), str)
    assert_type(await saga.step(bank.reserve, saga.idempotency_key("charge"), card="4242", amount=Decimal(1)), str)
    await saga.step(bank.release, saga.idempotency_key("release"), "c-1")
    assert_type(saga.elapsed, timedelta)
    assert_type(saga.principal, str | None)
    assert_type(saga.version, int)
    saga.on_abort(bank.release, saga.idempotency_key("release"), charge_id="c-1")
    saga.on_abort(give_back, saga, "1A")


async def give_back(saga: Saga, seat: str) -> None:
    await saga.update(Cabin, "LH1", free, seat)


class Statements:
    @limited(timeout_s=2, at_once_max=1, rate_per_s=0.5)
    async def statement(self, account: str, *, pages: int = 1) -> tuple[str, ...]:
        return (account,) * pages


@limited(timeout_s=30)
async def send_mail(to: str) -> None: ...


class Rates:
    async def by_table(self, currency: str) -> int:
        return 1

    @limited(fallback=by_table)
    async def rate(self, currency: str) -> int:
        return 2

    @limited(fallback=LastGood(for_s=60))
    async def last(self, currency: str) -> int:
        return 3


async def fallbacks(rates: Rates, saga: Saga) -> None:
    assert_type(await saga.step(rates.rate, "EUR"), int)
    assert_type(await saga.step(rates.last, "EUR"), int)


async def limited_calls(statements: Statements, saga: Saga) -> None:
    assert_type(await saga.step(statements.statement, "4242", pages=2), tuple[str, ...])
    assert_type(await statements.statement("4242"), tuple[str, ...])
    await saga.step(send_mail, to="ada@example.com")
    saga.on_abort(send_mail, "ada@example.com")


async def headers(url: str) -> Mapping[str, tuple[int | None, ...]]:
    return {url: (1, None)}


async def documents(saga: Saga) -> None:
    assert_type(await saga.step(headers, "url"), Mapping[str, tuple[int | None, ...]])
    assert_type(await saga.update(Cabin, "LH1", take, "Ada"), str)
    await saga.update(Stock, "tea", Stock.set_aside, 3)
    await saga.update(Stock, "tea", Stock.set_aside, quantity=3)
    await saga.update(Cabin, "LH1", free, "1A")
    assert_type(await saga.read(Cabin, "LH1"), Cabin | None)
    assert_type(await saga.flag("new_cabin"), bool)


async def state(saga: Saga[Memory]) -> None:
    assert_type(saga.state, Memory)
    saga.state = Memory(seen=saga.state.seen + 1)


# Every shape of return annotation.
@plain.handler
async def one(order: OrderPlaced) -> PaymentReserved | PaymentDeclined | None:
    return None


@plain.handler(repeats=PaymentReserved)
async def many(reserved: PaymentReserved) -> list[PaymentDeclined]:
    return [PaymentDeclined(order_id=reserved.order_id, reason="")]


@plain.handler(
    retry=Retry(never=(KeyError,), by={OSError: Retry(attempts_max=3)}), timeout_s=1, low_priority=True, version=2
)
async def both(declined: PaymentDeclined | OrderConfirmed) -> tuple[PaymentDeclined, OrderConfirmed]:
    return PaymentDeclined(order_id="", reason=""), OrderConfirmed(order_id="")


@plain.handler
async def maybe(declined: PaymentDeclined, bank: Bank) -> tuple[PaymentDeclined | None, OrderConfirmed] | None:
    return None


@stateful.handler
async def silent(order: OrderPlaced, declined: PaymentDeclined, saga: Saga[Memory]) -> None: ...


@stateful.handler
async def waits(
    reserved: PaymentReserved, declined: PaymentDeclined | None, saga: Saga[Memory]
) -> (
    PaymentReserved
    | Later[PaymentDeclined]
    | tuple[PaymentDeclined, Later[PaymentDeclined]]
    | tuple[PaymentDeclined, Later]
    | Later
):
    match saga.state.seen:
        case 0:
            return Later(until=PaymentDeclined, within=timedelta(days=1))
        case 1:
            return PaymentDeclined(order_id="", reason=""), Later(until=PaymentDeclined, within=timedelta(days=1))
        case 2:
            return PaymentDeclined(order_id="", reason=""), Later(after=timedelta(days=1))
        case 3:
            return Later()
        case _:
            return PaymentReserved(order_id="", charge_id="", amount=Decimal(0))


assert_type(Later(until=PaymentDeclined, within=timedelta(days=1)), Later[PaymentDeclined])
assert_type(Later(after=timedelta(days=1)), Later[None])


# A compensation of a handler that may run many times undoes one result at a time: no list.
@plain.compensation(many)
async def undo(cancelled: OrderCancelled, one: PaymentDeclined, bank: Bank, saga: Saga) -> PaymentReserved | None:
    return None


# What its original took may be handed to it, too; absent of what was done before a release named it.
@plain.compensation(one, version=2)
async def undo_one(
    cancelled: OrderCancelled, reserved: PaymentReserved, order: OrderPlaced | None, saga: Saga
) -> None: ...


@plain.deadline(within=timedelta(minutes=15), unless=(PaymentReserved, PaymentDeclined))
async def expire(placed: OrderPlaced, bank: Bank, saga: Saga) -> OrderCancelled:
    return OrderCancelled(order_id=placed.order_id, reason="")


# Decorators leave the function as it is.
async def by_hand(order: OrderPlaced, bank: Bank) -> None:
    assert_type(await reserve(order, bank, a_saga()), PaymentReserved | PaymentDeclined)
    assert_type(await reserve(order=order, bank=bank, saga=a_saga()), PaymentReserved | PaymentDeclined)
    assert_type(await many(PaymentReserved(order_id="", charge_id="", amount=Decimal(1))), list[PaymentDeclined])
    assert_type(a_saga(), Saga[None])
    assert_type(a_saga(documents={"tea": Stock(left=1), "LH1": Cabin()}), Saga[None])
    assert_type(a_saga(state=Memory()), Saga[Memory])
    assert_type(migrated(stateful, MemoryV1()), Memory)
    assert_type(remembered(MemoryV1()), Memory)
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


async def by_check(order: OrderPlaced, bank: Bank) -> None:
    assert_type(await check_idempotent(payment, order, use=[bank]), None)
    await check_idempotent(stateful)
    await check_idempotent(payment, order, real=[Bank])
    await check_idempotent(inventory, documents={"tea": Stock(left=1)})


def by_real_world(world: World) -> None:
    world.start(payment, real=[Bank])


def by_world(world: World, order: OrderPlaced, bank: Bank) -> None:
    assert_type(world.start(payment, plain, stateful, inventory, use=[bank], documents={"tea": Stock(left=1)}), None)
    world.publish(order, OrderCancelled(order_id="", reason=""))
    world.always("nobody is charged twice", lambda: len(bank.taken) <= 1)
    world.run_for(timedelta(days=365))
    assert_type(world.run_until_quiet(), None)
    assert_type(world.outcome("order-17"), type[Event] | None)
    assert world.outcome("order-17") in (OrderConfirmed, OrderCancelled)
    assert world.outcome("order-17") is OrderConfirmed
    assert_type(world.read(inventory, Stock, "tea"), Stock | None)
    assert_type(world.read(stateful, Memory, "tea"), Memory | None)
    world.use_connector()
    world.write(plain, "LH1", Cabin(seats=("1A",)), expires=timedelta(hours=1))
    world.remove(plain, Cabin, "LH1")
    assert_type(world.save_schedule(), Path)


# Decorators leave the test as it is, with whatever other fixtures it takes.
@simulate(seeds=20)
def calm(world: World) -> None: ...


@simulate(
    seeds=20,
    faults=faults.everything()
    | faults.of("crash", "lost answer", rate=0.2, target="payment.reserve")
    | faults.of("partition", window=(timedelta(0), timedelta(minutes=1))),
)
def stormy(world: World, bank: Bank) -> None: ...


@crash_everywhere
def everywhere(world: World) -> None: ...


@crash_everywhere(pairs=True)
def twice(world: World, bank: Bank, *, orders: int = 1) -> None: ...


@replay(seed=1, faults=["payment-1#12 crash after"], without=[0, 2])
def kept(world: World) -> None:
    calm(world)
    twice(world, Bank(), orders=2)


same: Callable[[World, Bank], None] = stormy
several: list[Callable[[World], None]] = [calm, everywhere, kept]
