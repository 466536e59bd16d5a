"""Options that several commands have: settings that can be given as flags, which win over variables and file."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def broker_option(command: F) -> F:
    """The flag `--broker`, in the place of SAGA_BROKER."""
    return click.option("--broker", metavar="URL", help="Where the log is, in the place of SAGA_BROKER.")(command)


def stores_option(command: F) -> F:
    """The flag `--store`, in the place of SAGA_STORE: for commands that open the stores of the services they are told.
    Commands that look for stores have `read_stores_option`."""
    return click.option(
        "--store",
        metavar="URL",
        help="Where a service keeps its documents, {service} standing for its name, in the place of SAGA_STORE.",
    )(command)


def read_stores_option(command: F) -> F:
    """The option `--store` that all reading commands have."""
    return click.option(
        "--store",
        "addresses",
        multiple=True,
        metavar="URL",
        help="A store to be read, sqlite:///FILE; {service} in it stands for any service. May be given several times. "
        "Without it: SAGA_STORE, by default sqlite:///.saga/{service}.db.",
    )(command)
