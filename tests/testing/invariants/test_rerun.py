"""A rerun of what the shipped runtime did gives the same bytes, and one that does not is found."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_

from saga import Saga
from saga.progress.document import PendingMessage, decode_progress, encode
from saga.support.clock import from_iso
from saga.testing.invariants.evidence import Evidence
from saga.testing.invariants.rerun import find_rerun_differences
from services.order.events import InventoryRejected, OrderCancelled, OrderPlaced, PaymentDeclined, ShipmentRefused
from services.payment.bank import Bank
from services.payment.events import PaymentReserved
from tests.testing.invariants.order_runs import rewritten, with_service, with_versions
from tests.testing.invariants.test_check import (
    RUNS,
    cancelled,
    confirmed,
    other_contents,
    refused,
)


async def differences(evidence: Evidence, service: str) -> list[str]:
    """Differences of a rerun in that service, in words."""
    _, found = await find_rerun_differences(evidence.services[service], evidence.log)
    assert {v.invariant for v in found} <= {"rerun"}
    return [violation.what for violation in found]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
async def test_runs_of_the_shipped_runtime_can_be_repeated(run: Callable[[], Awaitable[Evidence]]) -> None:
    evidence = await run()
    for witnessed in evidence.services.values():
        _, found = await find_rerun_differences(witnessed, evidence.log)
        assert [str(violation) for violation in found] == []


async def test_every_write_is_made_again_but_those_of_dead_letters() -> None:
    run = await confirmed()
    for witnessed in run.services.values():
        checked, _ = await find_rerun_differences(witnessed, run.log)
        assert checked == len(witnessed.versions["o-1"])
    run = await other_contents()
    checked, _ = await find_rerun_differences(run.services["payment"], run.log)
    assert 0 < checked < 10 < len(run.services["payment"].versions["o-1"])


async def test_messages_removed_from_the_log_are_not_counted() -> None:
    checked, found = await find_rerun_differences((await confirmed()).services["order"], ())
    assert (checked, found) == (0, [])


async def test_a_run_whose_resource_is_not_there_is_not_counted() -> None:
    run = await confirmed()
    without = with_service(run, "payment", resources={})
    assert await find_rerun_differences(without.services["payment"], run.log) == (0, [])


async def test_a_rerun_calls_no_external_system() -> None:
    run = await confirmed()
    bank = run.services["payment"].resources[Bank]
    assert isinstance(bank, Bank)
    calls = dict(bank.calls)
    bank.held.clear()
    bank.taken.clear()
    assert await differences(run, "payment") == []
    assert (bank.calls, bank.held, bank.taken) == (calls, {}, {})


async def test_a_step_of_which_no_answer_is_recorded_is_not_made() -> None:
    run = await confirmed()
    intent, ended, *_ = run.services["payment"].versions["o-1"]
    forgotten = encode(rewritten(decode_progress(ended), lambda entry: with_(entry, calls=())))
    bank = run.services["payment"].resources[Bank]
    assert isinstance(bank, Bank)
    calls = dict(bank.calls)
    (what,) = await differences(with_versions(run, "payment", "o-1", [intent, forgotten]), "payment")
    assert what.endswith("reserve handled: a rerun fails or writes nothing")
    assert bank.calls == calls


async def test_a_run_that_ended_before_it_was_due_by_a_clock_that_was_set_back_is_not_made_again() -> None:
    run = await confirmed()
    intent, ended, *_ = map(decode_progress, run.services["payment"].versions["o-1"])
    kept = PendingMessage(
        handler="reserve", message=intent.intents[0].message, n=0, due_ms=from_iso("2099-01-01T00:00:00Z")
    )
    put_off = with_(intent, queue=(kept,))
    found = await differences(with_versions(run, "payment", "o-1", [encode(put_off), encode(ended)]), "payment")
    assert not [what for what in found if "reserve handled" in what]


async def test_a_run_that_began_while_the_clock_was_set_ahead_of_the_retention_is_not_repeated() -> None:
    run = await confirmed()
    begun = decode_progress(run.services["payment"].versions["o-1"][0])
    (intent,) = begun.intents
    late = with_(begun, intents=(with_(intent, time="2099-01-01T00:00:00Z"),))
    run = with_versions(run, "payment", "o-1", [encode(late)])
    assert await find_rerun_differences(run.services["payment"], run.log) == (0, [])


def with_handler(evidence: Evidence, service: str, name: str, function: Callable[..., Any]) -> Evidence:
    """Evidence as if the handler had been that function when it is run again."""
    prepared = evidence.services[service].service
    handlers = {**prepared.handlers, name: replace(prepared.handlers[name], function=function)}
    return with_service(evidence, service, service=replace(prepared, handlers=handlers))


async def test_a_handler_that_emits_something_else_is_found() -> None:
    times = iter(range(100))

    async def cancel(why: PaymentDeclined | InventoryRejected | ShipmentRefused) -> OrderCancelled:
        return OrderCancelled(order_id=why.order_id, reason=f"the {next(times)}th")

    (what,) = await differences(with_handler(await refused(), "order", "cancel", cancel), "order")
    assert "cancel handled: a rerun writes something else" in what


async def test_a_handler_that_asks_for_something_else_is_found() -> None:
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        charge = await saga.step(bank.reserve, saga.idempotency_key("charge"), "another card", order.total)
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    begun, handled = await differences(with_handler(await confirmed(), "payment", "reserve", reserve), "payment")
    assert "the intent of reserve after 0 calls: a rerun writes something else" in begun
    assert "reserve handled: a rerun writes something else" in handled


async def test_a_handler_that_does_not_ask_again_is_found() -> None:
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="charge", amount=order.total)

    found = await differences(with_handler(await confirmed(), "payment", "reserve", reserve), "payment")
    assert len(found) == 2


async def test_a_handler_that_fails_when_it_is_run_again_is_found() -> None:
    async def cancel(why: PaymentDeclined | InventoryRejected | ShipmentRefused) -> OrderCancelled:
        raise RuntimeError("not this time")

    (what,) = await differences(with_handler(await refused(), "order", "cancel", cancel), "order")
    assert "fails or writes nothing" in what


@pytest.mark.parametrize("service", ["order", "payment", "inventory", "shipping"])
async def test_a_transition_that_no_worker_would_write_is_found(service: str) -> None:
    run = await cancelled()
    versions = run.services[service].versions["o-1"]
    p = decode_progress(versions[-1])
    made_up = rewritten(p, lambda e: with_(e, trace="00-1-1-01") if e.n == p.n - 1 else e)
    evidence = with_versions(run, service, "o-1", [*versions[:-1], encode(made_up)])
    assert len(await differences(evidence, service)) == 1
