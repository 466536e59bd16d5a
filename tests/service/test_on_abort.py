"""Abort actions: how a handler registers the undoing of its steps, should it never finish."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import wraps
from types import SimpleNamespace
from typing import Annotated, Any, ParamSpec, TypeVar

import pytest
from msgspec.structs import replace

from saga import Later, Retry, Saga, Service, limited, sensitive
from saga.engine.execution import abort_actions
from saga.testing import Trial, a_saga, trial
from services.payment.events import OrderCancelled, OrderPlaced, PaymentReleased, PaymentReserved

P = ParamSpec("P")
T = TypeVar("T")

PLACED = OrderPlaced(
    order_id="o-1", customer_id="c", sku="tea", quantity=3, total=Decimal(9), card="4242", address="here"
)
CANCELLED = OrderCancelled(order_id="o-1", reason="no")
RESERVED = PaymentReserved(order_id="o-1", charge_id="ch", amount=Decimal(9))


class Blocked(Exception):
    """The card is for a person."""


class Refused(Exception):
    """The hotel says no."""


def in_thread(blocks: Callable[P, T]) -> Callable[P, Awaitable[T]]:
    """Make an `async def` of a function of a driver that blocks."""

    @wraps(blocks)
    async def inner(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(blocks, *args, **kwargs)

    return inner


@dataclass
class Hotel:
    """Hotel whose rooms are held, and whose deposits may be blocked."""

    is_blocked: bool = True
    refuses: bool = False
    fails: int = 0
    calls: list[str] = field(default_factory=list)

    async def hold(self, key: str, room: str) -> str:
        self.calls.append(f"hold {room}")
        return room

    async def deposit(self, key: str, amount: Decimal) -> str:
        self.calls.append(f"deposit {amount}")
        if self.is_blocked:
            raise Blocked
        return "d-1"

    async def free(self, key: str, room: str, *, nights: int = 1) -> None:
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no answer")
        if self.refuses:
            raise Refused("not yours")
        self.calls.append(f"free {room} for {nights} with {key[-2:]}")

    def ring(self, room: str) -> str:
        self.calls.append("ring")
        return room

    @in_thread
    def clean(self, room: str) -> None:
        self.calls.append(f"clean {room}")

    async def unannotated(self, room: str):  # type: ignore[no-untyped-def]
        """Has no return annotation."""


async def hotel() -> AsyncIterator[Hotel]:
    """Opened by no test: each hands over its own."""
    yield Hotel()


@dataclass(frozen=True)
class Stock:
    left: int = 5

    def take(self) -> "Stock":
        return Stock(self.left - 1)

    def give(self) -> "Stock":
        return Stock(self.left + 1)


async def give_back(saga: Saga, sku: str) -> None:
    await saga.update(Stock, sku, Stock.give)


@limited(at_once_max=1)
async def give_back_one_by_one(saga: Saga, sku: str) -> None:
    await saga.update(Stock, sku, Stock.give)


Handler = Callable[..., Any]


def service_of(handler: Handler, *, compensated: bool = True) -> Service[Any]:
    payment = Service("payment")
    payment.resource(expected_errors=(Refused,))(hotel)
    payment.document(Stock, "stock")
    payment.handler(retry=Retry(attempts_max=2, never=(Blocked,)))(handler)
    if compensated:

        async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
            return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

        payment.compensation(handler)(release)
    return payment


async def reserve(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
    room = await saga.step(hotel.hold, saga.idempotency_key("room"), "12")
    saga.on_abort(hotel.free, saga.idempotency_key("free"), room, nights=order.quantity)
    await saga.step(hotel.deposit, saga.idempotency_key("deposit"), order.total)
    return RESERVED


def last(done: Trial[Any]) -> tuple[str, str, str]:
    t = done.progress.transitions[-1]
    return t.handler, t.outcome, str(t.reason)


async def test_a_dead_original_is_undone_and_what_is_unknown_is_left_to_an_operator() -> None:
    there = Hotel()
    done = await trial(service_of(reserve), PLACED, CANCELLED, use=[there])
    assert [call.rsplit(" with")[0] for call in there.calls] == ["hold 12", "deposit 9.00", "free 12 for 3"]
    handler, outcome, reason = last(done)
    assert (handler, outcome) == ("release", "compensated")
    assert reason.startswith(
        "reserve can never finish: it is a dead letter; the calls given to on_abort were made instead; its"
    )


async def test_a_handler_that_comes_to_its_end_is_undone_by_its_compensation_alone() -> None:
    there = Hotel(is_blocked=False)
    done = await trial(service_of(reserve), PLACED, CANCELLED, use=[there])
    assert there.calls == ["hold 12", "deposit 9.00"]
    assert done.emitted == [RESERVED, PaymentReleased(order_id="o-1", charge_id="ch")]


async def test_an_abort_action_is_retried_until_it_succeeds() -> None:
    there = Hotel(fails=5)
    await trial(service_of(reserve), PLACED, CANCELLED, use=[there])
    assert there.calls[-1].startswith("free 12 for 3")


async def test_a_function_that_blocks_may_be_wrapped_in_an_async_def() -> None:
    async def book(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        saga.on_abort(hotel.clean, "12")
        await saga.step(hotel.deposit, saga.idempotency_key("deposit"), order.total)
        return RESERVED

    there = Hotel()
    await trial(service_of(book), PLACED, CANCELLED, use=[there])
    assert there.calls == ["deposit 9.00", "clean 12"]


async def test_a_refusal_is_shown_to_a_person() -> None:
    there = Hotel(refuses=True)
    done = await trial(service_of(reserve), PLACED, CANCELLED, use=[there])
    assert "have to be corrected by hand" in last(done)[2]
    assert there.calls == ["hold 12", "deposit 9.00"]


async def test_abort_actions_run_in_reverse_order_and_may_update_documents() -> None:
    async def book(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        await saga.update(Stock, order.sku, Stock.take)
        saga.on_abort(give_back, saga, order.sku)
        room = await saga.step(hotel.hold, saga.idempotency_key("room"), "12")
        saga.on_abort(hotel.free, saga.idempotency_key("free"), room)
        await saga.step(hotel.deposit, saga.idempotency_key("deposit"), order.total)
        return RESERVED

    there = Hotel()
    done = await trial(service_of(book), PLACED, CANCELLED, use=[there], documents={"tea": Stock()})
    stock = done.read(Stock, "tea")
    assert stock == Stock(left=5)
    assert there.calls[-1].startswith("free 12 for 1")


async def test_turns_that_are_over_are_undone_too() -> None:
    async def slowly(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved | Later:
        room = await saga.step(hotel.hold, saga.idempotency_key("room"), f"{saga.elapsed.days}")
        saga.on_abort(hotel.free, saga.idempotency_key("free"), room)
        return RESERVED if saga.elapsed >= timedelta(days=3) else Later(after=timedelta(days=1))

    there = Hotel()
    done = await trial(service_of(slowly), PLACED, timedelta(days=1), CANCELLED, timedelta(days=9), use=[there])
    assert [call[:6] for call in there.calls] == ["hold 0", "hold 1", "free 1", "free 0"]
    assert last(done)[2] == "slowly can never finish: it never continues; the calls given to on_abort were made instead"


async def test_an_abort_action_that_could_not_be_found_again_is_refused_on_registration() -> None:
    async def closure(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        async def back() -> None: ...

        saga.on_abort(back)
        return RESERVED

    async def of_another_resource(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        saga.on_abort(Hotel().free, "key", "12")
        return RESERVED

    async def not_plain(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        saga.on_abort(hotel.free, "key", object())  # type: ignore[arg-type]
        return RESERVED

    async def unread(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        saga.on_abort(hotel.unannotated, "12")
        return RESERVED

    async def not_async(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        saga.on_abort(hotel.ring, "12")  # type: ignore[arg-type]
        return RESERVED

    async def limited_for_nothing(order: OrderPlaced, hotel: Hotel, saga: Saga) -> PaymentReserved:
        saga.on_abort(give_back_one_by_one, saga, order.sku)
        return RESERVED

    for handler, words in (
        (limited_for_nothing, "takes the saga, so it is no step, and its limits would not hold: limit what it calls"),
        (closure, "back could not be found again after a crash"),
        (of_another_resource, "free could not be found again after a crash"),
        (not_plain, "cannot be recorded"),
        (unread, "has no return annotation"),
        (not_async, "hotel.ring is no `async def`: make it one, or wrap it in one"),
    ):
        done = await trial(service_of(handler), PLACED, use=[Hotel()])
        assert done.progress.transitions[-1].outcome == "dead"
        assert words in str(done.progress.transitions[-1].reason)


async def test_without_a_compensation_there_is_nothing_to_take_it_back() -> None:
    done = await trial(service_of(reserve, compensated=False), PLACED, use=[Hotel()])
    assert "has no compensation" in str(done.progress.transitions[-1].reason)


async def test_a_plain_call_takes_nothing_back() -> None:
    there = Hotel(is_blocked=False)
    assert await reserve(PLACED, there, a_saga()) == RESERVED
    assert there.calls == ["hold 12", "deposit 9"]


def knowing(handler: Handler) -> Any:
    """A service as far as calls are looked up in it."""
    handlers = {"reserve": SimpleNamespace(function=handler)}
    return SimpleNamespace(declared=SimpleNamespace(resources=()), handlers=handlers, resources={})


async def forget_cards(key: str, *cards: Annotated[str, sensitive], **pins: Annotated[str, sensitive]) -> None: ...


def test_star_arguments_of_an_abort_action_are_recorded_as_sensitive_and_passed_unchanged() -> None:
    service = knowing(reserve)
    saga: Any = object()
    recorded = abort_actions.record_action(service, saga, forget_cards, ("k", "4111", "4222"), {"pin": "1234"})
    assert [bytes(value) for value in recorded.args] == [b'"k"', b'{"_sensitive":"4111"}', b'{"_sensitive":"4222"}']
    assert {name: bytes(value) for name, value in recorded.named.items()} == {"pin": b'{"_sensitive":"1234"}'}
    assert abort_actions.find_call(service, saga, recorded) == (forget_cards, ["k", "4111", "4222"], {"pin": "1234"})


def test_a_function_of_another_module_is_another_one() -> None:
    service = knowing(reserve)
    saga: Any = object()
    recorded = abort_actions.record_action(service, saga, forget_cards, ("k",), {})
    assert recorded.call == f"{__name__}:forget_cards"
    for name in ("elsewhere:forget_cards", f"{__name__}:knowing", f"{__name__}:Hotel", "os:system"):
        with pytest.raises(abort_actions.NotFound):
            abort_actions.find_call(service, saga, replace(recorded, call=name))
