"""Digests that bind a progress to its saga and its snapshot to its transitions: a change by hand is found. Pure.

The chain of hashes begins with a digest of service and saga: a history in the place of another one is no history.
Each transition holds, for each bound field of the snapshot that it changed, the sum of the digests of what came less
the sum of those of what went. So the sums over all transitions are those of what the snapshot has to hold, whatever the
rules are by which it came there: a new rule of handling needs nothing here. A transition costs the digests of what it
changed, however much the snapshot holds.

A field that changes otherwise than by a transition cannot be bound: it stands in `UNBOUND`, with what is looked at
instead. Everything here is for people who look: no decision reads it.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import pairwise, takewhile
from operator import attrgetter

from msgspec import structs

from saga.progress.document import PAGED, PLAIN, Entry, Own, Result, Snapshot, encode, messages_of

BOUND = ("outcome", "inbox", "ran", "closed", "failed", "results", "queue", "waiting", "compensating", "replays")
"""The fields that only transitions change. Of the inbox only the entries, not their times, and none that was made
because a version takes more of its own events (time 0); of results not which own events go with them: see
`saga.progress.takeover`."""
UNBOUND = {
    "service": "the first transition names it",
    "saga": "the first transition names it",
    "format": "it is what the pages make it",
    "started": "the first transition holds its digest, or the one that brought it, unless an intent did",
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
_bound = attrgetter(*BOUND)


def seed(service: str, saga: str) -> str:
    """The hash that the first transition follows.

    >>> seed("payment", "order-17")[:16]
    'd141f55d0fb84dae'
    """
    return sha256(f"{service}|{saga}".encode()).hexdigest()


def changes(before: Snapshot, after: Snapshot) -> dict[str, str]:
    """For each bound field that differs, the sum of what came less the sum of what went."""
    found = {}
    for name, old, new in zip(BOUND, _bound(before), _bound(after), strict=True):
        if old is not new and (total := _gained(old, new)):
            found[name] = f"{total:016x}"
    if before.pages is not after.pages:
        _add_pages(found, before, after)
    if after.started is not None and (before.started is None or not before.n):
        found["started"] = f"{_digest(after.started):016x}"
    return found


def _add_pages(found: dict[str, str], before: Snapshot, after: Snapshot) -> None:
    """Add to the sums what pages that came or went hold: to put something aside changes nothing as a whole."""
    for name in ("inbox", "queue", "waiting"):
        total = _paged(after, name) - _paged(before, name) + int(found.pop(name, "0"), 16)
        if total % _MODULUS:
            found[name] = f"{total % _MODULUS:016x}"


def _paged(p: Snapshot, name: str) -> int:
    """Sum of the digests of a field's items that are in pages."""
    return sum(int(page.bound, 16) for page in p.pages if page.of == name)


def bound_items(items: Iterable[object]) -> str:
    """Sum of the digests of these items."""
    return f"{sum(map(_digest, items)) % _MODULUS:016x}"


def is_bound(entries: Sequence[Entry]) -> bool:
    """True if every transition says what it changed: an older version of the toolkit wrote none of it."""
    return not entries or (entries[0].previous != "" and all(entry.changes for entry in entries))


def differing(p: Snapshot, entries: Sequence[Entry]) -> list[str]:
    """The fields of a snapshot that are not what all its transitions make of it. The state is for whoever folds it."""
    found = list(_unbound(p, entries))
    if is_bound(entries):
        empty = Snapshot(service=p.service, saga=p.saga)
        found += [name for name in BOUND if _held(name, empty, p) != _total(name, entries)]
        told = _total("started", entries)
        if told and (p.started is None or _digest(p.started) != told):
            found.append("started")
    return sorted(set(found))


def _held(name: str, empty: Snapshot, p: Snapshot) -> int:
    """Sum of the digests of a field's items, pages that were not read included."""
    return (_gained(getattr(empty, name), getattr(p, name)) + _paged(p, name)) % _MODULUS


def _total(name: str, entries: Iterable[Entry]) -> int:
    return sum(int(entry.changes[name], 16) for entry in entries if name in entry.changes) % _MODULUS


def _gained(old: object, new: object) -> int:
    """The digests of what is in `new` only, less those of what is in `old` only."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _gained_keys(old, new)
    before, after = _items(old), _items(new)
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
    """How many items they have in common from their beginning. Slices are compared, for that needs no loop of ours."""
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
    if len(new) == len(old) + 1 and newest not in old and (len(old) > MANY or old.keys() <= new.keys()):
        return _digest(newest) if new[newest] else 0
    if len(old) > MANY:  # the newest are the last
        added = list(takewhile(lambda key: key not in old, reversed(new)))
        if len(old) + len(added) == len(new):
            return sum(map(_digest, added)) % _MODULUS
    came, went = new.keys() - old.keys(), old.keys() - new.keys()
    gained = sum(_digest(key) for key in came if new[key]) - sum(_digest(key) for key in went if old[key])
    return gained % _MODULUS


def _digest(item: object) -> int:
    if isinstance(item, Result) and item.own:
        item = structs.replace(item, own=())
    return int.from_bytes(sha256(encode(item)).digest()[:8])


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
    if any(not a.dead and (b.dead or a.n > b.n) for a, b in pairwise(p.queue)):  # a dead letter goes to the head
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
