"""Each import rule refuses a violation that is planted in a copy of the tree."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("saga", "services", "examples", "verification")
PLANTED = {
    "Imports point down": [
        ("saga.progress.decisions", "saga.engine.execution.message_processor"),
        ("saga.messages", "saga.broker.port"),
        ("saga.engine.execution.message_processor", "saga.testing.world"),
    ],
    "Imports point down in the engine": [
        ("saga.engine.execution.message_processor", "saga.engine.worker"),
        ("saga.engine.execution.saga_context", "saga.engine.consumer.delivery"),
        ("saga.engine.persistence.progress_repository", "saga.engine.execution.saga_context"),
        ("saga.engine.worker", "saga.engine.lifecycle"),
    ],
    "Decisions are pure": [
        ("saga.progress.decisions", "asyncio"),
        ("saga.progress.timers", "time"),
        ("saga.policies.retry", "random"),
        ("saga.progress.overflow", "saga.store.port"),
    ],
    "The testing kit": [("saga.ops.rehearsal", "saga.testing.world"), ("saga.cli.run", "saga.testing.trials")],
    "Imports point down in the choreography": [
        ("saga.choreography.fields_read", "saga.choreography.manifest"),
        ("saga.choreography.manifest", "saga.choreography.releases"),
    ],
    "Imports point down in the kit": [
        ("saga.testing.invariants.checks", "saga.testing.simulation.loop"),
        ("saga.testing.invariants.checks", "saga.testing.processes.process_world"),
        ("saga.testing.conformance.store", "saga.testing.invariants.checks"),
        ("saga.testing.simulation.network", "saga.testing.processes.process_world"),
        ("saga.testing.pytest_runs", "saga.testing.plugin"),
    ],
    "A check goes": [("saga.choreography.check.search", "saga.choreography.check.rules")],
    "sqlite3": [("saga.messages", "sqlite3"), ("saga.store.port", "sqlite3")],
    "State files are for": [
        ("saga.engine.execution.message_processor", "saga.store.sqlite.state_file"),
        ("saga.store.port", "saga.store.sqlite.errors"),
    ],
    "Imports point down in the SQLite store": [
        ("saga.store.sqlite.state_file", "saga.store.sqlite.writer"),
        ("saga.store.sqlite.writer", "saga.store.sqlite.store"),
        ("saga.store.sqlite.errors", "saga.store.sqlite.connection"),
    ],
    "aiokafka": [("saga.messages", "aiokafka"), ("saga.configuration.adapters", "aiokafka")],
    "couchbase": [("saga.broker.port", "couchbase"), ("saga.store.port", "acouchbase")],
    "click": [("saga.engine.execution.message_processor", "click"), ("saga.ops.doctor", "click")],
    "structlog": [("saga.engine.execution.message_processor", "structlog"), ("saga.telemetry.events", "structlog")],
    "fastavro": [("saga.messaging.envelope", "fastavro")],
    "aiohttp": [("saga.telemetry.health", "aiohttp"), ("saga.registry.edge", "aiohttp")],
    "Jinja2": [("saga.choreography.docs", "jinja2"), ("saga.cli.manifest", "markupsafe")],
    "Faust": [("saga.monitor.shared.server", "faust"), ("saga.cli.monitor", "faust")],
    "Imports point down in the shared monitor": [
        ("saga.monitor.shared.partitions", "saga.monitor.shared.worker"),
    ],
    "Starlette": [("saga.monitor.views", "starlette"), ("saga.cli.monitor", "starlette")],
    "uvicorn": [("saga.monitor.reader", "uvicorn"), ("saga.cli.monitor", "uvicorn")],
    "Imports point down in the monitor:": [
        ("saga.monitor.views", "saga.monitor.read_model"),
        ("saga.monitor.read_model", "saga.monitor.reader"),
        ("saga.monitor.reader", "saga.monitor.server"),
    ],
    "Imports point down in the monitor's page": [
        ("saga.monitor.web.operator_console", "saga.monitor.web.site"),
        ("saga.monitor.web.pages", "saga.monitor.web.app"),
    ],
    "cryptography": [("saga.contracts.encryption", "cryptography")],
    "prometheus_client": [("saga.telemetry.health", "prometheus_client")],
    "OpenTelemetry": [
        ("saga.engine.execution.message_processor", "opentelemetry"),
        ("saga.messaging.message_ids", "opentelemetry"),
    ],
    "pytest and Hypothesis": [
        ("saga.engine.execution.message_processor", "pytest"),
        ("saga.progress.decisions", "hypothesis"),
    ],
    "What is pure Python": [("saga.policies.retry", "msgspec"), ("saga.support.clock", "msgspec")],
    "Only wiring": [
        ("saga.engine.lifecycle", "saga.telemetry.traces"),
        ("saga.engine.worker", "saga.telemetry.metrics"),
        ("saga.cli.run", "saga.telemetry.http"),
    ],
    "Only saga.configuration.adapters": [
        ("saga.configuration.wiring", "saga.broker.kafka.broker"),
        ("saga.cli.run", "saga.store.couchbase.store"),
        ("saga.engine.worker", "saga.broker.embedded.broker"),
    ],
    "No adapter": [("saga.broker.kafka.broker", "saga.broker.embedded.log")],
    "What is installed": [("saga.engine.execution.message_processor", "verification.explore")],
    "Commands": [("saga.cli.topics", "saga.store.port"), ("saga.cli.sagas", "saga.engine.execution.message_processor")],
    "Services come in": [
        ("services.order", "saga.engine.execution.message_processor"),
        ("services.payment.bank", "saga.store.port"),
        ("services.inventory", "saga.support.clock"),
    ],
    "Services never": [("services.order", "services.payment.bank")],
}
"""By the beginning of a rule's name, what it has to refuse: who imports what."""
CASES = [(rule, *planted) for rule, all_planted in PLANTED.items() for planted in all_planted]


def lint(folder: Path) -> str:
    """The words of the linter about a tree, on few lines, so that no name is broken in two."""
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [program, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False, env={"COLUMNS": "1000"}
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The modules and the rules, in a folder of their own."""
    folder = tmp_path_factory.mktemp("tree")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", folder)
    return folder


@pytest.fixture(scope="module")
def broken_rules(copy: Path) -> dict[str, str]:
    """By broken rule, in words; all violations are planted at once."""
    for _, importer, imported in CASES:
        path = copy / importer.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        file.write_text(f"{file.read_text()}\nimport {imported}\n")
    _, _, broken = lint(copy).partition("Broken contracts\n")
    parts = re.split(r"^(.+)\n-{4,}\n", broken, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize(("rule", "importer", "imported"), CASES, ids=lambda text: text)
def test_a_planted_violation_is_refused_by_its_rule(
    broken_rules: dict[str, str], rule: str, importer: str, imported: str
) -> None:
    of_rule = (
        [broken_rules[rule]]
        if rule in broken_rules
        else [words for name, words in broken_rules.items() if name.startswith(rule)]
    )
    outside = "saga." not in imported and "services." not in imported and "verification." not in imported
    wanted = imported.partition(".")[0] if outside else imported
    assert any(re.search(rf"{re.escape(importer)}\s+->\s+{re.escape(wanted)}\b", words) for words in of_rule), (
        broken_rules
    )


def test_every_rule_has_a_violation_that_it_refuses(broken_rules: dict[str, str]) -> None:
    names = re.findall(r"^name = (.+)$", (ROOT / ".importlinter").read_text("utf-8"), re.MULTILINE)
    assert {name for name in names if not any(map(name.startswith, PLANTED))} == set()
    assert set(broken_rules) == set(names)


@pytest.mark.parametrize("folder", ["saga", "saga/choreography", "saga/store/sqlite", "saga/testing"])
def test_a_new_module_has_to_be_given_its_layer(tmp_path: Path, folder: str) -> None:
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    assert "0 broken" in lint(tmp_path)
    (tmp_path / folder / "newcomer.py").write_text('"""A module."""\n')
    assert f"{folder.replace('/', '.')}.newcomer" in lint(tmp_path)
