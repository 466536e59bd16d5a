"""Moves of a group's positions: which are refused, and the record of those that are made.

A position says what is handled. Moved forward, it would skip what is not, and sagas would stand still for ever: only in
a topic that the service has never read may a person say where it begins. Moved back behind the service's memory,
messages would come again of which nobody knows that they were handled.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from saga.broker.administration import Administration, Bounds, Group
from saga.errors import BrokerError
from saga.messages import Outgoing, Partition, Topic, texts_of
from saga.messaging.names import dead_letters_of
from saga.progress import ids
from saga.support.clock import Clock, iso

MOVED, STAYED = "position moved", "position not moved"
"""Names of the record on `<service>.dead`, in its header `dead_what`."""


class PartitionState(NamedTuple):
    """State of a partition for a group: bounds of the log, and the group's position."""

    bounds: Bounds
    position: int | None
    """Position; `None`: nothing was ever committed."""

    @property
    def next(self) -> int:
        """The first record that is not handled and still there."""
        return max(self.bounds.begin, self.bounds.begin if self.position is None else self.position)

    @property
    def lag(self) -> int:
        """Number of records that are not handled."""
        return max(0, self.bounds.end - self.next)


class Move(NamedTuple):
    """One position that is to move."""

    partition: Partition
    from_: int | None
    to: int


def partition_states(group: Group, bounds: Mapping[Partition, Bounds]) -> dict[Partition, PartitionState]:
    """States of all partitions for the group."""
    return {
        partition: PartitionState(each, group.positions.get(partition)) for partition, each in sorted(bounds.items())
    }


def goes_back(state: PartitionState, to: int) -> bool:
    """True if records would come again that were handled."""
    return state.position is not None and to < state.position


def is_unread(states: Mapping[Partition, PartitionState]) -> bool:
    """True if the group has no position in any of these partitions, all of one topic: a person may say where it begins.
    A single partition without a position is one that was added: others of its topic are handled."""
    return all(state.position is None for state in states.values())


def refusal(state: PartitionState, to: int, floor: int, *, unread: bool = False) -> str | None:
    """Reason that a position must not move to `to`. `floor`: the first record that is younger than the service's
    memory; `unread`: see `is_unread`."""
    begin, end = state.bounds
    if to < begin:
        return f"its oldest record is {begin}"
    if to > end:
        return f"it ends at {end}"
    if to > state.next and not unread:
        return (
            f"{to - state.next} records from {state.next} on are not handled, and would be skipped: have the service "
            "handle them; a message that it cannot handle becomes a dead letter"
        )
    if goes_back(state, to) and to < floor:
        return (
            f"{to} is older than the service's memory: what was handled then is not known any more, and would be "
            f"handled again; the earliest is {floor}"
        )
    return None


def moves_of(states: Mapping[Partition, PartitionState], targets: Mapping[Partition, int]) -> list[Move]:
    """Moves of the positions that are not there already."""
    return [
        Move(partition, state.position, targets[partition])
        for partition, state in states.items()
        if partition in targets and targets[partition] != (state.next if state.position is None else state.position)
    ]


async def move(
    service: str, moves: Sequence[Move], *, who: str, why: str, broker: Administration, clock: Clock
) -> None:
    """Record it, then do it. Raises `BrokerError`, and records what has not moved, if the group has come to life
    meanwhile."""
    dead = dead_letters_of(service)
    if dead not in await broker.found([dead]):
        await broker.ensure([Topic(dead, retention_days=None)])
    now_ms = clock.now_ms()
    # Before, so that no position moves without a trace.
    await broker.publish([record_of(MOVED, service, moves, who, why, now_ms)])
    try:
        await broker.move(service, {each.partition: each.to for each in moves})
    except BrokerError as failed:
        positions = (await broker.group(service)).positions  # it may only be the answer that was lost
        stayed = [each for each in moves if positions.get(each.partition) != each.to]
        if stayed:
            await broker.publish([record_of(STAYED, service, stayed, who, str(failed), now_ms)])
            raise


async def moved_by_hand(service: str, broker: Administration) -> Mapping[Partition, int]:
    """Return the furthest position to which people have moved the group, of each partition that they moved."""
    dead, furthest = dead_letters_of(service), dict[Partition, int]()
    if dead not in await broker.found([dead]):
        return furthest
    async for record in broker.scan(dead):
        if texts_of(record.headers).get("dead_what") != MOVED:
            continue
        with suppress(msgspec.DecodeError):  # anybody may write to the topic
            for each in _moved.decode(record.value or b"").moves:
                partition = Partition(each.topic, each.partition)
                furthest[partition] = max(each.to, furthest.get(partition, 0))
    return furthest


class _MovedPosition(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    to: int


class _Moved(msgspec.Struct, frozen=True):
    """Value of the record of a move, as far as it is read again."""

    moves: tuple[_MovedPosition, ...]


_moved = msgspec.json.Decoder(_Moved)


def record_of(what: str, service: str, moves: Sequence[Move], who: str, why: str, now_ms: int) -> Outgoing:
    """Record of moves, as a dead letter: people look there for what was done by hand. It belongs to no saga."""
    told = {
        "service": service,
        "who": who,
        "why": why,
        "moves": [{"topic": p.topic, "partition": p.number, "from": from_, "to": to} for p, from_, to in moves],
    }
    value = msgspec.json.encode(told)
    headers = {
        "dead_id": ids.dead_id(service, "", what, f"{now_ms}|{value.decode()}", 0),
        "dead_what": what,
        "dead_service": service,
        "dead_reason": why,
        "dead_remedy": "nothing: a person did this on purpose"
        if what == MOVED
        else "stop the service, then move again",
        "dead_time": iso(now_ms),
        "dead_who": who,
    }
    encoded = tuple((name, text.encode()) for name, text in headers.items())
    return Outgoing(dead_letters_of(service), b"", value, encoded)
