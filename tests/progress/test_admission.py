"""Admission: what an operator pauses waits, what an operator diverts is diverted only before it has begun."""

from typing import Literal

import pytest

from saga.messaging.controls import ActiveControls, ControlEntry, Switch
from saga.policies.concurrency import AWAY_S_MAX
from saga.progress.actions import Compensate, HandlerAction, RunHandler
from saga.progress.admission import Divert, Wait, admit
from saga.progress.document import CompensableResult
from saga.progress.handlers import CompensationRole, HandlerRole
from saga.support.clock import iso
from tests.progress.pieces import NOW_MS, a_message

A = a_message("A")
ROLE = HandlerRole(
    name="reserve",
    takes=(frozenset({"A"}),),
    undo=CompensationRole(name="release", outcomes=frozenset({"Failed"}), results=frozenset({"R"})),
)
RUN = RunHandler(ROLE, A, (A,))
UNDO = Compensate(
    ROLE, a_message("Failed"), CompensableResult(handler="reserve", cause=A.id, event=A, self_consumed_ids=())
)


def controls(kind: Literal["pause", "route"], name: str, until: str | None = None) -> ActiveControls:
    switch = Switch(kind=kind, handler=name, until=until)
    entry = ControlEntry(id="1", time=iso(NOW_MS), who="ada", why="repairs", switch=switch, previous="")
    return ActiveControls(others={(kind, "handler", name): entry})


def test_without_controls_every_run_is_admitted() -> None:
    assert admit("svc", ActiveControls(), RUN, has_begun=False, now_ms=NOW_MS) is None
    assert admit("svc", ActiveControls(), UNDO, has_begun=False, now_ms=NOW_MS) is None


@pytest.mark.parametrize(("action", "name"), [(RUN, "reserve"), (UNDO, "release")])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_paused_run_waits_even_if_it_has_begun(action: HandlerAction, name: str, has_begun: bool) -> None:
    wait = admit("svc", controls("pause", name), action, has_begun=has_begun, now_ms=NOW_MS)
    assert isinstance(wait, Wait)
    assert (wait.left_s, wait.where, wait.grows) == (AWAY_S_MAX / 2, None, False)
    assert "ada" in wait.reason


def test_a_run_paused_until_a_time_is_checked_at_that_time() -> None:
    wait = admit("svc", controls("pause", "reserve", iso(NOW_MS + 5000)), RUN, has_begun=False, now_ms=NOW_MS)
    assert isinstance(wait, Wait)
    assert wait.left_s == 5
    over = controls("pause", "reserve", iso(NOW_MS))
    assert admit("svc", over, RUN, has_begun=False, now_ms=NOW_MS) is None


def test_a_routed_message_is_diverted_only_before_its_run_begins() -> None:
    divert = admit("svc", controls("route", "reserve"), RUN, has_begun=False, now_ms=NOW_MS)
    assert isinstance(divert, Divert)
    assert "ada" in divert.reason
    assert admit("svc", controls("route", "reserve"), RUN, has_begun=True, now_ms=NOW_MS) is None


def test_a_compensation_is_never_diverted() -> None:
    assert admit("svc", controls("route", "release"), UNDO, has_begun=False, now_ms=NOW_MS) is None
