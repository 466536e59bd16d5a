"""Overview of a choreography: it agrees with what services do, and tells what does not fit together."""

from pathlib import Path

import pytest

from saga.choreography.manifest import make_manifest
from saga.choreography.overview import Overview
from saga.contracts.library import Library
from saga.engine.prepared_service import consumed_by, prepare
from services.inventory import inventory
from services.order import order
from services.payment import payment
from services.shipping import shipping
from tests.service.waiting_payment import payment as waiting_payment
from tests.services.waiting_order import order as waiting_order

ROOT = Path(__file__).parents[2]
SERVICES = {"order": order, "payment": payment, "inventory": inventory, "shipping": shipping}
OTHERS = {"waiting payment": waiting_payment, "waiting order": waiting_order}


@pytest.mark.parametrize("name", [*SERVICES, *OTHERS])
def test_the_topics_of_a_manifest_are_those_that_its_worker_reads(name: str) -> None:
    service = {**SERVICES, **OTHERS}[name]
    manifest = make_manifest(service.declared)
    overview = Overview(Library.load(ROOT / "contracts"), {manifest.service: manifest})
    read = {each.contract for each in manifest.consumes if overview.is_read(manifest, each.contract)}
    assert read == consumed_by(service.declared, prepare(service.declared).contracts)


def test_each_compensation_is_found_from_the_outcome_and_from_what_it_undoes() -> None:
    manifests = {name: make_manifest(service.declared) for name, service in SERVICES.items()}
    overview = Overview(Library.load(ROOT / "contracts"), manifests)

    def names(event: str) -> list[str]:
        return [f"{each.service}.{each.compensation.name}" for each in overview.compensated_after(event)]

    on_failure = [f"{each.service}.{each.compensation.name}" for each in overview.compensated_on("OrderCancelled")]
    assert on_failure == ["inventory.put_back", "payment.release", "shipping.unbook"]
    assert names("OrderPlaced") == on_failure
    assert names("PaymentReserved") == ["payment.release", "shipping.unbook"]
    assert names("PaymentDeclined") == []
    assert overview.compensated_on("OrderConfirmed") == []
    assert overview.find_loose_ends() == []
