"""Listing of a collection's keys in a process of its own (`saga.store.couchbase.lister`), which is started, heard and
ended here.

The SDK (4.6.3) waits for the first answer to a scan with the interpreter's lock in its hand. If its own thread wants
that lock at this moment, to say how an earlier operation ended, both hang for ever, and no signal ends the
process. So the process that scans does nothing else, has been silent for a moment, and can be killed.

It is also asked whether the bucket evicts: the SDK ends its whole process where the answer is not quite what a
Couchbase Server says (CouchbaseMock's is not).
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

from saga.errors import NoListing, StoreUnavailable
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.driver import SCAN_S
from saga.support.clock import Clock

ANSWER_S = SCAN_S + 17
"""Longest silence of the process: it has limits of its own, unless it hangs."""
EVICTS_S = 5.0
"""Longest time it may take to say whether the bucket evicts."""


class ListedKeys(msgspec.Struct, frozen=True, array_like=True):
    """One line of the answer."""

    what: Literal["key", "failed", "unlisted", "end", "evicts", "keeps"]
    text: str = ""


async def keys_of(settings: CouchbaseSettings, name: str, prefix: str, clock: Clock) -> AsyncIterator[str]:
    """Keys in a collection of Couchbase that begin with `prefix`, in no order. Raises `StoreUnavailable`, and
    `NoListing`."""
    async with _process(settings, name, prefix, stderr=None) as process:
        while (told := await _line(process, settings, clock)).what != "end":
            if told.what == "failed":
                raise StoreUnavailable(told.text)
            if told.what == "unlisted":
                raise NoListing(told.text)
            yield told.text


async def evicts(settings: CouchbaseSettings, clock: Clock) -> bool | None:
    """True if the bucket removes documents when memory is short; `None` if nobody says so in time."""
    async with _process(settings, "", "", stderr=DEVNULL) as process:
        try:
            told = await clock.within(EVICTS_S, _line(process, settings, clock))
        except (TimeoutError, StoreUnavailable):
            return None
        return None if told.what == "failed" else told.what == "evicts"


@asynccontextmanager
async def _process(
    settings: CouchbaseSettings, name: str, prefix: str, *, stderr: int | None
) -> AsyncIterator[Process]:
    """Start a process, and tell it what is wanted: the keys of the collection `name`, or, if that is empty, the
    bucket's settings. It has ended when the block has."""
    password = settings.password_now()
    if password is not None:  # a function that goes over a pipe
        settings = replace(settings, password=partial(str, password))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "saga.store.couchbase.lister"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        assert process.stdin is not None, "it is a pipe"
        # Standard input: no other user of the machine can read it.
        process.stdin.write(pickle.dumps((settings, name, prefix)))
        process.stdin.close()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _line(process: Process, settings: CouchbaseSettings, clock: Clock) -> ListedKeys:
    assert process.stdout is not None, "it is a pipe"
    try:
        return msgspec.json.decode(await clock.within(ANSWER_S, process.stdout.readline()), type=ListedKeys)
    except (TimeoutError, msgspec.DecodeError) as why:
        raise StoreUnavailable(f"the keys of the store {settings.where} could not be listed: try again") from why
