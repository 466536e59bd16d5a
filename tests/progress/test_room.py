"""Every run leaves a quarter of what the store takes free, so that what follows it can still be written."""

import pytest
from msgspec.structs import replace

from saga.errors import TooLarge
from saga.progress import journal
from saga.progress.document import Intent, SagaProgress
from saga.progress.journal import FREE, Commit, TransitionDetails, check_room
from tests.progress.pieces import a_hand, a_message, a_role, an_intent, blank, roles_of

TAKEN = 1000
MOST = TAKEN - TAKEN // FREE
A = a_message("A")
HAND = a_hand(A, roles=roles_of(a_role("take", "A")))
INTENT = an_intent("take", A)
UNDOING = replace(INTENT, kind="undo")


def a_handled() -> Commit:
    return journal.append_transition(blank(), HAND, "handled", "take", TransitionDetails(message=A))


def begun(*intents: Intent) -> Commit:
    return Commit(replace(blank(), intents=intents), None)


@pytest.mark.parametrize("written", [a_handled(), begun(INTENT), begun(UNDOING, INTENT)])
def test_a_run_may_use_three_quarters_and_not_a_byte_more(written: Commit) -> None:
    check_room(written, written.snapshot, MOST, TAKEN)
    with pytest.raises(
        TooLarge, match=f"would have {MOST + 1} bytes, and the store takes {TAKEN}, of which one part in"
    ):
        check_room(written, written.snapshot, MOST + 1, TAKEN)


@pytest.mark.parametrize(
    "written",
    [
        journal.append_transition(blank(), HAND, "dead", "take", TransitionDetails(message=A)),
        journal.append_transition(blank(), HAND, "compensated", "undo", TransitionDetails(message=A)),
        begun(UNDOING),
        begun(INTENT, UNDOING),
        begun(),
    ],
)
def test_a_write_that_is_no_run_may_use_all_remaining_space(written: Commit) -> None:
    check_room(written, written.snapshot, TAKEN, TAKEN)


def test_the_largest_fields_are_named_first() -> None:
    p: SagaProgress = replace(blank(), state={"text": "x" * 500}, inbox={"y" * 200: 1})
    with pytest.raises(TooLarge, match=r"stays free: state 511 bytes, inbox 206 bytes, \w+ 2 bytes$"):
        check_room(a_handled(), p, TAKEN, TAKEN)
