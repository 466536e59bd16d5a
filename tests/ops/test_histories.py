"""Reading a saga that outgrew its progress: archives that follow one another, and nothing else."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.messaging.names import ARCHIVES, PROGRESS
from saga.ops.histories import UnreadableHistory, read_histories, read_history
from saga.ops.sources import ServiceStore
from saga.progress import overflow
from saga.progress.document import PAGED, SagaProgress, Transition, encode, progress_key
from saga.progress.history import TransitionArchive, archive_key
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock

SAGA = "order-1"


def an_entry(n: int) -> Transition:
    return Transition(
        n=n,
        time="2026-01-01T00:00:00.000Z",
        message=f"m-{n}",
        type="T",
        source="s",
        handler="h",
        outcome="handled",
        previous="",
    )


RAWS = tuple(Raw(encode(an_entry(n))) for n in range(6))


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[ServiceStore]:
    async with SqliteStore(tmp_path / "order.db", clock=SystemClock()) as store:
        yield ServiceStore("order", store)


async def keep(source: ServiceStore, *archives: TransitionArchive) -> None:
    """A progress that begins with the fifth transition, and these archives, each under the key of its number."""
    p = SagaProgress(service="order", saga=SAGA, n=6, first=4, transitions=RAWS[4:])
    await source.store.insert(PROGRESS, progress_key("order", SAGA), encode(p))
    for archive in archives:
        await source.store.insert(ARCHIVES, archive_key("order", SAGA, archive.first), encode(archive))


def archive(first: int, end: int, saga: str = SAGA) -> TransitionArchive:
    return TransitionArchive(service="order", saga=saga, first=first, transitions=RAWS[first:end])


async def numbers(source: ServiceStore) -> list[int]:
    history = await read_history(source, SAGA)
    assert history is not None
    assert [found async for found in read_histories(source)] == [history]
    return [entry.n for entry in history.entries]


async def test_archives_are_read_one_after_another_up_to_the_progress(source: ServiceStore) -> None:
    # The last one repeats what the progress still has; that at 3 is of an earlier saga of the same id.
    await keep(source, archive(0, 2), archive(2, 4), archive(4, 6), archive(3, 6))
    assert await numbers(source) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "second", [None, archive(2, 4, saga="order-2"), archive(2, 2)], ids=["missing", "of another saga", "empty"]
)
async def test_what_does_not_follow_is_left_out(source: ServiceStore, second: TransitionArchive | None) -> None:
    await keep(source, archive(0, 2), *([second] if second else []))
    assert await numbers(source) == [0, 1, 4, 5]


async def test_an_archive_of_other_transitions_under_a_key_is_left_out(source: ServiceStore) -> None:
    await keep(source)
    await source.store.insert(ARCHIVES, archive_key("order", SAGA, 0), encode(archive(2, 4)))
    assert await numbers(source) == [4, 5]


async def test_a_damaged_archive_is_unreadable_unless_what_it_has_is_known(source: ServiceStore) -> None:
    await keep(source)
    await source.store.insert(ARCHIVES, archive_key("order", SAGA, 0), b"{}")
    with pytest.raises(UnreadableHistory, match="an archive of saga order-1 in order cannot be read"):
        await read_history(source, SAGA)
    known = await read_history(source, SAGA, since=4)
    assert known is not None
    assert [entry.n for entry in known.entries] == [4, 5]


async def test_a_segment_that_is_damaged_on_disk_makes_its_saga_unreadable(
    source: ServiceStore, tmp_path: Path
) -> None:
    p = SagaProgress(service="order", saga=SAGA)
    new = overflow.make_inbox_segment(p, [bytes(12)], newest=1, until=1 << 40)
    p = replace(p, format=PAGED, segments=(new.segment,))
    await source.store.insert(PROGRESS, progress_key("order", SAGA), encode(p))
    await source.store.insert(ARCHIVES, key := overflow.segment_key("order", SAGA, new.segment), new.content)
    assert await read_history(source, SAGA) is not None
    with closing(sqlite3.connect(tmp_path / "order.db")) as file, file:
        file.execute("UPDATE documents SET content = x'7b7d' WHERE key = ?", (key,))
    with pytest.raises(UnreadableHistory, match=r"a page of order-1 in order cannot be read: .*is damaged"):
        await read_history(source, SAGA)


async def test_an_unknown_saga_has_no_history(source: ServiceStore) -> None:
    assert await read_history(source, SAGA) is None
