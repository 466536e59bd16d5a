"""`saga monitor password`: a line for the file of users who may act on the monitor's page."""

import sys

import click

from saga.cli.printing import tell
from saga.errors import BadInput
from saga.monitor.web.users import format_user_line


@click.command()
@click.argument("name")
def password(name: str) -> None:
    """Print a line for the file of users who may act on the page.

    SAGA_MONITOR_USERS names that file. NAME may then sign in on the page, and act.

    You are asked for the password twice; where no terminal is, it is the first line of standard input. The line holds
    it hashed, by scrypt. Nothing has to start anew: who is taken out of the file, or gets another password, is signed
    out at once.

    \b
    saga monitor password ada >> users

    \b
    Exit code 0: printed.
    Exit code 2: the name or the password cannot be one.
    """
    if sys.stdin.isatty():
        given = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        given = sys.stdin.readline().rstrip("\r\n")
    try:
        line = format_user_line(name, given)
    except BadInput as why:
        raise click.UsageError(str(why)) from why
    tell(line)
