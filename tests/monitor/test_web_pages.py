"""Pages of the monitor: what services have written and published is shown, escaped, whatever it is."""

import asyncio
import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from saga.configuration.settings import Settings
from saga.engine.persistence import dead_letters
from saga.messaging.controls import Switch
from saga.monitor.views import SagaFilter
from saga.monitor.web import letter_pages, operator_console, pages
from saga.monitor.web.guards import FormFields
from saga.monitor.web.site import build_environment
from saga.monitor.web.users import format_user_line
from saga.support.clock import iso
from tests.cli.conftest import ROOT
from tests.cli.example_runs import an_order, open_shop
from tests.cli.test_listing import NOW_MS, a_letter, publish_letters, put
from tests.cli.test_showing import edit, undoing
from tests.monitor.asking import CLOCK, Browser, Seen, browsing
from tests.monitor.fixed_views import FixedViews
from tests.monitor.test_web_acting import shown
from tests.progress.pieces import a_message, kept

HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "</title></td></table><style>*{display:none}</style>",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "a\n\x1b[2J\u202egnp.exe\u200b b",
    "100%&id=2#%00",
    "é東京",
    "long " * 900,
)
TAGS = frozenset((
    "html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "ul", "li", "form", "label",
    "input", "button", "div", "span", "main", "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "time",
    "details", "summary", "code", "dl", "dt", "dd", "ol", "fieldset", "legend", "select", "option", "strong", "section",
    "svg", "rect", "circle", "path", "g", "text", "footer", "noscript", "wbr", "progress",
))  # fmt: skip
ONLY_OURS = {"link": ("/assets/",), "script": ("/assets/",), "form": ("/",), "a": ("/", "#main")}


def is_clean(seen: Seen) -> None:
    """Check that the page has nothing but what our templates have: no element, event or address of anybody else."""
    for tag, attrs in seen.elements:
        assert tag in TAGS, (tag, attrs)
        assert not [name for name in attrs if name.startswith("on") or name in ("style", "srcdoc", "formaction")], attrs
        if tag in ONLY_OURS:
            where = attrs.get("href") or attrs.get("src") or attrs.get("action") or "/"
            assert where.startswith(ONLY_OURS[tag]), (tag, attrs)
            assert where.isascii(), where
            assert not where.startswith(("//", "/\\")), where
    assert len(seen.open) == 0
    assert seen.text.isprintable()


PAGES = (
    "/overview",
    "/sagas",
    "/stuck",
    "/rates",
    "/dead",
    "/dead?now=all",
    "/dead/list",
    "/dead/bulk/new",
    "/graph",
    "/controls",
    "/audit",
)


async def test_what_services_published_is_shown_escaped(folder: Path) -> None:
    views = FixedViews("")
    async with browsing(Settings(), views) as browser:
        for text in HOSTILE:
            views.text, views.services = text, (text,)
            await _asked(browser, text)


async def _asked(browser: Browser, text: str) -> None:
    for path in (
        *PAGES,
        f"/saga?id={quote(text)}",
        f"/sagas?text={quote(text)}",
        f"/dead?text={quote(text)}",
        f"/dead/list?text={quote(text)}",
        *(f"{page}{'&' if '?' in page else '?'}{quote(text, safe='')}=1" for page in PAGES),
    ):
        is_clean(await browser.get(path))
    is_clean(await browser.get(f"/saga?id={quote('x' + text)}", 404))
    is_clean(await browser.get(f"/audit?service={quote('x' + text)}", 404))
    is_clean(await browser.get(f"/dead/letter?letter=a/{quote(text, safe='')}", 404))


@pytest.mark.parametrize("name", ["path", "query", "self", "request"])
async def test_a_page_accepts_an_address_with_a_parameter_of_any_name(folder: Path, name: str) -> None:
    async with browsing(Settings(), FixedViews("order-")) as browser:
        for page in PAGES:
            await browser.get(f"{page}{'&' if '?' in page else '?'}{name}=1")


async def test_what_services_have_written_down_is_shown_escaped(folder: Path) -> None:
    ids = [text[:200] for text in HOSTILE]
    async with open_shop(folder / ".saga") as shop:
        for id_ in ids:
            await shop.settle(an_order(id_, card="broken"))
    async with browsing(Settings()) as browser:
        page = await browser.get("/dead/list")
        is_clean(page)
        letters = page.links("/dead/letter")
        assert len(letters) == len(ids)
        for path in letters:
            is_clean(await browser.get(path))
        sagas = page.links("/saga?id=")
        assert len(set(sagas)) == len(ids)
        for path in sagas:
            seen = await browser.get(path)
            is_clean(seen)
            assert "the bank does not know such cards" in seen.text, path


@pytest.fixture
def charges_are_sensitive(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contracts that the shop's sagas are shown by call a field sensitive that its services have emitted."""
    contracts = shop / "contracts"
    shutil.copytree(ROOT / "contracts", contracts)
    monkeypatch.setenv("SAGA_CONTRACTS", str(contracts))
    file = contracts / "payments" / "PaymentReserved.v1.avsc"
    schema = json.loads(file.read_text())
    for field in schema["fields"]:
        field |= {"sensitive": True} if field["name"] == "charge_id" else {}
    file.write_text(json.dumps(schema))


async def test_a_saga_is_one_timeline_with_what_is_open_and_sensitive_values_hidden(
    shop: Path, charges_are_sensitive: None
) -> None:
    async with browsing(Settings()) as browser:
        page = await browser.get("/saga?id=order-3")
        assert "No outcome yet" in page.text
        assert "OrderPlaced for reserve is a dead letter and blocks the saga" in page.text
        assert "expire runs at " in page.text
        assert "Dead letters and escalations" in page.text
        assert "broken" not in page.text, "cards are sensitive"
        done = await browser.get("/saga?id=order-1")
        assert "Ended with OrderConfirmed" in done.text
        assert "Still open" not in done.text
        assert "PaymentReserved" in done.text
        assert '"charge_id": "***", "amount": "9.80"' in done.text
        assert "update set_aside" in done.text
        missing = await browser.get("/saga?id=order-99", 404)
        assert "no service knows saga order-99" in missing.text
        assert "Its first event may not be handled yet" in missing.text
        assert not missing.links("/sagas"), "nothing is folded here"
    async with browsing(Settings(), FixedViews("order-", count=0)) as browser:
        assert (await browser.get("/saga?id=99", 404)).links("/sagas?text=") == ["/sagas?text=99"]
        assert (await browser.client.get("/saga")).status_code == 404


async def test_an_ended_saga_has_nothing_open_but_what_a_service_still_has_to_do(shop: Path) -> None:
    edit(shop, "shipping", "order-1", waiting=(kept("other", a_message("B")),))
    async with browsing(Settings()) as browser:
        done = await browser.get("/saga?id=order-1")
        assert "Saga order-1 is finished" in done.text
        assert "Still open" not in done.text
        assert "Left over: 1 message of handlers that wait for further events; nothing is to be done" in done.text
        assert "shipping : B for other: its other events did not come before the end" in done.text
        edit(shop, "payment", "order-1", intents=(undoing(),))
        seen = await browser.get("/saga?id=order-1")
        assert "Still open after the outcome payment : release undoes what reserve did" in seen.text
        assert "shipping : B for other is waiting" in seen.text
        assert "Left over" not in seen.text


async def test_needs_a_person_is_filtered_and_each_dead_letter_shows_everything(shop: Path) -> None:
    async with browsing(Settings()) as browser:
        page = await browser.get("/dead/list")
        [path] = page.links("/dead/letter")
        assert "Permanent: the bank does not know such cards" in page.text
        for query, found in (
            ("text=order-3", 1), ("text=order-4", 0), ("service=payment", 1), ("service=order", 0),
            ("what=escalation", 0),
            ("text=such+cards&now=open", 1), ("class=data", 0), ("class=outside", 1), ("at=50", 0), ("at=x", 1),
        ):  # fmt: skip
            seen = await browser.get(f"/dead/list?{query}")
            assert len(seen.links("/dead/letter")) == found, query
            assert ("Nothing matches these filters." in seen.text) == (not found and query != "at=50"), query
        letter = await browser.get(path)
        assert "Dead letter of order-3" in letter.text
        for text in (
            "handler reserve",
            "event OrderPlaced",
            "attempts 1",
            "What to do",
            "Lines of the service",
            "ce_subject",
        ):
            assert text in letter.text, text
        assert not [form for form in letter.forms if form.action == "/dead/act"], "no user has signed in"


async def test_empty_and_missing_and_broken_parts_are_shown_as_such(folder: Path) -> None:
    async with browsing(Settings()) as browser:
        assert "No service has a store here yet." in (await browser.get("/controls")).text
        assert "No service has a store here yet." in (await browser.get("/audit")).text
        empty = await browser.get("/dead/list")
        assert "A part could not be read" in empty.text, "there is no store"
        assert "Nothing needs a person." not in empty.text, "it is not known"
        assert "there is no such page" in (await browser.get("/no-such-page", 404)).text
        assert (await browser.client.post("/dead", headers={"origin": "http://127.0.0.1:8090"})).status_code == 405
        first = await browser.client.get("/")
        assert (first.status_code, first.headers["location"]) == (303, "/dead")
        assert (await browser.client.get("/sagas")).status_code == 404, "nothing is folded here"
    (folder / "other.db").write_bytes(b"no database at all" * 100)
    async with browsing(Settings(store="sqlite:///other.db")) as browser:
        broken = await browser.get("/saga?id=order-1", 503)
        assert "other.db" in broken.text
        assert "other.db" in (await browser.get("/dead/list")).text


async def test_sagas_are_searched_filtered_and_paged(folder: Path) -> None:
    views = FixedViews("order-", count=120, services=3)
    async with browsing(Settings(), views) as browser:
        first = await browser.client.get("/")
        assert first.headers["location"] == "/overview"
        page = await browser.get("/sagas?text=order&state=dead&outcome=none&age=1h&service=service-1")
        assert len(page.links("/saga?id=")) == 50
        which, asked = views.asked[-1]
        assert which == SagaFilter(
            text="order", service="service-1", outcome="none", before_ms=which.before_ms, dead=True, open=False
        )
        assert which.before_ms is not None
        assert (asked.limit, asked.after) == (50, "")
        [behind] = [attrs.get("href") or "" for _, attrs in page.elements if attrs.get("rel") == "next"]
        second = await browser.get(behind)
        assert views.asked[-1][1].after == "50"
        assert views.asked[-1][0].dead, "filters stay"
        assert second.links("/saga?id=")[0] == "/saga?id=order-50"
        assert [href for href in second.links("/sagas?") if "after=" not in href]
        for state, holds in (("open", "open"), ("stuck", "stuck_ms"), ("nonsense", "")):
            await browser.get(f"/sagas?state={state}")
            assert not holds or getattr(views.asked[-1][0], holds), state
        assert "120 sagas are known here." in page.text
        views.count = 201
        stuck = await browser.get("/stuck")
        assert "201 stuck; 100 on this page" in stuck.text
        shown = 0
        while more := [attrs.get("href") or "" for _, attrs in stuck.elements if attrs.get("rel") == "next"]:
            shown += len(stuck.links("/saga?id="))
            stuck = await browser.get(more[0])
        assert shown + len(stuck.links("/saga?id=")) == 201, "none is hidden"
    async with browsing(Settings(), FixedViews("order-", count=0)) as browser:
        assert "No service has reported a saga yet." in (await browser.get("/sagas")).text
        assert "No saga matches these filters." in (await browser.get("/sagas?text=x")).text
        assert "No saga is stuck." in (await browser.get("/stuck")).text
        rates = await browser.get("/rates")
        assert "Nothing failed." in rates.text
        assert "No saga or partition gets much more than the others." in rates.text


async def test_a_saga_that_no_store_has_is_shown_from_its_transition_events(folder: Path) -> None:
    async with browsing(Settings(), FixedViews("order-")) as browser:
        page = await browser.get("/saga?id=order-")
        assert "These are the published transitions, without contents" in page.text
        assert "2 older transitions are not shown" in page.text
        assert "Awaited" in page.text


async def test_a_saga_is_shown_from_its_transition_events_if_its_store_cannot_be_read(folder: Path) -> None:
    (folder / "other.db").write_bytes(b"no database at all" * 100)
    async with browsing(Settings(store="sqlite:///other.db"), FixedViews("order-")) as browser:
        page = await browser.get("/saga?id=order-")
        assert "These are the published transitions, without contents" in page.text
        assert "other.db" in page.text, "why the store cannot be read"


async def test_times_are_in_utc_with_milliseconds(folder: Path) -> None:
    async with browsing(Settings(), FixedViews("order-", began_ms=1_795_270_000_123)) as browser:
        page = await browser.get("/sagas")
        assert "2026-11-21 14:06:40.123" in page.text
        assert "Times are UTC." in page.text


async def test_every_cell_has_the_label_of_its_column_for_narrow_screens(shop: Path) -> None:
    async with browsing(Settings(), FixedViews("order-", count=3)) as browser:
        for path in (*PAGES, "/saga?id=order-3", "/audit?service=payment"):
            page = await browser.get(path)
            cells = [attrs for tag, attrs in page.elements if tag == "td"]
            assert [attrs for attrs in cells if not attrs.get("data-label")] == [], path


async def test_rates_have_small_plots_that_can_be_read_aloud(folder: Path) -> None:
    async with browsing(Settings(), FixedViews("reserve", services=25)) as browser:
        page = await browser.get("/rates")
        plots = [attrs for tag, attrs in page.elements if tag == "svg"]
        assert len(plots) == 25
        assert plots[0]["aria-label"] == "transitions a minute, the last 15 minutes: at most 24, now 10, failures 21"
        assert plots[0]["role"] == "img"
        assert page.text.count("retries more often than it finishes") == 1


@pytest.mark.parametrize("path", ["/sagas", "/stuck", "/rates", "/errors", "/hot", "/trace/order-%2F"])
async def test_the_same_is_answered_in_json(folder: Path, path: str) -> None:
    async with browsing(Settings(), FixedViews("order-/")) as browser:
        answer = await browser.client.get(f"/api{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert "order-/" in json.dumps(json.loads(answer.text))
        assert answer.headers["cache-control"] == "no-store"
        assert (await browser.client.get("/api/trace/other")).status_code == 404
        assert (await browser.client.get("/api/sagas?state=escalated")).status_code == 400


async def test_every_answer_has_headers_that_limit_what_a_browser_may_do_with_it(folder: Path) -> None:
    async with browsing(Settings(), FixedViews("order-")) as browser:
        for path in (*PAGES, "/no-such-page", "/assets/style.css", "/assets/page.js", "/assets/icon.svg", "/api/rates"):
            headers = (await browser.client.get(path)).headers
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy, path
            assert "unsafe" not in policy, path
            assert "http" not in policy, path
            assert "frame-ancestors 'none'" in policy, path
            assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "same-origin"), path
            assert headers["cache-control"] == "no-store", path
        for path in ("/assets/../app.py", "/assets/%2e%2e/app.py", "/assets/..%2f..%2fapp.py"):
            assert (await browser.client.get(path)).status_code == 404, path


@pytest.fixture
async def signed_in(shop: Path) -> None:
    (shop / "users").write_text(format_user_line("ada", "correct horse"))


async def act(browser: Browser, *more: tuple[str, str], status: int = 400) -> str:
    page = await browser.get("/dead/list")
    form = next(form for form in page.forms if form.action == "/dead/act")
    return Seen((await browser.send(form, *more, status=status)).text).text


def publish_two(shop: Path) -> None:
    publish_letters(
        shop, *(dead_letters.to_outgoing("payment", a_letter(n), iso(NOW_MS + n), "here", None) for n in range(2))
    )


async def test_dead_letters_that_are_not_searched_and_old_readings_are_shown_as_such(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await asyncio.to_thread(publish_two, shop)
    async with browsing(Settings()) as browser:
        await shown(browser, "/dead/list?now=all&text=zzz", "Nothing matches these filters")
        monkeypatch.setattr(operator_console, "OLD_S", -1e9)
        assert "seconds old: reading it again takes long." in (await browser.get("/dead/list")).text
    monkeypatch.setattr(operator_console, "LETTERS_MAX", 1)
    monkeypatch.setattr(letter_pages, "LETTERS_MAX", 1)
    async with browsing(Settings()) as browser:
        await shown(browser, "/dead/list?now=all&text=zzz", "None of the newest 1 matches; older ones")


async def test_what_is_asked_wrongly_is_refused_with_what_to_do(shop: Path, signed_in: None) -> None:
    async with browsing(Settings(monitor_users="users")) as browser:
        await browser.sign_in("ada", "correct horse")
        letter = ("letter", "payment/x")
        why, flag = ("why", "to see"), (("service", "payment"), ("kind", "flag"), ("flag", "new"))
        assert "no dead letter is chosen" in await act(browser, ("wanted", "replay"), why)
        assert "names no dead letter" in await act(browser, ("wanted", "replay"), why, ("letter", "x"))
        assert "the form has no action" in await act(browser, letter, why)
        assert "a reason is missing" in await act(browser, letter, ("wanted", "replay"), ("why", "  "))
        resolve = (letter, why, ("wanted", "resolve"))
        for text, *fields in (
            ("the step is missing", ("answered", "1")),
            ("give either", ("step", "charge")),
            ("give either", ("step", "charge"), ("answered", "1"), ("raised", "X")),
            ("give its name, too", ("step", "charge"), ("answered", "1"), ("arguments", "[]")),
            ("is no JSON", ("step", "charge"), ("answered", "ch-1")),
            ("must be 1 or more", ("step", "charge"), ("answered", "1"), ("number", "0")),
            ("choose one", ("step", "charge"), ("answered", "1"), ("letter", "payment/y")),
        ):
            assert text in await act(browser, *resolve, *fields), fields
        gone = await act(browser, letter, why, ("wanted", "replay"), status=303)
        assert gone == ""
        assert "payment: x no longer blocks a saga" in (await browser.get("/dead/list")).text
        assert "no longer blocks a saga" not in (await browser.get("/dead/list")).text, "it is shown once"
        controls = await browser.get("/controls")
        form = next(form for form in controls.forms if form.action == "/controls/switch")
        for text, *fields in (
            ("no service nobody has a store", ("service", "nobody"), why),
            ("a reason is missing", ("service", "payment")),
            ("no time", ("service", "payment"), why, ("until", "soon")),
            ("no number", ("service", "payment"), why, ("kind", "limit"), ("rate", "many")),
            ("a whole number", ("service", "payment"), why, ("kind", "limit"), ("at_once", "1.5")),
            ("the form has no control", ("service", "payment"), why, ("kind", "x")),
            ("give a percentage, or one saga", *flag, why),
            ("100 or 0 percent, not 10", *flag, why, ("percent", "10"), ("saga", "order-3")),
            ("needs its resource or its handler", ("service", "payment"), why, ("kind", "limit"), ("rate", "1")),
        ):
            answer = await browser.send(form, *fields, status=400)
            assert text in Seen(answer.text).text, fields


async def test_the_page_of_a_saga_explains_why_it_is_not_finished(shop: Path) -> None:
    async with browsing(Settings()) as browser:
        seen = await browser.get("/saga?id=order-3")
        is_clean(seen)
        assert "Why is it not finished?" in seen.text
        assert "Saga order-3 waits for PaymentReserved or PaymentDeclined." in seen.text
        assert "saga dead replay payment --saga order-3 --who NAME --why REASON" in seen.text
        assert "PaymentReserved (missing) payment.reserve after OrderPlaced" in seen.text
        assert "ShipmentBooked (open)" in seen.text
        assert "whether the services run is not known: there is no file" in seen.text
        [line] = [attrs for tag, attrs in seen.elements if tag == "path" and attrs.get("class") == "missing"]
        assert line["d"]
        finished = await browser.get("/saga?id=order-2")
        assert "Saga order-2 is finished: it ended with OrderCancelled (failure)" in finished.text
        assert "InventoryReserved (compensated)" in finished.text


async def test_the_page_of_a_saga_needs_no_contracts(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monitor may run in any folder: without contracts only the fields of events are not shown."""
    monkeypatch.delenv("SAGA_CONTRACTS")
    async with browsing(Settings()) as browser:
        seen = await browser.get("/saga?id=order-3")
        assert "there is no folder contracts/" in seen.text
        assert "Saga order-3 waits for reserve in payment to handle OrderPlaced." in seen.text
        assert "Ended with OrderCancelled , failure" in (await browser.get("/saga?id=order-2")).text


async def test_a_saga_whose_only_progress_cannot_be_read_is_not_unknown(shop: Path) -> None:
    for name in ("order", "inventory", "shipping", "tally"):
        (shop / ".saga" / f"{name}.db").unlink()
    put(shop / ".saga" / "payment.db", ("payment::order-1", b"rubbish"))
    async with browsing(Settings()) as browser:
        seen = await browser.get("/saga?id=order-1")
        assert "saga order-1 in payment: a progress document cannot be read" in seen.text
        assert "Saga order-1 waits for a run in payment." in seen.text
        assert "no service knows" not in seen.text


@pytest.mark.parametrize(
    "control",
    [
        Switch(flag="new  price", percent=100, saga=" order\u200b  1%20"),
        Switch(kind="pause", handler="reserve"),
        Switch(kind="pause"),
        Switch(kind="route", event="OrderPlaced"),
    ],
)
def test_the_button_that_ends_a_control_names_it_exactly(control: Switch) -> None:
    template = build_environment().from_string(
        '{% for name, value in fields %}<input name="{{ name }}" value="{{ value }}">{% endfor %}'
    )
    seen = Seen(f"<form>{template.render(fields=pages._list_fields_to_end(control))}</form>")
    ended = pages.parse_switch(FormFields(seen.forms[0].fields), CLOCK)
    names = [(each.flag, each.saga, each.kind, each.handler, each.event) for each in (ended, control)]
    assert names[0] == names[1]
    assert ended.off or (ended.kind == "flag" and ended.percent == 0)
