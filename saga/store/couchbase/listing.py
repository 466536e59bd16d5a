"""List the keys of a collection in a separate process.

The SDK (4.6.3) waits for the first answer to a scan while it holds Python's global interpreter lock. At this moment its
own thread may need that lock to report how an earlier operation ended. Then both hang for ever, and no signal ends the
process. So the process that scans does nothing else, is idle for a moment before the scan, and can be killed.

The separate process also asks whether the bucket evicts documents, if the connection has TLS: this request contains the
password. If the answer is not one that Couchbase Server gives, the SDK ends the whole process. CouchbaseMock gives such
an answer.
"""

import asyncio
import os
import pickle
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

import msgspec

from saga.errors import NoListing, SagaError, StoreUnavailable
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.driver import FAILURES, SCAN_S, Calls, CouchbaseCluster
from saga.store.couchbase.errors import NO_FEATURE, UNSUPPORTED, StoreOperation, code_of, to_store_error
from saga.store.couchbase.opening import open_bucket
from saga.support.clock import Clock, SystemClock

ANSWER_S = SCAN_S + 17
"""Longest wait for the next line of the process, in seconds. The process has shorter limits of its own, so this is
reached only if it hangs."""
EVICTS_S = 5.0
"""Longest wait for the answer whether the bucket evicts documents, in seconds."""


class ListedKeys(msgspec.Struct, frozen=True, array_like=True):
    """One line that the process writes."""

    what: Literal["key", "failed", "unlisted", "end", "evicts", "keeps"]
    text: str = ""


async def list_keys(settings: CouchbaseSettings, name: str, prefix: str, clock: Clock) -> AsyncIterator[str]:
    """Yield the keys of a Couchbase collection that begin with `prefix`, in no particular order. Raises
    `StoreUnavailable` and `NoListing`."""
    async with _start_process(settings, name, prefix, stderr=None) as process:
        while (line := await _read_line(process, settings, clock)).what != "end":
            if line.what == "failed":
                raise StoreUnavailable(line.text)
            if line.what == "unlisted":
                raise NoListing(line.text)
            yield line.text


async def ask_eviction(settings: CouchbaseSettings, clock: Clock) -> bool | None:
    """Return whether the bucket removes documents when memory is short; `None` if there is no answer in time."""
    async with _start_process(settings, "", "", stderr=DEVNULL) as process:
        try:
            line = await clock.within(EVICTS_S, _read_line(process, settings, clock))
        except (TimeoutError, StoreUnavailable):
            return None
        return None if line.what == "failed" else line.what == "evicts"


@asynccontextmanager
async def _start_process(
    settings: CouchbaseSettings, name: str, prefix: str, *, stderr: int | None
) -> AsyncIterator[Process]:
    """Run the separate process for the duration of the block. It lists the keys of the collection `name`, or reads the
    bucket's settings if the name is empty."""
    password = settings.password_now()
    if password is not None:  # must be a function that can be pickled
        settings = replace(settings, password=partial(str, password))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", f"from {__name__} import main; main()"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        assert process.stdin is not None, "it is a pipe"
        # The request is passed on standard input, where no other user of the machine can read it.
        process.stdin.write(pickle.dumps((settings, name, prefix)))
        process.stdin.close()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read_line(process: Process, settings: CouchbaseSettings, clock: Clock) -> ListedKeys:
    assert process.stdout is not None, "it is a pipe"
    try:
        return msgspec.json.decode(await clock.within(ANSWER_S, process.stdout.readline()), type=ListedKeys)
    except (TimeoutError, msgspec.DecodeError) as why:
        raise StoreUnavailable(f"the keys of the store {settings.where} could not be listed: try again") from why


# ---------------------------------------------------------------- the process
#
# It reads a pickled request from standard input and writes lines of JSON.


OPEN_S_MAX = 12.0
"""Longest time for connecting, in seconds."""
SILENCE_S = 0.1
"""Pause between connecting and the scan, in seconds. After it the SDK's thread has nothing left to report."""


def main() -> None:
    """Read the request from standard input, and write the answer to standard output."""
    settings, name, prefix = pickle.load(sys.stdin.buffer)
    try:
        asyncio.run(_list(settings, name, prefix, SystemClock()))
    except NoListing as why:
        _write_line(ListedKeys("unlisted", str(why)))
    except SagaError as why:
        _write_line(ListedKeys("failed", str(why)))


async def _list(settings: CouchbaseSettings, name: str, prefix: str, clock: Clock) -> None:
    calls, cluster = Calls(), CouchbaseCluster(settings)
    await clock.within(OPEN_S_MAX, open_bucket(cluster, settings, calls))
    if not name:
        try:
            _write_line(ListedKeys("evicts" if await calls.begin(cluster.evicts()) else "keeps"))
        except FAILURES as why:
            _write_line(ListedKeys("failed", str(why)))
        return
    collection = cluster.collection(name, "none", settings.durable_s)
    await clock.sleep(SILENCE_S)
    try:
        async for key in collection.keys(prefix):
            _write_line(ListedKeys("key", key))
    except FAILURES as why:
        failed = to_store_error(why, StoreOperation.READ, settings.where, f"{prefix}*")
        raise NoListing(str(failed)) if code_of(why) in (NO_FEATURE, UNSUPPORTED) else failed from why
    _write_line(ListedKeys("end"))


def _write_line(line: ListedKeys) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()
