"""History of a saga in one service: its progress, with the transitions and messages that it outgrew."""

from collections.abc import AsyncIterator

from msgspec import Raw

from saga.errors import SagaError, StoreError, StoreUnavailable
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.ops.sources import ServiceStore
from saga.ops.timeline import SagaHistory
from saga.progress import history, overflow
from saga.progress.document import UNREADABLE, SagaProgress, progress_key
from saga.progress.document import decode_progress as decode_content
from saga.store.port import Document, NewestFirst, Store


class UnreadableHistory(SagaError):
    """Raised if a document of a saga is not as its service wrote it, or was written by a newer version."""


async def read_documents(
    source: ServiceStore, prefix: str = "", *, kept: bool = False
) -> AsyncIterator[tuple[str, Document]]:
    """Progress documents of a service, with their saga ids, which begin with `prefix`. If the store can: newest first,
    damaged ones unchanged, and with `kept` only those that never expire."""
    whole, store = progress_key(source.service, prefix), source.store
    found = (
        store.scan_newest(PROGRESS, whole, kept=kept) if isinstance(store, NewestFirst) else store.scan(PROGRESS, whole)
    )
    async for key, document in found:
        yield key.removeprefix(progress_key(source.service, "")), document


async def read_document(source: ServiceStore, saga: str) -> Document | None:
    """Progress document of a saga; `None` if the service does not know the saga. Raises `UnreadableHistory` if it is
    damaged."""
    return await _get(source.store, PROGRESS, progress_key(source.service, saga), f"saga {saga} in {source.service}")


async def _get(store: Store, collection: str, key: str, what: str) -> Document | None:
    """A document. Raises `UnreadableHistory`, which begins with `what`, for one that is damaged."""
    try:
        return await store.get(collection, key)
    except StoreUnavailable:
        raise
    except StoreError as why:
        raise UnreadableHistory(f"{what}: {why}") from why


def decode_progress(source: ServiceStore, saga: str, document: Document) -> SagaProgress:
    """The progress in a document. Raises `UnreadableHistory`."""
    try:
        return decode_content(document.content)
    except SagaError as why:
        raise UnreadableHistory(f"saga {saga} in {source.service}: {why}") from why


async def read_history(source: ServiceStore, saga: str, since: int = 0) -> SagaHistory | None:
    """All transitions of a saga in a service, archived ones with them; `None` if the service does not know the saga.

    Archives are left alone when the progress itself reaches back to the transition `since`. Raises `UnreadableHistory`.
    """
    document = await read_document(source, saga)
    if document is None:
        return None
    return await complete_history(source, decode_progress(source, saga, document), since)


async def read_histories(source: ServiceStore) -> AsyncIterator[SagaHistory]:
    """Histories of all sagas that a service knows, as `read_history` gives them."""
    async for saga, document in read_documents(source):
        yield await complete_history(source, decode_progress(source, saga, document))


async def complete_history(source: ServiceStore, p: SagaProgress, since: int = 0) -> SagaHistory:
    """History as `read_history` gives it, of a progress that was read; with the contents of its pages."""
    p = await _add_overflow(source, p)
    return SagaHistory(p, p.transitions) if p.first <= since else await add_archives(source.store, p)


async def add_archives(store: Store, p: SagaProgress) -> SagaHistory:
    """A progress with the transitions that it outgrew, as far as they are there. Raises `UnreadableHistory`."""
    # The progress was read before, so nothing can have moved to an archive unseen. An archive that the progress does
    # not know of yet repeats what the progress has. One that does not follow the one before is of an earlier saga that
    # had the same id: it is not asked for.
    archived, what = list[Raw](), f"an archive of saga {p.saga} in {p.service}"
    try:
        while len(archived) < p.first:
            key = history.archive_key(p.service, p.saga, len(archived))
            document = await _get(store, ARCHIVES, key, f"{what} cannot be read")
            if document is None:
                break
            archive = history.decode_archive(document.content)
            if (archive.saga, archive.first) != (p.saga, len(archived)) or not archive.transitions:
                break
            archived += archive.transitions
    except UNREADABLE as why:
        raise UnreadableHistory(f"{what} cannot be read: {why}") from why
    return SagaHistory(p, (*archived, *p.transitions))


async def _add_overflow(source: ServiceStore, p: SagaProgress) -> SagaProgress:
    """The progress as if it had no bounds. Raises `UnreadableHistory`.

    A worker on the saga meanwhile takes messages out of pages, which then are removed: so where one is missing, the
    progress is read again, as long as it lists other pages than before.
    """
    what = f"a page of {p.saga} in {source.service}"
    while True:
        leaves, left, is_missing = dict[str, bytes](), [*p.pages], False
        while left:
            page = left.pop()
            key = overflow.segment_key(p.service, p.saga, page)
            document = await _get(source.store, ARCHIVES, key, f"{what} cannot be read")
            if document is None:
                is_missing = True
                continue
            leaves[key] = document.content
            try:
                left += overflow.list_segments(page, document.content)
            except UNREADABLE as why:
                raise UnreadableHistory(f"{what} cannot be read: {why}") from why
        if is_missing and (document := await read_document(source, p.saga)) is not None:
            now = decode_progress(source, p.saga, document)
            if now.pages != p.pages:
                p = now
                continue
        try:
            return overflow.restore_all(p, leaves, now_s=source.clock.now_ms() // 1000)
        except (SagaError, *UNREADABLE) as why:
            raise UnreadableHistory(f"{what} cannot be read: {why}") from why
