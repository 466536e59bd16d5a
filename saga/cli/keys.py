"""`saga keys`: create, rotate and forget the keys that encrypt sensitive fields."""

from pathlib import Path

import click

from saga.cli.options import record_options
from saga.cli.printing import print_json, print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.encryption.port import KeyRing
from saga.errors import ConfigurationError
from saga.ops.selection import Operator
from saga.support.clock import SystemClock
from saga.support.printable import count_noun


def key_ring_of(settings: Settings) -> KeyRing:
    """Return the management of the keys in the configured folder. The folder need not exist yet."""
    if not settings.keys:
        raise ConfigurationError("there is no folder of keys:", ["set SAGA_KEYS to the one that all services share"])
    return wiring.key_ring(Path(settings.keys), SystemClock())


def _ring() -> KeyRing:
    return key_ring_of(Settings.from_environment())


@click.group()
def keys() -> None:
    """Create, rotate and forget the keys that encrypt sensitive fields, in the folder that SAGA_KEYS names.

    \b
    saga keys new --who ada --why "the first one"
    saga keys rewrap --who ada --why "the key of last year goes"
    saga keys log
    """


@keys.command()
@record_options
def new(operator: Operator) -> None:
    """Create a key that wraps the secrets of subjects: new secrets are wrapped with it from now on.

    Services keep running. If a process reads a secret that is wrapped with a key which the process does not see yet, it
    waits for the key.

    \b
    Exit code 0: created, and recorded in the key log.
    Exit code 2: it cannot be created; standard error says what to do.
    """
    print_lines(f"created {_ring().create_wrapping_key(operator.who, operator.why)}")


@keys.command()
@record_options
def rewrap(operator: Operator) -> None:
    """Wrap the secrets of all subjects with the newest key, and print which keys are no longer needed.

    Remove the printed keys and all copies of them. Then the secrets in earlier backups can no longer be decrypted,
    including those of subjects that have been forgotten since. Services keep running, and others may create keys
    meanwhile: a key is printed only if no secret uses it and none will.

    \b
    Exit code 0: all secrets are wrapped with the newest key.
    Exit code 2: the folder cannot be read or written; or a secret is damaged or lost, so that the needed keys are
    unknown, and all others are wrapped again. Standard error says what to do.
    """
    count, spare = _ring().rewrap(operator.who, operator.why)
    print_lines(f"{count_noun(count, 'secret')} wrapped again")
    if spare:
        print_lines(f"no longer needed, remove them and their copies: {', '.join(spare)}")


@keys.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text, one document per line.")
def log(as_json: bool) -> None:
    """Print what people did with the keys: who created, wrapped, forgot or revealed what, when and why.

    \b
    Exit code 0: printed.
    Exit code 2: it cannot be read; standard error says what to do.
    """
    for line in _ring().read_audit_log():
        if as_json:
            print_json(line)
        else:
            print_lines(f"{line['time']}  {line['did']:7} {line['what']}  {line['who']}: {line['why']}")


@keys.command()
@click.argument("subject")
@record_options
def forget(subject: str, operator: Operator) -> None:
    """Remove the key of SUBJECT for good: its sensitive values can never be read again, wherever they are stored.

    A subject is a saga id, or the value of the field that a contract names as its "subject". Services that still handle
    its sagas get `erased` in place of each value. Running processes forget the key within a minute.

    \b
    saga keys forget customer-17 --who ada --why "asked for it, ticket 4711"
    \b
    Exit code 0: forgotten, and recorded in the key log.
    Exit code 1: nothing was ever encrypted for it, or it was forgotten before; nothing will be from now on.
    Exit code 2: the folder cannot be written; standard error says what to do.
    """
    if _ring().forget(subject, operator.who, operator.why):
        print_lines(f"{subject} is forgotten")
        return
    print_lines(f"there was no key of {subject}; nothing will be encrypted for it from now on")
    raise SystemExit(1)
