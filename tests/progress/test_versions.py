"""State versions in a progress: a new version stores the whole state, and the digest covers both."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.progress import compensation, journal
from saga.progress.document import VERSIONED, SagaProgress, SuspendedRun, decode_transition
from saga.progress.history import fold_state, verify_history
from saga.progress.journal import TransitionDetails
from tests.progress.pieces import NOW_MS, a_message, a_role, an_intent, roles_of

ROLE = a_role("a", "A", many=True)
ROLES = roles_of(ROLE)


def handled(p: SagaProgress, number: int, delta: dict[str, Any]) -> SagaProgress:
    """The progress after one more run, which changed this of the state."""
    message = a_message(value=str(number).encode())
    write_context = journal.WriteContext(
        message=message, position=None, roles=ROLES, self_consumed_types=(), now_ms=NOW_MS, retention_s=100, before=p
    )
    return journal.complete_run(
        p, write_context, ROLE, TransitionDetails(message=message, parts=(message,), delta=delta)
    ).snapshot


def migrated(p: SagaProgress, state: dict[str, Any]) -> SagaProgress:
    return replace(p, state=state, version=2, format=VERSIONED)


def a_history() -> SagaProgress:
    """Two runs of the release before, and two of the one that has migrated."""
    p = handled(journal.new_progress("svc", "s", 1), 1, {"total": "1"})
    p = handled(p, 2, {"noted": True})
    p = handled(migrated(p, {"cents": 100}), 3, {"cents": 100})
    return handled(p, 4, {"cents": 101})


def test_a_saga_begins_with_the_state_version_of_its_first_release() -> None:
    assert journal.new_progress("svc", "s", 1) == SagaProgress(service="svc", saga="s")
    first = journal.new_progress("svc", "s", 2)
    assert (first.version, first.format) == (2, VERSIONED)
    p = handled(first, 1, {"cents": 1})
    assert decode_transition(p.transitions[0]).version == 2
    assert verify_history(p.transitions, p) is None


def test_fields_removed_by_a_new_version_stay_in_the_history() -> None:
    p = a_history()
    entries = list(map(decode_transition, p.transitions))
    assert [entry.version for entry in entries] == [1, 1, 2, 2]
    assert fold_state(entries) == p.state == {"cents": 101}
    assert fold_state(entries, before=2) == {"total": "1", "noted": True}
    assert fold_state(entries[2:]) == p.state
    assert verify_history(p.transitions, p) is None


@pytest.mark.parametrize("version", [1, 3])
def test_a_version_that_no_transition_made_is_found(version: int) -> None:
    p = a_history()
    changed = replace(p, version=version, format=VERSIONED if version > 1 else 1)
    assert "version" in find_change(changed, p.transitions)
    assert "format" in find_change(replace(p, format=1), p.transitions)


def test_a_version_that_falls_again_is_found() -> None:
    p = a_history()
    back = handled(replace(p, version=1, format=1), 5, {"total": "2"})
    assert "version" in find_change(back, back.transitions)


def test_the_state_given_to_a_run_is_checked_in_its_version() -> None:
    p = a_history()
    had: list[tuple[int, dict[str, Any]]] = [
        (1, {}),
        (1, {"total": "1"}),
        (1, {"total": "1", "noted": True}),
        (2, {"cents": 100}),
        (2, {"cents": 101}),
    ]
    for version, state in had:
        assert find_change(begun(p, version, state), p.transitions) == ""
    never: list[tuple[int, dict[str, Any]]] = [(2, {"total": "1"}), (1, {"cents": 100}), (2, {})]
    for version, state in never:
        assert "intents" in find_change(begun(p, version, state), p.transitions)
    nothing = replace(journal.new_progress("svc", "s", 2), started=a_message().started)
    assert find_change(begun(nothing, 2, {}), ()) == ""


def begun(p: SagaProgress, version: int, state: dict[str, Any]) -> SagaProgress:
    """The progress in which a run has begun on this state."""
    intent = replace(an_intent("a", a_message(value=b"9")), state=state, version=version)
    return replace(p, intents=(intent,), published=p.n)


def find_change(p: SagaProgress, transitions: Sequence[Raw]) -> str:
    """What is found to be changed."""
    found = verify_history(transitions, p)
    return "" if found is None else found.what


def test_the_abort_of_a_suspended_run_is_given_the_state_with_its_version() -> None:
    message = a_message()
    later = SuspendedRun(handler="a", parts=(message,), n=0, turn=1, first_ms=1, seen_ms=1, due_ms=1)
    intent = compensation.make_abort_intent(replace(a_history(), suspended_runs=(later,)), ROLE)
    assert (intent.version, intent.state) == (2, {"cents": 101})
