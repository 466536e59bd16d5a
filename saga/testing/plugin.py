"""The pytest plugin: the fixtures `world`, `choreography` and `saga_servers`, and runs of tests in many worlds.

pytest loads it wherever the package is installed. The plugin imports other modules of the toolkit only in a test run
that uses a world, because coverage cannot measure modules that are imported before it starts.

A test with a world is a plain function `def test_...(world: World)`. Without a decorator it runs once, in one world
without faults; the decorators `simulate`, `crash_everywhere` and `replay` of `saga.testing` change that. After each run
the invariants of the kit are checked.
"""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from saga.choreography.check.accepted import CheckResult
    from saga.testing.processes.servers import ServerAddresses
    from saga.testing.world import World


MISSING = "servers are missing"
"""Beginning of the skip reason of a test that is skipped because servers are missing. It equals
`saga.testing.servers.missing.MISSING`, which is not imported here, for the reason given in the module docstring.
"""

MARK = "__saga_scenario__"
"""Attribute that a decorator such as `simulate` sets in a test. It equals `saga.testing.decorators.MARK`, which is not
imported here, for the same reason.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command line options of the plugin."""
    group = parser.getgroup("saga", "worlds for choreographies")
    group.addoption("--saga-seed", type=int, default=None, help="run each simulated test under this seed alone")
    group.addoption("--saga-seeds", type=int, default=None, help="run @simulate tests under so many seeds instead")
    group.addoption(
        "--saga-world",
        choices=("simulated", "embedded", "servers"),
        default="simulated",
        help="run them in the simulation, or as real processes: on the embedded broker and store, or on servers",
    )
    group.addoption(
        "--saga-servers",
        metavar="MODULE:FUNCTION",
        default=None,
        help="function that provides the servers: see saga.testing.processes.servers (default: addresses in variables, "
        "Docker, or Java and Maven)",
    )
    group.addoption("--saga-save", action="store_true", help="write the small run of each failure as a test beside it")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and check the options.

    Raises `UsageError` if `--saga-seeds` is less than 1, because then nothing would run.
    """
    seeds: int | None = config.getoption("--saga-seeds")
    if seeds is not None and seeds < 1:
        raise pytest.UsageError(f"--saga-seeds={seeds}: at least one")
    config.addinivalue_line("markers", "saga_world: a test that runs in worlds of saga.testing")


@pytest.fixture
def world(request: pytest.FixtureRequest) -> "Iterator[World]":
    """Provide a world for a choreography: see `saga.testing.World`. A test with a decorator runs in several worlds, one
    after another.
    """
    from saga.testing.pytest_runs import first_world

    with first_world(request) as made:
        yield made


@pytest.fixture(scope="session")
def choreography(request: pytest.FixtureRequest) -> "CheckResult":
    """Provide the verdict of `saga check` on the manifests of the project: `assert choreography.is_proved,
    choreography.report`."""
    from saga.choreography.check.accepted import check_folder
    from saga.choreography.releases import manifest_folder
    from saga.contracts.library import find_library

    return check_folder(manifest_folder(find_library(request.config.rootpath)))


@pytest.fixture(scope="session")
def saga_servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> "Iterator[ServerAddresses]":
    """Provide a Kafka and a Couchbase for all tests of this process: `saga_servers.kafka`, `.couchbase`, `.bucket`, and
    `.settings` with the environment variables for the commands.

    If no servers can be found or started, the tests are skipped, or fail if the environment has
    `SAGA_SERVERS=required`.
    """
    from saga.testing.pytest_runs import run_servers

    with run_servers(request.config, tmp_path_factory.mktemp("saga-servers")) as addresses:
        yield addresses


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the marker to tests that use a world, or are decorated to run in many."""
    for item in items:
        if isinstance(item, pytest.Function) and (_takes_our_world(item) or hasattr(item.function, MARK)):
            item.add_marker("saga_world")


def _takes_our_world(item: pytest.Function) -> bool:
    """Return True if the test's fixture `world` is that of this plugin, or another one of this name that takes it."""
    for definition in reversed(item._fixtureinfo.name2fixturedefs.get("world", ())):
        if definition.func.__module__ == __name__:
            return True
        if "world" not in definition.argnames:
            return False
    return False


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain which events and fields differ, if both sides of `==` are events or lists of events."""
    if op != "==" or "saga.messages" not in sys.modules:  # without that module there are no events
        return None
    from saga.testing.event_differences import explain_difference

    return explain_difference(left, right)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test of a `unittest.TestCase` that uses a world, because `unittest` itself calls such a test."""
    if item.get_closest_marker("saga_world") is not None:
        from saga.testing.pytest_runs import check_is_no_unittest

        check_is_no_unittest(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that uses a world, in as many worlds as its decorator asks for."""
    if pyfuncitem.get_closest_marker("saga_world") is None:
        return None
    from saga.testing.pytest_runs import run_test

    return run_test(pyfuncitem)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each test that used a world: how many times it ran, and with which faults.

    Also print how many tests were skipped because servers are missing, and what to install.
    """
    _summarize_skipped(terminalreporter)
    lines = [
        f"{report.nodeid}: {line}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, line in getattr(report, "user_properties", ())
        if name == "saga"  # the value of `pytest_runs.REPORTED`
    ]
    if lines:
        terminalreporter.section("runs of worlds")
        for line in sorted(set(lines)):
            terminalreporter.write_line(line)


def _summarize_skipped(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [
        str(report.longrepr[2]).partition(f"{MISSING}: ")[2]
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    ]
    if not any(reasons):
        return
    terminalreporter.section(f"skipped: {MISSING}", yellow=True)
    for why in sorted(set(filter(None, reasons))):
        terminalreporter.write_line(f"{reasons.count(why)} skipped: {why}")
    terminalreporter.write_line("With SAGA_SERVERS=required in the environment they fail instead.")
