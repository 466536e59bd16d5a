"""Part n of the benchmarks: the cost of publishing transition events."""

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
    """One run, with or without published transitions."""

    per_s: float
    cpu: float


def transitions() -> list[Figure]:
    """(n) Measure the cost of publishing transition events: for one answer per message, and the example as in (c)"""
    return [*_compare("messages", _messages), *_compare("sagas of the example", _sagas)]


def _compare(what: str, run: Callable[[bool], Run]) -> list[Figure]:
    with_, without = list[Run](), list[Run]()
    for number in range(ROUNDS * 2):
        publishes = number % 4 in (0, 3)  # each of the two is first in turn
        (with_ if publishes else without).append(run(publishes))
    least = min(run.cpu for run in with_) / min(run.cpu for run in without)
    return [
        Figure(f"n {what}, transitions published", _median(with_), f"{what.split()[0]}/s"),
        Figure(f"n {what}, rate of it in that without", _median(with_) / _median(without), "ratio"),
        Figure(f"n {what}, least CPU of it in that without", least, "ratio"),
    ]


def _median(runs: Sequence[Run]) -> float:
    return statistics.median(run.per_s for run in runs)


def _messages(publishes: bool) -> Run:
    with TemporaryDirectory() as folder:
        wall, cpu = asyncio.run(parts.handled(Path(folder), tells=publishes))
    return Run(parts.MESSAGES / wall, cpu)


def _sagas(publishes: bool) -> Run:
    figures = asyncio.run(parts.example_run("c", waiting_order, tells=publishes))
    found = {figure.name: figure.value for figure in figures}
    return Run(found["c sagas, 100 in flight"], found["c CPU of it, driver included"])
