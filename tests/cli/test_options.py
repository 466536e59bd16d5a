"""Options that several commands share."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from saga.cli.options import broker_option, record_options
from saga.ops.selection import Operator


@pytest.mark.parametrize(
    ("broker", "user", "found"),
    [
        (None, "ada", "ada"),
        ("embedded:///x.db", "ada", "ada"),
        ("kafka://localhost:1", "ada", None),
        (None, "", None),
        ("what://is/that", "ada", None),
    ],
)
def test_who_is_the_user_on_an_embedded_broker_and_has_to_be_given_on_a_server(
    broker: str | None, user: str, found: str | None, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    @click.command()
    @record_options
    @broker_option
    def act(operator: Operator, broker: str | None) -> None:
        click.echo(operator.who)

    monkeypatch.setenv("USER", user)
    given = [] if broker is None else ["--broker", broker]
    done = CliRunner().invoke(act, [*given, "--why", "a test"])
    if found is None:
        assert (done.exit_code, "--who is needed for the audit" in done.output) == (2, True)
    else:
        assert done.stdout == f"{found}\n"
    monkeypatch.setenv("SAGA_BROKER", broker or "embedded:///.saga/broker.db")
    assert CliRunner().invoke(act, ["--why", "a test"]).exit_code == (2 if found is None else 0)
    assert CliRunner().invoke(act, ["--why", "a test", "--who", "eve"]).stdout == "eve\n"
