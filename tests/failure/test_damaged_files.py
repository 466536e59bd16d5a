"""Random damage to the bytes of files, closed and open: all acknowledged data are there, or an error names the file.

Each seed fills a store or a broker, damages one of its files in one of several ways, and reads all back as a service
would after a restart. Nothing may hang, be missing, or be other than it was written, without an error.
"""

import random  # noqa: TID251 - seeded: each damage can be made again
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.port import Subscription
from saga.errors import SagaError
from saga.messages import Outgoing, Topic
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.testing.conformance.broker_suite import RecordingListener

CLOCK = SystemClock()
SEEDS, SEEDS_A_TEST = 200, 20
WITHIN_S = 20.0
DOCUMENTS, RECORDS, PARTITIONS = 60, 120, 4
PAGE = 4096
IN_MEMORY = "/dev/shm"
"""Folder in memory, where syncing costs nothing: no machine dies here."""


def flipped(content: bytearray, chance: random.Random) -> None:
    """Some bits: a disk, a cable, a memory."""
    for _ in range(chance.choice([1, 1, 4, 32])):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def zeroed(content: bytearray, chance: random.Random) -> None:
    """A sector or a page that was never written."""
    size = chance.choice([16, 512, PAGE])
    at = chance.randrange(len(content)) // size * size
    content[at : at + size] = bytes(len(content[at : at + size]))


def scribbled(content: bytearray, chance: random.Random) -> None:
    """Another program's bytes."""
    at = chance.randrange(len(content))
    size = min(chance.choice([8, 100, 3 * PAGE]), len(content) - at)
    content[at : at + size] = chance.randbytes(size)


def swapped(content: bytearray, chance: random.Random) -> None:
    """Two pages in each other's place."""
    first, second = (chance.randrange(max(1, len(content) // PAGE)) * PAGE for _ in range(2))
    one, other = bytes(content[first : first + PAGE]), bytes(content[second : second + PAGE])
    if len(one) == len(other):
        content[first : first + PAGE], content[second : second + PAGE] = other, one


def cut(content: bytearray, chance: random.Random) -> None:
    """A file system that lost the end."""
    del content[chance.randrange(len(content)) :]


WAYS: tuple[Callable[[bytearray, random.Random], None], ...] = (flipped, flipped, zeroed, scribbled, swapped, cut)


def damage(file: Path, chance: random.Random) -> str:
    """Damage a file in place: a process that has it open reads the damage."""
    content, way = bytearray(file.read_bytes()), chance.choice(WAYS)
    way(content, chance)
    with file.open("r+b") as out:
        out.write(content)
        out.truncate()
    return f"{way.__name__} in {file.name}"


def check_error_names_file(why: SagaError, path: Path, what: str) -> str:
    """Check that the error names the file."""
    assert str(path) in str(why), f"{what}: {why}"
    return "reported"


def crashed(folder: Path, to: Path) -> None:
    """The files as they lie when the processes die now. The lock file tells of the file by its place: it is moved."""
    shutil.copytree(folder, to)
    for lock in to.glob("*.lock"):
        there = to / lock.name.removesuffix(".lock")
        content = bytearray(lock.read_bytes())
        if len(content) >= 24:
            status = there.stat()
            content[8:24] = status.st_dev.to_bytes(8) + status.st_ino.to_bytes(8)
            lock.write_bytes(content)


# -------------------------------------------------------------------- the store


def content_of(chance: random.Random) -> bytes:
    return b'{"text": "%b"}' % chance.randbytes(chance.choice([8, 200, 6000])).hex().encode()


async def fill_store(store: SqliteStore, chance: random.Random) -> dict[str, bytes]:
    held: dict[str, tuple[bytes, int]] = {}
    for n in range(DOCUMENTS):
        key, content = f"order-{n:03}", content_of(chance)
        held[key] = content, await store.insert("saga", key, content, expiry_s=chance.choice([None, 1e6]))
        if held and chance.random() < 0.4:
            key, content = chance.choice(sorted(held)), content_of(chance)
            held[key] = content, await store.replace("saga", key, content, cas=held[key][1])
        if chance.random() < 0.1:
            key = chance.choice(sorted(held))
            await store.remove("saga", key, cas=held.pop(key)[1])
    return {key: content for key, (content, _) in held.items()}


async def read_store(store: SqliteStore, held: dict[str, bytes]) -> None:
    """Read a store as a service does: each document by key; one that is not there it makes."""
    for key, content in held.items():
        document = await store.get("saga", key)
        assert document is not None, f"{key} is missing"
        assert document.content == content, f"{key} is another"
    for n in range(DOCUMENTS):
        if (key := f"order-{n:03}") not in held:
            assert await store.get("saga", key) is None, f"{key} is there again"
    assert {key: document.content async for key, document in store.scan("saga", "order-")} == held
    if await store.get("saga", "new") is None:
        await store.insert("saga", "new", b"{}")


def drop_cache(connection: sqlite3.Connection | None) -> None:
    """Drop what SQLite keeps of a file in memory: it would hide the damage."""
    assert connection is not None, "it is open"
    connection.execute("PRAGMA shrink_memory")


# -------------------------------------------------------------------- the broker


async def fill_broker(broker: EmbeddedBroker, chance: random.Random) -> dict[bytes, bytes]:
    await broker.ensure_topics([Topic("orders", PARTITIONS)])
    held = {}
    for n in range(RECORDS // 10):
        records = [
            Outgoing("orders", b"k%d-%d" % (n, m), content_of(chance), (("ce_id", b"%d" % m),)) for m in range(10)
        ]
        await broker.publish(records)
        held.update({record.key or b"": record.value or b"" for record in records})
    return held


async def read_broker(broker: EmbeddedBroker, held: dict[bytes, bytes]) -> None:
    """Read a broker as a service that joins: it has all, or hears why not."""
    found: dict[bytes, bytes] = {}
    listening = RecordingListener()
    async with broker.join(Subscription(f"group-{id(broker)}", ["orders"]), listening) as member:
        until_s = CLOCK.monotonic_s() + WITHIN_S / 2
        while not held.keys() <= found.keys():
            assert CLOCK.monotonic_s() < until_s, f"{len(held) - len(found)} records never come"
            for record in await member.poll(list(listening.has), records_max=50, timeout_s=0.05):
                found[record.key or b""] = record.value or b""
            if standing := member.stalled_partitions():
                raise SagaError(standing[0].reason)
            if len(listening.has) == PARTITIONS and member.lag() is not None and not any((member.lag() or {}).values()):
                break
    found.pop(b"new", None)
    assert found == held, "records are missing, or others"
    await broker.publish([Outgoing("orders", b"new", b"", ())])


# -------------------------------------------------------------------- the search


class Victim(Protocol):
    """State file of a store or a broker: opened, filled, and read as a service does."""

    name: str

    def open(self, path: Path) -> AbstractAsyncContextManager[Any]: ...
    async def fill(self, opened: Any, chance: random.Random) -> Any: ...
    async def read(self, opened: Any, held: Any) -> None: ...
    def connection(self, opened: Any) -> sqlite3.Connection | None: ...


class TheStore:
    name = "payment.db"
    fill, read = staticmethod(fill_store), staticmethod(read_store)

    def open(self, path: Path) -> SqliteStore:
        return SqliteStore(path, clock=CLOCK)

    def connection(self, opened: SqliteStore) -> sqlite3.Connection | None:
        return opened._connection()


class TheBroker:
    name = "broker.db"
    fill, read = staticmethod(fill_broker), staticmethod(read_broker)

    def open(self, path: Path) -> EmbeddedBroker:
        return EmbeddedBroker(path, clock=CLOCK)

    def connection(self, opened: EmbeddedBroker) -> sqlite3.Connection | None:
        return opened.connection


async def damaged(victim: Victim, folder: Path, chance: random.Random) -> str:
    """Fate of one file: `whole`, or what was reported about it."""
    path = folder / "live" / victim.name
    first = victim.open(path)
    opened = await first.__aenter__()
    held = await victim.fill(opened, chance)
    how = chance.choice(["closed", "crashed", "open"])
    if how == "open":
        file = path.with_name(path.name + chance.choice(["", "-wal"]))
        what = f"open: {damage(file, chance)}"
        drop_cache(victim.connection(opened))
        try:
            await victim.read(opened, held)
        except SagaError as why:
            return check_error_names_file(why, path, what)
        finally:
            with suppress(SagaError):
                await first.__aexit__(None, None, None)
        there = path
    elif how == "crashed":
        there = folder / "crashed" / path.name
        crashed(path.parent, there.parent)
        await first.__aexit__(None, None, None)
        file = there.with_name(there.name + chance.choice(["", "-wal", "-wal"]))
        what = f"crashed: {damage(file, chance)}"
        there.with_name(f"{there.name}-shm").unlink(missing_ok=True)  # memory of the processes that died
    else:
        await first.__aexit__(None, None, None)
        what, there = f"closed: {damage(path, chance)}", path
    try:
        async with victim.open(there) as again:
            await victim.read(again, held)
    except SagaError as why:
        return check_error_names_file(why, there, what)
    except AssertionError as why:
        raise AssertionError(f"{what}: {why}") from why
    return "whole"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(first, marks=[pytest.mark.slow] if first >= SEEDS / 2 else [])
        for first in range(0, SEEDS, SEEDS_A_TEST)
    ],
)
@pytest.mark.parametrize("victim", [TheStore(), TheBroker()], ids=["store", "broker"])
async def test_damage_of_any_file_loses_no_acknowledged_record_silently(victim: Victim, first: int) -> None:
    became: list[str] = []
    for seed in range(first, first + SEEDS_A_TEST):
        with TemporaryDirectory(dir=IN_MEMORY if Path(IN_MEMORY).is_dir() else None) as folder:  # noqa: ASYNC240
            try:
                became.append(await CLOCK.within(WITHIN_S, damaged(victim, Path(folder), random.Random(seed))))
            except TimeoutError:
                pytest.fail(f"seed {seed}: it hangs")
            except BaseException as why:
                why.add_note(f"seed {seed}")
                raise
    assert set(became) == {"reported", "whole"}, "the damage shows, and not always"
