"""Graph on the monitor's page: the picture of `saga graph`, with what happens now beside the arrows."""

import re
from pathlib import Path

import pytest

from saga.choreography.graph import ChoreographyGraph, make_graph
from saga.choreography.releases import read_manifests
from saga.choreography.sequence_drawing import STYLE
from saga.configuration.settings import Settings
from saga.monitor.views import (
    EVERYTHING,
    WHOLE_PAGE,
    ErrorClass,
    HandlerRate,
    HandlerRates,
    PageRequest,
    SagaWait,
    StuckFilter,
    StuckSaga,
    StuckSagas,
)
from saga.monitor.web.graph_page import filter_graph
from saga.monitor.web.live_graph import (
    draw_live_graph,
    link_event,
    list_troubles,
    make_live_numbers,
    read_live_numbers,
)
from tests.choreography.test_graph_drawing import find_labels
from tests.monitor.asking import browsing
from tests.monitor.fixed_views import NEWEST_MS, FixedViews
from tests.monitor.test_web_pages import is_clean

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def graph() -> ChoreographyGraph:
    return make_graph(read_manifests(ROOT / "manifests").values())


def a_rate(service: str, handler: str, per_s: float, dead: int = 0, storm: bool = False) -> HandlerRate:
    return HandlerRate(
        service=service,
        handler=handler,
        transitions=1,
        per_s=per_s,
        runs=1,
        retries=0,
        dead=dead,
        p50_ms=1,
        p95_ms=1,
        p99_ms=1,
        queued_p95_ms=1,
        storm=storm,
        slices=(),
    )


def rates_of(*handlers: HandlerRate) -> HandlerRates:
    return HandlerRates(minutes=30, newest_ms=NEWEST_MS, sagas=1, in_flight=1, taken=1, handlers=handlers)


def an_error(service: str, handler: str, error: str, count: int) -> ErrorClass:
    return ErrorClass(service=service, handler=handler, error=error, count=count, last_ms=NEWEST_MS, saga="order-1")


def stuck_at(service: str, handler: str, *events: str) -> StuckSaga:
    awaited = SagaWait(
        service=service, handler=handler, for_=events, since_ms=NEWEST_MS, until_ms=None, ends="something"
    )
    return StuckSaga(saga="order-1", why="waiting", since_ms=NEWEST_MS, measure_ms=1, awaited=awaited)


NOTHING_STUCK = StuckSagas(sagas=(), more=False)


def test_rates_and_errors_are_those_of_handlers_and_services(graph: ChoreographyGraph) -> None:
    rates = rates_of(a_rate("payment", "reserve", 1.5), a_rate("payment", "capture", 0.25))
    errors = (an_error("payment", "reserve", "BankDown", 2), an_error("payment", "reserve", "TimeoutError", 1))
    live = make_live_numbers(graph, rates, errors, NOTHING_STUCK)
    assert live.services == {"payment": "1.75 a second"}
    assert live.rates == {("payment", "reserve"): "1.50 a second", ("payment", "capture"): "0.25 a second"}
    assert live.errors == {("payment", "reserve"): "3 errors"}
    assert live.troubles == set()


def test_a_stuck_saga_is_shown_at_the_arrow_that_it_waits_for(graph: ChoreographyGraph) -> None:
    stuck = (
        stuck_at("shipping", "book", "PaymentReserved"),
        stuck_at("shipping", "book", "PaymentReserved"),
        stuck_at("shipping", "book", "InventoryReserved", "PaymentReserved"),
    )
    live = make_live_numbers(graph, rates_of(), (), StuckSagas(sagas=stuck, more=False))
    assert live.stuck == {
        ("shipping", "book", "PaymentReserved"): "3 stuck",
        ("shipping", "book", "InventoryReserved"): "1 stuck",
    }


def test_a_saga_that_waits_for_a_person_is_stuck_at_all_arrows_of_its_handler(graph: ChoreographyGraph) -> None:
    live = make_live_numbers(graph, rates_of(), (), StuckSagas(sagas=(stuck_at("order", "cancel"),), more=True))
    assert live.stuck == {
        ("order", "cancel", name): "1 or more stuck"
        for name in ("PaymentDeclined", "InventoryRejected", "ShipmentRefused")
    }


def test_a_silent_saga_is_stuck_behind_its_last_event(graph: ChoreographyGraph) -> None:
    silent = stuck_at("shipping", "", "ShipmentBooked")
    live = make_live_numbers(graph, rates_of(), (), StuckSagas(sagas=(silent,), more=False))
    assert live.stuck == {("order", "confirm", "ShipmentBooked"): "1 stuck"}


def test_a_storm_is_worse_than_a_dead_letter() -> None:
    rates = rates_of(
        a_rate("payment", "reserve", 1, dead=1),
        a_rate("payment", "capture", 1, storm=True),
        a_rate("order", "confirm", 1, dead=2),
        a_rate("shipping", "book", 1),
    )
    assert list_troubles(rates) == {
        "payment": "retries more often than it finishes",
        "order": "has had dead letters",
    }


def test_names_lead_to_lists_of_sagas(graph: ChoreographyGraph) -> None:
    addresses = {name: link_event(graph, event) for name, event in graph.events.items()}
    assert addresses["OrderConfirmed"] == "/sagas?outcome=success"
    assert addresses["OrderCancelled"] == "/sagas?outcome=failure"
    assert addresses["PaymentReserved"] == "/sagas?service=payment"
    assert addresses["OrderPlaced"] == "/sagas?service=inventory", "clients have no sagas: the first service that takes"


async def test_the_example_is_drawn_from_its_manifests(folder: Path) -> None:
    views = FixedViews("payment")
    async with browsing(Settings(), views) as browser:
        page = await browser.get("/graph")
        style = await browser.client.get("/assets/graph.css")
        links = page.links("/sagas?")
        for address in dict.fromkeys(links):
            await browser.get(address)
    for text in (
        "OrderPlaced external clients inventory, order, payment, shipping",
        "OrderConfirmed success order",
        "PaymentDeclined payment order",
    ):
        assert text in page.text, text
    labels = [attrs["aria-label"] for tag, attrs in page.elements if tag == "svg"]
    assert labels == ["Services", "Choreography: 4 services, 15 events"]
    assert "2.00 a second" in page.text
    assert "payment retries more often than it finishes" in page.text
    assert (style.text, style.headers["content-type"]) == (STYLE, "text/css; charset=utf-8")
    assert not [tag for tag, _ in page.elements if tag == "style"], "the policy of the page forbids it"
    assert {"/sagas?service=payment", "/sagas?outcome=failure"} <= set(links)


async def test_without_transitions_there_are_no_numbers_and_no_links(folder: Path) -> None:
    async with browsing(Settings()) as browser:
        page = await browser.get("/graph")
    assert [tag for tag, _ in page.elements if tag == "svg"]
    assert "a second" not in page.text
    assert not page.links("/sagas")


async def test_without_contracts_or_manifests_that_is_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("SAGA_CONTRACTS", str(tmp_path_factory.mktemp("elsewhere") / "contracts"))
    async with browsing(Settings()) as browser:
        page = await browser.get("/graph")
        assert "SAGA_CONTRACTS is " in page.text
        assert not [tag for tag, _ in page.elements if tag == "svg"]


class BusyViews(FixedViews):
    """Views of the order saga while payment fails."""

    def rates(self) -> HandlerRates:
        return rates_of(a_rate("payment", "reserve", 1.5, storm=True), a_rate("shipping", "book", 0.5))

    def errors(self) -> tuple[ErrorClass, ...]:
        return (an_error("payment", "reserve", "BankDown", 7),)

    def stuck(self, now_ms: int, which: StuckFilter = EVERYTHING, page: PageRequest = WHOLE_PAGE) -> StuckSagas:
        return StuckSagas(sagas=(stuck_at("shipping", "book", "PaymentReserved"),) * 4, more=False)


def test_numbers_are_beside_the_arrows_that_they_concern(graph: ChoreographyGraph) -> None:
    live = read_live_numbers(graph, BusyViews("order-1"), NEWEST_MS)
    svg = str(draw_live_graph(graph, "busy", live).picture)
    assert {"1.50 a second", "7 errors", "0.50 a second"} <= set(find_labels(svg, "OrderPlaced"))
    assert {"4 stuck", "0.50 a second"} <= set(find_labels(svg, "PaymentReserved"))
    assert "4 stuck" not in find_labels(svg, "InventoryReserved")
    assert re.search(r'<a href="/sagas\?service=shipping&amp;state=stuck"><text [^>]*>4 stuck</text></a>', svg)
    assert re.search(r'<a href="/rates"><text [^>]*>7 errors</text></a>', svg)
    assert "7 errors" not in find_labels(svg, "PaymentReserved"), "errors are where the handler takes its event"


def choose(graph: ChoreographyGraph, **chosen: str) -> ChoreographyGraph:
    live = read_live_numbers(graph, BusyViews("order-1"), NEWEST_MS)
    return filter_graph(graph, live, {"service": "", "event": "", "trouble": "", **chosen})


def test_the_graph_is_shown_around_one_service_or_one_event(graph: ChoreographyGraph) -> None:
    assert choose(graph) == graph
    payment = choose(graph, service="payment")
    assert "payment" in payment.services
    assert {link.event for link in graph.links if link.participant == "payment"} == set(payment.events)
    event = choose(graph, event="PaymentReserved")
    assert "PaymentReserved" in event.events
    assert "OrderPlaced" in event.events, "that leads to it"
    assert "ShipmentBooked" in event.events, "that follows from it"
    assert len(event.events) < len(graph.events)
    both = choose(graph, service="shipping", event="PaymentReserved")
    assert set(both.events) <= set(event.events)
    assert not choose(graph, service="nobody").events
    assert not choose(graph, event="Nothing").events


def test_only_events_are_left_whose_consumers_have_trouble(graph: ChoreographyGraph) -> None:
    troubled = choose(graph, trouble="yes")
    assert {"OrderPlaced", "PaymentReserved"} <= set(troubled.events)
    assert "OrderConfirmed" in troubled.events, "payment takes it, which retries more often than it finishes"
    assert "InventoryRejected" not in troubled.events
    assert {"payment", "shipping"} <= set(troubled.services)
    assert filter_graph(graph, None, {"service": "", "event": "", "trouble": "yes"}) == graph, "nothing is known"


def test_the_heads_of_the_lanes_are_a_picture_of_their_own_and_stand_once(graph: ChoreographyGraph) -> None:
    shown = draw_live_graph(graph, "busy", read_live_numbers(graph, BusyViews("order-1"), NEWEST_MS))
    for name in graph.services:
        assert len(re.findall(rf'class="who"[^>]*>{name}</text>', shown.heads)) == 1
        assert 'class="who"' not in shown.picture
    widths = [re.search(r' width="(\d+)"', each) for each in (shown.heads, shown.picture)]
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[0][1] == widths[1][1], "heads stand above their lanes"
    top = re.search(r'viewBox="0 (\d+) ', shown.picture)
    assert top is not None
    below = re.findall(r'<text class="(?:event|fn|tag)[^"]*" x="[^"]*" y="([^"]+)"', shown.picture)
    assert below
    assert min(map(float, below)) > float(top[1]), "nothing is cut off"


async def test_the_filters_of_the_graph_stand_in_its_address(shop: Path) -> None:
    async with browsing(Settings(), BusyViews("payment")) as browser:
        whole = await browser.get("/graph")
        assert "all services" in whole.text
        some = await browser.get("/graph?service=payment&trouble=yes")
        is_clean(some)
        assert "Clear" in some.text
        none = await browser.get("/graph?event=Nothing")
        assert "Nothing matches these filters." in none.text
        paused = await browser.get("/graph?service=payment&renew=off")
        assert "/graph?service=payment" in paused.links("/graph?")
