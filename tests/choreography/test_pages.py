"""Generated pages: producers, consumers and the effects of a failure; text of a contract is always escaped."""

import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest

from saga.choreography.overview import Overview
from saga.choreography.pages import list_readers, render_pages
from saga.choreography.releases import read_manifests
from saga.contracts.library import Library
from tests.choreography.odd_shop import odd_shop, overview_of

ROOT = Path(__file__).parents[2]
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "header", "nav", "main", "footer"),
    *("h1", "h2", "h3", "h4", "p", "ul", "li", "a", "code", "span", "strong", "div"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
VOID = {"meta"}


class Page(HTMLParser):
    """Tags, links, ids and text of a page; a tag that is closed wrongly is reported."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.words: list[str] = []
        self.style = ""
        self.html = html
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def links(self) -> list[str]:
        return [value or "" for name, value in self.attributes if name == "href"]

    @property
    def ids(self) -> set[str | None]:
        return {value for name, value in self.attributes if name == "id"}


@pytest.fixture(scope="module")
def shop() -> Mapping[str, Page]:
    overview = Overview(Library.load(ROOT / "contracts"), read_manifests(ROOT / "manifests"))
    return {name: Page(html) for name, html in render_pages(overview, "The order saga")}


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Page]:
    overview = overview_of(odd_shop(tmp_path_factory.mktemp("odd")))
    return {name: Page(html) for name, html in render_pages(overview, '<b>"Odd"</b>')}


def test_there_is_a_page_for_each_event_and_service(shop: Mapping[str, Page]) -> None:
    events = {path.name.partition(".")[0] for path in (ROOT / "contracts").rglob("*.avsc")}
    services = {"order", "payment", "inventory", "shipping"}
    wanted = {*(f"events/{name}.html" for name in events), *(f"services/{name}.html" for name in services)}
    assert set(shop) == {"index.html", *wanted}


def test_a_page_names_who_emits_an_event_and_who_consumes_it(shop: Mapping[str, Page]) -> None:
    text = shop["events/PaymentReserved.html"].text
    assert "Who emits it service by as version payment payment.reserve 1 Who consumes it" in text
    assert "payment from its own progress payment.capture , payment.release 1 amount , charge_id , order_id" in text
    assert "shipping shipping.book 1 order_id" in text
    assert "owner payment , the only service that may emit it" in text
    assert "clients external clients" in shop["events/OrderPlaced.html"].text
    assert "external consumers unknown all" in shop["events/PaymentCaptured.html"].text


def test_the_page_of_an_outcome_shows_which_handlers_are_compensated(shop: Mapping[str, Page]) -> None:
    failure = shop["events/OrderCancelled.html"].text
    assert "The saga has failed. Each service compensates its own work:" in failure
    assert "payment.release payment.reserve PaymentReserved OrderCancelled PaymentReleased" in failure
    assert "shipping.unbook shipping.book ShipmentBooked OrderCancelled ShipmentUnbooked" in failure
    assert "The saga has succeeded: nothing of it is compensated" in shop["events/OrderConfirmed.html"].text
    started = shop["events/OrderPlaced.html"].text
    assert (
        "If the saga fails afterwards, work that was done because of it, or ended with it, is compensated:" in started
    )
    assert "payment.release payment.reserve" in started
    assert "order.expire , 15 minutes later, unless the saga has ended; then OrderCancelled" in started
    assert (
        "Nothing is compensated because of it; the saga fails with OrderCancelled ."
        in shop["events/PaymentDeclined.html"].text
    )


def test_the_page_of_an_event_shows_guarantees_and_versions(shop: Mapping[str, Page], odd: Mapping[str, Page]) -> None:
    text = shop["events/OrderPlaced.html"].text
    assert all(f"{word}." in text for word in ("Once", "In order", "Compensated"))
    assert "versions 1; compatibility full_transitive" in text
    assert "card sensitive string The card to be charged. payment" in text
    newer = odd["events/Said.html"].text
    assert newer.index("Version 2 newest") < newer.index("Version 1")
    assert "remark sensitive was note string" in newer, "a mark holds in all versions"
    assert "One of TEA , CAKE" in newer
    assert "leaf string A leaf." in newer
    assert "published in the wire format of a schema registry" in odd["events/Done.html"].text
    assert "odd.answer once for each of several" in newer
    assert "once for each of several" not in odd["events/Failed.html"].text


def test_a_service_that_reads_a_nested_field_reads_its_parent(tmp_path: Path) -> None:
    overview = overview_of(odd_shop(tmp_path))
    hearings = [each for each in overview.consumers("Said") if each.service == "odd"]
    assert list_readers(hearings, "place") == ["odd"]
    assert list_readers(hearings, "street") == []


def test_the_page_of_a_service_shows_its_handlers_and_compensations(
    shop: Mapping[str, Page], odd: Mapping[str, Page]
) -> None:
    text = shop["services/payment.html"].text
    assert "capture OrderConfirmed and PaymentReserved PaymentCaptured bank keys: capture nothing" in text
    assert "release compensation OrderCancelled and PaymentReserved compensates payment.reserve PaymentReleased" in text
    assert "reserve OrderPlaced PaymentReserved , PaymentDeclined bank keys: charge payment.release" in text
    order = shop["services/order.html"].text
    assert "cancel PaymentDeclined or InventoryRejected or ShipmentRefused OrderCancelled" in order
    assert "expire deadline 15 minutes after OrderPlaced unless the saga has ended" in order
    assert "</a> or <a" in shop["services/order.html"].html
    assert "may continue later, when Failed came" in odd["services/odd.html"].text
    assert "unless the saga has ended, or Failed came" in odd["services/odd.html"].text


def test_inconsistent_manifests_are_reported(shop: Mapping[str, Page], odd: Mapping[str, Page]) -> None:
    assert "Loose ends" not in shop["index.html"].text
    text = odd["index.html"].text
    assert "Failed: no service emits it" in text
    assert "Answered: it has no contract here" in text
    assert "No service, as far as these manifests show." in odd["events/Failed.html"].text


def test_every_link_leads_to_a_page_and_a_place_on_it(shop: Mapping[str, Page], odd: Mapping[str, Page]) -> None:
    for found in (shop, odd):
        for name, page in found.items():
            assert page.links
            for link in page.links:
                file, _, place = link.partition("#")
                path = (Path("/") / name).parent.joinpath(file).as_posix() if file else f"/{name}"
                target = str(Path(re.sub(r"/[^/]+/\.\./", "/", path)).relative_to("/"))
                assert target in found or target == "asyncapi.json", f"{name}: {link}"
                assert not place or place in found[target].ids, f"{name}: {link}"


def test_pages_load_nothing_from_elsewhere(shop: Mapping[str, Page], odd: Mapping[str, Page]) -> None:
    for page in (*shop.values(), *odd.values()):
        policy = next(value or "" for name, value in page.attributes if name == "content" and "src" in (value or ""))
        digest = b64encode(sha256(page.style.encode()).digest()).decode()
        assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
        assert not {name for name, _ in page.attributes} & {"src", "srcset", "style", "action"}
        assert not re.search(r"url\(|@import|//", page.style)
        assert not [link for link in page.links if ":" in link or link.startswith("//")]


def test_markup_in_contracts_and_manifests_is_escaped(odd: Mapping[str, Page]) -> None:
    for name, page in odd.items():
        assert set(page.tags) <= TAGS, name
        assert not page.wrong, name
        assert not page.open, name
        assert not [attribute for attribute, _ in page.attributes if attribute.startswith("on")], name
        assert page.text.isprintable(), name
    event_page = odd["events/Said.html"].text
    assert "</style></td><script>alert(1)</script><img src=//evil.example/x onerror=alert(2)>" in event_page
    assert "{{ 7 * 7 }}\\x1b[2J\\u202e" in event_page
    assert '<b>"Odd"</b>' in odd["index.html"].text


def test_colours_follow_the_reader_by_css_alone(shop: Mapping[str, Page]) -> None:
    page = shop["index.html"]
    assert "color-scheme: light dark" in page.style
    assert "@media (prefers-color-scheme: dark)" in page.style
    assert "script" not in page.tags
