"""Checks before the first operation on Couchbase, so that a wrong setting is reported at the start, with its name.

Connecting alone does not reveal that the server cannot write durably. A missing collection looks like a slow server,
and a missing role shows only at the first write. So these checks write and remove one document.

Durable writes and keeping an expiry use an extension of the protocol. CouchbaseMock does not have it, and closes the
connection. So if writes are not durable, another check finds out whether the server can keep an expiry. If it cannot, a
`replace` with `keep_expiry` clears the expiry. Then documents stay longer than requested, and nothing is lost.
"""

from contextlib import suppress

from saga.errors import ConfigurationError, SagaError, StoreUnavailable
from saga.messaging.names import PROBE
from saga.store.couchbase import errors
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.driver import FAILURES, Calls, CouchbaseCluster, CouchbaseCollection
from saga.support.clock import Clock, patiently

CLOSE_S_MAX = 1.0
"""Longest wait for closing a cluster connection that could not be opened, in seconds."""
PROBE_S = 4.0
"""Longest time of each of the two durable writes at the start, in seconds."""
PROBE_EXPIRY_S = 60.0
REFUSALS = frozenset({errors.AUTHENTICATION, errors.NO_BUCKET, errors.NO_SCOPE, errors.NO_COLLECTION})
"""Errors that a person has to resolve, because waiting does not help."""


async def open_cluster(
    settings: CouchbaseSettings, collections: tuple[str, ...], calls: Calls, clock: Clock, *, readonly: bool
) -> CouchbaseCluster:
    """Connect to a cluster, and check that this user can read these collections and write to the first one with the
    configured durability. Raises `SagaError`."""
    try:
        cluster = CouchbaseCluster(settings)
    except StoreUnavailable as why:
        raise _cannot(settings, str(why)) from why
    except FAILURES as why:
        raise _cannot(settings, f"the SDK does not take the settings ({why})") from why
    try:
        await patiently(settings.open_s, _open(cluster, settings, collections, calls, clock, readonly))
    except BaseException as why:  # even a cancelled start must leave no threads of the SDK behind
        calls.begin_and_forget(cluster.close())
        await _let_go(calls, clock)
        if isinstance(why, TimeoutError):
            raise _unreachable(settings, f"it did not open within {settings.open_s:g} s") from why
        raise
    return cluster


async def _let_go(calls: Calls, clock: Clock) -> None:
    """Wait until the SDK has closed its connections, but not longer than `CLOSE_S_MAX`: its threads must not run while
    the process ends."""
    with suppress(TimeoutError):
        await clock.within(CLOSE_S_MAX, calls.wait_until_ended())


async def _open(
    cluster: CouchbaseCluster,
    settings: CouchbaseSettings,
    collections: tuple[str, ...],
    calls: Calls,
    clock: Clock,
    readonly: bool,
) -> None:
    async with cluster.opening:
        await open_bucket(cluster, settings, calls)
        key = f"{PROBE}{round(clock.chance() * 2**52):x}"
        for name in collections:
            await _check_readable(cluster.collection(name, "none", PROBE_S), name, key, settings, calls)
        if not readonly:
            await _check_writable(cluster, collections[0], key, settings, calls)


async def open_bucket(cluster: CouchbaseCluster, settings: CouchbaseSettings, calls: Calls) -> None:
    """Wait for the connection, and open the bucket. Raises `SagaError`."""
    try:
        await calls.begin(cluster.connect())
    except FAILURES as why:
        raise _not_connected(settings, why) from why
    try:
        await calls.begin(cluster.open_bucket())
    except FAILURES as why:
        raise _no_bucket(settings, why) from why


async def _check_readable(
    collection: CouchbaseCollection, name: str, key: str, settings: CouchbaseSettings, calls: Calls
) -> None:
    try:
        await calls.begin(collection.get(key))
    except FAILURES as why:
        if errors.code_of(why) != errors.NOT_FOUND:
            raise _not_readable(settings, name, why) from why


def missing_collection_advice(settings: CouchbaseSettings, name: str) -> str:
    """Return the advice about what to do if a collection is missing."""
    scope = settings.scope or "_default"
    return (
        f"there is no collection {name!r} in the scope {scope!r} of bucket {settings.bucket!r}: "
        f"{errors.CREATE.format(bucket=settings.bucket, scope=scope, collection=name)}"
    )


async def _check_writable(
    cluster: CouchbaseCluster, name: str, key: str, settings: CouchbaseSettings, calls: Calls
) -> None:
    plain = cluster.collection(name, "none", PROBE_S)
    try:
        if settings.durability == "none" and cluster.keeps_expiry is None:
            cluster.keeps_expiry = await _keeps_expiry(plain, key, calls)
        else:
            await _write_and_remove(cluster.collection(name, settings.durability, PROBE_S), key, calls)
    except FAILURES as why:
        if errors.code_of(why) == errors.AUTHENTICATION or settings.durability == "none":
            raise _not_writable(settings, name, why) from why
        try:
            await _write_and_remove(plain, f"{key}-less", calls)
        except FAILURES as also:
            raise _not_writable(settings, name, also) from also
        raise _not_durable(settings, why) from why


async def _write_and_remove(collection: CouchbaseCollection, key: str, calls: Calls) -> None:
    cas = await calls.begin(collection.insert(key, b"{}", PROBE_EXPIRY_S))
    await calls.begin(collection.remove(key, cas))


async def _keeps_expiry(collection: CouchbaseCollection, key: str, calls: Calls) -> bool:
    """Return whether the server can replace a document and keep its expiry.

    A server that cannot closes the connection at such a request. To be sure that the request is the cause, it is sent
    twice, with a plain write in between, which must succeed.
    """
    cas = await calls.begin(collection.insert(key, b"{}", PROBE_EXPIRY_S))
    keeps = False
    for _ in range(2):
        try:
            cas = await calls.begin(collection.replace(key, b"{}", cas, None, keep_expiry=True))
            keeps = True
            break
        except FAILURES as why:
            if errors.code_of(why) != errors.CANCELED:
                raise
        cas = await calls.begin(collection.replace(key, b"{}", cas, PROBE_EXPIRY_S, keep_expiry=False))
    await calls.begin(collection.remove(key, cas))
    return keeps


# -------------------------------------------------------------------- errors


def _not_connected(settings: CouchbaseSettings, why: Exception) -> SagaError:
    if errors.code_of(why) == errors.AUTHENTICATION:
        who = f"user {settings.username!r} with this password" if settings.username else "this client certificate"
        return _cannot(
            settings,
            f"the server refuses {who} ({errors.shorten_message(why)}): correct SAGA_COUCHBASE_..., and see the roles",
        )
    tls = "; see also whether TLS is right: couchbases:// with the server's CA file" if settings.tls else ""
    return _unreachable(settings, f"no connection came about ({errors.shorten_message(why)}){tls}")


def _no_bucket(settings: CouchbaseSettings, why: Exception) -> SagaError:
    text = f"the server answers, but its bucket {settings.bucket!r} does not open ({errors.shorten_message(why)}): "
    return _cannot(settings, f"{text}create it, correct its name in SAGA_STORE, or give the user a role on it")


def _not_readable(settings: CouchbaseSettings, name: str, why: Exception) -> SagaError:
    if errors.lacks_collection(why):
        return _cannot(settings, missing_collection_advice(settings, name))
    if errors.code_of(why) == errors.UNSUPPORTED:
        return _cannot(settings, "the server has no collections: leave scope and collection out of SAGA_STORE")
    if errors.code_of(why) in REFUSALS:
        return _cannot(
            settings, f"{name!r} cannot be read ({errors.shorten_message(why)}): give the user the role data_reader"
        )
    return _unreachable(settings, f"{name!r} could not be read ({errors.shorten_message(why)})")


def _not_writable(settings: CouchbaseSettings, name: str, why: Exception) -> SagaError:
    if errors.code_of(why) in REFUSALS:
        return _cannot(
            settings, f"{name!r} cannot be written ({errors.shorten_message(why)}): give the user the role data_writer"
        )
    return _unreachable(settings, f"{name!r} could not be written ({errors.shorten_message(why)})")


def _not_durable(settings: CouchbaseSettings, why: Exception) -> SagaError:
    return _cannot(
        settings,
        f"writes of durability {settings.durability!r} fail here, and plain ones do not "
        f"({errors.shorten_message(why)}): bring all nodes up, or give a bucket on a single node no replicas. "
        "SAGA_STORE_DURABILITY=none does without; then a failover may lose what was acknowledged, and effects "
        "may come twice",
    )


def _cannot(settings: CouchbaseSettings, problem: str) -> ConfigurationError:
    return ConfigurationError(f"The store {settings.where} cannot be used", [problem])


def _unreachable(settings: CouchbaseSettings, problem: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The store {settings.where} cannot be used now: {problem}. See whether host and port are right, the data "
        "service runs there, and the network lets us through"
    )
