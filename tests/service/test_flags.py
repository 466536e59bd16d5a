"""Flags for which a service asks, found in the code that its handlers reach."""

import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from types import ModuleType
from typing import Any

import httpx
import pytest

from saga import Saga, Service
from saga.declarations.values import OBJECTS_MAX, find_flags
from services.payment.events import OrderPlaced
from tests.service import flag_helpers
from tests.service.flag_helpers import asks_for_six


def service_of(handler: Callable[..., Any], *openers: Callable[..., Any]) -> Service[Any]:
    payment = Service("payment")
    for opener in openers:
        payment.resource()(opener)
    payment.handler(handler)
    return payment


class Prices:
    """Prices of which some are behind flags."""

    async def of(self, saga: Saga) -> bool:
        return await saga.flag("of a method")


PRICES = Prices()


class Till:
    """Thing outside that asks, too."""

    async def open(self, saga: Saga) -> bool:
        return await saga.flag("of a resource")


async def till() -> AsyncIterator[Till]:
    """Opened by no test."""
    yield Till()


async def helper(saga: Saga) -> bool:
    return await saga.flag("of a helper") and await helper(saga)


async def test_every_flag_that_stands_in_the_code_of_handlers_or_of_what_it_names_is_found() -> None:
    async def inside(saga: Saga) -> bool:
        return await saga.flag("of what it is in")

    async def reserve(order: OrderPlaced, till: Till, saga: Saga) -> None:
        if await saga.flag("of the handler") and [await saga.flag("of a list") for _ in range(2)]:
            await helper(saga)
            await inside(saga)
            await PRICES.of(saga)
            await asks_for_six(saga)
            await flag_helpers.asks_for_seven(saga)

    asked = find_flags(service_of(reserve, till).declared)
    assert asked is not None
    assert sorted(asked) == [
        "of a helper", "of a list", "of a method", "of a resource", "of the handler", "of what it is in", "seven", "six"
    ]  # fmt: skip


class Rules:
    """Prices whose methods are of every kind."""

    def __init__(self, other: object = None) -> None:
        self._other = other

    @staticmethod
    async def static(saga: Saga) -> bool:
        return await saga.flag("of a static method")

    @classmethod
    async def of_class(cls, saga: Saga) -> bool:
        return await saga.flag("of a class method")

    @property
    def asks(self) -> Callable[[Saga], Any]:
        return lambda saga: saga.flag("of a property")


class Inner:
    """Part of another object."""

    __slots__ = ("rule",)

    def __init__(self) -> None:
        self.rule = in_slot


async def in_slot(saga: Saga) -> bool:
    return await saga.flag("of a slot")


async def in_table(saga: Saga) -> bool:
    return await saga.flag("of a table")


async def in_partial(kind: str, saga: Saga) -> bool:
    return await saga.flag("of a partial")


class Bound:
    """Object of which a method has a name of its own."""

    async def asks(self, saga: Saga) -> bool:
        return await saga.flag("of a bound method")


RULES, TABLE = Rules(Inner()), {"tea": [in_table]}
PARTIAL, BOUND = partial(in_partial, "tea"), Bound().asks


async def test_flags_are_found_through_objects_that_hold_code() -> None:
    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        await TABLE[order.sku][0](saga)
        await PARTIAL(saga)
        await BOUND(saga)
        await RULES.asks(saga)

    asked = find_flags(service_of(reserve).declared)
    assert asked is not None
    assert sorted(asked) == [
        "of a bound method", "of a class method", "of a partial", "of a property", "of a slot", "of a static method",
        "of a table",
    ]  # fmt: skip


async def test_flags_are_found_in_what_a_function_imports_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        from tests.service.flag_helpers import asks_for_six as asks

        await asks(saga)

    async def relative(order: OrderPlaced, saga: Saga) -> None:
        from .flag_helpers import asks_for_seven as asks  # noqa: TID252 - it may be written so

        await asks(saga)

    assert find_flags(service_of(reserve).declared) == frozenset({"six"})
    assert find_flags(service_of(relative).declared) == frozenset({"seven"})
    monkeypatch.delitem(sys.modules, flag_helpers.__name__)
    assert find_flags(service_of(reserve).declared) is None, "it is not loaded, so any flag may be read there"


async def open_client() -> AsyncIterator[httpx.AsyncClient]:
    """Opened by no test."""
    yield httpx.AsyncClient()


COUNTRIES = dict.fromkeys(range(2 * OBJECTS_MAX), "AT")


async def test_a_client_of_a_library_and_a_large_table_leave_the_flags_known() -> None:
    async def ask(order: OrderPlaced, client: httpx.AsyncClient, saga: Saga) -> None:
        if COUNTRIES.get(3):
            await saga.flag("of a country")

    assert find_flags(service_of(ask, open_client).declared) == frozenset({"of a country"})


async def test_too_many_objects_may_read_any_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saga.declarations.values.OBJECTS_MAX", 3)

    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        await TABLE[order.sku][0](saga)

    assert find_flags(service_of(reserve).declared) is None


async def test_a_name_that_is_made_of_something_may_be_any() -> None:
    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        await saga.flag("plain")
        await saga.flag(f"of {order.sku}")

    assert find_flags(service_of(reserve).declared) is None


async def test_a_service_that_asks_for_none_has_none() -> None:
    async def reserve(order: OrderPlaced) -> None:
        assert isinstance(flag_helpers, ModuleType)

    assert find_flags(service_of(reserve).declared) == frozenset()


async def test_a_flag_attribute_that_is_no_literal_call_counts_as_any_flag() -> None:
    async def reserve(order: OrderPlaced) -> None:
        assert flag_helpers.THING.flag

    assert find_flags(service_of(reserve).declared) is None


class NotThereYet:
    """Stands for an object that exists only while a request is handled, as frameworks have it."""

    def __call__(self) -> None: ...

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("outside of a request")


request = NotThereYet()


async def test_an_object_that_cannot_be_looked_at_hides_no_other_flag() -> None:
    async def reserve(order: OrderPlaced, saga: Saga) -> None:
        request()
        await saga.flag("one")

    assert find_flags(service_of(reserve).declared) == frozenset({"one"})
