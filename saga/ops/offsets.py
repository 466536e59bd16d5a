"""Positions of services in the log, shown and moved: `position_moves` decides, the broker moves if nothing is
refused."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple

from saga.broker.administration import Administration, Unreadable
from saga.configuration.settings import Settings
from saga.errors import BrokerError, BrokerUnavailable, ConfigurationError
from saga.messages import Partition
from saga.messaging.names import is_wakes, service_of_commands
from saga.ops import offset_moves
from saga.ops.offset_moves import Move, PartitionState, partition_states
from saga.ops.sources import administration_of, unmade
from saga.support.clock import Clock, from_iso


@dataclass(frozen=True, slots=True)
class Shown:
    """Group of a service as the broker knows it."""

    service: str
    members: tuple[str, ...]
    states: Mapping[Partition, PartitionState]

    @property
    def is_known(self) -> bool:
        """True if it has ever read anything."""
        return bool(self.states or self.members)

    @property
    def lag(self) -> int:
        """Number of records that it has not handled, less wakes."""
        return sum(state.lag for at, state in self.states.items() if not is_wakes(at.topic))

    @property
    def wakes(self) -> int:
        """Number of wakes that wait for their time, or are being looked at."""
        return sum(state.lag for at, state in self.states.items() if is_wakes(at.topic))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Positions that somebody wants to move, and the target."""

    service: str
    topic: str
    partition: int | None
    """Partition; `None`: all of the topic's."""
    to: str
    """Target: `earliest`, `latest`, an offset, or a time."""
    memory_ms: int | None
    """Time that the service remembers its sagas; `None`: nobody said, so positions cannot go back."""
    who: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Records of a partition that cannot be read, and are to be stepped over."""

    service: str
    partition: Partition
    who: str
    why: str


class Answer(NamedTuple):
    """Positions that were moved, or the reasons that nothing was."""

    moves: Sequence[Move]
    refused: Mapping[Partition, str]


async def shown_of(services: Sequence[str], settings: Settings, clock: Clock) -> list[Shown]:
    """Positions of each of these services, in the topics in which it has one or which it reads now. Raises
    `SagaError`."""
    _check_there(settings)
    async with administration_of(settings, clock) as broker:
        return [await shown(service, broker) for service in services]


async def forgotten(service: str, settings: Settings, clock: Clock) -> tuple[Shown, str | None]:
    """Have the broker forget a service that never comes back: as it was, and why it is not forgotten; `None`: it is.
    Raises `SagaError`."""
    _check_there(settings)
    async with administration_of(settings, clock) as broker:
        was = await shown(service, broker)
        if not was.is_known:
            return was, f"no service {service} has ever read anything here; is its name right?"
        try:
            await broker.forget(service)
        except BrokerUnavailable:
            raise
        except BrokerError as why:
            return was, str(why)
    return was, None


async def find_unattended(settings: Settings, clock: Clock) -> list[Shown]:
    """Services that have something to handle, and no process that does. Raises `SagaError`."""
    if unmade(settings) is not None:
        return []
    async with administration_of(settings, clock) as broker:
        names = sorted(filter(None, map(service_of_commands, await broker.topics())))
        every = [await shown(service, broker) for service in names]
    return [each for each in every if each.lag and not each.members]


async def shown(service: str, broker: Administration) -> Shown:
    """Positions of a service. What it reads and has committed nothing of counts as not handled."""
    group = await broker.group(service)
    bounds = await broker.bounds(sorted({partition.topic for partition in group.positions} | group.reads))
    return Shown(service, group.members, partition_states(group, bounds))


async def moved(wish: Wish, settings: Settings, clock: Clock) -> Answer:
    """Move all positions that are meant, or none. Raises `ConfigurationError` for a wish that makes no sense, and other
    `SagaError` if the broker cannot be used."""
    async with _standing(wish.service, wish.topic, wish.partition, settings, clock) as (broker, states, runs):
        if runs:
            return Answer((), runs)
        targets = await _targets(wish, states, broker)
        refused = await _refused(wish, states, targets, broker, clock)
        moving = offset_moves.moves_of(states, targets)
        if refused or not moving:
            return Answer((), refused)
        return await _done(moving, states, wish, wish.why, broker, clock)


async def skipped(wish: Skip, settings: Settings, clock: Clock) -> tuple[Answer, Unreadable | None]:
    """Step over records that cannot be read at the service's position, and over nothing else; tell what is known of
    them. Raises as `moved`."""
    async with _standing(wish.service, *wish.partition, settings, clock) as (broker, states, runs):
        if runs:
            return Answer((), runs), None
        state = states[wish.partition]
        unreadable = await broker.unreadable(wish.partition, state.next)
        if unreadable is None:
            readable = f"offset {state.next}, where {wish.service} stands, can be read: start it to go on"
            return Answer((), {wish.partition: readable}), None
        moving = [Move(wish.partition, state.position, unreadable.end)]
        why = f"{wish.why} (could not be read: {unreadable})"
        answer = await _done(moving, states, wish, why, broker, clock)
        return answer, unreadable if answer.moves else None


@asynccontextmanager
async def _standing(
    service: str, topic: str, number: int | None, settings: Settings, clock: Clock
) -> AsyncIterator[tuple[Administration, Mapping[Partition, PartitionState], Mapping[Partition, str]]]:
    """The broker, the partitions that are meant as they are for a service, and why none of them can move while it
    runs."""
    _check_there(settings)
    async with administration_of(settings, clock) as broker:
        group = await broker.group(service)
        states = partition_states(group, await broker.bounds([topic]))
        states = {partition: each for partition, each in states.items() if number in (None, partition.number)}
        if not states:
            where = topic if number is None else f"{topic}/{number}"
            raise _senseless(f"there is no {where}; is its name right?")
        runs = f"{service} runs ({', '.join(group.members)}): stop all its processes first"
        yield broker, states, dict.fromkeys(states, runs) if group.members else {}


async def _done(
    moving: Sequence[Move],
    states: Iterable[Partition],
    wish: Wish | Skip,
    why: str,
    broker: Administration,
    clock: Clock,
) -> Answer:
    try:
        await offset_moves.move(wish.service, moving, who=wish.who, why=why, broker=broker, clock=clock)
    except BrokerError as failed:
        if (await broker.group(wish.service)).members:  # it began in the very moment
            return Answer((), dict.fromkeys(states, str(failed)))
        raise
    return Answer(moving, {})


async def _targets(
    wish: Wish, states: Mapping[Partition, PartitionState], broker: Administration
) -> Mapping[Partition, int]:
    if wish.to == "earliest":
        return {partition: state.bounds.begin for partition, state in states.items()}
    if wish.to == "latest":
        return {partition: state.bounds.end for partition, state in states.items()}
    if wish.to.isdecimal():
        if wish.partition is None:
            raise _senseless("an offset means a record of one partition: say --partition")
        return dict.fromkeys(states, int(wish.to))
    try:
        time_ms = from_iso(wish.to)
    except ValueError as why:
        raise _senseless(
            f"--to {wish.to}: {why}; say earliest, latest, an offset, or a time as 2026-11-21T08:00:00Z"
        ) from why
    return await broker.since(wish.topic, time_ms)


async def _refused(
    wish: Wish,
    states: Mapping[Partition, PartitionState],
    targets: Mapping[Partition, int],
    broker: Administration,
    clock: Clock,
) -> Mapping[Partition, str]:
    """Reasons that some of them must not move there."""
    floors: Mapping[Partition, int] = {}
    if wish.memory_ms is not None:
        floors = await broker.since(wish.topic, clock.now_ms() - wish.memory_ms)
    elif any(offset_moves.goes_back(state, targets[partition]) for partition, state in states.items()):
        raise _senseless("this goes back: say --module, so that it is known how far the service remembers")
    group = await broker.group(wish.service)
    unread = offset_moves.is_unread(partition_states(group, await broker.bounds([wish.topic])))
    reasons = {
        p: offset_moves.refusal(state, targets[p], floors.get(p, 0), unread=unread) for p, state in states.items()
    }
    return {partition: reason for partition, reason in reasons.items() if reason is not None}


def _senseless(problem: str) -> ConfigurationError:
    return ConfigurationError("nothing was moved:", [problem])


def _check_there(settings: Settings) -> None:
    if (file := unmade(settings)) is not None:
        raise ConfigurationError(
            "there is no broker to be asked:",
            [f"no file {file}; run a service first (saga run), or say which broker with SAGA_BROKER"],
        )
