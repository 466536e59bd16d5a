"""Expiry on Couchbase: sent so that no document goes before its time, and checked against what a bucket makes of it.

Up to 30 days an expiry is a number of seconds from now, by the server's clock. A longer one is a point in time, in
seconds since 1970, of 32 bits: it ends in February 2106, and what lies beyond is refused here, because the server
would take it for a time long past. A point in time is counted from the server's own clock, which each answer tells
by its CAS: a machine whose clock is behind would else write documents that are gone the moment they are there.

A `maxTTL` of bucket or collection shortens every expiry, and gives one to what has none; nothing tells of it when a
document is written. So documents are written, and what the server made of their expiry is read back.
"""

import asyncio
from collections.abc import Sequence
from math import ceil

from saga.errors import ConfigurationError, StoreError, StoreUnavailable
from saga.messaging.names import PROBE
from saga.store.couchbase import errors
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.calls import Calls
from saga.store.couchbase.driver import FAILURES, RELATIVE_S_MAX, CouchbaseCluster, CouchbaseCollection, expiry_s_max
from saga.store.couchbase.listing import evicts
from saga.support.clock import Clock

SLACK_S = 120.0
"""Most that two clocks may differ before an expiry counts as another than the one that was asked for."""
DAY_S = 86_400


def check(expiry_s: float | None, clock: Clock) -> None:
    """Check that an expiry can be expressed. Raises `StoreError` if not: nothing was written."""
    if expiry_s is None or 0 <= expiry_s < RELATIVE_S_MAX:
        return
    if not 0 <= expiry_s <= expiry_s_max(clock):
        raise StoreError(
            f"an expiry of {expiry_s} seconds cannot be written to Couchbase; nothing was written. It takes from 0 to "
            f"{expiry_s_max(clock):.0f} seconds from now, which is February 2106"
        )


async def check_lasting(
    cluster: CouchbaseCluster,
    settings: CouchbaseSettings,
    names: Sequence[str],
    expiry_s: float,
    calls: Calls,
    clock: Clock,
) -> None:
    """Return if documents of these collections of Couchbase last as long as they are told to.

    What the server does not tell (CouchbaseMock: any expiry) is taken for right. Raises `ConfigurationError` with all
    that is wrong, `StoreUnavailable`.
    """
    heading = f"The store {settings.where} does not keep documents as long as it must"
    if not 0 <= expiry_s <= expiry_s_max(clock):
        years = expiry_s / DAY_S / 365
        problem = (
            f"{years:.0f} years from now cannot be expressed: it ends in February 2106. Choose a shorter retention="
        )
        raise ConfigurationError(heading, [problem])
    asked = cluster.evicts_as(lambda: evicts(settings, clock))
    problems = [
        problem for name in names for problem in await _looked_at(cluster, settings, name, expiry_s, calls, clock)
    ]
    if await asyncio.shield(asked):
        problems.append(EVICTS.format(bucket=settings.bucket))
    if problems:
        raise ConfigurationError(heading, problems)


async def _looked_at(
    cluster: CouchbaseCluster, settings: CouchbaseSettings, name: str, expiry_s: float, calls: Calls, clock: Clock
) -> list[str]:
    collection = cluster.collection(name, "none", settings.kv_s)
    key = f"{PROBE}{round(clock.chance() * 2**52):x}"
    try:
        return await _problems(collection, f"{settings.bucket}/{name}", key, expiry_s, calls, clock)
    except FAILURES as why:
        where = f"the expiry of documents in {settings.where}, collection {name!r},"
        raise StoreUnavailable(f"{where} could not be looked at ({errors.shorten_message(why)}); try again") from why


async def _problems(
    collection: CouchbaseCollection, where: str, key: str, expiry_s: float, calls: Calls, clock: Clock
) -> list[str]:
    """Tell what becomes of a document without an expiry, and of one with `expiry_s`; both are removed again."""
    problems: list[str] = []
    cas = await calls.begin(collection.insert(key, b"{}", None))
    collection.time.learn(cas)
    told = await calls.begin(collection.expires_at_s(key))
    if told is None:
        return [f"{where}: a document without an expiry is gone as it is written; look at the server's settings"]
    if told > 0:
        lives_s = told - clock.now_ms() / 1000
        problems.append(
            f"{where}: documents that are to stay for ever are given {_span(lives_s)}, by a maxTTL: open sagas would "
            f"vanish, untold. {REMEDY}"
        )
    before_s = clock.now_ms() / 1000
    cas = await calls.begin(collection.replace(key, b"{}", cas, expiry_s, keep_expiry=False))
    told = await calls.begin(collection.expires_at_s(key))
    if told is None:
        return [*problems, f"{where}: what is to stay for {_span(expiry_s)} is gone as it is written: {SHORTER}"]
    if told > 0 and told < before_s + expiry_s - SLACK_S:
        lives_s = told - before_s
        problems.append(
            f"{where}: what is to stay for {_span(expiry_s)} is given {_span(lives_s)}: a maxTTL, or the server's "
            f"clock is behind that of this machine. {REMEDY}; or {SHORTER}"
        )
    await calls.begin(collection.remove(key, cas))
    return problems


REMEDY = (
    "Take it away: `couchbase-cli bucket-edit --bucket ... --max-ttl 0`, and make the collection anew without "
    "`--max-ttl`. What is there already keeps the expiry it has until it is written again"
)
EVICTS = (
    "the bucket {bucket!r} is ephemeral and evicts: when memory is short it removes documents, untold. Use a bucket of "
    "type couchbase. With `couchbase-cli bucket-edit --bucket-eviction-policy noEviction` it refuses writes instead, "
    "and what is there is lost with the nodes' memory"
)
SHORTER = "choose a shorter retention= of the service"


def _span(seconds: float) -> str:
    """
    >>> _span(86400), _span(400 * 86400), _span(20.4)
    ('1 days', '400 days', '20 seconds')
    """
    return f"{seconds / DAY_S:.0f} days" if seconds >= DAY_S else f"{ceil(seconds - 0.5)} seconds"
