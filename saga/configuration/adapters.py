"""Table of the adapters, each as it describes itself: nothing else knows them all. The first of a kind is the default.

A new one gets a folder of its own, a line here, and its driver as an extra of the package.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from saga.broker.adapter import BrokerAdapter
from saga.broker.administration import Administration
from saga.broker.embedded.adapter import EMBEDDED
from saga.broker.kafka.adapter import KAFKA
from saga.broker.port import Broker
from saga.store.adapter import StoreAdapter
from saga.store.couchbase.adapter import COUCHBASE
from saga.store.port import Store
from saga.store.sqlite.adapter import SQLITE
from saga.support.addresses import is_plain, scheme_of
from saga.support.clock import Clock
from saga.support.settings import Adapter, ChosenSettings, Options, Problem

BROKERS: Sequence[BrokerAdapter] = (EMBEDDED, KAFKA)
STORES: Sequence[StoreAdapter] = (SQLITE, COUCHBASE)

A = TypeVar("A", bound=Adapter)


def broker_adapter(address: str) -> BrokerAdapter:
    """Adapter of the brokers at an address. Raises `ValueError` if there is none."""
    return _choose(address, BROKERS, "broker")


def store_adapter(address: str) -> StoreAdapter:
    """Adapter of the stores at an address. Raises `ValueError` if there is none."""
    return _choose(address, STORES, "store")


def broker_at(settings: ChosenSettings, clock: Clock) -> Broker:
    """Broker of the settings, not yet open. Raises `ConfigurationError` for a driver that is not installed."""
    return broker_adapter(settings.broker).create_broker(settings, clock)


def administration_at(settings: ChosenSettings, clock: Clock) -> Administration:
    """Broker of the settings as tools use it, not yet open. Raises `ConfigurationError` for a driver that is not
    installed."""
    return broker_adapter(settings.broker).create_administration(settings, clock)


def store_at(settings: ChosenSettings, service: str, clock: Clock, *, readonly: bool = False) -> Store:
    """Store of a service, not yet open. Raises `ConfigurationError` for a driver that is not installed. `readonly`: for
    tools; nothing is created or changed."""
    return store_adapter(settings.store).create_store(settings, service, clock, readonly=readonly)


def options() -> Iterator[Options]:
    """Settings that only one adapter has, for each adapter that has any."""
    yield from (adapter.options for adapter in (*BROKERS, *STORES) if adapter.options is not None)


def problems(settings: ChosenSettings) -> Iterator[Problem]:
    """Problems that the chosen adapters see in settings which are right each by itself, but do not go together."""
    for address, among in ((settings.broker, BROKERS), (settings.store, STORES)):
        for adapter in among:
            if scheme_of(address) in adapter.schemes:
                yield from adapter.problems(settings)


def _choose(address: str, among: Sequence[A], what: str) -> A:
    for adapter in among:
        if scheme_of(address) in adapter.schemes:
            return adapter
    begins, separator, _ = address.partition("://")
    named = f"there is no {what} {begins!r}" if separator and is_plain(address) else f"it is no address of a {what}"
    raise ValueError(f"{named}; use {', or '.join(adapter.example for adapter in among)}")
