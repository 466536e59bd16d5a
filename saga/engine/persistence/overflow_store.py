"""Read and write overflow segments and claim checks: the parts of a saga's progress that do not fit in its one
document."""

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Raw
from msgspec.structs import replace

from saga.engine.errors import Superseded
from saga.engine.persistence.outbox import WAIT_S_FIRST, report_refused_write, retry_while_unavailable
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, Exists, StoreError
from saga.messages import Message
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.messaging.operator_commands import OperatorCommand
from saga.progress import ids, overflow
from saga.progress.document import UNREADABLE, OverflowSegment, SagaProgress, StepRecord, progress_key
from saga.progress.journal import certain_now_s
from saga.progress.overflow import NewSegment, OverflowContext, SegmentDocument, claim_key, digest_content
from saga.store.port import Document

EXPIRY_S_MORE = 86_400
"""Seconds for which segments are kept after they are no longer needed, because clocks may differ by that much."""
EXPIRY_S_MAX = 10 * 365 * 86_400
"""Maximum seconds for which an inbox segment is kept, unless the retention plus a year is longer. A message may carry
any time, and no store keeps a document for thousands of years."""


class OverflowStore:
    """Reads and writes the overflow segments of a progress, and claim checks of large step results."""

    def __init__(self, service: ServiceRuntime) -> None:
        self.service = service

    async def recall(self, state: ProcessingState) -> ProcessingState:
        """Look up the message in the overflow segments and, for an operator's command, the message that the command
        contains.

        Afterwards `ProcessingState.loaded_progress` and `paged` show everything about the message, as if the progress
        had no segments. For the message in a command, `paged` names the handlers that have processed it or for which it
        is pending, according to the segments.
        """
        p = state.loaded_progress
        entries, pending_for = await self._find_entries(state, p, [state.message])
        if isinstance(state.message, OperatorCommand) and (original := state.message.original) is not None:
            handled, pending_for = await self._find_entries(state, p, [original])
            names = self.service.roles.names.get(original.type, ())
            pending_for.update(name for name in names if ids.inbox_entry(original.id, name) in handled)
        return replace(state, recalled=entries, paged=tuple(sorted(pending_for)))

    async def find_in_segments(
        self, state: ProcessingState, p: SagaProgress, messages: Sequence[Message]
    ) -> dict[str, int]:
        """Return the inbox entries of these messages that are only in segments. Raises `Superseded`."""
        return (await self._find_entries(state, p, messages))[0]

    async def _find_entries(
        self, state: ProcessingState, p: SagaProgress, messages: Sequence[Message]
    ) -> tuple[dict[str, int], set[str]]:
        """Look for these messages in the overflow segments.

        Return their inbox entries that are only in segments, each with the time of the newest entry in its segment, and
        the names of the handlers for which one of the messages is pending in a segment.
        """
        missing = {
            ids.inbox_entry(m.id, name): name for m in messages for name in self.service.roles.names.get(m.type, ())
        }
        missing = {entry: name for entry, name in missing.items() if entry not in p.inbox}
        handled, pending_for = dict[str, int](), set[str]()
        for segment in reversed(p.segments):
            if not missing:
                break
            if not overflow.has_entries(segment):
                continue
            entries = await self._entries_of(state, segment)
            for entry in [entry for entry in missing if overflow.contains_entry(entries, entry)]:
                name = missing.pop(entry)
                if segment.kind == "inbox":
                    handled[entry] = segment.newest
                else:
                    pending_for.add(name)
        return handled, pending_for

    async def move_overflow(
        self, state: ProcessingState, p: SagaProgress
    ) -> tuple[SagaProgress, list[tuple[str, int]]]:
        """Move items that do not fit in the progress to segments, and restore items that are needed.

        Return the progress to write, whose segments are durable now, and the keys and versions of the segments that are
        no longer needed after that write. Raises `Superseded`.
        """
        emptied: list[tuple[str, int]] = []
        context = OverflowContext(
            roles=self.service.roles,
            bounds=self.service.bounds,
            message=state.message,
            now_s=self.service.ports.clock.now_ms() // 1000,
            retention_s=self.service.retention_s,
            before=state.loaded_progress.results,
        )
        for unneeded in overflow.find_unneeded_segments(p, context.roles):
            document = await self._empty_segment(state, unneeded, emptied)
            p = overflow.drop(p, unneeded, document)
        while (segment := overflow.find_segment_to_restore(p, context)) is not None:
            document = await self._empty_segment(state, segment, emptied)
            p = overflow.restore(p, segment, document, context.before)
        while wrong := overflow.find_wrong_expiries(p, context):
            for segment in wrong:
                p = await self._extend_expiry(state, p, segment, emptied, context)
        p, new = overflow.move_out(p, context)
        for each in new:
            await self._insert_segment(state, each)
        while segments := overflow.find_segments_to_index(p, context.bounds):
            entries = [await self._entries_of(state, s) if overflow.has_entries(s) else b"" for s in segments]
            p, index = overflow.index_segments(p, segments, entries)
            await self._insert_segment(state, index)
        if len(p.inbox) > context.bounds.inbox_max:
            small = overflow.find_segments_to_merge(p, context.bounds)
            merged = [(segment, await self._entries_of(state, segment)) for segment in small]
            moved = overflow.move_inbox_entries(p, context, merged)
            if moved is not None:
                p, inbox_segment = moved
                await self._insert_segment(state, inbox_segment)
        return p, emptied

    async def _empty_segment(
        self, state: ProcessingState, segment: OverflowSegment, emptied: list[tuple[str, int]]
    ) -> SegmentDocument:
        """Return the content of a segment that will be removed from the progress, and add the segment to `emptied`."""
        key, document = await self._read(state, segment)
        content = _decode_segment(key, document)
        emptied.append((key, document.cas))
        return content

    async def _extend_expiry(
        self,
        state: ProcessingState,
        p: SagaProgress,
        segment: OverflowSegment,
        emptied: list[tuple[str, int]],
        context: OverflowContext,
    ) -> SagaProgress:
        """Return the progress with the segment replaced by a copy that expires at the right time.

        An index segment is replaced by the segments that it lists.
        """
        key, document = await self._read(state, segment)
        content = _decode_segment(key, document)
        if segment.level:
            p = overflow.open_index(p, segment, content)
        else:
            in_inbox = segment.kind == "inbox"
            until = context.now_s + context.retention_s if in_inbox else overflow.compute_expiry(p, context)
            p, new = overflow.copy_segment(p, segment, content, until)
            await self._insert_segment(state, new)
        emptied.append((key, document.cas))
        return p

    async def restore_results(self, state: ProcessingState, p: SagaProgress) -> SagaProgress:
        """Return the progress with all results from its segments. Raises `Superseded`."""
        while (segment := next((s for s in p.segments if s.kind == "results"), None)) is not None:
            key, document = await self._read(state, segment)
            p = overflow.restore(p, segment, _decode_segment(key, document))
        return p

    async def remove_segments(self, emptied: Sequence[tuple[str, int]]) -> None:
        """Remove segments that no progress lists any more. If this fails, the segment stays and does no harm."""
        for key, cas in emptied:
            with suppress(StoreError):
                await self.service.ports.store.remove(ARCHIVES, key, cas=cas)

    async def _insert_segment(self, state: ProcessingState, new: NewSegment) -> None:
        """Insert a segment, and return when it is durable. Raises `Superseded`."""
        ports, saga = self.service.ports, state.message.saga
        expiry_s = None
        if new.segment.expires:
            left_s = new.segment.expires - certain_now_s(state.message, ports.clock.now_ms())
            expiry_s = (
                min(max(0, left_s), max(self.service.retention_s + overflow.YEAR_S, EXPIRY_S_MAX)) + EXPIRY_S_MORE
            )
        key = overflow.segment_key(self.service.name, saga, new.segment)
        try:
            await retry_while_unavailable(
                self.service,
                state.position,
                "page",
                ports.store.insert,
                ARCHIVES,
                key,
                new.content,
                expiry_s=expiry_s,
            )
        except Exists:  # from an earlier attempt: its content is the same, because its name contains the digest
            pass
        except Ambiguous as why:
            report_refused_write(self.service, saga, "archive", why)
            raise Superseded from why
        if overflow.has_entries(new.segment):
            ports.overflow_cache.learn(key, overflow.decode_segment(new.content).entries)

    async def _entries_of(self, state: ProcessingState, segment: OverflowSegment) -> bytes:
        """Return the inbox entries of a segment. Raises `Superseded` if the progress has changed meanwhile."""
        ports, saga = self.service.ports, state.message.saga
        key = overflow.segment_key(self.service.name, saga, segment)
        entries = ports.overflow_cache.entries_of(key)
        if entries is not None:
            return entries
        document = await retry_while_unavailable(self.service, state.position, "get", ports.store.get, ARCHIVES, key)
        if document is not None:
            entries = _decode_segment(key, document).entries
        elif segment.is_forgotten(ports.clock.now_ms() // 1000):
            entries = b""  # expired, and all of its entries with it
        else:
            raise await self._missing(state, key)
        ports.overflow_cache.learn(key, entries)
        return entries

    async def _read(self, state: ProcessingState, segment: OverflowSegment) -> tuple[str, Document]:
        """Return a segment's key and document. Raises `Superseded` if the progress has changed meanwhile."""
        ports, key = self.service.ports, overflow.segment_key(self.service.name, state.message.saga, segment)
        document = await retry_while_unavailable(self.service, state.position, "get", ports.store.get, ARCHIVES, key)
        if document is None:
            raise await self._missing(state, key)
        return key, document

    async def _missing(self, state: ProcessingState, key: str) -> Exception | Superseded:
        """Return why a listed segment is missing: the progress has changed, or the segment was removed by hand."""
        where = progress_key(self.service.name, state.message.saga)
        there = await retry_while_unavailable(
            self.service, state.position, "get", self.service.ports.store.get, PROGRESS, where
        )
        if there is None or there.cas != state.cas:
            return Superseded()
        return StoreError(
            f"the progress {where!r} lists the page {key!r}, which is not in {ARCHIVES!r}: "
            "it was removed by hand; restore it"
        )

    # ---------------------------------------------------------------- claim checks

    async def store_claim(self, state: ProcessingState, call: StepRecord) -> StepRecord:
        """Store a large step result in a document of its own, and return the record without the value."""
        content = bytes(call.value)
        claim, saga, at = digest_content(content), state.message.saga, state.position
        key, ports = claim_key(self.service.name, saga, claim), self.service.ports
        while True:
            try:
                # Like archives, it does not expire: archived transitions may refer to it.
                await retry_while_unavailable(self.service, at, "claim", ports.store.insert, ARCHIVES, key, content)
            except Exists:  # its content is the same, because its name is the digest
                break
            except Ambiguous as why:  # it may be stored: writing the same again does no harm
                report_refused_write(self.service, saga, "archive", why)
                await ports.assignment.pause(WAIT_S_FIRST, at)
            else:
                break
        return replace(call, value=Raw(b"null"), claim=claim)

    async def load_claim(self, state: ProcessingState, call: StepRecord) -> StepRecord:
        """Return the record with its value. Raises `StoreError` if the claim check is gone or was changed."""
        key = claim_key(self.service.name, state.message.saga, call.claim)
        document = await retry_while_unavailable(
            self.service, state.position, "get", self.service.ports.store.get, ARCHIVES, key
        )
        if document is None:
            raise StoreError(
                f"the result of {call.name} is stored in {key!r}, which is not in {ARCHIVES!r}: "
                "it was removed by hand; restore it"
            )
        if digest_content(document.content) != call.claim:
            raise StoreError(
                f"the result of {call.name}, {key!r} in {ARCHIVES!r}, was changed since it was written; restore it"
            )
        return replace(call, value=Raw(document.content))


def _decode_segment(key: str, document: Document) -> SegmentDocument:
    if key.rpartition("-")[2] != overflow.digest_content(document.content):
        raise StoreError(f"the page {key!r} in {ARCHIVES!r} was changed since it was written; restore it")
    try:
        return overflow.decode_segment(document.content)
    except UNREADABLE as why:
        raise StoreError(f"the page {key!r} in {ARCHIVES!r} cannot be read: {why}; restore it") from why
