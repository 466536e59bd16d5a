"""Access for operators' tools: open stores read-only, find the services in them, and open the broker."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TypeAlias

from saga.broker.administration import Administration
from saga.choreography.releases import manifest_folder, read_manifests
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.contracts.library import find_library
from saga.engine.persistence.service_record import list_services
from saga.errors import BrokerUnavailable, ConfigurationError, NotAStore, SagaError, ServiceNeeded, StoreError
from saga.messaging.names import PROGRESS, service_of_commands
from saga.registry.edge import tools_with_registry
from saga.registry.port import RegistryOptions
from saga.store.adapter import StoreAddress
from saga.store.port import KeysInOrder, Store
from saga.support.addresses import is_plain
from saga.support.clock import Clock, SystemClock

Warn: TypeAlias = Callable[[object], None]
"""Function that is called with each reason why a part of an answer is missing. The rest is returned nevertheless."""


NAMES_S_MAX = 5.0
"""Maximum time in seconds to wait for the broker's list of services. If there is no answer, tools continue without the
list."""


@dataclass(frozen=True, slots=True)
class ServiceStore:
    """A service, and the store that contains its documents."""

    service: str
    store: Store
    clock: Clock = field(default_factory=SystemClock)


@asynccontextmanager
async def open_stores(
    addresses: Sequence[str], clock: Clock, services: Collection[str] = (), settings: Settings | None = None
) -> AsyncIterator[list[ServiceStore]]:
    """Open the stores at `addresses`, and yield the services in them: these `services`, or all.

    Without addresses, the setting `SAGA_STORE` is used. Nothing is created or changed, and no saga is read.

    Args:
        settings: Settings of the broker. If a store cannot list its services, the broker is asked for their names. The
            default is the settings of the environment.

    Raises:
        SagaError: There is no store, a store cannot be read, two stores have the same service, or one of `services` is
            not known to a store, to the broker or by a manifest.
    """
    async with AsyncExitStack() as stack:
        there, found, known = list[_ServiceThere](), set[str](), _KnownServices(services, clock, settings)
        for address in [a for a in addresses if a.strip()] or [Settings.from_environment().store]:
            for each in await _list_stores(address, known):
                if each.service is not None and services and each.service not in services:
                    found.add(each.service)
                    continue
                opened = adapters.store_at(_make_settings(each.address), each.service or "", clock, readonly=True)
                try:
                    store = await stack.enter_async_context(opened)
                except NotAStore:
                    if each.service is None:
                        raise
                    continue  # another file beside the stores, such as that of an embedded broker
                names = {each.service: True} if each.service else await _list_services(store, known)
                is_certain = each.service is not None or isinstance(store, KeysInOrder)
                if is_certain:
                    found |= {*names}
                there += [
                    _ServiceThere(name, each, store, has_sagas, is_certain)
                    for name, has_sagas in names.items()
                    if not services or name in services
                ]
        await known.check(found)
        yield [ServiceStore(each.service, each.store, clock) for each in _choose_stores(there)]


class _ServiceThere(NamedTuple):
    """A service that is in a store."""

    service: str
    address: StoreAddress
    store: Store
    has_sagas: bool
    """False if the service has run on the store, and has no saga there."""
    is_certain: bool
    """False if the store cannot tell which services are in it."""


def _choose_stores(there: Iterable[_ServiceThere]) -> Sequence[_ServiceThere]:
    """Return the services, sorted, each with its store.

    A store that was named twice is used once. If a service is in several stores, those with its sagas count.

    Raises `ConfigurationError` if several remain: each saga would be counted twice, and each command sent twice.
    """
    chosen = dict[tuple[str, str], _ServiceThere]()
    certain = dict[str, _ServiceThere]()
    for each in sorted(there, key=lambda each: (each.service, not each.has_sagas)):
        other = certain.setdefault(each.service, each) if each.is_certain else each
        if other.address.place != each.address.place:
            if not each.has_sagas and other.has_sagas:
                continue
            both = " and ".join(filter(is_plain, (other.address.address, each.address.address)))
            problem = f"{both or 'two of the given stores'} have {each.service}: name only the one that it uses"
            raise ConfigurationError("The stores cannot be read together", [problem])
        chosen.setdefault((each.service, each.address.place), each)
    return [*chosen.values()]


class _KnownServices:
    """Names of services that are known without reading any saga: from the caller, from the broker and from
    manifests."""

    def __init__(self, services: Collection[str], clock: Clock, settings: Settings | None) -> None:
        self.named = services
        """Services that the caller named; empty means all."""
        self._clock, self._settings = clock, settings
        self._names: frozenset[str] | None = None
        self._is_all = False
        """True if the broker answered, so that the list is complete."""

    async def names(self) -> frozenset[str]:
        """Return the names from the manifests and from the broker. The broker has a command topic for every service
        that was ever started."""
        if self._names is None:
            names = set[str]()
            with suppress(SagaError):
                names |= read_manifests(manifest_folder(find_library())).keys()
            with suppress(SagaError, TimeoutError):  # without the broker the list is incomplete
                names |= await self._clock.within(NAMES_S_MAX, self._names_on_broker())
                self._is_all = True
            self._names = frozenset(names)
        return self._names

    async def _names_on_broker(self) -> set[str]:
        settings = self._settings or Settings.from_environment()
        if missing_broker_file(settings) is not None:
            return set()
        async with open_administration(settings, self._clock) as broker:
            return {name for topic in await broker.list_topics() if (name := service_of_commands(topic)) is not None}

    async def check(self, found: Collection[str]) -> None:
        """Raise `SagaError` if a service that the caller named is not known. `found`: services that were found in
        stores.

        If the broker did not answer, the list of services is incomplete, and nothing is raised.
        """
        missing = [name for name in self.named if name not in found]
        if missing and (missing := sorted({*missing} - await self.names())) and self._is_all:
            there = ", ".join(sorted({*found, *await self.names()})) or "none"
            raise SagaError(f"no service {', '.join(missing)} is known here, there are: {there}")


async def _list_stores(address: str, known: _KnownServices) -> Sequence[StoreAddress]:
    """List the stores at an address. If the address is a pattern that needs the names of services, those of the known
    services are used."""
    try:
        return resolve_addresses(address)
    except ServiceNeeded:
        names = known.named or await known.names()
        if not names:
            raise
        return [StoreAddress(address.replace("{service}", name), name) for name in sorted(names)]


def resolve_addresses(address: str) -> Sequence[StoreAddress]:
    """List the stores at an address. Raises `ConfigurationError` if the address is invalid, and `NoStore` if there is
    no store."""
    try:
        return adapters.store_adapter(address).find_stores(address)
    except ValueError as why:
        which = f" {address!r}" if is_plain(address) else ""
        raise ConfigurationError(f"The store's address{which} cannot work", [str(why)]) from None


def _make_settings(address: str) -> Settings:
    """Return settings for a store at this address. If this kind of store has no options, the environment is not read,
    because it may contain invalid settings."""
    if adapters.store_adapter(address).options is None:
        return Settings(store=address)
    return Settings.from_environment(store=address)


async def _list_services(store: Store, known: _KnownServices) -> Mapping[str, bool]:
    """List the services that have progresses in a store (true), or have only run on it (false).

    All keys are read only if the store cannot return keys in order, and if the services are not known otherwise.
    """
    if isinstance(store, KeysInOrder):
        found = {name: True async for name in _list_services_in_order(store)}
        with suppress(StoreError):  # a list that cannot be read names no service more
            found = {**dict.fromkeys(await list_services(store), False), **found}
        return found
    if names := known.named or await known.names():
        return dict.fromkeys(names, True)
    return {key.partition("::")[0]: True async for key, _ in store.scan(PROGRESS)}


async def _list_services_in_order(store: KeysInOrder) -> AsyncIterator[str]:
    """Yield the names of the services in the keys of progresses. The other keys of each service are skipped."""
    key = await store.next_key(PROGRESS, "")
    while key is not None:
        service = key.partition("::")[0]
        yield service
        key = await store.next_key(
            PROGRESS, f"{service}:;"
        )  # `;` follows `:`, so this key is after all sagas of the service


def missing_broker_file(settings: Settings) -> Path | None:
    """Return the file of an embedded broker if that file does not exist yet, otherwise `None`. Tools check this first,
    because reading must not create the file."""
    return adapters.broker_adapter(settings.broker).missing_file(settings)


@asynccontextmanager
async def open_administration(settings: Settings, clock: Clock) -> AsyncIterator[Administration]:
    """Open the broker of the settings for administration. Raises `SagaError` if that fails, or takes longer than
    `settings.open_s` seconds."""
    async with AsyncExitStack() as stack:
        closed = tools_with_registry(adapters.administration_at(settings, clock), settings.of(RegistryOptions), clock)
        opening = stack.enter_async_context(closed)
        try:
            broker = await clock.within(settings.open_s, opening)
        except TimeoutError as why:
            raise BrokerUnavailable(
                f"the broker {settings.broker} did not open within {settings.open_s:g} s: "
                "check that it runs and can be reached"
            ) from why
        yield broker
