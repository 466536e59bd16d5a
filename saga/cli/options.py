"""Options that several commands share. An option takes precedence over an environment variable, and over the settings
file."""

import functools
import os
import re
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

import click

from saga.cli.printing import print_error
from saga.configuration.settings import Settings
from saga.errors import SagaError
from saga.ops.selection import Deployment, Operator, Selection
from saga.policies.retry import BLAMES
from saga.support.clock import Clock, SystemClock, from_iso, iso

broker_option = click.option("--broker", metavar="URL", help="Address of the broker, instead of SAGA_BROKER.")
"""The option `--broker`, instead of SAGA_BROKER."""

stores_option = click.option(
    "--store",
    metavar="URL",
    help="Address of the stores, instead of SAGA_STORE; {service} in it stands for the name of the service.",
)
"""The option `--store`, instead of SAGA_STORE, for commands that are given services and open the stores of these
services. Commands that look for services in stores have `read_stores_option`."""

read_stores_option = click.option(
    "--store",
    "addresses",
    multiple=True,
    metavar="URL",
    help="Store to read, for example sqlite:///FILE; {service} in it stands for any service. May be repeated. "
    "Default: SAGA_STORE, or else sqlite:///.saga/{service}.db.",
)
"""The option `--store` of commands that read existing stores. It may be given several times."""


def require_audit_fields(who: str, why: str) -> None:
    """Exit with a usage error if the operator's name or reason is missing. Both are needed for commands that an audit
    records."""
    for name, text in (("--who", who), ("--why", why)):
        if not text.strip():
            raise click.UsageError(f"{name} is needed for the audit: give it")


def find_docs() -> str:
    """Return the setting SAGA_DOCS: the address of the documentation, with the placeholder `{page}`. Empty if it is not
    set."""
    try:
        return Settings.from_environment().docs
    except SagaError:  # a link is not worth the failure of a command that needs no setting
        return ""


age_option = click.option("--age", metavar="TIME", help="At least this old: 90s, 30m, 2h, 3d.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text, one document per line.")
LIMIT_MAX = 100_000
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


# -------------------------------------------------------------------- options combined into one value


Option: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]


def pack_options(name: str, make: Callable[..., object], *options: Option) -> Option:
    """Return a decorator that adds these options to a command. The command gets the value that `make` makes of them, as
    its one argument `name`."""

    def options_only() -> None:
        """Collect the parameters that the options add. This function is never called."""

    for option in options:
        option(options_only)
    names = [each.name for each in cast("_WithParameters", options_only).__click_params__ if each.name is not None]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def call_command(**values: Any) -> Any:
            value = make(**{each: values.pop(each) for each in names})
            return command(**values, **{name: value})

        for option in reversed(options):
            option(call_command)
        return call_command

    return decorate


class _WithParameters(Protocol):
    __click_params__: list[click.Parameter]


def _make_operator(who: str, why: str, wait_s: float) -> Operator:
    require_audit_fields(who, why)
    return Operator(who, why, wait_s)


def _make_record(who: str, why: str) -> Operator:
    require_audit_fields(who, why)
    return Operator(who, why)


def _find_user() -> str:
    """Return the name of the operating system's user if the broker is embedded, as in development; otherwise an empty
    string.

    With another broker a name must be given, because on a server several people often share a user.
    """
    context = click.get_current_context(silent=True)
    try:
        settings = Settings.from_environment(broker=context.params.get("broker") if context is not None else None)
    except SagaError:
        return ""  # the command reports it
    return os.environ.get("USER", "") if settings.broker.startswith("embedded:") else ""


_who_option = click.option(
    "--who", default=_find_user, help="Your name, for the audit. Default on an embedded broker: $USER."
)
_why_option = click.option("--why", required=True, help="Your reason, for the audit.")
operator_options = pack_options(
    "operator",
    _make_operator,
    _who_option,
    _why_option,
    click.option(
        "--within",
        "wait_s",
        type=click.FloatRange(0),
        default=10.0,
        show_default=True,
        help="Seconds to wait for the services' answers.",
    ),
)
"""Options of commands that send a command to a running service and wait for its answer: who, why, and how long to wait.
The command gets them as one `Operator`."""
record_options = pack_options("operator", _make_record, _who_option, _why_option)
"""Options of commands that change something themselves and record it: who and why. The command gets them as one
`Operator`."""


def _make_deployment(addresses: tuple[str, ...], broker: str | None) -> Deployment:
    settings = Settings.from_environment(broker=broker)
    return Deployment(stores=addresses, settings=settings, warn=print_error)


deployment_options = pack_options("deployment", _make_deployment, read_stores_option, broker_option)
"""Options that name stores and broker. The command gets them as one `Deployment`."""


def selection_options(*options: Option, required: bool = False, **fixed: Any) -> Option:
    """Return a decorator that adds the options of a command that selects sagas, runs or dead letters. The command gets
    them as one `Selection`.

    Args:
        options: Any of the options below, and the argument `service`.
        required: True if at least one option that selects something must be given, or else `--all`.
        fixed: Fields of the selection that no option sets.
    """

    def make(
        service: str | None = None, age: str | None = None, all_: bool = False, before: str | None = None, **given: Any
    ) -> Selection:
        if service is not None:
            given["services"] = (service,)
        selection = Selection(**given, **fixed, before=parse_before(before, age, SystemClock()))
        if required and selection.is_unrestricted and not all_:
            names = [each.opts[0] for each in parameters if isinstance(each, click.Option) and each.name in _RESTRICTS]
            raise click.UsageError(f"select something: {', '.join(names)}, or --all")
        return selection

    def options_only() -> None:
        """Collect the parameters that the options add. This function is never called."""

    for option in options:
        option(options_only)
    parameters = cast("_WithParameters", options_only).__click_params__
    return pack_options("selection", make, *options)


_RESTRICTS = ("sagas", "handler", "type", "reason", "category", "owner", "before", "age")
service_argument = click.argument("service")
services_option = click.option("--service", "services", multiple=True, help="Only this service. May be repeated.")
sagas_option = click.option("--saga", "sagas", multiple=True, metavar="ID", help="Only this saga. May be repeated.")
prefix_option = click.option("--prefix", default="", metavar="TEXT", help="Only sagas whose id begins with this.")
handler_option = click.option("--handler", help="Only this handler or compensation.")
type_option = click.option("--type", "type", metavar="EVENT", help="Only this event type.")
reason_option = click.option("--reason", metavar="TEXT", help="Only failures whose reason contains this.")
class_option = click.option(
    "--class",
    "category",
    type=click.Choice(list(BLAMES)),
    help="Only this class: `data` (the sender), `code` (this service), `outside` (what the service calls), `person` "
    "(an operator routed it there).",
)
owner_option = click.option("--owner", metavar="SERVICE", help="Only events whose contract this service owns.")
before_option = click.option("--before", metavar="TIME", help="Only records from before this time, RFC 3339.")
all_option = click.option("--all", "all_", is_flag=True, help="All of them; needed if nothing else is selected.")


def limit_option(default: int) -> Option:
    """Return the option `--limit` with this default."""
    return click.option(
        "--limit", type=click.IntRange(1, LIMIT_MAX), default=default, show_default=True, help="At most this many."
    )


# -------------------------------------------------------------------- times


def parse_duration_s(option: str, text: str) -> int:
    """Parse the value of an option that is a duration, such as `2h`. Return it in seconds."""
    time_s = _parse_seconds(text)
    if time_s is None:
        raise click.UsageError(f"{option} {text}: give a time as 90s, 30m, 2h or 3d")
    return time_s


def parse_before(before: str | None, age: str | None, clock: Clock) -> str | None:
    """Parse `--before` or `--age`. Return the time before which records are selected; `None` if neither was given."""
    if before is not None and age is not None:
        raise click.UsageError("--before and --age mean the same: give one of them")
    if age is not None:
        return iso(max(0, clock.now_ms() - parse_duration_s("--age", age) * 1000))
    try:
        return None if before is None else iso(from_iso(before))
    except ValueError:
        raise click.UsageError(f"--before {before}: give a time as 2026-11-22T16:00:00Z") from None


def parse_time(option: str, text: str | None, clock: Clock) -> str | None:
    """Parse the value of an option that is a time: a duration from now, or RFC 3339. Return it as RFC 3339; `None` if
    it was not given."""
    if text is None:
        return None
    time_s = _parse_seconds(text)
    try:
        return iso(clock.now_ms() + time_s * 1000) if time_s is not None else iso(from_iso(text))
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} {text}: give a time as 90s, 2h, 3d or 2026-11-22T16:00:00Z") from None


def parse_since_ms(option: str, text: str, clock: Clock) -> int:
    """Parse the value of an option that is a time in the past: a duration before now, or RFC 3339. Return it in
    milliseconds since 1970."""
    time_s = _parse_seconds(text)
    try:
        return max(0, clock.now_ms() - time_s * 1000) if time_s is not None else max(0, from_iso(text))
    except (ValueError, OverflowError):
        raise click.UsageError(f"{option} {text}: give a time as 90s, 30m, 2h, 3d or 2026-11-22T16:00:00Z") from None


def _parse_seconds(text: str) -> int | None:
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    return None if match is None else int(match[1]) * _UNITS_S[match[2]]
