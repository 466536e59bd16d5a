"""The command `saga`: finds the subcommand, and tells errors without a traceback."""

import os
import sys
from importlib import import_module

import click

from saga.cli.printing import hook_in, in_any_encoding, tell_trouble
from saga.errors import SagaError
from saga.support.adapter_description import UNCLOSED
from saga.support.printable import printable_lines

COMMANDS = {
    "new": ("saga.cli.new:new", "Write a project with a first service, or one more service for a project."),
    "dev": (
        "saga.cli.dev:dev",
        "Run all services of FOLDER, each in a process of its own, and again when something changes.",
    ),
    "run": ("saga.cli.run:run", "Run the services declared in MODULES."),
    "publish": ("saga.cli.publish:publish", "Publish EVENT once for each line of JSON."),
    "list": (
        "saga.cli.sagas:list_command",
        "List the sagas that the services know, newest first.",
    ),
    "dead": ("saga.cli.dead:dead", "See what needs a person, and have services try it again or leave it."),
    "release": (
        "saga.cli.dead:release",
        "Have SERVICE try parked sagas at once, and not wait for their next attempt.",
    ),
    "control": ("saga.cli.control:control", "Switch flags, pause, limit or route services while they run."),
    "audit": (
        "saga.cli.audit:audit",
        "Print what people have switched, replayed, discarded, resolved or moved in a service, and check it.",
    ),
    "show": ("saga.cli.sagas:show", "Show what happened in a saga, in all services, as one timeline."),
    "tail": ("saga.cli.tail:tail", "Print the records of TOPIC, or of one saga in all topics, as they come."),
    "monitor": ("saga.cli.monitor:monitor", "Show sagas while they run: a web page, and answers for commands."),
    "trace": ("saga.cli.monitor_answers:trace", "Show what services have told of a saga."),
    "stuck": ("saga.cli.monitor_answers:stuck", "List sagas that do not go on by themselves, or ought to have."),
    "rates": ("saga.cli.monitor_answers:rates", "Show of each handler what it does and how long it takes."),
    "verify-history": (
        "saga.cli.sagas:verify_history",
        "Check that what the services have written down of their sagas is unchanged.",
    ),
    "keys": ("saga.cli.keys:keys", "Make and change the keys with which sensitive fields are encrypted."),
    "forget": (
        "saga.cli.keys:forget",
        "Remove the key of SUBJECT for good: nobody can read its sensitive values any more.",
    ),
    "topics": ("saga.cli.topics:topics", "See or make the topics of services, as their contracts want them."),
    "doctor": (
        "saga.cli.doctor:doctor",
        "Look whether broker and stores are as the services declared in MODULES need them.",
    ),
    "access": (
        "saga.cli.access:access",
        "Print exactly the rights that services and people need, as the commands that give them.",
    ),
    "changes": ("saga.cli.changes:changes", "Bring changes of documents to the services that take them."),
    "repair": ("saga.cli.repair:repair", "Go on with sagas that have something to do and nothing that sets it off."),
    "rebuild": ("saga.cli.rebuild:rebuild", "Make progresses that a service has lost anew from the topics."),
    "positions": ("saga.cli.positions:positions", "See how far services are in the log, or move that by hand."),
    "manifest": (
        "saga.cli.manifest:manifest",
        "Print the manifest of each service declared in MODULES, as JSON.",
    ),
    "contracts": (
        "saga.cli.contracts:contracts",
        "Contracts: check that versions fit each other, and write event classes.",
    ),
    "password": ("saga.cli.password:password", "Print a line for the file of users of the monitor's page."),
    "docs": ("saga.cli.docs:docs", "Write what contracts and manifests say, for people and tools."),
}
"""Commands, each with its module and its sentence in `saga --help`: so that the help imports none of them."""


class Commands(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Call the command. An error of the toolkit is printed, with all its problems, and the exit code is 2."""
        in_any_encoding()
        try:
            return super().invoke(ctx)
        except click.ClickException as why:
            vars(why)["message"] = "\n".join(printable_lines(why.message))  # escaped, as everything that we say
            raise
        except SagaError as why:
            tell_trouble(why)
            ctx.exit(2)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Run as the command of a process, which says so itself if a defect ends it."""
        hook_in()
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
    """End the process with this code if threads of a driver still run: beside them the interpreter cannot be torn down,
    and the driver would end the process by SIGABRT instead."""
    if UNCLOSED:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="saga-choreography", prog_name="saga", message="%(prog)s %(version)s")
def main() -> None:
    """Choreographed sagas: independent services, no coordinator, every effect recorded once.

    Services are told by their environment which broker and stores to use, and so are these commands: SAGA_BROKER
    (embedded:///.saga/broker.db), SAGA_STORE (sqlite:///.saga/{service}.db), SAGA_CONTRACTS (the nearest contracts/).

    \b
    Exit code 0: yes, or done.
    Exit code 1: the answer is no; standard output or standard error says what.
    Exit code 2: asked wrongly, or it could not start; what to do is on standard error.
    """


if __name__ == "__main__":
    main()
