"""Pages of the monitor in a real Chromium: nothing is asked of another host, everybody can use them, the keyboard too.

With `SAGA_TEST_PICTURES=folder` it leaves a picture of each page there, light, dark and narrow.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
import uvicorn

from saga.configuration.settings import Settings
from saga.monitor.views import Views
from saga.monitor.web.app import create_app
from saga.monitor.web.users import format_user_line
from tests.monitor.asking import CLOCK
from tests.monitor.chromium import Tab, a_tab, axe, program
from tests.monitor.fixed_views import FixedViews
from tests.monitor.test_web_pages import HOSTILE
from tests.servers.fixtures import or_left_out
from tests.servers.npm import FETCH_S

PICTURES = os.environ.get("SAGA_TEST_PICTURES", "")
PAGES = {
    "overview": "/overview",
    "sagas": "/sagas",
    "no-sagas": "/sagas?text=nothing",
    "stuck": "/stuck",
    "rates": "/rates",
    "dead-letters": "/dead",
    "letters": "/dead/list",
    "replay-all": "/dead/bulk/new",
    "saga": "/saga?id=order-3",
    "graph": "/graph",
    "controls": "/controls",
    "audit": "/audit?service=payment",
    "sign-in": "/sign-in",
    "missing": "/no-such-page",
}
LOOKS = {"light": (False, 1280), "dark": (True, 1280), "narrow": (False, 390)}
"""For each look: dark or not, and the width of the screen."""
DARK = ("overview", "rates", "letter")
"""Pages that are looked at in the dark too, with all colours that there are; with pictures all of them are."""


@asynccontextmanager
async def served(settings: Settings, views: Views) -> AsyncIterator[str]:
    """Address of a page that uvicorn serves."""
    server = uvicorn.Server(uvicorn.Config(create_app(views, settings, CLOCK), log_config=None, lifespan="on"))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.get_running_loop().create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()


@pytest.fixture
def browser(shop: Path) -> None:
    """A Chromium, and a user who can sign in; its tests are skipped where there is no Chromium."""
    or_left_out(program)
    (shop / "users").write_text(format_user_line("ada", "correct horse"))


@pytest.fixture
def script(browser: None) -> str:
    """Script of axe-core; its tests are skipped where there is none. To fetch it may take minutes, so only tests that
    use it take it."""
    return or_left_out(axe).read_text("utf-8")


async def sign_in(tab: Tab, url: str) -> None:
    await tab.goto(f"{url}/sign-in?back=/dead")
    await tab.value(
        "const form = document.querySelector('form[action=\"/sign-in\"]'); form.elements.name.value = 'ada';"
        "form.elements.password.value = 'correct horse'; form.requestSubmit()"
    )
    await tab.until("location.pathname === '/dead' && document.querySelector('.who form') !== null")


async def shown(tab: Tab, url: str, path: str) -> None:
    """Open a page, and wait until what it shows was read."""
    await tab.goto(f"{url}{path}")
    await tab.until("document.querySelector('[data-coming]') === null")


@pytest.mark.slow
@pytest.mark.timeout(FETCH_S + 120)  # the first one fetches axe-core
async def test_every_page_is_accessible_and_loads_nothing_from_other_hosts(shop: Path, script: str) -> None:
    views = FixedViews("order-", count=10_000, services=25)
    settings = Settings(monitor_users="users")
    async with served(settings, views) as url, a_tab(shop) as tab:
        await sign_in(tab, url)
        await shown(tab, url, "/dead/list")
        letter = await tab.value("document.querySelector('td a[href^=\"/dead/letter\"]').getAttribute('href')")
        for name, path in {**PAGES, "letter": letter}.items():
            await shown(tab, url, path)
            if name == "controls":
                await tab.value("document.querySelectorAll('details').forEach(each => { each.open = true; })")
            for look, (dark, width) in LOOKS.items():
                await tab.look(dark=dark, width=width)
                if PICTURES:
                    await tab.picture(Path(PICTURES) / f"{name}-{look}.png")
                assert await tab.value("document.documentElement.scrollWidth <= window.innerWidth"), (name, look)
                if look == "light" or (look == "dark" and (PICTURES or name in DARK)):
                    assert await tab.barriers(script) == [], (name, look)
        assert [asked for asked in tab.asked if not asked.startswith(f"{url}/")] == []
        only = [complaint for complaint in tab.complaints if "404" not in complaint]
        assert only == [], "nothing fails, and the policy forbids nothing that the pages want"


@pytest.mark.timeout(120)
async def test_the_keyboard_reaches_the_search_and_the_content(shop: Path, browser: None) -> None:
    async with served(Settings(), FixedViews("order-", count=3)) as url, a_tab(shop) as tab:
        await shown(tab, url, "/sagas")
        await tab.press("Tab")
        assert await tab.value("document.activeElement.textContent") == "Skip to the content"
        await tab.press("Enter")
        await tab.until("location.hash === '#main'")
        await tab.press("/")
        assert await tab.value("document.activeElement.id") == "find"
        await tab.call("Input.insertText", text="order-1")
        await tab.press("Enter")
        await tab.until("location.pathname === '/saga' && document.querySelector('h1') !== null")
        assert "order-1" in await tab.value("document.querySelector('h1').textContent")


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_hostile_texts_run_nothing_and_hide_nothing(shop: Path, browser: None) -> None:
    views = FixedViews("")
    async with served(Settings(), views) as url, a_tab(shop) as tab:
        await tab.call("Page.addScriptToEvaluateOnNewDocument", source="window.alert = () => { window.hit = true; };")
        for text in HOSTILE:
            views.text, views.services = text, (text,)
            pages = ("/overview", "/sagas", "/stuck", "/rates")
            for path in (*pages, *(f"{page}?{quote(text, safe='')}=1" for page in (*pages, "/dead", "/graph"))):
                await tab.goto(f"{url}{path}")
                assert await tab.value("window.hit === undefined && document.querySelector('h1').offsetHeight > 0"), (
                    text
                )
                assert await tab.value("document.querySelectorAll('main img, main script, main style').length") == 0
        assert [asked for asked in tab.asked if not asked.startswith(f"{url}/")] == []
        assert tab.complaints == []


@pytest.mark.timeout(120)
async def test_what_is_live_is_renewed_unless_a_person_is_using_it(shop: Path, browser: None) -> None:
    views = FixedViews("before-", count=3)
    async with served(Settings(), views) as url, a_tab(shop) as tab:
        await tab.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="const later = window.setTimeout; window.setTimeout = (what, ms) => later(what, ms / 50);"
            "const ask = window.fetch; window.fetch = async (...what) => {"
            "  const answer = await ask(...what); window.answers = (window.answers || 0) + 1; await window.held;"
            "  return answer; };",
        )
        await shown(tab, url, "/sagas")
        views.text = "after-"
        await tab.until("document.querySelector('main').textContent.includes('after-1')")
        await tab.value("window.held = new Promise(done => { window.go = done; }); window.answers = 0;")
        views.text = "once-more-"
        await tab.until("window.answers === 1")  # it is under way when the page is used
        await tab.value("document.querySelector('[data-live] a').focus(); window.go();")
        asked = len(tab.asked)
        await tab.value("new Promise(done => setTimeout(done, 30000))")  # 600 ms: six rounds
        assert "after-1" in await tab.value("document.querySelector('main').textContent")
        assert len(tab.asked) == asked, "the page stays as it is"


LONG = ("x" * 400, "\N{GRINNING FACE}" * 150, "order-17")
"""Ids without a place to break, and one of the usual length."""
CUT_WORDS = """[...document.querySelectorAll('td')].filter(cell => {
  const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    for (const word of node.data.matchAll(/[^\\s-]+/g)) {
      if (word[0].length > 30) continue;
      const range = document.createRange();
      range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(each => Math.round(each.top))).size > 1) return true;
    }
  }
  return false;
}).map(cell => cell.textContent)"""
"""Cells in which a word of usual length stands on several lines."""


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_no_word_is_cut_and_no_page_is_wider_than_the_screen(shop: Path, browser: None) -> None:
    views = FixedViews("")
    async with served(Settings(), views) as url, a_tab(shop) as tab:
        for text in LONG:
            views.text, views.services = text, (text, "notification-gateway", "warehouse-profile")
            for path in ("/overview", "/sagas", "/stuck", "/rates", f"/saga?id={quote(text)}"):
                for width in (1200, 390):
                    await tab.look(width=width)
                    await shown(tab, url, path)
                    assert await tab.value("document.documentElement.scrollWidth <= window.innerWidth"), (path, width)
                    assert await tab.value(CUT_WORDS) == [], (path, width)


@pytest.mark.timeout(120)
async def test_times_are_in_the_zone_of_the_reader_and_in_utc_without_a_script(shop: Path, browser: None) -> None:
    async with served(Settings(), FixedViews("order-", began_ms=1_795_270_000_123)) as url, a_tab(shop) as tab:
        await tab.call("Emulation.setTimezoneOverride", timezoneId="Asia/Tokyo")
        await shown(tab, url, "/sagas")
        times = "[...document.querySelectorAll('td time')].map(each => [each.textContent, each.title])[0]"
        assert await tab.value(times) == ["2026-11-21 23:06:40.123", "2026-11-21 14:06:40.123 UTC"]
        assert "Asia/Tokyo" in await tab.value("document.getElementById('zone').textContent")
        await tab.call("Emulation.setScriptExecutionDisabled", value=True)
        await shown(tab, url, "/sagas")
        assert await tab.value(times) == ["2026-11-21 14:06:40.123", "2026-11-21 14:06:40.123 UTC"]
        assert await tab.value("document.getElementById('zone').textContent") == "Times are UTC."


@pytest.mark.timeout(120)
async def test_on_a_narrow_screen_each_row_is_a_card_with_labels(shop: Path, browser: None) -> None:
    async with served(Settings(), FixedViews("order-", count=3, services=2)) as url, a_tab(shop) as tab:
        await tab.look(width=390)
        for path in ("/overview", "/sagas", "/stuck", "/rates"):
            await shown(tab, url, path)
            assert await tab.value("getComputedStyle(document.querySelector('td')).display") == "block", path
            label = "getComputedStyle(document.querySelector('td'), '::before').content"
            assert await tab.value(label) not in ("none", '""'), path


@pytest.mark.timeout(120)
async def test_names_of_lanes_stay_in_sight_while_the_picture_of_a_saga_is_scrolled(shop: Path, browser: None) -> None:
    async with served(Settings(), FixedViews("order-")) as url, a_tab(shop) as tab:
        await tab.look(width=390)
        await shown(tab, url, "/saga?id=order-1")
        frame = "document.querySelector('[aria-label=\"Picture of the saga\"]')"
        await tab.value(f"{frame}.scrollLeft = 100_000")
        scrolled, whole = await tab.value(f"[{frame}.scrollLeft, {frame}.scrollWidth - {frame}.clientWidth]")
        assert scrolled == whole > 300
        place = "const [frame, names] = [%s, %s.querySelector('.names')].map(each => each.getBoundingClientRect())"
        left, width = await tab.value(f"{place % (frame, frame)}; [names.left - frame.left, names.width]")
        assert (left, width < 160) == (0, True)
