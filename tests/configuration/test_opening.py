"""Opening at the start of a process: side by side, for as long as anything comes on, and with lines that say so."""

import asyncio
from contextlib import AsyncExitStack
from typing import Self

import pytest

from saga.configuration import wiring
from saga.errors import ConfigurationError, StoreUnavailable
from saga.support import clock
from saga.support.clock import counted_s, patiently
from saga.telemetry.events import Opened as OpenedMoment
from saga.telemetry.events import StillOpening, TelemetryEvent
from tests.broker.waiting import CLOCK, until


class Opens:
    """Something that opens when it is let, and remembers whether it was closed."""

    def __init__(self, *, fails: Exception | None = None) -> None:
        self.begun, self.closed, self.fails = False, False, fails
        self.may = asyncio.Event()

    async def __aenter__(self) -> Self:
        self.begun = True
        await self.may.wait()
        if self.fails is not None:
            raise self.fails
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.closed = True


async def test_all_begins_at_once_and_each_that_opens_is_reported_and_closed() -> None:
    moments, things = list[TelemetryEvent](), [Opens() for _ in range(16)]
    async with AsyncExitStack() as stack:
        opening = wiring._Opening(stack, moments.append, 5)
        tasks = [opening._begin("payment", f"store {n}", each) for n, each in enumerate(things)]
        opened = asyncio.get_running_loop().create_task(opening._wait_opened())
        await until(lambda: all(each.begun for each in things))
        for each in reversed(things):
            each.may.set()
        await opened
        assert [task.result() for task in tasks] == things
        assert len([m for m in moments if isinstance(m, OpenedMoment)]) == 16
        assert not any(each.closed for each in things)
    assert all(each.closed for each in things)


async def test_opening_is_not_given_up_while_anything_opens_and_what_does_not_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wiring, "REPORT_EVERY_S", 0.0)
    moments, things, hangs = list[TelemetryEvent](), [Opens() for _ in range(4)], Opens()
    async with AsyncExitStack() as stack:
        opening = wiring._Opening(stack, moments.append, 1.0)
        for n, each in enumerate(things):
            opening._begin("payment", f"store {n}", each)
        opening._begin("order", "the store that hangs", hangs)
        opened = asyncio.get_running_loop().create_task(opening._wait_opened())
        for each in things:  # longer than the limit, all together
            await CLOCK.sleep(0.5)
            assert not opened.done()
            each.may.set()
        with pytest.raises(
            ConfigurationError, match=r"nothing that is opened has come on for 1 s \(SAGA_OPEN_S\)"
        ) as why:
            await opened
        assert [problem.partition(" is not open")[0] for problem in why.value.problems] == ["the store that hangs"]
        waiting = [m for m in moments if isinstance(m, StillOpening)]
        assert waiting[-1].what == "the store that hangs"
        assert waiting[-1].left_s < 1
        await opening._give_up()
    assert all(each.closed for each in things)
    assert not hangs.closed


async def test_the_first_that_cannot_be_opened_is_reported_in_its_own_words() -> None:
    good, bad = Opens(), Opens(fails=StoreUnavailable("the password is another one"))
    good.may.set()
    bad.may.set()
    async with AsyncExitStack() as stack:
        opening = wiring._Opening(stack, lambda _: None, 5)
        for each in (good, bad):
            opening._begin("payment", "store", each)
        with pytest.raises(StoreUnavailable, match="the password is another one"):
            await opening._wait_opened()
        await opening._give_up()
    assert good.closed


async def test_a_patient_opening_times_out_and_cancels_what_does_not_open() -> None:
    ended = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await patiently(0.3, never())
    assert ended.is_set()


def test_time_in_which_a_process_could_not_run_is_no_time_of_waiting() -> None:
    assert counted_s(10.0, 10.0 + clock.LOOK_S) == clock.LOOK_S
    assert counted_s(10.0, 25.0) == 2 * clock.LOOK_S, "a driver was loaded, or others had the core"
