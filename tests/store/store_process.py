"""A process on a store, for tests: `python -m tests.store.store_process PATH count NAME TIMES`, or `PATH write`."""

import asyncio
import contextlib
import sys
from pathlib import Path

from saga.errors import Conflict, Exists
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock


async def count(store: SqliteStore, name: str, times: int) -> None:
    """Raise the one counter `times` times, and note each of its values under our name."""
    done = 0
    while done < times:
        document = await store.get("counter", "one")
        if document is None:
            with contextlib.suppress(Exists):
                await store.insert("counter", "one", b"0")
            continue
        value = int(document.content) + 1
        try:
            await store.replace("counter", "one", b"%d" % value, cas=document.cas)
        except Conflict:
            continue
        done += 1
        await store.insert("seen", f"{value:06}", name.encode())


async def write(store: SqliteStore) -> None:
    """Write without end; say each number once it is acknowledged."""
    number = 0
    while True:
        await asyncio.gather(*(store.insert("saga", f"{number + n:06}", b"x" * 500) for n in range(5)))
        number += 5
        print(number, flush=True)  # noqa: T201 - how the test learns what was acknowledged


async def main(path: str, what: str, *rest: str) -> None:
    async with SqliteStore(Path(path), clock=SystemClock()) as store:
        if what == "count":
            await count(store, rest[0], int(rest[1]))
        else:
            await write(store)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
