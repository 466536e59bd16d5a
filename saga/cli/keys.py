"""`saga keys`: the keys of sensitive values, and their removal."""

from pathlib import Path

import click

from saga.cli.options import who_option, why_option
from saga.cli.printing import print_json, print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.encryption.port import KeyRing
from saga.errors import ConfigurationError
from saga.support.clock import SystemClock
from saga.support.printable import count_noun


def key_ring_of(settings: Settings) -> KeyRing:
    """Return the key ring of the configured folder, which need not exist yet."""
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
@who_option
@why_option
def new(who: str, why: str) -> None:
    """Make a key that wraps the secrets of subjects: from now on new ones are wrapped with it.

    Nothing has to stop. Whoever meets a secret that a newer key wraps, and does not see that key yet, waits.

    \b
    Exit code 0: it is made, and noted in the book.
    Exit code 2: it cannot be made; what to do is on standard error.
    """
    print_lines(f"made {_ring().create_wrapping_key(who, why)}")


@keys.command()
@who_option
@why_option
def rewrap(who: str, why: str) -> None:
    """Wrap the secrets of all subjects with the newest key, and tell which keys nothing needs any more.

    Remove those, and their copies: then no backup of the secrets from before opens anything, and so none of a subject
    that was forgotten since. Nothing has to stop, and others may make keys meanwhile: a key is named only if no secret
    names it and none will.

    \b
    Exit code 0: all secrets are wrapped with the newest key.
    Exit code 2: the folder cannot be read or written, or a secret is damaged or lost, so that nobody can tell which
    keys are needed; what to do is on standard error.
    """
    count, spare = _ring().rewrap(who, why)
    print_lines(f"{count_noun(count, 'secret')} wrapped anew")
    if spare:
        print_lines(f"not needed any more, remove them and their copies: {', '.join(spare)}")


@keys.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line, instead of text.")
def log(as_json: bool) -> None:
    """Print what people did with the keys: who made or wrapped, forgot or revealed what, when and why.

    \b
    Exit code 0: it is printed.
    Exit code 2: it cannot be read; what to do is on standard error.
    """
    for line in _ring().read_audit_log():
        if as_json:
            print_json(line)
        else:
            print_lines(f"{line['time']}  {line['did']:7} {line['what']}  {line['who']}: {line['why']}")


@keys.command()
@click.argument("subject")
@who_option
@why_option
def forget(subject: str, who: str, why: str) -> None:
    """Remove the key of SUBJECT for good: nobody can read its sensitive values any more, wherever they lie.

    A subject is a saga id, or what the field says that a contract names as its "subject". What services still do about
    it they do with `erased` in the place of each value. Running processes forget the key within a minute.

    \b
    saga keys forget customer-17 --who ada --why "asked for it, ticket 4711"
    \b
    Exit code 0: it is forgotten, and noted in the book.
    Exit code 1: nothing was ever sealed for it, or it was forgotten before; now nothing ever will be.
    Exit code 2: the folder cannot be written; what to do is on standard error.
    """
    if _ring().forget(subject, who, why):
        print_lines(f"{subject} is forgotten")
        return
    print_lines(f"there was no key of {subject}; nothing will be sealed for it from now on")
    raise SystemExit(1)
