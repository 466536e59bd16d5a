"""View of a progress for tools and tests."""

from dataclasses import dataclass

from saga.progress import journal
from saga.progress.document import TransitionView, build_view
from saga.progress.journal import TransitionDetails
from tests.progress.pieces import a_hand, a_message, a_role, blank, roles_of


@dataclass(frozen=True)
class Counted:
    count: int = 0


def test_a_printed_progress_shows_the_state_and_each_transition_with_its_reason() -> None:
    a = a_message("A")
    write_context = a_hand(a, roles=roles_of(a_role("take", "A")))
    p = journal.append_transition(
        blank(), write_context, "waiting", "take", TransitionDetails(message=a, reason="the other part is not there")
    ).snapshot
    p = journal.append_transition(p, write_context, "handled", "take", TransitionDetails(message=a)).snapshot
    shown = build_view(p, Counted(3))
    assert (shown.service, shown.saga_id, shown.state) == ("svc", "s", Counted(3))
    assert shown.transitions == (
        TransitionView(handler="take", outcome="waiting", reason="the other part is not there"),
        TransitionView(handler="take", outcome="handled", reason=None),
    )
