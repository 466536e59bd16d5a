"""The history of one saga in one service: its last progress, and every transition that was ever written.

A progress expires; a message that a client publishes anew after that begins another one. Each is a life of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec
from msgspec import Raw, Struct

from saga.engine.prepared_service import PreparedService
from saga.progress import history
from saga.progress.document import IntentKind, SagaProgress, StepRecord, Transition, decode_progress, decode_transition
from saga.progress.history import decode_archive, fold_state, verify_history
from saga.progress.overflow import is_archive, restore_all
from saga.support.clock import from_iso


class Begun(Struct, frozen=True, gc=False):
    """Part of an intent: the run that it is of, and the calls of that run."""

    handler: str
    kind: IntentKind
    cause: str
    begins: StepRecord | None = None
    calls: tuple[StepRecord, ...] = ()
    undo_with: tuple[Raw, ...] = ()


class Head(Struct, frozen=True, gc=False):
    """Part of a version: its place in the history, and what is under way."""

    n: int = 0
    hash: str = ""
    published: int = 0
    first: int = 0
    intents: tuple[Begun, ...] = ()


_head = msgspec.json.Decoder(Head)


@dataclass(frozen=True, slots=True)
class ProgressLife:
    """Everything known of one progress, from its first write to its last."""

    service: PreparedService
    p: SagaProgress
    """The last version."""
    raws: tuple[Raw, ...]
    """Every transition, archived ones with them."""
    entries: tuple[Transition, ...]
    heads: tuple[Head, ...]
    """Heads of all versions, oldest first."""

    @property
    def times(self) -> list[int]:
        """Times at which transitions and open intents were written."""
        return [from_iso(time) for time in (*(t.time for t in self.entries), *(i.time for i in self.p.intents)) if time]


def lives_of(
    service: PreparedService, contents: Sequence[bytes], archives: Sequence[tuple[str, bytes]]
) -> list[ProgressLife]:
    """Lives of a progress, oldest first. Raises `SagaError` and `msgspec.DecodeError` for content that is no
    progress."""
    lives = []
    for heads, versions in parted(contents):
        p = restore_all(decode_progress(versions[-1]), dict(archives))
        raws = (*_archived(p, archives), *p.transitions) if p.first else p.transitions
        lives.append(ProgressLife(service, p, raws, tuple(map(decode_transition, raws)), heads))
    return lives


def parted(contents: Sequence[bytes]) -> Iterator[tuple[tuple[Head, ...], Sequence[bytes]]]:
    """Versions of each life, as heads and as they are: a life begins where the count falls, or stays and its hash is
    another one. Raises `msgspec.DecodeError`."""
    heads: list[Head] = []
    first = 0
    for i, content in enumerate(contents):
        head = _head.decode(content)
        if heads and (head.n < heads[-1].n or (head.n == heads[-1].n and head.hash != heads[-1].hash)):
            yield tuple(heads), contents[first:i]
            heads, first = [], i
        heads.append(head)
    if heads:
        yield tuple(heads), contents[first:]


def _archived(p: SagaProgress, archives: Sequence[tuple[str, bytes]]) -> list[Raw]:
    """Transitions before those that the progress holds, as far as they are there."""
    there = {}
    for key, content in archives:
        if not is_archive(key):
            continue
        archive = decode_archive(content)
        if archive.first < p.first:
            there[archive.first] = archive.transitions
    found: list[Raw] = []
    while len(found) < p.first and (transitions := there.pop(len(found), ())):
        found += transitions
    return found


def broken_chain(life: ProgressLife) -> str | None:
    """Fault in the chain of hashes, in the state that the transitions make, or in an older version."""
    found = verify_history(life.raws, life.p)
    if found is not None:
        return f"HISTORY {found.what}"
    hashes = ("", *(entry.previous for entry in life.entries[1:]), life.p.hash)
    for head in life.heads:
        if head.n >= len(hashes) or hashes[head.n] != head.hash:
            return f"REWRITTEN: a version with {head.n} transitions is not a part of what followed"
    return None


def out_of_bounds(life: ProgressLife) -> str | None:
    """Fault in the bounds of a progress: a writer has published all before, says so, and archives what is too much."""
    for head in life.heads:
        if head.n - head.published > 1:
            return f"OUT OF BOUNDS: a version with {head.n} transitions has only {head.published} marked as published"
        if head.n - head.first > history.TRANSITIONS_MAX:
            return f"OUT OF BOUNDS: {head.n - head.first} transitions were in one document"
    return None


def unsound_chain(p: SagaProgress, entries: Sequence[Transition]) -> str | None:
    """Fault that `broken_chain` would find, of a progress by itself, whose oldest transitions may be archived."""
    if not p.first:
        found = verify_history(p.transitions, p)
        return f"HISTORY {found.what}" if found is not None else None
    for before, entry in zip(p.transitions, entries[1:], strict=False):
        if entry.previous != sha256(bytes(before)).hexdigest():
            return f"HISTORY transition {entry.n} does not follow what is before it"
    if p.transitions and sha256(bytes(p.transitions[-1])).hexdigest() != p.hash:
        return f"HISTORY transition {p.n - 1} was changed"
    different = [name for name, value in fold_state(entries).items() if p.state.get(name) != value]
    return f"HISTORY the transitions make other values of {different} of the state" if different else None


def again_too_soon(before: ProgressLife, after: ProgressLife) -> str | None:
    """Fault of a life that begins although the one before it cannot have expired: somebody wrote over it."""
    if before.p.is_open:
        return f"WRITTEN OVER: {before.p.n} transitions with something open were replaced"
    gone_ms = min(after.times, default=0) - max(before.times, default=0)
    # Half of the memory: clocks of workers and store may differ, and whoever writes over something does it at once.
    if gone_ms < before.service.retention_s * 500:
        return f"WRITTEN OVER: {before.p.n} transitions were replaced {gone_ms} ms after the last"
    return None
