"""Graph of a choreography: who emits and takes each event, in causal order, and parts of it."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.choreography.graph import (
    CLIENTS,
    OTHERS,
    UNKNOWN,
    ChoreographyGraph,
    EventLink,
    is_outside,
    list_sections,
    make_graph,
    select_neighbours,
    select_reached,
)
from saga.choreography.manifest import ConsumedContract, make_manifest
from saga.choreography.releases import read_manifests
from services.intake import intake
from tests.choreography.drawn_domains import DOMAINS, LOAN, PARCEL, TRAVEL, generate_choreography, parse_choreography

ROOT = Path(__file__).parents[2]
ORDER = read_manifests(ROOT / "manifests")
ALL = {"order": ORDER, **DOMAINS, "large": generate_choreography(25, 120)}


def ends(links: Iterable[EventLink]) -> set[str]:
    return {f"{each.participant}.{each.reaction}" if each.reaction else each.participant for each in links}


def section_names(graph: ChoreographyGraph) -> dict[str | None, tuple[str, ...]]:
    return {section.outcome: section.events for section in list_sections(graph)}


def test_each_event_has_its_producers_and_consumers() -> None:
    graph = make_graph(ORDER.values())
    assert graph.services == ("inventory", "order", "payment", "shipping")
    assert len(graph.events) == 15
    assert ends(graph.list_producers("OrderPlaced")) == {CLIENTS}
    assert ends(graph.list_consumers("OrderPlaced")) == {
        "inventory.set_aside", "order.expire", "payment.reserve", "shipping.book"
    }  # fmt: skip
    assert ends(graph.list_producers("OrderCancelled")) == {"order.cancel", "order.expire"}
    assert ends(graph.list_consumers("OrderCancelled")) == {"inventory.put_back", "payment.release", "shipping.unbook"}
    assert ends(graph.list_consumers("PaymentCaptured")) == {OTHERS}


def test_a_self_consumed_event_is_no_arrow() -> None:
    graph = make_graph(ORDER.values())
    assert ends(graph.list_consumers("PaymentReserved")) == {"shipping.book"}
    assert graph.reactions["payment", "capture"].takes == (("OrderConfirmed",),)
    assert graph.reactions["payment", "release"].takes == (("OrderCancelled",),)
    assert graph.reactions["shipping", "book"].takes == (("OrderPlaced",), ("PaymentReserved",), ("InventoryReserved",))


def test_an_own_event_that_alone_triggers_a_handler_is_an_arrow() -> None:
    graph = make_graph(PARCEL.values())
    assert ends(graph.list_consumers("DeliveryTried")) == {"courier.try_again"}


def test_an_older_manifest_that_knows_no_outcomes_is_drawn_too() -> None:
    old = parse_choreography("a.begin: Asked -> Done\nb.end: Done\nb.undo undoes end: Failed -> Undone")
    graph = make_graph(old.values())
    assert ends(graph.list_producers("Asked")) == {UNKNOWN}
    assert ends(graph.list_consumers("Failed")) == {"b.undo"}
    assert section_names(graph).keys() == {None}


def test_a_compensation_is_triggered_by_failures_only() -> None:
    text = """
        event Asked starts
        event Failed failure
        a.begin: Asked -> Begun
        a.give_up: Asked -> Failed
        a.undo undoes begin: Failed + Begun
    """
    graph = make_graph(parse_choreography(text).values())
    assert graph.reactions["a", "undo"].takes == (("Failed",),), "though its own service emits the failure, too"


def test_an_own_event_that_others_may_emit_too_comes_from_the_log() -> None:
    text = """
        event Asked starts
        a.bring: Call -> Asked
        a.begin: Asked + Paid -> Begun
        b.pay: Begun -> Paid
        a.wait: Asked + Begun? -> Done
    """
    graph = make_graph(parse_choreography(text).values())
    assert graph.reactions["a", "begin"].takes == (("Asked",), ("Paid",))
    assert graph.reactions["a", "wait"].optional == ()


def test_the_change_of_a_document_is_an_item_that_comes_from_its_collection() -> None:
    graph = make_graph([make_manifest(intake.declared)])
    [change] = [event for event in graph.events.values() if event.collection]
    assert change.collection == "orders"
    assert ends(graph.list_producers(change.name)) == {"documents: orders"}
    assert ends(graph.list_producers("OrderPlaced")) == {CLIENTS, "intake.place"}


def test_an_event_description_of_one_manifest_holds_for_all() -> None:
    manifests = dict(TRAVEL)
    silent = [
        ConsumedContract(contract=each.contract, version=1, topic=each.topic, key=each.key, fields="all")
        for each in manifests["car-rental"].consumes
    ]
    manifests["car-rental"] = replace(manifests["car-rental"], consumes=tuple(silent), emits=())
    whole = replace(manifests["traveller"], service="zoo")
    manifests["a"] = replace(
        manifests["car-rental"],
        service="a",
        consumes=tuple(replace(each, outcome=None, starts=False) for each in manifests["trip"].consumes),
    )
    events = make_graph([*manifests.values(), whole]).events
    assert events["TripAbandoned"].outcome == "failure"
    assert events["TripRequested"].starts
    assert events["TripRequested"].produced_externally


# -------------------------------------------------------------------- order


@pytest.mark.parametrize("name", [*ALL])
def test_every_event_is_in_one_section_below_one_of_its_causes(name: str) -> None:
    graph = make_graph(ALL[name].values())
    sections = list_sections(graph)
    order = [event for section in sections for event in section.events]
    assert sorted(order) == sorted(graph.events)
    at = {event: number for number, event in enumerate(order)}
    for event in order:
        made_by = [graph.reactions.get((each.participant, each.reaction)) for each in graph.list_producers(event)]
        causes = [
            max(min(at[name] for name in part) for part in reaction.takes) if reaction is not None else -1
            for reaction in made_by
        ]
        assert min(causes) < at[event], event


def test_sections_are_before_the_outcome_after_success_and_after_failure() -> None:
    sections = section_names(make_graph(ORDER.values()))
    assert list(sections) == [None, "success", "failure"]
    assert sections[None][0] == "OrderPlaced"
    assert set(sections[None][1:]) == {
        "InventoryReserved", "InventoryRejected", "PaymentReserved", "PaymentDeclined", "ShipmentBooked",
        "ShipmentRefused",
    }  # fmt: skip
    assert sections["success"][0] == "OrderConfirmed"
    assert set(sections["success"][1:]) == {"InventoryHandedOut", "PaymentCaptured", "ShipmentDispatched"}
    assert sections["failure"][0] == "OrderCancelled"
    assert set(sections["failure"][1:]) == {"InventoryPutBack", "PaymentReleased", "ShipmentUnbooked"}


def test_events_possible_before_the_outcome_are_in_the_first_section() -> None:
    text = """
        event Asked starts
        event Done success
        event Failed failure
        a.note: Asked | Done | Failed -> Noted
        b.end: Asked -> Done | Failed
        c.print: Done | Failed -> Printed
    """
    assert section_names(make_graph(parse_choreography(text).values())) == {
        None: ("Asked", "Noted"),
        "success": ("Done", "Printed"),
        "failure": ("Failed",),
    }


def test_a_chain_of_events_stays_together() -> None:
    graph = make_graph(
        parse_choreography(
            """
            event Asked starts
            a.one: Asked -> A1
            b.one: Asked -> B1
            c.two: A1 -> A2
            d.two: B1 -> B2
            """
        ).values()
    )
    [section] = list_sections(graph)
    assert section.events in (("Asked", "A1", "A2", "B1", "B2"), ("Asked", "B1", "B2", "A1", "A2"))


def test_a_circle_of_events_has_an_order_too() -> None:
    graph = make_graph(parse_choreography("a.ping: Pong -> Ping\nb.pong: Ping -> Pong").values())
    [section] = list_sections(graph)
    assert set(section.events) == {"Ping", "Pong"}


# -------------------------------------------------------------------- parts


def test_a_part_of_the_graph_has_only_what_follows_from_one_start_event() -> None:
    text = """
        event Asked starts
        event Complained starts
        a.answer: Asked -> Answered
        b.check: Complained -> Checked
        c.archive: Answered | Checked -> Archived
    """
    reached = select_reached(make_graph(parse_choreography(text).values()), "Asked")
    assert set(reached.events) == {"Asked", "Answered", "Archived"}
    assert set(reached.reactions) == {("a", "answer"), ("c", "archive")}
    assert reached.services == ("a", "c")
    assert ends(reached.list_producers("Asked")) == {CLIENTS}


def test_a_start_event_reaches_deadlines_and_compensations() -> None:
    whole = make_graph(LOAN.values())
    assert set(select_reached(whole, "LoanApplied").events) == set(whole.events)
    late = select_reached(whole, "LoanReferred")
    assert {"ReviewOverdue", "LoanDenied", "CollateralReleased"} <= set(late.events)
    assert {"LoanApplied", "ScoreComputed", "IdentityDoubtful"}.isdisjoint(late.events)


def test_neighbours_are_who_sends_to_a_service_and_who_gets_its_events() -> None:
    part = select_neighbours(make_graph(ORDER.values()), ["payment"])
    assert part.services == ("order", "payment", "shipping")
    assert set(part.events) == {
        "OrderPlaced", "OrderConfirmed", "OrderCancelled", "PaymentReserved", "PaymentDeclined", "PaymentCaptured",
        "PaymentReleased",
    }  # fmt: skip
    assert ends(part.list_consumers("OrderPlaced")) == {"payment.reserve"}
    assert ends(part.list_consumers("PaymentReserved")) == {"shipping.book"}
    assert ends(part.list_producers("OrderCancelled")) == {"order.cancel", "order.expire"}


@given(st.sampled_from(sorted(ALL)), st.data())
def test_a_part_has_nothing_that_the_whole_has_not(name: str, data: st.DataObject) -> None:
    whole = make_graph(ALL[name].values())
    start = data.draw(st.sampled_from(sorted(whole.events)))
    services = data.draw(st.sets(st.sampled_from(whole.services), min_size=1, max_size=3))
    for part in (select_reached(whole, start), select_neighbours(whole, services)):
        assert set(part.links) <= set(whole.links)
        assert {each.event for each in part.links} == set(part.events)
        inside = {each.participant for each in part.links if not is_outside(each.participant)}
        assert inside == set(part.services)
    assert start in select_reached(whole, start).events
    assert services <= set(select_neighbours(whole, services).services)
