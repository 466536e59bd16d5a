"""Store on Couchbase. Each operation of the port is one key-value operation, with its version, durability and expiry.

Where documents are stored: if the address has a scope and no collection, each collection of the toolkit (`saga`,
`saga-archive`, and the collections of business documents) is a collection of that scope with the same name, and must
exist. Otherwise all documents are in one collection, and each key begins with the name of the toolkit's collection and
`::`. For long keys see the middle of this module.

How the promises of `saga.store.port.Store` are kept:
- `insert`, and `replace` with `cas`, are operations of Couchbase. Its `cas` is a clock of the node that never goes
  back.
- An acknowledged write is on a majority of the nodes that keep the document (`majority`), or also on disk. With `none`
  it is only in the memory of one node, and a failover can lose it.
- Expiry is exact to a second and never early (see the end of this module), up to the year 2106. It is sent with each
  write, because a write without expiry would clear it. If the durability is `none` and the server cannot keep an
  expiry, `keep_expiry` clears it, too: see `saga.store.couchbase.opening`.
- A call that was begun runs to its end (`saga.store.couchbase.driver`), so a write is never cancelled.
- `scan` lists the keys by a range scan, in a separate process (`saga.store.couchbase.listing`). It needs Couchbase
  Server 7.6. It may miss documents that were written just before and are not on disk yet.
- No write is applied twice, because the SDK itself repeats only requests that the server had refused.

Passwords may change while the process runs. When the server no longer answers, the password is read again and used for
new connections; open connections keep the old one. Another user, or another certificate, needs a restart.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from collections.abc import Collection as Names
from contextlib import suppress
from hashlib import blake2b
from math import ceil
from typing import Any, Self

import msgspec

from saga.errors import Ambiguous, ConfigurationError, SagaError, StoreError, StoreUnavailable, TooLarge
from saga.messaging.names import ARCHIVES, PROBE, PROGRESS
from saga.store.couchbase import errors
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.driver import (
    FAILURES,
    RELATIVE_S_MAX,
    Calls,
    CouchbaseCluster,
    CouchbaseCollection,
    expiry_s_max,
)
from saga.store.couchbase.errors import StoreOperation
from saga.store.couchbase.listing import ask_eviction, list_keys
from saga.store.couchbase.opening import missing_collection_advice, open_cluster
from saga.store.port import Document
from saga.support.clock import Clock

ALWAYS_THERE = (PROGRESS, ARCHIVES)
"""Collections that every service has. Other collections are checked when they are first used."""
PAGE_KEYS = 64
"""Number of documents that a scan reads at a time."""
RENEW_EVERY_S = 1.0
"""Shortest time between two reads of the password while operations fail."""
CAS_MAX = 2**64 - 1
DOCUMENT_BYTES_MAX = 20 * 2**20
"""Largest document that Couchbase Server accepts, in bytes."""
KEY_BYTES_MAX = 65_536
"""Bytes reserved for storing the key together with the content, if the key is too long for Couchbase."""


class CouchbaseStore:
    """Store of documents on Couchbase. See `saga.store.port.Store` for the promises.

    It belongs to one event loop and one process, so it must be opened after a fork. `readonly` is for tools: writes
    raise `StoreUnavailable`.
    """

    document_bytes_max = DOCUMENT_BYTES_MAX - KEY_BYTES_MAX

    def __init__(self, settings: CouchbaseSettings, *, clock: Clock, readonly: bool = False) -> None:
        self.settings = settings
        self._clock, self._readonly = clock, readonly
        self._calls = Calls()
        self._cluster: CouchbaseCluster | None = None
        self._collections: dict[str, CouchbaseCollection] = {}
        """Collections that are known to exist, by their names in Couchbase."""
        self._renew_at_s = 0.0

    async def __aenter__(self) -> Self:
        """Connect, and check everything that the store needs.

        Raises `ConfigurationError` for a problem that a setting or a command can solve, and `StoreUnavailable` for a
        server that cannot be reached at present.
        """
        there = ALWAYS_THERE if self.settings.by_collection else (self.settings.home(PROGRESS),)
        self._cluster = await open_cluster(self.settings, there, self._calls, self._clock, readonly=self._readonly)
        self._collections = {name: self._collection(self._cluster, name) for name in there}
        return self

    async def __aexit__(self, *exc: object) -> None:
        cluster, self._cluster, self._collections = self._cluster, None, {}
        if cluster is None:
            return
        try:
            await self._calls.wait_until_ended()
        finally:
            self._calls.begin_and_forget(cluster.close())
            await self._calls.wait_until_ended()

    async def check_expiry(self, collections: Names[str], expiry_s: float) -> None:
        names = list(dict.fromkeys(self.settings.home(collection) for collection in collections))
        await check_expiry_kept(self._get_cluster(), self.settings, names, expiry_s, self._calls, self._clock)

    # ---------------------------------------------------------------- reading

    async def get(self, collection: str, key: str) -> Document | None:
        within = self._collections.get(self.settings.home(collection)) or await self._find_collection(collection)
        full = self._full(collection, key)
        return await self._get(within, full, stored_key(full))

    async def _get(self, within: CouchbaseCollection, full: str, stored: str) -> Document | None:
        try:
            document = await self._calls.begin(within.get(stored))
        except FAILURES as why:
            if errors.code_of(why) == errors.NOT_FOUND:
                return None
            raise self._translate_error(why, StoreOperation.READ, full) from why
        return document if stored == full else Document(unwrap_content(full, document.content), document.cas)

    async def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        within = await self._find_collection(collection)
        begins = self._full(collection, "")
        wanted = [
            (full, stored)
            async for full, stored in self._list_documents(
                within, self.settings.home(collection), self._full(collection, prefix)
            )
            if not full.startswith(begins + PROBE)
        ]
        wanted.sort()
        for first in range(0, len(wanted), PAGE_KEYS):
            page = wanted[first : first + PAGE_KEYS]
            documents = await asyncio.gather(*(self._get(within, full, stored) for full, stored in page))
            for (full, _), document in zip(page, documents, strict=True):
                if document is not None:
                    yield full.removeprefix(begins), document

    async def _list_documents(
        self, within: CouchbaseCollection, name: str, prefix: str
    ) -> AsyncIterator[tuple[str, str]]:
        """Yield the keys that begin with `prefix`, each with its stored key."""
        async for stored in self._stored_keys(name, stored_prefix(prefix)):
            full = stored
            if is_shortened(stored):
                document = await self._get(within, stored, stored)
                if document is None:
                    continue
                with suppress(StoreError):  # otherwise another program wrote the document
                    full = unwrap_key(document.content)
            if full.startswith(prefix):
                yield full, stored

    def _stored_keys(self, name: str, prefix: str) -> AsyncIterator[str]:
        """List the stored keys. Tests replace this, because their server cannot list keys."""
        return list_keys(self.settings, name, prefix, self._clock)

    # ---------------------------------------------------------------- writing

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        check_expiry_range(expiry_s, self._clock)
        within, full, stored, content = await self._to_write(collection, key, content)
        return await self._write(within.insert(stored, content, expiry_s), StoreOperation.INSERT, full)

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        check_expiry_range(expiry_s, self._clock)
        within, full, stored, content = await self._to_write(collection, key, content)
        self._check(cas, StoreOperation.REPLACE, full)
        return await self._write(
            within.replace(stored, content, cas, expiry_s, keep_expiry), StoreOperation.REPLACE, full
        )

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        within, full, stored, _ = await self._to_write(collection, key, b"")
        self._check(cas, StoreOperation.REMOVE, full)
        await self._write(within.remove(stored, cas), StoreOperation.REMOVE, full)

    async def _to_write(self, collection: str, key: str, content: bytes) -> tuple[CouchbaseCollection, str, str, bytes]:
        if self._readonly:
            raise StoreUnavailable(f"the store {self.settings.where} is open for reading only; nothing was written")
        if len(content) > self.document_bytes_max:  # not sent: the server would receive all of it before it refuses
            raise TooLarge(
                f"the store {self.settings.where} cannot take document {key!r} of {len(content)} bytes: it takes "
                f"{self.document_bytes_max}; nothing was written: keep less"
            )
        within = self._collections.get(self.settings.home(collection)) or await self._find_collection(collection)
        full = self._full(collection, key)
        stored = stored_key(full)
        return within, full, stored, content if stored == full else wrap_content(full, content)

    async def _write(self, call: Coroutine[Any, Any, int], doing: StoreOperation, full: str) -> int:
        try:
            return await self._calls.begin(call)
        except FAILURES as why:
            raise self._translate_error(why, doing, full) from why

    def _check(self, cas: int, doing: StoreOperation, full: str) -> None:
        """Raise `Conflict` for an impossible version. The version 0, which means any version to Couchbase, must never
        be sent."""
        if not 0 < cas <= CAS_MAX:
            raise errors.conflict_error(doing, self.settings.where, repr(full))

    # ---------------------------------------------------------------- collections

    def _full(self, collection: str, key: str) -> str:
        """Return the key, preceded by the name of its collection if collections share a Couchbase collection."""
        return key if self.settings.by_collection else f"{collection}::{key}"

    def _collection(self, cluster: CouchbaseCluster, name: str) -> CouchbaseCollection:
        return cluster.collection(name, self.settings.durability, self.settings.durable_s)

    async def _find_collection(self, collection: str) -> CouchbaseCollection:
        """Return the Couchbase collection for a collection of the toolkit, after checking that it exists.

        A write to a missing collection would time out, with an unknown result.
        """
        name, cluster = self.settings.home(collection), self._get_cluster()
        if name not in self._collections:
            within = self._collection(cluster, name)
            await self._get(within, PROBE, PROBE)
            self._collections[name] = within
        return self._collections[name]

    def _get_cluster(self) -> CouchbaseCluster:
        if self._cluster is None:
            raise StoreUnavailable(f"the store {self.settings.where} is not open: use it inside `async with`")
        return self._cluster

    # ---------------------------------------------------------------- failures

    def _translate_error(self, why: Exception, doing: StoreOperation, full: str) -> StoreError:
        failed = errors.to_store_error(why, doing, self.settings.where, repr(full))
        if isinstance(failed, Ambiguous | StoreUnavailable):
            self._renew_password()
            if errors.lacks_collection(why):
                return type(failed)(f"{failed}; {missing_collection_advice(self.settings, errors.collection_of(why))}")
        return failed

    def _renew_password(self) -> None:
        """Read the password again. The server may have refused the old one, which the SDK reports only as a timeout."""
        now_s = self._clock.monotonic_s()
        if self._cluster is not None and now_s >= self._renew_at_s:
            self._renew_at_s = now_s + RENEW_EVERY_S
            with suppress(SagaError, *FAILURES):  # the file may be incomplete now: the next failure reads it again
                self._cluster.renew_password()


# ---------------------------------------------------------------- stored keys
#
# A key of more than 246 bytes is stored under its beginning, `~` and a digest of the whole key. The key cannot be
# restored from that, so the content of such a document is `{"key": ..., "content": ...}`. A scan returns the original
# key, and two keys with the same digest are an error instead of one document. A short key that looks like a shortened
# one is treated like a long one, so no two keys share a name.


STORED_KEY_BYTES_MAX = 246
"""Maximum size of a stored key in bytes: Couchbase's limit in a named collection; in the default one it is 250."""
DIGEST_BYTES = 16
HEAD_BYTES = STORED_KEY_BYTES_MAX - 1 - 2 * DIGEST_BYTES
"""Bytes at the beginning of a key that remain when it is shortened."""
_SHORTENED = re.compile(rf"~[0-9a-f]{{{2 * DIGEST_BYTES}}}\Z")


class _Wrapped(msgspec.Struct):
    key: str


def stored_key(key: str) -> str:
    """Return the key under which a document is stored in Couchbase.

    >>> stored_key("payment::order-1")
    'payment::order-1'
    >>> len(stored_key("payment::" + "x" * 300).encode())
    246
    """
    encoded = key.encode()
    if len(encoded) <= STORED_KEY_BYTES_MAX and not is_shortened(key):
        return key
    return f"{stored_prefix(key)}~{blake2b(encoded, digest_size=DIGEST_BYTES).hexdigest()}"


def stored_prefix(prefix: str) -> str:
    """Return the common beginning of the stored keys of all keys that begin with `prefix`."""
    return prefix.encode()[:HEAD_BYTES].decode(errors="ignore")


def is_shortened(stored: str) -> bool:
    """Return whether a stored key is a shortened one."""
    return _SHORTENED.search(stored) is not None


def wrap_content(key: str, content: bytes) -> bytes:
    """Return the content that is stored for a document with a shortened key. It contains the whole key.

    >>> wrap_content("ab", b"[1]")
    b'{"key":"ab","content":[1]}'
    """
    return b"%b%b}" % (_beginning(key), content)


def unwrap_content(key: str, stored: bytes) -> bytes:
    """Return the content that was wrapped together with a key.

    Raises `StoreError` if the document belongs to another key than `key`. This is not reported as an outage, because
    waiting would not help.
    """
    beginning = _beginning(key)
    if not stored.startswith(beginning):
        raise StoreError(f"the document under {stored_key(key)!r} belongs to another key than {key!r}")
    return stored[len(beginning) : -1]


def unwrap_key(stored: bytes) -> str:
    """Return the key of a document whose content was wrapped. Raises `StoreError`."""
    try:
        return msgspec.json.decode(stored, type=_Wrapped).key
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise StoreError(f"a document with a shortened key does not say which key it has: {why}") from why


def _beginning(key: str) -> bytes:
    return b'{"key":%b,"content":' % msgspec.json.encode(key)


# ---------------------------------------------------------------- expiry
#
# No document may expire too early. So an expiry is computed by the server's clock, and a check at the start finds
# settings of the bucket that would shorten it.
#
# Up to 30 days an expiry is sent as a number of seconds from now. A longer one is sent as a point in time, in seconds
# since 1970 with 32 bits, which end in February 2106. A later time is refused here, because the server would take it
# for a time long past. Points in time are computed from the server's clock, which the CAS of each write contains. If
# they were computed from a clock that is behind, documents would expire at once.
#
# A `maxTTL` of a bucket or collection shortens every expiry, and gives an expiry to documents without one. The server
# does not report this when a document is written. So the check writes documents and reads their expiry back.


SLACK_S = 120.0
"""Number of seconds by which the server's expiry may be earlier than requested. It covers the difference between two
clocks."""
DAY_S = 86_400


def check_expiry_range(expiry_s: float | None, clock: Clock) -> None:
    """Raise `StoreError` if an expiry cannot be sent. Nothing was written then."""
    if expiry_s is None or 0 <= expiry_s < RELATIVE_S_MAX:
        return
    if not 0 <= expiry_s <= expiry_s_max(clock):
        raise StoreError(
            f"an expiry of {expiry_s} seconds cannot be written to Couchbase; nothing was written. It takes from 0 to "
            f"{expiry_s_max(clock):.0f} seconds from now, which is February 2106"
        )


async def check_expiry_kept(
    cluster: CouchbaseCluster,
    settings: CouchbaseSettings,
    names: Sequence[str],
    expiry_s: float,
    calls: Calls,
    clock: Clock,
) -> None:
    """Check that documents of these Couchbase collections live as long as requested.

    An expiry that the server does not report is assumed to be right; CouchbaseMock reports none. Without TLS a bucket
    that evicts is not detected. Raises `ConfigurationError` with all problems, and `StoreUnavailable`.
    """
    heading = f"The store {settings.where} does not keep documents as long as it must"
    if not 0 <= expiry_s <= expiry_s_max(clock):
        years = expiry_s / DAY_S / 365
        problem = (
            f"{years:.0f} years from now cannot be expressed: it ends in February 2106. Choose a shorter retention="
        )
        raise ConfigurationError(heading, [problem])
    # Only the bucket's management knows this. It is asked over HTTP, with the password in the header of the request.
    asked = cluster.evicts_as(lambda: ask_eviction(settings, clock)) if settings.tls else None
    problems = [
        problem
        for name in names
        for problem in await _check_collection(cluster, settings, name, expiry_s, calls, clock)
    ]
    evicts = None if asked is None else await asyncio.shield(asked)
    if evicts:
        problems.append(EVICTS.format(bucket=settings.bucket))
    if problems:
        raise ConfigurationError(heading, problems)


async def _check_collection(
    cluster: CouchbaseCluster, settings: CouchbaseSettings, name: str, expiry_s: float, calls: Calls, clock: Clock
) -> list[str]:
    collection = cluster.collection(name, "none", settings.kv_s)
    key = f"{PROBE}{round(clock.chance() * 2**52):x}"
    try:
        return await _find_problems(collection, f"{settings.bucket}/{name}", key, expiry_s, calls, clock)
    except FAILURES as why:
        where = f"the expiry of documents in {settings.where}, collection {name!r},"
        raise StoreUnavailable(f"{where} could not be looked at ({errors.shorten_message(why)}); try again") from why


async def _find_problems(
    collection: CouchbaseCollection, where: str, key: str, expiry_s: float, calls: Calls, clock: Clock
) -> list[str]:
    """Write a document without an expiry, replace it with one that expires in `expiry_s`, and return the problems of
    the expiries that the server gave them. Remove the document again."""
    problems: list[str] = []
    cas = await calls.begin(collection.insert(key, b"{}", None))
    collection.time.learn(cas)
    expires_at_s = await calls.begin(collection.expires_at_s(key))
    if expires_at_s is None:
        return [f"{where}: a document without an expiry is gone as it is written; look at the server's settings"]
    if expires_at_s > 0:
        lives_s = expires_at_s - clock.now_ms() / 1000
        problems.append(
            f"{where}: documents that are to stay for ever are given {_span(lives_s)}, by a maxTTL: open sagas would "
            f"vanish, untold. {REMEDY}"
        )
    before_s = clock.now_ms() / 1000
    cas = await calls.begin(collection.replace(key, b"{}", cas, expiry_s, keep_expiry=False))
    expires_at_s = await calls.begin(collection.expires_at_s(key))
    if expires_at_s is None:
        return [*problems, f"{where}: what is to stay for {_span(expiry_s)} is gone as it is written: {SHORTER}"]
    if expires_at_s > 0 and expires_at_s < before_s + expiry_s - SLACK_S:
        lives_s = expires_at_s - before_s
        problems.append(
            f"{where}: what is to stay for {_span(expiry_s)} is given {_span(lives_s)}: a maxTTL, or the server's "
            f"clock is behind that of this machine. {REMEDY}; or {SHORTER}"
        )
    await calls.begin(collection.remove(key, cas))
    return problems


REMEDY = (
    "Take it away: `couchbase-cli bucket-edit --bucket ... --max-ttl 0`, and create the collection again without "
    "`--max-ttl`. What is there already keeps the expiry it has until it is written again"
)
EVICTS = (
    "the bucket {bucket!r} is ephemeral and evicts: when memory is short it removes documents, untold. Use a bucket of "
    "type couchbase. With `couchbase-cli bucket-edit --bucket-eviction-policy noEviction` it refuses writes instead, "
    "and what is there is lost with the nodes' memory"
)
SHORTER = "choose a shorter retention= of the service"


def _span(seconds: float) -> str:
    """Return a length of time as readable text.

    >>> _span(86400), _span(400 * 86400), _span(20.4)
    ('1 days', '400 days', '20 seconds')
    """
    return f"{seconds / DAY_S:.0f} days" if seconds >= DAY_S else f"{ceil(seconds - 0.5)} seconds"
