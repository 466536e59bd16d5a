"""Digests that bind a progress to its saga and its snapshot to its transitions: a change by hand is found. Pure.

The chain of hashes begins with service and saga: a history in the place of another one is no history.
Each transition holds, for each bound field of the snapshot that it changed, the sum of the digests of what came less
the sum of those of what went. So the sums over all transitions are those of what the snapshot has to hold, whatever the
rules are by which it came there: a new rule of handling needs nothing here. A transition costs the digests of what it
changed, however much the snapshot holds.

A field that changes otherwise than by a transition cannot be bound: it stands in `UNBOUND`, with what is looked at
instead. Everything here is for people who look: no decision reads it.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress, pairwise, takewhile
from operator import attrgetter, is_not
from typing import Any

from msgspec import structs

from saga.progress.document import PAGED, PLAIN, Entry, Own, Result, Snapshot, encode, messages_of

BOUND = ("outcome", "inbox", "ran", "closed", "failed", "results", "queue", "waiting", "compensating", "replays")
"""The fields that only transitions change. Of the inbox only the entries, not their times, and none that was made
because a version takes more of its own events (time 0); of results not which own events go with them: see
`saga.progress.takeover`."""
_bound = attrgetter(*BOUND)
UNBOUND = {
    "service": "the first transition names it",
    "saga": "the first transition names it",
    "format": "it is what the pages make it",
    "started": "the first transition holds it, or the one that brought it, unless an intent did",
    "state": "the transitions hold all changes of it",
    "own": "each is an event of some transition; one that is missing cannot be told from one that was withdrawn",
    "heard": "nothing: what the version takes that wrote last",
    "intents": "they are written between transitions: only what contradicts these is found",
    "n": "it is counted",
    "pages": "what they hold counts as if it stood in the snapshot",
    "published": "all but the last transition, or all if an intent was written since",
    "hash": "it is the last transition's",
    "first": "it is the number of the first transition in the document",
    "transitions": "each holds the hash of the one before it",
}
"""Every other field of a snapshot, and what is looked at instead."""
MANY = 64
"""With more items than this, an order is relied on, or that the same item is the same object, to look at fewer."""
_MODULUS = 1 << 64
_ENTRIES = _MODULUS - 59
"""A prime: all digits of an inbox entry count, which is a digest already."""


def seed(service: str, saga: str) -> str:
    """Text in the place of a hash before the first transition.

    >>> seed("payment", "order-17")
    'payment|order-17'
    """
    return f"{service}|{saga}"


def changes(before: Snapshot, after: Snapshot, started: str | None) -> dict[str, str]:
    """For each bound field that differs, the sum of what came less the sum of what went; and when the saga began,
    `started`, where that is new."""
    sums: dict[str, int] = {}
    old, new = _bound(before), _bound(after)
    differ = map(is_not, old, new)  # by far the most are the same object
    for name, was, now in compress(zip(BOUND, old, new, strict=True), differ):
        sums[name] = _gained_keys(was, now) if name == "inbox" else _gained(was, now)
    if before.pages is not after.pages:
        _add_pages(sums, before, after)
    found = dict(zip(sums, map(hex, sums.values()), strict=True))
    if 0 in sums.values():
        found = {name: found[name] for name, total in sums.items() if total}
    if (before.n == 0 or before.started is None) and started is not None:
        found["started"] = started
    return found


def _add_pages(sums: dict[str, int], before: Snapshot, after: Snapshot) -> None:
    """Add to the sums what pages that came or went hold: to put something aside changes nothing as a whole."""
    for name in ("inbox", "queue", "waiting"):
        sums[name] = (_paged(after, name) - _paged(before, name) + sums.get(name, 0)) % _MODULUS


def _paged(p: Snapshot, name: str) -> int:
    """Sum of the digests of a field's items that are in pages."""
    return sum(int(page.bound, 16) for page in p.pages if page.of == name)


def bound_items(items: Iterable[object]) -> str:
    """Sum of the digests of these items."""
    return hex(sum(map(_digest, items)) % _MODULUS)


def bound_entries(entries: Iterable[str]) -> str:
    """Sum of the digests of these inbox entries."""
    return hex(sum(map(_entry_digest, entries)) % _MODULUS)


def is_bound(entries: Sequence[Entry]) -> bool:
    """True if every transition says what it changed: an older version of the toolkit wrote none of it."""
    return not entries or (entries[0].previous != "" and all(entry.changes for entry in entries))


def differing(p: Snapshot, entries: Sequence[Entry]) -> list[str]:
    """The fields of a snapshot that are not what all its transitions make of it. The state is for whoever folds it."""
    found = list(_unbound(p, entries))
    if is_bound(entries):
        found += [name for name in BOUND if _held(name, p) != _total(name, entries)]
        if p.started != next((e.changes["started"] for e in entries if "started" in e.changes), p.started):
            found.append("started")
    return sorted(set(found))


def _held(name: str, p: Snapshot) -> int:
    """Sum of the digests of a field's items, pages that were not read included."""
    value = getattr(p, name)
    gained = _gained_keys({}, value) if name == "inbox" else _gained((), value)
    return (gained + _paged(p, name)) % _MODULUS


def _total(name: str, entries: Iterable[Entry]) -> int:
    return sum(int(entry.changes[name], 16) for entry in entries if name in entry.changes) % _MODULUS


def _gained(before: Any, after: Any) -> int:
    """The digests of what is in `after` only, less those of what is in `before` only."""
    if not isinstance(after, tuple):
        before, after = _items(before), _items(after)
    count = len(before)
    if len(after) == count + 1 and after[:count] == before:  # by far the most are one more, at the end
        return _digest(after[count])
    if after[:count] == before:  # most changes are at the end
        return sum(map(_digest, after[count:])) % _MODULUS
    first = _alike(before, after)
    before, after = before[first:][::-1], after[first:][::-1]
    last = _alike(before, after)
    before, after = before[last:], after[last:]
    if len(before) > MANY:  # something went and something else came: what stayed is the same object, and is held once
        there, left = set(map(id, before)), set(map(id, after))
        before = tuple([item for item in before if id(item) not in left])
        after = tuple([item for item in after if id(item) not in there])
    return (sum(map(_digest, after)) - sum(map(_digest, before))) % _MODULUS


def _items(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,) if value else ()


def _alike(old: tuple[object, ...], new: tuple[object, ...]) -> int:
    """Number of items in common from their beginning. Slices are compared: that needs no loop of ours."""
    low, high = 0, min(len(old), len(new))
    if old[:high] == new[:high]:
        return high
    while low < high - 1:
        middle = (low + high) // 2
        if old[low:middle] == new[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _gained_keys(old: dict[str, int], new: dict[str, int]) -> int:
    newest = next(reversed(new), "")
    count = len(old)
    if len(new) == count + 1 and newest not in old and (not count or count > MANY or old.keys() <= new.keys()):
        return _entry_digest(newest) if new[newest] else 0
    if count > MANY:  # the newest are the last
        added = list(takewhile(lambda key: key not in old, reversed(new)))
        if count + len(added) == len(new):
            return sum(map(_entry_digest, added)) % _MODULUS
    came, went = new.keys() - old.keys(), old.keys() - new.keys()
    gained = sum(map(_entry_digest, filter(new.get, came))) - sum(map(_entry_digest, filter(old.get, went)))
    return gained % _MODULUS


def _entry_digest(entry: str) -> int:
    try:
        return int(entry, 16) % _ENTRIES
    except ValueError:  # not as we write it
        return _digest(entry)


def _digest(item: object) -> int:
    if type(item) is Result and item.own:
        item = structs.replace(item, own=())
    return int.from_bytes(blake2b(encode(item), digest_size=8).digest())


# -------------------------------------------------------------------- what no transition holds


def _unbound(p: Snapshot, entries: Sequence[Entry]) -> Iterable[str]:
    """The fields that contradict the transitions, or each other."""
    if p.format != (PAGED if p.pages else PLAIN):
        yield "format"
    if not p.n and any(p.started != intent.message.started for intent in p.intents):
        yield "started"
    if p.first != max(p.n - len(p.transitions), 0):
        yield "first"
    if p.published != p.n and not (p.published == p.n - 1 and p.n):
        yield "published"
    if p.published == p.n and p.n and not p.intents:  # only whoever begins something says so much
        yield "intents"
    if p.own and not set(p.own) <= {own for entry in entries for own in _own(p, entry)}:
        yield "own"
    if any(i.message.saga != p.saga or (i.kind == "do" and i.handler in p.closed) for i in p.intents):
        yield "intents"
    if not _had(p, entries):
        yield "intents"
    queue = p.queue[1:] if p.replays else p.queue  # a dead letter goes to the head, and stays there when it is replayed
    if any(not a.dead and (b.dead or a.n > b.n) for a, b in pairwise(queue)):
        yield "queue"
    for name in ("waiting", "compensating"):
        if any(a.n > b.n for a, b in pairwise(getattr(p, name))):
            yield name
    order = {e.id: (entry.n, i) for entry in entries for i, e in enumerate(entry.events)}
    places = [order.get(result.event.id) for result in p.results]
    if None in places or any(a > b for a, b in pairwise(filter(None, places))):
        yield "results"
    if any(not set(result.own) <= order.keys() for result in p.results):
        yield "results"


def _had(p: Snapshot, entries: Sequence[Entry]) -> bool:
    """True if the saga once was in the state that each open intent was given."""
    left = [intent.state for intent in p.intents]
    state: dict[str, object] = {}
    left = [given for given in left if given != state]
    for entry in entries:
        if not left:
            break
        if entry.delta:
            state |= entry.delta
            left = [given for given in left if given != state]
    return not left


def _own(p: Snapshot, entry: Entry) -> Iterable[Own]:
    """The events of a transition as parts of this service's own handlers."""
    for event in messages_of(p, entry):
        yield Own(event=event, n=entry.n)
