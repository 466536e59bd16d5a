"""A business document that is no dataclass. Rejected by: mypy, basedpyright."""

from saga import Service


class Stock:
    left: int = 0


inventory = Service("inventory")
inventory.document(Stock, "stock")  # bad
