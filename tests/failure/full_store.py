"""The command `saga` where no store may grow, as if it were full: `python -m tests.failure.full_store run SERVICE`."""

from collections.abc import Callable
from typing import TypeVar

from saga.cli.main import main
from saga.store.sqlite import connection
from saga.store.sqlite.errors import StateFileSpec

T = TypeVar("T")

PAGES = 5
"""Fewer than the tables of an empty store and its trial of writing take."""


def tightened(connect: Callable[..., T]) -> Callable[..., T]:
    """Opens files as before, and keeps stores from growing."""

    def opened(path: object, purpose: StateFileSpec, factory: object, bytes_max: int | None) -> T:
        return connect(path, purpose, factory, PAGES * connection.PAGE_BYTES if purpose.name == "store" else bytes_max)

    return opened


if __name__ == "__main__":
    connection.connect = tightened(connection.connect)
    main()
