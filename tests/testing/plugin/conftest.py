"""Projects in a directory of their own, in which pytest is run with the plugin."""

from pathlib import Path
from typing import Protocol

import pytest

from saga.testing import pytest_runs
from tests.testing.plugin import buggy_service

LOADED = pytest_runs, buggy_service
"""Loaded before a run in this process, which forgets the modules that it loads itself, and takes its time for them."""

ROOT = Path(__file__).parents[3]
"""Workers of xdist are processes of their own, and import the service from here."""
HEAD = """
import pytest
from saga.testing import World, crash_everywhere, faults, replay, simulate
from tests.testing.plugin.buggy_service import Drawer, an_order, scenario, till

BREAKING = faults.of("crash", "delay", rate=0.1)
"""


class Runs(Protocol):
    """Run pytest on a file with these tests, in this process, with these options."""

    def __call__(self, tests: str, *options: str) -> pytest.RunResult: ...


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini(f"""
[pytest]
pythonpath = {ROOT}
addopts = -p no:cacheprovider -p no:timeout -p no:hypothesispytest --strict-markers
filterwarnings =
    error
    ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
""")
    return pytester


@pytest.fixture
def runs(project: pytest.Pytester) -> Runs:
    def runs(tests: str, *options: str) -> pytest.RunResult:
        project.makepyfile(test_it=HEAD + tests)
        return project.runpytest_inprocess(*options)

    return runs


def note_of(result: pytest.RunResult) -> str:
    """Text that pytest prints of the exception itself."""
    return "\n".join(line[4:] for line in result.outlines if line.startswith("E   "))
