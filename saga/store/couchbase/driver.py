"""Driver: all uses of Couchbase's SDK. It connects, works on one document at a time, and lists keys.

Its methods are coroutines of the SDK, which `Calls` runs: see the end of this module.

The SDK has one thread for its connections, and so it stays: with two or four, an operation takes two to four times the
CPU time and none gets faster.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from datetime import timedelta
from math import ceil
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from acouchbase.cluster import AsyncCluster  # type: ignore[import-untyped]  # the SDK has no types for checkers
from couchbase import subdocument  # type: ignore[import-untyped]  # see above
from couchbase.auth import CertificateAuthenticator, PasswordAuthenticator  # type: ignore[import-untyped]  # see above
from couchbase.durability import DurabilityLevel, ServerDurability  # type: ignore[import-untyped]  # see above
from couchbase.exceptions import (  # type: ignore[import-untyped]  # see above
    CouchbaseException,
    DocumentNotFoundException,
    PathNotFoundException,
)
from couchbase.kv_range_scan import PrefixScan, RangeScan  # type: ignore[import-untyped]  # see above
from couchbase.management.buckets import EvictionPolicyType  # type: ignore[import-untyped]  # see above
from couchbase.options import ClusterOptions, ClusterTimeoutOptions  # type: ignore[import-untyped]  # see above
from couchbase.transcoder import RawJSONTranscoder  # type: ignore[import-untyped]  # see above

from saga.store.couchbase.adapter import OPEN_S, CouchbaseSettings, Durability
from saga.store.port import Document
from saga.support.clock import Clock, SystemClock
from saga.support.settings import UNCLOSED

__all__ = ["FAILURES", "CouchbaseCluster", "CouchbaseCollection"]
BOOTSTRAP_S = 6.0
"""Longest time that connecting may take, and opening the bucket, where opening may take as long as by default; else
more, in proportion: both fit into it."""
BUCKET_S = 2.0
"""Longest wait for the bucket's settings. Some networks let nobody ask for them."""
EXPTIME = "$document.exptime"
"""Name of a document's expiry, in seconds since 1970; 0 for never."""
SCAN_S = 30.0
"""Longest wait of a scan for the next answer of a node."""
LEVELS = {
    "majority": DurabilityLevel.MAJORITY,
    "majorityAndPersistActive": DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
    "persistToMajority": DurabilityLevel.PERSIST_TO_MAJORITY,
}
FAILURES = (CouchbaseException, RuntimeError)
"""Errors of the SDK when it cannot do something; anything else is a mistake of ours."""


# ---------------------------------------------------------------- expiry by the server's clock


RELATIVE_S_MAX = 30 * 86_400
"""Shortest expiry that is sent as a point in time; a shorter one is sent as seconds from now. So the SDK has it."""
AT_S_MAX = 2**32 - 1
"""Last point in time that can be sent: 2106-02-07."""
MARGIN_S = 86_400
"""Most that the server's clock may be ahead of ours before a longest expiry does not fit any more."""
SANE_S = range(1_420_070_400, AT_S_MAX)
"""Seconds that a version may tell, from 2015 on. Not every server that speaks Couchbase's protocol makes versions of a
clock: CouchbaseMock counts."""
CAS_PER_S = 1_000_000_000
"""Versions per second: a version is the node's clock, in nanoseconds, and never goes back."""


def expiry_s_max(clock: Clock) -> float:
    """Longest expiry that can be sent now."""
    return AT_S_MAX - MARGIN_S - clock.now_ms() / 1000


class ServerTime:
    """Time at the server, by the latest version that it made and the time since then."""

    def __init__(self) -> None:
        self._clock: Clock = SystemClock()  # the SDK takes the machine's time, whatever clock we are given
        self._told_s = 0.0
        self._told_at_s = 0.0

    def learn(self, cas: int) -> None:
        """Learn the time from a version that the server has made just now."""
        if cas // CAS_PER_S in SANE_S:
            self._told_s, self._told_at_s = cas / CAS_PER_S, self._clock.monotonic_s()

    def expiry(self, expiry_s: float) -> timedelta:
        """Expiry to hand to the SDK, which adds our own time of day to what is long: rather later than sooner."""
        seconds = max(1, ceil(expiry_s))
        if seconds >= RELATIVE_S_MAX and self._told_s:
            there_s = self._told_s + self._clock.monotonic_s() - self._told_at_s
            seconds += max(0, ceil(there_s - self._clock.now_ms() / 1000))
        return timedelta(seconds=seconds)


# ---------------------------------------------------------------- shared connections
#
# A connection costs threads, sockets to each node, and a handshake with each. Without sharing, sixteen services of one
# process would open sixteen, one after another.


@dataclass(eq=False, slots=True)
class SharedCluster:
    """Connection to a cluster, and who uses it."""

    key: Hashable
    cluster: Any
    """The SDK's cluster."""
    password: str
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock of who opens a store on it: a question that a server does not know may cost all others the connection."""
    keeps_expiry: dict[str, bool] = field(default_factory=dict)
    """Answers of buckets about whether they can keep an expiry: asked for once."""
    evicts: "dict[str, asyncio.Task[bool | None]]" = field(default_factory=dict)
    """Answers of buckets about whether they evict: asked for once."""


_open: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, SharedCluster]]" = WeakKeyDictionary()


def acquire_cluster(key: Hashable, password: str, make: Callable[[], Any]) -> SharedCluster:
    """Connection for this key, made if there is none on this loop; to be given back by `release_cluster`."""
    shares = _open.setdefault(asyncio.get_running_loop(), {})
    shared = shares.get(key)
    if shared is None:
        shared = shares[key] = SharedCluster(key, make(), password)
        UNCLOSED.add(shared)
    shared.users += 1
    return shared


def forget_cluster(shared: SharedCluster) -> None:
    """Have the next one who wants such a connection make another: this one did not come about, or is closed."""
    shares = _open.get(asyncio.get_running_loop(), {})
    if shares.get(shared.key) is shared:
        del shares[shared.key]


async def release_cluster(shared: SharedCluster) -> None:
    """Give it back; whoever is the last one closes it for good."""
    shared.users -= 1
    if shared.users:
        return
    forget_cluster(shared)
    for task in shared.evicts.values():
        task.cancel()
    if shared.evicts:
        await asyncio.wait(shared.evicts.values())
    await shared.cluster.close()
    UNCLOSED.discard(shared)


# ---------------------------------------------------------------- documents


class RawTranscoder(RawJSONTranscoder):  # type: ignore[misc]  # the SDK has no types
    """Writes JSON, and gives whatever lies there: what another program wrote in another form is no outage of the store,
    and whoever wants the document can tell what is wrong with it."""

    def decode_value(self, value: bytes, flags: int) -> bytes:
        return bytes(value)


class CouchbaseCollection:
    """Collection of Couchbase. Methods are coroutines of the SDK, for `Calls.begin`; they raise `FAILURES`."""

    def __init__(
        self, collection: Any, durability: Durability, durable_s: float, keeps_expiry: bool, time: ServerTime
    ) -> None:
        self._collection, self._keeps_expiry, self.time = collection, keeps_expiry, time
        self._durably: dict[str, object] = {}
        if durability != "none":
            # Without a timeout of its own a durable write has 10 s, whatever the cluster's options say.
            self._durably["durability"] = ServerDurability(LEVELS[durability])
            self._durably["timeout"] = timedelta(seconds=durable_s)

    async def get(self, key: str) -> Document:
        result = await self._collection.get(key)
        return Document(result.value, result.cas)

    async def insert(self, key: str, content: bytes, expiry_s: float | None) -> int:
        result = await self._collection.insert(key, content, **self._durably, **self._expiry(expiry_s))
        return self._learn_time(int(result.cas), expiry_s)

    async def replace(self, key: str, content: bytes, cas: int, expiry_s: float | None, keep_expiry: bool) -> int:
        expiry = self._expiry(expiry_s)
        if keep_expiry:
            expiry = {"preserve_expiry": True} if self._keeps_expiry else {}
        result = await self._collection.replace(key, content, cas=cas, **self._durably, **expiry)
        return self._learn_time(int(result.cas), expiry_s)

    async def remove(self, key: str, cas: int) -> int:
        result = await self._collection.remove(key, cas=cas, **self._durably)
        return int(result.cas)

    async def expires_at_s(self, key: str) -> int | None:
        """Expiry of a document, in seconds since 1970, 0 for never or if the server does not tell; `None` if the
        document is not there."""
        try:
            result = await self._collection.lookup_in(key, [subdocument.get(EXPTIME, xattr=True)])
            return int(result.content_as[int](0))
        except (PathNotFoundException, DocumentNotFoundException) as why:
            drop_frames(why)
            return 0 if isinstance(why, PathNotFoundException) else None

    def _expiry(self, expiry_s: float | None) -> dict[str, object]:
        """Expiry as the SDK takes it. None means never: a write that says nothing clears what was there."""
        return {} if expiry_s is None else {"expiry": self.time.expiry(expiry_s)}

    def _learn_time(self, cas: int, expiry_s: float | None) -> int:
        """Version of what was written; the next long expiry counts from it."""
        if expiry_s is not None and expiry_s >= RELATIVE_S_MAX:
            self.time.learn(cas)
        return cas

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """List the keys that begin with `prefix`, in no order. It may hold up the process: see
        `saga.store.couchbase.listing`."""
        which = PrefixScan(prefix) if prefix else RangeScan()
        async for found in self._collection.scan(which, ids_only=True, timeout=timedelta(seconds=SCAN_S)):
            yield found.id


class CouchbaseCluster:
    """Connection to one bucket. It belongs to the loop that made it, and once closed stays closed."""

    def __init__(self, settings: CouchbaseSettings) -> None:
        """Begin to connect."""
        self._settings = settings
        password = settings.password_now() or ""
        files = settings.ca_file, settings.cert_file, settings.key_file
        times = settings.open_s, settings.kv_s, settings.durable_s
        arrivals = AnswerLoop(asyncio.get_running_loop())
        self._shared = acquire_cluster(
            (settings.connection, settings.username, password, files, times),
            password,
            lambda: AsyncCluster(settings.connection, _options(settings, password), loop=arrivals),
        )
        self._cluster = self._shared.cluster
        self._bucket: Any = None
        self.time = ServerTime()
        self.opening = self._shared.opening
        """Lock of who opens a store on this connection."""

    @property
    def keeps_expiry(self) -> bool | None:
        """True if the server can replace a document and leave its expiry alone: see `saga.store.couchbase.opening`.
        `None` if nobody has asked yet."""
        return self._shared.keeps_expiry.get(self._settings.bucket)

    @keeps_expiry.setter
    def keeps_expiry(self, keeps: bool) -> None:
        self._shared.keeps_expiry[self._settings.bucket] = keeps

    async def connect(self) -> None:
        """Return once there is a connection. Raises `FAILURES`."""
        try:
            await self._cluster.on_connect()
        except BaseException:
            forget_cluster(self._shared)
            raise

    async def open_bucket(self) -> None:
        """Open the bucket of the settings. Raises `FAILURES`."""
        self._bucket = self._cluster.bucket(self._settings.bucket)
        await self._bucket.on_connect()

    async def close(self) -> None:
        """Close for good, unless another store of this process uses the connection."""
        await release_cluster(self._shared)

    def collection(self, name: str, durability: Durability, durable_s: float) -> CouchbaseCollection:
        """Collection of the scope that is set."""
        scope = self._bucket.scope(self._settings.scope or "_default")
        return CouchbaseCollection(
            scope.collection(name), durability, durable_s, self.keeps_expiry is not False, self.time
        )

    def evicts_as(self, ask: Callable[[], Coroutine[Any, Any, bool | None]]) -> asyncio.Task[bool | None]:
        """Answer of `ask` about whether the bucket evicts: the one that another store of this process got, if one has
        asked already. It takes a process of its own."""
        asked, bucket = self._shared.evicts, self._settings.bucket
        if bucket not in asked:
            asked[bucket] = asyncio.get_running_loop().create_task(ask(), name=f"does {bucket} evict?")
        return asked[bucket]

    async def evicts(self) -> bool:
        """True if the bucket removes documents when memory is short. Raises `FAILURES` if nobody says so. It may end
        the process: see `saga.store.couchbase.listing`."""
        manager = self._cluster.buckets()
        settings = await manager.get_bucket(self._settings.bucket, timeout=timedelta(seconds=BUCKET_S))
        return bool(settings.eviction_policy == EvictionPolicyType.NOT_RECENTLY_USED)

    def renew_password(self) -> bool:
        """Look whether there is another password, and use it for connections yet to be made: those there are keep what
        they began with. Raises as `CouchbaseCluster`."""
        password = self._settings.password_now()
        if password is None or password == self._shared.password:
            return False
        self._cluster.set_authenticator(_identity(self._settings, password))
        self._shared.password = password
        return True


def _identity(settings: CouchbaseSettings, password: str) -> Any:
    if settings.cert_file is not None:
        return CertificateAuthenticator(cert_path=str(settings.cert_file), key_path=str(settings.key_file))
    return PasswordAuthenticator(settings.username, password)


def _options(settings: CouchbaseSettings, password: str) -> Any:
    timeouts = ClusterTimeoutOptions(
        bootstrap_timeout=timedelta(seconds=BOOTSTRAP_S * max(1.0, settings.open_s / OPEN_S)),
        kv_timeout=timedelta(seconds=settings.kv_s),
        kv_durable_timeout=timedelta(seconds=settings.durable_s),
    )
    trusted = {} if settings.ca_file is None else {"trust_store_path": str(settings.ca_file)}
    return ClusterOptions(
        _identity(settings, password),
        timeout_options=timeouts,
        transcoder=RawTranscoder(),
        enable_tracing=False,  # with the next line: a fifth less time for each operation
        enable_metrics=False,
        **trusted,
    )


# ---------------------------------------------------------------- calls of the SDK
#
# The SDK's futures must not be cancelled: it would go on all the same, and its late answer would be an
# `InvalidStateError` in the loop's exception handler. And no write may be: see `saga.store.port`. So calls are driven
# here by callbacks, and the caller waits for a future that the SDK does not know. It also costs less than a task.
#
# The SDK hands each answer over from a thread of its own, through the loop that it is given. It is not given the event
# loop itself, but an `AnswerLoop`: answers that come close together are taken in one go, and each goes straight on to
# the call that waits for it. So there is one turn of the loop for several answers, where there were three for each.


T = TypeVar("T")


class SdkFuture(asyncio.Future[T]):
    """A future for the SDK. It cannot be cancelled, and its first result counts."""

    then: Callable[[], None] | None = None
    """Function that is called the moment the answer is there."""

    def set_result(self, result: T) -> None:
        if not self.done():
            super().set_result(result)
            if self.then is not None:
                self.then()

    def set_exception(self, why: type | BaseException) -> None:
        if not self.done():
            super().set_exception(why)
            if self.then is not None:
                self.then()

    def cancel(self, msg: object = None) -> bool:
        """Refuse: the SDK would go on all the same."""
        return False


def drop_frames(why: BaseException) -> None:
    """Drop the frames through which an exception of the SDK came, of it and of those behind it.

    They hold the request, which holds the exception, in part by references of C code that the collector does not see:
    each failed call would leave 7.5 KB for ever. A document that is not there is such a failure.
    """
    found: BaseException | None = why
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


class AnswerLoop:
    """The event loop that the SDK sees: it processes answers that arrive close together in one turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._called = False
        """True if the loop has been told of answers, and has not looked yet."""

    def create_future(self) -> SdkFuture[Any]:
        return SdkFuture(loop=self._loop)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        """Take an answer over from the SDK's thread."""
        self._arrived.append((callback, args))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._called = False  # first: what arrives from here on either is seen below, or calls again
        arrived = self._arrived
        while arrived:
            callback, args = arrived.popleft()
            try:
                callback(*args)
            except Exception as why:  # noqa: BLE001 - as the loop does with a callback of its own
                self._loop.call_exception_handler({"message": "an answer of Couchbase's SDK", "exception": why})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Calls:
    """Runs calls of the SDK to their end, even if the caller is cancelled."""

    def __init__(self) -> None:
        self._under_way = 0
        self._ended: asyncio.Future[None] | None = None

    def begin(self, call: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Begin a call now; the future tells what comes of it."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._go_on(call, answer)
        return answer

    def begin_and_forget(self, call: Coroutine[Any, Any, object]) -> None:
        """Begin a call of which nobody wants to know what comes of it."""
        self.begin(call).add_done_callback(lambda answer: answer.exception())

    async def wait_until_ended(self) -> None:
        """Return when no call is under way."""
        while self._under_way:
            self._ended = self._ended or asyncio.get_running_loop().create_future()
            await asyncio.shield(self._ended)

    def _go_on(self, call: Coroutine[Any, Any, T], answer: asyncio.Future[T]) -> None:
        try:
            waits_for = call.send(None)
        except StopIteration as done:
            self._end()
            if not answer.done():
                answer.set_result(done.value)
        except (Exception, asyncio.CancelledError) as why:  # noqa: BLE001 - handed on to whoever waits
            drop_frames(why)
            self._end()
            if not answer.done():
                # Nobody here cancels: if the SDK does, that is no cancellation of whoever waits.
                answer.set_exception(why if isinstance(why, Exception) else CouchbaseException(message="cancelled"))
        else:
            if waits_for is None:
                asyncio.get_running_loop().call_soon(self._go_on, call, answer)
                return
            waits_for._asyncio_future_blocking = False  # as a task does: another one may wait for it, too
            if isinstance(waits_for, SdkFuture) and waits_for.then is None:
                waits_for.then = lambda: self._go_on(call, answer)
            else:  # two wait for one connection
                waits_for.add_done_callback(lambda _: self._go_on(call, answer))

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._ended is not None:
            self._ended.set_result(None)
            self._ended = None
