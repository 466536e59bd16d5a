"""Message of a dead letter on the page: its fields by its contract, and none that is sensitive."""

import asyncio
from pathlib import Path

import pytest

from saga.configuration.settings import Settings
from saga.engine.persistence import dead_letters
from saga.monitor.web.letter_filters import LetterFilter, parse_letter_filter
from saga.ops import letter_payload
from saga.ops.dead_letters import DeadLetter
from saga.ops.letter_payload import read_payload
from saga.ops.selection import Deployment
from saga.support.clock import iso
from tests.cli.test_listing import NOW_MS, a_letter, publish_letters
from tests.monitor.asking import browsing
from tests.monitor.test_web_acting import shown
from tests.monitor.test_web_pages import is_clean


async def test_the_fields_of_a_blocking_message_are_shown_and_sensitive_ones_hidden(shop: Path) -> None:
    async with browsing(Settings()) as browser:
        [path] = (await browser.get("/dead/list")).links("/dead/letter")
        page = await browser.get(path)
        is_clean(page)
        assert "order_id order-3" in page.text
        assert "total 9.80" in page.text
        assert "card hidden, it is sensitive" in page.text
        assert "broken" not in page.text, "that is the card"
        assert "/saga?id=order-3" in page.links("/saga?")
        saga = await browser.get("/saga?id=order-3")
        assert path in saga.links("/dead/letter"), "links lead both ways"


async def test_without_contracts_no_field_is_shown(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letter_payload, "find_contracts", lambda: (None, "no folder"))
    async with browsing(Settings()) as browser:
        [path] = (await browser.get("/dead/list")).links("/dead/letter")
        page = await browser.get(path)
        assert "there are no contracts to read it by: no folder" in page.text
        assert "order_id" not in page.text


async def test_a_message_that_no_progress_has_is_searched_on_the_topic_only_when_asked(shop: Path) -> None:
    publish = dead_letters.to_outgoing("payment", a_letter(1), iso(NOW_MS), "here", None)
    await asyncio.to_thread(publish_letters, shop, publish)
    async with browsing(Settings()) as browser:
        page = await shown(browser, "/dead/list?now=all&text=dead-1", "reason 1")
        [path] = page.links("/dead/letter")
        letter = await browser.get(path)
        [search] = [href for href in letter.links("/dead/letter?") if "message=search" in href]
        found = await browser.get(search)
        is_clean(found)
        assert not [href for href in found.links("/dead/letter?") if "message=search" in href]
        assert "Message" in found.text


async def test_a_value_that_cannot_be_decoded_raises_nothing_and_shows_nothing_of_it(shop: Path) -> None:
    warned = list[object]()
    publish = dead_letters.to_outgoing("payment", a_letter(2), iso(NOW_MS), "here", None)
    await asyncio.to_thread(publish_letters, shop, publish._replace(value=b"\xc3\x01 secret value"))
    deployment = Deployment(warn=warned.append, stores=("sqlite:///.saga/{service}.db",), settings=Settings())
    letter = DeadLetter(
        service="payment", id="dead-2", what="dead letter", time="", reason="", remedy="", saga="s-none"
    )
    assert await read_payload(letter, deployment) is None
    found = await read_payload(letter, deployment, searches=True)
    assert found is not None
    assert found.fields is None
    assert found.problem
    assert "secret" not in found.problem


async def test_letters_with_the_same_cause_are_one_click_away(shop: Path) -> None:
    letters = [dead_letters.to_outgoing("payment", a_letter(n), iso(NOW_MS + n), "here", None) for n in range(3)]
    await asyncio.to_thread(publish_letters, shop, *letters)
    async with browsing(Settings()) as browser:
        page = await shown(browser, "/dead/list?now=all&text=reason", "reason 2")
        letter = await browser.get(page.links("/dead/letter")[0])
        assert "All 3 with this cause" in letter.text
        [alike] = [href for href in letter.links("/dead/list?") if "group=" in href]
        listed = await browser.get(alike)
        assert len(listed.links("/dead/letter?")) == 3


def test_an_unknown_grouping_means_the_first_one() -> None:
    assert parse_letter_filter({"by": "nonsense"}) == LetterFilter()
    assert parse_letter_filter({"by": "event", "class": "data"}) == LetterFilter(by="event", blame="data")
    assert parse_letter_filter(LetterFilter(text="x", what="y", now="all").fields) == LetterFilter(
        text="x", what="y", now="all"
    )
