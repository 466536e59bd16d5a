"""Limits of a resource, of one call, or of the runs of a handler: breaker, concurrent calls, calls per second.

`saga.policies.breaker` and `saga.policies.concurrency` decide which call is admitted and when. Here, calls wait until
they are admitted. Everything is in memory: processes do not share it, and a new process begins with a closed breaker.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import NamedTuple, TypeVar

from saga.declarations.values import Resource
from saga.engine.ports import Ports
from saga.errors import BreakerOpen, SagaError
from saga.messages import Position
from saga.messaging.controls import Switch
from saga.policies import breaker, concurrency
from saga.policies.breaker import Circuit
from saga.policies.concurrency import WAITING_MAX, CallQueue
from saga.telemetry.events import BreakerTurned, CallWaited

T = TypeVar("T")

LOOK_S = 1.0
"""Seconds after which a waiting call checks whether the worker is to stop."""


class TooManyCalls(SagaError):
    """Raised for a call that is not admitted in time, because too many other calls wait ahead of it."""


class CallNotAdmitted(Exception):
    """Raised before a call begins, if its limits do not admit it. The cause is neither the handler nor the message, so
    it does not count as an attempt."""

    def __init__(self, why: SagaError, left_s: float) -> None:
        """`left_s`: seconds after which to try again."""
        self.why, self.left_s = why, left_s
        super().__init__(why, left_s)


class AdmittedCall(NamedTuple):
    """A call that was admitted."""

    turns: int
    """The breaker's number of state changes when the call was admitted: see `Circuit.turns`."""
    began_s: float


class _Waiting:
    """A call that waits until it may run as one of the concurrent calls."""

    __slots__ = ("is_next", "limiter", "woken")

    def __init__(self, limiter: "Limiter") -> None:
        self.limiter = limiter
        self.is_next = False
        self.woken: asyncio.Future[None] | None = None


class CallGate:
    """Counts the calls under one limit: those in progress, those begun, and those that wait.

    All services of the process with the same limit share one gate, because the called system sees one process.
    """

    __slots__ = ("is_shared", "line", "waiting")

    def __init__(self) -> None:
        self.line = CallQueue()
        self.waiting: deque[_Waiting] = deque()
        self.is_shared = False
        """True if more than one service uses it."""


class CallGates:
    """The gates of one process. The key of a gate consists of what is limited, and the limits."""

    def __init__(self) -> None:
        self._known: dict[object, CallGate] = {}

    def of(self, *what: object) -> CallGate:
        """Return the gate for this key; create it if it is new."""
        if what in self._known:
            self._known[what].is_shared = True
        return self._known.setdefault(what, CallGate())


class Limiter:
    """Admits calls within their limits: all calls of steps to one resource in this service, or all calls of one
    function that has its own limits."""

    def __init__(self, service: str, resource: Resource, ports: Ports, gate: CallGate | None = None) -> None:
        self._service, self._resource, self._ports = service, resource, ports
        self._gate = gate or CallGate()
        self.is_needed = resource.is_limited
        """False if there is no limit, so that no call has to wait for admission."""
        self._at_once_max, self._rate_per_s = resource.at_once_max, resource.rate_per_s
        self._own = CallQueue()
        """State of the calls that this limiter admits. A limit that an operator has set applies to these; the declared
        limit applies to all calls of the gate."""
        self._circuit = Circuit()

    @property
    def _line(self) -> CallQueue:
        return self._gate.line

    @_line.setter
    def _line(self, line: CallQueue) -> None:
        self._gate.line = line

    @property
    def _waiting(self) -> "deque[_Waiting]":
        return self._gate.waiting

    def limit(self, switch: Switch | None) -> None:
        """Apply the limits that an operator has set in place of the declared ones; `None` restores the declared
        ones."""
        declared = self._resource
        at_once_max = None if switch is None else switch.at_once_max
        rate_per_s = None if switch is None else switch.rate_per_s
        self._at_once_max = declared.at_once_max if at_once_max is None else at_once_max
        self._rate_per_s = declared.rate_per_s if rate_per_s is None else rate_per_s
        self.is_needed = declared.is_limited or switch is not None
        self._own = CallQueue(running=self._own.running)  # reservations at another rate keep no call waiting
        self._fill()

    async def through(
        self,
        make: Callable[[], Awaitable[T]],
        at: Position,
        latest_s: float,
        is_fault: Callable[[BaseException], bool | None],
    ) -> T:
        """Make a call once it is admitted. Raises the errors of the call and of `enter`.

        `is_fault`: returns whether the resource is to blame for an error; `None` if the call was abandoned, so that
        this is unknown.
        """
        call = await self.enter(at, latest_s)
        failed: bool | None = False
        try:
            return await make()
        except BaseException as why:
            failed = is_fault(why)
            raise
        finally:
            self.leave(call, failed)

    async def enter(self, at: Position, latest_s: float) -> AdmittedCall:
        """Wait until a call may begin. The caller has to call `leave` after the call.

        Raises `CallNotAdmitted` while the breaker is open, or if the call is not admitted before `latest_s`; `Draining`
        when the worker stops or loses the partition.
        """
        clock, resource, rate_per_s = self._ports.clock, self._resource, self._rate_per_s
        self.check_closed()  # a call that would be refused does not wait
        came_s = clock.monotonic_s()
        has_waited = await self._place(at, latest_s)
        try:
            if rate_per_s is not None and await self._turn(rate_per_s, at, latest_s):
                has_waited = True
            now_s = clock.monotonic_s()
            if has_waited:
                self._ports.outage_watch.report(
                    CallWaited(service=self._service, resource=resource.name, ms=(now_s - came_s) * 1000)
                )
            circuit = breaker.admit(self._circuit, now_s)
            if circuit is None:
                raise self._is_open()
        except BaseException:
            self._frees(None)
            raise
        self._turns(circuit)
        return AdmittedCall(circuit.turns, now_s)

    def leave(self, call: AdmittedCall, failed: bool | None) -> None:
        """Record that a call has ended. `failed`: whether it failed; `None` if it was abandoned, so that its result is
        unknown."""
        now_s = self._ports.clock.monotonic_s()
        if self._resource.breaker is not None:
            self._turns(breaker.end_call(self._resource.breaker, self._circuit, call.turns, failed, now_s))
        self._frees(None if failed is None else now_s - call.began_s)

    def check_closed(self) -> None:
        """Raise `CallNotAdmitted` while the breaker is open."""
        if breaker.left_s(self._circuit, self._ports.clock.monotonic_s()):
            raise self._is_open()

    def _is_open(self) -> CallNotAdmitted:
        left_s = breaker.left_s(self._circuit, self._ports.clock.monotonic_s())
        return CallNotAdmitted(BreakerOpen(self._resource.name), left_s)

    def _turns(self, circuit: Circuit) -> None:
        before, self._circuit = self._circuit, circuit
        if circuit.state != before.state or circuit.turns > before.turns:
            rules = self._resource.breaker
            self._ports.outage_watch.report(
                BreakerTurned(
                    service=self._service,
                    resource=self._resource.name,
                    state=circuit.state,
                    open_s=rules.open_s if rules is not None and circuit.state == "open" else 0,
                )
            )

    async def _place(self, at: Position, latest_s: float) -> bool:
        """Wait for a place among the concurrent calls. Returns whether it had to wait."""
        if self._has_place():  # `_fill` has already given free places to all waiting calls that may have one
            self._take_place()
            return False
        if self._line.waiting >= WAITING_MAX:
            raise self._is_busy()
        place = _Waiting(self)
        self._waiting.append(place)
        self._line = self._line.waits(1)
        try:
            await self._ports.outage_watch.idling(self._is_next(place, at, latest_s))
        except BaseException:
            if place.is_next:  # it has its place already, and gives it to the next call
                self._frees(None)
            else:
                self._waiting.remove(place)
                self._line = self._line.waits(-1)
            raise
        return True

    async def _is_next(self, place: _Waiting, at: Position, latest_s: float) -> None:
        clock = self._ports.clock
        while not place.is_next:
            left_s = latest_s - clock.monotonic_s()
            if left_s <= 0:
                raise self._is_busy()
            place.woken = asyncio.get_running_loop().create_future()
            try:
                await clock.within(min(left_s, LOOK_S), place.woken)
            except TimeoutError:
                self._ports.assignment.check_running(at)

    async def _turn(self, rate_per_s: float, at: Position, latest_s: float) -> bool:
        """Wait until the rate admits the call. Returns whether it had to wait."""
        now_s, line, declared = self._ports.clock.monotonic_s(), self._line, self._resource.rate_per_s
        own, begins_s = concurrency.reserve(self._own, rate_per_s, now_s)
        if declared is not None:
            line, together_s = concurrency.reserve(line, max(declared, rate_per_s), now_s)
            begins_s = max(begins_s, together_s)
        if begins_s > now_s and (begins_s > latest_s or self._line.waiting >= WAITING_MAX):
            raise self._is_busy()
        self._own, self._line = own, line
        if begins_s <= now_s:
            return False
        self._line = line.waits(1)
        try:
            await self._ports.assignment.pause(begins_s - now_s, at)
        finally:
            self._line = self._line.waits(-1)
        return True

    def _is_busy(self) -> CallNotAdmitted:
        now_s = self._ports.clock.monotonic_s()
        self._line, left_s = concurrency.postpone(self._line, self._at_once_max, self._rate_per_s, now_s)
        return CallNotAdmitted(
            TooManyCalls(f"{self._resource.name} has no turn in time: other calls come first"), left_s
        )

    def _has_place(self) -> bool:
        """Return whether one more of its own calls may run."""
        most, declared = self._at_once_max, self._resource.at_once_max
        if most is None:
            return True
        return self._own.running < most and (declared is None or self._line.running < max(most, declared))

    def _take_place(self) -> None:
        self._own, self._line = self._own.runs(), self._line.runs()

    def _frees(self, lasted_s: float | None) -> None:
        """Release a place, and give it to the first waiting call that may have it."""
        self._own = concurrency.end_turn(self._own, lasted_s)
        self._line = concurrency.end_turn(self._line, lasted_s)
        self._fill()

    def _fill(self) -> None:
        """Give all free places to waiting calls, in order. Calls of a service whose own limit is reached are passed
        over."""
        while (place := self._find_next()) is not None:
            self._waiting.remove(place)
            place.is_next = True
            self._line = self._line.waits(-1)
            place.limiter._take_place()
            if place.woken is not None and not place.woken.done():
                place.woken.set_result(None)

    def _find_next(self) -> _Waiting | None:
        waiting = self._waiting if self._gate.is_shared else islice(self._waiting, 1)
        return next((place for place in waiting if place.limiter._has_place()), None)
