"""The orders of the demonstration are made by the script beside them, and are what it says they are."""

import json
from collections import Counter
from decimal import Decimal
from pathlib import Path

from services.generate_orders import Order, orders
from services.inventory.items import items
from services.payment.bank import is_blocked
from services.shipping.carrier import is_undeliverable

FILE = Path(__file__).parents[2] / "services" / "orders.jsonl"


def placed() -> list[Order]:
    return [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]


def test_the_file_is_what_the_script_makes() -> None:
    assert placed() == list(orders())


def test_there_are_many_orders_of_many_customers_for_twenty_articles() -> None:
    all_ = placed()
    assert len({order["order_id"] for order in all_}) == len(all_) >= 600
    assert len({order["customer_id"] for order in all_}) > 60
    assert {order["sku"] for order in all_} == {item.sku for item in items()}
    assert len(items()) == 20


def test_an_order_costs_what_its_articles_cost() -> None:
    prices = {item.sku: Decimal(item.price) for item in items()}
    for order in placed():
        assert Decimal(order["total"]) == prices[order["sku"]] * order["quantity"]
        assert order["total"] == f"{Decimal(order['total']):.2f}"


def test_some_cards_addresses_and_articles_fail_an_order() -> None:
    all_, left = placed(), {item.sku: item.left for item in items()}
    refused = Counter[str]()
    for order in all_:
        refused["card"] += is_blocked(order["card"])
        refused["address"] += is_undeliverable(order["address"])
        if order["quantity"] > left[order["sku"]]:
            refused["stock"] += 1
        elif not is_blocked(order["card"]) and not is_undeliverable(order["address"]):
            left[order["sku"]] -= order["quantity"]
    assert 0.05 < refused["card"] / len(all_) < 0.09
    assert 0.04 < refused["address"] / len(all_) < 0.07
    assert 0.06 < refused["stock"] / len(all_) < 0.11
