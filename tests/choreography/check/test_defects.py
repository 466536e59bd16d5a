"""Planted defects are found, each with a short sequence of events that a replay on the real runtime confirms."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from saga.choreography.check.model import begin, build_choreography
from saga.choreography.check.reports import format_sequence_diagram, format_test, format_trace
from saga.choreography.check.verdicts import (
    ADVICE,
    NOTED,
    PROPERTIES,
    CheckLimits,
    check_deployment,
    check_manifests,
)
from saga.choreography.manifest import DeclaredReaction, Manifest, format_manifest, make_manifest
from saga.errors import ContractError, SagaError
from saga.testing.trace_replay import check_trace, replay_trace
from services.inventory import inventory
from services.order import order
from services.payment import payment
from services.shipping import shipping
from tests.choreography.check.building import KIND, START, Choreo, compensation, deadline, handler, usual
from tests.choreography.check.defects import DEFECTS, shop

EVENTS_MAX = 8


def test_the_order_saga_is_proved_by_rules() -> None:
    (verdict,) = check_manifests([make_manifest(each.declared) for each in (order, payment, inventory, shipping)])
    assert verdict.status == "proved"
    assert [each.status for each in verdict.properties] == ["proved"] * len(PROPERTIES)
    assert not [each.how for each in verdict.properties if "states" in each.how], "no search was needed"


def test_a_sound_choreography_has_no_finding() -> None:
    for made in (shop(), usual(3)):
        (verdict,) = check_manifests(made.manifests)
        assert (verdict.status, verdict.findings) == ("proved", ())


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_found_with_a_short_sequence_of_events(name: str) -> None:
    planted = DEFECTS[name]()
    (verdict,) = check_manifests(planted.manifests)
    found = {each.key: each for each in verdict.findings}
    assert (planted.code, planted.subject) in found
    assert verdict.status == "found"
    finding = found[planted.code, planted.subject]
    if finding.code == "two-outcomes" and finding.trace is not None:
        with pytest.raises(ContractError, match="one service decides"):  # within one folder of contracts
            replay_trace(planted.manifests, finding.trace)
    elif finding.trace is not None:
        assert len(format_trace(verdict.choreography, finding.trace)) <= EVENTS_MAX
        assert replay_trace(planted.manifests, finding.trace), "the real runtime does the same"


def test_an_outcome_from_outside_counts_as_an_outcome_of_the_saga() -> None:
    made = (
        Choreo(success=("Delivered",), external=("Delivered",), to_outside=("Captured",))
        .service(
            "payment",
            handler("reserve", START, "Reserved", effects=True),
            compensation("release", "reserve", "Cancelled + Reserved"),
            handler("capture", "Delivered + Reserved", "Captured", effects=True),
        )
        .service("order", handler("see", "Reserved"), deadline("expire", START, "Cancelled"))
    )
    (verdict,) = check_manifests(made.manifests)
    judged = {each.property: each.status for each in verdict.properties}
    assert judged["success can be reached"] == "proved"
    (finding,) = (each for each in verdict.findings if each.code == "two-outcomes")
    assert finding.subject == "Cancelled and Delivered"
    assert finding.trace is not None
    assert replay_trace(made.manifests, finding.trace), "the real runtime does the same"


def test_a_saga_that_an_outcome_begins_has_ended() -> None:
    made = Choreo(starts=("Closed",), success=(), failure=("Closed",)).service("audit", handler("note", "Closed"))
    choreography = build_choreography(KIND, made.manifests)
    assert begin(choreography, "Closed").outcomes == {("Closed", "")}
    (verdict,) = check_manifests(made.manifests)
    assert {each.code for each in verdict.findings} == {"no-success"}


def test_every_kind_of_finding_is_planted() -> None:
    codes = {code for codes in PROPERTIES.values() for code in codes}
    assert codes | {code for noted in NOTED.values() for code in noted} == set(ADVICE)
    assert codes - {make().code for make in DEFECTS.values()} == {"contradiction"}, "tests/cli plants that"


def test_a_search_proves_nothing_where_one_of_two_reactions_to_an_event_may_be_late() -> None:
    # The handler may fail, the deadline comes first, and the compensation is not for its outcome.
    made = Choreo(failure=("Cancelled", "Expired"), to_outside=["Confirmed", "Done"]).service(
        "decider",
        handler("confirm", START, "Confirmed | Cancelled"),
        deadline("expire", START, "Expired"),
    )
    made.service(
        "worker", handler("work", START, "Done", effects=True), compensation("undo", "work", "Cancelled + Done")
    )
    (verdict,) = check_manifests(made.manifests)
    status = {each.property: each.status for each in verdict.properties}
    assert status["every handler can run"] == "not decided"
    assert status["a failure leaves nothing done that can be undone"] != "proved"
    (how,) = [each.how for each in verdict.properties if each.property == "every handler can run"]
    assert "decider.confirm and decider.expire both take Placed, and one may be tried again later" in how


def test_an_event_of_a_handler_that_comes_too_late_to_decide_is_not_certain() -> None:
    made = (
        Choreo(to_outside=["Cancelled"])
        .service("one", handler("work", START, "Done"))
        .service("two", handler("work", START, "Ready"))
        .service("decider", handler("confirm", "Done", "Confirmed"), handler("also", "Ready", "Cancelled Extra"))
        .service("mail", handler("send", "Confirmed + Extra"))
    )
    (verdict,) = check_manifests(made.manifests)
    (finding,) = (each for each in verdict.findings if each.code == "waits-for-ever")
    assert finding.subject == "mail.send"
    assert finding.trace is not None
    assert replay_trace(made.manifests, finding.trace)


def test_an_event_that_only_the_old_release_takes_is_delivered_during_a_deployment() -> None:
    old = shop(
        order_tell=handler("tell", "Confirmed", "Ready"), mail_send=handler("send", "Ready", irreversible=True),
        audit_note=handler("note", "Ready"),
    )  # fmt: skip
    new = shop(
        order_tell=handler("tell", "Reserved", "Ready"), mail_send=handler("send", "Confirmed", irreversible=True),
        audit_note=handler("note", "Ready"),
    )  # fmt: skip
    for alone in (old, new):
        (verdict,) = check_manifests(alone.manifests)
        assert verdict.status == "proved"
    (verdict,) = check_deployment(old.manifests, new.manifests)
    assert {each.key for each in verdict.findings} == {("irreversible-early", "mail.send")}


def test_an_event_that_only_the_old_release_takes_has_a_consumer() -> None:
    new = shop(
        shipping_book=handler("book", f"{START} + Reserved", "Shipped | Refused", effects=True),
        shipping_unbook=compensation("unbook", "book", "Cancelled + Shipped"),
        order_confirm=handler("confirm", "Shipped", "Confirmed"),
    )
    (verdict,) = check_deployment(shop().manifests, new.manifests)
    assert "no-consumer" not in {each.code for each in verdict.findings}


@pytest.mark.parametrize("states_max", [30_000, 1])
def test_a_handler_that_returns_two_outcomes_in_any_case_is_found(states_max: int) -> None:
    made = Choreo(to_outside=("Confirmed", "Cancelled")).service("d", handler("ok", START, "Confirmed Cancelled"))
    (verdict,) = check_manifests(made.manifests, CheckLimits(states_max=states_max, walks=5))
    assert ("two-outcomes", "d.ok") in {each.key for each in verdict.findings}


def test_a_start_event_that_no_service_takes_ends_no_saga() -> None:
    made = Choreo(starts=(START, "Asked"), to_outside=("Asked", "Confirmed", "Cancelled")).service(
        "d", handler("ok", START, "Confirmed Asked"), deadline("end", START, "Cancelled")
    )
    (verdict,) = check_manifests(made.manifests)
    (finding,) = (each for each in verdict.findings if each.code == "no-outcome")
    assert finding.trace is not None
    assert format_trace(verdict.choreography, finding.trace) == ["1. Asked comes from outside"]
    assert replay_trace(made.manifests, finding.trace)


def test_a_compensation_misses_a_failure_even_if_no_step_is_seen_in_its_handler() -> None:
    made = (
        Choreo(failure=("Cancelled", "Expired"), to_outside=("Confirmed", "Cancelled", "Expired"))
        .service("w", handler("work", START, "Done"), compensation("undo", "work", "Cancelled + Done"))
        .service("d", handler("ok", "Done", "Confirmed | Cancelled"), deadline("end", START, "Expired"))
    )
    (verdict,) = check_manifests(made.manifests)
    (finding,) = verdict.findings
    assert finding.key == ("not-undone", "w.work")
    assert finding.trace is not None
    assert replay_trace(made.manifests, finding.trace)


@pytest.mark.parametrize("before", [True, False])
def test_a_handler_that_waits_for_the_outcome_in_one_release_is_not_because_of_it(before: bool) -> None:
    early = shop(mail_send=handler("send", "Booked", irreversible=True), audit_note=handler("note", "Confirmed"))
    late = shop(mail_send=handler("send", "Confirmed", irreversible=True), audit_note=handler("note", "Confirmed"))
    old, new = (early, late) if before else (late, early)
    (verdict,) = check_deployment(old.manifests, new.manifests)
    assert ("irreversible-early", "mail.send") in {each.key for each in verdict.findings}


def test_the_printed_test_replays_a_saga_that_a_document_begins(tmp_path: Path) -> None:
    def make(*ends: DeclaredReaction) -> list[Manifest]:
        made = Choreo(starts=(), to_outside=("Confirmed", "Cancelled"), changes={"OrderWritten": "orders"})
        made.service("intake", handler("read", "OrderWritten", "Asked | -"))
        made.service("order", handler("confirm", "Asked", "Confirmed | -"), *ends)
        for manifest in made.manifests:
            (tmp_path / f"{manifest.service}.json").write_text(format_manifest(manifest), "utf-8")
        return made.manifests

    (verdict,) = check_manifests(make())
    (finding,) = verdict.findings
    namespace: dict[str, Callable[[], None]] = {}
    exec("\n".join(format_test(finding, str(tmp_path))), namespace)
    with pytest.raises(AssertionError, match="outcomes none"):
        namespace["test_no_outcome_order_id"]()
    make(deadline("end", "Asked", "Cancelled"))
    namespace["test_no_outcome_order_id"]()


def test_a_printed_test_whose_names_are_in_no_manifest_any_more_fails(tmp_path: Path) -> None:
    def make(name: str) -> None:
        made = Choreo(to_outside=("Confirmed", "Cancelled"))
        made.service("w", handler(name, START, "Done", effects=True))
        made.service("d", handler("ok", "Done", "Confirmed | Cancelled"))
        for manifest in made.manifests:
            (tmp_path / f"{manifest.service}.json").write_text(format_manifest(manifest), "utf-8")

    def check(subject: str, *moves: str) -> None:
        check_trace(tmp_path, START, [f"start {START}", *moves], "not-undone", subject)

    make("work")
    work = f"w: deliver {START}; work -> Done"
    check("d.ok", work, "d: deliver Done; ok -> Confirmed")
    with pytest.raises(AssertionError, match="not-undone"):
        check("w.work", work, "d: deliver Done; ok -> Cancelled")
    for unknown, names in (
        ("w.wrok", ("w.wrok", work)),
        ("w.wrok", ("w.work", work.replace("work", "wrok"))),
        ("d.end", ("w.work", work, "d: deadline end")),
        ("e", ("w.work", work, "e: deliver Done")),
        ("Dome", ("w.work", work, "d: deliver Dome")),
    ):
        with pytest.raises(SagaError, match=f"no manifest has {unknown} of this trace"):
            check(*names)
    make("labour")
    with pytest.raises(SagaError, match=r"no manifest has w\.work of this trace"):
        check("w.work", work)
    with pytest.raises(SagaError, match=f"no manifest has {START} of this trace"):
        check_trace(tmp_path / "elsewhere", START, [f"start {START}"], "no-outcome", KIND)


def test_a_diagram_has_numbered_participants_because_a_name_may_be_a_keyword_of_mermaid() -> None:
    made = (
        Choreo()
        .service("outside", handler("end", START, "Note"))
        .service("end", handler("loop", "Note", "Confirmed"))
        .service("par-and", handler("or_else", "Note", "Cancelled"))
    )
    (verdict,) = check_manifests(made.manifests)
    trace = next(each.trace for each in verdict.findings if each.code == "two-outcomes")
    assert trace is not None
    lines = format_sequence_diagram(verdict.choreography, trace).splitlines()
    shown = dict(re.findall(r"participant (p\d) as (.+)", "\n".join(lines)))
    assert sorted(shown.values()) == ["end", "from outside", "outside", "par-and"]
    messages = [line for line in lines if "participant" not in line][1:]
    assert all(re.match(r"    (Note over p\d|p\d--?>>p\d): ", line) for line in messages), lines
    source, target = re.findall(r"p\d", messages[0])
    assert (shown[source], shown[target]) == ("from outside", "outside")
