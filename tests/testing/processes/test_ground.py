"""The files below a world: read as they are, and written though somebody holds a lock."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from saga.broker.embedded.locks import WriteLock
from saga.broker.port import Topic
from saga.clock import SystemClock
from saga.declarations.values import Declared
from saga.errors import SagaError
from saga.messages import Outgoing
from saga.progress import history
from saga.progress.document import Snapshot, encode, progress_key
from saga.progress.history import Archive
from saga.runtime.persistence import ARCHIVES, COLLECTION
from saga.store.sqlite import SqliteStore
from saga.testing.processes.ground import Ground
from tests.progress.pieces import blank
from tests.testing.processes.test_verdict import handled

A_TOPIC = Topic("things", partitions=2)
A_RECORD = Outgoing("things", b"s", b"1", ())


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with Ground(tmp_path, SystemClock()) as ground:
        yield ground


def test_publishing_waits_for_the_lock_while_the_world_goes_on(ground: Ground) -> None:
    lock = WriteLock(ground.broker_file.with_name("broker.db.lock"))
    assert lock.taken()
    try:
        ground.publish([A_RECORD], [A_TOPIC])
        assert waits(ground, looks=5) == 5
    finally:
        lock.release()
        lock.close()
    assert waits(ground, looks=200) < 200


def waits(ground: Ground, *, looks: int) -> int:
    """At how many of so many looks something is not published yet."""
    for look in range(looks):
        ground.wait(0.02)
        if not ground.is_publishing:
            return look
    return looks


def test_what_cannot_be_published_is_raised_while_the_world_waits(ground: Ground) -> None:
    ground.publish([A_RECORD])
    with pytest.raises(SagaError, match="things"):
        ground.wait(0.1)
    assert not ground.is_publishing


def test_a_history_is_read_with_its_archives(ground: Ground) -> None:
    ground.prepare(Declared(name="svc", state=None, memory=timedelta(1)), {})
    p = blank()
    for _ in range(history.TRANSITIONS_MAX + 1):
        p = handled(p)
    archive = history.to_archive(p)
    assert archive is not None
    trimmed = history.trimmed(p, archive)
    earlier = replace(archive, first=5)  # of another saga that had the same id
    asyncio.run(write(ground.store_file("svc"), trimmed, archive, earlier))
    (found,) = ground.histories(["svc"])
    assert found.transitions == p.transitions
    assert found.snapshot.first == len(archive.transitions)
    assert history.verify(found.transitions, found.snapshot) is None


async def write(file: Path, p: Snapshot, *archives: Archive) -> None:
    async with SqliteStore(file, clock=SystemClock()) as store:
        await store.insert(COLLECTION, progress_key("svc", p.saga), encode(p))
        for archive in archives:
            key = history.archive_key("svc", p.saga, archive.first)
            await store.insert(ARCHIVES, key, msgspec.json.encode(archive))
