"""Findings about brokers and stores. All functions are pure: they take observations and return findings."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from saga.broker.acls import AclRight, grant_command
from saga.broker.adapter import Copies
from saga.broker.administration import DATED_BY, DAY_MS, GroupDescription, InactiveGroup, TopicDescription
from saga.broker.port import APPLY, RECORD_BYTES_LEAST, RECORD_BYTES_MAX, MemberIdentity, find_disagreeing
from saga.declarations.values import Declared
from saga.messages import Partition
from saga.messaging.names import is_timer_topic, is_without_events
from saga.ops.offsets import PartitionState
from saga.ops.topic_plans import TopicNeeds, describe_duration, describe_retention, has_retention, parse_retention_ms
from saga.support.printable import count_noun
from saga.support.settings import Finding, Severity

SEVERITIES: Sequence[Severity] = ("error", "warning", "ok")
"""Severities, most important first."""
REPLICAS, IN_SYNC = 3, 2
"""Minimum number of replicas, and minimum number of replicas in sync. With fewer, the loss of one broker loses
acknowledged records or stops all writing.
"""
TOPIC_BYTES = 1_048_588
"""Kafka's default of `max.message.bytes`."""
REASSIGN = "give it more replicas with kafka-reassign-partitions"
CLOCK_MS_WARNING, CLOCK_MS_ERROR = 2_000, 60_000
REPAIR = "saga sagas repair, with the module of the service"
FORGOTTEN_MS = 7 * DAY_MS
"""Brokers' default for how long they keep the offsets of a group without members, in milliseconds."""
MINUTES_MAX = 2**31 - 1
"""Maximum offset retention that brokers accept, in minutes. This is about 4000 years."""
SANE_MS = 10 * 365 * DAY_MS
"""Maximum plausible clock error in milliseconds.

The version of a Couchbase document normally contains the time. Some servers that speak Couchbase's protocol use other
versions, which differ from the time by more than this limit. Such versions are ignored.
"""


# -------------------------------------------------------------------- topics


class TopicRequirements(NamedTuple):
    """What the settings require of every topic."""

    copies: Copies = Copies()
    record_bytes_max: int = RECORD_BYTES_MAX
    """Maximum size of the records that services and clients send, in bytes."""
    creates_topics: bool = False
    """True if services create missing topics. See `saga.broker.port.Broker.creates_topics`."""


def check_topic(wanted: TopicNeeds, found: TopicDescription | None, asked: TopicRequirements) -> Iterator[Finding]:
    """Yield a finding for each thing that is wrong with a topic. `found`: what the broker reports of it; `None` if the
    topic does not exist or is hidden."""
    name = wanted.topic.name
    if found is None and asked.creates_topics:
        yield Finding("ok", name, "it does not exist yet: the first service that needs it creates it")
        return
    if found is None:
        yield Finding(
            "error",
            name,
            "the topic does not exist, or this user may not see it",
            "no service that reads or writes it starts; in a running service, all work that needs it waits",
            f"{APPLY} MODULES; if it exists, let this user see it: "
            + grant_command(AclRight("Describe", "topic", name)),
        )
        return
    if found.partitions != wanted.topic.partitions:
        yield Finding(
            "error",
            name,
            f"{found.partitions} partitions, but the contracts require {wanted.topic.partitions}",
            "no service that uses it starts: with two numbers in use, messages of one saga would lose their order",
            "saga topics plan shows what can be done; or restore the number in its topic.json",
        )
    yield from _check_replicas(name, found, asked.copies.replication)
    yield from _check_rights(wanted, found)
    if found.hidden:
        yield Finding(
            "warning",
            name,
            "this user may not see its settings",
            "retention, replication and other settings of the topic were not checked",
            f"{grant_command(AclRight('DescribeConfigs', 'topic', name))}; or run saga doctor as an administrator",
        )
        return
    yield from _check_retention(wanted, found)
    yield from _check_in_sync(name, found, asked.copies.in_sync)
    yield from _check_settings(name, found, asked.record_bytes_max)


def _check_retention(wanted: TopicNeeds, found: TopicDescription) -> Iterator[Finding]:
    topic = wanted.topic
    if not has_retention(topic, found):
        letters = topic.retention_days is None
        shorter = found.retention_ms is not None and found.retention_ms < (
            parse_retention_ms(topic) or found.retention_ms + 1
        )
        yield Finding(
            "error" if letters else "warning",
            topic.name,
            f"{describe_retention(found.retention_ms)}, but should be {describe_retention(parse_retention_ms(topic))}",
            "dead letters are removed before a person has seen them"
            if letters
            else "records may be removed before a service that was down has handled them"
            if shorter
            else "it takes more disk space than planned",
            f"{APPLY} MODULES",
        )
    for reader in () if is_without_events(topic.name) else wanted.readers:
        remembered_ms = reader.retention.total_seconds() * 1000
        if found.retention_ms is None or found.retention_ms > remembered_ms:
            yield Finding(
                "warning",
                topic.name,
                f"{describe_retention(found.retention_ms)}, but {reader.name} remembers a saga for "
                f"{describe_duration(remembered_ms)} only",
                "a message that comes again after that time is not recognized as handled: it becomes a dead letter, or "
                "waits for a message with the start of its saga",
                f"shorten retention_days in its topic.json and run {APPLY} MODULES, or lengthen retention= of "
                f"{reader.name}",
            )


def _check_replicas(name: str, found: TopicDescription, asked: int) -> Iterator[Finding]:
    if found.replicas is None or found.in_sync is None:
        return
    if found.replicas < max(asked, REPLICAS):
        by_name = found.replicas >= asked
        yield Finding(
            "error" if found.replicas < REPLICAS and not by_name else "warning",
            name,
            f"{_count_brokers(found.replicas)} each record"
            + (", as SAGA_KAFKA_REPLICATION requires" if by_name else f", but {max(asked, REPLICAS)} should"),
            "the loss of a broker loses acknowledged messages"
            if found.replicas == 1
            else "while one broker is down, the loss of another loses acknowledged messages, or stops all writing",
            f"{REASSIGN}; topics that saga topics apply creates get SAGA_KAFKA_REPLICATION replicas",
        )
    if found.in_sync < found.replicas:
        yield Finding(
            "warning",
            name,
            f"only {found.in_sync} of {found.replicas} replicas of a partition are up to date",
            "the next broker that fails may stop writing, or lose messages",
            f"see which broker is down or slow: kafka-topics --describe --topic {name} shows Replicas and Isr",
        )


def _count_brokers(count: int) -> str:
    return f"{count} broker{' has' if count == 1 else 's have'}"


def _check_in_sync(name: str, found: TopicDescription, asked: int) -> Iterator[Finding]:
    if found.replicas is None or "min.insync.replicas" not in found.settings:
        return
    least = int(found.settings["min.insync.replicas"])
    wanted = max(asked, IN_SYNC)
    change = f"kafka-configs --alter --entity-type topics --entity-name {name} --add-config min.insync.replicas="
    if least < wanted:
        by_name = least >= asked
        yield Finding(
            "warning" if by_name else "error",
            name,
            f"min.insync.replicas is {least}"
            + (", as SAGA_KAFKA_MIN_INSYNC requires" if by_name else f", but should be {wanted}"),
            f"a message counts as published once {_count_brokers(least)} it, and is lost with "
            + ("that one" if least == 1 else "those"),
            f"{change}{wanted}"
            if found.replicas > wanted
            else f"first {REASSIGN}, to {wanted + 1}; then {change}{wanted}",
        )
    if found.replicas > 1 and least >= found.replicas:
        yield Finding(
            "warning",
            name,
            f"min.insync.replicas is {least}, of {found.replicas} replicas",
            "nothing can be published while a single broker is down",
            f"{change}{wanted}" if found.replicas > wanted else f"{REASSIGN}, to {wanted + 1}",
        )


def _check_settings(name: str, found: TopicDescription, record_bytes_max: int) -> Iterator[Finding]:
    settings = found.settings
    change = f"kafka-configs --alter --entity-type topics --entity-name {name} --add-config"
    if "compact" in settings.get("cleanup.policy", "delete"):
        yield Finding(
            "error",
            name,
            f"cleanup.policy is {settings['cleanup.policy']}",
            "only the last message of each saga is kept",
            f"{change} cleanup.policy=delete",
        )
    if int(settings.get("retention.bytes", "-1")) >= 0:
        yield Finding(
            "error",
            name,
            f"retention.bytes is {settings['retention.bytes']}",
            "under load, records are removed early, even if they are not handled",
            f"{change} retention.bytes=-1",
        )
    if settings.get("unclean.leader.election.enable", "false") == "true":
        yield Finding(
            "error",
            name,
            "unclean leader election is on",
            "a broker that missed messages may become the leader: acknowledged messages are lost",
            f"{change} unclean.leader.election.enable=false",
        )
    if not found.is_dated_by_log:
        yield Finding(
            "error" if is_timer_topic(name) else "warning",
            name,
            f"{DATED_BY} is {settings[DATED_BY]}",
            "timers fire early or late by the error of the workers' clocks, and no worker notices"
            if is_timer_topic(name)
            else "records carry their sender's time: retention, and saga offsets reset --to TIME, depend on the clocks "
            "of all senders",
            f"{APPLY} MODULES",
        )
    least = int(settings.get("max.message.bytes", record_bytes_max))
    if least < record_bytes_max:
        yield Finding(
            "error",
            name,
            f"max.message.bytes is {least}, but SAGA_RECORD_BYTES_MAX is {record_bytes_max}",
            "the broker refuses events that services and clients accept, and their sagas are stuck",
            f"{change} max.message.bytes={max(record_bytes_max, TOPIC_BYTES)}"
            + (f"; or SAGA_RECORD_BYTES_MAX={least} everywhere" if least >= RECORD_BYTES_LEAST else ""),
        )


def _check_rights(wanted: TopicNeeds, found: TopicDescription) -> Iterator[Finding]:
    if found.may is None:
        return
    needed = {"read": wanted.readers, "write": wanted.writers}
    for right, services in needed.items():
        if services and right not in found.may:
            names = ", ".join(service.name for service in services)
            yield Finding(
                "error",
                wanted.topic.name,
                f"this user may not {right} it, but {names} must",
                "the service is stuck, or does not start",
                f"{grant_command(AclRight(right.capitalize(), 'topic', wanted.topic.name))}; or run saga doctor as "
                "the "
                "user of the service",
            )


# -------------------------------------------------------------------- services and brokers


def check_partitions(
    service: Declared, found: Mapping[str, TopicDescription], reads: frozenset[str]
) -> Iterator[Finding]:
    """Yield a finding if the topics that a service reads have different numbers of partitions."""
    counts = {name: found[name].partitions for name in sorted(reads) if name in found and not is_without_events(name)}
    if len(set(counts.values())) > 1:
        yield Finding(
            "warning",
            service.name,
            "its topics have different numbers of partitions: "
            + ", ".join(f"{name} {count}" for name, count in counts.items()),
            "the messages of one saga go to several of its processes, which conflict with each other: every write may "
            "be refused and repeated",
            "give all of them the same number in topic.json, and see saga topics plan",
        )


def check_positions(service: Declared, states: Mapping[Partition, PartitionState]) -> Iterator[Finding]:
    """Yield findings about offsets of a service's group that lie outside the log."""
    for (topic, number), (bounds, position) in states.items():
        if position is not None and position < bounds.begin and is_timer_topic(topic):
            yield Finding(
                "error",
                service.name,
                f"its timers are lost: {bounds.begin - position} of {topic}/{number} were removed before their time",
                "whatever waits for a time does not continue: parked runs, deadlines, suspended runs",
                f"start the service, which publishes them again; if it already runs, or cannot start: {REPAIR}",
            )
        elif position is not None and position < bounds.begin:
            yield Finding(
                "error",
                service.name,
                f"{bounds.begin - position} records of {topic}/{number} were removed before they were handled",
                "their content is lost: the service continues after them, and their sagas wait for ever",
                "keep records for longer than the service may be down (retention_days in topic.json); look for waiting "
                "sagas with saga sagas list --open",
            )
        if position is not None and position > bounds.end:
            yield Finding(
                "error",
                service.name,
                f"its position in {topic}/{number} is {position}, but the log ends at {bounds.end}",
                "the log has lost acknowledged records; new records up to that position may be skipped",
                f"stop its processes, then saga offsets reset {service.name} --topic {topic} --partition {number} "
                "--to latest --module ... --who ... --why ...; look for waiting sagas with saga sagas list --open",
            )


def check_waiting(
    service: Declared, group: GroupDescription, states: Mapping[Partition, PartitionState]
) -> Iterator[Finding]:
    """Yield a finding if records wait for a service that has run before, and none of its processes runs."""
    waiting = sum(state.lag for partition, state in states.items() if not is_without_events(partition.topic))
    if group.positions and not group.members and waiting:
        yield Finding(
            "warning",
            service.name,
            f"none of its processes runs, and it has not handled {count_noun(waiting, 'record')}",
            "its sagas wait, and records past the retention of their topic are removed unhandled",
            f"start it; saga offsets show {service.name} shows the topics",
        )


def check_inactive_group(away: InactiveGroup) -> Iterator[Finding]:
    """Yield a finding if a group has had no members for a day and has unread records."""
    if away.away_ms >= DAY_MS and away.behind:
        yield Finding(
            "warning",
            f"group {away.group}",
            f"it has had no member for {describe_duration(away.away_ms)}, and has not handled "
            f"{count_noun(away.behind, 'record')}",
            "records past their retention are removed, although it has not handled them"
            if away.is_lost
            else "these records stay beyond the retention of their topics, and the file grows, for "
            "SAGA_EMBEDDED_AWAY_DAYS; then records past their retention are removed",
            f"start it; if it is gone for good: saga offsets delete {away.group}",
        )


def check_members(service: Declared, group: GroupDescription, store: str | None) -> Iterator[Finding]:
    """Yield a finding if the group has members of another service, or of this service on another store.

    Args:
        store: Id of the store that the settings name; `None` if the service has never run on it.
    """
    ours = MemberIdentity(service=service.name, store=store or "")
    if strangers := find_disagreeing(ours, group.identities):
        this = f"this store is {store!r}" if store else "the service has never run on the store of these settings"
        yield Finding(
            "error",
            service.name,
            f"its group has members of another service or store ({'; '.join(strangers)}), and {this}",
            "each side takes messages, timers and commands that the other side needs, and their sagas wait for ever",
            "have all processes of the service use one SAGA_STORE; give another project a broker of its own",
        )


def check_first_start(service: Declared, group: GroupDescription, records: int, store: str | None) -> Iterator[Finding]:
    """Yield a finding if a service that has never run would handle old records, and does not declare where it starts to
    read.

    Args:
        records: Number of records in the topics of the service's events.
        store: Id of the service's store; `None` if it has never run on it.
    """
    if service.start is None and store is None and not group.positions and not group.members and records:
        yield Finding(
            "error",
            service.name,
            f"it has never run here, it does not declare where it starts, and its topics hold "
            f"{count_noun(records, 'record')}",
            "it handles all of them (those of sagas older than its retention become dead letters); if it ran under "
            "another name all work is done again, with idempotency keys that external systems have never seen",
            f'declare Service("{service.title}", start="now"), or start="beginning"; if it was renamed, was="<its '
            'former name>"',
        )


def check_log_ids(service: Declared, replaced: Collection[str]) -> Iterator[Finding]:
    """Yield findings about topics that were deleted and created again since the service published to them."""
    timers = sorted(topic for topic in replaced if is_timer_topic(topic))
    if timers:
        yield Finding(
            "error",
            service.name,
            f"its timers are lost: these topics were deleted and created again: {', '.join(timers)}",
            "whatever waits for a time does not continue: parked runs, deadlines, suspended runs",
            f"start the service, which publishes them again; if it already runs, or cannot start: {REPAIR}",
        )
    for topic in sorted(set(replaced) - set(timers)):
        yield Finding(
            "error",
            topic,
            f"it was deleted and created again since {service.name} published to it",
            f"events that {service.name} has recorded as published there are gone, and no service publishes them again",
            f"if consumers have not handled all of them: {REPAIR}, which publishes them again, with the same ids",
        )


def report_lost_log(service: Declared, about: str) -> Finding:
    """Report that the log no longer exists, although the store shows that records were published to it."""
    return Finding(
        "error",
        about,
        f"the log is gone, but the store of {service.name} is not",
        f"events that {service.name} has recorded as published are lost, and so are its timers: it does not start",
        f"check SAGA_BROKER, or restore the log; if it is lost: {REPAIR}, which publishes everything again into a new "
        "one",
    )


def check_empty_store(service: Declared, partitions: int) -> Iterator[Finding]:
    """Yield a finding if the service's store is empty although its group has handled messages. `partitions`: number of
    partitions in which it has."""
    if partitions:
        yield Finding(
            "error",
            service.name,
            "its store is empty, but its group has handled messages",
            "the store is lost, or a different one: sagas that have begun are unknown, their effects may happen again, "
            "and cannot be compensated",
            "check SAGA_STORE, or restore the store; if it is lost: saga sagas rebuild, with the module of "
            f"{service.name}, before it handles more",
        )


def check_server(name: str, settings: Mapping[str, str], longest_ms: int | None) -> Iterator[Finding]:
    """Yield findings about the settings of a broker.

    Args:
        longest_ms: Longest retention of any topic in milliseconds; `None` if a topic is kept for ever.
    """
    about = f"broker {name}"
    if settings.get("auto.create.topics.enable") == "true":
        yield Finding(
            "warning",
            about,
            "auto.create.topics.enable is true",
            "a client that uses a wrong name, or runs before saga topics apply, creates a topic with default settings",
            "set auto.create.topics.enable=false in its configuration",
        )
    remembered = int(settings.get("offsets.retention.minutes", FORGOTTEN_MS // 60_000))
    needed = MINUTES_MAX if longest_ms is None else min(MINUTES_MAX, -(-longest_ms // 60_000))
    if remembered < needed:
        yield Finding(
            "warning",
            about,
            f"offsets.retention.minutes is {remembered}, but topics are {describe_retention(longest_ms)}",
            f"a service that is down for {describe_duration(remembered * 60_000)} loses its offsets, and reads "
            "all records again; those older than its retention become dead letters",
            f"set offsets.retention.minutes={needed} in its configuration",
        )


def report_clock(about: str, ahead: int) -> Finding:
    """Report a clock that is `ahead` milliseconds ahead of this machine's clock, or behind it if the number is
    negative."""
    if abs(ahead) <= CLOCK_MS_WARNING:
        return Finding("ok", about, f"its clock agrees with this machine, within {describe_duration(CLOCK_MS_WARNING)}")
    return Finding(
        "error" if abs(ahead) > CLOCK_MS_ERROR else "warning",
        about,
        f"its clock is {describe_duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} this machine",
        "sagas are forgotten early or late by as much, and the times in histories differ",
        "synchronize both clocks by NTP",
    )


class GroupedFinding(NamedTuple):
    """Findings about several things that are otherwise equal, combined into one."""

    about: tuple[str, ...]
    finding: Finding
    """The combined finding. If it is about several things, `NAME` in its remedy stands for the name of each."""


def group_findings(found: Iterable[Finding]) -> list[GroupedFinding]:
    """Combine equal findings, and sort them: first errors, then warnings, then those that are fine.

    Within a severity the rarest come first. A finding that is the same everywhere was probably a decision; one that
    occurs in a single place is more likely an accident.

    >>> alike = [Finding("warning", name, "1 replica", "loss", f"alter {name}") for name in ("orders", "payments")]
    >>> other = Finding("warning", "bills", "kept for ever")
    >>> [(each.about, each.finding.remedy) for each in group_findings([*alike, other])]
    [(('bills',), ''), (('orders', 'payments'), 'alter NAME')]
    """
    alike: dict[Finding, list[Finding]] = {}
    for each in found:
        neutral = each._replace(
            about="", remedy=re.sub(rf"(?<![\w.-]){re.escape(each.about)}(?![\w.-])", "NAME", each.remedy)
        )
        alike.setdefault(neutral, []).append(each)
    groups = [
        GroupedFinding(tuple(each.about for each in some), some[0] if len(some) == 1 else neutral)
        for neutral, some in alike.items()
    ]
    return sorted(groups, key=lambda group: (SEVERITIES.index(group.finding.severity), len(group.about)))


def compute_ahead_ms(told_ms: int, before_ms: int, after_ms: int) -> int:
    """Return the minimum number of milliseconds by which a clock is ahead; negative if it is behind.

    The clock reported the time `told_ms` between the two moments `before_ms` and `after_ms` of the local clock.

    >>> compute_ahead_ms(105, 100, 110), compute_ahead_ms(150, 100, 110), compute_ahead_ms(70, 100, 110)
    (0, 40, -30)
    """
    return max(0, told_ms - after_ms) or min(0, told_ms - before_ms)


def check_store_clock(about: str, told_ms: int | None, before_ms: int, after_ms: int) -> Iterator[Finding]:
    """Yield a finding about the store's clock.

    `told_ms`: the time in the version of a document that was written between the two local moments. If it is `None` or
    not plausible, the version does not contain a time, and there is no finding.
    """
    ahead = SANE_MS if told_ms is None else compute_ahead_ms(told_ms, before_ms, after_ms)
    if abs(ahead) < SANE_MS:
        yield report_clock(about, ahead)


def report_durability(about: str, problem: str) -> Finding:
    """Report a setting that lets documents expire too early."""
    return Finding(
        "error",
        about,
        problem,
        "no service starts: open sagas would be forgotten, and effects would happen twice",
        "correct that, and run saga doctor again",
    )
