"""Generate `services/orders.jsonl`, the orders of the demonstration: `python -m services.generate_orders >
services/orders.jsonl`.

The file is the same on every machine. Of 72 customers, five pay with a blocked card, and four live where no carrier
delivers. Of some articles more are ordered than are in stock.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random  # noqa: TID251 - seeded: no chance is in it
from typing import TypedDict, TypeVar

from services.inventory.items import items

T = TypeVar("T")

SEED = 4
ORDERS = 640
CUSTOMERS = 72
BLOCKED_CARDS = frozenset({8, 23, 37, 52, 66})
IN_ATLANTIS = frozenset({12, 29, 45, 61})

GIVEN_NAMES = ("Ada", "Ben", "Clara", "Dmitri", "Elif", "Farah", "Goran", "Hanna", "Ivo", "Jana", "Kofi", "Lea")
FAMILY_NAMES = ("Aydin", "Berg", "Costa", "Dahl", "Eriksen", "Fontaine")
PLACES = (
    "Hafenstraße {}, 24103 Kiel",
    "{} Mill Lane, Leeds LS1 4AP",
    "{} Rue des Lilas, 69002 Lyon",
    "Via Roma {}, 50123 Firenze",
    "Storgata {}, 0155 Oslo",
    "Kirchweg {}, 8001 Zürich",
    "Herengracht {}, 1017 Amsterdam",
)
NOWHERE = "{} Poseidon Parade, Atlantis"


class Order(TypedDict):
    """The fields of `OrderPlaced`, as JSON."""

    order_id: str
    customer_id: str
    sku: str
    quantity: int
    total: str
    card: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Customer:
    number: int
    card: str
    address: str


def customers(chance: Random) -> list[Customer]:
    """Return the customers, each with a card and an address."""
    return [_customer(number, chance) for number in range(1, CUSTOMERS + 1)]


def orders() -> Iterator[Order]:
    """Yield all orders, in the order in which they are placed."""
    chance = Random(SEED)
    articles, everybody = items(), customers(chance)
    for number in range(1, ORDERS + 1):
        customer, article = _one_of(everybody, chance), _one_of(articles, chance)
        quantity = _one_of((1, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5), chance)
        yield Order(
            order_id=f"order-{number:04}",
            customer_id=f"customer-{customer.number:03}",
            sku=article.sku,
            quantity=quantity,
            total=str(Decimal(article.price) * quantity),
            card=customer.card,
            address=customer.address,
        )


def _customer(number: int, chance: Random) -> Customer:
    name = f"{GIVEN_NAMES[number % len(GIVEN_NAMES)]} {FAMILY_NAMES[number % 7 % len(FAMILY_NAMES)]}"
    place = NOWHERE if number in IN_ATLANTIS else _one_of(PLACES, chance)
    return Customer(
        number=number,
        card=f"{'declined' if number in BLOCKED_CARDS else 'visa'}-{1000 + int(chance.random() * 9000)}",
        address=f"{name}, {place.format(1 + int(chance.random() * 120))}",
    )


def _one_of(choices: Sequence[T], chance: Random) -> T:
    """Return one of the items, chosen by `random()` alone, because only for this method Python guarantees the same
    numbers for a seed."""
    return choices[int(chance.random() * len(choices))]


if __name__ == "__main__":
    sys.stdout.writelines(json.dumps(order, ensure_ascii=False) + "\n" for order in orders())
