"""The table of all broker and store adapters. Only this module knows all of them. The first broker adapter and the
first store adapter are the defaults.

To add an adapter, give it a folder of its own, add a line here, and make its driver an extra of the package.
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
    """Return the adapter for a broker address, by the scheme of the address. Raises `ValueError` if there is none."""
    return _choose(address, BROKERS, "broker")


def store_adapter(address: str) -> StoreAdapter:
    """Return the adapter for a store address, by the scheme of the address. Raises `ValueError` if there is none."""
    return _choose(address, STORES, "store")


def broker_at(settings: ChosenSettings, clock: Clock) -> Broker:
    """Create the broker that the settings select, without opening it. Raises `ConfigurationError` if its driver is not
    installed."""
    return broker_adapter(settings.broker).create_broker(settings, clock)


def administration_at(settings: ChosenSettings, clock: Clock) -> Administration:
    """Create the broker that the settings select, with the interface for tools. It is not opened. Raises
    `ConfigurationError` if its driver is not installed."""
    return broker_adapter(settings.broker).create_administration(settings, clock)


def store_at(settings: ChosenSettings, service: str, clock: Clock, *, readonly: bool = False) -> Store:
    """Create the store of a service, without opening it. Raises `ConfigurationError` if its driver is not installed.

    `readonly`: true for tools, which must not create or change anything.
    """
    return store_adapter(settings.store).create_store(settings, service, clock, readonly=readonly)


def options() -> Iterator[Options]:
    """Yield, for each adapter with settings of its own, these settings with their defaults."""
    yield from (adapter.options for adapter in (*BROKERS, *STORES) if adapter.options is not None)


def problems(settings: ChosenSettings) -> Iterator[Problem]:
    """Yield the problems that the selected adapters find in combinations of settings, each of which is valid alone."""
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
