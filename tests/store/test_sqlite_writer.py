"""The writer of a state file, as a store and as a broker have it: what shares a transaction, and what becomes of it."""

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

import pytest

from saga.broker.embedded.log import PURPOSE as BROKER
from saga.errors import Broken, SagaError
from saga.store.sqlite import integrity
from saga.store.sqlite.documents import PURPOSE as STORE
from saga.store.sqlite.errors import StateFileSpec
from saga.store.sqlite.state_file import StateFile, WriteLock
from saga.store.sqlite.writer import BUSY_S, WAIT_S_MAX, GroupCommitter
from saga.support.clock import SystemClock

CLOCK = SystemClock()
ROOM = 10


class Planted(sqlite3.Connection):
    """Fails at the statements that begin so, once each."""

    fails: dict[str, int]

    def execute(self, sql: str, parameters: object = (), /) -> sqlite3.Cursor:
        for beginning, code in list(Planted.fails.items()):
            if sql.startswith(beginning):
                del Planted.fails[beginning]
                error = sqlite3.OperationalError("planted")
                error.sqlite_errorcode = code
                raise error
        return super().execute(sql, parameters)  # type: ignore[arg-type]  # the stub's type of parameters is private


class Notes:
    """Contents of which nothing but the order is noted."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self, connection: sqlite3.Connection) -> None:
        self.calls.append("begin")

    def finish(self, changes: int) -> None:
        self.calls.append(f"finish {changes}")

    def on_commit(self) -> bytes | None:
        self.calls.append("committed")
        return None

    def on_rollback(self) -> None:
        self.calls.append("rolled back")

    def announce(self) -> None:
        self.calls.append("announce")


class Open:
    """A file with one number in it, and all that belongs to it."""

    def __init__(self, path: Path, purpose: StateFileSpec) -> None:
        self.file = StateFile(path, purpose, clock=CLOCK, lock_s=0.2, factory=Planted)
        self.contents = Notes()
        self.broken: list[Broken] = []
        self.writer: GroupCommitter

    def add(self, number: int) -> int:
        self.file.connection().execute("UPDATE counted SET number = number + ?", (number,))
        return number

    @property
    def number(self) -> int:
        (found,) = self.file.connection().execute("SELECT number FROM counted").fetchone()
        return int(found)


@pytest.fixture(params=[STORE, BROKER], ids=["store", "broker"])
def purpose(request: pytest.FixtureRequest) -> StateFileSpec:
    purpose: StateFileSpec = request.param
    return purpose


@pytest.fixture(autouse=True)
def nothing_planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    Planted.fails = {}
    monkeypatch.setattr(integrity, "CHECK_EVERY_S", 0.0)
    yield
    assert Planted.fails == {}, "what was planted did not come up"


async def open_up(path: Path, purpose: StateFileSpec) -> Open:
    there = Open(path, purpose)
    await there.file.open(lambda connection, mark: None)
    there.writer = GroupCommitter(there.file, there.contents, room=ROOM, broken=there.broken.append)
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("CREATE TABLE IF NOT EXISTS counted AS SELECT 0 AS number")
    there.file.guard._state._tables_max = None  # the table of this test was made while it was open
    return there


async def close_down(there: Open) -> None:
    try:
        await there.writer.close()
    finally:
        there.file.close()


@asynccontextmanager
async def opened(path: Path, purpose: StateFileSpec) -> AsyncIterator[Open]:
    there = await open_up(path, purpose)
    try:
        yield there
    finally:
        await close_down(there)


@pytest.fixture
async def there(tmp_path: Path, purpose: StateFileSpec) -> AsyncIterator[Open]:
    async with opened(tmp_path / "state.db", purpose) as there:
        yield there


def refuses() -> int:
    raise SagaError("not today")


async def test_concurrent_writes_are_one_transaction_in_order_with_an_answer_each(there: Open) -> None:
    assert await asyncio.gather(*(there.writer.do(partial(there.add, n)) for n in range(5))) == [0, 1, 2, 3, 4]
    assert there.number == 10
    assert there.contents.calls == ["begin", "finish 5", "committed", "announce"]


async def test_a_transaction_waits_while_the_loop_is_busy_and_not_without_end(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, written, most = asyncio.get_running_loop(), list[asyncio.Future[int]](), ROOM // 2
    passed_s = loop.time()
    monkeypatch.setattr(loop, "time", lambda: passed_s)

    def another() -> None:
        """One change in each turn of the loop, which takes its time."""
        nonlocal passed_s
        passed_s += WAIT_S_MAX / most
        if len(written) < 3 * most:
            loop.call_soon(another)
            written.append(there.writer.do(partial(there.add, 1)))

    another()
    while len(written) < 3 * most:
        await CLOCK.sleep(0)
    await asyncio.gather(*written)
    counts = [int(line.removeprefix("finish ")) for line in there.contents.calls if line.startswith("finish ")]
    assert sum(counts) == 3 * most
    assert most - 1 <= max(counts) <= most + 2, "it waits, and not without end"


async def test_a_transaction_waits_while_each_turn_brings_more_however_short_it_is(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, written = asyncio.get_running_loop(), list[asyncio.Future[int]]()
    monkeypatch.setattr(loop, "time", lambda: 0.0)

    def another() -> None:
        if len(written) < ROOM // 2 - 1:
            loop.call_soon(another)
        written.append(there.writer.do(partial(there.add, 1)))

    another()
    while len(written) < ROOM // 2:
        assert there.contents.calls == []
        await CLOCK.sleep(0)
    await asyncio.gather(*written)
    assert [line for line in there.contents.calls if line.startswith("finish")] == [f"finish {ROOM // 2}"]


async def test_a_full_transaction_waits_for_no_further_write(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    passed_s = loop.time()

    def time_s() -> float:
        nonlocal passed_s
        passed_s += 2 * BUSY_S  # there was always something to do
        return passed_s

    monkeypatch.setattr(loop, "time", time_s)
    full = [there.writer.do(partial(there.add, 1), takes=1) for _ in range(ROOM)]
    await CLOCK.sleep(0)
    await CLOCK.sleep(0)
    assert all(done.done() for done in full)


async def test_a_change_that_comes_alone_waits_for_no_other(there: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 0.0)  # no turn counts as busy on a slow machine
    written = there.writer.do(lambda: there.add(1))
    await CLOCK.sleep(0)
    await CLOCK.sleep(0)
    assert written.done()


async def test_a_transaction_takes_what_it_has_room_for_and_the_next_one_the_rest(there: Open) -> None:
    await asyncio.gather(*(there.writer.do(lambda: there.add(1), takes) for takes in (1, 5, 5, 1, ROOM + 1, 1)))
    assert [line for line in there.contents.calls if line.startswith("finish")] == ["finish 3", "finish 2", "finish 1"]


async def test_a_change_that_refuses_fails_alone(there: Open) -> None:
    changes = (lambda: there.add(1), refuses, lambda: there.add(2))
    first, second, third = await asyncio.gather(*map(there.writer.do, changes), return_exceptions=True)
    assert (first, str(second), third) == (1, "not today", 2)
    assert there.number == 3


async def test_cancelled_writers_get_no_answer_and_the_others_get_their_own(there: Open) -> None:
    changes = (lambda: there.add(1), refuses, lambda: there.add(2), refuses)
    answers = [there.writer.do(change) for change in changes]
    answers[0].cancel()
    answers[1].cancel()
    third, fourth = await asyncio.gather(*answers[2:], return_exceptions=True)
    assert (third, str(fourth)) == (2, "not today")
    assert there.number == 3


async def test_a_change_that_fails_otherwise_fails_all_and_nothing_of_them_is_there(there: Open) -> None:
    def fails() -> int:
        there.add(5)
        raise ZeroDivisionError("a defect")

    changes = (lambda: there.add(1), fails)
    outcomes = await asyncio.gather(*map(there.writer.do, changes), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 2
    assert there.number == 0
    assert there.contents.calls == ["begin", "rolled back"]
    assert await there.writer.do(lambda: there.add(1)) == 1


async def test_a_failed_rollback_is_never_read_and_the_next_write_succeeds(there: Open) -> None:
    Planted.fails = {"COMMIT": sqlite3.SQLITE_IOERR, "ROLLBACK": sqlite3.SQLITE_IOERR}
    with pytest.raises(SagaError, match="whether this was written is not known") as raised:
        await there.writer.do(lambda: there.add(1))
    assert type(raised.value) is there.file.purpose.errors.ambiguous
    assert there.number == 0
    await there.writer.do(lambda: there.add(2))
    assert there.number == 2


async def test_damage_is_reported_with_the_files_name_and_what_to_do(there: Open) -> None:
    Planted.fails = {"UPDATE": sqlite3.SQLITE_CORRUPT}
    with pytest.raises(Broken, match=r"state.db is damaged .*: stop all its services.*restore the file") as raised:
        await there.writer.do(lambda: there.add(1))
    assert type(raised.value) is there.file.purpose.errors.broken
    assert [type(why) for why in there.broken] == [type(raised.value)], "and readers learn of it, too"


async def test_while_another_process_has_the_lock_all_wait_and_fail_in_time_and_the_next_lands(there: Open) -> None:
    held = WriteLock(there.file.path.with_name("state.db.lock"))
    assert held.try_acquire()
    outcomes = await asyncio.gather(*(there.writer.do(lambda: there.add(1)) for _ in range(3)), return_exceptions=True)
    assert {type(why) for why in outcomes} == {there.file.purpose.errors.unavailable}
    assert len({id(why) for why in outcomes}) == 3, "an exception collects tracebacks"
    assert "another process has held its lock" in str(outcomes[0])
    landing = there.writer.do(lambda: there.add(5))
    held.release()
    assert await landing == 5
    assert there.number == 5
    held.close()


async def test_what_has_no_room_after_a_wait_for_the_lock_waits_for_it_once(there: Open) -> None:
    """The lock belongs to the descriptor: of two who wait for it, the second would write when the first has released
    it."""
    taken = list[bool]()
    with closing(WriteLock(there.file.path.with_name("state.db.lock"))) as held:
        assert held.try_acquire()
        writes = [there.writer.do(partial(there.add, 1)) for _ in range(ROOM + 1)]
        await CLOCK.sleep(0.05)
        writes[0].add_done_callback(lambda _: taken.append(held.try_acquire()))  # before the rest has its turn
        held.release()
        await CLOCK.within(5, asyncio.gather(*writes[:ROOM]))
        await CLOCK.sleep(0.05)
        assert taken == [True]
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "state file lock"]) == 1
        held.release()
        await CLOCK.within(5, writes[ROOM])
    assert there.number == ROOM + 1


async def test_a_thread_that_cannot_be_started_to_wait_for_the_lock_fails_the_write_and_the_next_one_waits(
    there: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    held = WriteLock(there.file.path.with_name("state.db.lock"))
    assert held.try_acquire()
    with monkeypatch.context() as planted:
        planted.setattr(threading.Thread, "start", fails)
        with pytest.raises(SagaError, match="can't start new thread") as raised:
            await CLOCK.within(5, there.writer.do(lambda: there.add(1)))
    assert type(raised.value) is there.file.purpose.errors.unavailable
    there.file.lock_s = 60  # a busy machine may hold us up for longer than the fifth of a second that others have
    landing = there.writer.do(lambda: there.add(5))
    await CLOCK.sleep(0.05)
    held.release()
    assert await landing == 5
    held.close()


async def test_another_program_inside_a_transaction_is_waited_for_and_fails_in_time(there: Open) -> None:
    with closing(sqlite3.connect(there.file.path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        late = there.writer.do(lambda: there.add(1))
        with pytest.raises(SagaError, match="another process has held its lock"):
            await late
        waiting = there.writer.do(lambda: there.add(2))
        shell.execute("ROLLBACK")
        assert await waiting == 2
    assert there.number == 2


async def test_closing_brings_what_is_queued_to_its_end_and_takes_no_more(
    tmp_path: Path, purpose: StateFileSpec
) -> None:
    path = tmp_path / "state.db"
    async with opened(path, purpose) as there:
        queued = there.writer.do(lambda: there.add(1))
    assert queued.result() == 1
    with pytest.raises(SagaError, match="is closed here"):
        there.writer.do(lambda: there.add(1))


async def test_a_file_that_was_overwritten_while_nothing_was_written_is_reported_when_it_is_closed(
    tmp_path: Path, purpose: StateFileSpec
) -> None:
    path = tmp_path / "state.db"
    there = await open_up(path, purpose)
    await there.writer.do(lambda: there.add(1))
    path.with_name("state.db-wal").write_bytes(b"")
    with pytest.raises(Broken, match=r"state.db-wal was overwritten or cut short.*restore the file"):
        await close_down(there)


async def test_after_the_error_that_the_file_is_gone_closing_raises_nothing(
    tmp_path: Path, purpose: StateFileSpec
) -> None:
    path = tmp_path / "state.db"
    async with opened(path, purpose) as there:
        path.unlink()
        for _ in range(2):
            with pytest.raises(Broken, match="was removed while it was in use"):
                await there.writer.do(lambda: there.add(1))


async def test_a_file_that_was_removed_a_moment_ago_is_reported_when_it_is_closed(
    tmp_path: Path, purpose: StateFileSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sooner than a transaction looks again."""
    path = tmp_path / "state.db"
    there = await open_up(path, purpose)
    monkeypatch.setattr(integrity, "CHECK_EVERY_S", 60.0)
    await there.writer.do(lambda: there.add(1))
    path.unlink()
    with pytest.raises(Broken, match=r"was removed while it was in use.*is saved in"):
        await close_down(there)


async def test_closing_keeps_the_write_ahead_log_of_a_replacement_file(tmp_path: Path, purpose: StateFileSpec) -> None:
    path, log = tmp_path / "state.db", tmp_path / "state.db-wal"
    there = await open_up(path, purpose)
    for file in (path, log, tmp_path / "state.db-shm"):
        file.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE theirs (a)")
        with pytest.raises(Broken):
            await there.writer.do(partial(there.add, 1))
        await close_down(there)
        del there
        gc.collect()
        assert log.exists()


async def test_opening_waits_for_another_program_and_gives_up_in_time(tmp_path: Path, purpose: StateFileSpec) -> None:
    path = tmp_path / "state.db"
    async with opened(path, purpose):
        pass
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("BEGIN IMMEDIATE")
        with pytest.raises(SagaError, match="another process has held its lock for"):
            await StateFile(path, purpose, clock=CLOCK, lock_s=0.2).open(lambda connection, mark: None)
        file = StateFile(path, purpose, clock=CLOCK, lock_s=5)
        opening = asyncio.gather(file.open(lambda connection, mark: None))
        await CLOCK.sleep(0.05)
        shell.execute("ROLLBACK")
        await opening
        file.close()
