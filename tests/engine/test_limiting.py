"""Gate of one resource: who waits, in which order, and that no place is ever lost."""

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from saga import Breaker
from saga.declarations.values import Resource
from saga.engine import limits
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.consumer.worker_ports import WorkerAssignment, make_worker_ports
from saga.engine.errors import Draining
from saga.engine.limits import AdmittedCall, CallNotAdmitted, Limiter, TooManyCalls
from saga.engine.outage_watch import OutageWatch
from saga.engine.ports import EventPublisher
from saga.errors import BreakerOpen
from saga.messages import Partition, Position
from saga.messaging.controls import Switch
from saga.policies.breaker import TRIED_S
from saga.store.port import Store
from saga.support.clock import SystemClock
from saga.telemetry.events import BreakerTurned, CallWaited, TelemetryEvent

AT = Position("orders", 0, 0)
FOR_EVER = 1e12
CLOCK = SystemClock()


class Gate:
    """A limiter, and what is around it."""

    def __init__(
        self,
        *,
        breaker: Breaker | None = None,
        at_once_max: int | None = None,
        rate_per_s: float | None = None,
        shared: limits.CallGate | None = None,
    ) -> None:
        self.moments: list[TelemetryEvent] = []
        self.watching = OutageWatch("payment", CLOCK, self.moments.append)
        self.assignment = WorkerAssignment(self.watching, {Partition("orders", 0): OffsetTracker(0)})
        ports = make_worker_ports(cast(Store, None), cast("EventPublisher", None), self.assignment)  # type: ignore[arg-type] # neither is asked
        resource = Resource(
            name="bank",
            opener=self._opener,
            gives=Gate,
            timeout_s=5,
            expected_errors=(),
            breaker=breaker,
            at_once_max=at_once_max,
            rate_per_s=rate_per_s,
        )
        self.limiter = Limiter("payment", resource, ports, shared)
        self.order: list[str] = []

    async def _opener(self) -> AsyncIterator[object]:
        yield self

    async def enter(self, name: str = "", latest_s: float = FOR_EVER) -> AdmittedCall:
        call = await self.limiter.enter(AT, latest_s)
        self.order.append(name)
        return call

    def waits(self, name: str, latest_s: float = FOR_EVER) -> "asyncio.Task[AdmittedCall]":
        return asyncio.get_running_loop().create_task(self.enter(name, latest_s))

    def check_empty(self) -> None:
        """Check that no call runs or waits: all places are free."""
        assert (self.limiter._line.running, self.limiter._line.waiting, len(self.limiter._waiting)) == (0, 0, 0)
        assert self.watching.idle == 0


async def a_moment() -> None:
    for _ in range(5):
        await CLOCK.sleep(0)


async def test_calls_are_admitted_in_their_order() -> None:
    gate = Gate(at_once_max=2)
    running = [await gate.enter("a"), await gate.enter("b")]
    waiting = [gate.waits(name) for name in "cde"]
    await a_moment()
    assert (gate.order, gate.watching.idle) == (["a", "b"], 3), "lanes that wait do store and log no harm"
    gate.limiter.leave(running.pop(), failed=False)
    late = gate.waits("f")
    await a_moment()
    assert gate.order == ["a", "b", "c"]
    for _ in range(4):
        gate.limiter.leave(running.pop(0), failed=False)
        running += [task.result() for task in waiting if task.done() and task.result() not in running]
        await a_moment()
        running = [AdmittedCall(0, 0.0)]
    await late
    assert gate.order == list("abcdef")
    gate.limiter.leave(running[0], failed=False)
    gate.check_empty()
    assert len([moment for moment in gate.moments if isinstance(moment, CallWaited)]) == 4


async def test_a_call_that_waits_for_the_rate_keeps_no_other_from_a_free_place() -> None:
    gate = Gate(at_once_max=100, rate_per_s=1000)
    calls = [await gate.enter() for _ in range(100)]  # a tenth of a second at once
    for call in calls:
        gate.limiter.leave(call, failed=False)
    waiting = [gate.waits(name) for name in "abc"]
    await a_moment()
    assert (gate.limiter._line.running, len(gate.limiter._waiting)) == (3, 0)
    for task in waiting:
        gate.limiter.leave(await task, failed=False)
    gate.check_empty()


async def test_an_operators_limit_counts_only_the_calls_of_its_service() -> None:
    gates = limits.CallGates()
    limited, other = (Gate(at_once_max=3, shared=gates.of("bank")) for _ in range(2))
    limited.limiter.limit(Switch(kind="limit", resource="bank", at_once_max=1))
    theirs = await other.enter()
    first = await limited.enter("a")
    waiting = [limited.waits(name) for name in "bc"]
    await a_moment()
    assert limited.order == ["a"]
    more = await other.enter()  # those that wait for the limit of another service are passed over
    late = other.waits("late")
    await a_moment()
    assert other.order == ["", ""], "the declared limit is for all calls together"
    other.limiter.leave(theirs, failed=False)
    await late
    assert limited.order == ["a"], "a place that the other service gives back is not for them"
    for call in (more, late.result()):
        other.limiter.leave(call, failed=False)
    limited.limiter.leave(first, failed=False)
    limited.limiter.leave(await waiting[0], failed=False)
    limited.limiter.leave(await waiting[1], failed=False)
    assert limited.order == ["a", "b", "c"]
    for gate in (limited, other):
        gate.check_empty()


async def test_an_operators_rate_paces_only_the_calls_of_its_service() -> None:
    gates = limits.CallGates()
    limited, other = (Gate(rate_per_s=100, shared=gates.of("bank")) for _ in range(2))
    limited.limiter.limit(Switch(kind="limit", resource="bank", rate_per_s=0.001))
    limited.limiter.leave(await limited.enter(), failed=False)
    with pytest.raises(CallNotAdmitted):
        await limited.enter("too many", CLOCK.monotonic_s() + 5)
    other.limiter.leave(await other.enter("at once", CLOCK.monotonic_s()), failed=False)
    raised = Switch(kind="limit", resource="bank", rate_per_s=1000)
    limited.limiter.limit(raised)
    for _ in range(50):
        limited.limiter.leave(await limited.enter("fast", CLOCK.monotonic_s()), failed=False)
    for gate in (limited, other):
        gate.check_empty()


async def test_a_lifted_limit_of_the_rate_ends_at_once() -> None:
    gate = Gate(rate_per_s=100)
    gate.limiter.limit(Switch(kind="limit", resource="bank", rate_per_s=0.001))
    gate.limiter.leave(await gate.enter(), failed=False)
    with pytest.raises(CallNotAdmitted):
        await gate.enter("too many", CLOCK.monotonic_s() + 5)
    gate.limiter.limit(None)
    gate.limiter.leave(await gate.enter("after", CLOCK.monotonic_s() + 5), failed=False)
    gate.check_empty()


async def test_a_cancelled_waiting_call_frees_its_place_in_the_queue() -> None:
    gate = Gate(at_once_max=1)
    first = await gate.enter("a")
    gone, second = gate.waits("gone"), gate.waits("b")
    await a_moment()
    gone.cancel()
    await a_moment()
    gate.limiter.leave(first, failed=False)
    gate.limiter.leave(await second, failed=False)
    assert gate.order == ["a", "b"]
    gate.check_empty()


async def test_a_call_cancelled_when_admitted_passes_its_turn_on() -> None:
    gate = Gate(at_once_max=1)
    first = await gate.enter("a")
    gone, second = gate.waits("gone"), gate.waits("b")
    await a_moment()
    gate.limiter.leave(first, failed=False)
    gone.cancel()
    gate.limiter.leave(await second, failed=False)
    assert gate.order == ["a", "b"]
    gate.check_empty()


async def test_a_call_waits_only_as_long_as_there_is_time_for_it() -> None:
    gate = Gate(at_once_max=1)
    first = await gate.enter("a")
    with pytest.raises(CallNotAdmitted) as refused:
        await gate.enter("b", CLOCK.monotonic_s() + 0.02)
    assert isinstance(refused.value.why, TooManyCalls)
    assert str(refused.value.why) == "bank has no turn in time: other calls come first"
    assert 0 < refused.value.left_s < 1
    gate.limiter.leave(first, failed=False)
    gate.check_empty()


async def test_not_more_wait_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_MAX", 2)
    gate = Gate(at_once_max=1)
    first = await gate.enter("a")
    waiting = [gate.waits(name) for name in "bc"]
    await a_moment()
    lefts = []
    for _ in range(2):
        with pytest.raises(CallNotAdmitted) as refused:
            await gate.enter("d")
        lefts.append(refused.value.left_s)
    assert lefts[0] < lefts[1], "one after another"
    gate.limiter.leave(first, failed=False)
    for each in waiting:
        gate.limiter.leave(await each, failed=False)
    gate.check_empty()


@pytest.mark.parametrize("given", [{"at_once_max": 1}, {"rate_per_s": 0.1}])
async def test_a_waiting_call_notices_that_the_worker_stops(
    given: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOOK_S", 0.01)
    gate = Gate(**given)  # type: ignore[arg-type] # one of two
    first = await gate.enter("a")
    waiting = gate.waits("b")
    await a_moment()
    gate.assignment.stop()
    with pytest.raises(Draining):
        await CLOCK.within(5, waiting)
    gate.limiter.leave(first, failed=False)
    gate.check_empty()


async def test_calls_follow_each_other_at_their_rate_and_who_would_come_too_late_takes_no_turn() -> None:
    gate = Gate(rate_per_s=2)  # half a second is more than a busy machine holds a process up
    began_s = CLOCK.monotonic_s()
    for _ in range(3):
        gate.limiter.leave(await gate.enter(), failed=False)
    free_s = (gate.limiter._own.free_s, gate.limiter._line.free_s)
    for _ in range(3):
        with pytest.raises(CallNotAdmitted):
            await gate.enter("late", CLOCK.monotonic_s())
    assert (gate.limiter._own.free_s, gate.limiter._line.free_s) == free_s
    gate.limiter.leave(await gate.enter(), failed=False)
    assert CLOCK.monotonic_s() - began_s >= 1.49
    gate.check_empty()


async def test_not_more_wait_for_a_turn_of_this_second_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WAITING_MAX", 1)
    gate = Gate(rate_per_s=1)
    gate.limiter.leave(await gate.enter(), failed=False)
    waiting = gate.waits("b")
    await a_moment()
    with pytest.raises(CallNotAdmitted):
        await gate.enter("c")
    gate.limiter.leave(await waiting, failed=False)
    gate.check_empty()


async def test_waiting_calls_are_refused_when_the_breaker_opens_without_leaking_turns() -> None:
    gate = Gate(breaker=Breaker(failures=1, open_s=60), at_once_max=1)
    first = await gate.enter("a")
    waiting = [gate.waits(name) for name in "bc"]
    await a_moment()
    gate.limiter.leave(first, failed=True)
    for refused in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(refused, CallNotAdmitted)
        assert isinstance(refused.why, BreakerOpen)
        assert 59 < refused.left_s <= 60
    gate.check_empty()
    assert [(m.state, m.open_s) for m in gate.moments if isinstance(m, BreakerTurned)] == [("open", 60)]


async def test_a_call_that_would_be_refused_does_not_wait_for_a_turn() -> None:
    gate = Gate(breaker=Breaker(failures=1, open_s=0.01), at_once_max=1)
    gate.limiter.leave(await gate.enter("a"), failed=True)
    await CLOCK.sleep(0.02)
    tries = await gate.enter("b")
    with pytest.raises(CallNotAdmitted) as refused:
        await CLOCK.within(1, gate.waits("c"))
    assert refused.value.left_s == TRIED_S
    gate.limiter.leave(tries, failed=False)
    gate.check_empty()


async def test_the_error_of_a_call_is_counted_and_raised() -> None:
    async def fails() -> None:
        raise KeyError

    async def answers() -> str:
        return "c"

    gate = Gate(breaker=Breaker(failures=1, part=0, open_s=60))
    for judged in (None, False):
        with pytest.raises(KeyError):
            await gate.limiter.through(fails, AT, FOR_EVER, lambda why, judged=judged: judged)  # type: ignore[misc]
    assert await gate.limiter.through(answers, AT, FOR_EVER, lambda why: True) == "c"
    assert not gate.moments
    with pytest.raises(KeyError):
        await gate.limiter.through(fails, AT, FOR_EVER, lambda why: isinstance(why, KeyError))
    with pytest.raises(CallNotAdmitted):
        await gate.limiter.through(answers, AT, FOR_EVER, lambda why: True)
    gate.check_empty()
