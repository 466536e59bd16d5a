"""Hook for people: a URL or a command that is called once for each dead letter that blocks a saga, and each escalation.

What is to be told waits in memory, bounded, and is told in order, so often a minute at most; a call that fails is made
again, and holds up no other. All of it lies on `<service>.dead` besides: a process that dies before it has told loses a
call, no letter.
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
from saga.support.printable import shortened
from saga.telemetry.events import DeadLettered, Escalated, Recovered, Report, TelemetryEvent, Unavailable

WAITING_MAX = 1000
"""Calls that wait, at most: of more the oldest are left out, and the next call says how many."""
KNOWN_MAX = 10_000
"""Ids of what was told that are remembered, at most."""
ATTEMPTS_MAX = 8
DELAY_S_FIRST, DELAY_S_MAX = 1.0, 60.0
TIMEOUT_S = 10.0
WITHIN_S = 60.0
"""Time in which so many calls are made at most."""
DRAIN_S = 3.0
"""Seconds that a process which stops gives to what waits."""
CALLS_MAX = 20

Send: TypeAlias = Callable[[bytes, Mapping[str, str]], Awaitable[None]]
"""Way of a body and its headers to whoever is to be told. Raises whatever keeps them from it."""


def sign(secret: bytes, at_s: int, body: bytes) -> str:
    """Proof that a body is ours, and of which second: HMAC-SHA256 of time, a dot, and body.

    >>> signature(b"key", 1800000000, b"{}")[:27]
    't=1800000000,v1=7321475872b'
    """
    return f"t={at_s},v1={hmac.new(secret, str(at_s).encode() + b'.' + body, 'sha256').hexdigest()}"


def encode_body(moment: TelemetryEvent, now_ms: int, left_out: int) -> tuple[str, bytes] | None:
    """Id and JSON of what is told of a moment; `None`: nobody has to be called because of it."""
    if isinstance(moment, DeadLettered) and moment.id is not None:
        said: dict[str, object] = {
            "what": "dead letter",
            "type": moment.type,
            "message": moment.message,
            "remedy": moment.remedy,
        }
        said |= {"class": moment.blame, "owner": moment.owner, "where": moment.where}
    elif isinstance(moment, Escalated) and moment.id is not None:
        said = {"what": "escalation", "calls": moment.steps[:CALLS_MAX]}
    else:
        return None
    told = {
        "id": moment.id,
        "service": moment.service,
        "saga": moment.saga,
        "handler": moment.handler,
        "reason": shortened(moment.reason, 2000),
        "time": iso(now_ms),
        **said,
        **({"left_out": left_out} if left_out else {}),
    }
    return moment.id, msgspec.json.encode(told)


@dataclass(slots=True, eq=False)
class WaitingAlert:
    """Call that is to be made."""

    moment: TelemetryEvent
    failures: int = 0
    due_s: float = 0.0
    """Time before which it is not made again."""


@dataclass(slots=True)
class AlertHook:
    """Listener of moments that calls whoever is to be told, one call after another."""

    send: Send
    clock: Clock
    report: Report
    """Told when calls fail, and when they come through again."""
    per_minute_max: int
    secret: bytes = b""
    """Key of the signature; empty: calls are not signed."""
    _waiting: deque[WaitingAlert] = field(default_factory=deque)
    _known: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _made_s: deque[float] = field(default_factory=deque)
    _left_out: int = 0
    _there: asyncio.Event = field(default_factory=asyncio.Event)
    _failing_s: float | None = None
    _failures: int = 0
    """Number of calls that failed in a row, whatever they were to tell."""

    def listen(self, moment: TelemetryEvent) -> None:
        """Keep what people have to be called for: each once."""
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
        """Make the calls, for as long as nobody cancels it."""
        while True:
            await self._there.wait()
            while self._waiting:
                now_s = self.clock.monotonic_s()
                due = [call for call in self._waiting if call.due_s <= now_s]
                if not due:
                    await self._until(min(call.due_s for call in self._waiting) - now_s)
                    continue
                await self._has_room()
                await self._told(min(due, key=lambda call: call.failures))  # the first of those that failed least
            self._there.clear()

    async def _until(self, seconds: float) -> None:
        """Return after so many seconds, or when there is another call to be made."""
        self._there.clear()
        with suppress(TimeoutError):
            await self.clock.within(seconds, self._there.wait())

    async def rest(self) -> None:
        """Return when nothing waits."""
        while self._waiting:
            await self.clock.sleep(0.05)

    async def _has_room(self) -> None:
        """Return when one more call may be made within the minute."""
        while True:
            now_s = self.clock.monotonic_s()
            while self._made_s and now_s - self._made_s[0] >= WITHIN_S:
                self._made_s.popleft()
            if len(self._made_s) < self.per_minute_max:
                self._made_s.append(now_s)
                return
            await self.clock.sleep(max(0.01, WITHIN_S - (now_s - self._made_s[0])))

    async def _told(self, call: WaitingAlert) -> None:
        """Make one call. If it fails it is made again later, and others are made before; in the end it is left out."""
        left_out, self._left_out = self._left_out, 0
        made = encode_body(call.moment, self.clock.now_ms(), left_out)
        assert made is not None
        id_, body = made
        headers = {"content-type": "application/json", "x-saga-id": id_}
        if self.secret:
            headers["x-saga-signature"] = sign(self.secret, self.clock.now_ms() // 1000, body)
        try:
            await self.clock.within(TIMEOUT_S, self.send(body, headers))
        except Exception as why:  # noqa: BLE001 - whatever is at the other end: it is tried again
            self._left_out += left_out
            self._fails(call.moment.service, why)
            await self._put_off(call)
        else:
            self._failures = 0
            self._drop(call)
            self._comes_through(call.moment.service)

    async def _put_off(self, call: WaitingAlert) -> None:
        """Make a call again later; leave out what failed too often. Calls that fail in a row are made ever less often,
        and after so many of them the oldest is left out."""
        call.failures, self._failures = call.failures + 1, self._failures + 1
        call.due_s = self.clock.monotonic_s() + self._delay_s(call.failures)
        pause_s = self._delay_s(self._failures)
        if call.failures >= ATTEMPTS_MAX:
            self._leave_out(call)
        elif self._failures >= ATTEMPTS_MAX:
            self._leave_out(self._waiting[0])
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
        with suppress(ValueError):  # of very many it may have been left out meanwhile
            self._waiting.remove(call)

    def _fails(self, service: str, why: Exception) -> None:
        if self._failing_s is None:
            self._failing_s = self.clock.monotonic_s()
            error = shortened(f"{type(why).__name__}: {why}", 500)
            self.report(Unavailable(service=service, what="hook", operation="call", error=error, since_s=0.0))

    def _comes_through(self, service: str) -> None:
        if self._failing_s is not None:
            away_s, self._failing_s = self.clock.monotonic_s() - self._failing_s, None
            self.report(Recovered(service=service, what="hook", away_s=away_s))


@asynccontextmanager
async def run_hook(hook: AlertHook) -> AsyncIterator[AlertHook]:
    """Have the hook call inside the block. Leaving it waits a moment for what is still to be told."""
    task = asyncio.get_running_loop().create_task(hook.run(), name="hook")
    try:
        yield hook
        with suppress(TimeoutError):
            await hook.clock.within(DRAIN_S, hook.rest())
    finally:
        task.cancel()
        await asyncio.wait([task])


# -------------------------------------------------------------------- ways


def make_sender(where: str) -> Send:
    """Way to a URL, or to a command that gets the body on its standard input."""
    if not where.startswith(COMMAND):
        return UrlSender(where)
    words = shlex.split(where.removeprefix(COMMAND))
    return lambda body, headers: _run_command(words, body, headers)


@dataclass(slots=True)
class UrlSender:
    """Way to a URL. Each call has a thread of its own: whoever keeps one waiting, a byte now and then, keeps no thread
    from others who need one. While a call is kept waiting there is no second one."""

    where: str
    _calling: threading.Thread | None = None

    async def __call__(self, body: bytes, headers: Mapping[str, str]) -> None:
        if self._calling is not None and self._calling.is_alive():
            raise TimeoutError("the call before this one is kept waiting")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def call() -> None:
            failed: Exception | None = None
            try:
                _post(self.where, body, headers)
            except Exception as why:  # noqa: BLE001 - whatever it is: whoever waits is told
                failed = why
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(_set_result, done, failed)

        self._calling = threading.Thread(target=call, name="hook", daemon=True)
        self._calling.start()
        await done


def _set_result(done: "asyncio.Future[None]", failed: Exception | None) -> None:
    if done.done():  # whoever waited has given up
        return
    if failed is None:
        done.set_result(None)
    else:
        done.set_exception(failed)


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refusal to be led elsewhere: a POST that is redirected loses its body, and 200 is said to an empty question."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _post(where: str, body: bytes, headers: Mapping[str, str]) -> None:
    request = urllib.request.Request(where, body, dict(headers), method="POST")
    try:
        # What it says is of no interest: nothing of it is read.
        urllib.request.build_opener(NoRedirects).open(request, timeout=TIMEOUT_S).close()
    except urllib.error.HTTPError as why:
        why.close()
        if 300 <= why.code < 400:
            raise OSError(
                f"status {why.code}: it leads elsewhere, and nothing was told; name the right address"
            ) from None
        raise OSError(f"status {why.code}") from None


async def _run_command(words: list[str], body: bytes, headers: Mapping[str, str]) -> None:
    with tempfile.TemporaryFile() as errors:  # no pipe: what it leaves running may keep one open for ever
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
                    os.killpg(process.pid, signal.SIGKILL)  # with all that it has started: that hangs, too
                await process.wait()
        if process.returncode:
            errors.seek(0)
            said = errors.read(300).decode("utf-8", "replace")
            raise OSError(f"it ended with exit code {process.returncode}: {said}")
