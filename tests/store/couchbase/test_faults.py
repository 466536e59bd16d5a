"""Writes when the server is busy, failing, frozen or gone, and when their caller goes away."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from saga.errors import Ambiguous, Conflict, Exists, StoreError, StoreUnavailable, TooLarge
from saga.store.couchbase import listing
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.store import CouchbaseStore
from saga.store.port import Document
from saga.support.clock import SystemClock
from saga.testing.servers.couchbase import CouchbaseMock
from tests.store.conftest import SettableClock
from tests.store.couchbase.conftest import Stores, settings_for

INTERNAL_ERROR = 0x84
FROZEN_S = 4.0
KV_S = 1.0
SLACK_S = 10.0


@contextmanager
def silence() -> Iterator[None]:
    """Nothing comes to the loop's exception handler, such as late answers to cancelled futures."""
    heard: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: heard.append(context))
    yield
    loop.set_exception_handler(None)
    assert heard == []


def children() -> list[str]:
    """Commands of our own children."""
    ours = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return [Path(f"/proc/{pid}/cmdline").read_text() for pid in ours]


async def outcome(what: Awaitable[object]) -> tuple[object, float]:
    """Result or error, and how many seconds that took."""
    began_s = time.monotonic()
    try:
        gave: object = await what
    except StoreError as why:
        gave = type(why)
    return gave, time.monotonic() - began_s


@pytest.fixture
def store_of(mock: CouchbaseMock, impatient: CouchbaseSettings, clock: SettableClock) -> Callable[[], CouchbaseStore]:
    return lambda: CouchbaseStore(impatient, clock=clock)


# -------------------------------------------------------------------- busy, failing


async def test_a_server_that_is_busy_for_a_moment_is_not_noticed(mock: CouchbaseMock, stores: Stores) -> None:
    async with stores() as store:
        mock.opfail(count=3)
        cas = await store.insert("saga", "a", b"0")
        mock.opfail(count=3)
        cas = await store.replace("saga", "a", b"1", cas=cas)
        mock.opfail(count=3)
        assert await store.get("saga", "a") == Document(b"1", cas)


async def test_a_server_that_stays_busy_is_reported_in_time_and_nothing_is_written(
    mock: CouchbaseMock, store_of: Callable[[], CouchbaseStore]
) -> None:
    async with store_of() as store:
        cas = await store.insert("saga", "a", b"0")
        mock.opfail(count=1_000_000)
        try:
            write, write_s = await outcome(store.replace("saga", "a", b"1", cas=cas))
            read, read_s = await outcome(store.get("saga", "a"))
        finally:
            mock.opfail(count=0)
        # The SDK repeats until time runs out; then it does not say whether the server had refused the last time too.
        assert write in (Ambiguous, StoreUnavailable)
        assert read is StoreUnavailable
        assert max(write_s, read_s) < KV_S + SLACK_S
        assert await store.get("saga", "a") == Document(b"0", cas)
        await store.replace("saga", "a", b"2", cas=cas)


async def test_a_server_that_fails_inside_leaves_it_open_whether_it_wrote(mock: CouchbaseMock, stores: Stores) -> None:
    async with stores() as store:
        cas = await store.insert("saga", "a", b"0")
        mock.opfail(INTERNAL_ERROR, 1)
        with pytest.raises(Ambiguous, match=r"failed inside .* is not known"):
            await store.replace("saga", "a", b"1", cas=cas)
        assert await store.get("saga", "a") == Document(b"0", cas)


async def test_a_document_that_the_server_finds_too_large_is_refused_as_such(stores: Stores) -> None:
    async with stores() as store:
        store.document_bytes_max = 1 << 30  # else it is not even sent
        with pytest.raises(TooLarge, match=r"more than 20 MB .* nothing was written: keep less"):
            await store.insert("saga", "a", b'"' + b"x" * 21_000_000 + b'"')
        assert await store.get("saga", "a") is None


async def test_the_version_that_means_any_to_couchbase_is_a_conflict(stores: Stores) -> None:
    async with stores() as store:
        cas = await store.insert("saga", "a", b"0")
        for never in (0, -1, 2**64):
            with pytest.raises(Conflict):
                await store.replace("saga", "a", b"1", cas=never)
            with pytest.raises(Conflict):
                await store.remove("saga", "a", cas=never)
        assert await store.get("saga", "a") == Document(b"0", cas)


# -------------------------------------------------------------------- frozen, gone


async def test_writes_to_a_frozen_server_are_ambiguous_and_none_of_them_counts_twice(
    mock: CouchbaseMock, store_of: Callable[[], CouchbaseStore]
) -> None:
    """Each writer raises a counter by one, and when it does not know what came of that, reads it and decides again."""
    counters, ambiguous = 8, 0
    thawed = asyncio.Event()

    async def read(store: CouchbaseStore, key: str) -> Document:
        while True:
            try:
                document = await store.get("saga", key)
            except StoreUnavailable:
                continue
            assert document is not None
            return document

    async def count(store: CouchbaseStore, key: str) -> list[int]:
        """Raise it again and again; the numbers that came out, as its only writer sees them."""
        nonlocal ambiguous
        document, written, after = Document(b"0", await store.insert("saga", key, b"0")), [0], 0
        while after < 50:  # and go on for a while when it is over
            after += thawed.is_set()
            content = b"%d" % (written[-1] + 1)
            try:
                document = Document(content, await store.replace("saga", key, content, cas=document.cas))
            except Ambiguous:
                ambiguous += 1
            except StoreUnavailable:
                continue
            except Conflict:
                pass  # an ambiguous write landed after it was looked for
            else:
                written.append(int(content))
                continue
            document = await read(store, key)
            if document.content == content:  # the answer was lost, and the write was not
                written.append(int(content))
        return written

    async def freeze_for_a_while() -> None:
        await SystemClock().sleep(0.5)
        mock.pause()
        await SystemClock().sleep(FROZEN_S)
        mock.resume()
        thawed.set()

    with silence():
        async with store_of() as store:
            async with asyncio.TaskGroup() as tasks:
                counting = [tasks.create_task(count(store, f"{n}")) for n in range(counters)]
                tasks.create_task(freeze_for_a_while())
            for n, task in enumerate(counting):
                written = task.result()
                document = await read(store, f"{n}")
                assert written == list(range(len(written)))  # no number twice, none left out
                assert int(document.content) == written[-1]
    assert ambiguous >= counters


async def test_reads_from_a_frozen_server_are_unavailable_in_time(
    mock: CouchbaseMock, store_of: Callable[[], CouchbaseStore]
) -> None:
    async with store_of() as store:
        mock.pause()
        try:
            read, took_s = await outcome(store.get("saga", "a"))
        finally:
            mock.resume()
        assert read is StoreUnavailable
        assert took_s < KV_S + SLACK_S
        assert await store.get("saga", "a") is None


async def test_a_scan_whose_process_stands_still_ends_in_time_and_so_does_the_process(
    mock: CouchbaseMock, store_of: Callable[[], CouchbaseStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "ANSWER_S", 0.5)
    async with store_of() as store:
        mock.pause()
        try:
            with pytest.raises(StoreUnavailable, match="could not be listed: try again"):
                _ = [key async for key, _ in store.scan("saga")]
        finally:
            mock.resume()
    assert not [line for line in children() if "saga.store.couchbase.listing" in line]


async def test_a_server_that_dies_fails_everything_in_time(
    server_jars: Path, tmp_path: Path, clock: SettableClock
) -> None:
    mock = CouchbaseMock.start(tmp_path)
    try:
        settings = replace(settings_for(mock), kv_s=KV_S)
        with silence():
            async with CouchbaseStore(settings, clock=clock) as store:
                cas = await store.insert("saga", "a", b"0")
                mock.pause()  # so that these are under way when it dies
                writes = asyncio.gather(*(outcome(store.insert("saga", f"{n}", b"0")) for n in range(20)))
                await asyncio.wait([writes], timeout=0.2)
                mock.stop()
                results = [*await writes, *[await outcome(store.replace("saga", "a", b"1", cas=cas)) for _ in range(3)]]
                read, read_s = await outcome(store.get("saga", "a"))
                left_s = time.monotonic()
            left_s = time.monotonic() - left_s
    finally:
        mock.stop()
    assert {gave for gave, _ in results[:20]} == {Ambiguous}
    assert {gave for gave, _ in results[20:]} <= {Ambiguous, StoreUnavailable}
    assert read is StoreUnavailable
    assert max([read_s, left_s, *(took_s for _, took_s in results)]) < KV_S + SLACK_S


# -------------------------------------------------------------------- callers that go away


async def test_a_write_continues_to_its_end_when_its_caller_is_cancelled(stores: Stores) -> None:
    with silence():
        async with stores() as store:
            writes = [asyncio.ensure_future(store.insert("saga", f"{n}", b"0")) for n in range(50)]  # noqa: TID251
            await asyncio.wait(writes, timeout=0)  # let them begin
            for write in writes:
                write.cancel()
        async with stores() as store:  # closing waited for all of them
            found = [await store.get("saga", f"{n}") for n in range(50)]
        assert all(write.cancelled() for write in writes)
        assert None not in found


async def test_a_read_whose_caller_is_cancelled_leaves_no_noise(stores: Stores) -> None:
    with silence():
        async with stores() as store:
            reads = [asyncio.ensure_future(store.get("saga", f"{n}")) for n in range(50)]  # noqa: TID251
            await asyncio.wait(reads, timeout=0)
            for read in reads:
                read.cancel()
            await asyncio.wait(reads)
            assert await store.get("saga", "a") is None


async def test_closing_waits_for_a_frozen_server_no_longer_than_a_write_may_take(
    mock: CouchbaseMock, store_of: Callable[[], CouchbaseStore]
) -> None:
    async with store_of() as store:
        mock.pause()
        try:
            write = asyncio.ensure_future(store.insert("saga", "a", b"0"))  # noqa: TID251
            await asyncio.wait([write], timeout=0)
            began_s = time.monotonic()
            await store.__aexit__()
            took_s = time.monotonic() - began_s
        finally:
            mock.resume()
        assert took_s < KV_S + SLACK_S
        with pytest.raises(Ambiguous):
            await write


# -------------------------------------------------------------------- passwords


async def test_a_new_password_is_asked_for_when_the_server_does_not_answer(
    mock: CouchbaseMock, impatient: CouchbaseSettings, clock: SettableClock
) -> None:
    asked: list[str] = []

    def password() -> str:
        asked.append(f"password {len(asked)}")
        return asked[-1]

    async with CouchbaseStore(replace(impatient, password=password), clock=clock) as store:
        assert len(asked) == 1
        cas = await store.insert("saga", "a", b"0")
        with pytest.raises(Exists):
            await store.insert("saga", "a", b"0")
        assert len(asked) == 1  # an answer is an answer
        for times in (2, 3):
            mock.opfail(INTERNAL_ERROR, 1)
            with pytest.raises(Ambiguous):
                await store.replace("saga", "a", b"1", cas=cas)
            assert len(asked) == times
            clock.ahead_s += 2
        await store.replace("saga", "a", b"1", cas=cas)


async def test_writes_with_many_under_way(stores: Stores, capsys: pytest.CaptureFixture[str]) -> None:
    """Measure writes: how fast they are depends on the machine, so it is printed and not judged."""
    many, under_way = 4000, 64
    numbers = iter(range(many))

    async def write_on(store: CouchbaseStore) -> None:
        for number in numbers:
            await store.insert("saga", f"{number}", b'{"text":"%s"}' % (b"x" * 400))

    async with stores() as store:
        began_s = time.monotonic()
        await asyncio.gather(*(write_on(store) for _ in range(under_way)))
        took_s = time.monotonic() - began_s
        assert all([await store.get("saga", f"{number}") for number in range(0, many, 100)])
    with capsys.disabled():
        print(f"\n{under_way} writes under way: {many / took_s:,.0f} writes/s")  # noqa: T201 - that is what it is for
