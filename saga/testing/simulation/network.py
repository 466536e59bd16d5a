"""The network between processes and the backends that they use. Each operation takes time, and a fault may hit it.

An operation has three phases: it is sent, it lands (takes effect or is rejected), and its answer comes back. If the
caller dies in between, the operation still lands. Faults are injected only in this module.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from saga.telemetry.events import TelemetryEvent
from saga.testing.fault_plans import READS, WRITES, Chance, FaultPlan, Operation, OperationKind, PlannedFault
from saga.testing.simulation.loop import Process, SimulatedLoop


class OperationRecord(NamedTuple):
    """Trace line: an operation took effect, or was rejected."""

    time_s: float
    operation: Operation
    result: str
    """Result: `done`, or the name of the exception."""


class InjectedFault(NamedTuple):
    """Trace line: a fault happened."""

    time_s: float
    operation: Operation
    planned: PlannedFault
    details: str


class TraceNote(NamedTuple):
    """Trace line: anything else, such as the start of a process, the end of a freeze, or a telemetry event of a
    service.
    """

    time_s: float
    process: str
    what: str
    moment: TelemetryEvent | None = None


@dataclass(slots=True)
class Trace:
    """Everything that happened in one run."""

    lines: list[OperationRecord | InjectedFault | TraceNote] = field(default_factory=list)

    @property
    def faults(self) -> list[InjectedFault]:
        """Faults that were injected, in order."""
        return [line for line in self.lines if isinstance(line, InjectedFault)]

    def fingerprint(self) -> str:
        """Return a digest of the trace. Two runs have the same digest if the same things happened in them at the same
        times and in the same order.
        """
        digest = blake2b(digest_size=16)
        for line in self.lines:
            digest.update("\n".join(_as_text(line)).encode())
        return digest.hexdigest()


def _as_text(line: OperationRecord | InjectedFault | TraceNote) -> Iterator[str]:
    yield f"{line.time_s:.9f}"
    if isinstance(line, TraceNote):
        yield line.process
        yield line.what
        yield type(line.moment).__name__
    else:
        yield f"{line.operation.process}#{line.operation.number}"
        yield line.operation.what
        yield line.operation.where
        yield str(line.planned) if isinstance(line, InjectedFault) else line.result


HOP_S_FIRST, HOP_S_SPREAD = 0.0002, 0.0008
"""Time of a message on the network in seconds: the minimum, and the largest random addition to it."""
SLOW_HOP_S = 0.04
"""Maximum extra time in seconds of a slow message. 2 % of all messages are slow."""
RESTART_S = 2.0
"""Maximum time in seconds until another process replaces a dead one."""
OUTAGE_S_FIRST, OUTAGE_S_MAX = 60.0, 3 * 3600.0
"""Minimum and maximum length of a service's outage in seconds. The maximum exceeds most deadlines."""
MINUTES_S, DAYS_S, YEARS_S = 600.0, 20 * 86_400.0, 3 * 365 * 86_400.0
"""Maximum clock errors in seconds: in most cases, in a few cases, and in very few cases."""
OUT_OF_REACH = "cannot be reached"
"""Reason of a rejection that no backend sent. The caller notices it only by a timeout."""

Effect: TypeAlias = Callable[[PlannedFault | None, tuple[float, float, float, float]], Any]
"""Function that applies an operation when it lands. Its arguments are the planned fault, if any, and four random
numbers.
"""


@dataclass(frozen=True, slots=True)
class Backend:
    """A system that processes use: the broker, a service's store, or external systems."""

    name: str
    unavailable: Callable[[str], Exception]
    """Creates the error for an operation that has had no effect and never will."""
    unsure: Callable[[str], Exception]
    """Creates the error for an operation that may have taken effect, or may still do so."""


class Disruptions:
    """Effects of faults that go beyond one operation. The methods of this base class do nothing; the world overrides
    them.
    """

    def crash(self, process: Process, after_s: float) -> None:
        """Kill the process now, and start another one `after_s` later."""

    def freeze(self, process: Process, time_s: float) -> None:
        """Freeze the process for this time."""

    def restart_all(self) -> None:
        """Restart every worker gracefully. It is called after a fault has let a long time pass."""

    def silence(self, who: str, time_s: float) -> None:
        """Stop the heartbeats of this process, or of all processes of this service, for this time, because they cannot
        reach the broker.
        """

    def outage(self, service: str, time_s: float) -> None:
        """Kill all processes of the service, and start others after this time."""

    def rebalance(self, process: Process, draws: tuple[float, float, float, float]) -> str:
        """Reassign the partitions of the process's service, or restart the process. Return a description."""
        return ""

    def move(self, process: Process, times: int, every_s: float) -> str:
        """Reassign the partitions of the process's service this many times. Return a description."""
        return ""

    def redeploy(self, process: Process, draws: tuple[float, float, float, float]) -> str:
        """Restart the process with another release of its service, for a while. Return a description."""
        return ""


class PendingAnswer(NamedTuple):
    """An operation that has been sent and whose answer has not arrived yet."""

    process: Process
    backend: Backend
    operation: Operation
    answer: "Future[Any]"
    back_s: float
    """Seconds that the answer needs to reach the caller."""
    is_lost: bool


class Network:
    """Carries out all operations of one world, and injects the faults that hit them."""

    def __init__(self, chance: Chance, plan: FaultPlan | None, trace: Trace) -> None:
        self.chance, self.plan, self.trace = chance, plan, trace
        self.disruptions = Disruptions()
        self.context: Context = copy_context()
        """The context of the world itself. A callback in this context belongs to no process, so it still runs after
        processes have died.
        """
        self._numbers: dict[str, int] = {}
        self._cut: dict[tuple[str, str], float] = {}
        """Time until which a process or service cannot reach a backend, by the name of the process or service and the
        name of the backend.
        """
        self._full: dict[str, float] = {}
        self._slow: dict[str, tuple[float, float]] = {}
        """The slow backends: the time until which each is slow, and the extra seconds of each operation."""
        self._few: dict[str, tuple[float, float]] = {}
        """The services that get one record at a time: the time until which this lasts, and the seconds between two
        records.
        """
        self.wrong_ms = 0
        """Largest error of any process's clock so far, in milliseconds."""

    # ---------------------------------------------------------------- sending operations

    def ask(
        self,
        process: Process,
        backend: Backend,
        what: OperationKind,
        where: str,
        names: tuple[str, ...],
        effect: Effect,
    ) -> "Future[Any]":
        """Send an operation, and return a future for its result or error. If the caller dies in between, the future is
        never completed.
        """
        loop = asyncio.get_running_loop()
        answer: Future[Any] = loop.create_future()
        operation = self.next_operation(process, what, where, names)
        draws = self.chance.draw_four(f"{process.name}#{operation.number}")
        planned = None if self.plan is None else self.plan.fault_at(operation, loop.time())
        if planned is not None:
            self._disrupt(process, backend, operation, planned, draws)
            if planned.kind == "crash" and not planned.after:
                return answer
        there_s, back_s = self._hop_s(draws[0], backend), self._hop_s(draws[1], backend)
        if planned is not None and planned.kind == "slow handler":
            back_s += _slow_s(draws)
        if planned is not None and planned.kind == "delay":
            there_s, back_s = (there_s + 3 * draws[2], back_s) if draws[3] < 0.5 else (there_s, back_s + 3 * draws[2])
        refused = self._find_refusal(process, backend, what, planned)
        if refused is not None:
            self.trace.lines.append(OperationRecord(loop.time(), operation, refused))
            error = backend.unavailable(f"planted: {refused}")
            self.later(there_s + (draws[2] if refused == OUT_OF_REACH else back_s), lambda: _raise(answer, error))
            return answer
        lost = planned is not None and planned.kind in ("lost answer", "late answer")
        if planned is not None and planned.kind == "late answer":
            self.later(there_s + back_s, lambda: _raise(answer, backend.unsure("planted: no answer came")))
            there_s += 5 * draws[2] ** 2

        on_its_way = PendingAnswer(process, backend, operation, answer, back_s, lost)

        def land() -> None:
            given = self._land(operation, planned, effect, draws)
            if planned is not None and planned.kind == "crash" and process.alive:
                self.trace.lines.append(InjectedFault(loop.time(), operation, planned, ""))
                self._crash(process, draws)
            elif isinstance(given, Future):
                given.add_done_callback(lambda done: self._record_answer(on_its_way, done))
            else:
                self._send_back(on_its_way, given)

        self.later(there_s, land)
        return answer

    def next_operation(self, process: Process, what: OperationKind, where: str, names: tuple[str, ...]) -> Operation:
        """Return the next operation of a process, with its number."""
        number = self._numbers[process.name] = self._numbers.get(process.name, 0) + 1
        return Operation(process.name, process.service, number, what, where, names)

    def survives_poll(self, process: Process, where: str, names: tuple[str, ...]) -> bool:
        """Record that a poll returned records, and apply the fault planned for it, if any. Return False if this fault
        killed the process.
        """
        operation = self.next_operation(process, "poll", where, names)
        planned = None if self.plan is None else self.plan.fault_at(operation, asyncio.get_running_loop().time())
        self.trace.lines.append(OperationRecord(asyncio.get_running_loop().time(), operation, "done"))
        if planned is not None:
            draws = self.chance.draw_four(f"{process.name}#{operation.number}")
            self._disrupt(process, None, operation, planned, draws)
            if planned.kind == "crash" and planned.after:
                self.trace.lines.append(InjectedFault(asyncio.get_running_loop().time(), operation, planned, ""))
                self._crash(process, draws)
        return process.alive

    def later(self, delay_s: float, callback: Callable[[], object]) -> None:
        """Schedule a callback in the world's own context, so that it runs even if the current process dies."""
        asyncio.get_running_loop().call_later(delay_s, callback, context=self.context)

    def idle_later(self, delay_s: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Schedule a callback for the current process. A pending callback of this kind does not keep the run going."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimulatedLoop):
            return loop.idle_later(delay_s, callback)
        return loop.call_later(delay_s, callback)

    def note(self, process: str, what: str) -> None:
        """Add a line to the timeline."""
        self.trace.lines.append(TraceNote(asyncio.get_running_loop().time(), process, what))

    def cut_for_s(self, process: Process, backend: str) -> float:
        """Return for how many seconds the process cannot reach the backend; 0 if it can reach it now."""
        if not self._cut:
            return 0.0
        cut = self._cut
        until_s = max(cut.get((process.name, backend), 0.0), cut.get((process.service, backend), 0.0))
        return max(0.0, until_s - asyncio.get_running_loop().time())

    def every_s(self, process: Process) -> float:
        """Return the minimum seconds between two records that the process gets; 0 if it is not limited."""
        until_s, every_s = self._few.get(process.service, (0.0, 0.0))
        return every_s if asyncio.get_running_loop().time() < until_s else 0.0

    # ---------------------------------------------------------------- effects and answers

    def _land(
        self,
        operation: Operation,
        planned: PlannedFault | None,
        effect: Effect,
        draws: tuple[float, float, float, float],
    ) -> Any:
        """Apply the operation and return its result. Return an exception instead of raising it, because an error also
        has to travel back to the caller.
        """
        try:
            given, result = effect(planned, draws), "done"
        except Exception as why:  # noqa: BLE001 - whatever the backend answers is on its way back
            given, result = why, type(why).__name__
        self.trace.lines.append(OperationRecord(asyncio.get_running_loop().time(), operation, result))
        return given

    def _record_answer(self, pending: PendingAnswer, done: "Future[Any]") -> None:
        """Record the answer of an external system, and send it back to the caller."""
        given: Any = ConnectionError("it was cancelled") if done.cancelled() else done.exception() or done.result()
        result = type(given).__name__ if isinstance(given, Exception) else "answered"
        self.trace.lines.append(OperationRecord(asyncio.get_running_loop().time(), pending.operation, result))
        self._send_back(pending, given)

    def _send_back(self, pending: PendingAnswer, given: Any) -> None:
        process, backend, operation, answer, back_s, is_lost = pending

        def arrives() -> None:
            if answer.done():
                return
            if is_lost or self.cut_for_s(process, backend.name):
                error = backend.unavailable if operation.what in READS else backend.unsure  # a read has changed nothing
                answer.set_exception(error("planted: the answer was lost"))
            elif isinstance(given, Exception):
                answer.set_exception(given)
            else:
                answer.set_result(given)

        self.later(back_s, arrives)

    def _hop_s(self, drawn: float, backend: Backend) -> float:
        hop_s = HOP_S_FIRST + HOP_S_SPREAD * drawn
        if drawn > 0.98:
            hop_s += SLOW_HOP_S * (drawn - 0.98) * 50
        if self._slow and backend.name in self._slow:
            until_s, more_s = self._slow[backend.name]
            if asyncio.get_running_loop().time() < until_s:
                hop_s += more_s * (0.5 + drawn)
        return hop_s

    # ---------------------------------------------------------------- faults

    def _find_refusal(
        self, process: Process, backend: Backend, what: OperationKind, planned: PlannedFault | None
    ) -> str | None:
        """Return why the backend rejects the operation, which then never takes effect; `None` if the backend accepts
        it.
        """
        if planned is not None and planned.kind == "throttle":
            return "too many requests"
        if self._cut and self.cut_for_s(process, backend.name):
            return OUT_OF_REACH
        written = self._full and (what in WRITES or what == "publish")
        if written and asyncio.get_running_loop().time() < self._full.get(backend.name, 0.0):
            return "no space left on device"
        return None

    def _disrupt(
        self,
        process: Process,
        backend: Backend | None,
        operation: Operation,
        planned: PlannedFault,
        draws: tuple[float, float, float, float],
    ) -> None:
        """Apply those effects of a fault that go beyond the operation that it hits."""
        if planned.kind == "crash" and planned.after:
            return  # it crashes after the operation has taken effect
        now_s, details = asyncio.get_running_loop().time(), ""
        where = "broker" if backend is None else backend.name
        match planned.kind:
            case "crash":
                self._crash(process, draws)
            case "partition":
                time_s = 0.1 + 20 * draws[2] ** 2
                who = process.name if planned.after else process.service
                self._cut[who, where] = max(self._cut.get((who, where), 0.0), now_s + time_s)
                if where == "broker":
                    self.disruptions.silence(who, time_s)
                details = f"{who} does not reach {where} for {time_s:.1f} s"
            case "freeze":
                time_s = 0.05 + 30 * draws[2] ** 2
                details = f"{process.name} stands still for {time_s:.1f} s"
                self.disruptions.freeze(process, time_s)
            case "rebalance":
                details = self.disruptions.rebalance(process, draws)
            case "slow handler":
                time_s, times = _slow_s(draws), 2 + int(draws[3] * 4)
                moves = self.disruptions.move(process, times, time_s / times)
                details = f"{operation.where} is answered after {time_s:.1f} s, {moves}"
            case "deploy":
                details = self.disruptions.redeploy(process, draws)
            case "clock":
                process.skew_ms = _wrong_ms(draws)
                self.wrong_ms = max(self.wrong_ms, abs(process.skew_ms))
                details = f"its clock is {process.skew_ms / 1000:+.1f} s off"
            case "outage":
                time_s = OUTAGE_S_FIRST + (OUTAGE_S_MAX - OUTAGE_S_FIRST) * draws[2] ** 3
                details = f"{process.service} is down for {time_s:.0f} s"
                self.disruptions.outage(process.service, time_s)
            case "backlog":
                time_s, every_s = 60 + 3600 * draws[2] ** 2, 0.2 + 3 * draws[3]
                self._few[process.service] = (now_s + time_s, every_s)
                details = f"{process.service} is given one record in {every_s:.1f} s for {time_s:.0f} s"
            case "full disk":
                time_s = 0.2 + 15 * draws[2] ** 2
                self._full[where] = max(self._full.get(where, 0.0), now_s + time_s)
                details = f"{where} is full for {time_s:.1f} s"
            case "slow store":
                time_s, more_s = 0.5 + 15 * draws[2], 0.1 + 2 * draws[3]
                self._slow[where] = (now_s + time_s, more_s)
                details = f"{where} takes {more_s:.1f} s longer for {time_s:.1f} s"
            case _:
                pass
        self.trace.lines.append(InjectedFault(now_s, operation, planned, details))

    def _crash(self, process: Process, draws: tuple[float, float, float, float]) -> None:
        self.disruptions.crash(process, 0.05 + RESTART_S * draws[3])


def _slow_s(draws: tuple[float, float, float, float]) -> float:
    """Return the extra seconds of a slow call. They are less than the timeout of a call, so they cause no retry."""
    return 1 + 3 * draws[2]


def _wrong_ms(draws: tuple[float, float, float, float]) -> int:
    """Return a clock error in milliseconds, ahead or behind: minutes in most cases, days in a few, years in very
    few.
    """
    way = 1 if draws[2] >= 0.5 else -1
    rare, much = abs(2 * draws[2] - 1), draws[3]
    most_s = YEARS_S if rare > 0.97 else DAYS_S if rare > 0.9 else MINUTES_S
    return way * round(1000 * most_s * (much if rare > 0.9 else rare))


def _raise(answer: "Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
