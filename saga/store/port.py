"""Port of the store: versioned documents, written by compare-and-swap.

Promised, each promise with a test in `saga.testing.conformance.store`:
- Of several concurrent `insert` of one key, one succeeds and the others raise `Exists`.
- `replace` and `remove` apply only to the version that was read: of several with the same `cas`, one succeeds and the
  others raise `Conflict`. A `cas` is never reused for a key, not even after a removal.
- A write is durable when it returns: it survives the death of this process and, as far as the disk keeps its word, of
  the machine.
- A write that raises `StoreUnavailable` has not happened and will not. One that raises `Ambiguous` may have happened,
  or may still happen. A write whose caller was cancelled may have happened.
- A document of `document_bytes_max` bytes is accepted. A larger one is refused with `TooLarge`, nothing of it is
  written, and other writes are not affected.
- A read sees every write that had returned when the read began.
- A document is gone after its expiry and not before; without an expiry it stays. An expiry that the store cannot
  represent raises `StoreError`, and nothing is written.

Not promised: queries, transactions, or anything across two documents.
"""

from collections.abc import AsyncIterator, Collection
from typing import NamedTuple, Protocol, Self, runtime_checkable


class Document(NamedTuple):
    """A document as it was read."""

    content: bytes
    """The content as it was written: JSON."""
    cas: int
    """The version of the document, for `replace` and `remove`; opaque."""


class Store(Protocol):
    """Versioned documents in collections. Keys and collections are non-empty texts."""

    @property
    def document_bytes_max(self) -> int:
        """Largest content that can be written, in bytes."""

    async def __aenter__(self) -> Self:
        """Open the store. Raises `SagaError` with reason and remedy if it cannot keep its promises. It does so before
        `SAGA_OPEN_S` has passed, because the caller's timeout could not name the reason."""

    async def __aexit__(self, *exc: object) -> None:
        """Wait until all running writes have ended, then close."""

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        """Check that documents of these collections live as long as requested: for ever, or for `expiry_s`.

        Called when a service starts; it may write and remove documents. Raises `ConfigurationError`, which names what
        would expire them early and what to do, and `StoreUnavailable`.
        """

    async def get(self, collection: str, key: str) -> Document | None:
        """Read a document; `None` if it does not exist. Raises `StoreUnavailable`, and `StoreError` if the document is
        damaged."""

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        """Create a document and return its `cas`. Raises `Exists`, `Ambiguous`, `StoreUnavailable`, `TooLarge`."""

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
        """Replace the version `cas` by `content` and return the new `cas`.

        The document expires in `expiry_s` seconds, never if `None`, or as before with `keep_expiry`.
        Raises `Conflict`, `Ambiguous`, `StoreUnavailable`, `TooLarge`.
        """

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        """Remove the version `cas`. Raises `Conflict`, `Ambiguous`, `StoreUnavailable`."""

    def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        """Read all documents whose key begins with `prefix`, in the order of keys. For tools, not for handlers."""


@runtime_checkable
class NewestFirst(Protocol):
    """A store that knows in which order its documents were inserted."""

    def scan_newest(
        self, collection: str, prefix: str = "", *, kept: bool = False
    ) -> AsyncIterator[tuple[str, Document]]:
        """Read documents as `Store.scan`, latest insertion first, so that reading only a few is cheap.

        `kept`: only documents that never expire. Documents inserted meanwhile may be left out, damaged ones are
        returned as they are. For tools, not for handlers."""


@runtime_checkable
class KeysInOrder(Protocol):
    """A store that finds the next key without reading those before it."""

    async def next_key(self, collection: str, after: str) -> str | None:
        """Return the least key greater than `after`, which may be that of an expired document; `None` without one. For
        tools, not for handlers."""
