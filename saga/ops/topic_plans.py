"""The topics that services need, and plans that change existing topics to match the contracts. Planning changes
nothing. `apply` carries out a plan."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from saga.broker.administration import BY_LOG, DATED_BY, DAY_MS, Administration, TopicDescription
from saga.declarations.values import Declared
from saga.engine.prepared_service import reads_of, topics_of, writes_of
from saga.errors import BrokerError, ConfigurationError
from saga.messages import Topic
from saga.ops.offsets import list_partition_states
from saga.support.printable import count_noun


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicNeeds:
    """A topic, and the services that read or write it."""

    topic: Topic
    readers: tuple[Declared, ...]
    writers: tuple[Declared, ...]

    @property
    def users(self) -> tuple[str, ...]:
        """Names of the services that read or write the topic."""
        return tuple(sorted({service.name for service in (*self.readers, *self.writers)}))


def collect_needs(services: Sequence[Declared], transition_topic: Topic | None = None) -> dict[str, TopicNeeds]:
    """Collect the topics of all these services by name, including the topic of transition events if it is given.

    Raises `ConfigurationError` if two services need the same topic with different settings.
    """
    topics: dict[str, set[Topic]] = {}
    for service in services:
        for topic in topics_of(service):
            topics.setdefault(topic.name, set()).add(topic)
    differing = [f"topic {name}: {' and '.join(map(str, kinds))}" for name, kinds in topics.items() if len(kinds) > 1]
    if differing:
        raise ConfigurationError("services of different contracts want a topic differently:", differing)
    wanted = {
        name: TopicNeeds(
            topic=kind,
            readers=tuple(service for service in services if name in reads_of(service)),
            writers=tuple(service for service in services if name in writes_of(service)),
        )
        for name, (kind,) in sorted(topics.items())
    }
    if transition_topic is not None:
        wanted[transition_topic.name] = TopicNeeds(topic=transition_topic, readers=(), writers=tuple(services))
    return wanted


Doing: TypeAlias = Literal["create", "retention", "dates", "partitions", "nothing"]


UNITS = (("day", DAY_MS), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000), ("millisecond", 1))


class TopicReader(NamedTuple):
    """A consumer group that is active on a topic, so that no partitions can be added to it."""

    members: int
    behind: int
    """Number of records of the topic that the group has not handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStep:
    """One change of one topic."""

    topic: Topic
    doing: Doing
    says: str
    refused: str | None = None
    """Reason why the change is not possible now; `None` if it is."""


def parse_retention_ms(topic: Topic) -> int | None:
    """Return the retention that the contracts require, in milliseconds; `None` means for ever."""
    return None if topic.retention_days is None else int(topic.retention_days * DAY_MS)


def has_retention(topic: Topic, found: TopicDescription) -> bool:
    """Return whether a topic has the required retention. A difference of 1 ms is accepted, because brokers round
    differently."""
    wanted_ms = parse_retention_ms(topic)
    if wanted_ms is None or found.retention_ms is None:
        return wanted_ms is found.retention_ms
    return abs(wanted_ms - found.retention_ms) <= 1


def describe_retention(ms: int | None) -> str:
    """Describe a retention. `None` means for ever.

    >>> describe_retention(7 * 86_400_000), describe_retention(5_400_000), describe_retention(None)
    ('kept 7 days', 'kept 1.5 hours', 'kept for ever')
    """
    return "kept for ever" if ms is None else f"kept {describe_duration(ms)}"


def describe_duration(ms: float) -> str:
    """Describe a duration, in the largest unit of which it has at least one.

    >>> describe_duration(86_400_000), describe_duration(1_500), describe_duration(20)
    ('1 day', '1.5 seconds', '20 milliseconds')
    """
    unit, size = next((unit, size) for unit, size in UNITS if ms >= size or size == 1)
    count = f"{round(ms / size, 2):g}"
    return f"{count} {unit}{'' if count == '1' else 's'}"


def plan(
    wanted: Iterable[Topic],
    found: Mapping[str, TopicDescription],
    readers: Mapping[str, Mapping[str, TopicReader]],
    *,
    can_grow: bool,
) -> list[TopicStep]:
    """Plan the changes that make the topics match the contracts.

    Args:
        wanted: The topics as the contracts require them.
        found: The topics as they are.
        readers: For each topic with another number of partitions: the groups that are active on it.
        can_grow: True if the broker can add partitions.
    """
    steps: list[TopicStep] = []
    for topic in wanted:
        there = found.get(topic.name)
        if there is None:
            says = f"{_plan_partitions(topic.partitions)}, {describe_retention(parse_retention_ms(topic))}"
            steps.append(TopicStep(topic=topic, doing="create", says=says))
            continue
        differing: list[TopicStep] = []
        if not has_retention(topic, there):
            retention = describe_retention(there.retention_ms).removeprefix("kept ")
            says = f"{describe_retention(parse_retention_ms(topic))} instead of {retention}"
            differing.append(TopicStep(topic=topic, doing="retention", says=says))
        if not there.is_dated_by_log:
            says = f"{DATED_BY} {BY_LOG} instead of {there.settings[DATED_BY]}"
            differing.append(TopicStep(topic=topic, doing="dates", says=says))
        if there.partitions != topic.partitions:
            says = f"{topic.partitions} partitions instead of {there.partitions}, only with the group drained"
            why = _find_refusal(topic, there, readers.get(topic.name, {}), can_grow)
            differing.append(TopicStep(topic=topic, doing="partitions", says=says, refused=why))
        as_it_is = f"{_plan_partitions(there.partitions)}, {describe_retention(there.retention_ms)}"
        steps += differing or [TopicStep(topic=topic, doing="nothing", says=as_it_is)]
    return steps


def _find_refusal(
    topic: Topic, there: TopicDescription, readers: Mapping[str, TopicReader], can_grow: bool
) -> str | None:
    if topic.partitions < there.partitions:
        return "a topic never gets fewer partitions: put the number in its contracts back"
    if not can_grow:
        return (
            "topics of the embedded broker keep their partitions: put the number in its contracts back, or let the "
            "services handle what is there and begin with another file"
        )
    busy = [f"{name} has {count_noun(reader.members, 'member')}" for name, reader in readers.items() if reader.members]
    behind = [f"{name} has not handled {count_noun(r.behind, 'record')}" for name, r in readers.items() if r.behind]
    if behind:
        return f"{', '.join(behind)}: let them handle everything, then stop all programs that read or publish here"
    return f"{', '.join(busy)}: stop all programs that read or publish here" if busy else None


async def plan_topics(wanted: Mapping[str, TopicNeeds], broker: Administration) -> list[TopicStep]:
    """Plan changes of the topics as they are now. Raises `BrokerError` if this user may not see their settings."""
    found = await broker.describe_topics(list(wanted))
    if hidden := [name for name, each in found.items() if each.hidden]:
        raise BrokerError(
            f"this user may not see how long records of {', '.join(hidden)} are kept: have it allowed DescribeConfigs "
            "on these topics, or ask as an administrator"
        )
    differing = [name for name in wanted if name in found and found[name].partitions != wanted[name].topic.partitions]
    readers = {name: await _find_readers(wanted[name], broker) for name in differing if broker.can_add_partitions}
    return plan([each.topic for each in wanted.values()], found, readers, can_grow=broker.can_add_partitions)


async def _find_readers(wanted: TopicNeeds, broker: Administration) -> dict[str, TopicReader]:
    """Find the active groups that read the topic, and the groups of services that write to it.

    Writers count because they have loaded the old number of partitions.
    """
    topic = wanted.topic.name
    reading = await broker.find_readers(topic)
    writing = {name: await broker.describe_group(name) for name in wanted.users if name not in reading}
    bounds = await broker.fetch_bounds([topic])
    behind = {name: sum(each.lag for each in list_partition_states(g, bounds).values()) for name, g in reading.items()}
    return {
        name: TopicReader(len(group.members), behind.get(name, 0)) for name, group in {**reading, **writing}.items()
    }


async def apply(steps: Sequence[TopicStep], broker: Administration) -> None:
    """Carry out all steps. If one of them is refused, carry out none."""
    if any(step.refused for step in steps):
        return
    if missing := [step.topic for step in steps if step.doing == "create"]:
        await broker.ensure_topics(missing)
    for step in steps:
        if step.doing == "retention":
            await broker.set_retention(step.topic.name, parse_retention_ms(step.topic))
        elif step.doing == "dates":
            await broker.use_log_append_time(step.topic.name)
    for step in steps:
        if step.doing == "partitions":
            await broker.add_partitions(step.topic.name, step.topic.partitions)


def _plan_partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
