"""Read the transitions: to publish unpublished events, and for audits, replays and archives. Pure functions."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from saga.messages import Position
from saga.progress import integrity
from saga.progress.document import UNREADABLE, SagaProgress, Transition, decode_transition

TRANSITIONS_MAX = 64
"""With more transitions than this in a progress, the oldest published ones are archived."""
TRANSITIONS_KEPT = 16
"""Number of transitions that stay in the progress then, so that it shows its recent history."""
HISTORY_BYTES_MAX = 256 * 1024
"""With more bytes of transitions than this, the oldest published ones are archived, until half of this size is left."""


def find_unpublished(p: SagaProgress, is_committed: Callable[[Position], bool], current: str) -> Iterator[Transition]:
    """Yield the transitions whose events are not known to be published, oldest first.

    Transitions whose message is committed are left out, because a worker publishes before it commits. A timer counts as
    an event, unless it is the one being processed (`current`): otherwise each timer would cause another one.
    """
    for raw in p.transitions[max(0, p.published - p.first) :]:
        entry = decode_transition(raw)
        says = entry.events or entry.letters or (entry.timer is not None and entry.timer.id != current)
        if says and not (entry.position and is_committed(Position(*entry.position, entry.log_id))):
            yield entry


class TransitionArchive(Struct, frozen=True, kw_only=True, gc=False):
    """Old transitions of a progress, in a document of their own that never changes."""

    service: str
    saga: str
    first: int
    transitions: tuple[Raw, ...]


def decode_archive(content: bytes) -> TransitionArchive:
    """Decode an archive as read from a store."""
    return msgspec.json.decode(content, type=TransitionArchive)


def build_archive(p: SagaProgress) -> TransitionArchive | None:
    """Return an archive of the oldest published transitions, if there are too many in the progress or they are too
    large."""
    sizes = [len(memoryview(raw)) for raw in p.transitions]
    count = len(sizes) - TRANSITIONS_KEPT if len(sizes) > TRANSITIONS_MAX else 0
    if sum(sizes) > HISTORY_BYTES_MAX:
        count, left = max(count, 0), sum(sizes[max(count, 0) :])
        while left > HISTORY_BYTES_MAX // 2:
            left -= sizes[count]
            count += 1
    count = min(count, p.published - p.first)
    if count <= 0:
        return None
    return TransitionArchive(service=p.service, saga=p.saga, first=p.first, transitions=p.transitions[:count])


def is_of_another_saga(p: SagaProgress, archive: TransitionArchive) -> bool:
    """Return True if this archive, which begins with the same transition number as the progress, belongs to an earlier
    saga with the same id."""
    assert archive.first == p.first
    return p.transitions[:1] != archive.transitions[:1]


def remove_archived(p: SagaProgress, archive: TransitionArchive) -> SagaProgress:
    """Return the progress without the transitions that the archive contains."""
    assert archive.first == p.first
    count = len(archive.transitions)
    assert p.transitions[:count] == archive.transitions
    return replace(p, first=p.first + count, transitions=p.transitions[count:])


def archive_key(service: str, saga: str, first: int) -> str:
    """Return the key of an archive in collection `saga-archive`."""
    return f"{service}::{saga}::{first:09}"


def fold_state(entries: Iterable[Transition], before: int | None = None) -> dict[str, Any]:
    """Compute the state from the deltas of all transitions, or of those below the number `before`.

    The first transition with a new version of the state contains the whole state.
    """
    state: dict[str, Any] = {}
    version = 0
    for entry in entries:
        if before is not None and entry.n >= before:
            break
        state = dict(entry.delta) if entry.version > version else state | entry.delta
        version = entry.version
    return state


@dataclass(frozen=True, slots=True)
class HistoryDefect:
    """A place where a history differs from what was written."""

    n: int
    what: str


def verify_history(transitions: Sequence[Raw], p: SagaProgress) -> HistoryDefect | None:
    """Return the first place where a complete history differs from what was written; `None` if there is none.

    The hashes of the transitions are checked as a chain that begins with service and saga, and the progress is compared
    with the sums of the transitions' changes. Older versions of the toolkit wrote neither: see
    `saga.progress.integrity.has_digests`.
    """
    seed = integrity.get_initial_hash(p.service, p.saga)
    previous, entries = seed, list[Transition]()
    for n, raw in enumerate(transitions):
        try:
            entry = decode_transition(raw)
        except UNREADABLE as why:
            return HistoryDefect(n, f"transition {n} cannot be read: {why}")
        if entry.n != n:
            return HistoryDefect(n, f"transition {n} is missing: {entry.n} follows")
        if entry.previous != previous and (n or entry.previous):
            return HistoryDefect(n, _does_not_follow(n, p))
        previous = sha256(bytes(raw)).hexdigest()
        entries.append(entry)
    if len(transitions) != p.n:
        return HistoryDefect(len(transitions), f"{p.n} transitions were written, {len(transitions)} are there")
    if (previous if p.n else "") != p.hash:
        return HistoryDefect(
            max(p.n - 1, 0), f"transition {p.n - 1} was changed" if p.n else "there is a hash of nothing"
        )
    if fold_state(entries) != p.state:
        return HistoryDefect(p.n, "the state is not what the transitions make of it")
    differing = integrity.find_mismatches(p, entries)
    if differing:
        return HistoryDefect(p.n, f"not what the transitions make of it, in the snapshot: {', '.join(differing)}")
    return None


def _does_not_follow(n: int, p: SagaProgress) -> str:
    if n:
        return f"transition {n} does not follow what is before it: something there was changed"
    return f"transition 0 was not written for saga {p.saga} in {p.service}: this is the history of another one"
