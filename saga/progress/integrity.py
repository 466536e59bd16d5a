"""Digests that bind a progress to its saga and its snapshot to its transitions, so that a change by hand is found.
Pure functions.

The chain of hashes begins with service and saga, so a history cannot be copied to another saga or service.

For each digested field of the snapshot, a transition records the difference that it made to the sum of the digests of
the field's items. So the sums over all transitions must equal the sums of the snapshot, whatever rules led to its
contents: a new rule of handling needs no change here. The cost of a transition depends only on the items that it
changed, however large the snapshot is.

A field that may change without a transition cannot be digested: `UNDIGESTED_FIELDS` lists these fields, with what is
checked instead. The results are for people who check histories: no decision reads them.
"""

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import pairwise, product, takewhile
from operator import attrgetter

from msgspec import structs

from saga.progress.document import (
    CLAIMED,
    RELEASED,
    CompensableResult,
    Intent,
    SagaProgress,
    SelfConsumedEvent,
    Transition,
    build_messages,
    compute_format,
    encode,
)

_ATTRIBUTES = {field.encode_name: field.name for field in structs.fields(SagaProgress)}
"""Attribute of a progress for each name in its JSON. Digests and findings have the names of the JSON."""
_SELDOM = ("queue", "waiting", "compensating", "deadlines", "later", "closed", "failed", "replays")
_seldom = attrgetter(*map(_ATTRIBUTES.__getitem__, _SELDOM))
DIGESTED_FIELDS = ("inbox", "ran", "results", "outcome", *_SELDOM)
"""The fields that only transitions change. For the inbox, the digests cover the entries but not their times, and not
the entries with time 0, which are made when a version consumes more of its own events: see `saga.progress.takeover`.
For results they do not cover the ids of self-consumed events, for the same reason."""
UNDIGESTED_FIELDS = {
    "service": "the first transition names it",
    "saga": "the first transition names it",
    "format": "overflow segments, deadlines, suspended runs, and versions of state and handlers determine it",
    "started": "the first transition holds it, or the one that brought it, unless an intent did",
    "principal": "the transition that brought it holds it, unless an intent did; an older toolkit leaves it out",
    "state": "the transitions hold all changes of it",
    "version": "each transition holds it",
    "own": "each is an event of some transition; a missing one looks like one that was withdrawn",
    "heard": "nothing: it depends on the version of the service that wrote last",
    "intents": "they are written between transitions: only what contradicts these is found",
    "n": "it is counted",
    "pages": "their contents count as contents of the snapshot",
    "wake": "the last transition that set a timer holds it",
    "published": "all but the last transition, or all if an intent was written since",
    "told": "nothing: a lower number only makes the service publish transitions again",
    "hash": "it is the last transition's",
    "first": "it is the number of the first transition in the document",
    "transitions": "each holds the hash of the one before it",
}
"""All other names in the JSON of a progress, and what is checked instead."""
NOTHING = "0"
"""The sum for a field that did not change: transitions leave it out."""
MANY = 64
"""Above this number of items, the comparison of a field examines fewer of them: it relies on their order, or on
unchanged items being the same objects."""
_MODULUS = 1 << 64
_ENTRIES = _MODULUS - 59
"""Prime modulus for inbox entries, so that all their digits count. An entry is already a digest and need not be
hashed."""


def get_initial_hash(service: str, saga: str) -> str:
    """Return the start of a history's hash chain: the text that the first transition contains where later ones contain
    the hash of the previous transition.

    >>> get_initial_hash("payment", "order-17")
    'payment|order-17'
    """
    return f"{service}|{saga}"


def digest_changes(
    before: SagaProgress, after: SagaProgress, started: str | None, principal: str | None = None
) -> dict[str, str]:
    """Return the difference of the digest sums for each digested field that differs.

    The result also contains `started`, when the saga began, and `principal`, who began it, if they are new.
    """
    found: dict[str, str] = {}
    # This runs for each transition, and most fields are the same object before and after: `is` is the cheapest check.
    if after.inbox is not before.inbox and (gained := _sum_inbox_difference(before.inbox, after.inbox)) != NOTHING:
        found["inbox"] = gained
    if (
        after.completed_runs is not before.completed_runs
        and (gained := _sum_difference(before.completed_runs, after.completed_runs)) != NOTHING
    ):
        found["ran"] = gained
    if after.results is not before.results and (gained := _sum_difference(before.results, after.results)) != NOTHING:
        found["results"] = gained
    if after.outcome is not before.outcome and (gained := _sum_field_difference("outcome", before, after)) != NOTHING:
        found["outcome"] = gained
    old, new = _seldom(before), _seldom(after)
    if old != new:
        for name, had, has in zip(_SELDOM, old, new, strict=True):
            if has is not had and (gained := _sum_difference(_items(had), _items(has))) != NOTHING:
                found[name] = gained
    if before.segments is not after.segments:
        _add_segments(found, before, after)
    if started is not None and (before.n == 0 or before.started is None):
        found["started"] = started
    if principal is not None and (before.n == 0 or before.principal is None):
        found["principal"] = principal
    return found


def _add_segments(found: dict[str, str], before: SagaProgress, after: SagaProgress) -> None:
    """Add what segments contribute to each field's difference, so that moving items to a segment does not change a
    field's sum."""
    for name in ("inbox", "queue", "waiting", "results"):
        gained = format_sum(
            _sum_segments(after, name) - _sum_segments(before, name) + int(found.pop(name, NOTHING), 16)
        )
        if gained != NOTHING:
            found[name] = gained


def _sum_segments(p: SagaProgress, name: str) -> int:
    """Return the sum of the digests of a field's items that are in segments."""
    return sum(int(page.items_digest, 16) for page in p.segments if page.kind == name)


def sum_digests(items: Iterable[object]) -> str:
    """Return the sum of the digests of these items."""
    return format_sum(sum(map(_digest, items)))


def sum_entry_digests(entries: Iterable[str]) -> str:
    """Return the sum of the digests of these inbox entries."""
    return format_sum(sum(map(_entry_digest, entries)))


def update_format(p: SagaProgress) -> SagaProgress:
    """Return the progress with the format that fits its intents and results, so that older versions of the toolkit
    refuse what they would misread.

    The format is `RELEASED` if `_is_released` returns True, and at least `CLAIMED` if an open run has answers in claim
    checks.
    """
    claimed = any(call.claim for intent in p.intents for call in intent.calls)
    if _is_released(p):
        format_ = RELEASED
    elif claimed or p.format == CLAIMED:
        format_ = max(CLAIMED, compute_format(p.segments, p.deadlines, p.suspended_runs, p.version))
    elif p.format == RELEASED:
        format_ = compute_format(p.segments, p.deadlines, p.suspended_runs, p.version)
    else:
        return p
    return p if p.format == format_ else structs.replace(p, format=format_)


def may_affect_format(intents: Sequence[Intent]) -> bool:
    """Return False if these open intents cannot change the format.

    This check is cheap and holds for most runs, because most intents have no answer yet.
    """
    first = intents[0]
    goes_another_way = first.begins is not None and bool(first.begins.instead)
    return len(intents) > 1 or bool(first.calls) or first.handler_version > 1 or goes_another_way


def _is_released(p: SagaProgress) -> bool:
    """Return True if the progress needs format `RELEASED`, because older versions of the toolkit would misread it: a
    run was started under handler version 2 or later, an open run's unanswered call is a fallback, or a result stores
    messages that its handler consumed."""
    begun = any(i.handler_version > 1 for i in p.intents) or any(c.handler_version > 1 for c in p.suspended_runs)
    # In a progress that was changed by hand, `begins` may be of any type.
    another_way = any(getattr(i.begins, "instead", "") for i in p.intents)
    return begun or another_way or any(result.consumed for result in p.results)


def has_digests(entries: Sequence[Transition]) -> bool:
    """Return True if every transition records its changes. Older versions of the toolkit wrote transitions without
    them."""
    return not entries or (entries[0].previous != "" and all(entry.changes for entry in entries))


def find_mismatches(p: SagaProgress, entries: Sequence[Transition]) -> list[str]:
    """Return the fields of a progress that differ from the sum of all its transitions. The state is checked by
    `saga.progress.history.verify_history`."""
    found = list(_find_contradictions(p, entries))
    if has_digests(entries):
        found += [name for name in DIGESTED_FIELDS if _sum_field(name, p) != _sum_transitions(name, entries)]
        if p.started != next((e.changes["started"] for e in entries if "started" in e.changes), p.started):
            found.append("started")
        changes = next((e.changes for e in entries if not e.changes.keys().isdisjoint(("started", "principal"))), None)
        if changes is not None and p.principal not in (None, changes.get("principal")):
            found.append("principal")
    return sorted(set(found))


def _sum_field(name: str, p: SagaProgress) -> int:
    """Return the sum of the digests of a field's items, including those in segments."""
    value = getattr(p, _ATTRIBUTES[name])
    digests = map(_entry_digest, filter(value.get, value)) if name == "inbox" else map(_digest, _items(value))
    return (sum(digests) + _sum_segments(p, name)) % _MODULUS


def _sum_transitions(name: str, entries: Iterable[Transition]) -> int:
    return sum(int(entry.changes[name], 16) for entry in entries if name in entry.changes) % _MODULUS


def _sum_field_difference(name: str, before: SagaProgress, after: SagaProgress) -> str:
    return _sum_difference(_items(getattr(before, name)), _items(getattr(after, name)))


def _sum_difference(before: tuple[object, ...], after: tuple[object, ...]) -> str:
    """Return the sum of the digests of items only in `after`, minus the sum for items only in `before`."""
    count = len(before)
    if not count or after[:count] == before:  # most changes are at the end
        if len(after) == count + 1:  # usually one item was added: its digest is the sum
            return _hash(after[count]).hexdigest()
        return format_sum(sum(map(_digest, after[count:])))
    if count == 1 == len(after):  # the head of a queue with another time, say
        return format_sum(_digest(after[0]) - _digest(before[0]))
    first = _count_common_prefix(before, after)
    before, after = before[first:][::-1], after[first:][::-1]
    last = _count_common_prefix(before, after)
    before, after = before[last:], after[last:]
    if len(before) > MANY:  # items were removed and added: unchanged items are the same objects, each in the field once
        there, left = set(map(id, before)), set(map(id, after))
        before = tuple([item for item in before if id(item) not in left])
        after = tuple([item for item in after if id(item) not in there])
    return format_sum(sum(map(_digest, after)) - sum(map(_digest, before)))


def format_sum(sum_: int) -> str:
    """Format a sum of digests for the store. Sums from older versions begin with `0x`; `int` reads both."""
    return hex(sum_ % _MODULUS)[2:]


def _items(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,) if value else ()


def _count_common_prefix(old: tuple[object, ...], new: tuple[object, ...]) -> int:
    """Return the length of the common prefix. This is a binary search, because comparing slices needs no loop in
    Python."""
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


def _sum_inbox_difference(old: dict[str, int], new: dict[str, int]) -> str:
    """Return the sum of the digests of entries added to an inbox, minus the sum for removed entries."""
    count = len(old)
    if len(new) == count + 1 and (
        not count or (count <= MANY and old.keys() <= new.keys())
    ):  # the usual case: one entry was added
        newest, time = next(reversed(new.items()))
        if newest not in old:
            return hex(_entry_digest(newest))[2:] if time else NOTHING
    if count > MANY:  # the newest are the last
        added = list(takewhile(lambda key: key not in old, reversed(new)))
        if count + len(added) == len(new):
            return format_sum(sum(map(_entry_digest, filter(new.get, added))))
    came, went = new.keys() - old.keys(), old.keys() - new.keys()
    return format_sum(sum(map(_entry_digest, filter(new.get, came))) - sum(map(_entry_digest, filter(old.get, went))))


def _entry_digest(entry: str) -> int:
    try:
        return int(entry, 16) % _ENTRIES
    except ValueError:  # not an entry that the toolkit wrote
        return _digest(entry)


def _digest(item: object) -> int:
    return int.from_bytes(_hash(item).digest())


def _hash(item: object) -> blake2b:
    if type(item) is CompensableResult and item.self_consumed_ids:
        item = structs.replace(item, self_consumed_ids=())
    return blake2b(encode(item), digest_size=8)


# -------------------------------------------------------------------- checks without digests


def _find_contradictions(p: SagaProgress, entries: Sequence[Transition]) -> Iterable[str]:
    """Yield the fields that contradict the transitions, or each other."""
    calls = [call for i in p.intents for call in i.calls] + [call for entry in entries for call in entry.calls]
    claimed = any(call.claim for call in calls)
    plain = compute_format(p.segments, p.deadlines, p.suspended_runs, p.version)
    if p.format != (RELEASED if _is_released(p) else plain) and not (claimed and p.format == CLAIMED):
        yield "format"
    yield from _find_wrong_numbers(p, entries)
    if not p.n and any(p.started != intent.message.started for intent in p.intents):
        yield "started"
    if not p.n and p.principal is not None and any(p.principal != intent.message.principal for intent in p.intents):
        yield "principal"
    if p.published == p.n and p.n and not p.intents:  # only a write that begins a run sets `published` to `n`
        yield "intents"
    if p.timer is not None and p.timer != next((entry.timer for entry in reversed(entries) if entry.timer), None):
        yield "wake"
    if p.self_consumed and not _restore_original(p.self_consumed) <= set(_iterate_own_events(p, entries)):
        yield "own"
    if any(i.message.saga != p.saga or (i.kind == "do" and i.handler in p.closed) for i in p.intents):
        yield "intents"
    if not _were_states_reached(p, entries):
        yield "intents"
    queue = p.queue[1:] if p.replays else p.queue  # a dead letter goes to the head, and stays there when it is replayed
    if any(not a.dead and (b.dead or a.n > b.n) for a, b in pairwise(queue)):
        yield "queue"
    for name in ("waiting", "compensating", "deadlines", "later"):
        if any(a.n > b.n for a, b in pairwise(getattr(p, _ATTRIBUTES[name]))):
            yield name
    order = {e.id: (entry.n, i) for entry in entries for i, e in enumerate(entry.events)}
    places = [order.get(result.event.id) for result in p.results]
    if None in places or any(a > b for a, b in pairwise(filter(None, places))):
        yield "results"
    if any(not set(result.self_consumed_ids) <= order.keys() for result in p.results):
        yield "results"


def _find_wrong_numbers(p: SagaProgress, entries: Sequence[Transition]) -> Iterable[str]:
    """Yield the numeric fields that contradict the transitions."""
    if p.first != max(p.n - len(p.transitions), 0):
        yield "first"
    if p.published != p.n and not (p.published == p.n - 1 and p.n):
        yield "published"
    if entries and (p.version != entries[-1].version or any(a.version > b.version for a, b in pairwise(entries))):
        yield "version"


def _were_states_reached(p: SagaProgress, entries: Sequence[Transition]) -> bool:
    """Return True if the saga once had the state that each open intent was given."""
    left = [(intent.version, intent.state) for intent in p.intents]
    version, state = entries[0].version if entries else p.version, dict[str, object]()
    left = [given for given in left if given != (version, state)]
    for entry in entries:
        if not left:
            break
        if entry.delta or entry.version > version:
            state = dict(entry.delta) if entry.version > version else state | entry.delta
            version = entry.version
            left = [given for given in left if given != (version, state)]
    return not left


def _restore_original(own: Iterable[SelfConsumedEvent]) -> set[SelfConsumedEvent]:
    """Return the self-consumed events as they were before any of them moved to a segment."""
    return {structs.replace(o, only=()) for o in own}


def _iterate_own_events(p: SagaProgress, entries: Sequence[Transition]) -> Iterable[SelfConsumedEvent]:
    """Yield the events of transitions as self-consumed events.

    A deadline may emit events while the start and the principal of the saga are still unknown, so these events lack
    them. If an intent was the first write that contained them, no transition shows when they became known. So each
    event is yielded with and without each of the two.
    """
    for started, principal in product({p.started, None}, {p.principal, None}):
        known = structs.replace(p, started=started, principal=principal)
        for entry in entries:
            for event in build_messages(known, entry):
                yield SelfConsumedEvent(event=event, n=entry.n)
