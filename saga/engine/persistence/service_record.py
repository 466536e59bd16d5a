"""The record of a service in its own store: the id of the store, where the service began in each topic that it reads,
the log id of each topic that it publishes to, and when it was down.

The store id and the beginnings never change. The id is random, so no two stores have the same. A beginning is the value
of `Service(start=...)` when a release first read the topic. A group without a committed offset begins there: on every
broker, even after offsets were lost, and in partitions that are added to a topic later.

A topic can be lost while the store remains. A progress records what was published, including timers. If the topic was
deleted and created again, its log id differs from the one in the record.

A progress expires one retention after its last write, and nothing is written while the service is down. So nothing of a
saga that began in that time has expired until the service has been up again for one retention. Therefore a worker makes
sure, before it writes a progress, that the record says that the service is running.

A second document, shared by all services of the store, lists the handlers of each. A service without a record that has
all handlers of another service is most likely that service under a new name.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from saga.broker.port import MemberIdentity
from saga.contracts.library import contract_of
from saga.declarations.values import Declared
from saga.engine.outage_watch import OutageWatch
from saga.engine.prepared_service import reads_of
from saga.errors import Ambiguous, ConfigurationError, Conflict, Exists, StoreError, StoreUnavailable
from saga.messages import Event, name_of
from saga.messaging.names import ARCHIVES, OURS, is_change_topic, is_without_events
from saga.store.port import Document, Store
from saga.support.clock import Clock

AGAIN_S_FIRST, AGAIN_S_MAX = 0.1, 5.0
"""First and longest pause before a store that is unavailable is tried again."""
BITS = 52
"""Number of random bits that one call of the random source gives."""
WORK_MS_MIN, WORK_MS_MAX = 1000, 3_600_000
"""Shortest and longest time, in milliseconds, for which a recorded heartbeat of the service stays valid."""
ABSENCES_MAX = 16
"""Maximum number of recorded absences within one retention. An absence that is shorter than the retention divided by
this number is not recorded."""


class ServiceRecord(Struct, frozen=True, kw_only=True):
    """The record of a service, as it is stored."""

    service: str
    store: str
    """Id of the store."""
    starts: dict[str, int]
    """Topics that the service has ever read, each with the time from which it reads there, in milliseconds since 1970;
    0 stands for the oldest record."""
    logs: dict[str, str] = {}
    """Topics that the service publishes to, each with its log id."""
    works_until_ms: int = 0
    """Time until which a worker may write; 0 if unknown."""
    absences: tuple[tuple[int, int], ...] = ()
    """Periods in which no worker wrote anything, oldest first. Each is kept for one retention after its end."""

    def identity(self, worker: str) -> MemberIdentity:
        """Return the identity of a member of the service's consumer group."""
        return MemberIdentity(service=self.service, store=self.store, worker=worker)


def record_key(service: str) -> str:
    """Return the key of the record in collection `saga-archive`.

    It is never equal to the key of an archive, because service names contain no `|`.
    """
    return f"{service}|identity::{OURS}::record"


def decode(service: str, document: Document) -> ServiceRecord:
    """Decode the record. Raises `StoreError` if it is damaged, because the store might then belong to another
    service."""
    try:
        return msgspec.json.decode(document.content, type=ServiceRecord)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as why:
        raise StoreError(
            f"the record of {service!r} ({record_key(service)!r} in {ARCHIVES!r}) cannot be read: {why}; restore it"
        ) from why


REACTIONS_KEY = f"|reactions::{OURS}::record"
"""Key of the document with the handlers of all services of a store. It is never equal to the key of an archive."""


class Reactions(Struct, frozen=True):
    """The handlers of all services that have run on a store, with the events that they consume."""

    services: dict[str, tuple[str, ...]] = {}
    """For each service, its handlers with the events that they consume."""


def reactions_of(declared: Declared) -> tuple[str, ...]:
    """Return the handlers of a service, each with the events that it consumes, by topic and name."""
    return tuple(
        sorted(f"{each.name}({', '.join(sorted(map(_event, each.taken_events)))})" for each in declared.reactions)
    )


def _event(event: type[Event]) -> str:
    topic = contract_of(event).topic
    return (
        name_of(event) if is_change_topic(topic) else f"{topic}/{name_of(event)}"
    )  # the names of such topics contain the service's name


def check_name(declared: Declared, known: Reactions) -> None:
    """Check the name of a service that has never run on this store.

    Raises `ConfigurationError` if this service has all handlers of another service there, because then it is probably
    that service under a new name. A service that declares `start=` counts as new.
    """
    mine, title = set(reactions_of(declared)), declared.title
    twin = next((name for name, theirs in known.services.items() if name != declared.name and mine >= {*theirs}), None)
    if twin is None or declared.start is not None:
        return
    raise ConfigurationError(
        f"service {title!r} cannot start:",
        [
            f"it has no record in this store, and {twin!r}, which has one, has no other handlers. If it is {twin!r} "
            "under a new name, it would handle all messages again, with new idempotency keys: declare "
            f'Service("{title}", was="{twin}"). If it is another service, declare where it begins: '
            f'Service("{title}", start="now"), or start="beginning"'
        ],
    )


def start_ms(declared: Declared, now_ms: int) -> int:
    """Return the time from which a service reads a topic that it has never read before; 0 for the oldest record."""
    if declared.start == "now":
        return now_ms
    if declared.start is None or declared.start == "beginning":
        return 0
    return round(declared.start.timestamp() * 1000)


def begun_topics(declared: Declared) -> frozenset[str]:
    """Return the topics to which the declared start applies: the topics of events. The service's own topics are read
    from the beginning."""
    return frozenset(name for name in reads_of(declared) if not is_without_events(name) and not is_change_topic(name))


def extend_record(record: ServiceRecord, topics: Iterable[str], begins_ms: int) -> ServiceRecord:
    """Return the record with these topics added, unless it has them."""
    new = dict.fromkeys(sorted(set(topics) - record.starts.keys()), begins_ms)
    return replace(record, starts={**record.starts, **new}) if new else record


def work_ms(retention_s: int) -> int:
    """Return for how many milliseconds a recorded heartbeat of the service stays valid."""
    return min(WORK_MS_MAX, max(WORK_MS_MIN, retention_s * 1000 // ABSENCES_MAX))


def times_of_writes(record: ServiceRecord, retention_s: int) -> tuple[int, int]:
    """Return the first and the last time at which a write may begin.

    The first is the end of the last absence: a clock that was ahead may have recorded an end in the future. The last
    leaves half of the heartbeat's validity as a reserve, until the write takes effect.
    """
    return max((end for _, end in record.absences), default=0), record.works_until_ms - work_ms(retention_s) // 2


def record_work(record: ServiceRecord, now_ms: int, retention_s: int) -> ServiceRecord:
    """Return the record with a new heartbeat, which shows that the service is running. If it was down before, the
    absence is added.

    An absence that ends in the future was recorded by a clock that was ahead: it ends now.
    """
    first_ms, last_ms = times_of_writes(record, retention_s)
    if first_ms <= now_ms <= last_ms:
        return record
    retention_ms, until_ms = retention_s * 1000, record.works_until_ms
    absences = [(begin, min(end, now_ms)) for begin, end in record.absences if begin < now_ms < end + retention_ms]
    if until_ms and now_ms - until_ms > retention_ms // ABSENCES_MAX:
        absences.append((until_ms, now_ms))
    until_ms = max(until_ms, now_ms + work_ms(retention_s))
    return replace(record, works_until_ms=until_ms, absences=tuple(absences))


async def read_record(store: Store, service: str) -> ServiceRecord | None:
    """Read the record of a service; `None` if the service never ran on this store."""
    document = await store.get(ARCHIVES, record_key(service))
    return None if document is None else decode(service, document)


async def list_services(store: Store) -> Collection[str]:
    """List the services that have run on this store. Services without handlers are left out, and those that ran only
    under an early release. Raises `StoreError`.
    """
    return _reactions_in(await store.get(ARCHIVES, REACTIONS_KEY)).services


def replaced_logs(known: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the topics whose current log id differs from the known one. Unknown and missing topics are left out.

    >>> replaced_logs({"orders": "a", "payments": "b", "gone": "c"}, {"orders": "a", "payments": "x", "new": "y"})
    ['payments']
    """
    return sorted(topic for topic, id_ in now.items() if known.get(topic, id_) != id_)


async def known_logs(store: Store, service: str) -> dict[str, str]:
    """Read the ids of the logs that a service has published to; empty if it never ran on this store. Raises
    `StoreError`."""
    record = await read_record(store, service)
    return {} if record is None else record.logs


async def note_logs(store: Store, service: str, log_ids: Mapping[str, str], but: Collection[str] = ()) -> None:
    """Record that the service publishes to these logs from now on, except for the topics `but`.

    For a service that never ran on this store, nothing is recorded. Raises `StoreError`.
    """
    new = {topic: id_ for topic, id_ in log_ids.items() if topic not in but}
    await _change(store, service, lambda known: replace(known, logs={**known.logs, **new}))


async def _change(store: Store, service: str, change: Callable[[ServiceRecord], ServiceRecord]) -> ServiceRecord | None:
    """Change the record, and return it; `None` if there is none. Raises `StoreError`."""
    while (document := await store.get(ARCHIVES, record_key(service))) is not None:
        known = decode(service, document)
        changed = change(known)
        if changed == known:
            return known
        try:
            await store.replace(ARCHIVES, record_key(service), msgspec.json.encode(changed), cas=document.cas)
        except (Conflict, Ambiguous):  # another process was faster, or the answer was lost: it is read again
            continue
        return changed
    return None


class WorkTimes:
    """Keeps the record up to date while one worker of the service runs."""

    def __init__(self, record: ServiceRecord, retention_s: int, store: Store, clock: Clock) -> None:
        self._retention_s, self._store, self._clock = retention_s, store, clock
        self._take(record)

    def _take(self, record: ServiceRecord) -> None:
        self._record, self.absences = record, record.absences
        """Periods in which no worker has written anything, as far as this worker knows."""
        self._first_ms, self._last_ms = times_of_writes(record, self._retention_s)

    def is_recent(self) -> bool:
        """Return whether a progress may be written now, because the record is recent enough."""
        return self._first_ms <= self._clock.now_ms() <= self._last_ms

    async def record(self) -> None:
        """Record that the service is running. Raises `StoreError`.

        If the record was removed from the store, this worker continues with its own copy.
        """

        def extend(known: ServiceRecord) -> ServiceRecord:
            return record_work(known, self._clock.now_ms(), self._retention_s)

        self._take(await _change(self._store, self._record.service, extend) or extend(self._record))


async def ensure_record(declared: Declared, store: Store, clock: Clock, watching: OutageWatch) -> ServiceRecord:
    """Return the record of a service, created or extended if necessary. It is durable before anything is read from the
    log.

    While the store is unavailable, this is reported, and the store is tried again. Raises `ConfigurationError` for a
    service that was probably renamed.
    """
    service, topics, pause_s = declared.name, begun_topics(declared), AGAIN_S_FIRST
    retention_s = int(declared.retention.total_seconds())
    while True:
        begins_ms = start_ms(declared, clock.now_ms())
        try:
            document, listed = await store.get(ARCHIVES, record_key(service)), await store.get(ARCHIVES, REACTIONS_KEY)
            if document is None:
                check_name(declared, _reactions_in(listed))
                made = extend_record(ServiceRecord(service=service, store=_new_id(clock), starts={}), topics, begins_ms)
                made = record_work(made, clock.now_ms(), retention_s)
                await store.insert(ARCHIVES, record_key(service), msgspec.json.encode(made))
                await _note_reactions(declared, store, listed)
                return made
            known = decode(service, document)
            made = record_work(extend_record(known, topics, begins_ms), clock.now_ms(), retention_s)
            if made is not known:
                content = msgspec.json.encode(made)
                await store.replace(ARCHIVES, record_key(service), content, cas=document.cas)
            await _note_reactions(declared, store, listed)
            return made
        except (Exists, Conflict, Ambiguous):
            continue  # another process was faster, or the answer was lost: read it again
        except StoreUnavailable as why:
            watching.unavailable("get", why)
            await clock.sleep(pause_s)
            pause_s = min(pause_s * 2, AGAIN_S_MAX)


def _reactions_in(listed: Document | None) -> Reactions:
    """Decode the handlers of the services of a store. Raises `StoreError`."""
    try:
        return Reactions() if listed is None else msgspec.json.decode(listed.content, type=Reactions)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as why:
        raise StoreError(
            f"what services react to ({REACTIONS_KEY!r} in {ARCHIVES!r}) cannot be read: {why}; remove it, and each "
            "service writes it again when it starts"
        ) from why


async def _note_reactions(declared: Declared, store: Store, listed: Document | None) -> None:
    """Record the handlers of a service, if they are new. Raises the errors of a write to the store."""
    known, mine = _reactions_in(listed).services, reactions_of(declared)
    if known.get(declared.name) == mine or not mine:
        return
    content = msgspec.json.encode(Reactions({**known, declared.name: mine}))
    if listed is None:
        await store.insert(ARCHIVES, REACTIONS_KEY, content)
    else:
        await store.replace(ARCHIVES, REACTIONS_KEY, content, cas=listed.cas)


def _new_id(clock: Clock) -> str:
    return "".join(f"{int(clock.chance() * (1 << BITS)):013x}" for _ in range(2))


def starts_of(record: ServiceRecord) -> Mapping[str, int]:
    """Return the starting times for joining the consumer group: see `saga.broker.port.Broker`."""
    return {topic: at_ms for topic, at_ms in record.starts.items() if at_ms}
