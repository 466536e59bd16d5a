"""The store itself: what a `dict` can promise, as long as the process lives."""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection
from typing import NamedTuple, Self

from saga.errors import ConfigurationError, Conflict, Exists, StoreError, StoreUnavailable, TooLarge
from saga.store.port import Document
from saga.support.clock import Clock
from tests.adapters.drawers.adapter import CAS_PER_MS

BYTES_MAX = 1_000_000
EXPIRY_S_MAX = 1e10


class Kept(NamedTuple):
    """A document, and when it expires."""

    document: Document
    until_ms: float


DRAWERS: dict[str, dict[tuple[str, str], Kept]] = defaultdict(dict)
KEYS: dict[str, str] = {}
"""Keys of the locked drawers."""
LAST = [0]


class DrawerStore:
    """One drawer: see `saga.store.port`."""

    document_bytes_max = BYTES_MAX

    def __init__(self, drawer: str, clock: Clock, key: str = "") -> None:
        self._drawer, self._clock, self._key, self._is_open = drawer, clock, key, False

    async def __aenter__(self) -> Self:
        if KEYS.setdefault(self._drawer, self._key) != self._key:
            raise ConfigurationError("the drawer does not open:", [f"SAGA_DRAWER_KEY is not that of {self._drawer}"])
        self._is_open = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_open = False

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        try:
            self._until_ms(expiry_s)
        except StoreError as why:
            raise ConfigurationError("documents would not stay:", [f"{why}: choose a shorter retention="]) from why

    async def get(self, collection: str, key: str) -> Document | None:
        kept = self._documents().get((collection, key))
        return kept.document if kept is not None and kept.until_ms > self._clock.now_ms() else None

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        if await self.get(collection, key) is not None:
            raise Exists(f"{key} is there")
        return self._put(collection, key, content, self._until_ms(expiry_s))

    async def replace(
        self,
        collection: str,
        key: str,
        content: bytes,
        *,
        cas: int,
        expiry_s: float | None = None,
        keep_expiry: bool = False,
    ) -> int:
        await self._check(collection, key, cas)
        until_ms = self._documents()[collection, key].until_ms if keep_expiry else self._until_ms(expiry_s)
        return self._put(collection, key, content, until_ms)

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        await self._check(collection, key, cas)
        del self._documents()[collection, key]

    async def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        for within, key in sorted(self._documents()):
            if within == collection and key.startswith(prefix):
                document = await self.get(collection, key)
                if document is not None:
                    yield key, document

    def _documents(self) -> dict[tuple[str, str], Kept]:
        if not self._is_open:
            raise StoreUnavailable(f"{self._drawer} is not open")
        return DRAWERS[self._drawer]

    def _put(self, collection: str, key: str, content: bytes, until_ms: float) -> int:
        if len(content) > BYTES_MAX:
            raise TooLarge(f"{key} has {len(content)} bytes, and a drawer takes {BYTES_MAX}")
        LAST[0] = max(LAST[0] + 1, self._clock.now_ms() * CAS_PER_MS)
        self._documents()[collection, key] = Kept(Document(content, LAST[0]), until_ms)
        return LAST[0]

    async def _check(self, collection: str, key: str, cas: int) -> None:
        document = await self.get(collection, key)
        if document is None or document.cas != cas:
            raise Conflict(f"{key} has changed")

    def _until_ms(self, expiry_s: float | None) -> float:
        if expiry_s is None:
            return float("inf")
        if not 0 <= expiry_s <= EXPIRY_S_MAX:
            raise StoreError(f"{expiry_s} s cannot be an expiry")
        return self._clock.now_ms() + expiry_s * 1000
