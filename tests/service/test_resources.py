"""Services, their states, resources and documents: which declarations are accepted or refused."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import count
from math import nan
from typing import Any, Protocol

import pytest

from saga import Breaker, BreakerOpen, DeclarationError, Event, Retry, Saga, Service
from saga.service import DocumentKind, Resource
from saga.testing import a_saga
from services.inventory.stock import OutOfStock, Stock
from services.payment.bank import Bank, Declined
from services.payment.events import OrderPlaced


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal


@dataclass(frozen=True)
class Account:
    owed: Decimal = Decimal(0)
    lines: tuple[Line, ...] = ()
    since: datetime | None = None
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tree:
    branches: tuple["Tree", ...] = ()


class Ledger:
    """Object that a second resource gives."""


def test_a_service_is_its_name_its_state_and_its_memory() -> None:
    dunning = Service("dunning-2", state=Account, retention=timedelta(days=7))
    assert repr(dunning) == "Service('dunning-2')"
    assert (dunning.declared.name, dunning.declared.state) == ("dunning-2", Account)
    assert dunning.declared.retention == timedelta(days=7)
    assert Service("plain").declared.state is None
    assert Service("plain").declared.retention == timedelta(days=30)


@pytest.mark.parametrize("name", ["", "Order", "order_1", "1order", "-order", "a.b", "über", "order\n", "o" * 65])
def test_a_name_that_cannot_be_part_of_keys_and_topics_is_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="at most 64 lower case letters"):
        Service(name)


@pytest.mark.parametrize("name", ["client", "saga"])
def test_names_that_mean_something_else_are_refused(name: str) -> None:
    with pytest.raises(DeclarationError, match="choose another name"):
        Service(name)


@pytest.mark.parametrize(
    "memory", [timedelta(0), timedelta(days=-1), timedelta(seconds=0.9), timedelta(days=365 * 51), 30]
)
def test_a_memory_that_is_no_time_or_longer_than_a_store_can_tell_is_refused(memory: timedelta) -> None:
    with pytest.raises(DeclarationError, match="give a timedelta, from 1 second to 50 years"):
        Service("order", retention=memory)


def test_a_state_that_is_no_frozen_dataclass_is_refused() -> None:
    class Plain: ...

    @dataclass
    class Mutable:
        owed: int = 0

    with pytest.raises(DeclarationError, match="Plain is no dataclass; write @dataclass"):
        Service("dunning", state=Plain)  # type: ignore[type-var] # the mistake
    with pytest.raises(DeclarationError, match="Mutable can be changed in place, which would be lost"):
        Service("dunning", state=Mutable)
    with pytest.raises(DeclarationError, match=r"lambda.* is no dataclass"):
        Service("dunning", state=lambda: Account())


def test_a_state_that_cannot_begin_by_itself_is_refused() -> None:
    @dataclass(frozen=True)
    class Needy:
        owed: int
        paid: int = 0

    with pytest.raises(DeclarationError, match=r"the field 'owed' of Needy has no default, .* begins with Needy\(\)"):
        Service("dunning", state=Needy)  # type: ignore[arg-type] # the mistake


def test_a_state_that_begins_differently_each_time_is_refused() -> None:
    tokens = count()

    @dataclass(frozen=True)
    class Dated:
        owed: int = 0
        token: int = field(default_factory=lambda: next(tokens))

    @dataclass(frozen=True, eq=False)
    class Constant:
        account: Account = field(default_factory=Account)
        owed: float = nan

    with pytest.raises(DeclarationError, match=r"begins with Dated\(\), whose 'token' differs each time"):
        Service("dunning", state=Dated)
    assert Service("dunning", state=Constant).declared.state is Constant


def test_a_state_whose_defaults_it_refuses_itself_is_refused() -> None:
    @dataclass(frozen=True)
    class Strict:
        owed: int = 0

        def __post_init__(self) -> None:
            if not self.owed:
                raise ValueError("nothing is owed")

    with pytest.raises(DeclarationError, match=r"begins with Strict\(\), and that raises ValueError: nothing is owed"):
        Service("dunning", state=Strict)


def test_a_state_may_hold_itself() -> None:
    assert Service("forest", state=Tree).declared.state is Tree


def test_a_state_that_cannot_be_read_back_is_refused() -> None:
    @dataclass(frozen=True)
    class Locked:
        notes: tuple[dict[str, Bank | None], ...] = ()

    @dataclass(frozen=True)
    class Ambiguous:
        what: Line | Account | None = None

    with pytest.raises(DeclarationError, match="Locked holds a Bank, which cannot be written and read back"):
        Service("dunning", state=Locked)
    with pytest.raises(DeclarationError, match=r"Ambiguous cannot be written and read back: .*dataclass"):
        Service("dunning", state=Ambiguous)


def test_a_resource_is_what_its_opener_yields() -> None:
    payment = Service("payment")

    @payment.resource(timeout_s=5, expected_errors=(Declined,))
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @payment.resource
    async def ledger() -> AsyncGenerator[Ledger, None]:  # as people write it too
        yield Ledger()

    first, second = payment.declared.resources
    assert (first.name, first.opener, first.gives) == ("bank", bank, Bank)
    assert (first.timeout_s, first.expected_errors) == (5, (Declined,))
    assert (second.gives, second.timeout_s, second.expected_errors) == (Ledger, 10, ())


def test_a_resource_that_could_not_be_closed_is_refused() -> None:
    async def bank() -> Bank:
        return Bank()

    def plain() -> Bank:
        return Bank()

    with pytest.raises(DeclarationError, match=r"payment\.bank is no async generator: write `async def bank"):
        Service("payment").resource(bank)  # type: ignore[type-var] # the mistake
    with pytest.raises(DeclarationError, match=r"payment\.plain is no async generator"):
        Service("payment").resource(plain)  # type: ignore[type-var] # the mistake


def test_a_resource_that_needs_something_is_refused() -> None:
    async def bank(url: str) -> AsyncIterator[Bank]:
        yield Bank()

    with pytest.raises(DeclarationError, match=r"payment\.bank takes parameters"):
        Service("payment").resource(bank)  # type: ignore[type-var] # the mistake


async def without_annotation():  # type: ignore[no-untyped-def] # the mistake
    yield Bank()


async def bare() -> AsyncIterator:  # type: ignore[type-arg] # the mistake
    yield Bank()


async def generic() -> AsyncIterator[dict[str, str]]:
    yield {}


async def either() -> AsyncIterator[Bank | None]:
    yield Bank()


async def anything() -> AsyncIterator[object]:
    yield Bank()


async def whatever() -> AsyncIterator[Any]:
    yield Bank()


async def event() -> AsyncIterator[OrderPlaced]:
    yield OrderPlaced(order_id="", customer_id="", sku="", quantity=1, total=Decimal(1), card="", address="")


async def a_run() -> AsyncIterator[Saga]:
    yield a_saga()


@pytest.mark.parametrize(
    ("opener", "why"),
    [
        (without_annotation, "without_annotation does not say what it gives"),
        (bare, "bare does not say what it gives"),
        (generic, r"gives dict\[str, str\], which cannot select a parameter"),
        (either, r"gives Bank \| None, which cannot select a parameter"),
        (whatever, "gives .*Any, which means something else already"),
        (anything, "gives object, which means something else already"),
        (event, "gives OrderPlaced, which means something else already"),
        (a_run, "gives Saga, which means something else already"),
    ],
)
def test_a_resource_of_no_type_of_its_own_is_refused(opener: Callable[[], AsyncIterator[object]], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        Service("payment").resource(opener)


def test_resources_may_give_protocols() -> None:
    class Bookings(Protocol): ...

    class Seats(Protocol): ...

    async def bookings() -> AsyncIterator[Bookings]:
        yield Bank()

    async def seats() -> AsyncIterator[Seats]:
        yield Bank()

    travel = Service("travel")
    travel.resource(bookings)
    travel.resource(seats)
    assert [r.gives for r in travel.declared.resources] == [Bookings, Seats]


def test_two_resources_of_one_type_are_refused_also_of_a_subclass() -> None:
    class Branch(Bank): ...

    async def second() -> AsyncIterator[Bank]:
        yield Bank()

    async def branch() -> AsyncIterator[Branch]:
        yield Branch()

    payment = Service("payment")

    @payment.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    with pytest.raises(DeclarationError, match=r"payment\.second gives Bank and bank gives Bank"):
        payment.resource(second)
    with pytest.raises(DeclarationError, match=r"payment\.branch gives Branch and bank gives Bank"):
        payment.resource(branch)
    turned = Service("payment")
    turned.resource(branch)
    with pytest.raises(DeclarationError, match=r"payment\.second gives Bank and branch gives Branch"):
        turned.resource(second)


def test_two_resources_of_one_name_are_refused() -> None:
    payment = Service("payment")

    @payment.resource
    async def client() -> AsyncIterator[Bank]:
        yield Bank()

    async def other() -> AsyncIterator[Ledger]:
        yield Ledger()

    other.__name__ = "client"  # as one of another module
    with pytest.raises(DeclarationError, match="'payment' has two resources called client"):
        payment.resource(other)


def test_answers_that_are_not_named_exceptions_are_refused() -> None:
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    payment = Service("payment")
    with pytest.raises(DeclarationError, match=r"of one it is \(Declined,\)"):
        payment.resource(expected_errors=Declined)(bank)  # type: ignore[call-overload] # the mistake
    with pytest.raises(DeclarationError, match="Exception is every failure: name the exception classes"):
        payment.resource(expected_errors=(Exception,))(bank)
    with pytest.raises(DeclarationError, match="timeout_s=0 is no time"):
        payment.resource(timeout_s=0)(bank)
    assert payment.declared.resources == []


def test_two_answers_of_one_name_are_refused() -> None:
    inner = type("Declined", (Exception,), {})

    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    payment = Service("payment")
    payment.document(Stock, "stock", expected_errors=(Declined,))
    with pytest.raises(DeclarationError, match="two answers of 'payment' are called Declined"):
        payment.resource(expected_errors=(inner,))(bank)
    payment.resource(expected_errors=(Declined,))(bank)


def test_a_document_names_its_collection() -> None:
    inventory = Service("inventory")
    inventory.document(Stock, "stock", expected_errors=(OutOfStock,))
    assert inventory.declared.documents == [DocumentKind(kind=Stock, collection="stock", expected_errors=(OutOfStock,))]


def test_a_document_that_is_no_frozen_dataclass_of_plain_fields_is_refused() -> None:
    class Plain: ...

    @dataclass
    class Mutable:
        left: int = 0

    @dataclass(frozen=True)
    class Odd:
        bank: Bank

    @dataclass(frozen=True)
    class Taken:
        _saga: int = 0

    inventory = Service("inventory")
    with pytest.raises(DeclarationError, match=r"inventory\.document\(Plain, 'stock'\): Plain is no dataclass"):
        inventory.document(Plain, "stock")  # type: ignore[type-var] # the mistake
    with pytest.raises(DeclarationError, match="Mutable can be changed in place"):
        inventory.document(Mutable, "stock")
    with pytest.raises(DeclarationError, match="Odd holds a Bank"):
        inventory.document(Odd, "stock")
    with pytest.raises(DeclarationError, match="the field '_saga' belongs to the toolkit"):
        inventory.document(Taken, "stock")
    assert inventory.declared.documents == []


@pytest.mark.parametrize("collection", ["", "a b", "stock/1", "s" * 81, "_stock"])
def test_a_collection_without_a_plain_name_is_refused(collection: str) -> None:
    with pytest.raises(DeclarationError, match="name the collection with at most 80 letters"):
        Service("inventory").document(Stock, collection)


@pytest.mark.parametrize("collection", ["saga", "saga-archive"])
def test_the_collections_of_the_toolkit_are_refused(collection: str) -> None:
    with pytest.raises(DeclarationError, match="the toolkit keeps its own documents there"):
        Service("inventory").document(Stock, collection)


def test_each_document_class_has_one_collection_and_vice_versa() -> None:
    inventory = Service("inventory")
    inventory.document(Stock, "stock")
    with pytest.raises(DeclarationError, match="Stock is already declared, in 'stock'"):
        inventory.document(Stock, "shelf")
    with pytest.raises(DeclarationError, match="the documents of 'stock' are Stock already"):
        inventory.document(Account, "stock")


def test_events_are_not_made_by_hand() -> None:
    assert Event.__slots__ == ()
    assert not hasattr(Event, "__contract__")


def test_rules_for_what_fails_are_declared_with_the_service_and_with_a_resource() -> None:
    often, seldom = Retry(attempts_max=50), Retry(attempts_max=2, never=(KeyError,))
    payment = Service("payment", retry=often)

    @payment.resource(retry=seldom)
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    (resource,) = payment.declared.resources
    assert (payment.declared.retry, resource.retry, resource.rule) == (often, seldom, ("bank", seldom))
    assert (Service("plain").declared.retry, Resource.__dataclass_fields__["retry"].default) == (None, None)


def test_rules_that_are_none_are_refused() -> None:
    with pytest.raises(DeclarationError, match=r"Service\('payment'\): retry=3: give a Retry"):
        Service("payment", retry=3)  # type: ignore[arg-type] # the mistake
    with pytest.raises(DeclarationError, match=r"payment.bank: retry=3: give a Retry"):

        @Service("payment").resource(retry=3)  # type: ignore[call-overload, untyped-decorator] # the mistake
        async def bank() -> AsyncIterator[Bank]:
            yield Bank()


@pytest.mark.parametrize("retry", [Retry(never=(Declined,)), Retry(by={Declined: Retry()})])
def test_rules_for_an_answer_are_refused_for_it_is_no_failure(retry: Retry) -> None:
    with pytest.raises(
        DeclarationError, match=r"Declined is an expected error, so it is never tried again: leave it out of"
    ):

        @Service("payment").resource(expected_errors=(Declined,), retry=retry)
        async def bank() -> AsyncIterator[Bank]:
            yield Bank()


def test_limits_are_declared_with_a_resource() -> None:
    payment, sparing = Service("payment"), Breaker(failures=3)

    @payment.resource(breaker=sparing, at_once_max=20, rate_per_s=0.5, expected_errors=(Declined, BreakerOpen))
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @payment.resource
    async def ledger() -> AsyncIterator[Ledger]:
        yield Ledger()

    limited, free = payment.declared.resources
    assert (limited.breaker, limited.at_once_max, limited.rate_per_s, limited.is_limited) == (sparing, 20, 0.5, True)
    assert (free.breaker, free.at_once_max, free.rate_per_s, free.is_limited) == (None, None, None, False)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"breaker": 5}, r"breaker=5: give a Breaker\(...\)"),
        ({"at_once_max": 0}, "at_once_max=0: give a whole number of calls, from 1 on"),
        ({"at_once_max": 1.5}, "at_once_max=1.5: give a whole number of calls"),
        ({"at_once_max": True}, "at_once_max=True: give a whole number of calls"),
        ({"rate_per_s": 0}, "rate_per_s=0 is no number of calls a second; give one above 0"),
        ({"rate_per_s": float("inf")}, "rate_per_s=inf is no number of calls a second"),
        ({"expected_errors": (BreakerOpen,)}, "BreakerOpen is raised by a breaker only: give the resource one"),
    ],
)
def test_limits_that_are_none_are_refused(limits: dict[str, Any], problem: str) -> None:
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    with pytest.raises(DeclarationError, match=rf"payment\.bank: {problem}"):
        Service("payment").resource(**limits)(bank)
