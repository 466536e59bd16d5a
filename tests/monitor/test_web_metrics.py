"""Metrics of the monitor: what waits for a person, by service, in the format that Prometheus reads."""

import asyncio
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from saga.configuration.settings import Settings
from saga.monitor.web.operator_console import OperatorConsole, Snapshot
from saga.ops.attention import Attention, AttentionItem
from saga.ops.dead_letters import DeadLetter
from tests.monitor.asking import browsing


def make_item(what: str, now: str, service: str = "payment", **more: Any) -> AttentionItem:
    return AttentionItem(DeadLetter(service=service, id="1", what=what, time="", reason="", remedy="", **more), now)


async def page(letters: Snapshot[Attention], monkeypatch: pytest.MonkeyPatch) -> str:
    async def read(desk: OperatorConsole) -> Snapshot[Attention]:
        return letters

    monkeypatch.setattr(OperatorConsole, "letters", read)
    async with browsing(Settings()) as browser:
        answer = await browser.client.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"][:25]) == (200, "text/plain; version=0.0.4")
    return answer.text


async def test_only_what_still_needs_a_person_is_counted(promtool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [
        *(make_item("dead letter", now) for now in ("blocks", "blocks", "replayed", "discarded", "resolved", "-")),
        make_item("dead letter", "blocks", service='odd"\\'),
        *(make_item("escalation", now) for now in ("goes on", "over", "resolved")),
        *(make_item("escalation", now, calls=("charge",)) for now in ("-", "resolved")),
    ]
    text = await page(Snapshot(Attention(letters, [], False), (), 1.25), monkeypatch)
    assert [line for line in text.splitlines() if not line.startswith("#")] == [
        "saga_open_letters_age_seconds 1.25",
        'saga_open_dead_letters{service="odd\\"\\\\"} 1',
        'saga_open_dead_letters{service="payment"} 2',
        'saga_open_escalations{service="payment"} 2',
    ]
    check = partial(subprocess.run, [promtool, "check", "metrics"], input=text, capture_output=True, text=True)
    done = await asyncio.to_thread(check)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


async def test_what_could_not_be_read_is_no_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    unread: Snapshot[Attention]
    for unread in (Snapshot(None, ("no store",), 0.5), Snapshot()):
        assert await page(unread, monkeypatch) == "", "an age of what was never read would look fresh"
