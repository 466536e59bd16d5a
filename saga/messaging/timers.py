"""Timers: requests to check a saga again at a given time. They are messages, and records on `<service>.wake.<tier>`.

A timer only triggers a check. What work waits for which time is in the progress, and any message of the saga triggers
work that is overdue. A timer is kept in the topic of the longest tier that is not longer than the remaining time.
Within a tier, timers are due in the order in which they were published, so no search for due timers is needed. At the
end of its tier a timer is published to the next one.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from saga.errors import BadInput
from saga.messages import Message, Outgoing, Record, Topic
from saga.messaging import envelope
from saga.messaging.message_ids import id_in
from saga.messaging.names import OURS, timer_topic
from saga.support.clock import LATEST_MS, iso

TYPE = f"{OURS}.wake"
"""Message type of a timer. No event has this type, because the names of contracts contain no dot."""


class TimerTier(NamedTuple):
    """A topic for timers with about the same delay."""

    name: str
    seconds: int
    partitions: int = 1
    """Number of partitions of the tier's topic. On Kafka each partition, even an empty one, adds to the cost of every
    fetch of a worker."""

    def topic(self, service: str) -> Topic:
        """Return the topic for a service's timers in this tier. The topic has no retention time, because a timer may
        stay in it for a long time."""
        return Topic(timer_topic(service, self.name), partitions=self.partitions, retention_days=None)


TIERS = (
    TimerTier("now", 0, partitions=12),
    TimerTier("1m", 60),
    TimerTier("4m", 240),
    TimerTier("16m", 960),
    TimerTier("1h", 3600),
    TimerTier("6h", 6 * 3600),
    TimerTier("1d", 86400),
)
"""All tiers, shortest first. A timer that is due sooner than the delay of the second tier is kept in the memory of a
worker, and in the log.

The first tier has as many partitions as event topics have by default. So the timers of a saga reach the worker that has
the saga's events, and its progress in memory. Later attempts are rarer, so one partition, and with it one worker, is
enough for each of the other tiers.
"""
LAST_S = TIERS[1].seconds
"""A timer that is due in fewer seconds than this is not published to another tier. The worker that has read it keeps it
in memory."""
assert all(a.seconds < b.seconds for a, b in pairwise(TIERS))


class SagaTimer(Message, frozen=True, kw_only=True, gc=False):
    """A request to check a saga at a given time."""

    due_ms: int
    unknown_ms: int = 0
    """Original due time of a timer whose saga the store has not known since then; otherwise 0."""


class _TimerValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The value of a timer's record."""

    due_ms: Annotated[int, Meta(ge=0, le=LATEST_MS)]
    unknown_ms: Annotated[int, Meta(ge=0, le=LATEST_MS)] = 0


def choose_tier(left_ms: int) -> TimerTier:
    """Return the tier for a timer that is due in `left_ms` milliseconds: the longest one that does not make it late.

    >>> [choose_tier(seconds * 1000).name for seconds in (-5, 59, 60, 900, 3 * 86400)]
    ['now', 'now', '1m', '4m', '1d']
    """
    tier = TIERS[0]
    for longer in TIERS[1:]:
        if longer.seconds * 1000 > left_ms:
            break
        tier = longer
    return tier


def timer_to_record(service: str, saga: str, id_: str, due_ms: int, now_ms: int, *, unknown_ms: int = 0) -> Outgoing:
    """Return the record of a timer, for the topic of the tier that fits the remaining time. `unknown_ms`: see
    `SagaTimer`."""
    headers = envelope.headers_of_ours(TYPE, id_, service, iso(now_ms), saga)
    topic = timer_topic(service, choose_tier(due_ms - now_ms).name)
    value = msgspec.json.encode(_TimerValue(due_ms=min(due_ms, LATEST_MS), unknown_ms=unknown_ms))
    return Outgoing(topic, saga.encode(), value, headers)


def parse_timer(record: Record) -> SagaTimer:
    """Return the timer in a record. Raises `BadInput` if the record is not a valid timer, because anyone may write to
    the topic."""
    if next((value for header, value in record.headers if header == "ce_type"), None) != TYPE.encode():
        raise BadInput(f"it is no timer: its ce_type is not {TYPE}")
    message = envelope.to_message(record, type_=TYPE, schema="", contract=None, always=envelope.ALWAYS_OF_OURS)
    try:
        value = msgspec.json.decode(message.value, type=_TimerValue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"it is no timer: its value is not JSON with a time `due_ms`: {why}") from why
    return SagaTimer(
        id=id_in(message.id),
        type=TYPE,
        schema="",
        saga=message.saga,
        source=message.source,
        # The broker's time, if it sets a valid one. The sender's clock may be wrong: that is checked elsewhere.
        time=iso(record.time_ms) if record.time_ms > 0 and record.time_ms in envelope.TIMES_MS else message.time,
        value=b"",
        due_ms=value.due_ms,
        unknown_ms=value.unknown_ms,
    )


def tiers_of(service: str) -> Mapping[str, TimerTier]:
    """Return the timer topics of a service, each with its tier."""
    return {timer_topic(service, tier.name): tier for tier in TIERS}
