"""Options that several commands have: settings that can be given as flags, which win over variables and file."""

import re

import click

from saga.policies.blame import BLAMES
from saga.support.clock import Clock, from_iso, iso

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


class_option = click.option(
    "--class",
    "blame",
    type=click.Choice(list(BLAMES)),
    help="Of this class: their data, our code, the outside, that is, what the service calls, or a person, who "
    "routed it there.",
)
"""The option `--class` of commands about dead letters."""
age_option = click.option("--age", metavar="TIME", help="At least so old: 90s, 30m, 2h, 3d.")
"""The option `--age` of commands about dead letters."""
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def before_of(before: str | None, age: str | None, clock: Clock) -> str | None:
    """Time before which letters are meant, as `--before` or `--age` say it."""
    if before is not None and age is not None:
        raise click.UsageError("--before and --age say the same: give one of them")
    if age is not None:
        time_s = _seconds(age)
        if time_s is None:
            raise click.UsageError(f"--age {age}: give a time as 90s, 30m, 2h or 3d")
        return iso(max(0, clock.now_ms() - time_s * 1000))
    try:
        return None if before is None else iso(from_iso(before))
    except ValueError:
        raise click.UsageError(f"--before {before}: give a time as 2026-11-22T16:00:00Z") from None


def time_of(option: str, text: str | None, clock: Clock) -> str | None:
    """Time that an option says: so long from now, or as RFC 3339."""
    if text is None:
        return None
    time_s = _seconds(text)
    try:
        return iso(clock.now_ms() + time_s * 1000) if time_s is not None else iso(from_iso(text))
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} {text}: give a time as 90s, 2h, 3d or 2026-11-22T16:00:00Z") from None


def since_ms(option: str, text: str, clock: Clock) -> int:
    """Milliseconds since 1970 of a time in the past that an option says: so long ago, or as RFC 3339."""
    time_s = _seconds(text)
    try:
        return max(0, clock.now_ms() - time_s * 1000) if time_s is not None else max(0, from_iso(text))
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} {text}: give a time as 90s, 30m, 2h, 3d or 2026-11-22T16:00:00Z") from None


def _seconds(text: str) -> int | None:
    said = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    return None if said is None else int(said[1]) * _UNITS_S[said[2]]
