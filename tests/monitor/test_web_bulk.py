"""Dead letters in groups on the page, and bulk actions: confirmed, followed, stopped, recorded like single ones."""

import asyncio
import threading
from pathlib import Path
from urllib.parse import urlencode

import pytest

from saga.configuration.settings import Settings
from saga.errors import BadInput
from saga.monitor.web import bulk_pages
from saga.monitor.web.letter_filters import LetterFilter
from saga.monitor.web.operator_console import REST, CachedRead, OperatorConsole, Snapshot
from saga.monitor.web.users import format_user_line
from saga.ops.attention import Attention
from saga.ops.letter_groups import LetterRow, LetterTable
from saga.testing.trials import TrialClock
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import mend, outcomes
from tests.cli.test_missing_topics import Running
from tests.monitor.asking import CLOCK, WITHIN_S, Browser, Seen, browsing
from tests.monitor.test_web_acting import form_to, letters_of, shown
from tests.monitor.test_web_pages import is_clean
from tests.ops.test_letter_groups import make_item

NAMES = ("KeyError", "BankDown", "Declined")


def show(monkeypatch: pytest.MonkeyPatch, *items: object, **more: object) -> None:
    """Have the page show these letters."""
    table = LetterTable.of(Attention(items, [], False))  # type: ignore[arg-type]

    async def read(_: OperatorConsole, patience_s: float = 0.0) -> Snapshot[LetterTable]:
        return Snapshot(table, (), 3.0)

    monkeypatch.setattr(OperatorConsole, "letters", read)


async def is_over(browser: Browser, path: str) -> Seen:
    """Page of a bulk action, once it has ended."""
    end_s = CLOCK.monotonic_s() + WITHIN_S
    while "Ended" not in (page := await browser.get(path)).text:
        assert CLOCK.monotonic_s() < end_s, page.text
        await CLOCK.sleep(0.1)
    return page


@pytest.mark.slow
async def test_ten_thousand_letters_are_counted_in_groups_and_each_is_reached(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, *(make_item(n, f"{NAMES[n % 3]}: {n}") for n in range(9_999, -1, -1)))
    async with browsing(Settings()) as browser:
        page = await browser.get("/dead")
        assert "10,000 letters in 3 groups; 10,000 block their sagas." in page.text
        assert "3,334 KeyError: # the newest: KeyError: 9999" in page.text
        assert "Read 3.0 s ago" in page.text
        assert len(page.links("/dead/list?")) == 3 * 2 + 1
        path = next(href for href in page.links("/dead/list?") if "group=" in href)
        ids = set[str]()
        while path:
            listed = await browser.get(path)
            ids |= {*listed.links("/dead/letter?")}
            path = next((attrs.get("href") or "" for _, attrs in listed.elements if attrs.get("rel") == "next"), "")
        assert len(ids) == 3334, "no letter is hidden"
        everything = await browser.get("/dead/list")
        assert "Letters 1 to 50 of 10,000 , newest first" in everything.text
        last = await browser.get(next(href for href in everything.links("/dead/list?") if "at=9950" in href))
        assert "Letters 9,951 to 10,000 of 10,000" in last.text
        by_handler = await browser.get("/dead?by=handler")
        assert "in 1 group;" in by_handler.text
        assert "3 different reasons, the newest: KeyError: 9999" in by_handler.text
        assert "by=exception" in str((await browser.get("/dead?by=exception")).links("/dead/list?"))


async def test_the_reason_of_a_group_has_its_values_if_all_letters_have_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, *(make_item(n, "KeyError: 'customer_reference' of 17") for n in (2, 1)))
    async with browsing(Settings()) as browser:
        page = await browser.get("/dead")
        assert "KeyError: 'customer_reference' of 17" in page.text
        confirmed = await browser.get("/dead/bulk/new")
        assert "2 KeyError: 'customer_reference' of 17" in confirmed.text
        assert "the newest:" not in page.text
        assert not page.links("/sign-in")
    (folder / "users").write_text(format_user_line("ada", "correct horse"))
    (folder / "users").chmod(0o600)
    async with browsing(Settings(monitor_users="users")) as browser:
        page = await browser.get("/dead?service=payment")
        assert "Sign in to replay or discard them" in page.text
        assert page.links("/sign-in") == ["/sign-in?back=%2Fdead%3Fservice%3Dpayment"] * 2
        await browser.sign_in("ada", "correct horse")
        assert "Sign in to" not in (await browser.get("/dead")).text


async def test_the_page_renews_itself_unless_it_is_paused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, make_item(1, "E: 1"))
    async with browsing(Settings()) as browser:
        page = await browser.get("/dead?service=payment")
        assert any(attrs.get("http-equiv") == "refresh" for tag, attrs in page.elements if tag == "meta")
        assert any("data-live" in attrs for _, attrs in page.elements)
        [pause] = [href for href in page.links("/dead?") if "renew=off" in href]
        paused = await browser.get(pause)
        assert "Paused." in paused.text
        assert not any(attrs.get("http-equiv") == "refresh" for tag, attrs in paused.elements if tag == "meta")
        assert not any("data-live" in attrs for _, attrs in paused.elements)
        assert "/dead?service=payment" in paused.links("/dead?"), "it can be resumed, with the filter"


async def test_hostile_reasons_are_escaped_in_groups_and_in_the_confirmation(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "<script>alert(1)</script>", "\"><img src=x>'", "{{ 7 * 7 }}", "a\n\x1b[2J\u202ex", "x" * 5000, ""
    for text in hostile:
        show(monkeypatch, make_item(1, text, handler=text, service=text or "s"), make_item(2, text, handler=text))
        async with browsing(Settings()) as browser:
            for by in ("reason", "exception", "handler", "event"):
                page = await browser.get(f"/dead?by={by}")
                is_clean(page)
                for path in (*page.links("/dead/list?"), *page.links("/dead/letter?")):
                    is_clean(await browser.get(path))
            is_clean(await browser.get("/dead/bulk/new"))


async def test_only_who_may_act_is_offered_a_bulk_action_and_can_start_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show(monkeypatch, make_item(1, "E: 1"))
    lines = [format_user_line("ada", "correct horse"), format_user_line("rex", "correct horse", "read")]
    (folder / "users").write_text("\n".join(lines))
    async with browsing(Settings(monitor_users="users")) as browser:
        assert not (await browser.get("/dead")).links("/dead/bulk/new")
        await browser.sign_in("rex", "correct horse")
        for path in ("/dead", "/dead/list", "/dead/bulk/new"):
            page = await browser.get(path)
            assert not page.links("/dead/bulk/new"), path
            assert not [form for form in page.forms if form.fields and form.action in ("/dead/act", "/dead/bulk/start")]
        out = form_to(page, "/sign-out")
        secret = dict(out.fields)["form"]
        for path in ("/dead/act", "/dead/bulk/start", "/dead/bulk/stop", "/controls/switch"):
            refused = await browser.post(path, [("form", secret), ("wanted", "replay"), ("letter", "payment/dead-1")])
            assert refused.status_code == 403, path
            assert "rex may only read" in refused.text
        await browser.send(out)
        await browser.sign_in("ada", "correct horse")
        assert (await browser.get("/dead")).links("/dead/bulk/new")
        form = form_to(await browser.get("/dead/bulk/new"), "/dead/bulk/start")
        why = ("reason_given", "fixed")
        for fields, text in (
            ((("wanted", "resolve"), why), "the form has no action"),
            ((("wanted", "replay"),), "a reason is missing"),
            ((("wanted", "replay"), why, ("rate", "0")), "the rate must be a number"),
            ((("wanted", "replay"), why, ("rate", "nan")), "the rate must be a number"),
            ((("wanted", "replay"), why, ("rate", "1e9")), "the rate must be a number"),
            ((("wanted", "replay"), why, ("count", "0")), "1 letters match now, 0 were confirmed"),
            ((("wanted", "replay"), why, ("selected", "text=zzz")), "none of these blocks a saga any more"),
        ):
            answer = await browser.send(form, *fields, status=400)
            assert text in Seen(answer.text).text, fields
        forged = await browser.post("/dead/bulk/start", [*((n, v) for n, v in form.fields if n != "form"), why])
        assert forged.status_code == 403, "the secret of the session is missing"
        assert (await browser.client.get("/dead/bulk?number=7")).status_code == 404


@pytest.mark.parametrize("text", ["after  two\u200b", " x ", "y" * 3000])
async def test_the_form_of_a_bulk_action_selects_what_the_page_has_shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    show(monkeypatch, make_item(1, f"E: {text}"), make_item(2, "E: after two, y and x"))
    begun: list[LetterFilter] = []

    def note(which: LetterFilter, rows: list[LetterRow]) -> str:
        begun.append(which)
        raise BadInput(f"{len(rows)} selected")

    (folder / "users").write_text(format_user_line("ada", "correct horse"))
    async with browsing(Settings(monitor_users="users")) as browser:
        await browser.sign_in("ada", "correct horse")
        form = form_to(await browser.get(f"/dead/bulk/new?{urlencode({'text': text})}"), "/dead/bulk/start")
        monkeypatch.setattr(bulk_pages, "describe_selection", note)
        answer = await browser.send(form, ("wanted", "replay"), ("reason_given", "fixed"), status=400)
    assert "1 selected" in answer.text
    assert [which.text for which in begun] == [text]


@pytest.mark.parametrize("pottery_on", ["embedded"], indirect=True)
async def test_all_letters_of_a_group_are_replayed_with_progress_and_recorded(
    dead: Running, pottery_on: Pottery, saga: Call, folder: Path
) -> None:
    (folder / "users").write_text(format_user_line("ada", "correct horse"))
    async with browsing(Settings(monitor_users="users")) as browser:
        first = await letters_of(browser, "cup-", 3)
        await browser.sign_in("ada", "correct horse")
        page = await browser.get("/dead")
        assert "3 letters in 1 group; 3 block their sagas." in page.text
        [_, of_group] = page.links("/dead/bulk/new")
        form = form_to(await browser.get(of_group), "/dead/bulk/start")
        slow = await browser.send(form, ("wanted", "replay"), ("rate", "0.01"), ("reason_given", "one only"))
        progress = await shown(browser, slow.headers["location"], "1 of 3")
        await browser.send(form_to(progress, "/dead/bulk/stop"))
        stopped = await is_over(browser, slow.headers["location"])
        assert "stopped ada stopped it" in stopped.text
        assert "Failed again or refused 1" in stopped.text
        assert "replayed, then dead" in stopped.text
        assert not [form for form in stopped.forms if form.action == "/dead/bulk/stop"]

        end_s = CLOCK.monotonic_s() + WITHIN_S
        while await letters_of(browser, "cup-", 3) == first:  # one of them is another letter, once that is read
            assert CLOCK.monotonic_s() < end_s
        mend(pottery_on, "cup-1", "cup-2")
        fields = (("wanted", "replay"), ("rate", "2"), ("reason_given", "the kiln is hot"), ("count", "9"))
        done = await browser.send(form, *fields)
        over = await is_over(browser, done.headers["location"])
        is_clean(over)
        assert "Done 2 Failed again or refused 1" in over.text
        assert "cup-3: replayed, then dead" in over.text
        assert "by ada: the kiln is hot" in over.text
        assert (await asyncio.to_thread(outcomes, saga, "cup-1"))[-2:] == ["replayed", "handled"]
        history = (await asyncio.to_thread(saga, "sagas", "show", "cup-1", "--json")).stdout
        assert "ada wants it: the kiln is hot" in history
        assert "Replay: RuntimeError: the kiln is cold in " in (await browser.get("/dead?now=all")).text


async def test_what_takes_long_to_read_is_read_less_often() -> None:
    clock, reads = TrialClock(), list[float]()

    async def read(_: list[str]) -> int:
        reads.append(clock.monotonic_s())
        await clock.sleep(10.0)
        return len(reads)

    cached = CachedRead(read, clock)
    assert (await cached.get(WITHIN_S)).value == 1
    await clock.sleep(REST * 10.0 - 1.0)
    used = await cached.get(WITHIN_S)
    assert (used.value, used.is_old) == (1, False), "it is not read again at once, and its age is nothing unusual"
    await clock.sleep(2.0)
    assert (await cached.get(WITHIN_S)).value == 2
    cached.forget()
    assert (await cached.get(WITHIN_S)).value == 3, "after an action it is read at once"
    assert len(reads) == 3


async def test_old_data_are_late_only_if_the_read_that_is_running_takes_long() -> None:
    clock, may_end = TrialClock(), threading.Event()
    may_end.set()

    async def read(_: list[str]) -> int:
        await asyncio.to_thread(may_end.wait)
        return 1

    cached = CachedRead(read, clock)
    assert not (await cached.get(WITHIN_S)).is_old
    may_end.clear()
    await clock.sleep(100.0)
    used = await cached.get(0.0)
    assert (used.is_old, used.is_late) == (True, False), "nobody has looked for some time"
    await clock.sleep(100.0)
    used = await cached.get(0.0)
    assert (used.is_old, used.is_late) == (True, True)
    may_end.set()
    await cached.end()
    assert not (await cached.get(WITHIN_S)).is_old
