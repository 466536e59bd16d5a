"""Records of types that no contract has, among the newest of the topics that services read: their sender may mean one
of ours. Each service passes them over, tells them to its log once, and counts them; here they are told to who asks."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from saga.broker.administration import Administration, OffsetBounds
from saga.contracts.library import Library
from saga.declarations.values import Declared
from saga.engine.persistence.service_record import begun_topics
from saga.engine.prepared_service import prepare
from saga.errors import BadInput
from saga.messages import Partition, Record
from saga.ops.event_fields import recognize_record
from saga.ops.tail import POLL_S, RECORDS_MAX, is_at_end
from saga.support.adapter_description import Finding
from saga.support.clock import Clock
from saga.support.printable import counted, printable, quoted, shortened

NEWEST_MAX = 500
"""Newest records of a topic that are looked at."""
TYPES_MAX = 5
"""Types of a topic that are told, those of most records."""
TYPE_BYTES_MAX = 100
LOOK_S_MAX = 10.0
"""Time for looking at all topics."""


@dataclass(slots=True)
class UnknownTypeSample:
    """Records of a topic with one type that no contract has."""

    count: int
    first: Record
    contract: str
    """Contract of which their bytes are, or their schema; empty: of none."""


@dataclass(slots=True)
class TopicSample:
    """All that was found in one topic."""

    count: int = 0
    unknown: dict[str, UnknownTypeSample] = field(default_factory=dict)

    def add(self, record: Record, libraries: Iterable[Library]) -> None:
        """Note a record."""
        self.count += 1
        unknown = find_unknown_type(record, libraries)
        if unknown is not None:
            type_, contract = unknown
            found = self.unknown.setdefault(type_, UnknownTypeSample(0, record, contract))
            found.count += 1


def find_unknown_type(record: Record, libraries: Iterable[Library]) -> tuple[str, str] | None:
    """Type of a record of which no contract is, and the contract of which it is all the same, by its bytes or schema.
    `None`: a contract has it, or nobody can tell what it is: then it is a dead letter, or a tombstone."""
    found = None
    for library in libraries:
        try:
            _, recognized = recognize_record(record, library)
        except BadInput:
            return None
        if recognized.name and not recognized.doubt:
            return None
        if found is None or recognized.name:
            found = shortened(printable(recognized.unknown_type), TYPE_BYTES_MAX), recognized.name
    return found


async def check_types(
    services: Sequence[Declared], topics: Collection[str], broker: Administration, clock: Clock
) -> list[Finding]:
    """Findings about the newest records of the topics that these services read, as far as they are there. Raises
    `BrokerError`."""
    libraries = dict[str, list[Library]]()
    for service in services:
        if read := begun_topics(service) & set(topics):
            library = prepare(service).schemas.library
            for topic in read:
                libraries.setdefault(topic, []).append(library)
    bounds = {at: each for at, each in (await broker.fetch_bounds(sorted(libraries))).items() if each.begin < each.end}
    looked = {topic: TopicSample() for topic in sorted({at.topic for at in bounds})}
    if not looked:
        return []
    found, late = list[Finding](), False
    try:
        await clock.within(LOOK_S_MAX, _sample(looked, libraries, bounds, broker))
    except TimeoutError:
        late = True
    for topic, each in looked.items():
        found += describe_types(topic, each, late=late)
    return found


async def _sample(
    looked: Mapping[str, TopicSample],
    libraries: Mapping[str, Sequence[Library]],
    bounds: Mapping[Partition, OffsetBounds],
    broker: Administration,
) -> None:
    """Look at the newest records of each topic, an even share of each partition."""
    partitions = {topic: sum(at.topic == topic for at in bounds) for topic in looked}
    ends = {at: each.end for at, each in bounds.items()}
    begins = {at: max(each.begin, each.end - max(1, NEWEST_MAX // partitions[at.topic])) for at, each in bounds.items()}
    async with broker.open_reader(begins) as reading:
        while not is_at_end(reading, ends):
            for record in await reading.poll(records_max=RECORDS_MAX, timeout_s=POLL_S):
                if record.offset < ends[Partition(*record[:2])]:
                    looked[record.topic].add(record, libraries[record.topic])


def describe_types(topic: str, looked: TopicSample, *, late: bool = False) -> Iterator[Finding]:
    """Findings about one topic."""
    most = sorted(looked.unknown.items(), key=lambda each: (-each[1].count, each[0]))
    for type_, each in most[:TYPES_MAX]:
        at = f"{topic}/{each.first.partition} has one at offset {each.first.offset}"
        among = f"{counted(each.count, 'record')} of the newest {looked.count}"
        if each.contract:
            yield Finding(
                "warning",
                topic,
                f"{among} are of the type {quoted(type_)}, of which no contract is, and of {each.contract} by their "
                f"bytes; {at}",
                f"each is a dead letter where {each.contract} is taken, and passed over elsewhere",
                f"have their sender write {each.contract} in ce_type, and replay those that are dead letters",
            )
        else:
            yield Finding(
                "warning",
                topic,
                f"{among} are of the type {quoted(type_)}, of which no contract is; {at}",
                "services pass them over: if one is meant for them, what it says is handled by nobody",
                f"see what they are: saga topics tail {topic}; if they are meant, have their sender write the name "
                "of the "
                "contract in ce_type, or add the contract to contracts/; if not, give them a topic of their own",
            )
    if late:
        yield Finding(
            "warning",
            topic,
            f"of its newest records {looked.count} could be looked at within {LOOK_S_MAX:g} s",
            "records of types that no contract has may be among the others",
            f"run saga doctor again when the broker is less busy, or see for yourself: saga topics tail {topic}",
        )
