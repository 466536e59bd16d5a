"""Limits of one call, as they are declared: what is refused, and that the function stays as it is."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from saga import DeclarationError, Service, limited
from saga.declarations.resources import Limits, limits_of
from services.payment.events import OrderPlaced


class Bank:
    @limited(timeout_s=2, at_once_max=1, rate_per_s=0.5)
    async def statement(self, account: str) -> str:
        return f"nothing is on {account}"

    async def balance(self, account: str) -> int:
        return 0


class FakeBank(Bank):
    async def statement(self, account: str) -> str:
        return account


class OtherBank(Bank): ...


async def test_a_limited_call_carries_its_limits_and_a_plain_call_of_it_is_like_any_other() -> None:
    limits = limits_of(Bank().statement)
    assert limits == Limits(call=f"{__name__}.Bank.statement", timeout_s=2, at_once_max=1, rate_per_s=0.5)
    assert await Bank().statement("4242") == "nothing is on 4242"
    assert (Bank.statement.__name__, limits_of(Bank().balance)) == ("statement", None)


def test_an_inherited_method_keeps_its_limits_and_an_overriding_one_has_none() -> None:
    assert limits_of(FakeBank().statement) is None
    assert limits_of(OtherBank().statement) == limits_of(Bank().statement)


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({}, "no limit is given: give timeout_s=, at_once_max= or rate_per_s="),
        ({"timeout_s": 0}, "timeout_s=0 is no time; give seconds, more than 0"),
        ({"timeout_s": True}, "timeout_s=True is no time"),
        ({"timeout_s": math.inf}, "timeout_s=inf is no time"),
        ({"at_once_max": 0}, "at_once_max=0: give a whole number of calls, from 1 on"),
        ({"at_once_max": 1.5, "timeout_s": 1}, "at_once_max=1.5: give a whole number of calls"),
        ({"rate_per_s": -1}, "rate_per_s=-1 is no number of calls a second; give one above 0"),
        ({"rate_per_s": math.nan}, "rate_per_s=nan is no number of calls a second"),
    ],
)
def test_limits_that_are_none_are_refused_by_the_name_of_the_call(limits: dict[str, Any], problem: str) -> None:
    async def ask() -> None: ...

    declare: Any = limited(**limits)
    with pytest.raises(DeclarationError, match=rf"ask, limited: {problem}"):
        declare(ask)
    assert limits_of(ask) is None


def ask_at_once() -> str:
    return "so"


@pytest.mark.parametrize("call", [ask_at_once, Bank, Bank().balance, partial(Bank.balance, Bank()), len, 5])
def test_a_function_that_is_not_async_cannot_be_limited(call: Callable[..., Any]) -> None:
    with pytest.raises(DeclarationError, match=r"limited: it is no `async def`: write @limited\(...\) directly above"):
        limited(timeout_s=1)(call)


def test_limits_are_declared_once() -> None:
    with pytest.raises(DeclarationError, match=r"ask, limited: it is so already: give all of its limits in one"):

        @limited(timeout_s=1)
        @limited(at_once_max=1)
        async def ask() -> None: ...


def test_a_handler_has_no_limits_as_a_call_for_they_would_never_hold() -> None:
    payment = Service("payment")
    with pytest.raises(DeclarationError, match=r"payment\.reserve: @limited is for what is called by saga\.step"):

        @payment.handler
        @limited(at_once_max=1)
        async def reserve(order: OrderPlaced) -> None: ...
