"""Stores that tools read: found by their addresses, opened for reading only, with the services that are in them; and
the broker of the settings, opened for tools."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from saga import adapters
from saga.addresses import is_plain
from saga.broker.administration import Administration
from saga.clock import Clock, SystemClock
from saga.config import Settings
from saga.errors import BrokerUnavailable, ConfigurationError, NotAStore
from saga.names import PROGRESS
from saga.registry.opening import tools_behind
from saga.registry.settings import RegistryOptions
from saga.runtime.lifecycle import OPEN_S_MAX
from saga.store.adapter import StoreAddress
from saga.store.port import Store

Warn: TypeAlias = Callable[[object], None]
"""Called with the reason that a part of an answer cannot be given; the rest is given all the same."""


@dataclass(frozen=True, slots=True)
class Source:
    """One service in one store."""

    service: str
    store: Store
    clock: Clock = field(default_factory=SystemClock)


@asynccontextmanager
async def sources_of(addresses: Sequence[str], clock: Clock) -> AsyncIterator[list[Source]]:
    """Every service in the stores at `addresses`, or at the setting `SAGA_STORE`, by name.

    Nothing is created or changed. Raises `SagaError` if there is no store, or one cannot be read.
    """
    async with AsyncExitStack() as stack:
        sources = []
        for address in [a for a in addresses if a.strip()] or [Settings.from_environment().store]:
            for each in addresses_of(address):
                settings = _settings_of(each.address)
                try:
                    store = await stack.enter_async_context(adapters.store_at(settings, "", clock, readonly=True))
                except NotAStore:
                    if each.service is None:
                        raise
                    continue  # a broker, say, that lies beside the stores
                services = [each.service] if each.service else await _services_in(store)
                sources += [Source(name, store, clock) for name in services]
        yield sorted(sources, key=lambda source: source.service)


def addresses_of(address: str) -> Sequence[StoreAddress]:
    """Stores that an address means. Raises `ConfigurationError`, `NoStore` if there is none."""
    try:
        return adapters.store_adapter(address).stores_of(address)
    except ValueError as why:
        which = f" {address!r}" if is_plain(address) else ""
        raise ConfigurationError(f"The store's address{which} cannot work", [str(why)]) from None


def _settings_of(address: str) -> Settings:
    """Settings with a store at this address. Other settings may be wrong where the store has no use for them."""
    if adapters.store_adapter(address).options is None:
        return Settings(store=address)
    return Settings.from_environment(store=address)


async def _services_in(store: Store) -> list[str]:
    """Services whose progress is in a store, if its address does not say."""
    services = dict[str, None]()
    async for key, _ in store.scan(PROGRESS):
        services[key.partition("::")[0]] = None
    return list(services)


def unmade(settings: Settings) -> Path | None:
    """File of a broker that nobody has made yet, if it is one: looking must not make it."""
    return adapters.broker_adapter(settings.broker).unmade(settings)


@asynccontextmanager
async def administration_of(settings: Settings, clock: Clock) -> AsyncIterator[Administration]:
    """The broker of the settings, open. Raises `SagaError` within 15 s if it cannot be used."""
    async with AsyncExitStack() as stack:
        closed = tools_behind(adapters.administration_at(settings, clock), settings.of(RegistryOptions), clock)
        opening = stack.enter_async_context(closed)
        try:
            broker = await clock.within(OPEN_S_MAX, opening)
        except TimeoutError as why:
            raise BrokerUnavailable(
                f"the broker {settings.broker} did not open within {OPEN_S_MAX:.0f} s: "
                "see whether it runs and can be reached"
            ) from why
        yield broker
