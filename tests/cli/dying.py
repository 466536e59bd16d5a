"""`python -m tests.cli.dying MODULE`: `saga run MODULE`, killed at one boundary: before or after a call of a port.

`SAGA_TEST_DIES_AT` says at which of them, counted from the start of the process; its name is added to the file
`SAGA_TEST_DEATHS`. The file `SAGA_TEST_SIZES`, if there is one, has each document that is written, with its size.
"""

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from saga.broker.kafka.broker import KafkaBroker
from saga.broker.kafka.membership import KafkaMember
from saga.cli.main import main
from saga.store.couchbase.store import CouchbaseStore

AT, DEATHS, SIZES = "SAGA_TEST_DIES_AT", "SAGA_TEST_DEATHS", "SAGA_TEST_SIZES"
CALLS: tuple[tuple[type, str], ...] = (
    (KafkaBroker, "publish"),
    (KafkaMember, "commit"),
    (KafkaMember, "mark_in_progress"),
    (KafkaMember, "clear_in_progress"),
    (CouchbaseStore, "get"),
    (CouchbaseStore, "insert"),
    (CouchbaseStore, "replace"),
)
"""Calls that a worker makes while it handles; each has a boundary before it, and one after it."""


class Boundaries:
    """Count of the boundaries that were crossed."""

    def __init__(self, at: int) -> None:
        self._left = at

    def cross(self, name: str) -> None:
        self._left -= 1
        if self._left == 0:
            with open(os.environ[DEATHS], "a", encoding="utf-8") as deaths:
                deaths.write(f"{name}\n")
            os.kill(os.getpid(), signal.SIGKILL)


def plant(kind: type, name: str, boundaries: Boundaries) -> None:
    """Put a boundary before and after each call."""
    real: Callable[..., Awaitable[Any]] = getattr(kind, name)

    async def crossing(*args: Any, **kwargs: Any) -> Any:
        boundaries.cross(f"before {name}")
        if kind is CouchbaseStore and name != "get" and SIZES in os.environ:
            weigh(*args[1:])
        answer = await real(*args, **kwargs)
        boundaries.cross(f"after {name}")
        return answer

    setattr(kind, name, crossing)


def weigh(collection: str, key: str, content: bytes) -> None:
    with open(os.environ[SIZES], "a", encoding="utf-8") as sizes:
        sizes.write(f"{collection} {key} {len(content)}\n")


if __name__ == "__main__":
    boundaries = Boundaries(int(os.environ[AT]))
    for kind, name in CALLS:
        plant(kind, name, boundaries)
    main(["run", *sys.argv[1:]])
