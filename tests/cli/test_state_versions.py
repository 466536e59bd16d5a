"""A release whose state has another version takes the place of the one before: the real command, on files."""

import json
from collections.abc import Mapping
from typing import Any

from tests.cli.conftest import Call
from tests.cli.pottery_service import MODULE, Pottery
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import running
from tests.cli.test_parked import publish

STATES = """
@dataclass(frozen=True)
class CupV1:
    weight: str = ""


@dataclass(frozen=True)
class Cup:
    grams: int = 0
"""
OLD, NEW = "weight='0.25'", "grams=saga.state.grams + 1"
MIGRATION = """
@potter.migrate(1)
def in_grams(old: CupV1) -> Cup:
    return Cup(grams=round(float(old.weight) * 1000))
"""


def release(pottery: Pottery, name: str, kind: str, change: str, migration: str = "") -> str:
    """A module with the service whose handlers do this to their state."""
    source = MODULE.format(topic=pottery.topic, service=pottery.service, memory_days=30)
    source = source.replace("import Event, Service", "import Event, Saga, Service")
    source = source.replace("\npotter = Service(", f"{STATES}\n\npotter = Service(")
    source = source.replace("retention=timedelta", f"state={kind}, retention=timedelta").replace(
        "\n\n\n@potter", migration + "\n\n\n@potter", 1
    )
    for event in ("ordered: CupOrdered", "sold: CupSold"):
        source = source.replace(f"({event})", f"({event}, saga: Saga[{kind}])")
    for ending in ("    return CupMade", "    return None"):
        source = source.replace(ending, f"    saga.state = {kind}({change})\n{ending}")
    (pottery.folder / f"{name}.py").write_text(source)
    return name


def shown(saga: Call, service: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(saga("sagas", "show", "cup-1", "--json").stdout)["services"][service]
    return {name: found[name] for name in ("fields", "version")}


def handlers(saga: Call) -> list[str]:
    """Handlers that have handled something of the cup, as far as anybody knows it."""
    result = saga("sagas", "show", "cup-1", "--json")
    lines = json.loads(result.stdout)["timeline"] if result.exit_code == 0 else []
    return [line["handler"] for line in lines if line["outcome"] == "handled"]


def test_a_release_with_another_state_continues_with_what_the_one_before_has_written(
    embedded_pottery: Pottery, saga: Call
) -> None:
    pottery = embedded_pottery
    publish(saga, "CupOrdered", "cup-1")
    with running(release(pottery, "potter_before", "CupV1", OLD)):
        until(lambda: handlers(saga) == ["make"])
    assert shown(saga, pottery.service) == {"fields": {"weight": "0.25"}, "version": 1}
    publish(saga, "CupSold", "cup-1")
    with running(release(pottery, "potter_after", "Cup", NEW, MIGRATION)):
        until(lambda: handlers(saga) == ["make", "forget"])
    assert shown(saga, pottery.service) == {"fields": {"grams": 251}, "version": 2}
    verified = saga("sagas", "verify")
    assert verified.exit_code == 0, verified.output
