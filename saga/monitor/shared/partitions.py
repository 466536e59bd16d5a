"""The read model of one partition of a shared monitor, and transitions in the form in which its table stores them.

Stored transitions contain everything that the read model needs, but no ids and hashes. The order of transitions does
not matter to the read model, and duplicates change nothing. So the read model is restored by applying all stored
transitions again.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
from msgspec import Struct

from saga.errors import BadInput
from saga.messages import Record
from saga.messaging.transition_events import (
    EmittedMessage,
    Result,
    TransitionCause,
    TransitionEvent,
    WaitingMessage,
    parse_transitions,
)
from saga.monitor.counters import MINUTE_MS, OTHERS, MinuteCounts, RecentCounts
from saga.monitor.read_model import TYPES_MAX, ReadModel, bound_time, to_service_state, truncate
from saga.monitor.saga_index import UNSEEN_MS, NextRun, PackedTransition, ServiceState, TrackedSaga
from saga.progress.document import UNREADABLE
from saga.support.clock import LATEST_MS, iso


class FirstNames(Struct, frozen=True, array_like=True, gc=False):
    """A shortened list of names: the first ones, and how many more there were."""

    first: tuple[str, ...]
    more: int = 0
    """Number of names that are left out."""


class StoredWait(Struct, frozen=True, array_like=True, gc=False):
    """A waiting handler, and the events that it waits for."""

    handler: str
    types: FirstNames
    until_ms: int = 0
    """Time at which the handler runs even without an event; 0 if there is none."""


class StoredTransition(Struct, frozen=True, array_like=True, gc=False):
    """A transition as the table stores it. Its service, saga and number are in the key."""

    time_ms: int
    handler: str
    outcome: str
    type: str
    source: str
    topic: str | None
    partition: int | None
    attempt: int
    worker: str
    emitted: FirstNames
    steps: FirstNames
    error: str
    queued_ms: int | None
    handler_ms: int | None
    open: bool
    due_ms: int
    """Time at which the service resumes the saga by itself; 0 if no time is set."""
    next_run: NextRun
    """What happens at `due_ms`."""
    awaits: tuple[StoredWait, ...]
    result: Result | None
    restarted_by: str | None
    parked: bool
    """True if the service has a parked run in this saga."""
    is_code: bool = False
    """True if the service's own code failed."""
    postponed_by: str = ""
    """Class of the reason that postpones the parked run; empty if the run is not postponed."""
    closed: tuple[str, ...] = ()
    """Handlers whose parked run or dead letter has ended with the transition."""

    def to_event(self, key: "TransitionKey") -> TransitionEvent:
        """Return the transition event from which this was made, without its ids and hashes."""
        due = iso(self.due_ms) if self.due_ms else None
        return TransitionEvent(
            service=key.service,
            saga=key.saga,
            number=key.number,
            time=iso(self.time_ms),
            handler=self.handler,
            outcome=self.outcome,
            error=self.error or None,
            blame="code" if self.is_code else None,
            message=TransitionCause(
                id="", type=self.type, source=self.source, topic=self.topic, partition=self.partition
            ),
            attempt=self.attempt,
            worker=self.worker,
            emitted=tuple(EmittedMessage(id="", type=type_) for type_ in _expand(self.emitted)),
            steps=_expand(self.steps),
            closed=self.closed,
            queued_ms=self.queued_ms,
            handler_ms=self.handler_ms,
            open=self.open,
            awaits=tuple(
                WaitingMessage(
                    handler=each.handler,
                    types=_expand(each.types),
                    until=iso(each.until_ms) if each.until_ms else None,
                )
                for each in self.awaits
            ),
            parked_until=due if self.next_run == "attempt" else iso(LATEST_MS) if self.parked else None,
            postponed_by=self.postponed_by or None,
            due=due if self.next_run == "deadline" else None,
            result=self.result,
            rebuilt_at=self.restarted_by,
            hash="",
            previous="",
        )


class TransitionKey(Struct, frozen=True, array_like=True, gc=False):
    """Key of a transition in the table."""

    partition: int
    """Number of the partition, both in the transition topic and in the table's changelog."""
    service: str
    number: int
    saga: str


_key_decoder = msgspec.json.Decoder(TransitionKey)
_decoder = msgspec.msgpack.Decoder(StoredTransition)


def encode_key(key: TransitionKey) -> bytes:
    """Encode a key as readable text in bytes."""
    return msgspec.json.encode(key)


def encode_transition(transition: StoredTransition) -> bytes:
    """Encode a transition as bytes."""
    return msgspec.msgpack.encode(transition)


def decode_key(content: bytes) -> TransitionKey:
    """Decode a key. Raises `BadInput` if it is invalid, because any client may write to the changelog topic."""
    try:
        return _key_decoder.decode(content)
    except UNREADABLE as why:
        raise BadInput(f"it is no key of a transition: {why}") from why


def decode_transition(content: bytes) -> StoredTransition:
    """Decode a transition. Raises `BadInput` if it is invalid."""
    try:
        return _decoder.decode(content)
    except UNREADABLE as why:
        raise BadInput(f"it is no kept transition: {why}") from why


def to_stored(
    event: TransitionEvent, packed: PackedTransition | None, standing: ServiceState | None, appended_ms: int
) -> StoredTransition:
    """Convert a transition event to the form in which it is stored.

    Args:
        packed: The transition in the read model. It combines all copies of the event; for example, only one of them may
            have the run's duration. `None` if the read model does not keep the transition.
        standing: Latest state of the service if it comes from this event, otherwise `None`.
    """
    state = to_service_state(event, 0) if standing is None else standing
    queued_ms, handler_ms = event.queued_ms, event.handler_ms
    time_ms = bound_time(event.time, appended_ms)
    if packed is not None:
        time_ms, queued_ms, handler_ms = packed.time_ms, _unpack_ms(packed.queued_ms), _unpack_ms(packed.handler_ms)
    return StoredTransition(
        time_ms=time_ms,
        handler=truncate(event.handler),
        outcome=truncate(event.outcome),
        type=truncate(event.message.type),
        source=truncate(event.message.source),
        topic=None if event.message.topic is None else truncate(event.message.topic),
        partition=event.message.partition,
        attempt=min(event.attempt, 0xFFFF),
        worker=truncate(event.worker),
        emitted=_take_first(tuple(each.type for each in event.emitted)),
        steps=_take_first(event.steps),
        error=truncate(event.error or ""),
        queued_ms=queued_ms,
        handler_ms=handler_ms,
        open=state.open,
        due_ms=state.due_ms,
        next_run=state.next_run,
        awaits=_to_stored_waits(event, state) if standing is None else _restore_waits(standing),
        result=event.result,
        restarted_by=event.rebuilt_at,
        parked=event.parked_until is not None,
        is_code=event.blame == "code",
        postponed_by=state.postponed_by,
        closed=tuple(map(truncate, event.closed[:TYPES_MAX])),
    )


def _to_stored_waits(event: TransitionEvent, state: ServiceState) -> tuple[StoredWait, ...]:
    pairs = zip(event.awaits, state.awaits, strict=False)
    return tuple(StoredWait(truncate(each.handler), _take_first(each.types), known.until_ms) for each, known in pairs)


def _restore_waits(standing: ServiceState) -> tuple[StoredWait, ...]:
    """Return the waiting handlers of a service state in the form in which they are stored.

    If the list of types was shortened, its last name says how many were left out.
    """
    waiting = []
    for handler, types, until_ms in standing.awaits:
        more = int(types[-1].split()[1]) if len(types) > TYPES_MAX else 0
        waiting.append(StoredWait(handler, FirstNames(types[:TYPES_MAX], more), until_ms))
    return tuple(waiting)


def _take_first(names: tuple[str, ...]) -> FirstNames:
    return FirstNames(tuple(map(truncate, names[:TYPES_MAX])), max(0, len(names) - TYPES_MAX))


def _expand(names: FirstNames) -> tuple[str, ...]:
    """Restore the length of a shortened list of names, up to `1 << 20` names that were left out.

    Empty strings stand for these names, because the read model uses only their number.
    """
    return names.first + ("",) * min(names.more, 1 << 20)


def _unpack_ms(ms: int) -> int | None:
    return None if ms == UNSEEN_MS else ms


# -------------------------------------------------------------------- parts


UNBOUNDED = 1 << 62
POSITION = b"position"
"""Key under which the position is stored in each partition of the table's changelog."""


class TableChange(NamedTuple):
    """An entry to write to the transition table. If the value is `None`, the entry is removed."""

    key: bytes
    value: bytes | None


class RateEntry(NamedTuple):
    """An entry to write to the rate table, for one name and one minute."""

    name: str
    minute: int
    value: bytes


class TouchedCounts(RecentCounts):
    """Counts that also record the minutes in which they have changed."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: set[tuple[tuple[str | int, ...], int]] = set()
        """Names and minutes whose counts have changed since this set was last emptied."""

    def get_minute(self, service: str, handler: str, time_ms: int) -> MinuteCounts | None:
        """Return the counts of a handler in a minute, and mark that minute as changed."""
        found = super().get_minute(service, handler, time_ms)
        if found is not None:
            key = (service, handler)
            self.touched.add((("rate", *(key if key in self.handlers else (OTHERS, OTHERS))), time_ms // MINUTE_MS))
        return found

    def count_failure(self, key: tuple[str, str, str], saga: str, time_ms: int) -> None:
        """Count a failure, and mark its minute as changed."""
        super().count_failure(key, saga, time_ms)
        named = key if key in self.failures else (OTHERS, OTHERS, OTHERS)
        self.touched.add((("failures", *named), time_ms // MINUTE_MS))

    def count_message(self, topic: str, partition: int, time_ms: int) -> None:
        """Count a message of a partition, and mark its minute as changed."""
        super().count_message(topic, partition, time_ms)
        named = (topic, partition) if (topic, partition) in self.partitions else (OTHERS, 0)
        self.touched.add((("messages", *named), time_ms // MINUTE_MS))

    def _drop_old_minutes(self) -> None:
        """Drop minutes that are too old, also from the minutes that are marked as changed."""
        super()._drop_old_minutes()
        self.touched = {each for each in self.touched if each[1] >= self._oldest}


class PartitionModel:
    """The read model of one partition, and the table entries from which it can be restored."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.counts = TouchedCounts()
        self.read_model = ReadModel(UNBOUNDED, self.counts)
        """Read model without a limit on the number of sagas. The worker limits that number for all its partitions
        together.
        """
        self.refused = 0
        """Number of records and table entries that could not be decoded."""
        self.position = 0
        """Offset of the next record to apply. It is written to the table only after the entries of all earlier
        records.
        """
        self.log_id = ""
        """Id of the log to which the position belongs; empty if unknown."""

    # ---------------------------------------------------------------- transition events

    def apply(self, record: Record) -> Iterator[TableChange]:
        """Apply a record. Yield the table entries to write for what is new in it."""
        try:
            several = parse_transitions(record)
        except BadInput:  # any client may write to the topic, and later versions may publish other records
            self.refused += 1
            return
        for event in several:
            change = self._apply(event, record.time_ms)
            if change is not None:
                yield change

    def _apply(self, event: TransitionEvent, appended_ms: int) -> TableChange | None:
        before = self._find_current(event)
        is_new = self.read_model.apply(event, appended_ms)
        packed, standing = after = self._find_current(event)
        if not is_new and before == after:
            return None
        key = TransitionKey(self.partition, truncate(event.service), event.number, event.saga)
        return TableChange(encode_key(key), encode_transition(to_stored(event, packed, standing, appended_ms)))

    def _find_current(self, event: TransitionEvent) -> tuple[PackedTransition | None, ServiceState | None]:
        """Return the transition as the read model has it, which combines all copies of the event.

        Also return the service's latest state if it comes from this transition, otherwise `None`.
        """
        known = self.read_model.sagas.get(event.saga)
        if known is None:
            return None, None
        service = self.read_model.intern_table.intern_name(truncate(event.service))
        _, packed = known.find(service, event.number)
        states = (each for each in known.service_states if each.service == service and each.number == event.number)
        return packed, next(states, None)

    def forget_one(self) -> list[TableChange]:
        """Drop one saga. Return the changes that remove its table entries."""
        return self._to_removals(self.read_model.forget_one())

    def _to_removals(self, known: TrackedSaga) -> list[TableChange]:
        names = self.read_model.intern_table.services_and_workers
        keys = (
            TransitionKey(self.partition, names[service], number, known.saga)
            for service, number in known.list_numbers()
        )
        return [TableChange(encode_key(key), None) for key in keys]

    def take_changed_rates(self) -> list[RateEntry]:
        """Return the counts that have changed since the last call, except those of minutes that are too old."""
        found = [self._encode_rate(name, minute) for name, minute in sorted(self.counts.touched, key=str)]
        self.counts.touched.clear()
        return [each for each in found if each is not None]

    def _encode_rate(self, name: tuple[str | int, ...], minute: int) -> RateEntry | None:
        counts, (kind, *key) = self.counts, name
        value: object
        match kind, *key:
            case "rate", str() as service, str() as handler:
                value = counts.handlers.get((service, handler), {}).get(minute)
            case "failures", str() as service, str() as handler, str() as error:
                failures = counts.failures.get((service, handler, error))
                count = 0 if failures is None else failures.minutes.get(minute)
                value = (count, *failures.last) if failures is not None and count else None
            case "messages", str() as topic, int() as partition:
                value = counts.partitions.get((topic, partition), {}).get(minute)
            case _:  # pragma: no cover
                raise AssertionError(name)
        if value is None:
            return None
        text = msgspec.json.encode((self.partition, *name)).decode()
        return RateEntry(text, minute, msgspec.msgpack.encode(value))

    # ---------------------------------------------------------------- table entries

    def encode_position(self) -> TableChange:
        """Encode the position as an entry of the transition table."""
        return TableChange(POSITION, (f"{self.position}@{self.log_id}" if self.log_id else f"{self.position}").encode())

    def note_log_id(self, log_id: str) -> bool:
        """Record the id of the current log. Return `True` if the position belongs to another log, so that all records
        have to be applied again. Transitions that were applied from the other log stay valid."""
        is_another, self.log_id = self.log_id not in ("", log_id), log_id
        if is_another:
            self.position = 0
        return is_another

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Apply an entry of the transition table, or its removal if `value` is `None`."""
        if key == POSITION:
            position, _, log_id = (value or b"").partition(b"@")
            if position.isdigit() and len(position) < 20 and log_id.isascii():
                self.position, self.log_id = int(position), log_id.decode()
            return
        try:
            place = decode_key(key)
            stored = None if value is None else decode_transition(value)
            event = None if stored is None else stored.to_event(place)
        except (BadInput, ValueError, OverflowError):
            self.refused += 1
            return
        if stored is not None and event is not None:
            self.read_model.apply(event, stored.time_ms)
        elif (known := self.read_model.sagas.get(place.saga)) is not None:
            self.read_model.forget(known)

    def restore_rate(self, name: str, minute: int, value: bytes) -> None:
        """Apply an entry of the rate table. A count in it replaces the current count if it is higher."""
        counts, time_ms = self.counts, minute * MINUTE_MS
        try:
            match msgspec.json.decode(name):
                case [_, "rate", str() as service, str() as handler]:
                    found = counts.get_minute(service, handler, time_ms)
                    if found is not None:
                        found.raise_to(msgspec.msgpack.decode(value, type=MinuteCounts))
                case [_, "failures", str() as service, str() as handler, str() as error]:
                    count, last_ms, saga = msgspec.msgpack.decode(value, type=tuple[int, int, str])
                    counts.raise_failures_to((service, handler, error), minute, count, (last_ms, saga))
                case [_, "messages", str() as topic, int() as partition]:
                    counts.raise_messages_to((topic, partition), minute, msgspec.msgpack.decode(value, type=int))
                case _:
                    self.refused += 1
        except UNREADABLE:
            self.refused += 1


def parse_partition(name: str) -> int | None:
    """Return the partition number in the name of an entry of the rate table; `None` if the name has another form."""
    try:
        partition = msgspec.json.decode(name)[0]
    except (*UNREADABLE, LookupError, TypeError):
        return None
    return partition if isinstance(partition, int) else None
