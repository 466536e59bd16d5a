"""Process that lists keys: it reads on standard input what is wanted, and tells lines of JSON.

It is a module that no other one imports: what is started with `-m` and is imported by its own package, too, is there
twice, and Python warns of it on standard error. Why there is such a process: `saga.store.couchbase.listing`.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from saga.clock import Clock, SystemClock
from saga.errors import SagaError
from saga.store.couchbase.calls import Calls
from saga.store.couchbase.driver import FAILURES, Cluster
from saga.store.couchbase.errors import Doing, failure
from saga.store.couchbase.listing import Told, Wanted
from saga.store.couchbase.opening import OPEN_S_MAX, open_bucket
from saga.store.couchbase.settings import CouchbaseSettings

SILENCE_S = 0.1
"""Pause between connecting and the scan: the SDK's thread has said all that it had to say."""


def main() -> None:
    """Tell what standard input asks for on standard output."""
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Wanted)
    try:
        asyncio.run(_list(wanted, SystemClock()))
    except SagaError as why:
        _tell(Told("failed", str(why)))


async def _list(wanted: Wanted, clock: Clock) -> None:
    settings, calls = _settings(wanted), Calls()
    cluster = Cluster(settings)
    await clock.within(OPEN_S_MAX, open_bucket(cluster, settings, calls))
    if not wanted.name:
        try:
            _tell(Told("evicts" if await calls.begin(cluster.evicts()) else "keeps"))
        except FAILURES as why:
            _tell(Told("failed", str(why)))
        return
    collection = cluster.collection(wanted.name, "none", settings.durable_s)
    await clock.sleep(SILENCE_S)
    try:
        async for key in collection.keys(wanted.prefix):
            _tell(Told("key", key))
    except FAILURES as why:
        raise failure(why, Doing.READ, settings.where, f"{wanted.prefix}*") from why
    _tell(Told("end"))


def _settings(wanted: Wanted) -> CouchbaseSettings:
    password = wanted.password
    ca, cert, key = (Path(file) if file else None for file in (wanted.ca_file, wanted.cert_file, wanted.key_file))
    return CouchbaseSettings(
        connection=wanted.connection,
        bucket=wanted.bucket,
        scope=wanted.scope,
        username=wanted.username,
        password=None if password is None else (lambda: password),
        ca_file=ca,
        cert_file=cert,
        key_file=key,
        durability="none",
    )


def _tell(told: Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
