"""Graph on the monitor's page: who says what to whom, each at a place of its own, whatever the choreography is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga.choreography.overview import Overview
from saga.choreography.releases import manifest_folder, read_manifests
from saga.configuration.settings import Settings
from saga.contracts.library import find_library
from saga.monitor.web.diagrams import CLIENTS, HEAD_Y, LABELS_X, OTHERS, EventFlow, draw_graph, list_events
from tests.monitor.asking import browsing
from tests.monitor.told_views import ToldViews

SERVICES = [f"service-{n}" for n in range(25)]
WHO = st.lists(st.sampled_from(SERVICES), min_size=1, max_size=4, unique=True).map(tuple)
SAID = st.builds(EventFlow, st.sampled_from([f"Event{n}" for n in range(40)]), st.none(), WHO, WHO)


@given(st.lists(st.sampled_from(SERVICES), unique=True), st.lists(SAID, max_size=40))
def test_everything_has_a_place_of_its_own_inside_the_picture(services: list[str], events: list[EventFlow]) -> None:
    picture = draw_graph(services, events)
    names = [column.name for column in picture.columns]
    assert sorted(names) == sorted(
        {*services, *(name for flow in events for name in (*flow.producers, *flow.consumers))}
    )
    x = {column.name: column.x for column in picture.columns}
    assert len({*x.values()}) == len(names)
    assert all(LABELS_X < each < picture.width for each in x.values())
    assert [row.flow for row in picture.rows] == events
    assert len({row.y for row in picture.rows}) == len(events)
    for row in picture.rows:
        assert HEAD_Y < row.y < picture.height
        assert row.begins == tuple(x[name] for name in row.flow.producers)
        assert row.ends == tuple(x[name] for name in row.flow.consumers)
        assert (row.left, row.right) == (min(*row.begins, *row.ends), max(*row.begins, *row.ends))


def test_those_outside_stand_at_the_edges() -> None:
    events = [EventFlow("B", None, ("b",), (OTHERS, "c")), EventFlow("A", None, (CLIENTS,), ("a", "b"))]
    assert [(c.name, c.is_outside) for c in draw_graph(["d"], events).columns] == [
        (CLIENTS, True), ("b", False), ("c", False), ("a", False), ("d", False), (OTHERS, True)
    ]  # fmt: skip


def test_an_event_stands_below_one_that_causes_it() -> None:
    library = find_library(Path(__file__))
    overview = Overview(library, read_manifests(manifest_folder(library)))
    order = [said.event for said in list_events(overview)]
    assert order[0] == "OrderPlaced"
    assert len(order) == len({*order}) == len(library.contracts)
    known = {said.event: said for said in list_events(overview)}
    assert known["OrderPlaced"].producers == (CLIENTS,)
    assert known["OrderConfirmed"].outcome == "success"
    assert set(known["OrderCancelled"].consumers) == {"payment", "inventory", "shipping"}
    for event, cause in (
        ("PaymentReserved", "OrderPlaced"),
        ("ShipmentBooked", "PaymentReserved"),
        ("PaymentCaptured", "OrderConfirmed"),
    ):
        assert order.index(cause) < order.index(event)


async def test_the_example_is_drawn_from_its_contracts_and_manifests(folder: Path) -> None:
    views = ToldViews("payment")
    async with browsing(Settings(), views) as browser:
        page = await browser.get("/graph")
    for told in (
        "OrderPlaced clients inventory, order, payment, shipping",
        "OrderConfirmed success order",
        "PaymentDeclined payment order",
    ):
        assert told in page.text, told
    [label] = [attrs["aria-label"] for tag, attrs in page.elements if tag == "svg"]
    assert label == "6 columns, 15 events: the table below has the same content"
    assert "2.00 a second" in page.text
    assert "payment retries more often than it finishes" in page.text


async def test_without_contracts_or_manifests_it_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("SAGA_CONTRACTS", str(tmp_path_factory.mktemp("elsewhere") / "contracts"))
    async with browsing(Settings()) as browser:
        page = await browser.get("/graph")
        assert "SAGA_CONTRACTS is " in page.text
        assert not [tag for tag, _ in page.elements if tag == "svg"]
