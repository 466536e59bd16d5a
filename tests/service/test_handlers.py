"""Handlers declared by their signatures, and signatures that are refused."""

import sys
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import pytest
from typing_extensions import TypeAliasType

from saga import DeclarationError, Event, Later, Retry, Saga, Service
from saga.declarations.annotations import parse_shape
from saga.service import Parameter
from services.payment.bank import Bank
from services.payment.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentDeclined,
    PaymentReserved,
)
from tests.service import postponed_annotations
from tests.service.events import TripBooked


@dataclass(frozen=True)
class Account:
    owed: int = 0


@dataclass(frozen=True)
class Other:
    owed: int = 0


Ending: TypeAlias = OrderConfirmed | OrderCancelled
Named = TypeAliasType("Named", OrderPlaced | PaymentDeclined)
T = TypeVar("T")
U = TypeVar("U")
Maybe = TypeAliasType("Maybe", T | None, type_params=(T,))
Both = TypeAliasType("Both", tuple[U, Maybe[T]] | PaymentDeclined, type_params=(T, U))


def a_service() -> Service:
    """Payment, with a bank."""
    payment = Service("payment")

    @payment.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    return payment


def refusal(service: Service | Service[Account], handler: Callable[..., Awaitable[None]]) -> str:
    """Why the service refuses a handler; it is as it was before."""
    before = list(service.declared.handlers)
    with pytest.raises(DeclarationError) as refused:
        service.handler(handler)
    assert service.declared.handlers == before
    return str(refused.value)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="needs the type statement")
def test_a_type_statement_may_name_the_events_of_a_handler() -> None:
    names: dict[str, Any] = {"OrderPlaced": OrderPlaced, "PaymentDeclined": PaymentDeclined}
    exec("type Either = OrderPlaced | PaymentDeclined", names)

    async def began(event: Any) -> None: ...

    began.__annotations__["event"] = names["Either"]
    payment = a_service()
    payment.handler(began)
    assert payment.declared.handlers[0].parameters[0].events == (OrderPlaced, PaymentDeclined)


def test_a_handler_is_declared_by_its_signature() -> None:
    payment = a_service()

    @payment.handler(repeats=OrderPlaced, retry=Retry(attempts_max=3), timeout_s=5)
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved | PaymentDeclined | None:
        return None

    (handler,) = payment.declared.handlers
    assert (handler.service, handler.name, handler.function) == ("payment", "reserve", reserve)
    assert handler.parameters == (
        Parameter(name="order", role="event", events=(OrderPlaced,)),
        Parameter(name="bank", role="resource", gives=Bank),
        Parameter(name="saga", role="saga"),
    )
    assert handler.emits == (PaymentReserved, PaymentDeclined)
    assert (handler.repeats, handler.retry, handler.timeout_s, handler.undoes) == (
        (OrderPlaced,),
        Retry(attempts_max=3),
        5,
        None,
    )


def test_a_union_parameter_takes_any_of_its_events_also_by_another_name() -> None:
    payment = a_service()

    @payment.handler
    async def note_ending(end: Ending) -> None: ...

    @payment.handler
    async def began(event: "Named | PaymentReserved") -> None: ...

    assert payment.declared.handlers[0].parameters[0].events == (OrderConfirmed, OrderCancelled)
    assert payment.declared.handlers[1].parameters[0].events == (OrderPlaced, PaymentDeclined, PaymentReserved)


def test_an_alias_with_parameters_stands_for_its_type_with_the_arguments() -> None:
    payment = a_service()

    @payment.handler
    async def reserve(order: OrderPlaced, end: Maybe[Ending]) -> Both[Later[Ending], PaymentReserved]:
        return PaymentDeclined(order_id="", reason="")

    (handler,) = payment.declared.handlers
    assert [(p.events, p.optional) for p in handler.parameters] == [
        ((OrderPlaced,), False),
        ((OrderConfirmed, OrderCancelled), True),
    ]
    assert handler.shape == parse_shape(tuple[PaymentReserved, Later[Ending] | None] | PaymentDeclined, "here")


def test_order_and_kind_of_parameters_do_not_matter() -> None:
    payment = a_service()

    @payment.handler
    async def capture(saga: Saga, *, reserved: PaymentReserved, confirmed: OrderConfirmed) -> PaymentCaptured:
        return PaymentCaptured(order_id="", amount=reserved.amount)

    assert [p.role for p in payment.declared.handlers[0].parameters] == ["saga", "event", "event"]


def test_annotations_may_be_evaluated_late() -> None:
    assert [p.role for p in postponed_annotations.payment.declared.handlers[0].parameters] == [
        "event",
        "resource",
        "saga",
    ]


def test_fan_ins_may_share_the_event_of_a_handler() -> None:
    payment = a_service()

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved | None: ...

    @payment.handler
    async def both(order: OrderPlaced, reserved: PaymentReserved) -> None: ...

    @payment.handler
    async def again(order: OrderPlaced, reserved: PaymentReserved) -> None: ...

    @payment.handler
    async def take(reserved: PaymentReserved, order: OrderPlaced) -> None: ...

    @payment.handler
    async def reserved_alone(reserved: PaymentReserved) -> None: ...

    assert [h.name for h in payment.declared.handlers] == ["reserve", "both", "again", "take", "reserved_alone"]


def test_a_handler_may_do_without_the_state() -> None:
    dunning = Service("dunning", state=Account)

    @dunning.handler
    async def one(order: OrderPlaced, saga: Saga[Account]) -> None: ...

    @dunning.handler
    async def two(confirmed: OrderConfirmed, saga: Saga) -> None: ...

    assert [h.parameters[1].role for h in dunning.declared.handlers] == ["saga", "saga"]


def test_a_handler_that_is_not_async_is_refused() -> None:
    def confirm(order: OrderPlaced) -> None: ...

    async def stream(order: OrderPlaced) -> AsyncIterator[PaymentReserved]:
        yield PaymentReserved(order_id="", charge_id="", amount=order.total)

    with pytest.raises(DeclarationError, match=r"payment\.confirm is not async: write `async def confirm`"):
        a_service().handler(confirm)  # type: ignore[type-var] # the mistake
    with pytest.raises(DeclarationError, match=r"payment\.stream yields: a handler returns its events"):
        a_service().handler(stream)  # type: ignore[type-var] # the mistake


def test_a_parameter_that_cannot_be_given_by_name_is_refused() -> None:
    async def stars(order: OrderPlaced, *more: Bank) -> None: ...
    async def doubled(order: OrderPlaced, **more: Bank) -> None: ...
    async def position(order: OrderPlaced, /) -> None: ...
    async def default(order: OrderPlaced, bank: Bank = Bank()) -> None: ...  # noqa: B008 # never made twice

    assert "takes *more: name each parameter" in refusal(a_service(), stars)
    assert "takes **more: name each parameter" in refusal(a_service(), doubled)
    assert "takes order by position only" in refusal(a_service(), position)
    assert "parameter bank: a default is never used" in refusal(a_service(), default)


def test_a_signature_without_annotations_is_refused() -> None:
    async def bare(order) -> None: ...  # type: ignore[no-untyped-def] # the mistake
    async def silent(order: OrderPlaced): ...  # type: ignore[no-untyped-def] # the mistake

    assert "payment.bare, parameter order: annotate it" in refusal(a_service(), bare)
    assert "payment.silent has no return annotation: say what it emits" in refusal(a_service(), silent)


def test_an_annotation_that_names_what_is_not_there_is_refused() -> None:
    message = refusal(a_service(), postponed_annotations.lost)
    assert "the annotations of payment.lost cannot be read while its module is imported" in message
    assert "name 'Decimal' is not defined" in message
    assert "not under TYPE_CHECKING" in message


def test_a_handler_without_an_event_is_refused() -> None:
    async def idle(saga: Saga, bank: Bank) -> None: ...

    assert "payment.idle reacts to nothing" in refusal(a_service(), idle)


def test_a_parameter_that_nothing_gives_is_refused() -> None:
    class Branch(Bank): ...

    class Port(Protocol): ...

    async def missing(order: OrderPlaced, bank: Bank) -> None: ...
    async def special(order: OrderPlaced, branch: Branch) -> None: ...
    async def perhaps(order: OrderPlaced, bank: Bank | None) -> None: ...
    async def port(order: OrderPlaced, bank: Port) -> None: ...
    async def number(order: OrderPlaced, rate: int) -> None: ...
    async def several(order: OrderPlaced, banks: list[Bank]) -> None: ...

    message = refusal(Service("order"), missing)
    assert "order.missing, parameter bank: nothing gives a Bank" in message
    assert "Declare it above this function" in message
    assert "@order.resource" in message
    assert "nothing gives a Branch; bank gives Bank: annotate it so" in refusal(a_service(), special)
    assert "nothing gives a Bank | None; bank gives Bank: annotate it so" in refusal(a_service(), perhaps)
    assert "nothing gives a Port: it is no event" in refusal(a_service(), port)
    assert "nothing gives a int: it is no event" in refusal(a_service(), number)
    assert "nothing gives a list[Bank]: it is no event" in refusal(a_service(), several)


def test_an_event_parameter_that_is_more_than_events_is_refused() -> None:
    async def mixed(order: OrderPlaced | Bank) -> None: ...
    async def several(orders: list[OrderPlaced]) -> None: ...
    async def anything(event: Event) -> None: ...
    async def perhaps(order: OrderPlaced, saga: Saga | None) -> None: ...

    assert "OrderPlaced | Bank mixes events with what is none" in refusal(a_service(), mixed)
    assert "takes list[OrderPlaced], but is given one event at a time" in refusal(a_service(), several)
    assert "would take any Event; name the events" in refusal(a_service(), anything)
    assert "it is Saga | None, but a saga is always there" in refusal(a_service(), perhaps)


def test_an_event_without_contract_is_refused() -> None:
    class ByHand(Event): ...

    async def take(event: ByHand) -> None: ...
    async def give(order: OrderPlaced) -> ByHand | None: ...

    assert "payment.take, parameter event: " in (message := refusal(a_service(), take))
    assert "ByHand has no contract" in message
    with pytest.raises(DeclarationError, match=r"payment\.give returns ByHand: .*has no contract"):
        a_service().handler(give)


def test_one_event_in_two_parameters_is_refused() -> None:
    async def twice(one: OrderPlaced | OrderConfirmed, two: OrderConfirmed | OrderCancelled) -> None: ...

    assert "payment.twice takes OrderConfirmed in one and in two" in refusal(a_service(), twice)


def test_the_saga_in_two_parameters_is_refused() -> None:
    async def twice(order: OrderPlaced, saga: Saga, again: Saga) -> None: ...

    assert "payment.twice has two parameters that are the saga" in refusal(a_service(), twice)


def test_the_saga_of_another_state_is_refused() -> None:
    async def remind(order: OrderPlaced, saga: Saga[Other]) -> None: ...

    message = refusal(Service("dunning", state=Account), remind)
    assert "it is Saga[Other], but the state of 'dunning' is Account: write Saga[Account]" in message
    message = refusal(Service("dunning"), remind)
    assert "the state of 'dunning' is none: write Saga, or Service('dunning', state=...)" in message


def test_an_event_handled_alone_by_two_handlers_is_refused() -> None:
    payment = a_service()

    @payment.handler
    async def first(end: OrderConfirmed | OrderCancelled) -> None: ...

    async def second(cancelled: OrderCancelled) -> None: ...

    assert refusal(payment, second) == (
        "'payment' handles OrderCancelled twice: in first and in second. Keep one, or split the service"
    )


def test_two_functions_of_one_name_are_refused() -> None:
    payment = a_service()

    @payment.handler
    async def take(order: OrderPlaced) -> None: ...

    async def again(confirmed: OrderConfirmed) -> None: ...

    again.__name__ = "take"
    assert "'payment' has two functions called take" in refusal(payment, again)


def test_an_event_of_another_owner_is_refused_unless_others_may_emit_it() -> None:
    payment = a_service()

    async def decide(order: OrderPlaced) -> OrderCancelled | None: ...

    with pytest.raises(DeclarationError, match=r"decide returns OrderCancelled, which only its owner 'order' may say"):
        payment.handler(decide)

    @payment.handler
    async def order_again(cancelled: OrderCancelled) -> OrderPlaced | None: ...

    assert payment.declared.handlers[0].emits == (OrderPlaced,)


def test_events_of_two_kinds_of_saga_are_refused() -> None:
    payment = a_service()

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved | None: ...

    async def trip(booked: TripBooked) -> None: ...
    async def book(confirmed: OrderConfirmed) -> TripBooked | None: ...

    assert "TripBooked, of sagas known by 'trip_id', but OrderPlaced is of sagas known by 'order_id'" in refusal(
        payment, trip
    )
    with pytest.raises(DeclarationError, match="a service follows one kind of saga"):
        payment.handler(book)


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), True, "5"])
def test_a_timeout_that_is_no_time_is_refused(timeout_s: float) -> None:
    async def reserve(order: OrderPlaced) -> None: ...

    with pytest.raises(DeclarationError, match=r"payment\.reserve: timeout_s=.* is no time"):
        a_service().handler(timeout_s=timeout_s)(reserve)


def test_a_retry_that_is_none_is_refused() -> None:
    async def reserve(order: OrderPlaced) -> None: ...

    with pytest.raises(DeclarationError, match=r"retry=3: give a Retry"):
        a_service().handler(retry=3)(reserve)  # type: ignore[call-overload] # the mistake


@pytest.mark.parametrize(
    "returns",
    [str, list[int], Sequence[object], Event, list, dict[str, OrderPlaced], typing.List, typing.Sequence],  # noqa: UP006
)
def test_a_return_annotation_that_is_no_event_is_refused(returns: type) -> None:
    async def reserve(order: OrderPlaced) -> None: ...

    reserve.__annotations__["return"] = returns
    assert "which says of no event that it may be emitted" in refusal(a_service(), reserve)


def test_the_event_that_starts_the_saga_cannot_repeat_beside_others() -> None:
    async def both(order: OrderPlaced, reserved: PaymentReserved, bank: Bank) -> None: ...
    async def either(event: OrderPlaced | PaymentDeclined, reserved: PaymentReserved) -> None: ...
    async def alone(order: OrderPlaced) -> None: ...

    payment = a_service()
    with pytest.raises(DeclarationError) as refused:
        payment.handler(repeats=OrderPlaced)(both)
    assert str(refused.value) == (
        "payment.both has repeats=OrderPlaced, but that event starts the saga and comes once: name the one that may "
        "come several times (repeats=PaymentReserved), or leave out repeats="
    )
    assert payment.declared.handlers == []
    payment.handler(repeats=OrderPlaced | PaymentDeclined)(either)
    payment.handler(repeats=OrderPlaced)(alone)
    payment.handler(repeats=PaymentReserved)(both)
    assert [h.name for h in payment.declared.handlers] == ["either", "alone", "both"]


def test_the_event_that_repeats_comes_first_whatever_the_order_of_parameters() -> None:
    async def both(order: OrderPlaced, reserved: PaymentReserved, bank: Bank) -> None: ...

    payment = a_service()
    payment.handler(repeats=PaymentReserved)(both)
    [handler] = payment.declared.handlers
    assert (handler.repeats, handler.needed_events) == ((PaymentReserved,), [(PaymentReserved,), (OrderPlaced,)])
    assert [parameter.name for parameter in handler.parameters] == ["order", "reserved", "bank"]


def test_an_event_that_no_parameter_takes_cannot_repeat() -> None:
    async def either(event: OrderPlaced | PaymentDeclined, reserved: PaymentReserved) -> None: ...

    with pytest.raises(DeclarationError) as refused:
        a_service().handler(repeats=PaymentDeclined)(either)
    assert str(refused.value) == (
        "payment.either: repeats=PaymentDeclined: no parameter is annotated with that: name the event that may come "
        "several times in a saga as its parameter does, repeats=OrderPlaced | PaymentDeclined, repeats=PaymentReserved"
    )
