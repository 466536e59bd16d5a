"""The hook that calls people: once for each letter, so often a minute at most, again if it fails, and signed."""

import asyncio
import hmac
import json
import os
import signal
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from saga.configuration.settings import Settings
from saga.engine.persistence import dead_letters
from saga.errors import ConfigurationError
from saga.policies.retry import Blame
from saga.progress import failed_attempts, journal
from saga.progress.actions import RunHandler
from saga.progress.failed_attempts import RunFailure
from saga.progress.journal import Commit
from saga.support.addresses import check_hook
from saga.support.clock import SystemClock
from saga.telemetry import alert_hook as hooks
from saga.telemetry.alert_hook import ATTEMPTS_MAX, AlertHook, encode_body, make_sender, run_hook, sign
from saga.telemetry.events import DeadLettered, Escalated, Recovered, TelemetryEvent, Unavailable
from tests.progress.pieces import a_hand, a_message, a_role, blank

T = TypeVar("T")
A, MAKE = a_message("A"), a_role("make", "A")
NOW_MS = 1_800_000_000_000
ESCALATED = Escalated(
    service="payment", saga="order-2", handler="release", reason="3 attempts failed", steps=("step x ran",), id="esc-1"
)


def dead(number: int, *, blocks: bool = True) -> DeadLettered:
    return DeadLettered(
        service="payment",
        saga=f"order-{number}",
        handler="reserve",
        type="OrderPlaced",
        reason="BankDown: no answer",
        remedy="look why",
        blame="outside",
        owner="order",
        id=f"dead-{number}" if blocks else None,
    )


@dataclass
class Clock:
    """Clock on which only waits take time."""

    s: float = 0.0

    def now_ms(self) -> int:
        return NOW_MS + round(self.s * 1000)

    def monotonic_s(self) -> float:
        return self.s

    def chance(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.s += seconds
        await SystemClock().sleep(0)

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        return await what


@dataclass
class Ground:
    """An alert hook with a recording receiver: its calls, and the moments that it reports."""

    per_minute_max: int = 1000
    secret: bytes = b""
    fails: int = 0
    clock: Clock = field(default_factory=Clock)
    calls: list[tuple[float, dict[str, object], Mapping[str, str], bytes]] = field(default_factory=list)
    tried_s: list[float] = field(default_factory=list)
    reported: list[TelemetryEvent] = field(default_factory=list)

    async def send(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.tried_s.append(self.clock.s)
        if self.fails:
            self.fails -= 1
            raise ConnectionError("nobody there")
        self.calls.append((self.clock.s, json.loads(body), headers, body))

    async def play(self, *moments: TelemetryEvent) -> list[dict[str, object]]:
        hook = AlertHook(self.send, self.clock, self.reported.append, self.per_minute_max, self.secret)
        async with run_hook(hook):
            for moment in moments:
                hook.listen(moment)
            while hook._waiting:
                await self.clock.sleep(0)
        return [body for _, body, _, _ in self.calls]


async def test_each_dead_letter_that_needs_a_person_is_reported_once() -> None:
    ground = Ground()
    bodies = await ground.play(dead(1), dead(1), dead(2, blocks=False), ESCALATED, dead(3), dead(1), ESCALATED)
    assert [body["id"] for body in bodies] == ["dead-1", "esc-1", "dead-3"]
    assert bodies[0] == {
        "id": "dead-1",
        "what": "dead letter",
        "service": "payment",
        "saga": "order-1",
        "handler": "reserve",
        "type": "OrderPlaced",
        "message": None,
        "reason": "BankDown: no answer",
        "remedy": "look why",
        "class": "outside",
        "owner": "order",
        "where": None,
        "time": "2027-01-15T08:00:00.000Z",
    }
    assert (bodies[1]["what"], bodies[1]["calls"]) == ("escalation", ["step x ran"])
    assert ground.reported == []


def test_the_hook_is_called_for_nothing_else() -> None:
    quiet = Escalated(service="payment", saga="order-2", handler="release", reason="again", steps=())
    for moment in (Recovered(service="payment", what="store", away_s=1.0), dead(1, blocks=False), quiet):
        assert encode_body(moment, NOW_MS, 0) is None


@pytest.mark.parametrize(("attempts", "blame"), [(3, "data"), (1, "outside"), (0, "code"), (0, "person")])
def test_every_dead_letter_that_blocks_its_saga_is_one_to_call_for(attempts: int, blame: Blame) -> None:
    """Also one of a message on which processes died, or that an operator routed there: no attempt of these failed."""
    failure = RunFailure(reason="why", remedy="mend", attempts=attempts, blame=blame)
    done = failed_attempts.give_up(blank(), a_hand(A), RunHandler(MAKE, A, (A,)), failure, None)
    assert done.snapshot.is_quarantined
    assert called_for(done) == [done.snapshot.queue[0].dead]


def test_no_call_is_made_for_a_message_that_is_only_rejected() -> None:
    done = journal.reject_message(blank(), a_hand(A), MAKE, A, "it contradicts an earlier one", "mend its sender")
    assert not done.snapshot.is_quarantined
    assert called_for(done) == []


def called_for(done: Commit) -> list[str | None]:
    """Ids of the calls that the dead letters of a transition cause."""
    assert done.entry is not None
    moments = [dead_letters.to_telemetry("svc", "s", letter, None) for letter in done.entry.letters]
    return [body[0] for moment in moments if moment is not None and (body := encode_body(moment, NOW_MS, 0))]


async def test_no_more_calls_than_so_many_are_made_in_a_minute() -> None:
    ground = Ground(per_minute_max=2)
    await ground.play(*map(dead, range(5)))
    times = [at_s for at_s, *_ in ground.calls]
    assert [sum(start <= at_s < start + 60 for at_s in times) for start in (0, 60, 120)] == [2, 2, 1]
    assert all(sum(t <= at_s < t + 59.9 for at_s in times) <= 2 for t in times)


async def test_a_failing_hook_is_retried_with_growing_delays_and_reported_once() -> None:
    ground = Ground(fails=4)
    await ground.play(dead(1), dead(2))
    assert list(ground.tried_s[:5]) == [0, 1, 3, 7, 15]
    assert [body["id"] for _, body, _, _ in ground.calls] == ["dead-1", "dead-2"], "in order"
    failed, again = ground.reported
    assert isinstance(failed, Unavailable)
    assert (failed.what, failed.error) == ("hook", "ConnectionError: nobody there")
    assert isinstance(again, Recovered)
    assert (again.what, again.away_s) == ("hook", 15)


async def test_undelivered_hook_events_are_dropped_and_counted_in_the_next_call() -> None:
    bodies = await Ground(fails=ATTEMPTS_MAX).play(dead(1), dead(2), dead(3))
    assert [(body["id"], body.get("left_out")) for body in bodies] == [("dead-2", 1), ("dead-3", None)]


async def test_the_next_alert_has_all_its_attempts_after_one_that_was_dropped() -> None:
    ground = Ground(fails=2 * ATTEMPTS_MAX - 1)
    hook = AlertHook(ground.send, ground.clock, ground.reported.append, 1000)
    async with run_hook(hook):
        for number in (1, 2):
            hook.listen(dead(number))
            while hook._waiting:
                await ground.clock.sleep(0)
    assert [(body["id"], body["left_out"]) for _, body, _, _ in ground.calls] == [("dead-2", 1)]


@pytest.mark.parametrize("error", [ConnectionError("nobody there"), TimeoutError(), OSError("status 500")])
async def test_a_call_that_always_fails_holds_up_no_other(error: Exception) -> None:
    """A broken receiver does not hold back other alerts."""
    ground = Ground()
    send, tried = ground.send, list[float]()

    async def picky(body: bytes, headers: Mapping[str, str]) -> None:
        if headers["x-saga-id"] in ("dead-1", "dead-4"):
            tried.append(ground.clock.s)
            raise error
        await send(body, headers)

    hook = AlertHook(picky, ground.clock, ground.reported.append, 1000)
    async with run_hook(hook):
        for number in range(1, 7):
            hook.listen(dead(number))
        while len(ground.calls) < 4:
            await ground.clock.sleep(0)
        assert [body["id"] for _, body, _, _ in ground.calls] == ["dead-2", "dead-3", "dead-5", "dead-6"]
        assert ground.calls[-1][0] <= 2
        while hook._waiting:
            await ground.clock.sleep(0)
        hook.listen(dead(7))
        while hook._waiting:
            await ground.clock.sleep(0)
    assert 2 * ATTEMPTS_MAX <= len(tried) <= 3 * ATTEMPTS_MAX
    assert (ground.calls[-1][1]["id"], ground.calls[-1][1]["left_out"]) == ("dead-7", 2)


async def test_the_oldest_of_too_many_hook_events_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "WAITING_MAX", 3)
    monkeypatch.setattr(hooks, "KNOWN_MAX", 4)
    bodies = await Ground().play(*map(dead, range(10)))
    assert [(body["id"], body.get("left_out")) for body in bodies] == [
        ("dead-7", 7),
        ("dead-8", None),
        ("dead-9", None),
    ]


async def test_a_call_is_signed_so_that_it_cannot_be_forged() -> None:
    ground = Ground(secret=b"key")
    await ground.play(dead(1))
    ((_, _, headers, body),) = ground.calls
    assert headers["x-saga-id"] == "dead-1"
    signature = headers["x-saga-signature"]
    assert signature == sign(b"key", NOW_MS // 1000, body)
    at, _, proof = signature.partition(",v1=")
    assert hmac.new(b"key", at.removeprefix("t=").encode() + b"." + body, "sha256").hexdigest() == proof
    unsigned = Ground()
    await unsigned.play(dead(1))
    assert "x-saga-signature" not in unsigned.calls[0][2]


async def test_a_process_that_stops_waits_only_a_moment_for_calls_that_are_left() -> None:
    class Deaf(Clock):
        async def within(self, seconds: float, what: Awaitable[T]) -> T:
            async with asyncio.timeout(0.05):
                return await what

    async def never(body: bytes, headers: Mapping[str, str]) -> None:
        await asyncio.Event().wait()

    hook = AlertHook(never, Deaf(), lambda moment: None, 10)
    async with asyncio.timeout(5), run_hook(hook):
        hook.listen(dead(1))


# -------------------------------------------------------------------- ways


async def test_a_command_gets_it_on_its_standard_input(tmp_path: Path) -> None:
    code = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read() + '|'.join(sys.argv[2:]))"
    send = make_sender(f"command:{sys.executable} -c \"{code}\" '{tmp_path / 'calls'}'")
    await send(b'{"id": 1}', {"x-saga-id": "dead-1", "x-saga-signature": "t=1,v1=2"})
    assert (tmp_path / "calls").read_text() == '{"id": 1}dead-1|t=1,v1=2'
    failing = make_sender(f"command:{sys.executable} -c \"import sys; sys.exit('no pager')\"")
    with pytest.raises(OSError, match="exit code 1: no pager"):
        await failing(b"{}", {"x-saga-id": "dead-1"})


async def test_a_command_that_does_not_end_is_ended() -> None:
    send = make_sender(f'command:{sys.executable} -c "import time; time.sleep(60)"')
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await send(b"{}", {"x-saga-id": "dead-1"})


@pytest.mark.parametrize("status", [200, 500])
async def test_a_url_gets_it_as_a_post(status: int) -> None:
    got = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        got.append(head + await reader.readexactly(2))
        writer.write(f"HTTP/1.1 {status} So\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        send = make_sender(f"http://127.0.0.1:{port}/page?token=x")
        headers = {"x-saga-id": "dead-1", "content-type": "application/json"}
        if status == 200:
            await send(b"{}", headers)
        else:
            with pytest.raises(OSError, match="500"):
                await send(b"{}", headers)
    assert got[0].startswith(b"POST /page?token=x HTTP/1.1\r\n")
    assert b"x-saga-id: dead-1" in got[0].lower()


async def test_a_redirect_is_not_taken_for_a_successful_call() -> None:
    asked = list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        if asked[-1].startswith(b"POST"):
            writer.write(b"HTTP/1.1 302 So\r\nlocation: /login\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 So\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        send = make_sender(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/page")
        with pytest.raises(OSError, match="status 302: the URL redirects"):
            await send(b"{}", {"x-saga-id": "dead-1"})
    assert [line.partition(b" ")[0] for line in asked] == [b"POST"]


async def test_a_url_that_keeps_calls_waiting_takes_no_threads_from_others_and_is_asked_once_at_a_time() -> None:
    asked, leave = list[bytes](), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.write(b"HTTP/1.1 200 So\r\n")  # and now and then a byte: no timeout of a socket ends that
        while not leave.is_set():
            writer.write(b"x")
            await SystemClock().sleep(0.02)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        send = make_sender(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/page")
        try:
            for _ in range(50):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await send(b"{}", {"x-saga-id": "dead-1"})
                async with asyncio.timeout(10):
                    while not asked:  # a new thread may take longer than the first call waits
                        await SystemClock().sleep(0.01)
            async with asyncio.timeout(5):
                assert await asyncio.to_thread(lambda: "free") == "free"
            assert len(asked) == 1
        finally:
            leave.set()  # since Python 3.12 a server waits for its connections
        while isinstance(send, hooks.UrlSender) and send._calling is not None and send._calling.is_alive():
            await SystemClock().sleep(0.02)


async def test_processes_started_by_a_hook_command_end_with_it_and_delay_nothing(
    tmp_path: Path,
) -> None:
    file, another = tmp_path / "pid", tmp_path / "another"
    hangs = make_sender(f"command:sh -c 'sleep 60 & echo $! > {file}; wait'")
    call = asyncio.gather(hangs(b"{}", {"x-saga-id": "dead-1"}))
    async with asyncio.timeout(30):
        while not file.exists() or not file.read_text().endswith("\n"):
            await SystemClock().sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while _runs(int(file.read_text())):
            await SystemClock().sleep(0.02)
    leaves = make_sender(f"command:sh -c 'sleep 60 & echo $! > {another}'")
    async with asyncio.timeout(30):
        await leaves(b"{}", {"x-saga-id": "dead-1"})
    os.kill(int(another.read_text()), signal.SIGKILL)
    with pytest.raises(OSError, match="no/such/pager"):
        await make_sender("command:no/such/pager")(b"{}", {"x-saga-id": "dead-1"})


def _runs(process: int) -> bool:
    """Return whether a process has not ended; one that has ended may not have been waited for."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("text", ["pager.example", "ftp://pager", "https://", "command:", "command:'a"])
def test_an_invalid_hook_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it must be|name the command|cannot be read"):
        check_hook(text)
    check_hook("https://pager.example/v1?key=x")
    check_hook("http://[::1]:8080/@team?key=%20")
    check_hook("command:/usr/bin/page --loud")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://alerts:hunter2secret@127.0.0.1/hook", "no user and no password"),
        ("https://hunter2secret@pager.example/hook", "no user and no password"),
        ("http://pager.example:hunter2secret/x", "its port is invalid"),
        ("http://pager.example:70000/hunter2secret", "its port is invalid"),
        ("http://pager.example:0/hunter2secret", "and a port from 1"),
        ("http://[hunter2secret/x", "its port is invalid"),
        ("http:///hunter2secret", "with a host"),
        ("https://:443/hunter2secret", "with a host"),
        ("https://pager.example/hunter2secret x", "percent-encode its spaces"),
        ("https://pager.example/hunter2secret/ä", "what is not ASCII"),
    ],
)
def test_a_hook_that_cannot_be_called_is_refused_without_showing_its_secret(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Settings.read({"SAGA_HOOK": url})
    assert message in str(refused.value)
    assert "hunter2secret" not in str(refused.value)
