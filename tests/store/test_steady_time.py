"""A clock that is wrong for a moment neither removes a document nor lets one be born expired."""

from pathlib import Path

import pytest

from saga.store.port import Document
from saga.store.sqlite.documents import PURGE_EVERY_MS
from saga.store.sqlite.steady_time import BELIEVED_AFTER_S, NOTE_EVERY_S, SteadyTime
from saga.store.sqlite.store import SqliteStore
from tests.store.conftest import SettableClock

DAY_S = 86_400


class SetWrongly(SettableClock):
    """The time of day may be set without time passing."""

    wrong_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.wrong_s * 1000)


@pytest.fixture
def clock() -> SetWrongly:
    return SetWrongly()


async def test_a_write_by_a_clock_far_ahead_removes_nothing(path: Path, clock: SetWrongly) -> None:
    async with SqliteStore(path, clock=clock) as store:
        cas = [await store.insert("saga", f"{n}", b"0", expiry_s=30 * DAY_S) for n in range(4)]
        clock.ahead_s += PURGE_EVERY_MS / 1000 + 1
        clock.wrong_s = 365 * DAY_S
        await store.insert("saga", "meanwhile", b"0", expiry_s=30 * DAY_S)
        cas[0] = await store.replace("saga", "0", b"1", cas=cas[0], expiry_s=30 * DAY_S)
        assert await store.get("saga", "1") == Document(b"0", cas[1])
        clock.wrong_s = 0
        assert await store.get("saga", "0") == Document(b"1", cas[0])
        assert [key async for key, _ in store.scan("saga")] == ["0", "1", "2", "3", "meanwhile"]


async def test_a_write_by_a_clock_far_behind_is_not_expired_at_once(path: Path, clock: SetWrongly) -> None:
    async with SqliteStore(path, clock=clock) as store:
        clock.wrong_s = -365 * DAY_S
        cas = await store.insert("saga", "a", b"0", expiry_s=30 * DAY_S)
        clock.wrong_s = 0
        clock.ahead_s += 29 * DAY_S
        assert await store.get("saga", "a") == Document(b"0", cas)


async def test_expired_documents_are_purged_after_a_clock_that_was_far_ahead_is_put_right(
    path: Path, clock: SetWrongly
) -> None:
    clock.wrong_s = 365 * DAY_S
    async with SqliteStore(path, clock=clock) as store:
        await store.insert("saga", "by the wrong clock", b"0")
        clock.wrong_s = 0
        await store.insert("saga", "while it is doubted", b"0")
        clock.ahead_s += BELIEVED_AFTER_S + 1
        for n in range(5):
            await store.insert("saga", f"expiring {n}", b"0", expiry_s=60)
        clock.ahead_s += DAY_S
        for n in range(5):
            await store.insert("saga", f"later {n}", b"0")
        rows = store._connection().execute("SELECT count(*) FROM documents WHERE key LIKE 'expiring%'")
        assert rows.fetchall() == [(0,)]


def test_a_new_time_is_believed_once_it_has_been_steady_for_an_hour(clock: SetWrongly) -> None:
    time = SteadyTime(clock)
    clock.wrong_s = 7 * DAY_S
    for _ in range(3):
        looked = time.look()
        assert abs(looked.latest_ms - looked.earliest_ms - 7 * DAY_S * 1000) < 1000
        clock.ahead_s += BELIEVED_AFTER_S / 4
    clock.ahead_s += BELIEVED_AFTER_S / 2
    looked = time.look()
    assert looked.latest_ms == looked.earliest_ms
    assert abs(looked.latest_ms - clock.now_ms()) < 1000


def test_each_new_time_is_doubted_again(clock: SetWrongly) -> None:
    time = SteadyTime(clock)
    for wrong_s in (DAY_S, 2 * DAY_S, 3 * DAY_S):
        clock.wrong_s = wrong_s
        clock.ahead_s += BELIEVED_AFTER_S * 0.9
        looked = time.look()
        assert looked.latest_ms - looked.earliest_ms > 0.9 * wrong_s * 1000


def test_a_clock_that_is_slowly_put_right_is_believed(clock: SetWrongly) -> None:
    time = SteadyTime(clock)
    for _ in range(100):
        clock.ahead_s += 60
        clock.wrong_s += 30
        looked = time.look()
        assert looked.latest_ms == looked.earliest_ms


async def test_a_clock_that_is_far_ahead_when_the_file_is_opened_removes_nothing(path: Path, clock: SetWrongly) -> None:
    async with SqliteStore(path, clock=clock) as store:
        cas = await store.insert("saga", "a", b"0", expiry_s=30 * DAY_S)
    clock.wrong_s = 365 * DAY_S
    for _ in range(3):  # each process looks at the same wrong clock, within the hour
        async with SqliteStore(path, clock=clock) as store:
            clock.ahead_s += NOTE_EVERY_S + 1
            assert await store.get("saga", "a") == Document(b"0", cas)
            await store.insert("saga", f"at {clock.ahead_s}", b"0", expiry_s=30 * DAY_S)
    clock.wrong_s = 0
    async with SqliteStore(path, clock=clock) as store:
        assert await store.get("saga", "a") == Document(b"0", cas)


async def test_a_clock_that_is_far_behind_when_the_file_is_opened_lets_nothing_expire_at_once(
    path: Path, clock: SetWrongly
) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await store.insert("saga", "a", b"0", expiry_s=None)
    clock.wrong_s = -365 * DAY_S
    async with SqliteStore(path, clock=clock) as store:
        cas = await store.insert("saga", "b", b"0", expiry_s=30 * DAY_S)
    clock.wrong_s = 0
    async with SqliteStore(path, clock=clock) as store:
        assert await store.get("saga", "b") == Document(b"0", cas)


async def test_time_in_which_no_process_had_the_file_counts_once_the_clock_was_steady_for_an_hour(
    path: Path, clock: SetWrongly
) -> None:
    async with SqliteStore(path, clock=clock) as store:
        await store.insert("saga", "a", b"0", expiry_s=DAY_S)
    clock.wrong_s = 2 * DAY_S  # what a clock shows after a pause; the monotonic one of a new process tells nothing
    async with SqliteStore(path, clock=clock) as store:
        assert await store.get("saga", "a") is not None
        clock.ahead_s += BELIEVED_AFTER_S / 2
        await store.insert("saga", "b", b"0", expiry_s=None)
    async with SqliteStore(path, clock=clock) as store:  # a restart does not begin the hour again
        assert await store.get("saga", "a") is not None
        clock.ahead_s += BELIEVED_AFTER_S / 2 + 1
        assert await store.get("saga", "a") is None
