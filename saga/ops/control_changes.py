"""Switching in services that run, of flags and of what they do: said through the log, read from the service's book."""

from collections.abc import Sequence

from saga.broker.missing_topics import APPLY, topic_problems
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.engine.prepared_service import commands_topic
from saga.errors import ConfigurationError, NoStore, SagaError
from saga.messages import texts_of
from saga.messaging import controls
from saga.messaging.controls import OPERATOR, TYPE, Book, Noted, Switch
from saga.messaging.message_ids import identity
from saga.messaging.names import ARCHIVES
from saga.ops.sources import Source, sources_of
from saga.support.clock import Clock

LOOK_EVERY_S = 0.2


async def switch(service: str, wanted: Switch, who: str, why: str, settings: Settings, clock: Clock) -> str:
    """Return when the wish is durable: its name in the service's book. Raises `SagaError`."""
    record = controls.to_record(service, wanted, who=who, why=why, now_ms=clock.now_ms())
    async with wiring.broker_of(None, clock, settings) as broker:
        topic = commands_topic(service)
        if broker.makes_topics and not await broker.partitions([topic.name]):  # a wish would make it, and wait for ever
            raise ConfigurationError("nothing was sent:", [f"no service {service!r} has ever run here: see its name"])
        problems = await topic_problems([topic], broker, writes=[topic.name])
        if problems:
            raise ConfigurationError(
                f"nothing was sent: whoever runs the services has to make their topics: {APPLY} MODULES", problems
            )
        await broker.publish([record])
    return identity(OPERATOR, texts_of(record.headers)["ce_id"], TYPE, "")


async def noted(service: str, name: str, addresses: Sequence[str], clock: Clock, within_s: float) -> Noted | None:
    """Entry that the service writes of the wish, which it may refuse; `None`: nothing within so many seconds."""
    until_s = clock.monotonic_s() + within_s
    while True:
        try:
            async with sources_of(
                addresses, clock, (service,)
            ) as sources:  # anew each time: it may just be making its store
                book = await _book(service, sources)
        except NoStore:
            book = None
        for entry in () if book is None else controls.entries_of(book):
            if entry.id == name:
                return entry
        if clock.monotonic_s() >= until_s:
            return None
        await clock.sleep(LOOK_EVERY_S)


async def book_of(service: str, addresses: Sequence[str], clock: Clock) -> Book:
    """The service's book. Raises `SagaError` if there is no store of it, or it cannot be read."""
    async with sources_of(addresses, clock, (service,)) as sources:
        book = await _book(service, sources)
    if book is None:
        raise SagaError(f"there is no store of {service!r}: name it with --store, or see whether the service ever ran")
    return book


async def _book(service: str, sources: Sequence[Source]) -> Book | None:
    source = next((source for source in sources if source.service == service), None)
    if source is None:
        return None
    there = await source.store.get(ARCHIVES, controls.book_key(service))
    return controls.decode(service, None if there is None else there.content)
