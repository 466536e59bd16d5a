"""The command `saga` where no store may grow, as if it were full: `python -m tests.failure.tight run SERVICE`."""

from collections.abc import Callable
from typing import TypeVar

from saga.cli.main import main
from saga.store import sqlite_file

T = TypeVar("T")

PAGES = 5
"""Fewer than the tables of an empty store and its trial of writing take."""


def tightened(connect: Callable[..., T]) -> Callable[..., T]:
    """Opens files as before, and keeps them from growing."""

    def opened(path: object, factory: object, bytes_max: int | None) -> T:
        return connect(path, factory, PAGES * sqlite_file.PAGE_BYTES)

    return opened


if __name__ == "__main__":
    sqlite_file.connect = tightened(sqlite_file.connect)
    main()
