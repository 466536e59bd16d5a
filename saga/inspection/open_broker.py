"""The broker of the settings, opened for tools."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from saga import adapters
from saga.broker.administration import Administration
from saga.clock import Clock
from saga.config import Settings
from saga.errors import BrokerUnavailable
from saga.runtime.lifecycle import OPEN_S_MAX


def unmade(settings: Settings) -> Path | None:
    """File of a broker that nobody has made yet, if it is one: looking must not make it."""
    return adapters.broker_adapter(settings.broker).unmade(settings)


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
