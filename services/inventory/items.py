"""The articles of the shop and their initial stock, from `items.json`."""

from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("items.json")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    sku: str
    name: str
    price: str
    """Price in euros."""
    left: int


def items() -> list[Item]:
    return msgspec.json.decode(FILE.read_bytes(), type=list[Item])
