"""Roles: who takes a type, in which order, and what a failure outcome undoes."""

from msgspec.structs import replace

from saga.progress.decisions import find_next_ready
from saga.progress.document import SelfConsumedEvent
from saga.progress.handlers import CompensationRole
from tests.progress.pieces import NOW_MS, a_message, a_role, blank, roles_of


def test_a_role_knows_which_parameter_takes_a_type() -> None:
    role = a_role("both", "A", "B C")
    assert [role.parameter_of(type_) for type_ in "ABCD"] == [0, 1, 1, -1]


def test_handlers_of_one_type_run_in_the_order_of_declaration() -> None:
    roles = roles_of(a_role("z", "A", "B"), a_role("a", "A", "C"), a_role("m", "D E"))
    assert [role.name for role in roles.by_type["A"]] == ["z", "a"]
    assert [role.name for role in roles.by_type["E"]] == ["m"]


def test_a_compensation_acts_on_each_of_its_outcomes() -> None:
    undo = CompensationRole(name="undo", outcomes=frozenset({"Failed", "Expired"}), results=frozenset({"R"}))
    roles = roles_of(a_role("one", "A", undo=undo), a_role("two", "B", undo=undo), a_role("three", "C"))
    for outcome in ("Failed", "Expired"):
        assert [role.name for role in roles.undone_by[outcome]] == ["one", "two"]


def test_a_handler_that_takes_only_a_self_consumed_event_is_made_ready_by_it() -> None:
    roles = roles_of(a_role("one", "A"), a_role("two", "B"), emitted="B")
    assert roles.ready_from_kept == {"two"}
    own = a_message("B")
    ready = find_next_ready(replace(blank(), self_consumed=(SelfConsumedEvent(event=own, n=0),)), roles, NOW_MS)
    assert ready is not None
    assert (ready.role.name, ready.message) == ("two", own)
