"""Several processes on one store file: they exclude each other, die, and freeze, and nothing acknowledged is lost."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from saga.errors import StoreUnavailable
from saga.store.sqlite.store import LOCK_WAIT_S, SqliteStore
from saga.support.clock import SystemClock
from tests.store.conftest import Held, SettableClock


async def contender(path: Path, *arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.store.store_process", str(path), *arguments, stdout=PIPE
    )


async def test_two_processes_raise_one_counter_and_no_raise_is_lost(path: Path, clock: SettableClock) -> None:
    times = 150
    processes = [await contender(path, "count", name, str(times)) for name in ("one", "two")]
    assert [await process.wait() for process in processes] == [0, 0]
    async with SqliteStore(path, clock=clock) as store:
        counter = await store.get("counter", "one")
        assert counter is not None
        assert counter.content == b"%d" % (2 * times)
        seen = [(key, document.content) async for key, document in store.scan("seen")]
    assert [int(key) for key, _ in seen] == list(range(1, 2 * times + 1))
    assert sum(by == b"one" for _, by in seen) == times


@pytest.mark.parametrize("read_before", [3, 20])
async def test_a_killed_process_keeps_what_was_acknowledged(path: Path, clock: SettableClock, read_before: int) -> None:
    process = await contender(path, "write")
    assert process.stdout is not None
    for _ in range(read_before):
        acknowledged = int(await process.stdout.readline())
    process.kill()
    for line in (await process.stdout.read()).splitlines():
        acknowledged = int(line)
    await process.wait()
    async with SqliteStore(path, clock=clock) as store:
        kept = [key async for key, _ in store.scan("saga")]
        assert len(kept) % 5 == 0  # what was queued together came together
        assert kept == [f"{n:06}" for n in range(len(kept))]
        assert acknowledged <= len(kept) <= acknowledged + 5


async def test_a_reader_sees_what_a_killed_process_left_and_changes_nothing(path: Path, clock: SettableClock) -> None:
    process = await contender(path, "write")
    assert process.stdout is not None
    acknowledged = int(await process.stdout.readline())
    process.kill()
    await process.wait()
    size = os.stat(path).st_size
    async with SqliteStore(path, clock=clock, readonly=True) as tool:
        assert len([key async for key, _ in tool.scan("saga")]) >= acknowledged
    assert os.stat(path).st_size == size
    async with SqliteStore(path, clock=clock) as store:
        assert len([key async for key, _ in store.scan("saga")]) >= acknowledged


async def test_a_write_waits_for_the_lock_without_holding_up_the_loop(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        cas = await store.insert("saga", "a", b"0")
        held = Held(path)
        async with asyncio.TaskGroup() as tasks:
            write = tasks.create_task(store.replace("saga", "a", b"1", cas=cas))
            for _ in range(20):
                await SystemClock().sleep(0.001)
                assert await store.get("saga", "a") is not None
            assert not write.done()
            held.release()
        assert isinstance(write.result(), int)


async def test_a_write_that_waited_too_long_is_refused_and_never_lands(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock) as store:
        held = Held(path)
        async with asyncio.TaskGroup() as tasks:
            write = tasks.create_task(_refusal(store))
            await SystemClock().sleep(0.01)
            clock.ahead_s += LOCK_WAIT_S + 1
        assert "another process has held its lock" in write.result()
        held.release()
        await store.insert("saga", "b", b"0")
        assert await store.get("saga", "a") is None


async def _refusal(store: SqliteStore) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        await store.insert("saga", "a", b"0")
    return str(refused.value)


async def test_opening_waits_for_the_lock_and_gives_up_in_time(path: Path, clock: SettableClock) -> None:
    async with SqliteStore(path, clock=clock):
        pass
    held = Held(path)
    async with asyncio.TaskGroup() as tasks:
        opening = tasks.create_task(_refusal_to_open(SqliteStore(path, clock=clock)))
        await SystemClock().sleep(0.01)
        assert not opening.done()
        clock.ahead_s += LOCK_WAIT_S + 1
    assert f"process {os.getpid()} " in opening.result()
    held.release()
    async with SqliteStore(path, clock=clock) as store:
        await store.insert("saga", "a", b"0")


async def _refusal_to_open(store: SqliteStore) -> str:
    with pytest.raises(StoreUnavailable) as refused:
        await store.__aenter__()
    return str(refused.value)


async def test_closing_with_a_write_that_waits_for_the_lock_ends(path: Path, clock: SettableClock) -> None:
    store = SqliteStore(path, clock=clock)
    await store.__aenter__()
    held = Held(path)
    async with asyncio.TaskGroup() as tasks:
        write = tasks.create_task(_refusal(store))
        await SystemClock().sleep(0.005)
        closing = tasks.create_task(store.__aexit__())
        await SystemClock().sleep(0.005)
        assert not closing.done()
        clock.ahead_s += LOCK_WAIT_S + 1
    assert "nothing was written" in write.result()
    held.release()
