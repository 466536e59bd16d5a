"""The alert hook, which calls a URL or runs a command: once for each dead letter that blocks a saga, and once for each
escalation.

Alerts wait in a bounded queue in memory. They are sent in order, and their number per minute is limited. A failed call
is retried and does not delay others. Every alert is also a record on `<service>.dead`. So if the process dies, a call
may be lost, but no dead letter.
"""

import asyncio
import hmac
import os
import shlex
import signal
import tempfile
import threading
import urllib.error
import urllib.request
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from saga.support.addresses import COMMAND
from saga.support.clock import Clock, iso
from saga.support.printable import shorten
from saga.telemetry.events import DeadLettered, Escalated, Recovered, Report, TelemetryEvent, Unavailable

WAITING_MAX = 1000
"""Maximum number of waiting alerts. If there are more, the oldest ones are dropped, and the next call says how many
were."""
KNOWN_MAX = 10_000
"""Maximum number of alert ids that are remembered, so that each alert is sent only once."""
ATTEMPTS_MAX = 8
DELAY_S_FIRST, DELAY_S_MAX = 1.0, 60.0
TIMEOUT_S = 10.0
WITHIN_S = 60.0
"""Period of the rate limit, in seconds."""
DRAIN_S = 3.0
"""Seconds for which a stopping process still sends waiting alerts."""
CALLS_MAX = 20

Send: TypeAlias = Callable[[bytes, Mapping[str, str]], Awaitable[None]]
"""Function that sends a body with headers. If that fails, it raises an exception of any kind."""


def sign(secret: bytes, at_s: int, body: bytes) -> str:
    """Return the signature of a body: HMAC-SHA256 of the time, a dot, and the body. The receiver can verify with it who
    sent the body, and when.

    >>> sign(b"key", 1800000000, b"{}")[:27]
    't=1800000000,v1=7321475872b'
    """
    return f"t={at_s},v1={hmac.new(secret, str(at_s).encode() + b'.' + body, 'sha256').hexdigest()}"


def encode_body(moment: TelemetryEvent, now_ms: int, left_out: int) -> tuple[str, bytes] | None:
    """Return the id and the JSON body of the alert for an event; `None` if the event causes no alert. `left_out`:
    number of dropped alerts that the body reports."""
    if isinstance(moment, DeadLettered) and moment.id is not None:
        details: dict[str, object] = {
            "what": "dead letter",
            "type": moment.type,
            "message": moment.message,
            "remedy": moment.remedy,
        }
        details |= {"class": moment.blame, "owner": moment.owner, "where": moment.where}
    elif isinstance(moment, Escalated) and moment.id is not None:
        details = {"what": "escalation", "calls": moment.steps[:CALLS_MAX]}
    else:
        return None
    body = {
        "id": moment.id,
        "service": moment.service,
        "saga": moment.saga,
        "handler": moment.handler,
        "reason": shorten(moment.reason, 2000),
        "time": iso(now_ms),
        **details,
        **({"left_out": left_out} if left_out else {}),
    }
    return moment.id, msgspec.json.encode(body)


@dataclass(slots=True, eq=False)
class WaitingAlert:
    """An alert that has not been sent yet."""

    moment: TelemetryEvent
    failures: int = 0
    due_s: float = 0.0
    """Time of the next attempt, on the monotonic clock."""


@dataclass(slots=True)
class AlertHook:
    """Telemetry listener that sends alerts, one at a time."""

    send: Send
    clock: Clock
    report: Report
    """Receives a telemetry event when calls begin to fail, and another one when they succeed again."""
    per_minute_max: int
    secret: bytes = b""
    """Key with which calls are signed; empty if they are not signed."""
    _waiting: deque[WaitingAlert] = field(default_factory=deque)
    _known: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _made_s: deque[float] = field(default_factory=deque)
    _left_out: int = 0
    _there: asyncio.Event = field(default_factory=asyncio.Event)
    _failing_s: float | None = None
    _failures: int = 0
    """Number of consecutive failed calls, counted over all alerts."""

    def listen(self, moment: TelemetryEvent) -> None:
        """Queue an alert for the event, unless the event causes none or its alert was queued before."""
        id_ = moment.id if isinstance(moment, DeadLettered | Escalated) else None
        if id_ is None or id_ in self._known or encode_body(moment, 0, 0) is None:
            return
        self._known[id_] = None
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self._waiting.append(WaitingAlert(moment))
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._left_out += 1
        self._there.set()

    async def run(self) -> None:
        """Send alerts until cancelled."""
        while True:
            await self._there.wait()
            while self._waiting:
                now_s = self.clock.monotonic_s()
                due = [call for call in self._waiting if call.due_s <= now_s]
                if not due:
                    await self._wait_for_alert(min(call.due_s for call in self._waiting) - now_s)
                    continue
                await self._wait_for_rate_limit()
                await self._call(min(due, key=lambda call: call.failures))  # fewest failures, then oldest
            self._there.clear()

    async def _wait_for_alert(self, seconds: float) -> None:
        """Wait for this many seconds, or until another alert is queued."""
        self._there.clear()
        with suppress(TimeoutError):
            await self.clock.within(seconds, self._there.wait())

    async def rest(self) -> None:
        """Wait until the queue is empty."""
        while self._waiting:
            await self.clock.sleep(0.05)

    async def _wait_for_rate_limit(self) -> None:
        """Wait until the limit per minute allows one more call."""
        while True:
            now_s = self.clock.monotonic_s()
            while self._made_s and now_s - self._made_s[0] >= WITHIN_S:
                self._made_s.popleft()
            if len(self._made_s) < self.per_minute_max:
                self._made_s.append(now_s)
                return
            await self.clock.sleep(max(0.01, WITHIN_S - (now_s - self._made_s[0])))

    async def _call(self, call: WaitingAlert) -> None:
        """Send one alert. If that fails, schedule another attempt. After too many attempts, drop the alert."""
        left_out, self._left_out = self._left_out, 0
        made = encode_body(call.moment, self.clock.now_ms(), left_out)
        assert made is not None
        id_, body = made
        headers = {"content-type": "application/json", "x-saga-id": id_}
        if self.secret:
            headers["x-saga-signature"] = sign(self.secret, self.clock.now_ms() // 1000, body)
        try:
            await self.clock.within(TIMEOUT_S, self.send(body, headers))
        except Exception as why:  # noqa: BLE001 - the receiver may fail in any way: the alert is retried
            self._left_out += left_out
            self._fails(call.moment.service, why)
            await self._put_off(call)
        else:
            self._failures = 0
            self._drop(call)
            self._comes_through(call.moment.service)

    async def _put_off(self, call: WaitingAlert) -> None:
        """Schedule the next attempt of an alert, or drop the alert after `ATTEMPTS_MAX` failed attempts.

        The more calls fail in a row, the longer is the pause before the next one. After `ATTEMPTS_MAX` failed calls in
        a row, an alert is dropped even if it has fewer attempts: the oldest one. The attempts of all other alerts are
        then counted again from 0.
        """
        call.failures, self._failures = call.failures + 1, self._failures + 1
        call.due_s = self.clock.monotonic_s() + self._delay_s(call.failures)
        pause_s = self._delay_s(self._failures)
        is_away = self._failures >= ATTEMPTS_MAX
        if call.failures >= ATTEMPTS_MAX:
            self._leave_out(call)
        elif is_away:
            self._leave_out(self._waiting[0])
        if is_away:
            self._failures = 0
            for each in self._waiting:
                each.failures, each.due_s = 0, 0.0
        await self.clock.sleep(pause_s)

    def _delay_s(self, failures: int) -> float:
        delay_s: float = min(DELAY_S_FIRST * 2 ** (failures - 1), DELAY_S_MAX)
        return delay_s * (1 + self.clock.chance() / 2)

    def _leave_out(self, call: WaitingAlert) -> None:
        self._drop(call)
        self._left_out += 1

    def _drop(self, call: WaitingAlert) -> None:
        with suppress(ValueError):  # `listen` may have left it out meanwhile because the queue was full
            self._waiting.remove(call)

    def _fails(self, service: str, why: Exception) -> None:
        if self._failing_s is None:
            self._failing_s = self.clock.monotonic_s()
            error = shorten(f"{type(why).__name__}: {why}", 500)
            self.report(Unavailable(service=service, what="hook", operation="call", error=error, since_s=0.0))

    def _comes_through(self, service: str) -> None:
        if self._failing_s is not None:
            away_s, self._failing_s = self.clock.monotonic_s() - self._failing_s, None
            self.report(Recovered(service=service, what="hook", away_s=away_s))


@asynccontextmanager
async def run_hook(hook: AlertHook) -> AsyncIterator[AlertHook]:
    """Send alerts within the block. When the block is left, wait up to `DRAIN_S` seconds for queued alerts."""
    task = asyncio.get_running_loop().create_task(hook.run(), name="hook")
    try:
        yield hook
        with suppress(TimeoutError):
            await hook.clock.within(DRAIN_S, hook.rest())
    finally:
        task.cancel()
        await asyncio.wait([task])


# -------------------------------------------------------------------- senders


def make_sender(where: str) -> Send:
    """Return a function that posts to a URL, or that runs a command with the body on its standard input."""
    if not where.startswith(COMMAND):
        return UrlSender(where)
    words = shlex.split(where.removeprefix(COMMAND))
    return lambda body, headers: _run_command(words, body, headers)


@dataclass(slots=True)
class UrlSender:
    """Sender that posts to a URL. Each call has a thread of its own, so that a very slow receiver does not block
    threads of the pool. While a call hangs, every further call fails at once."""

    where: str
    _calling: threading.Thread | None = None

    async def __call__(self, body: bytes, headers: Mapping[str, str]) -> None:
        if self._calling is not None and self._calling.is_alive():
            raise TimeoutError("the previous call still waits for its answer")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def call() -> None:
            failed: Exception | None = None
            try:
                _post(self.where, body, headers)
            except Exception as why:  # noqa: BLE001 - passed on to the awaiting task
                failed = why
            with suppress(RuntimeError):  # the loop is closed: no task waits any more
                loop.call_soon_threadsafe(_set_result, done, failed)

        self._calling = threading.Thread(target=call, name="hook", daemon=True)
        self._calling.start()
        await done


def _set_result(done: "asyncio.Future[None]", failed: Exception | None) -> None:
    if done.done():  # the waiting task was cancelled, or timed out
        return
    if failed is None:
        done.set_result(None)
    else:
        done.set_exception(failed)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that refuses redirects. A redirected POST would lose its body, and status 200 would then only acknowledge
    the empty request."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _post(where: str, body: bytes, headers: Mapping[str, str]) -> None:
    request = urllib.request.Request(where, body, dict(headers), method="POST")
    try:
        # The response body is not needed, so none of it is read.
        urllib.request.build_opener(NoRedirects).open(request, timeout=TIMEOUT_S).close()
    except urllib.error.HTTPError as why:
        why.close()
        if 300 <= why.code < 400:
            raise OSError(
                f"status {why.code}: the URL redirects, and the alert was not delivered; configure the final URL"
            ) from None
        raise OSError(f"status {why.code}") from None


async def _run_command(words: list[str], body: bytes, headers: Mapping[str, str]) -> None:
    with (
        tempfile.TemporaryFile() as errors
    ):  # no pipe, because a process that the command leaves running could keep it open for ever
        process = await asyncio.create_subprocess_exec(
            *words,
            headers["x-saga-id"],
            headers.get("x-saga-signature", ""),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        try:
            await process.communicate(body)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # kills its children too, because they may hang as well
                await process.wait()
        if process.returncode:
            errors.seek(0)
            message = errors.read(300).decode("utf-8", "replace")
            raise OSError(f"the command ended with exit code {process.returncode}: {message}")
