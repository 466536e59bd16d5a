"""The command `saga` itself: its help, and that it is quick."""

import subprocess
import sys

import click
import pytest

from saga.cli.main import COMMANDS, Commands, LazyGroup, main
from saga.cli.monitor import MONITOR
from saga.cli.sagas import SAGAS
from tests.cli.conftest import Call


@pytest.mark.parametrize(
    ("commands", "name"), [(group, name) for group in (COMMANDS, MONITOR, SAGAS) for name in group]
)
def test_the_sentence_in_the_help_is_that_of_the_command(commands: Commands, name: str) -> None:
    command = LazyGroup(commands=commands).get_command(click.Context(main), name)
    assert command is not None
    assert command.help is not None
    beginning = " ".join(command.help.split("\n\n")[0].split())
    assert beginning.startswith(commands[name][1].rstrip("."))


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_and_names_its_exit_codes(name: str, saga: Call) -> None:
    shown = saga(name, "--help")
    assert shown.exit_code == 0
    assert f"Usage: saga {name}" in shown.stdout
    if name not in ("contracts", "control", "dead", "keys"):  # a group: its commands name theirs
        assert "Exit code 0: " in shown.stdout
        assert "Exit code 2: " in shown.stdout


def test_the_help_lists_every_command_without_importing_one(saga: Call) -> None:
    listed = saga("--help").stdout.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines() if line[2:3] not in ("", " ")] == list(COMMANDS)
    code = (
        "import sys; from saga.cli.main import main; main(['--help'], standalone_mode=False);"
        "print('LOADED', *(m for m in sys.modules if m.startswith(('saga.cli.', 'saga.store.', 'sqlite3'))))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert run.stdout.splitlines()[-1] == "LOADED saga.cli.printing saga.cli.main"


def test_a_command_that_is_not_there_was_asked_wrongly(saga: Call) -> None:
    result = saga("lst")
    assert result.exit_code == 2
    assert "No such command 'lst'" in result.stderr
