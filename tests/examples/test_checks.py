"""`saga check` proves both examples."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from saga.cli.main import main

EXAMPLES = Path(__file__).parents[2] / "examples"
SERVICES = {
    "travel": ("trips", "flights", "hotels", "cars", "insurance", "payments", "mail"),
    "loan": ("intake", "scoring", "funds", "approval", "letters"),
}


@pytest.mark.parametrize("name", SERVICES)
def test_the_choreography_is_proved(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAGA_CONTRACTS", str(EXAMPLES / name / "contracts"))
    accepted = ["--accepted", str(EXAMPLES / name / "accepted.toml")] if name == "loan" else []
    modules = [f"examples.{name}.{service}" for service in SERVICES[name]]
    checked = CliRunner().invoke(main, ["check", *accepted, *modules])
    assert checked.exit_code == 0, checked.output
