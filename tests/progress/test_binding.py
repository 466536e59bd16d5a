"""Binding of progresses: no honest history is called changed, and every change of a snapshot by hand is found, or the
help of the command says that it is not."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct
from msgspec.structs import fields, replace

from saga.messages import Message
from saga.messaging.names import PROGRESS
from saga.progress import compensation, failed_attempts, integrity, journal, overflow
from saga.progress.actions import RunHandler
from saga.progress.document import (
    CLAIMED,
    CONTINUED,
    PLAIN,
    RELEASED,
    TIMED,
    CompensableResult,
    CompletedRun,
    SagaProgress,
    StepRecord,
    SuspendedRun,
    Transition,
    decode_progress,
    decode_transition,
    encode,
)
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import CompensationRole
from saga.progress.history import fold_state, verify_history
from saga.progress.integrity import DIGESTED_FIELDS, UNDIGESTED_FIELDS, find_mismatches, update_format
from saga.progress.journal import TransitionDetails, WriteContext
from saga.support.clock import iso
from saga.testing.fault_plans import faults
from tests.progress.pieces import NOW_MS, a_message, a_role, an_intent, blank, kept, roles_of
from tests.progress.stored_segments import a_context
from tests.testing.invariants import order_runs
from tests.testing.simulation import orders

NOT_FOUND = {
    ("time of inbox", "alter"),
    ("inbox of time 0", "add"),
    ("own of results", "alter"),
    ("heard", "remove"),
    ("heard", "alter"),
    ("heard", "add"),
    ("own", "remove"),
    ("own", "add"),
    ("intents", "remove"),
    ("intents", "alter"),
    ("intents", "add"),
    ("published", "alter"),
    ("told", "alter"),
    ("principal", "remove"),
}
"""The edits of a field that may be overlooked: `saga sagas verify --help` says so."""
FAILED = frozenset("F")


# ---------------------------------------------------------------- honest histories


@pytest.mark.parametrize("seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 60))])
def test_no_genuine_history_is_reported_as_changed_after_any_worker_faults(seed: int) -> None:
    world, _ = orders.ran(seed, orders.drawn(seed, faults.everything()))
    looked_at = 0
    for disk in world.workers.disks.values():
        for (collection, _), contents in disk.versions.items():
            for p in map(decode_progress, contents if collection == PROGRESS else ()):
                assert verify_history(p.transitions, p) is None
                assert integrity.has_digests([decode_transition(raw) for raw in p.transitions])
                looked_at += 1
    assert looked_at > 60


ATTRIBUTES = {field.encode_name: field.name for field in fields(SagaProgress)}
"""Attribute of a progress for each name in its JSON."""


def test_every_snapshot_field_is_covered_by_the_digest_or_listed_with_a_reason() -> None:
    assert sorted((*DIGESTED_FIELDS, *UNDIGESTED_FIELDS)) == sorted(ATTRIBUTES)


# ---------------------------------------------------------------- changes by hand


async def versions() -> list[SagaProgress]:
    """Every version of every progress of orders that ended in several ways, with one of each sort of thing. Of those
    that say only that one more attempt has failed there are two."""
    ended = [
        await order_runs.a_run(order_runs.an_order(), principal="user:4711"),
        await order_runs.a_run(order_runs.an_order(card="declined"), principal="user:4712"),
        await order_runs.a_run(order_runs.an_order(), carrier=order_runs.BrokenCarrier()),
        await order_runs.a_run(order_runs.an_order(), order_runs.an_order(address="Bonn")),
    ]
    found = [
        decode_progress(content)
        for evidence in ended
        for witnessed in evidence.services.values()
        for contents in witnessed.versions.values()
        for content in contents
    ]
    parked = [p for p in found if p.transitions and decode_transition(p.transitions[-1]).outcome == "retrying"]
    assert len(parked) > 2
    return [*(p for p in found if p not in parked[2:]), *kept_in_every_way()]


def kept_in_every_way() -> Iterator[SagaProgress]:
    """One message is handled. Then a handler has begun and two outcomes wait for its end, with three messages behind
    it; it is given up."""
    role = a_role(
        "reserve", "A", many=True, undo=CompensationRole(name="release", outcomes=FAILED, results=frozenset("R"))
    )
    first, message = a_message("A", "A-0"), a_message("A")
    events = [replace(a_message("R", f"R-{i}"), source="svc", time=iso(NOW_MS)) for i in range(2)]
    delta = {"x": 1, "y": {"z": ["u", None]}}
    ended = TransitionDetails(cause=first.id, message=first, parts=(first,), delta=delta, events=events, attempt=2)
    p = journal.complete_run(blank(), write_context(blank(), first), role, ended).snapshot
    yield p
    intent = replace(an_intent("reserve", message), state=p.state)
    p = journal.open_intent(p, write_context(p, message), intent).snapshot
    yield p
    for name in ("one", "other", "third"):
        another = a_message("A", name)
        p = journal.enqueue_message(p, write_context(p, another), role, another, "it has begun", None).snapshot
        yield p
    for name in ("F-1", "F-2"):
        outcome = a_message("F", name)
        p = compensation.delay_compensation(p, write_context(p, outcome), role, outcome, known=True).snapshot
        yield p
    opened, another = (
        replace(p, deadlines=(kept("remind", first, 1), kept("give_up", message, 2)), format=TIMED),
        a_message("A", "fourth"),
    )
    p = journal.enqueue_message(opened, write_context(p, another), role, another, "it has begun", None).snapshot
    yield p
    c = SuspendedRun(handler="poll", parts=(first,), n=p.n, turn=1, first_ms=NOW_MS, seen_ms=NOW_MS, due_ms=NOW_MS + 9)
    longer, another = replace(p, suspended_runs=(c,), format=CONTINUED), a_message("A", "fifth")
    yield journal.enqueue_message(longer, write_context(p, another), role, another, "it has begun", None).snapshot
    failure = RunFailure(reason="why", remedy="mend", attempts=5)
    yield failed_attempts.give_up(
        p, write_context(p, message), RunHandler(role, message, (message,)), failure, intent
    ).snapshot


def write_context(p: SagaProgress, message: Message) -> WriteContext:
    roles = roles_of(a_role("count", "R"), emitted="R")
    return WriteContext(
        message=message,
        position=None,
        roles=roles,
        self_consumed_types=("R",),
        now_ms=NOW_MS + p.n * 700,
        retention_s=1000,
        before=p,
    )


def altered(value: Any) -> Iterator[Any]:
    """The same with one thing in it changed, for each thing."""
    if isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, str):
        yield from (f"{value}x", value[:-1] or "y")
    elif isinstance(value, bytes):
        yield from (value + b"x", value[:-1])
    elif value is None:
        yield "2026-11-21T14:00:00.000Z"
    match value:
        case dict():
            for key in value:
                for other in altered(value[key]):
                    yield {**value, key: other}
        case tuple():
            for i, item in enumerate(value):
                for other in altered(item):
                    yield (*value[:i], other, *value[i + 1 :])
            if len(value) > 1 and value[0] != value[1]:
                yield (value[1], value[0], *value[2:])
        case Struct():
            for field in fields(value):
                for other in altered(getattr(value, field.name)):
                    yield replace(value, **{field.name: other})


def removed(value: Any) -> Iterator[Any]:
    match value:
        case tuple():
            yield from (value[:i] + value[i + 1 :] for i in range(len(value)))
        case dict():
            yield from ({k: v for k, v in value.items() if k != key} for key in value)
        case str() if value:
            yield None


def edits(name: str, value: Any, others: list[Any]) -> Iterator[tuple[str, Any]]:
    """Each edit of a field, with its kind. `others`: what stands there in other progresses."""
    unordered = ("ran", "closed", "own", "inbox")
    for kind, made in (("remove", removed(value)), ("alter", altered(value))):
        for other in made:
            if not (
                name in unordered and isinstance(other, tuple) and sorted(map(repr, other)) == sorted(map(repr, value))
            ):
                yield kind, other
    if isinstance(value, tuple):
        yield from (("add", (*value, item)) for other in others for item in other[:1] if item not in value)
    elif isinstance(value, dict):
        yield from (("add", {**value, "b" * 24: at}) for at in (0, 1_800_000_000))
        yield from (("add", {**value, k: v}) for other in others for k, v in other.items() if k not in value)


def part_of(name: str, value: Any, edited: Any) -> str:
    """The field, or the part of it that alone was edited."""
    if name == "results" and [replace(r, self_consumed_ids=()) for r in value] == [
        replace(r, self_consumed_ids=()) for r in edited
    ]:
        return "own of results"
    if name == "inbox" and value.keys() == edited.keys():
        return "time of inbox"
    if name == "inbox" and not any(edited[key] for key in edited.keys() - value.keys()):
        return "inbox of time 0"
    return name


async def test_every_change_of_a_snapshot_is_found_or_documented_as_undetected() -> None:
    honest = await versions()
    assert len(honest) > 50
    overlooked, tried = set[tuple[str, str]](), dict[tuple[str, str], int]()
    for name, attribute in ATTRIBUTES.items():
        if name == "transitions":
            continue  # tests/progress/test_history.py changes each of their bytes
        if name == "pages":
            continue  # tests/engine/test_overflow_segments.py changes those
        there = [getattr(p, attribute) for p in honest]
        assert any(there) or name in ("first", "replays", "told"), f"no progress has any {name}"
        others = [value for i, value in enumerate(there) if value and value not in there[:i]][:3]
        for p in {encode(p): p for p in honest}.values():
            assert verify_history(p.transitions, p) is None
            for kind, value in edits(name, getattr(p, attribute), others):
                edited = replace(p, **{attribute: value})
                tried[name, kind] = tried.get((name, kind), 0) + 1
                of_another = (edited.service, edited.saga) != (p.service, p.saga)  # the command sees that by the key
                if not of_another and verify_history(edited.transitions, edited) is None:
                    overlooked.add((part_of(name, getattr(p, attribute), value), kind))
    assert overlooked == NOT_FOUND
    assert {name for name, _ in tried} == set(ATTRIBUTES) - {"transitions", "pages"}
    assert sum(tried.values()) > 5000


async def test_a_snapshot_whose_last_transitions_were_cut_off_is_found_though_their_count_and_hash_fit() -> None:
    cut = 0
    for p in await versions():
        for n in range(p.n):
            left = p.transitions[:n]
            hash_ = sha256(bytes(left[-1])).hexdigest() if left else ""
            state = fold_state(map(decode_transition, left))
            shorter = replace(p, transitions=left, n=n, published=max(n - 1, 0), hash=hash_, state=state)
            assert verify_history(left, shorter) is not None
            assert verify_history(left, replace(shorter, published=n)) is not None
            cut += 1
    assert cut > 100


def test_the_history_of_another_saga_or_service_is_found_whatever_its_snapshot_claims() -> None:
    p = written_by("svc", "s")
    assert verify_history(p.transitions, p) is None
    for other in (replace(p, saga="t"), replace(p, service="other")):
        found = verify_history(other.transitions, other)
        assert found is not None
        assert found.what == (
            f"transition 0 was not written for saga {other.saga} in {other.service}: this is the history of another one"
        )
    assert integrity.get_initial_hash("a", "b|c") != integrity.get_initial_hash("a", "bc"), "a service's name has no |"


def written_by(service: str, saga: str) -> SagaProgress:
    p = replace(blank(), service=service, saga=saga)
    message = a_message("A")
    return journal.ignore_message(p, write_context(p, message), a_role("reserve", "A"), message, "because").snapshot


def test_a_history_partly_written_by_an_older_version_is_checked_where_possible() -> None:
    message, role = a_message("B"), a_role("reserve", "A", "B")

    def older(p: SagaProgress) -> WriteContext:
        return replace(write_context(p, message), before=None)

    begun = journal.ignore_message(blank(), older(blank()), role, message, "because").snapshot
    first = encode(replace(decode_transition(begun.transitions[0]), previous=""))
    begun = replace(begun, transitions=(Raw(first),), hash=sha256(first).hexdigest())
    new = written_by("svc", "s")
    went_on = journal.keep_pending(new, older(new), role, message, "for A").snapshot
    for p in (begun, went_on):
        entries = [decode_transition(raw) for raw in p.transitions]
        assert not integrity.has_digests(entries)
        assert verify_history(p.transitions, p) is None
        assert (verify_history(p.transitions, replace(p, saga="t")) is None) == (p is begun)
        assert verify_history(p.transitions, replace(p, closed=("reserve",))) is None, "it cannot be seen"
        assert verify_history(p.transitions, replace(p, state={"x": 1})) is not None
        assert verify_history(p.transitions, replace(p, first=1)) is not None


async def test_sums_with_and_without_the_former_0x_prefix_can_be_added() -> None:
    looked_at, edited = 0, 0
    for p in await versions():
        for n in range(1, p.n + 1):
            older = rewritten(p, lambda entry: with_0x(entry) if entry.n < n else entry)  # noqa: B023 - called at once
            assert verify_history(older.transitions, older) is None
            looked_at += 1
            for name in DIGESTED_FIELDS:
                less = next(removed(getattr(older, ATTRIBUTES[name])), None)
                if less is not None:
                    found = verify_history(older.transitions, replace(older, **{ATTRIBUTES[name]: less}))
                    assert found is not None
                    assert name in found.what
                    edited += 1
    assert looked_at > 100
    assert edited > 300


def rewritten(p: SagaProgress, rewrite: Callable[[Transition], Transition]) -> SagaProgress:
    """The same with its transitions written again, hashes included."""
    previous, made = integrity.get_initial_hash(p.service, p.saga), list[Raw]()
    for raw in p.transitions:
        made.append(Raw(encode(rewrite(replace(decode_transition(raw), previous=previous)))))
        previous = sha256(bytes(made[-1])).hexdigest()
    return replace(p, transitions=tuple(made), hash=previous)


def with_0x(entry: Transition) -> Transition:
    changes = {
        name: sum_ if name in ("started", "principal") else hex(int(sum_, 16)) for name, sum_ in entry.changes.items()
    }
    return replace(entry, changes=changes)


# ---------------------------------------------------------------- what it costs


@given(st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)), st.lists(st.integers(0, 9)))
def test_the_sum_of_a_snapshot_is_the_sum_of_all_changes_before_it(
    one: list[int], two: list[int], three: list[int]
) -> None:
    def snapshot(names: list[int]) -> SagaProgress:
        closed = tuple(f"handler-{name}" for name in names)
        return replace(blank(), closed=closed, inbox=dict.fromkeys(closed, 0), n=len(names))

    chain = [blank(), *map(snapshot, (one, two, three))]
    for name in ("closed", "inbox"):
        gained = [int(integrity.digest_changes(a, b, b.started).get(name, "0"), 16) for a, b in pairwise(chain)]
        whole = int(integrity.digest_changes(chain[0], chain[-1], chain[-1].started).get(name, "0"), 16)
        assert sum(gained) % (1 << 64) == whole


def test_the_cost_of_a_change_does_not_grow_with_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = list[object]()

    def counting(digest: Callable[[Any], int]) -> Callable[[Any], int]:
        def counts(item: Any) -> int:
            counted.append(item)
            return digest(item)

        return counts

    monkeypatch.setattr(integrity, "_digest", counting(integrity._digest))
    monkeypatch.setattr(integrity, "_entry_digest", counting(integrity._entry_digest))
    much = [kept("reserve", a_message("A", f"m-{i}"), n=i) for i in range(2000)]
    p = replace(blank(), queue=tuple(much), inbox={f"{i:024x}": 7 for i in range(2000)}, n=2000)
    more = replace(p, queue=(*p.queue[1:], kept("reserve", a_message("A"), n=2000)), inbox={**p.inbox, "f" * 24: 8})
    assert set(integrity.digest_changes(p, more, more.started)) == {"queue", "inbox"}
    assert len(counted) == 3, "one that went and one that came, and an entry"


async def test_intents_are_compared_with_the_transitions() -> None:
    removed_, altered_ = 0, 0
    for p in await versions():
        if p.n and p.intents and p.published == p.n:
            found = verify_history(p.transitions, replace(p, intents=()))
            assert found is not None
            assert "intents" in found.what
            removed_ += 1
        if p.intents:
            other = replace(p.intents[0], state={"never": 1})
            found = verify_history(p.transitions, replace(p, intents=(other, *p.intents[1:])))
            assert found is not None
            assert "intents" in found.what
            altered_ += 1
    assert removed_ > 5
    assert altered_ > 5


async def test_the_intent_of_a_compensation_names_it() -> None:
    evidence = await order_runs.a_run(order_runs.an_order(card="declined"))
    contents = [c for w in evidence.services.values() for versions in w.versions.values() for c in versions]
    names = {(i.handler, i.name) for p in map(decode_progress, contents) for i in p.intents if i.kind == "undo"}
    assert names == {("set_aside", "put_back")}
    assert not any(i.name for p in map(decode_progress, contents) for i in p.intents if i.kind == "do")


def gained(before: SagaProgress, after: SagaProgress) -> dict[str, str]:
    return integrity.digest_changes(before, after, after.started)


ONE_MORE = {
    "inbox": {"a" * 24: 7},
    "ran": (CompletedRun(handler="reserve", parameter=0, type="A", schema="s/A.v1", content="c", message="m"),),
    "results": (CompensableResult(handler="reserve", cause="m", event=a_message("R"), self_consumed_ids=()),),
    "outcome": "Cancelled",
    "queue": (kept("reserve", a_message("A")),),
    "waiting": (kept("reserve", a_message("A")),),
    "compensating": (kept("reserve", a_message("A")),),
    "deadlines": (kept("expire", a_message("A")),),
    "later": (SuspendedRun(handler="poll", parts=(a_message("A"),), n=0, turn=1, first_ms=1, seen_ms=1, due_ms=2),),
    "closed": ("reserve",),
    "failed": ("Refused",),
    "replays": 1,
}


@pytest.mark.parametrize("name", DIGESTED_FIELDS)
def test_additions_and_removals_are_digested_under_the_name_of_their_field(name: str) -> None:
    p = replace(blank(), n=1)
    more = replace(p, **{ATTRIBUTES[name]: ONE_MORE[name]})
    [(label, came)] = gained(p, more).items()
    [(label_again, went)] = gained(more, p).items()
    assert label == label_again == name
    assert (int(came, 16) + int(went, 16)) % (1 << 64) == 0
    assert int(came, 16) != 0


@pytest.mark.parametrize("name", DIGESTED_FIELDS)
def test_an_equal_field_in_another_object_counts_as_unchanged(name: str) -> None:
    one, other = (
        decode_progress(encode(replace(blank(), n=1, **{ATTRIBUTES[name]: ONE_MORE[name]}))) for _ in range(2)
    )
    assert gained(one, other) == {}


def test_a_sum_has_at_most_16_characters_without_a_prefix() -> None:
    p = replace(blank(), n=1)
    more = replace(p, **{ATTRIBUTES[name]: more for name, more in ONE_MORE.items()})
    of_pages = (
        integrity.sum_digests(more.queue),
        integrity.sum_digests(more.queue * 3),
        integrity.sum_entry_digests(more.inbox),
    )
    sums = [*gained(p, more).values(), *gained(more, p).values(), *of_pages]
    assert len(sums) == 2 * len(DIGESTED_FIELDS) + 3
    assert all(0 < len(sum_) <= 16 and set(sum_) <= set("0123456789abcdef") for sum_ in sums)


def test_the_digest_of_a_change_does_not_depend_on_the_rest_of_the_progress() -> None:
    held = [kept("reserve", a_message("A", f"m-{i}"), n=i) for i in range(4 * integrity.MANY)]
    other = kept("reserve", a_message("A", "other"))
    for many in (held[:6], held):
        middle = len(many) * 2 // 3
        without = replace(blank(), n=1, queue=(*many[:middle], *many[middle + 1 :]))
        whole = replace(blank(), n=1, queue=tuple(many))
        instead = replace(blank(), n=1, queue=(*many[:middle], other, *many[middle + 1 :]))
        came = int(gained(without, whole)["queue"], 16)
        went = int(gained(whole, without)["queue"], 16)
        exchanged = int(gained(whole, instead)["queue"], 16)
        assert (came + went) % (1 << 64) == 0
        assert exchanged == (int(gained(without, instead)["queue"], 16) + went) % (1 << 64)


def test_entries_added_together_have_the_digest_of_entries_added_one_by_one() -> None:
    old = {f"{i:024x}": 7 for i in range(1, 2 * integrity.MANY)}
    chain = [replace(blank(), n=1, inbox=old)]
    for entry in ("a" * 24, "b" * 24, "not as we write it"):
        chain.append(replace(blank(), n=1, inbox={**chain[-1].inbox, entry: 7}))
    one_by_one = sum(int(gained(a, b)["inbox"], 16) for a, b in pairwise(chain))
    assert int(gained(chain[0], chain[-1])["inbox"], 16) == one_by_one % (1 << 64)
    less = replace(chain[-1], inbox=dict.fromkeys(list(chain[-1].inbox)[1:], 7))
    assert int(gained(chain[-1], less)["inbox"], 16) == (1 << 64) - int(gained(less, chain[-1])["inbox"], 16)


@pytest.mark.parametrize("count", [0, 3, 2 * integrity.MANY])
def test_entries_of_time_0_are_not_digested(count: int) -> None:
    p = replace(blank(), n=1, inbox={f"{i:024x}": 7 for i in range(count)})
    one = gained(p, replace(p, inbox={**p.inbox, "b" * 24: 7}))
    assert set(one) == {"inbox"}
    assert gained(p, replace(p, inbox={**p.inbox, "a" * 24: 0})) == {}
    assert gained(p, replace(p, inbox={**p.inbox, "a" * 24: 0, "b" * 24: 7})) == one
    assert gained(p, replace(p, inbox={**p.inbox, "b" * 24: 7, "a" * 24: 0})) == one


@pytest.mark.parametrize("count", [2, 2 * integrity.MANY])
def test_adding_and_removing_entries_together_has_the_digest_of_doing_it_in_sequence(count: int) -> None:
    p = replace(blank(), n=1, inbox={f"{i:024x}": 7 for i in range(1, count + 1)})
    less = replace(p, inbox=dict(list(p.inbox.items())[1:]))
    more = replace(less, inbox={**less.inbox, "a" * 24: 7, "b" * 24: 7})
    at_once = int(gained(p, more)["inbox"], 16)
    assert at_once == (int(gained(p, less)["inbox"], 16) + int(gained(less, more)["inbox"], 16)) % (1 << 64)


def test_the_digest_of_an_entry_does_not_depend_on_its_position() -> None:
    p = replace(blank(), n=1, inbox={"b" * 24: 7})
    at_the_end = gained(p, replace(p, inbox={"b" * 24: 7, "a" * 24: 7}))
    assert gained(p, replace(p, inbox={"a" * 24: 7, "b" * 24: 7})) == at_the_end


def test_moving_items_to_a_segment_changes_no_digest() -> None:
    many = a_role("reserve", "A", many=True)
    queue = tuple(kept("reserve", a_message("A", f"m-{i}"), n=i) for i in range(6))
    p = replace(blank(), n=1, queue=queue)
    aside, [_] = overflow.move_out(p, a_context(roles_of(many)))
    assert len(aside.queue) == 3
    assert gained(p, aside) == {}
    assert set(gained(p, replace(aside, segments=()))) == {"queue"}


def test_items_in_segments_are_digested_like_items_in_the_snapshot() -> None:
    role, roles = a_role("reserve", "A", many=True), roles_of(a_role("reserve", "A", many=True))
    p = blank()
    for i in range(6):
        message = a_message("A", f"m-{i}")
        p = journal.enqueue_message(p, write_context(p, message), role, message, "it waits", None).snapshot
    in_hand = a_message("A", "m-6")
    aside, [new] = overflow.move_out(p, a_context(roles, message=in_hand))
    written = journal.enqueue_message(
        aside, replace(write_context(aside, in_hand), before=p), role, in_hand, "it waits", None
    ).snapshot
    assert written.segments == (new.segment,)
    assert verify_history(written.transitions, written) is None
    for edited in (replace(written, segments=()), replace(written, queue=written.queue[1:])):
        found = verify_history(edited.transitions, edited)
        assert found is not None
        assert "queue" in found.what


def test_a_start_that_becomes_known_later_is_recorded_by_the_transition_that_brings_it() -> None:
    p = replace(blank(), n=1, started=None)
    started = "2026-11-21T14:00:00.000Z"
    assert integrity.digest_changes(p, p, None) == {}
    assert integrity.digest_changes(p, p, started) == {"started": started}
    assert integrity.digest_changes(replace(p, started=started), p, started) == {}


def test_the_principal_that_began_a_saga_is_recorded_by_the_transition_that_brings_it() -> None:
    p = replace(blank(), n=1, started=None)
    assert integrity.digest_changes(p, p, iso(NOW_MS), "user:4711") == {
        "started": iso(NOW_MS),
        "principal": "user:4711",
    }
    assert (
        integrity.digest_changes(replace(p, started=iso(NOW_MS), principal="user:4711"), p, iso(NOW_MS), "user:4711")
        == {}
    )


@pytest.mark.parametrize("by_intent", [False, True])
def test_another_principal_in_the_place_of_the_one_that_began_a_saga_is_found(by_intent: bool) -> None:
    message, role = replace(a_message("A"), principal="user:4711"), a_role("reserve", "A")
    p = replace(blank(), started=None)
    if by_intent:
        p = journal.open_intent(p, write_context(p, message), an_intent("reserve", message)).snapshot
        assert integrity.find_mismatches(replace(p, principal="user:1"), []) == ["principal"]
    p = journal.ignore_message(p, write_context(p, message), role, message, "because").snapshot
    entries = [decode_transition(raw) for raw in p.transitions]
    assert p.principal == "user:4711"
    assert "principal" not in integrity.find_mismatches(p, entries)
    assert "principal" in integrity.find_mismatches(replace(p, principal="user:1"), entries)
    assert "principal" not in integrity.find_mismatches(replace(p, principal=None), entries), (
        "an older release leaves it out"
    )


def test_a_principal_added_to_a_saga_without_one_is_found() -> None:
    p = replace(blank(), started=None)
    p = journal.ignore_message(
        p, write_context(p, a_message("A")), a_role("reserve", "A"), a_message("A"), "because"
    ).snapshot
    entries = [decode_transition(raw) for raw in p.transitions]
    assert integrity.find_mismatches(replace(p, principal="user:1"), entries) == ["principal"]


def test_the_number_of_replays_is_digested() -> None:
    p = replace(blank(), n=1)
    again = replace(p, replays=1)
    assert set(gained(p, again)) == {"replays"}
    assert gained(p, again) != gained(p, replace(p, replays=2))


def test_a_run_with_claim_checks_is_refused_by_older_versions() -> None:
    plain = StepRecord(kind="step", name="charge", number=1, input="i")
    begun = replace(blank(), intents=(replace(an_intent("reserve", a_message("A")), calls=(plain,)),))
    assert update_format(begun) is begun
    claimed = replace(begun, intents=(replace(begun.intents[0], calls=(plain, replace(plain, claim="c"))),))
    p = update_format(claimed)
    assert (p.format, update_format(p)) == (CLAIMED, p)
    assert "format" not in find_mismatches(p, ())
    assert "format" in find_mismatches(replace(begun, format=CLAIMED), ()), "of what is in none no format tells so"


def test_the_format_is_raised_while_a_run_of_a_later_handler_version_is_open() -> None:
    begun = replace(blank(), intents=(replace(an_intent("work", a_message("A")), handler_version=2),))
    p = update_format(begun)
    assert (p.format, update_format(p)) == (RELEASED, p)
    assert "format" not in find_mismatches(p, ())
    assert "format" in find_mismatches(begun, ()), "an older toolkit would decide on it"
    assert update_format(replace(p, intents=())).format == PLAIN
