"""Consumer offsets of services, which operators can show and move. `plan_moves` decides which offsets move. If one move
is refused, nothing is moved."""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec

from saga.broker.administration import Administration, GroupDescription, OffsetBounds, UnreadableRange
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.engine.prepared_service import reads_of
from saga.errors import BrokerError, BrokerUnavailable, ConfigurationError
from saga.messages import Outgoing, Partition, Topic, texts_of
from saga.messaging.names import dead_letter_topic, is_timer_topic, service_of_commands
from saga.ops.selection import Operator
from saga.ops.sources import missing_broker_file, open_administration
from saga.progress import ids
from saga.progress.document import UNREADABLE
from saga.support.clock import Clock, from_iso, iso

MOVED, STAYED = "position moved", "position not moved"
"""Kinds of records about moves on `<service>.dead`, in the header `dead_what`."""


class PartitionState(NamedTuple):
    """State of a partition for a group: the bounds of the log, and the offset that the group has committed."""

    bounds: OffsetBounds
    offset: int | None
    """Committed offset; `None` if nothing was ever committed."""

    @property
    def next(self) -> int:
        """Offset of the first existing record that the group has not handled."""
        return max(self.bounds.begin, self.bounds.begin if self.offset is None else self.offset)

    @property
    def lag(self) -> int:
        """Number of records that the group has not handled."""
        return max(0, self.bounds.end - self.next)


class OffsetMove(NamedTuple):
    """A committed offset that is to be moved, and its target."""

    partition: Partition
    from_: int | None
    to: int


def list_partition_states(
    group: GroupDescription, bounds: Mapping[Partition, OffsetBounds]
) -> dict[Partition, PartitionState]:
    """Return the state of each partition for a group."""
    return {
        partition: PartitionState(each, group.positions.get(partition)) for partition, each in sorted(bounds.items())
    }


def is_backward(state: PartitionState, to: int) -> bool:
    """Return whether a move to `to` would make the service read records again that it has handled."""
    return state.offset is not None and to < state.offset


def is_unread(states: Mapping[Partition, PartitionState]) -> bool:
    """Return whether the group has no committed offset in any of these partitions. If so, an operator may choose where
    it begins.

    All partitions must belong to one topic, and be all of its partitions. If only some have no committed offset, they
    were added later, and records of the others have been handled.
    """
    return all(state.offset is None for state in states.values())


def refuse_move(state: PartitionState, to: int, floor: int, *, unread: bool = False) -> str | None:
    """Return the reason why the offset must not be moved to `to`; `None` if it may be.

    Args:
        floor: Offset of the first record that is younger than the service's retention.
        unread: See `is_unread`.
    """
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
    if is_backward(state, to) and to < floor:
        return (
            f"{to} is older than the service's retention: what was handled then is not known any more, and would be "
            f"handled again; the earliest is {floor}"
        )
    return None


def plan_moves(states: Mapping[Partition, PartitionState], targets: Mapping[Partition, int]) -> list[OffsetMove]:
    """Return the moves that bring the offsets to their targets. Offsets that are already there need none."""
    return [
        OffsetMove(partition, state.offset, targets[partition])
        for partition, state in states.items()
        if partition in targets and targets[partition] != (state.next if state.offset is None else state.offset)
    ]


async def move_offsets(
    service: str, moves: Sequence[OffsetMove], *, operator: Operator, broker: Administration, clock: Clock
) -> None:
    """Record the moves on `<service>.dead`, then move the offsets.

    If the broker refuses, because the group has become active for example, record which offsets were not moved, and
    raise the `BrokerError`.
    """
    dead = dead_letter_topic(service)
    if dead not in await broker.describe_topics([dead]):
        await broker.ensure_topics([Topic(dead, retention_days=None)])
    now_ms = clock.now_ms()
    # Recorded first, so that no offset is moved without a trace.
    await broker.publish([encode_moves(MOVED, service, moves, operator, now_ms)])
    try:
        await broker.move_positions(service, {each.partition: each.to for each in moves})
    except BrokerError as failed:
        positions = (await broker.describe_group(service)).positions  # perhaps only the answer was lost
        stayed = [each for each in moves if positions.get(each.partition) != each.to]
        if stayed:
            await broker.publish([encode_moves(STAYED, service, stayed, replace(operator, why=str(failed)), now_ms)])
            raise


async def read_manual_moves(service: str, broker: Administration) -> Mapping[Partition, int]:
    """Return the partitions whose offset an operator has moved, each with the highest offset to which it was moved."""
    dead, moves = dead_letter_topic(service), list[tuple[Partition, int]]()
    if dead not in await broker.describe_topics([dead]):
        return {}
    async for record in broker.scan(dead):
        what = texts_of(record.headers).get("dead_what")
        if what not in (MOVED, STAYED):
            continue
        with suppress(*UNREADABLE):  # any client may write to the topic
            for each in _move_decoder.decode(record.value or b"").moves:
                move = Partition(each.topic, each.partition), each.to
                if what == MOVED:
                    moves.append(move)
                elif move in moves:  # the broker refused it
                    moves.remove(move)
    return {partition: max(to for at, to in moves if at == partition) for partition, _ in moves}


class _MovedOffset(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    to: int


class _MoveRecord(msgspec.Struct, frozen=True):
    """Those fields of a recorded move that are read again."""

    moves: tuple[_MovedOffset, ...]


_move_decoder = msgspec.json.Decoder(_MoveRecord)


def encode_moves(what: str, service: str, moves: Sequence[OffsetMove], operator: Operator, now_ms: int) -> Outgoing:
    """Encode a record of moves. It belongs to no saga.

    It is a record for the topic of dead letters, because that is where operators look for what was done by hand.
    """
    fields = {
        "service": service,
        "who": operator.who,
        "why": operator.why,
        "moves": [{"topic": p.topic, "partition": p.number, "from": from_, "to": to} for p, from_, to in moves],
    }
    value = msgspec.json.encode(fields)
    headers = {
        "dead_id": ids.dead_letter_id(service, "", what, f"{now_ms}|{value.decode()}", 0),
        "dead_what": what,
        "dead_service": service,
        "dead_reason": operator.why,
        "dead_remedy": "nothing: a person did this on purpose"
        if what == MOVED
        else "stop the service, then move again",
        "dead_time": iso(now_ms),
        "dead_who": operator.who,
    }
    encoded = tuple((name, text.encode()) for name, text in headers.items())
    return Outgoing(dead_letter_topic(service), b"", value, encoded)


@dataclass(frozen=True, slots=True)
class ServiceOffsets:
    """The consumer group of a service, as the broker reports it."""

    service: str
    members: tuple[str, ...]
    states: Mapping[Partition, PartitionState]

    @property
    def is_known(self) -> bool:
        """True if the service has ever committed an offset, or is running."""
        return bool(self.states or self.members)

    @property
    def lag(self) -> int:
        """Number of records that the service has not handled, not counting timers."""
        return sum(state.lag for at, state in self.states.items() if not is_timer_topic(at.topic))

    @property
    def timers(self) -> int:
        """Number of timers that are waiting or being processed."""
        return sum(state.lag for at, state in self.states.items() if is_timer_topic(at.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetReset:
    """An operator's request to move the offsets of a topic to a target."""

    service: str
    topic: str
    partition: int | None
    """Partition number; `None` for all partitions of the topic."""
    to: str
    """Target: `earliest`, `latest`, an offset, or a time."""
    retention_ms: int | None
    """How long the service remembers its sagas, in milliseconds. `None` if this is not known; then offsets cannot be
    moved back."""
    operator: Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSkip:
    """An operator's request to skip records of a partition that cannot be read."""

    service: str
    partition: Partition
    operator: Operator


class OffsetResult(NamedTuple):
    """The offsets that were moved, or the reasons why none was moved."""

    moves: Sequence[OffsetMove]
    refused: Mapping[Partition, str]


async def read_offsets(services: Sequence[str], settings: Settings, clock: Clock) -> list[ServiceOffsets]:
    """Read the offsets of each service. Raises `SagaError` if the broker cannot be used.

    The result includes the topics in which the service has committed an offset, and those that it reads now.
    """
    check_broker_exists(settings)
    async with open_administration(settings, clock) as broker:
        return await read_offsets_of(services, broker)


async def delete_group(service: str, settings: Settings, clock: Clock) -> tuple[ServiceOffsets, str | None]:
    """Delete the consumer group of a service that will never run again.

    Return its last state, and the reason why it was not deleted (`None` if it was). Raises `SagaError` if the broker
    cannot be used.
    """
    check_broker_exists(settings)
    async with open_administration(settings, clock) as broker:
        was = await read_service_offsets(service, broker)
        if not was.is_known:
            return was, f"no service {service} has ever read anything here; is its name right?"
        try:
            await broker.forget_group(service)
        except BrokerUnavailable:
            raise
        except BrokerError as why:
            return was, str(why)
    return was, None


async def find_unattended(settings: Settings, clock: Clock) -> list[ServiceOffsets]:
    """Find the services that have unhandled records but no running process. Raises `SagaError` if the broker cannot be
    used, or if its file does not exist."""
    check_broker_exists(settings)
    return [each for each in await read_offsets_of_every_service(settings, clock) if each.lag and not each.members]


async def read_offsets_of_every_service(settings: Settings, clock: Clock) -> list[ServiceOffsets]:
    """Read the offsets and members of every service that was ever started with this broker. Raises `SagaError` if the
    broker cannot be used."""
    async with open_administration(settings, clock) as broker:
        names = sorted(filter(None, map(service_of_commands, await broker.list_topics())))
        return await read_offsets_of(names, broker)


async def read_service_offsets(service: str, broker: Administration) -> ServiceOffsets:
    """Read the offsets of a service, as `read_offsets_of` does."""
    [found] = await read_offsets_of([service], broker)
    return found


async def read_offsets_of(services: Collection[str], broker: Administration) -> list[ServiceOffsets]:
    """Read the offsets of services. In partitions that a service reads and has no committed offset in, all records
    count as unhandled.

    Groups are described several at a time, and the ends of all topics are read at once, because a broker may have
    hundreds of services.
    """
    groups = await broker.describe_groups(services)
    reads = {name: {each.topic for each in group.positions} | group.reads for name, group in groups.items()}
    by_topic: dict[str, dict[Partition, OffsetBounds]] = {topic: {} for topics in reads.values() for topic in topics}
    for partition, bounds in (await broker.fetch_bounds(sorted(by_topic))).items():
        by_topic[partition.topic][partition] = bounds
    found = []
    for name, group in groups.items():
        own = {partition: each for topic in reads[name] for partition, each in by_topic[topic].items()}
        found.append(ServiceOffsets(name, group.members, list_partition_states(group, own)))
    return found


async def reset_offsets(wish: OffsetReset, settings: Settings, clock: Clock) -> OffsetResult:
    """Move all offsets of the request, or none. Raises `ConfigurationError` if the request is invalid, and another
    `SagaError` if the broker cannot be used."""
    async with _open_partitions(wish.service, wish.topic, wish.partition, settings, clock) as (broker, states, runs):
        if runs:
            return OffsetResult((), runs)
        targets = await _resolve_targets(wish, states, broker)
        refused = await _find_refusals(wish, states, targets, broker, clock)
        moving = plan_moves(states, targets)
        if refused or not moving:
            return OffsetResult((), refused)
        return await _apply_moves(moving, states, wish, wish.operator.why, broker, clock)


async def skip_unreadable(
    wish: OffsetSkip, settings: Settings, clock: Clock
) -> tuple[OffsetResult, UnreadableRange | None]:
    """Skip the unreadable records at the service's offset, and nothing else.

    Return the result, and what is known about the skipped records (`None` if nothing was skipped). Raises the same
    errors as `reset_offsets`.
    """
    async with _open_partitions(wish.service, *wish.partition, settings, clock) as (broker, states, runs):
        if runs:
            return OffsetResult((), runs), None
        state = states[wish.partition]
        unreadable = await broker.find_unreadable(wish.partition, state.next)
        if unreadable is None:
            readable = f"offset {state.next}, where {wish.service} is, can be read: start it to continue"
            return OffsetResult((), {wish.partition: readable}), None
        moving = [OffsetMove(wish.partition, state.offset, unreadable.end)]
        why = f"{wish.operator.why} (could not be read: {unreadable})"
        answer = await _apply_moves(moving, states, wish, why, broker, clock)
        return answer, unreadable if answer.moves else None


@asynccontextmanager
async def _open_partitions(
    service: str, topic: str, number: int | None, settings: Settings, clock: Clock
) -> AsyncIterator[tuple[Administration, Mapping[Partition, PartitionState], Mapping[Partition, str]]]:
    """Open the broker. Yield it, the states of the selected partitions, and for each partition the reason why its
    offset cannot be moved now. There are reasons only if the service runs."""
    check_broker_exists(settings)
    async with open_administration(settings, clock) as broker:
        group = await broker.describe_group(service)
        states = list_partition_states(group, await broker.fetch_bounds([topic]))
        states = {partition: each for partition, each in states.items() if number in (None, partition.number)}
        if not states:
            where = topic if number is None else f"{topic}/{number}"
            raise _refuse_request(f"there is no {where}; is its name right?")
        runs = f"{service} runs ({', '.join(group.members)}): stop all its processes first"
        yield broker, states, dict.fromkeys(states, runs) if group.members else {}


async def _apply_moves(
    moving: Sequence[OffsetMove],
    states: Iterable[Partition],
    wish: OffsetReset | OffsetSkip,
    why: str,
    broker: Administration,
    clock: Clock,
) -> OffsetResult:
    try:
        await move_offsets(wish.service, moving, operator=replace(wish.operator, why=why), broker=broker, clock=clock)
    except BrokerError as failed:
        if (await broker.describe_group(wish.service)).members:  # the service started at that moment
            return OffsetResult((), dict.fromkeys(states, str(failed)))
        raise
    return OffsetResult(moving, {})


async def _resolve_targets(
    wish: OffsetReset, states: Mapping[Partition, PartitionState], broker: Administration
) -> Mapping[Partition, int]:
    if wish.to == "earliest":
        return {partition: state.bounds.begin for partition, state in states.items()}
    if wish.to == "latest":
        return {partition: state.bounds.end for partition, state in states.items()}
    if wish.to.isdecimal():
        if wish.partition is None:
            raise _refuse_request("an offset means a record of one partition: say --partition")
        return dict.fromkeys(states, int(wish.to))
    try:
        time_ms = from_iso(wish.to)
    except ValueError as why:
        raise _refuse_request(
            f"--to {wish.to}: {why}; say earliest, latest, an offset, or a time as 2026-11-21T08:00:00Z"
        ) from why
    return await broker.find_offsets(wish.topic, time_ms)


async def _find_refusals(
    wish: OffsetReset,
    states: Mapping[Partition, PartitionState],
    targets: Mapping[Partition, int],
    broker: Administration,
    clock: Clock,
) -> Mapping[Partition, str]:
    """Return the partitions whose offset must not be moved to its target, each with the reason."""
    floors: Mapping[Partition, int] = {}
    if wish.retention_ms is not None:
        floors = await broker.find_offsets(wish.topic, clock.now_ms() - wish.retention_ms)
    elif any(is_backward(state, targets[partition]) for partition, state in states.items()):
        raise _refuse_request("this goes back: give --module, which declares the retention of the service")
    group = await broker.describe_group(wish.service)
    unread = is_unread(list_partition_states(group, await broker.fetch_bounds([wish.topic])))
    reasons = {p: refuse_move(state, targets[p], floors.get(p, 0), unread=unread) for p, state in states.items()}
    return {partition: reason for partition, reason in reasons.items() if reason is not None}


def check_topic_is_read(declared: Declared, topic: str) -> None:
    """Raise `ConfigurationError` if a service does not read the topic: an offset there would never move again."""
    reads = reads_of(declared)
    if topic not in reads:
        raise _refuse_request(f"{declared.name} does not read {topic}; it reads {', '.join(sorted(reads))}")


def _refuse_request(problem: str) -> ConfigurationError:
    return ConfigurationError("nothing was moved:", [problem])


def check_broker_exists(settings: Settings) -> None:
    """Raise `ConfigurationError` if the file of an embedded broker is missing. Opening the broker would create it."""
    if (file := missing_broker_file(settings)) is not None:
        raise ConfigurationError(
            "there is no broker to be asked:",
            [f"no file {file}; run a service first (saga run), or say which broker with SAGA_BROKER"],
        )
