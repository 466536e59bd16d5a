"""The guard: which line a stray call is reported with."""

import inspect
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from saga.support.clock import SystemClock
from saga.testing.simulation.guard import Guard
from tests.testing.simulation.guarded_code import LIBRARIES, SAGA, caught_in, first_of, placed

ASKS = "import time\ndef called():\n    return time.time()"
HANDS_ON = "def called(call):\n    return call()"


LIBRARY_FILES = [
    LIBRARIES / "made" / "clocks.py",
    Path("/elsewhere/dist-packages/clocks.py"),
    "<attrs generated init X>",
]


@pytest.mark.parametrize("file", LIBRARY_FILES, ids=str)
def test_a_library_called_by_a_service_is_reported_with_the_line_of_the_service(file: Path | str) -> None:
    library = placed(ASKS, file)
    stray = first_of(lambda: library())
    assert (stray.file, stray.through) == (__file__, "placed.called")


def test_a_library_called_from_no_service_is_named_where_it_was_entered() -> None:
    world = placed(HANDS_ON, SAGA / "testing" / "made.py")
    runtime = placed(HANDS_ON, SAGA / "runtime" / "made.py")
    outer = placed(HANDS_ON, LIBRARIES / "made" / "services.py")
    inner = placed(ASKS, LIBRARIES / "made" / "clocks.py")
    with Guard() as guard:
        world(partial(runtime, partial(outer, inner)))
    (stray,) = guard.caught
    assert (stray.file, stray.line, stray.function) == (str(LIBRARIES / "made" / "services.py"), 2, "called")


def test_the_toolkit_is_named_where_it_asks_for_the_time_itself() -> None:
    world = placed(HANDS_ON, SAGA / "testing" / "made.py")
    runtime = placed(ASKS, SAGA / "runtime" / "made.py")
    with Guard() as guard:
        world(runtime)
    (stray,) = guard.caught
    assert (stray.file, stray.line) == (str(SAGA / "runtime" / "made.py"), 3)


def test_the_toolkit_is_named_where_it_asks_even_if_a_library_called_it() -> None:
    world = placed(HANDS_ON, SAGA / "testing" / "made.py")
    library = placed(HANDS_ON, LIBRARIES / "made" / "services.py")
    runtime = placed(ASKS, SAGA / "runtime" / "made.py")
    with Guard() as guard:
        world(partial(library, runtime))
    assert [stray.file for stray in guard.caught] == [str(SAGA / "runtime" / "made.py")]


def test_the_system_clock_is_reported_with_the_line_that_reads_it() -> None:
    world = placed(HANDS_ON, SAGA / "testing" / "made.py")
    runtime = placed(HANDS_ON, SAGA / "runtime" / "made.py")
    with Guard() as guard:
        world(partial(runtime, SystemClock().now_ms))
    (stray,) = guard.caught
    assert (stray.file, stray.through) == (str(SAGA / "runtime" / "made.py"), "saga.support.clock.SystemClock.now_ms")


def test_calls_of_the_world_itself_are_not_attributed_to_the_test() -> None:
    world = placed(ASKS, SAGA / "testing" / "made.py")
    assert caught_in(lambda: world()) == []


@dataclass
class Memory:
    began: float = field(default_factory=time.time)  # noqa: TID251 - what is to be noticed


def test_a_default_of_a_dataclass_is_reported_with_the_line_that_makes_one() -> None:
    stray = first_of(lambda: Memory())
    assert (stray.what, stray.file, stray.function) == ("time.time", __file__, "<lambda>")


def test_a_default_of_a_dataclass_that_the_runtime_makes_is_reported_with_the_class() -> None:
    world = placed(HANDS_ON, SAGA / "testing" / "made.py")
    runtime = placed(HANDS_ON, SAGA / "runtime" / "made.py")
    with Guard() as guard:
        world(partial(runtime, Memory))
    (stray,) = guard.caught
    line = inspect.getsourcelines(Memory)[1]
    assert (stray.file, stray.line, stray.function) == (__file__, line, "Memory.__init__")
