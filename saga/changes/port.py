"""Port of change sources: stores that record the changes of their documents, for change data capture.

Promised, each promise with a test in `saga.testing.conformance.changes`:
- A change of a watched collection is recorded in the same transaction as the document, whichever program writes it.
- The changes of one document are recorded in order, each with the version that it made. Versions of a document only
  grow, also after its removal.
- A recorded change stays until it is forgotten: after a crash it is found again.
- Each service has its own list: what one service forgets, the others still have.
- A collection is watched for a service, not for one of its processes or releases. Only `unwatch`, which an operator
  calls, ends it.
- A collection that is watched from the beginning yields an insertion of each existing document.
- A change whose key cannot be a message key is recorded with the reason, and does not block the changes behind it.

Not promised: an order between documents. A burst of changes is recorded change by change here; other sources merge it.

Couchbase has no such table: its Kafka connector writes the records, in the formats of `saga.changes.records`.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from saga.changes.records import DocumentChange


class RecordedChange(NamedTuple):
    """A change that a source has recorded."""

    number: int
    """Sequence number among the changes of its source."""
    collection: str
    changed: DocumentChange


@runtime_checkable
class ChangeSource(Protocol):
    """A store that records changes."""

    async def watch(self, service: str, collections: Collection[str], *, from_beginning: bool) -> None:
        """Record changes of these collections for a service, in addition to those that are watched already.
        `from_beginning`: of newly watched collections also record the existing documents. Raises `StoreError`."""

    def watched(self, service: str) -> Collection[str]:
        """Return the collections that are watched for a service. Raises `StoreError`."""

    async def unwatch(self, service: str, collections: Collection[str]) -> None:
        """Stop to record changes of these collections for a service, and drop the recorded ones. Raises
        `StoreError`."""

    def noted(self, service: str, count_max: int, *, before_ms: int | None = None) -> Sequence[RecordedChange]:
        """Read the oldest recorded changes for a service. `before_ms`: none unless the oldest was made before that
        time. Raises `StoreError`."""

    async def forget(self, service: str, number: int) -> None:
        """Drop the changes for a service up to and including this one. Raises `StoreError`."""

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or less if changes may have been recorded."""

    def leads(self, service: str) -> bool:
        """Return whether this process is the leader that publishes the changes of a service: at most one process is,
        until it closes the store or dies."""
