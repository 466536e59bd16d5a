"""Description of drawers as stores: `drawer://CUPBOARD/{service}`, with a setting for locked ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from saga.store.adapter import StoreAddress
from saga.store.port import Store
from saga.support import settings
from saga.support.addresses import scheme_of
from saga.support.clock import Clock
from saga.support.settings import ChosenSettings, Finding, Options, Problem, load_driver, secret_reader

CAS_PER_MS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawerOptions:
    """Settings that only drawers have."""

    drawer_lock: Literal["open", "locked"] = "open"
    """True if a drawer needs a key."""
    drawer_key: str = field(default="", repr=False)
    """The key of a drawer that is locked."""


class DrawerAdapter:
    """Drawers, for `saga.configuration.adapters`: see `saga.store.adapter`."""

    schemes = ("drawer",)
    takes = "drawer://CUPBOARD/DRAWER"
    example = "drawer://cupboard/drawer"
    options = Options(
        DrawerOptions,
        {
            "SAGA_DRAWER_LOCK": settings.word("open", "locked"),
            "SAGA_DRAWER_KEY": settings.secret("a key"),
        },
    )

    def check(self, address: str) -> None:
        cupboard, _, drawer = address.partition("://")[2].partition("/")
        if scheme_of(address) not in self.schemes or not cupboard or not drawer:
            raise ValueError("cupboard and drawer are missing, as in drawer://cupboard/drawer")

    def problems(self, settings: ChosenSettings) -> Iterator[Problem]:
        mine = settings.of(DrawerOptions)
        if mine.drawer_lock == "locked" and not mine.drawer_key:
            yield frozenset({"drawer_lock", "drawer_key"}), "SAGA_DRAWER_LOCK=locked needs SAGA_DRAWER_KEY"

    def create_store(self, settings: ChosenSettings, service: str, clock: Clock, *, readonly: bool = False) -> Store:
        store = load_driver("drawer", "msgspec", "tests.adapters.drawers.store")
        key = secret_reader(settings.of(DrawerOptions).drawer_key, "")
        return cast("Store", store.DrawerStore(self.store_address(settings, service), clock, key() if key else ""))

    def store_address(self, settings: ChosenSettings, service: str) -> str:
        return settings.store.replace("{service}", service)

    def find_stores(self, address: str) -> Sequence[StoreAddress]:
        self.check(address)
        return [StoreAddress(address, None)]

    def missing_file(self, settings: ChosenSettings, service: str) -> Path | None:
        return None

    def report_probe(self, settings: ChosenSettings, about: str) -> Finding:
        return Finding("warning", about, "it closes well", "all of it is gone when the process ends", "get a cellar")

    def version_time_ms(self, cas: int) -> int | None:
        return cas // CAS_PER_MS


DRAWERS = DrawerAdapter()
