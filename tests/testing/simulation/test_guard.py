"""The guard: calls that leave a simulated world are noticed and named, harmless ones are not."""

import _random
import asyncio
import gc
import importlib.abc
import importlib.machinery
import logging
import os
import random  # noqa: TID251 - what is to be noticed
import select
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from secrets import token_hex
from time import time as now_s  # noqa: TID251 - what is to be noticed
from types import CodeType, FrameType, SimpleNamespace
from uuid import uuid4  # noqa: TID251 - what is to be noticed

import msgspec
import pytest
import structlog

from saga.errors import SagaError
from saga.support.clock import SystemClock
from saga.testing.simulation.guard import CAUGHT_MAX, Guard
from saga.testing.simulation.loop import SimulatedLoop
from tests.testing.simulation.guarded_code import LIBRARIES, caught_in, first_of, placed


@pytest.fixture(autouse=True)
def _no_other_profiler() -> Iterator[None]:
    before = sys.getprofile()
    sys.setprofile(None)
    yield
    assert sys.getprofile() is None, "a guard has stayed behind"
    sys.setprofile(before)


class Day(datetime):
    """A date class of its own, as `pendulum` and others make one."""


def a_thread() -> threading.Thread:
    return threading.Thread(target=int, daemon=True)


DIRECTLY: dict[str, Callable[[], object]] = {
    "time.time": lambda: time.time(),  # noqa: TID251
    "time.time_ns": lambda: time.time_ns(),  # noqa: TID251
    "time.monotonic": lambda: time.monotonic(),
    "time.monotonic_ns": lambda: time.monotonic_ns(),
    "time.perf_counter": lambda: time.perf_counter(),
    "time.process_time": lambda: time.process_time(),
    "time.clock_gettime": lambda: time.clock_gettime(time.CLOCK_REALTIME),
    "time.sleep": lambda: time.sleep(0),  # noqa: TID251
    "datetime.now": lambda: datetime.now(UTC),
    "datetime.utcnow": lambda: datetime.utcnow(),  # noqa: DTZ003
    "datetime.today": lambda: datetime.today(),  # noqa: DTZ002
    "date.today": lambda: date.today(),  # noqa: DTZ011
    "os.urandom": lambda: os.urandom(8),
    "random.random": lambda: random.random(),
    "random.getrandbits": lambda: random.getrandbits(8),
    "select.select": lambda: select.select([], [], [], 0),
    "os.system": lambda: os.system("true"),
    "_ssl.RAND_bytes": lambda: ssl.RAND_bytes(8),
}


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")  # from Python 3.12 on
@pytest.mark.parametrize("what", DIRECTLY)
def test_a_c_function_that_leads_out_of_the_world_is_named_with_its_line(what: str) -> None:
    call = DIRECTLY[what]
    (stray,) = caught_in(call)
    assert (stray.what, stray.through) == (what, None)
    assert (stray.file, stray.line, stray.function) == (__file__, call.__code__.co_firstlineno, "<lambda>")


THROUGH: dict[str, tuple[str, Callable[[], object]]] = {
    "uuid.uuid4": ("os.urandom", lambda: uuid.uuid4()),  # noqa: TID251
    "secrets.token_hex": ("os.urandom", lambda: token_hex(4)),
    "random.SystemRandom.random": ("os.urandom", lambda: random.SystemRandom().random()),
    "random.Random.randint": ("random.getrandbits", lambda: random.randint(1, 6)),
    "random.Random.uniform": ("random.random", lambda: random.uniform(0, 1)),
    "random.Random.seed": ("random.seed", lambda: random.seed()),
    "random.Random.__init__": ("random.Random.seed(None)", lambda: random.Random()),
    "socket.getaddrinfo": ("_socket.getaddrinfo", lambda: socket.getaddrinfo("127.0.0.1", 1)),
    "socket.socket.__init__": ("socket.socket", lambda: socket.socket().close()),
    "subprocess.run": ("_posixsubprocess.fork_exec", lambda: subprocess.run(["true"], check=True)),
    "threading.Thread.start": ("_thread.start_", lambda: a_thread().start()),
    "saga.support.clock.SystemClock.now_ms": ("time.time_ns", lambda: SystemClock().now_ms()),
}


@pytest.mark.parametrize("through", THROUGH)
def test_a_python_function_that_ends_in_such_a_call_is_named_too(through: str) -> None:
    what, call = THROUGH[through]
    stray = first_of(call)
    assert stray.what.startswith(what)
    assert (stray.through, stray.file, stray.line) == (through, __file__, call.__code__.co_firstlineno)


def test_an_id_made_of_time_and_machine_is_noticed() -> None:
    assert first_of(lambda: uuid.uuid1()).through == "uuid.uuid1"


def test_a_function_imported_by_name_before_is_noticed() -> None:
    assert [stray.what for stray in caught_in(lambda: (now_s(), uuid4()))] == ["time.time", "os.urandom"]


def test_a_subclass_of_datetime_is_noticed() -> None:
    assert [stray.what for stray in caught_in(lambda: (Day.now(UTC), Day.today()))] == [
        "datetime.now",
        "datetime.today",
    ]


def test_a_socket_from_before_the_world_is_noticed_when_it_is_used() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert [stray.what for stray in caught_in(lambda: ours.sendall(b"x"))] == ["socket.sendall"]
        assert [stray.what for stray in caught_in(lambda: ours.connect_ex("nowhere"))] == ["socket.connect_ex"]


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="no epoll here")
def test_waiting_for_the_operating_system_is_noticed() -> None:
    with select.epoll() as epoll:
        assert first_of(lambda: epoll.poll(0)).what == "select.epoll.poll"


REMEDIES = {
    "time.time": "hand a clock to the resource",
    "time.sleep": "await asyncio.sleep",
    "os.urandom": "saga.idempotency_key(name)",
    "random.random": "saga.idempotency_key(name)",
    "select.select": "give the world a fake",
    "os.system": "give the world a fake",
}


@pytest.mark.parametrize("what", REMEDIES)
def test_the_remedy_fits_what_was_called(what: str) -> None:
    assert REMEDIES[what] in first_of(DIRECTLY[what]).remedy


def test_a_thread_has_a_remedy_of_its_own() -> None:
    assert "await it" in first_of(lambda: a_thread().start()).remedy


# ---------------------------------------------------------------- what does no harm


def _with_a_logger() -> None:
    logging.getLogger("tests.guard").error("something %s", "happened")


def _with_structlog() -> None:
    stamped: list[structlog.typing.EventDict] = []

    def keep(_: object, __: str, fields: structlog.typing.EventDict) -> str:
        stamped.append(fields)
        return ""

    stamp = structlog.processors.TimeStamper(fmt="iso")
    structlog.wrap_logger(structlog.ReturnLogger(), processors=[stamp, keep]).info("something")
    assert stamped[0]["timestamp"]


HARMLESS: dict[str, Callable[[], object]] = {
    "own chance": lambda: [
        random.Random(7).random(),
        random.Random("a").randint(1, 6),
        random.Random(7).sample([1, 2], 1),
    ],
    "own chance seeded again": lambda: random.Random(7).seed(8),
    "given times": lambda: [datetime.fromtimestamp(0, UTC).time(), date(2026, 1, 1).isoformat(), time.gmtime(0)],
    "logging": _with_a_logger,
    "structlog": _with_structlog,
    "generators": lambda: (x for x in (1, 2)).send(None),
    "names": lambda: (uuid.uuid5(uuid.NAMESPACE_DNS, "x"), uuid.UUID(int=1)),
    "json": lambda: msgspec.json.encode({"at": datetime(2026, 1, 1, tzinfo=UTC)}),
}


def test_a_seed_given_to_the_c_class_is_not_noticed() -> None:
    def seed(a: None) -> None:
        _random.Random(7).seed(8)

    assert caught_in(lambda: seed(None)) == []


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_calls_are_not_reported(name: str) -> None:
    assert caught_in(HARMLESS[name]) == []


def test_asyncio_in_a_simulated_world_is_not_noticed() -> None:
    async def service() -> float:
        async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
            waits = tasks.create_task(asyncio.sleep(2))  # noqa: TID251 - on a loop whose time is virtual
            await waits
        return asyncio.get_running_loop().time()

    loop = SimulatedLoop(7)
    assert caught_in(lambda: loop.run_until_complete(service())) == []
    assert loop.time() == 2
    loop.close()


def test_a_service_in_a_simulated_world_is_named() -> None:
    async def service() -> float:
        await asyncio.sleep(2)  # noqa: TID251 - on a loop whose time is virtual
        return time.time()  # noqa: TID251

    loop = SimulatedLoop(7)
    (stray,) = caught_in(lambda: loop.run_until_complete(service()))
    assert (stray.function, stray.line) == ("service", service.__code__.co_firstlineno + 2)
    loop.close()


def test_a_call_during_garbage_collection_is_not_reported_as_an_escape() -> None:
    asked: list[float] = []

    def hook(phase: str, info: dict[str, int]) -> None:
        asked.append(time.perf_counter())

    gc.callbacks.append(hook)
    try:
        assert caught_in(gc.collect) == []
    finally:
        gc.callbacks.remove(hook)
    assert asked


class Library(importlib.abc.InspectLoader):
    """Loads a library that asks for the time when it is imported."""

    def get_source(self, fullname: str) -> str:
        return "import time\nLOADED = time.time()"

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_source(fullname), str(LIBRARIES / "made" / "late.py"))


def test_a_library_that_is_imported_while_the_world_runs_may_ask_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.machinery.ModuleSpec("a_late_library", Library())
    finder = SimpleNamespace(find_spec=lambda name, *_: spec if name == spec.name else None)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert caught_in(lambda: importlib.import_module("a_late_library")) == []
    assert sys.modules.pop("a_late_library").LOADED > 0


# ---------------------------------------------------------------- the guard itself


def test_check_reports_what_happened_where_and_what_to_do() -> None:
    def pay() -> float:
        return time.time()  # noqa: TID251

    with Guard() as guard:
        pay()
        os.urandom(1)
    with pytest.raises(SagaError) as raised:
        guard.check()
    assert str(raised.value) == (
        f"{__file__}:{pay.__code__.co_firstlineno + 1} in pay calls time.time: "
        "a simulated world has a time of its own; take the event's own time, or hand a clock to the resource"
    )


def test_check_passes_where_nothing_was_caught() -> None:
    with Guard() as guard:
        random.Random(7).random()
    assert guard.active
    guard.check()


def test_nothing_is_noticed_outside_of_it() -> None:
    guard = Guard()
    time.time()  # noqa: TID251
    with guard:
        pass
    time.time()  # noqa: TID251
    assert guard.caught == []


def test_a_guard_can_be_reentered_and_keeps_its_findings() -> None:
    guard = Guard()
    for ask in (time.time, time.monotonic):  # noqa: TID251
        with guard:
            ask()
    assert [stray.what for stray in guard.caught] == ["time.time", "time.monotonic"]


def test_entered_twice_it_watches_until_it_is_left_twice() -> None:
    guard = Guard()
    with guard:
        with guard:
            pass
        time.time()  # noqa: TID251
    assert len(guard.caught) == 1


def test_the_guard_is_removed_when_the_world_fails() -> None:
    with pytest.raises(ZeroDivisionError), Guard():
        raise ZeroDivisionError
    assert sys.getprofile() is None


def test_a_profiler_that_is_there_already_stays_and_the_guard_reports_that_it_does_not_watch() -> None:
    def profiler(frame: FrameType, event: str, called: object) -> None:
        """Code of a library."""

    guard = Guard()
    sys.setprofile(profiler)
    try:
        with guard:
            time.time()  # noqa: TID251
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)
    assert (guard.active, guard.caught) == (False, [])


def test_a_profiler_that_came_later_stays() -> None:
    def profiler(frame: FrameType, event: str, called: object) -> None:
        """Code of a library."""

    try:
        with Guard():
            sys.setprofile(profiler)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_the_outer_of_two_guards_is_active() -> None:
    with Guard() as outer:
        with Guard() as inner:
            time.time()  # noqa: TID251
        time.monotonic()
    assert [stray.what for stray in outer.caught] == ["time.time", "time.monotonic"]
    assert (inner.active, inner.caught) == (False, [])


def test_a_line_that_calls_often_is_reported_once() -> None:
    assert len(caught_in(lambda: [time.time() for _ in range(5)])) == 1  # noqa: TID251


def test_only_the_first_are_kept() -> None:
    source = "import time\n" + "def called():\n" + "    time.time()\n" * (CAUGHT_MAX + 5)
    caught = caught_in(placed(source, "made_by_this_test.py"))
    assert [stray.line for stray in caught] == list(range(3, CAUGHT_MAX + 3))
