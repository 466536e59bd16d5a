"""Setup of a worker process: it finds its service again, and notices when it is another one there."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from msgspec.structs import replace

from saga import Service, limited
from saga.errors import SagaError
from saga.policies.breaker import LastGood
from saga.testing.processes.worker_processes import (
    CallLimits,
    RemoteFake,
    WorkerSetup,
    declarations_of,
    module_and_name,
    remote_fakes_of,
)
from services.order import order
from services.payment import payment
from services.payment.bank import Bank
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentDeclined
from services.shipping.carrier import Carrier

PAYMENT = WorkerSetup(
    modules=("services.payment",),
    attribute="payment",
    declarations=("bank", "capture", "release", "reserve"),
    broker="broker.db",
    store="payment.db",
    outside="outside.sock",
    fakes=(
        RemoteFake(
            resource="bank",
            fake="Bank",
            number=0,
            calls={
                "reserve": CallLimits(call="Bank.reserve", timeout_s=2, instead="by_phone"),
                "score": CallLimits(call="Bank.score", remembered=LastGood(for_s=60)),
                "release": None,
            },
        ),
    ),
)


def test_an_assignment_is_read_as_it_was_written(tmp_path: Path) -> None:
    PAYMENT.write(tmp_path / "a.json")
    assert WorkerSetup.read(tmp_path / "a.json") == PAYMENT


def test_a_service_is_found_by_the_modules_of_its_handlers() -> None:
    assert module_and_name(payment) == (("services.payment",), "payment")
    assert PAYMENT.service() is payment.declared


def test_all_modules_with_handlers_are_named_the_one_that_holds_the_service_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def decline(placed: OrderPlaced) -> PaymentDeclined:
        return PaymentDeclined(order_id=placed.order_id, reason="closed")

    async def pay(paid: PaymentCaptured) -> None:
        return None

    holder = ModuleType("holder")
    service = Service("payment")
    service.handler(decline)
    service.handler(pay)
    monkeypatch.setitem(sys.modules, "holder", holder)
    monkeypatch.setattr(decline, "__module__", "elsewhere")
    monkeypatch.setattr(pay, "__module__", "holder")
    with pytest.raises(SagaError, match=r"no module of its handlers holds it \(looked for in elsewhere, holder\)"):
        module_and_name(service)
    monkeypatch.setattr(holder, "found", service, raising=False)
    assert module_and_name(service) == (("holder", "elsewhere"), "found")


def test_a_service_without_handlers_is_refused() -> None:
    with pytest.raises(SagaError, match="service 'payment' cannot be run by another process"):
        module_and_name(Service("payment"))


def test_a_module_without_a_service_is_reported() -> None:
    with pytest.raises(SagaError, match=r"services\.payment\.Bank is no service when the module is imported afresh"):
        replace(PAYMENT, attribute="Bank").service()


def test_a_service_that_is_another_one_when_it_is_imported_is_reported() -> None:
    with pytest.raises(SagaError, match=r"declares bank, capture, release, reserve when .* and reserve in the test"):
        replace(PAYMENT, declarations=("reserve",)).service()


def test_declarations_of_a_service_are_compared_by_name() -> None:
    assert declarations_of(payment.declared) == PAYMENT.declarations


def test_a_fake_stands_in_by_its_public_async_methods() -> None:
    (found,) = remote_fakes_of(payment.declared, [Carrier(), Bank()])
    assert found == RemoteFake(
        resource="bank", fake="Bank", number=1, calls=dict.fromkeys(("capture", "release", "reserve"))
    )
    assert remote_fakes_of(order.declared, [Bank()]) == ()


def test_a_fake_has_the_limits_that_its_own_methods_say() -> None:
    class SparingBank(Bank):
        @limited(at_once_max=1)
        async def release(self, key: str, charge_id: str) -> None: ...

    (found,) = remote_fakes_of(payment.declared, [SparingBank()])
    assert {name: None if limits is None else limits.at_once_max for name, limits in found.calls.items()} == {
        "capture": None,
        "release": 1,
        "reserve": None,
    }
