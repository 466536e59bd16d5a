"""Fixtures and hooks for all tests."""

import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.servers.fixtures import (
    amtool,
    couchbase_mock,
    kafka_address,
    kafka_data,
    promtool,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
    schema_registry,
    server_jars,
)

__all__ = [
    "amtool",
    "couchbase_mock",
    "kafka_address",
    "kafka_data",
    "promtool",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "schema_registry",
    "server_jars",
]

# Each worker imports all tests, and they start hundreds of processes: what one has compiled the others read, also where
# the environment asks for no such files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a shell starts in the background ignores an interrupt, and so would all that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no mistake of a test, so no example has a deadline. What is drawn is the same in each run, or a
# change would be blamed for what a new draw finds: `make explore` sets the number of seeds, and draws other values.
IS_DERANDOMIZED = "SAGA_TEST_SEEDS" not in os.environ
settings.register_profile(
    "here", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=IS_DERANDOMIZED
)
settings.load_profile("here")
if IS_DERANDOMIZED:
    # Hypothesis also draws constants from the code of all imported modules, so a changed text anywhere in `saga/`, or
    # another selection of tests, would change what is drawn. To look for them took each worker two seconds.
    no_constants = providers._local_constants
    providers._get_local_constants = lambda: no_constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looks of the cyclic collector: all that is made stays, and they took an eighth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave out of each look of the cyclic collector what is there before the first test: it stays to the end."""
    gc.freeze()


SLOW_S_MAX = 300
"""Seconds that a slow test may take on a busy machine, if it does not say otherwise."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time than the others have: they start processes that a busy machine starts slowly."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_S_MAX))


@pytest.fixture(autouse=True)
def collected(request: pytest.FixtureRequest) -> Generator[None]:
    """Have the cyclic collector look after each slow test, when all is closed: a connection that stays open then fails
    the test that left it, and not another one much later."""
    yield
    if request.node.get_closest_marker("slow"):
        gc.collect()
