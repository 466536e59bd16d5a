"""Description of a store adapter: its addresses and settings, and how to create the store."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from saga.store.port import Store
from saga.store.roles import Keyspace
from saga.support.adapter_description import Adapter, Chosen, Finding
from saga.support.clock import Clock


class StoreAddress(NamedTuple):
    """One of the stores to which an address refers."""

    address: str
    service: str | None
    """The only service in the store; `None`: its content has to tell."""


class StoreAdapter(Adapter, Protocol):
    """A kind of store. Nothing here connects; only `at` loads a driver."""

    def create_store(self, settings: Chosen, service: str, clock: Clock, *, readonly: bool = False) -> Store:
        """Create the store of a service without opening it. `readonly`: for tools; nothing is created or changed.
        Raises `ConfigurationError` if the driver is not installed."""

    def store_address(self, settings: Chosen, service: str) -> str:
        """Return the address of a service's store. Services with the same address share a store."""

    def find_stores(self, address: str) -> Sequence[StoreAddress]:
        """Return the stores that match an address with `{service}` in it. Raises `NoStore` without any, `ServiceNeeded`
        if the services cannot be found out there, and `ValueError` as `check`."""

    def missing_file(self, settings: Chosen, service: str) -> Path | None:
        """Return the missing file that the service will create when it starts; `None` without one."""

    def report_probe(self, settings: Chosen, about: str) -> Finding:
        """Return the finding about a store that has just written a document and read it back."""

    def version_time_ms(self, cas: int) -> int | None:
        """Return the server's time that a document version contains, in milliseconds; `None` if it contains none."""


@runtime_checkable
class HasStoreUsers(Protocol):
    """A store that authenticates users and checks their roles. The tools that grant roles need its servers."""

    def servers(self, address: str) -> Sequence[str]:
        """Return the servers in the form that those tools expect. Raises `ValueError` as `check`."""

    def keyspaces(self, address: str, service: str, collections: Collection[str]) -> Sequence[Keyspace]:
        """Return the keyspaces of these collections of a service. Raises `ValueError` as `check`."""
