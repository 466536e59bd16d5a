"""The part of `make bench` with transitions that are told to whoever watches: what that costs."""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks import parts
from benchmarks.parts import Figure
from benchmarks.services import waiting_order

ROUNDS = 5


class Run(NamedTuple):
    """One run, with its transitions told or not."""

    per_s: float
    cpu: float


def transitions() -> list[Figure]:
    """(m) Transitions told and untold, in turn: one answer to each message, and the example as in (c)"""
    return [*_compared("messages", _messages), *_compared("sagas of the example", _sagas)]


def _compared(what: str, run: Callable[[bool], Run]) -> list[Figure]:
    told, untold = list[Run](), list[Run]()
    for number in range(ROUNDS * 2):
        tells = number % 4 in (0, 3)  # each of them first in turn
        (told if tells else untold).append(run(tells))
    least = min(run.cpu for run in told) / min(run.cpu for run in untold)
    return [
        Figure(f"m {what}, told", _median(told), f"{what.split()[0]}/s"),
        Figure(f"m {what}, of the rate of untold", _median(told) / _median(untold), "ratio"),
        Figure(f"m {what}, least CPU of it in that of untold", least, "ratio"),
    ]


def _median(runs: Sequence[Run]) -> float:
    return statistics.median(run.per_s for run in runs)


def _messages(tells: bool) -> Run:
    with TemporaryDirectory() as folder:
        wall, cpu = asyncio.run(parts.handled(Path(folder), tells=tells))
    return Run(parts.MESSAGES / wall, cpu)


def _sagas(tells: bool) -> Run:
    figures = asyncio.run(parts.example_run("c", waiting_order, tells=tells))
    found = {figure.name: figure.value for figure in figures}
    return Run(found["c sagas, 100 in flight"], found["c CPU of it, driver included"])
