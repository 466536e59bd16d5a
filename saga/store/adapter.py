"""What a kind of store says of itself: addresses, settings, opening, and what tools may look at."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from saga.clock import Clock
from saga.describing import Adapter, Chosen, Finding
from saga.store.port import Store


class StoreAddress(NamedTuple):
    """One store that an address means."""

    address: str
    service: str | None
    """The only service in it; `None`: what is in it has to tell."""


class StoreAdapter(Adapter, Protocol):
    """One kind of store. Nothing of this opens or makes one, and a driver is loaded by `at` alone."""

    def at(self, settings: Chosen, service: str, clock: Clock, *, readonly: bool = False) -> Store:
        """The store of a service, not yet open. `readonly`: for tools; nothing is created or changed. Raises
        `ConfigurationError` for a driver that is not installed."""

    def shared_as(self, settings: Chosen, service: str) -> str:
        """Address of a service's store: services of the same address share one."""

    def stores_of(self, address: str) -> Sequence[StoreAddress]:
        """The stores that an address means in which `{service}` may stand for any. Raises `NoStore` if there is none,
        and `ValueError` as `check`."""

    def unmade(self, settings: Chosen, service: str) -> Path | None:
        """The file that the service will make when it starts; `None` if there is nothing to be made."""

    def written(self, settings: Chosen, about: str) -> Finding:
        """What is to be said of a store that has just taken a document and given it back."""

    def told_ms(self, cas: int) -> int | None:
        """The time that a version tells, by the server's clock in milliseconds; `None` if it tells none."""
