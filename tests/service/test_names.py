"""Names of services: one that is renamed keeps all that was stored under the name before; and where one begins."""

from datetime import UTC, datetime
from typing import Any

import pytest

from saga import DeclarationError, Service
from saga.choreography.manifest import make_manifest
from saga.engine.prepared_service import prepare, topics_of
from services.payment.events import OrderPlaced, PaymentReserved


def declared_as(name: str, **options: Any) -> Service[Any]:
    service: Service[Any] = Service(name, **options)

    @service.handler
    async def reserve(placed: OrderPlaced) -> PaymentReserved:
        raise AssertionError("it is not called")

    return service


def test_a_renamed_service_has_the_group_the_topics_and_the_ids_of_before() -> None:
    before, renamed = prepare(declared_as("payment").declared), prepare(declared_as("payments", was="payment").declared)
    assert renamed.name == before.name == "payment"
    assert (renamed.commands, renamed.wakes, renamed.topics) == (before.commands, before.wakes, before.topics)
    assert topics_of(renamed.declared) == topics_of(before.declared)
    manifests = [make_manifest(each.declared) for each in (before, renamed)]
    assert [(each.service, each.was, each.stored) for each in manifests] == [
        ("payment", "", "payment"),
        ("payments", "payment", "payment"),
    ]
    assert manifests[0].reactions == manifests[1].reactions, "ids are made of the stored name"
    assert repr(declared_as("payments", was="payment")) == "Service('payments')"


def test_the_owner_in_contracts_stays_the_name_of_before() -> None:
    with pytest.raises(DeclarationError, match="'payment' may say"):
        declared_as("payments")
    with pytest.raises(DeclarationError, match="'payment' was 'cashier', and stays the owner 'cashier'"):
        declared_as("payment", was="cashier")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"was": "Payment"}, "at most 64 lower case letters"),
        ({"was": "client"}, "clients publish under that name"),
        ({"was": "payment"}, "that is its name; leave `was` out"),
        ({"start": "latest"}, 'give "beginning", "now", or a datetime with a time zone'),
        ({"start": datetime(2026, 11, 21)}, "with a time zone"),  # noqa: DTZ001 - that is what is refused
        ({"start": 0}, "with a time zone"),
    ],
)
def test_an_invalid_service_name_or_start_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        Service("payment", **options)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, ""),
        ("beginning", "beginning"),
        ("now", "now"),
        (datetime(2026, 11, 21, tzinfo=UTC), "2026-11-21T00:00:00.000Z"),
    ],
)
def test_the_manifest_names_where_a_service_begins(start: Any, expected: str) -> None:
    assert make_manifest(declared_as("payment", start=start).declared).start == expected
