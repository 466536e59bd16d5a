"""Folds of one partition of the topic of transitions, and what of them its tables have to keep: pure.

Two tables hold it. That of **transitions** has each of them once, and all else is folded from it again. That of
**rates** has counts by minute, for sagas that were forgotten since. It is written when the transitions of a batch are
safe, so it never has one that the other lacks; after a restart the larger of both counts is right. So nothing is ever
counted twice, and what is counted too low is at most the last batch before a kill, of sagas that were forgotten before
the next start.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from saga.errors import BadInput
from saga.messages import Record
from saga.messaging.transition_events import Told, from_record
from saga.monitor.counting import MINUTE_MS, OTHERS, Counts, Minute
from saga.monitor.folds import Folds, cut
from saga.monitor.known import Known, Packed, Standing
from saga.monitor.shared.kept import Key, decoded, decoded_key, encoded, encoded_key, kept_of

UNBOUNDED = 1 << 62
POSITION = b"position"
"""Key of the position, in each partition of the table's changes."""


class Change(NamedTuple):
    """Entry of the table of transitions to write; without a value it is to be removed."""

    key: bytes
    value: bytes | None


class Rate(NamedTuple):
    """Entry of the table of rates to write: of a name, in a minute."""

    name: str
    minute: int
    value: bytes


class Noted(Counts):
    """Counts that note in which minutes something was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.touched: set[tuple[tuple[str | int, ...], int]] = set()
        """Names, each with a minute, in which something was counted since it was emptied."""

    def minute_of(self, service: str, handler: str, time_ms: int) -> Minute | None:
        """Minute of a handler to count in."""
        found = super().minute_of(service, handler, time_ms)
        if found is not None:
            key = (service, handler)
            self.touched.add((("rate", *(key if key in self.handlers else (OTHERS, OTHERS))), time_ms // MINUTE_MS))
        return found

    def failed(self, key: tuple[str, str, str], saga: str, time_ms: int) -> None:
        """Count a failure."""
        super().failed(key, saga, time_ms)
        named = key if key in self.failures else (OTHERS, OTHERS, OTHERS)
        self.touched.add((("failures", *named), time_ms // MINUTE_MS))

    def came_from(self, topic: str, partition: int, time_ms: int) -> None:
        """Count a message of a partition."""
        super().came_from(topic, partition, time_ms)
        named = (topic, partition) if (topic, partition) in self.partitions else (OTHERS, 0)
        self.touched.add((("messages", *named), time_ms // MINUTE_MS))

    def _forget(self) -> None:
        """Take away all minutes that are too old."""
        super()._forget()
        self.touched = {each for each in self.touched if each[1] >= self._oldest}


class Part:
    """Folds of one partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.counts = Noted()
        self.folds = Folds(UNBOUNDED, self.counts)
        """Folds without a bound: whoever has several parts has one for all of them."""
        self.refused = 0
        """Records, and entries of tables, that are none."""
        self.position = 0
        """Offset of the next record to fold: all before it are in the tables, or will be before this is."""
        self.log_id = ""
        """Id of the log in which the position counts; empty: it is not known."""

    # ---------------------------------------------------------------- what services tell

    def take(self, record: Record) -> Iterator[Change]:
        """Fold a record, and give what of it is new and has to be kept."""
        try:
            several = from_record(record)
        except BadInput:  # anybody may write to the topic, and later versions tell other things
            self.refused += 1
            return
        for told in several:
            change = self._taken(told, record.time_ms)
            if change is not None:
                yield change

    def _taken(self, told: Told, appended_ms: int) -> Change | None:
        before = self._heard(told)
        is_new = self.folds.take(told, appended_ms)
        packed, standing = after = self._heard(told)
        if not is_new and before == after:
            return None
        key = Key(self.partition, cut(told.service), told.number, told.saga)
        return Change(encoded_key(key), encoded(kept_of(told, packed, standing, appended_ms)))

    def _heard(self, told: Told) -> tuple[Packed | None, Standing | None]:
        """Transition as folds have it from all tellings, and the last word of its service if that came with it."""
        known = self.folds.known.get(told.saga)
        if known is None:
            return None, None
        service = self.folds.words.name(cut(told.service))
        _, packed = known.find(service, told.number)
        said = (each for each in known.standings if each.service == service and each.number == told.number)
        return packed, next(said, None)

    def forget_one(self) -> list[Change]:
        """Forget a saga, and give the entries that are to be removed."""
        return self._removed(self.folds.forget_one())

    def _removed(self, known: Known) -> list[Change]:
        names = self.folds.words.names
        keys = (Key(self.partition, names[service], number, known.saga) for service, number in known.numbers())
        return [Change(encoded_key(key), None) for key in keys]

    def rates(self) -> list[Rate]:
        """Counts that have changed since they were asked for, as far as they are not over."""
        found = [self._rate(name, minute) for name, minute in sorted(self.counts.touched, key=str)]
        self.counts.touched.clear()
        return [each for each in found if each is not None]

    def _rate(self, name: tuple[str | int, ...], minute: int) -> Rate | None:
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
        return Rate(text, minute, msgspec.msgpack.encode(value))

    # ---------------------------------------------------------------- what tables kept

    def at(self) -> Change:
        """Position, as an entry of the table of transitions."""
        return Change(POSITION, (f"{self.position}@{self.log_id}" if self.log_id else f"{self.position}").encode())

    def begin_anew(self, log_id: str) -> bool:
        """Take note of the id of the log that is there; true if the position is one of another log: then all is to be
        folded. What was told in the other log still holds."""
        is_another, self.log_id = self.log_id not in ("", log_id), log_id
        if is_another:
            self.position = 0
        return is_another

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take in an entry of the table of transitions, or that it was removed."""
        if key == POSITION:
            position, _, log_id = (value or b"").partition(b"@")
            if position.isdigit() and len(position) < 20 and log_id.isascii():
                self.position, self.log_id = int(position), log_id.decode()
            return
        try:
            place = decoded_key(key)
            kept = None if value is None else decoded(value)
            told = None if kept is None else kept.told(place)
        except (BadInput, ValueError, OverflowError):
            self.refused += 1
            return
        if kept is not None and told is not None:
            self.folds.take(told, kept.time_ms)
        elif (known := self.folds.known.get(place.saga)) is not None:
            self.folds.forget(known)

    def restore_rate(self, name: str, minute: int, value: bytes) -> None:
        """Take in an entry of the table of rates: where it has counted more, it is right."""
        counts, time_ms = self.counts, minute * MINUTE_MS
        try:
            match msgspec.json.decode(name):
                case [_, "rate", str() as service, str() as handler]:
                    found = counts.minute_of(service, handler, time_ms)
                    if found is not None:
                        found.at_least(msgspec.msgpack.decode(value, type=Minute))
                case [_, "failures", str() as service, str() as handler, str() as error]:
                    count, last_ms, saga = msgspec.msgpack.decode(value, type=tuple[int, int, str])
                    counts.failed_at_least((service, handler, error), minute, count, (last_ms, saga))
                case [_, "messages", str() as topic, int() as partition]:
                    counts.came_at_least((topic, partition), minute, msgspec.msgpack.decode(value, type=int))
                case _:
                    self.refused += 1
        except msgspec.DecodeError:
            self.refused += 1


def partition_in(name: str) -> int | None:
    """Partition in the name of a rate; `None`: it is none of ours."""
    try:
        partition = msgspec.json.decode(name)[0]
    except (msgspec.DecodeError, LookupError, TypeError):
        return None
    return partition if isinstance(partition, int) else None
