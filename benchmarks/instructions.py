"""Part o of the benchmarks: how many Python instructions a saga takes.

Times change from hour to hour, but this count does not, so it can be compared between versions. Work that is done in C
is not counted.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any

from benchmarks.parts import Figure, example_run, sagas_of_the_chain
from services.order import order as example_order

FEW, MANY, IN_FLIGHT = 100, 300, 50


def instructions() -> list[Figure]:
    """(o) Count the Python instructions of a saga of (b) and of one of (i), including the driver"""
    kinds: dict[str, Callable[[int], Coroutine[object, object, object]]] = {
        "a saga of the chain": lambda sagas: sagas_of_the_chain(sagas, IN_FLIGHT),
        "one of the example, with steps": lambda sagas: example_run("o", example_order, sagas=sagas),
        "the same, transitions published": lambda sagas: example_run("o", example_order, sagas=sagas, tells=True),
    }
    return [Figure(f"o {what}", _count_for_one(run), "instructions") for what, run in kinds.items()]


def _count_for_one(run: Callable[[int], Coroutine[object, object, object]]) -> float:
    _count(run(FEW))  # work that is only done at the start is finished by now
    few, many = _count(run(FEW)), _count(run(MANY))
    return (many - few) / (MANY - FEW)


def _count(run: Coroutine[object, object, object]) -> int:
    """Count the instructions of a run, including its start and its end."""
    count = 0

    def within(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "opcode"
        return within

    def called(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return within

    before = sys.gettrace()
    sys.settrace(called)
    try:
        asyncio.run(run)
    finally:
        sys.settrace(before)
    return count
