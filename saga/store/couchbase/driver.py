"""All uses of Couchbase's SDK: connecting, operations on single documents, and listing keys.

The methods return coroutines of the SDK, which `Calls` runs: see the end of this module.

The SDK uses one thread for its connections. With two or four threads an operation takes two to four times the CPU time,
and none gets faster.
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
"""Longest time for connecting, and again for opening the bucket, in seconds, if `open_s` has its default. With a longer
`open_s`, this time is longer in proportion."""
BUCKET_S = 2.0
"""Longest wait for the bucket's settings, in seconds. Some networks block this request."""
EXPTIME = "$document.exptime"
"""Virtual attribute with a document's expiry, in seconds since 1970; 0 for never."""
SCAN_S = 30.0
"""Longest time that a scan waits for the next answer of a node, in seconds."""
LEVELS = {
    "majority": DurabilityLevel.MAJORITY,
    "majorityAndPersistActive": DurabilityLevel.MAJORITY_AND_PERSIST_TO_ACTIVE,
    "persistToMajority": DurabilityLevel.PERSIST_TO_MAJORITY,
}
FAILURES = (CouchbaseException, RuntimeError)
"""Errors of the SDK for a failed request. Any other error is a defect of the toolkit."""


# ---------------------------------------------------------------- expiry by the server's clock


RELATIVE_S_MAX = 30 * 86_400
"""Shortest expiry that is sent as a point in time, in seconds. A shorter one is sent as a number of seconds from now.
The SDK defines this limit."""
AT_S_MAX = 2**32 - 1
"""Last point in time that can be sent, in seconds since 1970: 2106-02-07."""
MARGIN_S = 86_400
"""Margin in the longest expiry, in seconds, because the server's clock may be ahead of this machine's clock by up to
this time."""
SANE_S = range(1_420_070_400, AT_S_MAX)
"""Plausible times in a version, in seconds since 1970: from 2015 on. A version outside of this range contains no time,
because not every server with Couchbase's protocol takes versions from a clock: CouchbaseMock counts them."""
CAS_PER_S = 1_000_000_000
"""Number by which versions grow per second. A version is the node's clock in nanoseconds, and never decreases."""


def expiry_s_max(clock: Clock) -> float:
    """Return the longest expiry that can be sent now."""
    return AT_S_MAX - MARGIN_S - clock.now_ms() / 1000


class ServerTime:
    """Estimate of the server's time: the time in the latest version that the server has created, plus the time that has
    passed since then."""

    def __init__(self) -> None:
        self._clock: Clock = SystemClock()  # the SDK uses the machine's time, not the toolkit's `Clock`
        self._told_s = 0.0
        self._told_at_s = 0.0

    def learn(self, cas: int) -> None:
        """Learn the server's time from a version that it has just created."""
        if cas // CAS_PER_S in SANE_S:
            self._told_s, self._told_at_s = cas / CAS_PER_S, self._clock.monotonic_s()

    def expiry(self, expiry_s: float) -> timedelta:
        """Return the expiry to pass to the SDK.

        The SDK adds this machine's time of day to long expiries. So if the server's clock is ahead, the difference is
        added here, because a document must never expire too early.
        """
        seconds = max(1, ceil(expiry_s))
        if seconds >= RELATIVE_S_MAX and self._told_s:
            there_s = self._told_s + self._clock.monotonic_s() - self._told_at_s
            seconds += max(0, ceil(there_s - self._clock.now_ms() / 1000))
        return timedelta(seconds=seconds)


# ---------------------------------------------------------------- shared connections
#
# A connection costs threads, and a socket and a handshake for each node. Without sharing, sixteen services of one
# process would open sixteen connections, one after another.


@dataclass(eq=False, slots=True)
class SharedCluster:
    """Connection to a cluster that several stores of this process share, with the number of its users."""

    key: Hashable = field(repr=False)
    """Address, user, password and options, which its stores have in common."""
    cluster: Any
    """Cluster object of the SDK."""
    password: str = field(repr=False)
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that is held while a store is opened on this connection. Opening may send a request that the server does not
    know, which may break the connection for all other stores."""
    keeps_expiry: dict[str, bool] = field(default_factory=dict)
    """For each bucket, whether the server can replace a document and keep its expiry. A bucket is missing until this is
    known."""
    evicts: "dict[str, asyncio.Task[bool | None]]" = field(default_factory=dict)
    """For each bucket, the task that finds out whether the bucket evicts documents. Each task is started once."""


_open: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, SharedCluster]]" = WeakKeyDictionary()


def acquire_cluster(key: Hashable, password: str, make: Callable[[], Any]) -> SharedCluster:
    """Return the connection for this key on this event loop. It is created if there is none. The caller must call
    `release_cluster` later."""
    shares = _open.setdefault(asyncio.get_running_loop(), {})
    shared = shares.get(key)
    if shared is None:
        shared = shares[key] = SharedCluster(key, make(), password)
        UNCLOSED.add(shared)
    shared.users += 1
    return shared


def forget_cluster(shared: SharedCluster) -> None:
    """Forget a connection that failed or was closed, so that the next caller creates another."""
    shares = _open.get(asyncio.get_running_loop(), {})
    if shares.get(shared.key) is shared:
        del shares[shared.key]


async def release_cluster(shared: SharedCluster) -> None:
    """Release a connection. The last user closes it for good."""
    shared.users -= 1
    if shared.users:
        return
    forget_cluster(shared)
    for task in shared.evicts.values():
        task.cancel()
    if shared.evicts:
        await asyncio.wait(shared.evicts.values())
    try:
        await shared.cluster.close()
    finally:
        UNCLOSED.discard(shared)


# ---------------------------------------------------------------- documents


class RawTranscoder(RawJSONTranscoder):  # type: ignore[misc]  # the SDK has no types
    """Transcoder that writes JSON and reads any bytes.

    A document that another program wrote in another form must not look like an outage of the store; the code that reads
    the document reports what is wrong.
    """

    def decode_value(self, value: bytes, flags: int) -> bytes:
        return bytes(value)


class CouchbaseCollection:
    """A collection of Couchbase. Its methods return coroutines of the SDK, which are passed to `Calls.begin`; they
    raise `FAILURES`."""

    def __init__(
        self, collection: Any, durability: Durability, durable_s: float, keeps_expiry: bool, time: ServerTime
    ) -> None:
        self._collection, self._keeps_expiry, self.time = collection, keeps_expiry, time
        self._durably: dict[str, object] = {}
        if durability != "none":
            # Without a timeout here, a durable write has 10 s, whatever the cluster's options say.
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
        """Return the expiry of a document in seconds since 1970; 0 if it never expires or the server does not report
        it; `None` if the document does not exist."""
        try:
            result = await self._collection.lookup_in(key, [subdocument.get(EXPTIME, xattr=True)])
            return int(result.content_as[int](0))
        except (PathNotFoundException, DocumentNotFoundException) as why:
            drop_frames(why)
            return 0 if isinstance(why, PathNotFoundException) else None

    def _expiry(self, expiry_s: float | None) -> dict[str, object]:
        """Return an expiry in the form that the SDK takes. `None` means never: a write without an expiry clears the
        previous one."""
        return {} if expiry_s is None else {"expiry": self.time.expiry(expiry_s)}

    def _learn_time(self, cas: int, expiry_s: float | None) -> int:
        """Return the version that a write created, and learn the server's time from it, because the next long expiry is
        computed from that time."""
        if expiry_s is not None and expiry_s >= RELATIVE_S_MAX:
            self.time.learn(cas)
        return cas

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with `prefix`, in no particular order.

        The SDK may block the whole process meanwhile: see `saga.store.couchbase.listing`.
        """
        which = PrefixScan(prefix) if prefix else RangeScan()
        async for found in self._collection.scan(which, ids_only=True, timeout=timedelta(seconds=SCAN_S)):
            yield found.id


class CouchbaseCluster:
    """Connection to one bucket. It belongs to the event loop that created it, and cannot be opened again after
    closing."""

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
        """Lock that is held while a store is opened on this connection."""

    @property
    def keeps_expiry(self) -> bool | None:
        """Return whether the server can replace a document and keep its expiry: see `saga.store.couchbase.opening`.
        `None` if that is not known yet."""
        return self._shared.keeps_expiry.get(self._settings.bucket)

    @keeps_expiry.setter
    def keeps_expiry(self, keeps: bool) -> None:
        self._shared.keeps_expiry[self._settings.bucket] = keeps

    async def connect(self) -> None:
        """Wait until the connection is established. Raises `FAILURES`."""
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
        """Return a collection of the scope in the settings."""
        scope = self._bucket.scope(self._settings.scope or "_default")
        return CouchbaseCollection(
            scope.collection(name), durability, durable_s, self.keeps_expiry is not False, self.time
        )

    def evicts_as(self, ask: Callable[[], Coroutine[Any, Any, bool | None]]) -> asyncio.Task[bool | None]:
        """Return the task that finds out whether the bucket evicts documents, with the function `ask`.

        Only the first store of this process calls `ask`, because it starts another process.
        """
        asked, bucket = self._shared.evicts, self._settings.bucket
        if bucket not in asked:
            asked[bucket] = asyncio.get_running_loop().create_task(ask(), name=f"does {bucket} evict?")
        return asked[bucket]

    async def evicts(self) -> bool:
        """Return whether the bucket removes documents when memory is short. Raises `FAILURES` if that cannot be found
        out.

        The request may end the process: see `saga.store.couchbase.listing`.
        """
        manager = self._cluster.buckets()
        settings = await manager.get_bucket(self._settings.bucket, timeout=timedelta(seconds=BUCKET_S))
        return bool(settings.eviction_policy == EvictionPolicyType.NOT_RECENTLY_USED)

    def renew_password(self) -> bool:
        """Read the password again, and use a new one for future connections. Return whether it changed.

        Open connections keep the old password. Raises the same errors as `CouchbaseCluster`.
        """
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
        enable_tracing=False,  # with the next line each operation takes a fifth less time
        enable_metrics=False,
        enable_app_telemetry=settings.tls,  # it sends the password in an HTTP header
        **trusted,
    )


# ---------------------------------------------------------------- calls of the SDK
#
# The SDK's futures must not be cancelled, because the SDK would continue anyway, and its late answer would raise
# `InvalidStateError` in the loop's exception handler. Writes must not be cancelled at all: see `saga.store.port`. So
# callbacks drive the calls here, and the caller waits for a future that the SDK does not know. This also costs less
# than a task.
#
# The SDK passes each answer from its own thread to the event loop that it was given. This is an `AnswerLoop` instead of
# the real loop. It processes answers that arrive close together at once, and each answer directly resumes the call that
# waits for it. So several answers take one iteration of the real loop, instead of three iterations for each.


T = TypeVar("T")


class SdkFuture(asyncio.Future[T]):
    """A future that is passed to the SDK. It cannot be cancelled, and only its first result counts."""

    then: Callable[[], None] | None = None
    """Function that is called as soon as the result is set."""

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
        """Refuse to be cancelled, because the SDK would continue anyway."""
        return False


def drop_frames(why: BaseException) -> None:
    """Remove the tracebacks of an exception of the SDK and of its causes.

    The frames refer to the request, which refers to the exception, partly from C code that the garbage collector does
    not see. Without this, each failed call would leak 7.5 KB; reading a missing document is such a call.
    """
    found: BaseException | None = why
    while found is not None:
        found.__traceback__ = None
        found = found.__cause__ or found.__context__


class AnswerLoop:
    """The event loop that is passed to the SDK. It collects answers that arrive close together, so that the real event
    loop processes them in one iteration."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._called = False
        """True if the event loop was asked to process answers and has not done so yet."""

    def create_future(self) -> SdkFuture[Any]:
        return SdkFuture(loop=self._loop)

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: object) -> None:
        """Queue a callback with an answer of the SDK, which calls this from its own thread. The real event loop runs
        all queued callbacks in one iteration."""
        self._arrived.append((callback, args))
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._take)

    def _take(self) -> None:
        self._called = False  # reset first: an answer that arrives now is processed below or schedules another turn
        arrived = self._arrived
        while arrived:
            callback, args = arrived.popleft()
            try:
                callback(*args)
            except Exception as why:  # noqa: BLE001 - as the event loop does for its own callbacks
                self._loop.call_exception_handler({"message": "an answer of Couchbase's SDK", "exception": why})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)


class Calls:
    """Runner of SDK calls. A call runs to its end, even if its caller is cancelled."""

    def __init__(self) -> None:
        self._under_way = 0
        self._ended: asyncio.Future[None] | None = None

    def begin(self, call: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Begin a call now. Return the future of its result."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        self._go_on(call, answer)
        return answer

    def begin_and_forget(self, call: Coroutine[Any, Any, object]) -> None:
        """Begin a call, and ignore its result."""
        self.begin(call).add_done_callback(lambda answer: answer.exception())

    async def wait_until_ended(self) -> None:
        """Wait until no call is running."""
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
        except (Exception, asyncio.CancelledError) as why:  # noqa: BLE001 - the caller gets the error
            drop_frames(why)
            self._end()
            if not answer.done():
                # No code here cancels. If the SDK cancels, that must not cancel the caller.
                answer.set_exception(why if isinstance(why, Exception) else CouchbaseException(message="cancelled"))
        else:
            if waits_for is None:
                asyncio.get_running_loop().call_soon(self._go_on, call, answer)
                return
            waits_for._asyncio_future_blocking = False  # as a task does, so that another one may wait, too
            if isinstance(waits_for, SdkFuture) and waits_for.then is None:
                waits_for.then = lambda: self._go_on(call, answer)
            else:  # two calls wait for the same connection
                waits_for.add_done_callback(lambda _: self._go_on(call, answer))

    def _end(self) -> None:
        self._under_way -= 1
        if not self._under_way and self._ended is not None:
            self._ended.set_result(None)
            self._ended = None
