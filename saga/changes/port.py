"""Port of change sources: stores that note the changes of their documents themselves, for the services beside them.

Promises, each shown by a test of `saga.testing.conformance.changes`:
- A change of a watched collection is noted in the same write as the document, whoever writes it: neither is there
  without the other.
- Those of one document are noted in the order in which they were made, each with the version that it made; versions of
  one document only grow, after its removal, too.
- What was noted stays until it is forgotten: whoever dies in between finds it again.
- Each service has its own: what one forgets, the others still have.
- A collection is watched for a service, and not for one process or release of it: what one of them watches, another one
  that knows nothing of it goes on noting. Only `unwatch`, which a person asks for, ends that.
- A collection that is watched from the beginning has an insertion of each document that is there.
- A change whose key no message can have is noted with the reason, like any other: it keeps back nothing behind it.
Not promised: an order between documents. A burst of changes is noted change by change here; other sources merge it.

Couchbase has no such table: its Kafka connector writes the records, in the forms of `saga.changes.records`.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from saga.changes.records import Changed


class Noted(NamedTuple):
    """Change that a source has noted."""

    number: int
    """Place among the changes of its source: it grows."""
    collection: str
    changed: Changed


@runtime_checkable
class ChangeSource(Protocol):
    """Ability of stores that note changes."""

    async def watch(self, service: str, collections: Collection[str], *, from_beginning: bool) -> None:
        """Note changes of these collections for a service from now on, beside those that are watched already.
        `from_beginning`: what is there already, too, of those that were not watched before. Raises `StoreError`."""

    def watched(self, service: str) -> Collection[str]:
        """Read the collections that are watched for a service. Raises `StoreError`."""

    async def unwatch(self, service: str, collections: Collection[str]) -> None:
        """Note changes of these collections for a service no more, and drop those that are noted. Raises
        `StoreError`."""

    def noted(self, service: str, count_max: int, *, before_ms: int | None = None) -> Sequence[Noted]:
        """Read the oldest changes for a service that it has not forgotten. `before_ms`: nothing, unless the oldest was
        made before that time. Raises `StoreError`."""

    async def forget(self, service: str, number: int) -> None:
        """Forget the changes for a service up to this one. Raises `StoreError`."""

    async def pause(self, seconds: float) -> None:
        """Wait between two looks: so long, or less, if something may have been noted."""

    def leads(self, service: str) -> bool:
        """Return whether this process is the one that is to take them on: of several at most one, until it closes the
        store or dies."""
