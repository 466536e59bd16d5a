"""Part o of the benchmarks: how much Python a saga takes, counted. A clock gives another answer each hour; this does
not, so versions can be compared one by one. What is done in C is not in it."""

import asyncio
import sys
from types import FrameType
from typing import Any

from benchmarks.parts import Figure, sagas_of_the_chain

FEW, MANY, IN_FLIGHT = 100, 300, 50


def instructions() -> list[Figure]:
    """(o) Instructions of Python that a saga of (b) takes, driver included"""
    _counted(FEW)  # what is done at first only is done by now
    few, many = _counted(FEW), _counted(MANY)
    return [Figure("o instructions of Python", (many - few) / (MANY - FEW), "/saga")]


def _counted(sagas: int) -> int:
    """Instructions of a run of so many sagas, with all that begins and ends it."""
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
        asyncio.run(sagas_of_the_chain(sagas, IN_FLIGHT))
    finally:
        sys.settrace(before)
    return count
