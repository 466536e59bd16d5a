"""The example's contracts fit together: each event has its owner, its consumers, and the classes made from it."""

from dataclasses import fields
from decimal import Decimal
from pathlib import Path

import pytest

from saga import Service
from saga.contracts.codec import decode, encode
from saga.contracts.codegen import find_generated, generate, list_classes
from saga.contracts.library import Library, contract_of
from saga.errors import BadInput
from saga.messages import name_of
from services.inventory import inventory
from services.order import order
from services.payment import payment
from services.payment.events import OrderPlaced
from services.shipping import shipping

ROOT = Path(__file__).parents[2]
LIBRARY = Library.load(ROOT / "contracts")
SERVICES: tuple[Service[None], ...] = (order, payment, inventory, shipping)


def consumed() -> set[str]:
    return {
        name_of(event)
        for service in SERVICES
        for handler in service.declared.reactions
        for parameter in handler.parameters
        for event in parameter.events
    }


def test_every_contract_has_four_topics_one_key_and_a_doc_on_each_field() -> None:
    topics = {contract.topic: contract.owner for contract in LIBRARY.contracts.values()}
    assert topics == {"orders": "order", "payments": "payment", "inventory": "inventory", "shipments": "shipping"}
    assert {contract.key for contract in LIBRARY.contracts.values()} == {"order_id"}
    for contract in LIBRARY.contracts.values():
        assert contract.doc
        for version in contract.versions:
            fields_ = version.schema["fields"]
            assert isinstance(fields_, list)
            assert all(field["doc"] for field in fields_)


def test_every_event_is_consumed_by_a_service_or_externally() -> None:
    heard = {name for name, contract in LIBRARY.contracts.items() if contract.consumed_externally}
    assert LIBRARY.contracts.keys() - consumed() == heard
    assert len(heard) == 6


def test_every_event_is_emitted_by_its_owner_or_produced_externally() -> None:
    for name, contract in LIBRARY.contracts.items():
        emitting = {
            service.declared.name
            for service in SERVICES
            for handler in service.declared.reactions
            if name in {name_of(event) for event in handler.emits}
        }
        assert emitting == (set() if contract.produced_externally else {contract.owner})


def test_the_order_service_starts_and_ends_every_saga() -> None:
    assert [c.name for c in LIBRARY.contracts.values() if c.starts] == ["OrderPlaced"]
    outcomes = {contract.name: contract.outcome for contract in LIBRARY.contracts.values() if contract.outcome}
    assert outcomes == {"OrderConfirmed": "success", "OrderCancelled": "failure"}


def test_each_class_has_the_fields_of_its_schema() -> None:
    contract = contract_of(OrderPlaced)
    assert contract == LIBRARY.contracts["OrderPlaced"]
    assert [field.name for field in fields(OrderPlaced)] == [
        "order_id", "customer_id", "sku", "quantity", "total", "card", "address",
    ]  # fmt: skip


def test_generating_the_classes_again_changes_nothing() -> None:
    modules = find_generated(ROOT / "services")
    assert [module.parent.name for module in modules] == ["intake", "inventory", "order", "payment", "shipping"]
    for module in modules:
        source = module.read_text("utf-8")
        assert generate(LIBRARY, list_classes(source)) == source


def an_order(total: Decimal) -> OrderPlaced:
    return OrderPlaced(
        order_id="order-17", customer_id="c-1", sku="tea", quantity=2, total=total, card="visa-1", address="Kiel"
    )


def test_amounts_are_exact_to_the_cent() -> None:
    placed = an_order(Decimal("9999999999.99"))
    assert decode(encode(placed), OrderPlaced, LIBRARY) == placed
    with pytest.raises(BadInput, match="total"):
        encode(an_order(Decimal("9.801")))
