"""Which topics services want, and the broker that tools ask about them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from saga import adapters
from saga.addresses import scheme_of
from saga.broker.administration import Administration
from saga.broker.port import Topic
from saga.clock import Clock
from saga.config import Settings
from saga.declarations.values import Declared
from saga.errors import BrokerUnavailable, ConfigurationError
from saga.runtime.lifecycle import OPEN_S_MAX
from saga.runtime.topics import topics_of
from saga.wiring import reads_of, writes_of


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


def is_missing(settings: Settings) -> bool:
    """Whether the broker is a file that nobody has made yet: looking must not make it."""
    return scheme_of(settings.broker) == "embedded" and not settings.broker_path.exists()


@asynccontextmanager
async def administration_of(settings: Settings, clock: Clock) -> AsyncIterator[Administration]:
    """The broker of the settings, open. Raises `SagaError` within 15 s if it cannot be used."""
    broker = adapters.administration_at(settings, clock)
    try:
        await clock.within(OPEN_S_MAX, broker.__aenter__())
    except TimeoutError as why:
        raise BrokerUnavailable(
            f"the broker {settings.broker} did not open within {OPEN_S_MAX:.0f} s: "
            "see whether it runs and can be reached"
        ) from why
    try:
        yield broker
    finally:
        await broker.__aexit__(None, None, None)
