"""Process that lists keys: it reads a pickled request from standard input and writes lines of JSON.

No other module imports this one. A module that is started with `-m` and also imported by its own package is loaded
twice, and Python warns about it on standard error. `saga.store.couchbase.listing` tells why it is a process.
"""

import asyncio
import pickle
import sys

import msgspec

from saga.errors import NoListing, SagaError
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.calls import Calls
from saga.store.couchbase.driver import FAILURES, CouchbaseCluster
from saga.store.couchbase.errors import NO_FEATURE, UNSUPPORTED, StoreOperation, code_of, to_store_error
from saga.store.couchbase.listing import ListedKeys
from saga.store.couchbase.opening import open_bucket
from saga.support.clock import Clock, SystemClock

OPEN_S_MAX = 12.0
"""Seconds that connecting may take."""
SILENCE_S = 0.1
"""Pause between connecting and the scan: the SDK's thread has said all that it had to say."""


def main() -> None:
    """Tell what standard input asks for on standard output."""
    settings, name, prefix = pickle.load(sys.stdin.buffer)
    try:
        asyncio.run(_list(settings, name, prefix, SystemClock()))
    except NoListing as why:
        _tell(ListedKeys("unlisted", str(why)))
    except SagaError as why:
        _tell(ListedKeys("failed", str(why)))


async def _list(settings: CouchbaseSettings, name: str, prefix: str, clock: Clock) -> None:
    calls, cluster = Calls(), CouchbaseCluster(settings)
    await clock.within(OPEN_S_MAX, open_bucket(cluster, settings, calls))
    if not name:
        try:
            _tell(ListedKeys("evicts" if await calls.begin(cluster.evicts()) else "keeps"))
        except FAILURES as why:
            _tell(ListedKeys("failed", str(why)))
        return
    collection = cluster.collection(name, "none", settings.durable_s)
    await clock.sleep(SILENCE_S)
    try:
        async for key in collection.keys(prefix):
            _tell(ListedKeys("key", key))
    except FAILURES as why:
        failed = to_store_error(why, StoreOperation.READ, settings.where, f"{prefix}*")
        raise NoListing(str(failed)) if code_of(why) in (NO_FEATURE, UNSUPPORTED) else failed from why
    _tell(ListedKeys("end"))


def _tell(told: ListedKeys) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
