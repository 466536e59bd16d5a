"""The loop of a simulated world, and a process in it."""

import gc
from collections.abc import Iterator

import pytest

from saga.testing.simulation.loop import Process, SimulatedLoop


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = SimulatedLoop()
    yield loop
    loop.end()
    gc.collect()  # what complains about its end does it in its own test


@pytest.fixture
def process() -> Process:
    return Process("payment-1", "payment")
