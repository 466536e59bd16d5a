"""Port of the store, as the runtime sees it: documents with a version, written by compare-and-swap. No query, no
transaction.

Promises, each shown by a test of `saga.testing.conformance.store`:
- `insert` creates exactly one: of several at once, one succeeds and the others raise `Exists`.
- `replace` and `remove` take effect only on the very version that was read: of several with the same `cas`, one
  succeeds and the others raise `Conflict`. A `cas` never comes again for a key, not even after a removal.
- When a write returns, it is durable: it survives the death of this process and, as far as the medium keeps its word,
  of the machine.
- A write that raises `StoreUnavailable` has not happened and will not. One that raises `Ambiguous` may have happened,
  or may happen later. A write whose caller was cancelled may have happened.
- A document of `document_bytes_max` bytes is taken, a larger one is refused with `TooLarge`: it is not written, and no
  other write suffers for it.
- A read sees every write that had returned when it began.
- A document past its expiry is not there, and none goes before: one that is told no expiry stays. An expiry that the
  store cannot express is a `StoreError`, and nothing is written.
Not promised: anything across two documents.
"""

from collections.abc import AsyncIterator, Collection
from typing import NamedTuple, Protocol, Self, runtime_checkable


class Document(NamedTuple):
    """Document as it was read."""

    content: bytes
    """Content as it was written, JSON."""
    cas: int
    """Version of the document, to be handed to `replace`; opaque."""


class Store(Protocol):
    """Store of versioned documents in collections. All keys and collections are non-empty texts."""

    @property
    def document_bytes_max(self) -> int:
        """Size of the largest content that can be written, in bytes."""

    async def __aenter__(self) -> Self:
        """Open. Raises `SagaError`, saying why and what to do, if it cannot be used as promised: before `SAGA_OPEN_S`
        has passed, for whoever waits cannot tell why."""

    async def __aexit__(self, *exc: object) -> None:
        """Close after all writes under way have come to their end."""

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        """Return if documents of these collections stay as long as they are told to: for ever, or for `expiry_s`.

        For the start of a service: it may write and remove documents. Raises `ConfigurationError`, saying what cuts
        their life short and what to do, and `StoreUnavailable`.
        """

    async def get(self, collection: str, key: str) -> Document | None:
        """Read a document as it is now; `None` if absent. Raises `StoreUnavailable`, and `StoreError` if this one is
        not what was written."""

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        """Create a document; its `cas`. Raises `Exists`, `Ambiguous`, `StoreUnavailable`, `TooLarge`."""

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
        """Put `content` in the place of the version `cas`; the new `cas`.

        The document expires `expiry_s` seconds from now, never if `None`, or as before with `keep_expiry`.
        Raises `Conflict`, `Ambiguous`, `StoreUnavailable`, `TooLarge`.
        """

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        """Remove the version `cas`. Raises `Conflict`, `Ambiguous`, `StoreUnavailable`."""

    def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        """Read all documents of `collection` whose key begins with `prefix`, by key. For tools, never while
        handling."""


@runtime_checkable
class NewestFirst(Protocol):
    """Ability of stores that know in which order their documents came: not every one does."""

    def newest(self, collection: str, prefix: str = "", *, kept: bool = False) -> AsyncIterator[tuple[str, Document]]:
        """Read documents as `Store.scan`, those first that were inserted last: so a look at a few costs a few. `kept`:
        only those that never expire. One that was inserted meanwhile may be left out. A damaged one is given as it lies
        there. For tools, never while handling."""


@runtime_checkable
class KeysInOrder(Protocol):
    """Ability of stores that find the next key without reading those before it: not every one does."""

    async def next_key(self, collection: str, after: str) -> str | None:
        """Find the least key of a collection that is greater than `after`, of an expired document perhaps; `None` if
        there is none. For tools, never while handling."""
