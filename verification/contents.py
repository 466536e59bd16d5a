"""Give a number to each document content of a search, and use it as the version of the document.

Equal contents have the same number. So a state is a tuple of small numbers, and equal states compare equal.
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
    """All document contents of a search. Each is decoded once, for all states that contain it."""

    def __init__(self, services: Sequence[ServiceRuntime], *, batched: bool) -> None:
        """`batched`: the worker handles another saga, too, and updates of both may go into one replace."""
        self.services, self.batched = services, batched
        self._contents: list[bytes] = [b""]
        self._versions: dict[bytes, int] = {}
        self._snapshots: dict[int, SagaProgress] = {}
        self._entries: dict[int, tuple[Transition, ...]] = {}
        self.books: tuple[int, ...] = ()
        """Versions of the control log, in the order in which operators write them."""
        self.logs: tuple[tuple[Message, ...], tuple[Message, ...]] = ((), ())
        self.grows = False
        """True if the messages are published one by one during the exploration."""

    @property
    def service(self) -> ServiceRuntime:
        """Return the service in its newest release."""
        return self.services[-1]

    def version(self, content: bytes) -> int:
        """Return the number of a content, which is also the version of a document with this content."""
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
        """Return the decoded progress with this version."""
        known = self._snapshots.get(version)
        if known is None:
            content = self._contents[version]
            known = decode_progress(content) if version else SagaProgress(service=SERVICE, saga=SAGA)
            self._snapshots[version] = known
        return known

    def entries(self, s: State, version: int) -> tuple[Transition, ...]:
        """Return all transitions of the progress with this version, including those in archives."""
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
        """Return the progress together with the contents of its overflow segments. Raises `SagaError` if a segment is
        missing."""
        p = self.snapshot(s.progress)
        return restore_all(p, {key: self._contents[v] for (_, key), v in s.rest}) if p.segments else p

    def is_settled(self, s: State) -> bool:
        """Return whether everything recorded is published, and no work of the saga is ready."""
        published = all(i in s.out for i in progress_checks.list_recorded_ids(self.entries(s, s.progress)))
        return published and find_next_ready(self.whole(s), self.service.roles, progress_checks.AT_LAST_MS) is None

    def stock_left(self, version: int) -> int | None:
        """Return the stock in the business document; `None` if the document is absent."""
        if not version:
            return None
        document = msgspec.json.decode(self._contents[version])
        return None if document.get("_saga", {}).get("absent") else document["left"]
