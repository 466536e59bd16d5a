"""`saga new`: create a project with a first service, or add a service to a project."""

from collections.abc import Mapping
from pathlib import Path

import click

from saga.cli.printing import print_json, print_lines
from saga.contracts.library import find_folder
from saga.errors import DeclarationError
from saga.scaffold import plans
from saga.scaffold.plans import write_files

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")


@click.group()
def new() -> None:
    """Create a project with a first service, or add a service to a project.

    Nothing is overwritten: if a file exists already, or a name is not valid, nothing is written, and all such problems
    are printed. The new files pass `saga contracts check` and `lint`, mypy in strict mode, ruff, and their own tests.

    \b
    saga new project shop
    saga new project shop --template compensation
    cd shop
    saga new service stock

    \b
    Exit code 0: written.
    Exit code 2: nothing was written: a name is not valid, or a file exists already.
    """


@new.command()
@click.argument("name")
@click.option(
    "--template",
    type=click.Choice(list(plans.TEMPLATES)),
    default=plans.PLAIN,
    show_default=True,
    help="What the project begins with.",
)
@json_option
def project(name: str, template: str, as_json: bool) -> None:
    """Write the project NAME into a new folder of that name.

    It has contracts for an order, from its start to its outcome; the service `order`, which decides the outcome; tests
    of the service; pyproject.toml, a Makefile, and compose files. Templates:

    \b
    one-service    nothing more
    classes        the events are Python classes, and the contracts are made from them
    compensation   payment takes the money and gives it back if the order is cancelled; a deadline
    documents      intake starts a saga when another program writes a document
    servers        Kafka and Couchbase: compose files with the monitor, and a test on both

    \b
    Exit code 0: written.
    Exit code 2: nothing was written: a name is not valid, or a file exists already.
    """
    _write(Path(name), plans.plan_project(name, template), as_json)
    if not as_json:
        print_lines(f"next: cd {name}; saga dev; README.md has the next steps")


@new.command()
@click.argument("name")
@click.option("--hears", metavar="EVENT", help="Event that it reacts to. Default: the event that starts a saga here.")
@json_option
def service(name: str, hears: str | None, as_json: bool) -> None:
    """Write the service NAME into the project of the current folder.

    It is a package in services/, with a handler of the event and, if sagas can fail, its compensation; contracts of the
    events that it emits, in a topic of its name; its tests; a compose file.

    \b
    Exit code 0: written.
    Exit code 2: nothing was written: no project, a name is not valid, or a file exists already.
    """
    root = _root()
    _write(root, plans.plan_service(name, root, hears), as_json)


def _root() -> Path:
    """Return the folder of the project to which the current folder belongs."""
    try:
        return find_folder().parent
    except DeclarationError:
        return Path.cwd()


def _write(folder: Path, files: Mapping[str, str], as_json: bool) -> None:
    written = write_files(folder, files)
    if as_json:
        print_json({"written": [str(path) for path in written]})
    else:
        print_lines(*(f"{path} written" for path in written))
