"""Topics that services want, each with those that read and write it."""

from collections.abc import Sequence
from dataclasses import dataclass

from saga.broker.port import Topic
from saga.declarations.values import Declared
from saga.errors import ConfigurationError
from saga.runtime.topics import reads_of, topics_of, writes_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A topic, and the services that want it."""

    topic: Topic
    readers: tuple[Declared, ...]
    writers: tuple[Declared, ...]

    @property
    def users(self) -> tuple[str, ...]:
        """The names of the services that read or write it."""
        return tuple(sorted({service.name for service in (*self.readers, *self.writers)}))


def wanted_by(services: Sequence[Declared]) -> dict[str, Wanted]:
    """The topics of all these services, by name. Raises `ConfigurationError` if two want one differently."""
    topics: dict[str, set[Topic]] = {}
    for service in services:
        for topic in topics_of(service):
            topics.setdefault(topic.name, set()).add(topic)
    differing = [f"topic {name}: {' and '.join(map(str, kinds))}" for name, kinds in topics.items() if len(kinds) > 1]
    if differing:
        raise ConfigurationError("services of different contracts want a topic differently:", differing)
    return {
        name: Wanted(
            topic=kind,
            readers=tuple(service for service in services if name in reads_of(service)),
            writers=tuple(service for service in services if name in writes_of(service)),
        )
        for name, (kind,) in sorted(topics.items())
    }
