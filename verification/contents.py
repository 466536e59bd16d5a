"""Contents of documents, each by a number that is its version; the releases of the service that wrote them beside.

No content comes again, so a state is a tuple of small numbers, and two equal states are one.
"""

from collections.abc import Sequence

import msgspec

from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Message
from saga.messaging.names import ARCHIVES
from saga.progress.decisions import find_next_ready
from saga.progress.document import SagaProgress, Transition, decode_progress, decode_transition
from saga.progress.history import archive_key, decode_archive
from saga.progress.overflow import restore_all
from saga.store.port import Document
from saga.testing.invariants import progress_checks
from verification.handlers import SAGA, SERVICE
from verification.state import State


class Contents:
    """Every content that a document ever had in a search, read once for all states that have it."""

    def __init__(self, services: Sequence[ServiceRuntime], *, batched: bool) -> None:
        """`batched`: another saga's lane uses the business document too."""
        self.services, self.batched = services, batched
        self._contents: list[bytes] = [b""]
        self._versions: dict[bytes, int] = {}
        self._snapshots: dict[int, SagaProgress] = {}
        self._entries: dict[int, tuple[Transition, ...]] = {}
        self.books: tuple[int, ...] = ()
        """Versions of the book of controls, in the order in which people write them."""
        self.logs: tuple[tuple[Message, ...], tuple[Message, ...]] = ((), ())
        self.grows = False
        """True if the messages of the logs are published one by one."""

    @property
    def service(self) -> ServiceRuntime:
        """Participant of the newest release."""
        return self.services[-1]

    def version(self, content: bytes) -> int:
        """Number of a document's content, which is its version: no content comes again."""
        number = self._versions.get(content)
        if number is None:
            number = self._versions[content] = len(self._contents)
            self._contents.append(content)
        return number

    def content(self, version: int) -> bytes:
        return self._contents[version]

    def document(self, version: int) -> Document | None:
        return Document(self._contents[version], version) if version else None

    def snapshot(self, version: int) -> SagaProgress:
        """Progress of that version."""
        known = self._snapshots.get(version)
        if known is None:
            content = self._contents[version]
            known = decode_progress(content) if version else SagaProgress(service=SERVICE, saga=SAGA)
            self._snapshots[version] = known
        return known

    def entries(self, s: State, version: int) -> tuple[Transition, ...]:
        """Transitions of that version of the progress, archived ones with them."""
        known = self._entries.get(version)
        if known is None:
            p, first = self.snapshot(version), 0
            raws: list[msgspec.Raw] = []
            while first < p.first:
                archive = decode_archive(self._contents[s.version_of(ARCHIVES, archive_key(SERVICE, SAGA, first))])
                raws += archive.transitions
                first += len(archive.transitions)
            known = self._entries[version] = tuple(map(decode_transition, (*raws[: p.first], *p.transitions)))
        return known

    def whole(self, s: State) -> SagaProgress:
        """Progress with all that its pages hold. Raises `SagaError` for a page that is not there."""
        p = self.snapshot(s.progress)
        return restore_all(p, {key: self._contents[v] for (_, key), v in s.rest}) if p.segments else p

    def is_settled(self, s: State) -> bool:
        """True if all that is recorded is in the log, and nothing of the saga is ready."""
        published = all(i in s.out for i in progress_checks.list_recorded_ids(self.entries(s, s.progress)))
        return published and find_next_ready(self.whole(s), self.service.roles, progress_checks.AT_LAST_MS) is None

    def stock_left(self, version: int) -> int | None:
        """Stock that the business document says is left; `None` if it is absent."""
        if not version:
            return None
        document = msgspec.json.decode(self._contents[version])
        return None if document.get("_saga", {}).get("absent") else document["left"]
