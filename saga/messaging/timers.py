"""Wakes: hints to look at a saga again at a time, as messages and as records on `<service>.wake.<tier>`.

A wake has no effect of its own: the progress says what waits for time, and any message of the saga settles what is
overdue. It lies in the topic of the largest tier that is not longer than what is left, in the order in which wakes were
published there, which is the order in which their tier ends: so nobody searches for what is due. Then it is sent on.
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
"""Type of the message: no contract's name has a dot."""


class TimerTier(NamedTuple):
    """Time for which a wake lies in one topic."""

    name: str
    seconds: int
    partitions: int = 1
    """Partitions of its topic. Every one costs a worker on Kafka in each fetch, whether or not anything lies there."""

    def topic(self, service: str) -> Topic:
        """Topic of the wakes of a service in this tier. It is never trimmed by time: a wake may lie long."""
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
"""All tiers, shortest first. What is due sooner than the second lies in a worker's memory, and in the log.

The first has as many partitions as topics of events have if nobody says otherwise: so a saga's wakes come to the worker
that has its events, and its progress in memory. The later an attempt, the rarer: of the other tiers one worker each is
enough."""
LAST_S = TIERS[1].seconds
"""Seconds before its time from which on a wake is not sent on, but held by the worker that has it."""
assert all(a.seconds < b.seconds for a, b in pairwise(TIERS))


class SagaTimer(Message, frozen=True, kw_only=True, gc=False):
    """Hint that something of a saga waits for this time."""

    due_ms: int
    unknown_ms: int = 0
    """Time for which it was published first, if a store did not know its saga since; 0: none did."""


class _TimerValue(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of the record."""

    due_ms: Annotated[int, Meta(ge=0, le=LATEST_MS)]
    unknown_ms: Annotated[int, Meta(ge=0, le=LATEST_MS)] = 0


def choose_tier(left_ms: int) -> TimerTier:
    """Tier in which a wake lies that is due in so many milliseconds: the longest that does not make it late.

    >>> [tier_for(seconds * 1000).name for seconds in (-5, 59, 60, 900, 3 * 86400)]
    ['now', 'now', '1m', '4m', '1d']
    """
    tier = TIERS[0]
    for longer in TIERS[1:]:
        if longer.seconds * 1000 > left_ms:
            break
        tier = longer
    return tier


def timer_to_record(service: str, saga: str, id_: str, due_ms: int, now_ms: int, *, unknown_ms: int = 0) -> Outgoing:
    """Record of a wake, for the topic in which it lies from now on. `unknown_ms`: see `SagaTimer`."""
    headers = envelope.headers_of_ours(TYPE, id_, service, iso(now_ms), saga)
    topic = timer_topic(service, choose_tier(due_ms - now_ms).name)
    value = msgspec.json.encode(_TimerValue(due_ms=min(due_ms, LATEST_MS), unknown_ms=unknown_ms))
    return Outgoing(topic, saga.encode(), value, headers)


def parse_timer(record: Record) -> SagaTimer:
    """Wake in a record. Raises `BadInput`: anybody may write to the topic."""
    if next((value for header, value in record.headers if header == "ce_type"), None) != TYPE.encode():
        raise BadInput(f"it is no wake: its ce_type is not {TYPE}")
    message = envelope.to_message(record, type_=TYPE, schema="", contract=None, always=envelope.ALWAYS_OF_OURS)
    try:
        said = msgspec.json.decode(message.value, type=_TimerValue)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as why:
        raise BadInput(f"it is no wake: its value is not JSON with a time `due_ms`: {why}") from why
    return SagaTimer(
        id=id_in(message.id),
        type=TYPE,
        schema="",
        saga=message.saga,
        source=message.source,
        # As the log tells it, where it has a clock of its own: a sender's may be wrong, and that is looked for.
        time=iso(record.time_ms) if record.time_ms else message.time,
        value=b"",
        due_ms=said.due_ms,
        unknown_ms=said.unknown_ms,
    )


def tiers_of(service: str) -> Mapping[str, TimerTier]:
    """Topics of the wakes of a service, each with its tier."""
    return {timer_topic(service, tier.name): tier for tier in TIERS}
