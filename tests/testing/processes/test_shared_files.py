"""The files below a world: read as they are, and written though another process has a lock."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from saga.errors import SagaError
from saga.messages import Outgoing, Position, Topic
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress import history, journal
from saga.progress.document import SagaProgress, encode, progress_key
from saga.progress.history import TransitionArchive
from saga.progress.journal import TransitionDetails, WriteContext
from saga.store.sqlite.state_file import WriteLock
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.testing.invariants.evidence import collect_lives, find_broken_chain
from saga.testing.processes.shared_files import ServiceWrite, SharedFiles
from saga.testing.world import DocumentWrite
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from tests.progress.pieces import NOW_MS, a_message, a_role, blank, roles_of

A_TOPIC = Topic("things", partitions=2)
A_RECORD = Outgoing("things", b"s", b"1", ())
LOOKS_MAX = 3000
"""Looks in a minute: how long a busy machine may take until something is published."""


@pytest.fixture
def files(tmp_path: Path) -> Iterator[SharedFiles]:
    with SharedFiles(tmp_path, SystemClock()) as files:
        yield files


def test_publishing_waits_for_the_lock_while_the_world_continues(files: SharedFiles) -> None:
    lock = WriteLock(files.broker_file.with_name("broker.db.lock"))
    assert lock.try_acquire()
    try:
        files.publish([A_RECORD], [A_TOPIC])
        assert waits(files, looks=5) == 5
    finally:
        lock.release()
        lock.close()
    assert waits(files, looks=LOOKS_MAX) < LOOKS_MAX


def waits(files: SharedFiles, *, looks: int) -> int:
    """At how many of so many looks something is not published yet."""
    for look in range(looks):
        files.wait(0.02)
        if not files.is_publishing:
            return look
    return looks


def test_a_publishing_error_is_raised_while_the_world_waits(files: SharedFiles) -> None:
    files.publish([A_RECORD])
    with pytest.raises(SagaError, match="things"):
        waits(files, looks=LOOKS_MAX)
    assert not files.is_publishing


def test_evidence_includes_archives_and_the_log(files: SharedFiles) -> None:
    files.prepare(order.declared, {})
    p = replace(blank(), service="order")
    for _ in range(history.TRANSITIONS_MAX + 1):
        p = handled(p)
    archive = history.build_archive(p)
    assert archive is not None
    trimmed = history.remove_archived(p, archive)
    earlier = replace(archive, first=5)  # of another saga that had the same id
    asyncio.run(write(files.store_file("order"), trimmed, archive, earlier))
    files.publish([A_RECORD._replace(topic="orders")])
    assert waits(files, looks=LOOKS_MAX) < LOOKS_MAX
    evidence = files.evidence([order.declared])
    assert evidence.partial
    assert [(record.topic, record.key) for record in evidence.log] == [("orders", b"s")]
    assert sorted(evidence.ends.values())[-2:] == [0, 1]
    assert {topic for topic, _ in evidence.ends} >= {"orders", "order.dead"}
    left = evidence.services["order"]
    assert set(left.committed.values()) == {0}
    (life,) = collect_lives(left.service, left.versions["s"], left.archives["s"])
    assert life.raw_transitions == p.transitions
    assert life.p.first == len(archive.transitions)
    assert find_broken_chain(life) is None


def handled(p: SagaProgress) -> SagaProgress:
    """With one transition more."""
    message, role = a_message("A", id=f"m-{p.n}"), a_role("confirm", "A", many=True)
    hand = WriteContext(
        message=message,
        position=Position("things", 0, p.n),
        roles=roles_of(),
        self_consumed_types=(),
        now_ms=NOW_MS,
        retention_s=1000,
    )
    ended = TransitionDetails(cause=message.id, message=message, parts=(message,), delta={"x": p.n})
    return journal.complete_run(p, hand, role, ended).snapshot


async def write(file: Path, p: SagaProgress, *archives: TransitionArchive) -> None:
    async with SqliteStore(file, clock=SystemClock()) as store:
        await store.insert(PROGRESS, progress_key(p.service, p.saga), encode(p))
        for archive in archives:
            key = history.archive_key(p.service, p.saga, archive.first)
            await store.insert(ARCHIVES, key, msgspec.json.encode(archive))


def test_evidence_names_the_documents_that_the_test_has_removed(files: SharedFiles) -> None:
    files.prepare(inventory.declared, {"tea": Stock(left=5), "ink": Stock(left=5)})
    removed = DocumentWrite("stock", "tea", None, None)
    files.publish([ServiceWrite("inventory", removed), ServiceWrite("inventory", removed._replace(content=b"{}"))])
    assert waits(files, looks=LOOKS_MAX) < LOOKS_MAX
    witnessed = files.evidence([inventory.declared]).services["inventory"]
    assert witnessed.removed == {"stock/tea"}
    assert set(witnessed.documents) == {("stock", "tea"), ("stock", "ink")}
