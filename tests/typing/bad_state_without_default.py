"""A state class from which no first state can be made. Rejected by: mypy, basedpyright."""

from dataclasses import dataclass

from saga import Service


@dataclass(frozen=True)
class Account:
    owed: int


dunning = Service("dunning", state=Account)  # bad
