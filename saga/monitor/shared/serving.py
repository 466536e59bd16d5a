"""Process of a shared monitor: a worker that folds its share, and a server that answers for all of them."""

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple

from saga.broker.adapter import TakesClients
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.errors import BrokerUnavailable, ConfigurationError
from saga.messaging.names import TRANSITIONS
from saga.monitor.folds import SAGAS_MAX
from saga.monitor.reader import POLL_S, Tell
from saga.monitor.serving import address_of, answering, listening
from saga.monitor.shared.answering import Answering
from saga.monitor.shared.web import app
from saga.monitor.shared.worker import KEPT, RATES, Worker, changes_of
from saga.ops.sources import open_administration
from saga.support.clock import Clock

NOT_STARTED = "the shared monitor was not started:"


class Sharing(NamedTuple):
    """Choices of whoever starts a worker of a shared monitor."""

    name: str
    """Name under which its workers find each other, and under which its tables are kept."""
    address: str
    """Host and port to listen at, and at which the other workers ask."""
    sagas_max: int = SAGAS_MAX


async def serve_shared(
    wanted: Sharing, settings: Settings, stop: asyncio.Event, clock: Clock, begun: Callable[[str], None], tell: Tell
) -> None:
    """Fold a share, and answer for all, until `stop`. `begun` is told the address once it answers, `tell` what keeps it
    from folding. Raises `SagaError` for what keeps it from starting, or ends it."""
    adapter = adapters.broker_adapter(settings.broker)
    if not isinstance(adapter, TakesClients):
        problem = (
            f"several processes share a monitor on Kafka, and SAGA_BROKER is {settings.broker}: there one reads "
            "everything, leave out --shared"
        )
        raise ConfigurationError(NOT_STARTED, [problem])
    if problem := _problem(wanted):
        raise ConfigurationError(NOT_STARTED, [problem])
    partitions = await _partitions(wanted.name, settings, stop, clock, tell)
    if partitions is None:
        return
    options = adapter.client_options(settings)
    async with open_administration(settings, clock) as broker:
        with listening(wanted.address) as listener:
            worker = Worker(
                wanted.name, address_of(listener), partitions, wanted.sagas_max, clock, broker.fetch_log_ids
            )
            following = worker.follow(options, adapter.required_replicas(settings))
            await answering(listener, app(Answering(worker, clock), settings), following, stop, clock, begun)


def _problem(wanted: Sharing) -> str:
    """Reason why the others could not ask at this address; empty if they can."""
    host = wanted.address.rpartition(":")[0].strip("[]")
    if host in ("", "0.0.0.0", "::"):  # refused, not listened at
        return f"others ask it at the address at which it listens, and {wanted.address!r} is none of a host: name one"
    return ""


async def _partitions(name: str, settings: Settings, stop: asyncio.Event, clock: Clock, tell: Tell) -> int | None:
    """Count the partitions to share, once there is a topic; `None` if it was stopped before."""
    told = ""
    while not stop.is_set():
        try:
            async with open_administration(settings, clock) as broker:
                counts = await broker.count_partitions([TRANSITIONS, *_tables(name)])
            if TRANSITIONS in counts:
                return _agreed(name, counts)
            text = f"no service has told anything yet: there is no topic {TRANSITIONS}, or it is hidden from us"
        except BrokerUnavailable as why:
            text = str(why)
        if text != told:
            tell(text)
            told = text
        await clock.sleep(POLL_S)
    return None


def _agreed(name: str, counts: Mapping[str, int]) -> int:
    """Partitions of the topic, if the tables have as many. Raises `ConfigurationError`."""
    problems = [
        f"{TRANSITIONS} has {counts[TRANSITIONS]} partitions, and {table} of this monitor has {counts[table]}: choose "
        "another name, under which it begins anew"
        for table in _tables(name)
        if counts.get(table, counts[TRANSITIONS]) != counts[TRANSITIONS]
    ]
    if problems:
        raise ConfigurationError(NOT_STARTED, problems)
    return counts[TRANSITIONS]


def _tables(name: str) -> list[str]:
    return [changes_of(name, KEPT), changes_of(name, RATES)]
