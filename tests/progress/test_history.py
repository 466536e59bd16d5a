"""History: the state is the fold of the changes, any changed byte breaks the chain, and archives change no decision."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace

from saga.messages import Position
from saga.progress import failed_attempts, history, journal
from saga.progress.actions import Now, RunHandler, Trigger
from saga.progress.decisions import decide, find_compensations, find_next_ready
from saga.progress.document import SagaProgress, build_messages, decode_progress, decode_transition, encode
from saga.progress.failed_attempts import RunFailure
from saga.progress.handlers import CompensationRole
from saga.progress.history import (
    HISTORY_BYTES_MAX,
    TRANSITIONS_KEPT,
    TRANSITIONS_MAX,
    find_unpublished,
    fold_state,
    verify_history,
)
from saga.progress.journal import Commit, TransitionDetails, WriteContext
from saga.progress.next_action import choose_next_action
from tests.progress.pieces import NOW_MS, a_message, a_role, blank, roles_of

UNDO = CompensationRole(name="undo", outcomes=frozenset({"Failed"}), results=frozenset({"R"}))
MANY = a_role("many", "A", many=True, undo=UNDO)
BOTH = a_role("both", "B", "C")
ROLES = roles_of(MANY, BOTH, outcomes="Failed", emitted="R Failed")

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text("abü", max_size=3), st.lists(st.integers(0, 3))
)
DELTAS = st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3)
STEPS = st.tuples(
    st.sampled_from(["handled", "ignored", "waiting", "queued", "dead", "refused"]), DELTAS, st.integers(0, 2)
)
NOW = Now(NOW_MS, retention_s=1000)
HISTORIES = st.lists(STEPS, max_size=12)


def next_of(p: SagaProgress, what: str, delta: dict[str, Any], events: int) -> Commit:
    """One more transition, of this kind."""
    message = a_message("A", id=f"m-{p.n}")
    write_context = WriteContext(
        message=message,
        position=Position("things", 0, p.n),
        roles=ROLES,
        self_consumed_types=(),
        now_ms=NOW_MS + p.n,
        retention_s=1000,
        before=p,
    )
    match what:
        case "handled":
            emitted = [a_message("R", id=f"r-{p.n}-{i}", value=b"\x00\xff") for i in range(events)]
            ended = TransitionDetails(cause=message.id, message=message, parts=(message,), delta=delta, events=emitted)
            return journal.complete_run(p, write_context, MANY, ended)
        case "ignored":
            return journal.ignore_message(p, write_context, MANY, message, "because")
        case "waiting":
            return journal.keep_pending(p, write_context, BOTH, a_message("B", id=message.id), "for C")
        case "queued":
            return journal.enqueue_message(p, write_context, MANY, message, "because", None)
        case "refused":
            return journal.reject_message(p, write_context, MANY, message, "why", "mend")
    failure = RunFailure(reason="why", remedy="mend", attempts=2)
    return failed_attempts.give_up(p, write_context, RunHandler(MANY, message, (message,)), failure, None)


def written(steps: Sequence[tuple[str, dict[str, Any], int]]) -> SagaProgress:
    """The progress after these, as a store gives it back."""
    p = blank()
    for step in steps:
        p = next_of(p, *step).snapshot
    return decode_progress(encode(p))


def long(count: int = TRANSITIONS_MAX + 1) -> SagaProgress:
    return written([("handled", {"x": n}, 1) for n in range(count)])


# ---------------------------------------------------------------- fold and chain


@given(HISTORIES)
def test_the_state_is_the_fold_of_the_changes(steps: list[tuple[str, dict[str, Any], int]]) -> None:
    p = written(steps)
    assert fold_state(map(decode_transition, p.transitions)) == p.state
    assert verify_history(p.transitions, p) is None
    for n in range(p.n + 1):
        assert fold_state(map(decode_transition, p.transitions), before=n) == written(steps[:n]).state


@given(st.lists(STEPS, min_size=1, max_size=5), st.data())
def test_any_changed_byte_of_any_transition_is_found(
    steps: list[tuple[str, dict[str, Any], int]], data: st.DataObject
) -> None:
    p = written(steps)
    transitions = [bytes(raw) for raw in p.transitions]
    n = data.draw(st.integers(0, len(transitions) - 1))
    at = data.draw(st.integers(0, len(transitions[n]) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != transitions[n][at]))
    changed = transitions[n][:at] + bytes([byte]) + transitions[n][at + 1 :]
    raws = [Raw(changed if i == n else raw) for i, raw in enumerate(transitions)]
    assert verify_history(raws, p) is not None


@given(st.lists(STEPS, min_size=2, max_size=5), st.data())
def test_a_missing_doubled_or_exchanged_transition_is_found(
    steps: list[tuple[str, dict[str, Any], int]], data: st.DataObject
) -> None:
    p = written(steps)
    whole = list(p.transitions)
    n = data.draw(st.integers(0, len(whole) - 2))
    assert verify_history([*whole[:n], *whole[n + 1 :]], p) is not None
    assert verify_history([*whole[: n + 1], *whole[n:]], p) is not None
    assert verify_history([*whole[:n], whole[n + 1], whole[n], *whole[n + 2 :]], p) is not None
    assert verify_history(whole[:-1], p) is not None


def test_a_break_names_its_place_and_what_is_wrong() -> None:
    p = written([("handled", {"x": n}, 0) for n in range(3)])
    whole = list(p.transitions)

    def changed(n: int) -> list[Raw]:
        return [Raw(bytes(raw).replace(b"many", b"none")) if i == n else raw for i, raw in enumerate(whole)]

    found = [
        verify_history(changed(0), p),
        verify_history(changed(2), p),
        verify_history(whole[1:], p),
        verify_history(whole[:2], p),
    ]
    assert [(b.n, b.what) for b in found if b] == [
        (1, "transition 1 does not follow what is before it: something there was changed"),
        (2, "transition 2 was changed"),
        (0, "transition 0 is missing: 1 follows"),
        (2, "3 transitions were written, 2 are there"),
    ]
    state = verify_history(whole, replace(p, state={"x": 7}))
    assert state is not None
    assert (state.n, state.what) == (3, "the state is not what the transitions make of it")


def test_an_undecodable_transition_is_a_break_too() -> None:
    p = written([("handled", {"x": n}, 0) for n in range(3)])
    for rubbish in (b"{}", b"7", b'{"n":', b"\xff"):
        found = verify_history([p.transitions[0], Raw(rubbish), p.transitions[2]], p)
        assert found is not None
        assert found.n == 1
        assert found.what.startswith("transition 1 cannot be read: ")


# ---------------------------------------------------------------- archives


@settings(max_examples=25)
@given(st.lists(STEPS, min_size=TRANSITIONS_MAX + 1, max_size=TRANSITIONS_MAX + 8))
def test_archiving_changes_no_decision_and_no_unpublished_event(
    steps: list[tuple[str, dict[str, Any], int]],
) -> None:
    p = written(steps)
    archive = history.build_archive(p)
    assert archive is not None
    after = decode_progress(encode(history.remove_archived(p, history.decode_archive(encode(archive)))))
    assert replace(after, first=0, transitions=()) == replace(p, first=0, transitions=())
    for message in [a_message("A", id=f"m-{n}") for n in range(p.n + 1)] + [a_message("C"), a_message("Failed")]:
        for role in ROLES.by_type.get(message.type, ()):
            assert decide(after, role, message, now=NOW) == decide(p, role, message, now=NOW)
        assert find_compensations(after, ROLES, message.type) == find_compensations(p, ROLES, message.type)
        trigger = Trigger(message=message)
        assert choose_next_action(after, ROLES, trigger, NOW, True) == choose_next_action(p, ROLES, trigger, NOW, True)
    assert find_next_ready(after, ROLES, NOW.ms) == find_next_ready(p, ROLES, NOW.ms)
    assert list(find_unpublished(after, never_committed, "")) == list(find_unpublished(p, never_committed, ""))
    whole = [*archive.transitions, *after.transitions]
    assert whole == list(p.transitions)
    assert verify_history(whole, after) is None


def test_archives_and_the_rest_are_the_whole_history_however_long_it_gets() -> None:
    p, archives = blank(), list[history.TransitionArchive]()
    for n in range(300):
        p = next_of(p, "handled", {"x": n}, 0).snapshot
        archive = history.build_archive(p)
        if archive is not None:
            archives.append(history.decode_archive(encode(archive)))
            p = decode_progress(encode(history.remove_archived(p, archive)))
        assert len(p.transitions) <= TRANSITIONS_MAX
        assert len(p.transitions) >= min(p.n, TRANSITIONS_KEPT)
        whole = [raw for a in archives for raw in a.transitions] + list(p.transitions)
        assert verify_history(whole, p) is None
    assert [a.first for a in archives] == [0, 49, 98, 147, 196]
    keys = [history.archive_key(a.service, a.saga, a.first) for a in archives]
    assert keys == sorted(keys)
    assert keys[1] == "svc::s::000000049"


def test_transitions_not_known_as_published_are_never_archived() -> None:
    p = replace(long(100), published=30)
    archive = history.build_archive(p)
    assert archive is not None
    assert [decode_transition(raw).n for raw in archive.transitions] == list(range(30))
    assert history.build_archive(replace(p, published=0)) is None


def test_a_history_below_the_limit_is_not_archived() -> None:
    assert history.build_archive(long(TRANSITIONS_MAX)) is None
    archive = history.build_archive(long(TRANSITIONS_MAX + 1))
    assert archive is not None
    assert len(archive.transitions) == TRANSITIONS_MAX + 1 - TRANSITIONS_KEPT


def test_a_history_of_large_transitions_is_archived_by_its_bytes() -> None:
    p, archives = blank(), list[history.TransitionArchive]()
    for n in range(40):
        p = next_of(p, "handled", {"x": "y" * (1000 * n)}, 0).snapshot
        archive = history.build_archive(p)
        if archive is not None:
            archives.append(history.decode_archive(encode(archive)))
            p = decode_progress(encode(history.remove_archived(p, archive)))
            assert sum(len(bytes(raw)) for raw in p.transitions) <= HISTORY_BYTES_MAX // 2
        assert sum(len(bytes(raw)) for raw in p.transitions) <= HISTORY_BYTES_MAX
    assert len(archives) > 3
    assert verify_history([raw for a in archives for raw in a.transitions] + list(p.transitions), p) is None


def test_a_single_huge_transition_stays_until_it_is_published() -> None:
    p = next_of(long(3), "handled", {"x": "y" * HISTORY_BYTES_MAX}, 1).snapshot
    archive = history.build_archive(p)
    assert archive is not None
    p = history.remove_archived(p, archive)
    assert [decode_transition(raw).n for raw in p.transitions] == [3]
    assert history.build_archive(p) is None
    archive = history.build_archive(next_of(p, "ignored", {}, 0).snapshot)
    assert archive is not None
    assert [decode_transition(raw).n for raw in archive.transitions] == [3]


def test_trimming_takes_exactly_what_the_archive_holds() -> None:
    p = long(100)
    shorter = history.TransitionArchive(service="svc", saga="s", first=0, transitions=p.transitions[:10])
    after = history.remove_archived(p, shorter)
    assert (after.first, after.transitions) == (10, p.transitions[10:])


def test_an_archive_of_an_earlier_saga_of_the_same_id_is_known_by_its_first_transition() -> None:
    p = long(TRANSITIONS_MAX + 1)
    archive = history.build_archive(p)
    assert archive is not None
    assert not history.is_of_another_saga(p, archive)
    assert history.is_of_another_saga(replace(p, transitions=p.transitions[1:]), archive)


def test_the_state_before_a_transition_is_the_fold_of_earlier_ones() -> None:
    entries = [decode_transition(raw) for raw in next_of(long(3), "handled", {"x": 7}, 0).snapshot.transitions]
    assert (fold_state(entries, before=3), fold_state(entries, before=4)) == ({"x": 2}, {"x": 7})
    assert fold_state(entries, before=0) == {}


# ---------------------------------------------------------------- publishing


def never_committed(position: Position) -> bool:
    return False


def test_transitions_below_a_committed_offset_count_as_published() -> None:
    p = replace(written([("handled", {}, 1)] * 4 + [("ignored", {}, 0), ("refused", {}, 0)]), published=1)
    assert [e.n for e in find_unpublished(p, never_committed, "")] == [1, 2, 3, 5], "what says nothing is left out"
    assert [e.n for e in find_unpublished(p, lambda position: position.offset < 3, "")] == [3, 5]
    without_position = journal.complete_run(
        p,
        WriteContext(
            message=a_message(), position=None, roles=ROLES, self_consumed_types=(), now_ms=NOW_MS, retention_s=1
        ),
        MANY,
        TransitionDetails(cause="A-1", message=a_message(), parts=(a_message(),), events=[a_message("R")]),
    ).snapshot
    assert [e.n for e in find_unpublished(without_position, lambda position: True, "")] == [6]


def test_events_published_again_have_their_whole_envelope() -> None:
    p = written([("handled", {}, 2)])
    traced = replace(decode_transition(p.transitions[0]), trace="00-1-2-01")
    first, second = build_messages(p, traced)
    assert (first.trace, second.trace) == ("00-1-2-01", "00-1-2-01")
    assert (first.id, second.id) == ("r-0-0", "r-0-1")
    assert (first.saga, first.source, first.type, first.value) == ("s", "svc", "R", b"\x00\xff")
    assert (first.started, first.time) == (p.started, decode_transition(p.transitions[0]).time)
