"""Options that several commands have: settings that can be given as flags, which win over variables and file."""

import click

broker_option = click.option("--broker", metavar="URL", help="Where the log is, in the place of SAGA_BROKER.")
"""The flag `--broker`, in the place of SAGA_BROKER."""

stores_option = click.option(
    "--store",
    metavar="URL",
    help="Where a service keeps its documents, {service} standing for its name, in the place of SAGA_STORE.",
)
"""The flag `--store`, in the place of SAGA_STORE: for commands that open the stores of the services they are told.
Commands that look for stores have `read_stores_option`."""

read_stores_option = click.option(
    "--store",
    "addresses",
    multiple=True,
    metavar="URL",
    help="A store to be read, sqlite:///FILE; {service} in it stands for any service. May be given several times. "
    "Without it: SAGA_STORE, by default sqlite:///.saga/{service}.db.",
)
"""The option `--store` that all reading commands have."""


def check_said(who: str, why: str) -> None:
    """Refuse what is to be on record with nobody's name, or without a reason."""
    for name, text in (("--who", who), ("--why", why)):
        if not text.strip():
            raise click.UsageError(f"{name} is for the record: say it")
