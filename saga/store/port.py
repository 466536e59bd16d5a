"""Port of the store: versioned documents, written by compare-and-swap.

Every adapter keeps these promises. Each has a test in `saga.testing.conformance.store`:
- If a key is inserted several times concurrently, one `insert` succeeds and the others raise `Exists`.
- `replace` and `remove` apply only to the version that was read: of several calls with the same `cas`, one succeeds and
  the others raise `Conflict`. A `cas` is never reused for a key, not even after a removal.
- A write is durable when it returns: it survives the death of this process and, if the disk really stores what it has
  synced, of the machine.
- A write that raises `StoreUnavailable` has not happened and will not happen. A write that raises `Ambiguous` may have
  happened, or may still happen. A write whose caller was cancelled may have happened.
- A document of `document_bytes_max` bytes is accepted. For a larger one the write raises `TooLarge`. Nothing of the
  document is written, and other writes are not affected.
- A read sees every write that had returned when the read began.
- A document exists until its expiry, and no longer. Without an expiry it exists until it is removed. An expiry that the
  store cannot represent raises `StoreError`, and nothing is written.

Not promised: queries, transactions, or any operation on two documents.
"""

from collections.abc import AsyncIterator, Collection
from typing import NamedTuple, Protocol, Self, runtime_checkable


class Document(NamedTuple):
    """A document at the time of a read."""

    content: bytes
    """The content as it was written: JSON."""
    cas: int
    """The version of the document, to be passed to `replace` and `remove`. Its value has no other meaning."""


class Store(Protocol):
    """Store of versioned documents in collections. Keys and names of collections are non-empty strings."""

    @property
    def document_bytes_max(self) -> int:
        """Return the size of the largest content that can be written, in bytes."""

    async def __aenter__(self) -> Self:
        """Open the store. Raises `SagaError` with reason and remedy if the store cannot keep its promises.

        The error is raised before `SAGA_OPEN_S` has passed. If the caller's timeout came first, its error could not
        name the reason.
        """

    async def __aexit__(self, *exc: object) -> None:
        """Wait until all running writes have ended, then close."""

    async def check_expiry(self, collections: Collection[str], expiry_s: float) -> None:
        """Check that documents in these collections live as long as requested: for ever without an expiry, and no
        shorter than `expiry_s` with one.

        A service calls this when it starts. The check may write and remove documents. Raises `ConfigurationError`,
        which names the setting that would make documents expire early and says what to do, and `StoreUnavailable`.
        """

    async def get(self, collection: str, key: str) -> Document | None:
        """Return a document; `None` if it does not exist. Raises `StoreUnavailable`, and `StoreError` if the document
        is damaged."""

    async def insert(self, collection: str, key: str, content: bytes, *, expiry_s: float | None = None) -> int:
        """Create a document and return its `cas`. The document expires in `expiry_s` seconds, or never if that is
        `None`.

        Raises `Exists` if there is a document with this key, and `Ambiguous`, `StoreUnavailable`, `TooLarge`.
        """

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
        """Replace the content of a document if its version still is `cas`. Return the new `cas`.

        The document expires in `expiry_s` seconds, or never if that is `None`. With `keep_expiry` it keeps its previous
        expiry. Raises `Conflict` if the document has another version or does not exist, and `Ambiguous`,
        `StoreUnavailable`, `TooLarge`.
        """

    async def remove(self, collection: str, key: str, *, cas: int) -> None:
        """Remove a document if its version still is `cas`. Raises `Conflict` if it has another version or does not
        exist, and `Ambiguous`, `StoreUnavailable`."""

    def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        """Yield all documents whose keys begin with `prefix`, in the order of their keys. For tools, not for
        handlers."""


@runtime_checkable
class NewestFirst(Protocol):
    """A store that knows the order in which its documents were inserted."""

    def scan_newest(
        self, collection: str, prefix: str = "", *, kept: bool = False
    ) -> AsyncIterator[tuple[str, Document]]:
        """Yield documents as `Store.scan` does, but the last inserted one first, so that reading only a few is cheap.

        `kept`: true to yield only documents that never expire. Documents that are inserted during the scan may be left
        out. Damaged documents are not detected. For tools, not for handlers.
        """


@runtime_checkable
class KeysInOrder(Protocol):
    """A store that can find the next key without reading the keys before it."""

    async def next_key(self, collection: str, after: str) -> str | None:
        """Return the smallest key greater than `after`; `None` if there is none. The key may belong to an expired
        document. For tools, not for handlers."""
