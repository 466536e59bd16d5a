"""Counts of transitions by minute, and histograms of durations. All of them are sums. So the order of events does not
matter, and an observation can be removed again.

A **retry storm** is a handler that in the last five minutes had at least `STORM_LEAST` failed attempts which are
retried, and more of these than finished runs.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil

MINUTE_MS = 60_000
MINUTES = 60
"""Number of minutes that are counted separately. They are the last hour, up to the newest transition."""
RECENT = 5
"""Number of minutes that count as recent. Rates per second and retry storms are computed from these."""
STORM_LEAST = 20
"""Minimum number of retries in the recent minutes for a retry storm."""
KEYS_MAX = 1000
"""Maximum number of handlers that are counted separately. The same limit applies to error classes in handlers, and to
partitions. All others are counted together."""
OTHERS = "(others)"
"""Name under which all others are counted together."""
_FINE = 8
"""Number of histogram bins between a duration and the double of it. Percentiles are off by at most a twelfth."""


def find_bin(ms: int) -> int:
    """Return the number of the bin for a duration.

    >>> [find_bin(ms) for ms in (0, 1, 7, 8, 9, 100, 1000)]
    [0, 1, 7, 8, 9, 36, 63]
    """
    if ms < _FINE:
        return max(0, ms)
    doublings = ms.bit_length() - 4  # keeps the upper four bits, a number from 8 to 15
    return (doublings << 3) + (ms >> doublings)


def find_bin_end(number: int) -> int:
    """Return the longest duration that belongs to a bin.

    >>> [find_bin_end(find_bin(ms)) for ms in (0, 1, 9, 100, 1000)]
    [0, 1, 9, 103, 1023]
    """
    if number < 2 * _FINE:
        return number
    doublings = (number >> 3) - 1
    return ((number - (doublings << 3) + 1) << doublings) - 1


@dataclass(slots=True)
class TimeHistogram:
    """Histogram of durations. Bins are wider for longer durations."""

    bins: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def add(self, ms: int, times: int = 1) -> None:
        """Add `times` observations of a duration; a negative number removes them."""
        number = find_bin(ms)
        left = self.bins.get(number, 0) + times
        if left:
            self.bins[number] = left
        else:
            self.bins.pop(number, None)
        self.count += times

    def merge(self, other: "TimeHistogram") -> None:
        """Add the counts of another histogram."""
        for number, times in other.bins.items():
            self.bins[number] = self.bins.get(number, 0) + times
        self.count += other.count

    def raise_to(self, other: "TimeHistogram") -> None:
        """Keep the larger of the two counts of each bin."""
        for number, times in other.bins.items():
            self.bins[number] = max(times, self.bins.get(number, 0))
        self.count = sum(self.bins.values())

    def percentile(self, share: float) -> int:
        """Return the duration that this share of the observations did not exceed; 0 if there are none.

        >>> times = TimeHistogram()
        >>> for ms in range(1, 101):
        ...     times.add(ms)
        >>> times.percentile(0.5), times.percentile(0.99)
        (51, 103)
        """
        left = ceil(share * self.count)
        for number in sorted(self.bins):
            left -= self.bins[number]
            if left <= 0:
                return find_bin_end(number)
        return 0


@dataclass(slots=True)
class MinuteCounts:
    """Counts of one handler's transitions in one minute."""

    transitions: int = 0
    failures: int = 0
    runs: int = 0
    retries: int = 0
    dead: int = 0
    handler: TimeHistogram = field(default_factory=TimeHistogram)
    queued: TimeHistogram = field(default_factory=TimeHistogram)

    def merge(self, other: "MinuteCounts") -> None:
        """Add the counts of the other minute."""
        self.transitions += other.transitions
        self.failures += other.failures
        self.runs += other.runs
        self.retries += other.retries
        self.dead += other.dead
        self.handler.merge(other.handler)
        self.queued.merge(other.queued)

    def raise_to(self, other: "MinuteCounts") -> None:
        """Keep the larger of the two values of each count."""
        self.transitions = max(self.transitions, other.transitions)
        self.failures = max(self.failures, other.failures)
        self.runs = max(self.runs, other.runs)
        self.retries = max(self.retries, other.retries)
        self.dead = max(self.dead, other.dead)
        self.handler.raise_to(other.handler)
        self.queued.raise_to(other.queued)


@dataclass(slots=True)
class FailureCounts:
    """Numbers of failures of one class in one handler, by minute."""

    minutes: dict[int, int] = field(default_factory=dict)
    last: tuple[int, str] = (0, "")
    """Time and saga of the last failure."""


class RecentCounts:
    """Counts for each minute of the last hour, up to the newest transition."""

    def __init__(self) -> None:
        self.newest_ms = 0
        self.handlers: dict[tuple[str, str], dict[int, MinuteCounts]] = {}
        self.failures: dict[tuple[str, str, str], FailureCounts] = {}
        self.partitions: dict[tuple[str, int], dict[int, int]] = {}
        self._oldest = 0

    def get_minute(self, service: str, handler: str, time_ms: int) -> MinuteCounts | None:
        """Return the counts of a handler in the minute to which a time belongs; `None` if that minute is no longer
        counted. Counts that do not exist yet are created; beyond `KEYS_MAX` handlers all further ones share theirs."""
        minute = self._advance_to(time_ms)
        if minute < self._oldest:
            return None
        key = (service, handler)
        minutes = self.handlers.get(key)
        if minutes is None:
            minutes = self.handlers.setdefault(key if len(self.handlers) < KEYS_MAX else (OTHERS, OTHERS), {})
        found = minutes.get(minute)
        if found is None:
            found = minutes[minute] = MinuteCounts()
        return found

    def count_failure(self, key: tuple[str, str, str], saga: str, time_ms: int) -> None:
        """Count a failure. `key`: service, handler and class of the failure."""
        minute = self._advance_to(time_ms)
        if minute < self._oldest:
            return
        found = self._get_failures(key)
        found.minutes[minute] = found.minutes.get(minute, 0) + 1
        found.last = max(found.last, (time_ms, saga))

    def count_message(self, topic: str, partition: int, time_ms: int) -> None:
        """Count a message of a partition."""
        minute = self._advance_to(time_ms)
        if minute < self._oldest:
            return
        minutes = self._get_messages((topic, partition))
        minutes[minute] = minutes.get(minute, 0) + 1

    def raise_failures_to(self, key: tuple[str, str, str], minute: int, count: int, last: tuple[int, str]) -> None:
        """Raise the number of failures in a minute to `count` if it is lower."""
        if self._advance_to(minute * MINUTE_MS) >= self._oldest:
            found = self._get_failures(key)
            found.minutes[minute] = max(count, found.minutes.get(minute, 0))
            found.last = max(found.last, last)

    def raise_messages_to(self, key: tuple[str, int], minute: int, count: int) -> None:
        """Raise the number of messages of a partition in a minute to `count` if it is lower."""
        if self._advance_to(minute * MINUTE_MS) >= self._oldest:
            minutes = self._get_messages(key)
            minutes[minute] = max(count, minutes.get(minute, 0))

    def merge(self, other: "RecentCounts") -> None:
        """Add the counts of `other`, except those of minutes that are too old."""
        self._advance_to(other.newest_ms)
        for handler, minutes in other.handlers.items():
            for number, minute in minutes.items():
                if (mine := self.get_minute(*handler, number * MINUTE_MS)) is not None:
                    mine.merge(minute)
        for key, failures in other.failures.items():
            for number, count in failures.minutes.items():
                if number >= self._oldest:
                    found = self._get_failures(key)
                    found.minutes[number] = found.minutes.get(number, 0) + count
                    found.last = max(found.last, failures.last)
        for source, counts in other.partitions.items():
            for number, count in counts.items():
                if number >= self._oldest:
                    into = self._get_messages(source)
                    into[number] = into.get(number, 0) + count

    def list_recent_minutes(self) -> range:
        """Return the recent minutes that are complete, and the current one."""
        newest = self.newest_ms // MINUTE_MS
        return range(newest - RECENT, newest + 1)

    def list_minutes_until(self, now_ms: int, count: int) -> range:
        """Return the last `count` minutes, including the current one.

        If a service's clock is ahead, they end with the minute of the newest transition.
        """
        newest = max(now_ms, self.newest_ms) // MINUTE_MS
        return range(newest + 1 - count, newest + 1)

    def _get_failures(self, key: tuple[str, str, str]) -> FailureCounts:
        found = self.failures.get(key)
        if found is None:
            others = (OTHERS, OTHERS, OTHERS)
            found = self.failures.setdefault(key if len(self.failures) < KEYS_MAX else others, FailureCounts())
        return found

    def _get_messages(self, key: tuple[str, int]) -> dict[int, int]:
        found = self.partitions.get(key)
        if found is None:
            found = self.partitions.setdefault(key if len(self.partitions) < KEYS_MAX else (OTHERS, 0), {})
        return found

    def _advance_to(self, time_ms: int) -> int:
        """Return the minute to which a time belongs. If it is a new minute, drop minutes that are too old."""
        minute = time_ms // MINUTE_MS
        if time_ms > self.newest_ms:
            self.newest_ms = time_ms
            if minute - MINUTES + 1 > self._oldest:
                self._oldest = minute - MINUTES + 1
                self._drop_old_minutes()
        return minute

    def _drop_old_minutes(self) -> None:
        """Drop minutes that are too old, and entries without any minute left."""
        counted: list[dict[int, MinuteCounts] | dict[int, int]] = [*self.handlers.values(), *self.partitions.values()]
        counted += [failures.minutes for failures in self.failures.values()]
        for each in counted:
            for old in [minute for minute in each if minute < self._oldest]:
                del each[old]
        self.handlers = {key: each for key, each in self.handlers.items() if each}
        self.partitions = {key: counts for key, counts in self.partitions.items() if counts}
        self.failures = {key: failures for key, failures in self.failures.items() if failures.minutes}


def add_up_minutes(minutes: Iterable[MinuteCounts]) -> MinuteCounts:
    """Return the sum of all these minutes."""
    whole = MinuteCounts()
    for each in minutes:
        whole.merge(each)
    return whole


def is_storm(minutes: Mapping[int, MinuteCounts], recent: range) -> bool:
    """Return whether these recent minutes show a retry storm: enough retries, and more of them than finished runs."""
    retries = sum(minute.retries for minute in _select_minutes(minutes, recent))
    return retries >= STORM_LEAST and retries > sum(minute.runs for minute in _select_minutes(minutes, recent))


def compute_rate_per_s(minutes: Mapping[int, MinuteCounts], recent: range) -> float:
    """Return the number of transitions per second in the recent minutes. The current minute, which has not ended, is
    left out."""
    return sum(minute.transitions for minute in _select_minutes(minutes, recent[:-1])) / (60 * RECENT)


def _select_minutes(minutes: Mapping[int, MinuteCounts], which: range) -> Iterator[MinuteCounts]:
    return (minutes[minute] for minute in which if minute in minutes)
