"""The command `saga`. It finds the subcommand, and prints errors without a traceback.

A subcommand is imported only when it is called, so that the help and other commands start fast.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

import click

from saga.cli.printing import escape_unencodable, install_hooks, print_error
from saga.errors import SagaError
from saga.support.printable import printable_lines
from saga.support.settings import UNCLOSED

Commands: TypeAlias = Mapping[str, tuple[str, str]]
"""Commands by name. The value is `module:function`, and the command's line in the help of its group."""


class LazyGroup(click.Group):
    """A command group that imports a command only when it is called."""

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


# -------------------------------------------------------------------- main


COMMANDS: Commands = {
    "new": ("saga.cli.new:new", "Create a project with a first service, or add a service to a project."),
    "dev": ("saga.cli.run:dev", "Run all services of a folder and restart them when something changes."),
    "run": ("saga.cli.run:run", "Run the services declared in the given modules."),
    "publish": ("saga.cli.publish:publish", "Publish one event for each line of JSON."),
    "sagas": ("saga.cli.sagas:sagas", "List, show, verify, repair and rebuild sagas."),
    "explain": ("saga.cli.explain:explain", "Explain why a saga is not finished, and what would end the wait."),
    "dead": ("saga.cli.dead:dead", "List dead letters; replay, discard or resolve them; release parked runs."),
    "control": ("saga.cli.control:control", "Set flags, pause, limit or route running services."),
    "audit": (
        "saga.cli.control:audit",
        "Print what operators have done in SERVICE, oldest first, and verify the records.",
    ),
    "monitor": (
        "saga.cli.monitor:monitor",
        "Run the monitor and its web page; ask it what is stuck and how fast it goes.",
    ),
    "topics": ("saga.cli.topics:topics", "Plan, create and read topics."),
    "offsets": ("saga.cli.offsets:offsets", "Show, reset, skip and delete the consumer offsets of services."),
    "keys": ("saga.cli.keys:keys", "Create, rotate and forget the keys that encrypt sensitive fields."),
    "contracts": ("saga.cli.contracts:contracts", "Check contracts, write event classes, register schemas."),
    "manifest": ("saga.cli.manifest:manifest", "Print, write or check the manifest of each service."),
    "describe": ("saga.cli.describe:describe", "Print what a service consumes, emits, compensates and waits for."),
    "graph": ("saga.cli.graph:graph", "Draw which service emits and which consumes each event."),
    "check": ("saga.cli.check:check", "Prove a choreography before it runs, or show what breaks it."),
    "deploy": ("saga.cli.deploy:deploy", "Compare a release with what is in flight before it is deployed."),
    "docs": ("saga.cli.manifest:docs", "Generate pages and an AsyncAPI document from contracts and manifests."),
    "doctor": ("saga.cli.doctor:doctor", "Check that broker and stores are set up as the services need."),
    "access": ("saga.cli.access:access", "Print the broker and store permissions that services and people need."),
    "changes": ("saga.cli.changes:changes", "Configure the connector that brings document changes to services."),
}
"""All commands. Their lines in `saga --help` are repeated here, so that the help needs no import."""


NO_TEXT = "saga.cli.main.no_text"
"""Key in the context of the first argument that is not UTF-8, or `None`."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""A byte that is not UTF-8, as Python passes it on. A file's name may have such bytes, so they are not refused at once.
"""


class Main(LazyGroup):
    """The command `saga`. It prints errors without a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, and note the first one that is not UTF-8."""
        ctx.meta[NO_TEXT] = next((arg for arg in args if _SURROGATE.search(arg)), None)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Call the command. If the toolkit raises an error, print the error with all its problems, and exit with code
        2."""
        escape_unencodable()
        try:
            return super().invoke(ctx)
        except click.ClickException as why:
            vars(why)["message"] = "\n".join(printable_lines(why.message))  # escaped, like all our output
            raise
        except SagaError as why:
            print_error(why)
            ctx.exit(2)
        except UnicodeEncodeError:
            if ctx.meta[NO_TEXT] is None:
                raise
            print_error(f"the argument {ctx.meta[NO_TEXT]} is not UTF-8: no name, id or reason can have these bytes")
            ctx.exit(2)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run the command as a process. If an unexpected exception ends it, the exception is reported."""
        install_hooks()
        try:
            return super().__call__(*args, **kwargs)
        except SystemExit as why:
            _leave_threads(0 if why.code is None else why.code if isinstance(why.code, int) else 1)
            raise
        except Exception as why:
            if UNCLOSED:
                sys.excepthook(type(why), why, why.__traceback__)
                _leave_threads(1)
            raise


def _leave_threads(code: int) -> None:
    """End the process at once with this exit code if threads of a driver are still running.

    Python cannot shut down while they run: the driver would end the process with SIGABRT.
    """
    if UNCLOSED:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


@click.group(
    cls=Main, commands=COMMANDS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}
)
@click.version_option(package_name="saga-choreography", prog_name="saga", message="%(prog)s %(version)s")
def main() -> None:
    """Choreographed sagas: independent services, no coordinator, every effect recorded once.

    Services and these commands take broker and stores from the environment: SAGA_BROKER (embedded:///.saga/broker.db),
    SAGA_STORE (sqlite:///.saga/{service}.db), SAGA_CONTRACTS (the nearest contracts/). Pages that are named as docs/...
    are in the source of saga; with SAGA_DOCS=https://HOST/{page}.html commands print their addresses.

    \b
    Exit code 0: yes, or done.
    Exit code 1: the answer is no; standard output or standard error says what.
    Exit code 2: wrong usage, or it could not start; standard error says what to do.
    """


if __name__ == "__main__":
    main()
