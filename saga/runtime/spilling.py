"""Pages of a progress, read and written: what of a saga does not fit in its one document."""

from collections.abc import Sequence

from msgspec.structs import replace

from saga.errors import Ambiguous, Exists, SagaError
from saga.messages import Message
from saga.progress import ids, spill
from saga.progress.document import Page, Snapshot, progress_key
from saga.progress.spill import NewPage
from saga.runtime import persistence
from saga.runtime.participant import Participant, Refused
from saga.runtime.standing import Turn

EXPIRY_S_MORE = 86_400
"""Pages of the inbox stay for so long after nothing asks for them any more: clocks may differ by so much."""


async def recalled(service: Participant, turn: Turn) -> Turn:
    """With what pages hold of the message in hand: from here on `turn.known` says of it what a whole one would."""
    return replace(turn, recalled=await entries_in_pages(service, turn, turn.known, [turn.message]))


async def entries_in_pages(
    service: Participant, turn: Turn, p: Snapshot, messages: Sequence[Message]
) -> dict[str, int]:
    """The inbox entries of these messages that are in the progress's pages only. Raises `Refused`."""
    missing = {ids.entry(m.id, name) for m in messages for name in service.roles.names_for(m.type)}
    missing -= p.inbox.keys()
    found: dict[str, int] = {}
    for page in reversed(p.pages):
        if not missing:
            break
        entries = await _entries_of(service, turn, page)
        for entry in [entry for entry in missing if spill.is_in(entries, entry)]:
            missing.remove(entry)
            found[entry] = page.newest
    return found


async def within_bounds(service: Participant, turn: Turn, p: Snapshot) -> Snapshot:
    """The progress as it is to be written, with what has no room in it in pages that are durable. Raises `Refused`."""
    if len(p.inbox) > service.bounds.inbox_max:
        merged = [(page, await _entries_of(service, turn, page)) for page in spill.to_merge(p, service.bounds)]
        spilled = spill.inbox_spilled(
            p,
            service.roles,
            service.bounds,
            in_hand=turn.message,
            memory_s=service.memory_s,
            merged=merged,
        )
        if spilled is not None:
            p, new = spilled
            left_s = max(0, new.page.until - service.ports.clock.now_ms() // 1000)
            await _inserted(service, turn, new, expiry_s=left_s + EXPIRY_S_MORE)
    return p


async def _inserted(service: Participant, turn: Turn, new: NewPage, *, expiry_s: float | None) -> None:
    """Returns when the page is durable. Raises `Refused`."""
    ports, saga = service.ports, turn.message.saga
    key = spill.page_key(service.name, saga, new.page)
    try:
        await persistence.patiently(
            service,
            turn.position,
            "page",
            ports.store.insert,
            persistence.ARCHIVES,
            key,
            new.content,
            expiry_s=expiry_s,
        )
    except Exists:  # from an attempt that went no further: its name says that it holds the same
        pass
    except Ambiguous as why:
        persistence.tell_refused(service, saga, "archive", why)
        raise Refused from why
    ports.pages.learn(key, spill.decode_leaf(new.content).entries)


async def _entries_of(service: Participant, turn: Turn, page: Page) -> bytes:
    """The entries of a page that the progress lists. Raises `Refused` if the progress has changed meanwhile."""
    ports, saga = service.ports, turn.message.saga
    key = spill.page_key(service.name, saga, page)
    entries = ports.pages.entries_of(key)
    if entries is not None:
        return entries
    document = await persistence.patiently(service, turn.position, "get", ports.store.get, persistence.ARCHIVES, key)
    if document is not None:
        entries = spill.decode_leaf(document.content).entries
    elif page.is_forgotten(ports.clock.now_ms() // 1000):
        entries = b""  # expired, as whatever is in it would be
    else:
        raise await _gone(service, turn, key)
    ports.pages.learn(key, entries)
    return entries


async def _gone(service: Participant, turn: Turn, key: str) -> Exception | Refused:
    """Why a page that was listed is not there: the progress is another one by now, or somebody removed it."""
    where = progress_key(service.name, turn.message.saga)
    there = await persistence.patiently(
        service, turn.position, "get", service.ports.store.get, persistence.COLLECTION, where
    )
    if there is None or there.cas != turn.cas:
        return Refused()
    return SagaError(
        f"the progress {where!r} lists the page {key!r}, which is not in {persistence.ARCHIVES!r}: "
        "somebody removes documents by hand; put it back"
    )
