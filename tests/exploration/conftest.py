"""A search for itself: Python's cyclic collector stands still meanwhile."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """With hundreds of thousands of states it takes a quarter of the time, and finds next to nothing."""
    gc.disable()
    yield
    gc.enable()
