"""Description of a kind of store: addresses, settings, opening, and what tools may look at."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from saga.store.port import Store
from saga.store.roles import Keyspace
from saga.support.adapter_description import Adapter, Chosen, Finding
from saga.support.clock import Clock


class StoreAddress(NamedTuple):
    """Store that an address means, alone or with others."""

    address: str
    service: str | None
    """Only service in it; `None`: what is in it has to tell."""


class StoreAdapter(Adapter, Protocol):
    """Kind of store. Nothing of this opens or makes one, and a driver is loaded by `at` alone."""

    def at(self, settings: Chosen, service: str, clock: Clock, *, readonly: bool = False) -> Store:
        """Make the store of a service, not yet open. `readonly`: for tools; nothing is created or changed. Raises
        `ConfigurationError` for a driver that is not installed."""

    def shared_as(self, settings: Chosen, service: str) -> str:
        """Address of a service's store: services of the same address share one."""

    def stores_of(self, address: str) -> Sequence[StoreAddress]:
        """Stores that an address means in which `{service}` may be any. Raises `NoStore` if there is none,
        `ServiceNeeded` if nothing there tells of which services there are, and `ValueError` as `check`."""

    def unmade(self, settings: Chosen, service: str) -> Path | None:
        """File that the service will make when it starts; `None` if there is nothing to be made."""

    def written(self, settings: Chosen, about: str) -> Finding:
        """Finding about a store that has just taken a document and given it back."""

    def told_ms(self, cas: int) -> int | None:
        """Time that a version tells, by the server's clock in milliseconds; `None` if it tells none."""


@runtime_checkable
class AsksWho(Protocol):
    """Ability of stores that ask who one is, and let each user do what its roles allow: people give roles there, with
    tools that need to know the servers."""

    def servers(self, address: str) -> Sequence[str]:
        """Servers, as those tools are told of them. Raises `ValueError` as `check`."""

    def keyspaces(self, address: str, service: str, collections: Collection[str]) -> Sequence[Keyspace]:
        """Places in which these collections of a service are. Raises `ValueError` as `check`."""
