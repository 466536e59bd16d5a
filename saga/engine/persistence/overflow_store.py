"""Pages of a progress, read and written: what of a saga does not fit in its one document."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec import Raw
from msgspec.structs import replace

from saga.engine.errors import Superseded
from saga.engine.persistence import progress_repository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, Exists, StoreError
from saga.messages import Message
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress import ids, overflow
from saga.progress.document import UNREADABLE, OverflowSegment, SagaProgress, StepRecord, progress_key
from saga.progress.overflow import NewSegment, SegmentDocument, claim_key, digest_content
from saga.store.port import Document

EXPIRY_S_MORE = 86_400
"""Pages stay for so long after nothing asks for them any more: clocks may differ by so much."""
OFF_S_MAX = 10 * 365 * 86_400
"""Pages of the inbox stay for no longer than this, or than the memory and a year: messages may say any time, and no
store keeps a document for thousands of years."""


async def recall(service: ServiceRuntime, turn: ProcessingState) -> ProcessingState:
    """Look up what pages hold of the message in hand: from here on `turn.loaded_progress` says of it what a whole one
    would."""
    had, kept = await _find_entries(service, turn, turn.loaded_progress, [turn.message])
    return replace(turn, recalled=had, paged=tuple(sorted(kept)))


async def find_in_segments(
    service: ServiceRuntime, turn: ProcessingState, p: SagaProgress, messages: Sequence[Message]
) -> dict[str, int]:
    """The inbox entries of these messages that are in the progress's pages only. Raises `Superseded`."""
    return (await _find_entries(service, turn, p, messages))[0]


async def _find_entries(
    service: ServiceRuntime, turn: ProcessingState, p: SagaProgress, messages: Sequence[Message]
) -> tuple[dict[str, int], set[str]]:
    """Entries of these messages that are in pages of the inbox, and the handlers for which pages keep them."""
    missing = {ids.inbox_entry(m.id, name): name for m in messages for name in service.roles.names.get(m.type, ())}
    missing = {entry: name for entry, name in missing.items() if entry not in p.inbox}
    had, kept = dict[str, int](), set[str]()
    for page in reversed(p.pages):
        if not missing:
            break
        if page.of in ("results", "own"):
            continue
        entries = await _entries_of(service, turn, page)
        for entry in [entry for entry in missing if overflow.contains_entry(entries, entry)]:
            name = missing.pop(entry)
            if page.of == "inbox":
                had[entry] = page.newest
            else:
                kept.add(name)
    return had, kept


async def move_overflow(
    service: ServiceRuntime, turn: ProcessingState, p: SagaProgress
) -> tuple[SagaProgress, list[tuple[str, int]]]:
    """The progress as it is to be written, with what has no room in it in pages that are durable; and the pages that
    nobody needs once it is written, each with its version. Raises `Superseded`."""
    emptied: list[tuple[str, int]] = []
    while (page := overflow.find_message_segment(p, service.roles)) is not None:
        p = await _taken_in(service, turn, p, page, emptied, overflow.restore_messages)
    while (page := overflow.find_result_segment(p)) is not None:
        p = await _taken_in(service, turn, p, page, emptied, overflow.restore_results)
    if any(page.of == "own" for page in p.pages):
        p = await _restore_self_consumed(service, turn, p, emptied)
    now_s = service.ports.clock.now_ms() // 1000
    until = overflow.compute_expiry(p, now_s=now_s, retention_s=service.retention_s)
    while wrong := overflow.find_wrong_expiries(p, now_s=now_s, retention_s=service.retention_s):
        for page in wrong:
            ends = until if page.of != "inbox" else now_s + service.retention_s
            p = await _lasting(service, turn, p, page, emptied, ends)
    p, new_pages = overflow.spill_messages(
        p, service.roles, service.bounds, in_hand=turn.message, now_s=now_s, until=until
    )
    p, more = overflow.spill_results(p, service.bounds)
    p, own = overflow.spill_events(p, service.roles, service.bounds, in_hand=turn.message, now_s=now_s, until=until)
    for new in (*new_pages, *more, *own):
        await _insert_segment(service, turn, new)
    while pages := overflow.find_segments_to_index(p, service.bounds):
        entries = [b"" if page.of == "own" else await _entries_of(service, turn, page) for page in pages]
        p, shelf = overflow.index_segments(p, pages, entries)
        await _insert_segment(service, turn, shelf)
    if len(p.inbox) > service.bounds.inbox_max:
        merged = [
            (page, await _entries_of(service, turn, page))
            for page in overflow.find_segments_to_merge(p, service.bounds)
        ]
        spilled = overflow.spill_inbox(
            p,
            service.roles,
            service.bounds,
            in_hand=turn.message,
            retention_s=service.retention_s,
            merged=merged,
        )
        if spilled is not None:
            p, new = spilled
            await _insert_segment(service, turn, new)
    return p, emptied


async def _restore_self_consumed(
    service: ServiceRuntime, turn: ProcessingState, p: SagaProgress, emptied: list[tuple[str, int]]
) -> SagaProgress:
    """The progress without what is withdrawn, wherever it was, and with the first own events of each handler; pages of
    what nobody takes any more are `emptied` as well."""
    before = turn.loaded_progress.results

    def restored(p: SagaProgress, page: OverflowSegment, leaf: SegmentDocument) -> SagaProgress:
        return overflow.restore_events(p, page, leaf, before)

    for gone in overflow.find_unneeded(p, service.roles):
        p = await _taken_in(service, turn, p, gone, emptied, lambda p, page, _: overflow.remove_segment(p, page))
    while withdrawn := overflow.find_withdrawn(p, before):
        p = await _taken_in(service, turn, p, withdrawn[0], emptied, restored)
    while (page := overflow.find_event_segment(p, service.roles)) is not None:
        p = await _taken_in(service, turn, p, page, emptied, restored)
    return p


async def _taken_in(  # of which turn, and what takes it in
    service: ServiceRuntime,
    turn: ProcessingState,
    p: SagaProgress,
    page: OverflowSegment,
    emptied: list[tuple[str, int]],
    restored: Callable[[SagaProgress, OverflowSegment, SegmentDocument], SagaProgress],
) -> SagaProgress:
    """The progress with what a page holds in the place of the page, which is one of those `emptied` then."""
    key, document = await _read(service, turn, page)
    leaf = _leaf(key, document)
    emptied.append((key, document.cas))
    return overflow.open_index(p, page, leaf) if page.level else restored(p, page, leaf)


async def _lasting(  # of which turn, and until when
    service: ServiceRuntime,
    turn: ProcessingState,
    p: SagaProgress,
    page: OverflowSegment,
    emptied: list[tuple[str, int]],
    until: int,
) -> SagaProgress:
    """The progress with a copy of a page in its place that expires then, or with the pages of a shelf."""
    if page.level:
        return await _taken_in(service, turn, p, page, emptied, overflow.open_index)
    key, document = await _read(service, turn, page)
    p, new = overflow.copy_segment(p, page, _leaf(key, document), until)
    await _insert_segment(service, turn, new)
    emptied.append((key, document.cas))
    return p


async def restore_results(service: ServiceRuntime, turn: ProcessingState, p: SagaProgress) -> SagaProgress:
    """The progress with the results that are in pages, for a look at all of them. Raises `Superseded`."""
    while (page := next((page for page in p.pages if page.of == "results"), None)) is not None:
        key, document = await _read(service, turn, page)
        p = overflow.restore_results(p, page, _leaf(key, document))
    return p


async def remove_segments(service: ServiceRuntime, emptied: Sequence[tuple[str, int]]) -> None:
    """Remove pages that no progress lists any more, as far as that works: they harm nobody."""
    for key, cas in emptied:
        with suppress(StoreError):
            await service.ports.store.remove(ARCHIVES, key, cas=cas)


async def _insert_segment(service: ServiceRuntime, turn: ProcessingState, new: NewSegment) -> None:
    """Returns when the page is durable. Raises `Superseded`."""
    ports, saga = service.ports, turn.message.saga
    expiry_s = None
    if new.page.until:
        left_s = new.page.until - progress_repository.write_context(service, turn).surely_s
        expiry_s = min(max(0, left_s), max(service.retention_s + overflow.YEAR_S, OFF_S_MAX)) + EXPIRY_S_MORE
    key = overflow.segment_key(service.name, saga, new.page)
    try:
        await progress_repository.retry_while_unavailable(
            service,
            turn.position,
            "page",
            ports.store.insert,
            ARCHIVES,
            key,
            new.content,
            expiry_s=expiry_s,
        )
    except Exists:  # from an attempt that went no further: its name says that it holds the same
        pass
    except Ambiguous as why:
        progress_repository.report_refused_write(service, saga, "archive", why)
        raise Superseded from why
    if new.page.of not in ("results", "own"):  # nobody asks which messages they are of
        ports.overflow_cache.learn(key, overflow.decode_segment(new.content).entries)


async def _entries_of(service: ServiceRuntime, turn: ProcessingState, page: OverflowSegment) -> bytes:
    """The entries of a page that the progress lists. Raises `Superseded` if the progress has changed meanwhile."""
    ports, saga = service.ports, turn.message.saga
    key = overflow.segment_key(service.name, saga, page)
    entries = ports.overflow_cache.entries_of(key)
    if entries is not None:
        return entries
    document = await progress_repository.retry_while_unavailable(
        service, turn.position, "get", ports.store.get, ARCHIVES, key
    )
    if document is not None:
        entries = _leaf(key, document).entries
    elif page.is_forgotten(ports.clock.now_ms() // 1000):
        entries = b""  # expired, as whatever is in it would be
    else:
        raise await _gone(service, turn, key)
    ports.overflow_cache.learn(key, entries)
    return entries


async def _read(service: ServiceRuntime, turn: ProcessingState, page: OverflowSegment) -> tuple[str, Document]:
    """A page with messages, and its key. Raises `Superseded` if the progress has changed meanwhile."""
    ports, key = service.ports, overflow.segment_key(service.name, turn.message.saga, page)
    document = await progress_repository.retry_while_unavailable(
        service, turn.position, "get", ports.store.get, ARCHIVES, key
    )
    if document is None:
        raise await _gone(service, turn, key)
    return key, document


def _leaf(key: str, document: Document) -> SegmentDocument:
    if key.rpartition("-")[2] != overflow.digest_content(document.content):
        raise StoreError(f"the page {key!r} in {ARCHIVES!r} was changed since it was written; restore it")
    try:
        return overflow.decode_segment(document.content)
    except UNREADABLE as why:
        raise StoreError(f"the page {key!r} in {ARCHIVES!r} cannot be read: {why}; restore it") from why


async def _gone(service: ServiceRuntime, turn: ProcessingState, key: str) -> Exception | Superseded:
    """Reason why a page that was listed is not there: the progress is another one by now, or somebody removed it."""
    where = progress_key(service.name, turn.message.saga)
    there = await progress_repository.retry_while_unavailable(
        service, turn.position, "get", service.ports.store.get, PROGRESS, where
    )
    if there is None or there.cas != turn.cas:
        return Superseded()
    return StoreError(
        f"the progress {where!r} lists the page {key!r}, which is not in {ARCHIVES!r}: "
        "somebody removes documents by hand; put it back"
    )


# -------------------------------------------------------------------- claim checks


async def store_claim(service: ServiceRuntime, turn: ProcessingState, call: StepRecord) -> StepRecord:
    """The answer without its value, which is durable in a document of its own by then."""
    content = bytes(call.value)
    claim, saga, at = digest_content(content), turn.message.saga, turn.position
    key, ports = claim_key(service.name, saga, claim), service.ports
    while True:
        try:
            # Without expiry, as archives: transitions refer to it, and these are archived.
            await progress_repository.retry_while_unavailable(
                service, at, "claim", ports.store.insert, ARCHIVES, key, content
            )
        except Exists:  # its name says that it holds the same
            break
        except Ambiguous as why:  # it may be there: the same again does no harm
            progress_repository.report_refused_write(service, saga, "archive", why)
            await ports.assignment.pause(progress_repository.WAIT_S_FIRST, at)
        else:
            break
    return replace(call, value=Raw(b"null"), claim=claim)


async def load_claim(service: ServiceRuntime, turn: ProcessingState, call: StepRecord) -> StepRecord:
    """The answer with its value, read from its claim. Raises `StoreError` for a claim that is gone or was changed."""
    key = claim_key(service.name, turn.message.saga, call.claim)
    document = await progress_repository.retry_while_unavailable(
        service, turn.position, "get", service.ports.store.get, ARCHIVES, key
    )
    if document is None:
        raise StoreError(
            f"{call.name} gave what lies in {key!r}, which is not in {ARCHIVES!r}: somebody removes documents by hand; "
            "put it back"
        )
    if digest_content(document.content) != call.claim:
        raise StoreError(
            f"{call.name} gave what lies in {key!r} in {ARCHIVES!r}, which was changed since it was written; restore it"
        )
    return replace(call, value=Raw(document.content))
