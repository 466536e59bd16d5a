"""Handlers and compensations that a progress needs and a version of the service does not declare."""

import pytest
from msgspec.structs import replace

from saga.progress.document import CompensableResult, OverflowSegment, SagaProgress
from saga.progress.handlers import CompensationRole
from saga.progress.takeover import find_undeclared
from tests.progress.pieces import a_message, a_role, an_intent, blank, kept, roles_of

A = a_message("A")
UNDONE = a_role(
    "undone", "A", undo=CompensationRole(name="undo", outcomes=frozenset({"Failed"}), results=frozenset({"B"}))
)
ROLES = roles_of(a_role("kept", "A"), UNDONE)


def a_result(handler: str) -> CompensableResult:
    return CompensableResult(handler=handler, cause="c", event=A, self_consumed_ids=())


def a_page(of: str, *handlers: str) -> OverflowSegment:
    return OverflowSegment(kind=of, name=of, count=1, newest=0, handlers=handlers)  # type: ignore[arg-type] # one of three


@pytest.mark.parametrize(
    ("p", "missing"),
    [
        (blank(), ()),
        (replace(blank(), queue=(kept("kept", A),), results=(a_result("undone"),)), ()),
        (replace(blank(), queue=(kept("gone", A),)), ("handler gone",)),
        (replace(blank(), compensating=(kept("gone", A),)), ("handler gone",)),
        (replace(blank(), intents=(an_intent("gone", A),)), ("handler gone",)),
        (replace(blank(), results=(a_result("gone"),)), ("handler gone",)),
        (replace(blank(), results=(a_result("kept"),)), ("compensation of kept",)),
        (
            replace(blank(), queue=(kept("b", A), kept("a", A)), results=(a_result("kept"),)),
            ("compensation of kept", "handler a", "handler b"),
        ),
    ],
)
def test_open_and_compensable_work_of_undeclared_handlers_is_named(p: SagaProgress, missing: tuple[str, ...]) -> None:
    assert find_undeclared(p, ROLES) == missing


def test_a_pending_part_keeps_a_saga_open_only_before_its_start_is_known() -> None:
    open_ = replace(blank(), queue=(kept("kept", A),), waiting=(kept("gone", A),))
    assert find_undeclared(open_, ROLES) == ()
    assert find_undeclared(replace(open_, started=None), ROLES) == ("handler gone",)


def test_segments_count_as_their_content() -> None:
    pages = (a_page("queue", "queued"), a_page("waiting", "waited"), a_page("inbox", "had"))
    p = replace(blank(), queue=(kept("kept", A),), segments=pages)
    assert find_undeclared(p, ROLES) == ("handler queued",)
    assert find_undeclared(replace(p, started=None), ROLES) == ("handler queued", "handler waited")
