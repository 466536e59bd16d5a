"""Handlers that call a resource: some beside `saga.step`, some through it. The lines that count have a comment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from saga import Saga, Service
from services.payment.events import OrderPlaced, PaymentDeclined

payment = Service("payment")


class Account:
    async def charge(self) -> None: ...


class Bank:
    """A client with async and other methods."""

    account = Account()
    currency = "EUR"

    async def charge(self, key: str = "") -> str:
        return key

    def parse(self, text: str) -> str:
        return text

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Account]:
        yield self.account


@payment.resource
async def bank() -> AsyncIterator[Bank]:
    yield Bank()


async def awaits_it(bank: Bank) -> None:
    await bank.charge("key")


async def awaits_a_part_of_it(bank: Bank) -> None:
    await bank.account.charge()


async def gathers(bank: Bank) -> None:
    await asyncio.gather(bank.charge("a"))


async def awaits_under_another_name(bank: Bank) -> None:
    client = bank
    await client.charge()


async def lets_a_function_await(bank: Bank, saga: Saga) -> None:
    await helper("key", client=bank)


async def helper(key: str, client: Any) -> None:
    await client.charge(key)
    await helper(key, client)


async def calls_through_a_step(bank: Bank, saga: Saga) -> None:
    await saga.step(bank.charge, saga.idempotency_key("charge"))
    saga.on_abort(bank.charge, "back")


async def gives_a_step_something_around_it(bank: Bank, saga: Saga) -> None:
    async def twice() -> None:
        await bank.charge("one")
        await bank.charge("two")

    await saga.step(partial(bank.charge, "key"))
    await saga.step(lambda: bank.charge("key"))
    await saga.step(twice)
    await saga.step(given_to_a_step, bank)


async def given_to_a_step(bank: Bank) -> None:
    await bank.charge()


async def uses_it_as_context(bank: Bank, saga: Saga) -> str:
    async with bank.session() as account:
        await saga.step(account.charge)
    return bank.parse(bank.currency)


async def has_an_object_of_its_own(saga: Saga) -> None:
    bank = Bank()
    await bank.charge()


@payment.handler
async def decline(placed: OrderPlaced, bank: Bank, saga: Saga) -> PaymentDeclined:
    reason = await bank.charge(placed.card)
    return PaymentDeclined(order_id=placed.order_id, reason=reason)
