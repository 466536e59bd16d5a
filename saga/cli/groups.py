"""Groups of commands that import a command only when it is called, so that help and other commands start fast."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

import click

Commands: TypeAlias = Mapping[str, tuple[str, str]]
"""Name of each command: its `module:function`, and its line in the help of the group."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called."""

    def __init__(self, *args: Any, commands: Commands, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy_commands = commands

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy_commands:
            return None
        module, _, name = self.lazy_commands[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in self.lazy_commands.items()])
