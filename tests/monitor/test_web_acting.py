"""Acting on the monitor's page: what a person wants is done by the services that run, and stands in their histories."""

import asyncio
import json
from collections.abc import Collection
from pathlib import Path

import pytest

from saga.configuration.settings import Settings
from saga.monitor.web.users import format_user_line
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_dead import blocked, mend, outcomes
from tests.cli.test_missing_topics import Running
from tests.monitor.asking import Browser, Seen, Sent, browsing
from tests.monitor.fixed_views import FixedViews

WITHIN_S = 60.0


def form_to(page: Seen, action: str, **fields: str) -> Sent:
    """Form of a page with this action, in which these fields stand."""
    return next(form for form in page.forms if form.action == action and {*fields.items()} <= {*form.fields})


async def letters_of(browser: Browser, saga: str, count: int = 1, *, besides: Collection[str] = ()) -> list[str]:
    """Links to the letters of a saga that have to be acted on, once there are so many, and none of the others: a letter
    that was replayed, and failed again, is there until the log has its end."""
    end_s = CLOCK.monotonic_s() + WITHIN_S
    while True:
        page = await browser.get(f"/dead/list?text={saga}")
        if len(found := sorted({*page.links("/dead/letter")})) == count and not {*found} & {*besides}:
            return found
        assert CLOCK.monotonic_s() < end_s, page.text
        await CLOCK.sleep(0.2)


async def counted(browser: Browser, service: str, count: int) -> None:
    """Return once the monitor's metrics have so many open dead letters of a service."""
    end_s = CLOCK.monotonic_s() + WITHIN_S
    while f'saga_open_dead_letters{{service="{service}"}} {count}' not in (
        found := (await browser.client.get("/metrics")).text.splitlines()
    ):
        assert CLOCK.monotonic_s() < end_s, found
        await CLOCK.sleep(0.2)


async def shown(browser: Browser, path: str, text: str) -> Seen:
    """Page, once it says this: what the service has written last may not be in the log yet."""
    end_s = CLOCK.monotonic_s() + WITHIN_S
    while text not in (page := await browser.get(path)).text:
        assert CLOCK.monotonic_s() < end_s, page.text
        await CLOCK.sleep(0.2)
    return page


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page waits for the service as long as we do: on a busy machine it takes its time."""
    monkeypatch.setattr("saga.monitor.web.operator_console.ACTING_S", WITHIN_S)


async def test_dead_letters_are_replayed_resolved_and_discarded_and_controls_switched(
    dead: Running, pottery_on: Pottery, saga: Call, folder: Path
) -> None:
    service = pottery_on.service
    (folder / "users").write_text(format_user_line("ada", "correct horse"))
    settings = Settings.from_environment()
    async with browsing(Settings(broker=settings.broker, monitor_users="users", options=settings.options)) as browser:
        await letters_of(browser, "cup-", 3)
        await counted(browser, service, 3)
        await browser.sign_in("ada", "correct horse")

        mend(pottery_on, "cup-1")
        [path] = await letters_of(browser, "cup-1")
        letter = await browser.get(path)
        assert "RuntimeError: the kiln is cold" in letter.text
        assert "What to do look why 1 attempts failed" in letter.text
        done = await browser.send(form_to(letter, "/dead/act", wanted="replay"), ("why", "the kiln is hot"))
        result_page = await browser.get(done.headers["location"])
        assert f"{service}, cup-1: replayed, then handled" in result_page.text
        await shown(browser, done.headers["location"], "Now: replayed")
        assert await letters_of(browser, "cup-1", 0) == []

        before = await letters_of(browser, "cup-", 2)
        both = await browser.get("/dead/list")
        marked = [
            ("letter", attrs.get("value") or "") for tag, attrs in both.elements
            if tag == "input" and attrs.get("name") == "letter"
        ]  # fmt: skip
        assert len(marked) == 2
        again = await browser.send(form_to(both, "/dead/act"), *marked, ("wanted", "replay"), ("why", "once more"))
        result_page = await browser.get(again.headers["location"])
        for cup in ("cup-2", "cup-3"):
            assert f"{service}, {cup}: replayed, then dead - " in result_page.text
        [path] = await letters_of(browser, "cup-2", besides=before)
        letter = await browser.get(path)
        await browser.send(form_to(letter, "/dead/act", wanted="discard"), ("why", "it is broken"))
        assert await letters_of(browser, "cup-2", 0) == []
        await counted(browser, service, 1)

        pause = form_to(await browser.get("/controls"), "/controls/switch", kind="pause")
        fields = (("service", service), ("handler", "forget"), ("until", "2h"), ("why", "to see"))
        await browser.send(pause, *fields)
        await shown(browser, "/controls", f"{service}: pause of handler forget until ")
        page = await shown(browser, "/controls", "End it")  # a slow read shows the list of before for a moment
        refused = await browser.send(pause, ("service", service), ("handler", "bake"), ("why", "to see"), status=400)
        assert "there is no handler &#39;bake&#39;" in refused.text
        end = form_to(page, "/controls/switch", kind="pause", off="yes", handler="forget")
        await browser.send(end, ("why", "seen"))
        page = await shown(browser, "/controls", "No control is active")
        flag = form_to(page, "/controls/switch", kind="flag")
        await browser.send(flag, ("service", service), ("flag", "blue"), ("percent", "12.5"), ("why", "a part"))
        book = await shown(browser, f"/audit?service={service}", "It has 4 entries")
        assert "The control log is intact" in book.text
        for line in ("flag blue for 12.5 % of the sagas a part", "ada no pause any more of handler forget seen"):
            assert line in book.text, line
    await asyncio.to_thread(_recorded, saga)  # commands have an event loop of their own


def _recorded(saga: Call) -> None:
    assert outcomes(saga, "cup-1") == ["dead", "replayed", "handled"]
    assert outcomes(saga, "cup-2") == ["dead", "replayed", "dead", "discarded"]
    assert blocked(saga) == {"cup-3"}
    lines = json.loads(saga("sagas", "show", "cup-2", "--json").stdout)["timeline"]
    assert "ada wants it: it is broken" in lines[-1]["reason"]


@pytest.mark.parametrize("pottery_on", ["embedded"], indirect=True)
async def test_a_service_that_does_not_run_is_reported_and_does_it_later(
    dead: Running, pottery_on: Pottery, saga: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saga.monitor.web.operator_console.ACTING_S", 0.1)
    (folder / "users").write_text(format_user_line("ada", "correct horse"))
    dead.kill()
    dead.wait()
    async with browsing(Settings(monitor_users="users")) as browser:
        await browser.sign_in("ada", "correct horse")
        [path] = await letters_of(browser, "cup-1")
        letter = await browser.get(path)
        answer = form_to(letter, "/dead/act", wanted="resolve")
        fields = (("step", "fire"), ("answered", '"hot"'), ("why", "seen through the window"))
        done = await browser.send(answer, *fields)
        page = await browser.get(done.headers["location"])
        assert "not yet" in page.text
        assert "does it run?" in page.text
        assert "Now: blocks" in page.text
        monkeypatch.setattr("saga.monitor.web.operator_console.REPLAYS_MAX", 0)
        replay = form_to(letter, "/dead/act", wanted="replay")
        done = await browser.send(replay, ("why", "once more"))
        assert "cup-1 had 0 replays in " in (await browser.get(done.headers["location"])).text
        done = await browser.send(replay, ("why", "once more"), ("again", "yes"))
        assert "not yet" in (await browser.get(done.headers["location"])).text


@pytest.mark.parametrize("pottery_on", ["embedded"], indirect=True)
async def test_a_run_resumes_with_an_entered_answer_and_an_escalation_is_closed(
    baking: Running, pottery_on: Pottery, saga: Call, folder: Path
) -> None:
    (folder / "users").write_text(format_user_line("ada", "correct horse"))
    async with browsing(Settings(monitor_users="users"), FixedViews("cup-1")) as browser:
        await browser.sign_in("ada", "correct horse")
        [path] = await letters_of(browser, "cup-2")
        answer = form_to(await browser.get(path), "/dead/act", wanted="resolve")
        fields = (("step", "bake"), ("raised", "Cracked"), ("arguments", '["a crack"]'), ("why", "seen"))
        done = await browser.send(answer, *fields)
        assert "cup-2: resolved, then handled" in (await browser.get(done.headers["location"])).text
        assert "a crack" in await asyncio.to_thread((folder / "glazes").read_text)

        assert not (await browser.get("/sagas?state=escalated")).links("/saga?")
        [path] = await letters_of(browser, "cup-1")
        await browser.send(form_to(await browser.get(path), "/dead/act", wanted="discard"), ("why", "it is broken"))
        [path] = await letters_of(browser, "cup-1", besides=[path])
        escalation = await browser.get(path)
        assert "Escalation of cup-1" in escalation.text
        assert "External calls that were made" in escalation.text
        assert {*(await browser.get("/sagas?state=escalated")).links("/saga?")} == {"/saga?id=cup-1"}
        assert not (await browser.get("/sagas?state=escalated&text=cup-2")).links("/saga?")
        assert not (await browser.get("/sagas?state=escalated&outcome=success")).links("/saga?")
        done = await browser.send(form_to(escalation, "/dead/act", wanted="resolve"), ("why", "put right by hand"))
        page = await browser.get(done.headers["location"])
        assert "cup-1: resolved" in page.text
        await shown(browser, done.headers["location"], "Now: resolved")
        assert not (await browser.get("/sagas?state=escalated")).links("/saga?")
        assert await letters_of(browser, "cup-1", 0) == []
