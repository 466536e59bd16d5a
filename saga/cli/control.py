"""`saga control` and `saga audit`: change the controls of running services, and print what operators have changed."""

import asyncio
from collections.abc import Callable
from typing import Any

import click
from msgspec.structs import asdict, replace

from saga.cli.options import (
    LIMIT_MAX,
    Option,
    deployment_options,
    json_option,
    operator_options,
    pack_options,
    parse_since_ms,
    parse_time,
    read_stores_option,
)
from saga.cli.printing import print_error, print_json, print_lines
from saga.errors import BadInput
from saga.messaging import controls
from saga.messaging.controls import Switch
from saga.ops import operator_commands
from saga.ops.audit import KINDS, AuditEntry, AuditFilter, read_audit
from saga.ops.selection import Deployment, Operator
from saga.support.clock import SystemClock, from_iso


@click.group()
def control() -> None:
    """Set flags, pause, limit or route running services.

    A handler asks for a flag with `await saga.flag("new_pricing")`. A run that has begun keeps the answer that it got.
    While a handler or the whole service is paused, none of its runs begins; no message is lost, and no attempt is
    counted.

    \b
    saga control pause payment --handler reserve --for 2h --who ada --why "the bank is moving"
    saga control resume payment --handler reserve --who ada --why "it has moved"
    saga control limit payment --resource bank --rate 20 --at-once 2 --who ada --why "the bank asks for it"
    saga control route payment --handler reserve --to dead --for 1h --who ada --why "each one crashes"
    saga control show payment
    \b
    saga control flag payment new_pricing --percent 10 --who ada --why "a tenth first"
    saga control flag payment new_pricing --for order-17 --who ada --why "the one that we watch"
    saga control flag payment new_pricing --percent 0 --who ada --why "prices are wrong"
    """


def _make_flag(percent: float | None, saga: str | None, until: str | None) -> Switch:
    if percent is None and saga is None:
        raise click.UsageError("give --percent, or --for SAGA")
    until = parse_time("--until", until, SystemClock())
    return Switch(percent=100 if percent is None else percent, saga=saga, until=until)


@control.command()
@click.argument("service")
@click.argument("name")
@pack_options(
    "wanted",
    _make_flag,
    click.option(
        "--percent",
        type=click.FloatRange(0, 100),
        help="Percentage of sagas for which it is on; with --for 100, the default there, or 0.",
    ),
    click.option("--for", "saga", metavar="SAGA", help="Only for this saga: on, or off with --percent 0."),
    click.option("--until", metavar="TIME", help="When the flag is unset again: 90s, 2h, 3d, or RFC 3339."),
)
@operator_options
@deployment_options
def flag(service: str, name: str, wanted: Switch, operator: Operator, deployment: Deployment) -> None:
    """Set flag NAME of SERVICE, for a percentage of its sagas or for one saga.

    If the percentage is raised, sagas that had the flag keep it. Workers apply the new setting within five seconds.

    \b
    Exit code 0: it is in the control log of the service.
    Exit code 1: the service has not applied it yet: does it run? The request stays, and is applied when it does.
    Exit code 2: wrong usage, or something cannot be used; standard error says what to do.
    """
    _switch(service, replace(wanted, flag=name), operator, deployment)


handler_option = click.option("--handler", help="For this handler, compensation or deadline.")
until_option = click.option(
    "--until", "--for", "until", metavar="TIME", help="When it expires: 90s, 2h, 3d, or RFC 3339."
)


def _switching(kind: str, *options: Option, off: bool = False, check: Callable[..., dict[str, Any]] = dict) -> Option:
    """Return a decorator that adds the arguments and options of a command that sets a control. The command gets them as
    one `Switch`.

    Args:
        kind: Kind of the control.
        options: Options for fields of the `Switch`.
        off: True if the command ends the control.
        check: Function that checks the options' values, and returns fields of the `Switch`.
    """

    def make(**given: Any) -> Switch:
        fields = {"off": off, **check(**given)}
        until = parse_time("--until", fields.pop("until", None), SystemClock())
        return Switch(kind=kind, until=until, **fields)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        with_options = pack_options("wanted", make, *options)(operator_options(deployment_options(command)))
        return click.argument("service")(with_options)

    return decorate


def _switch(service: str, wanted: Switch, operator: Operator, deployment: Deployment) -> None:
    """Send the service a request for a control, wait for its answer, and print it."""
    sent = asyncio.run(operator_commands.send_switch(service, wanted, operator, deployment))
    entry = asyncio.run(operator_commands.wait_for_entry(service, sent, deployment, operator.wait_s))
    if entry is None:
        print_lines(f"{service} has not applied it yet: does it run?", err=True)
        raise click.exceptions.Exit(1)
    if entry.refused is not None:
        raise BadInput(f"{service} refuses it: {entry.refused}")
    print_lines(f"{service}  {controls.describe_switch(wanted)}")


@control.command()
@_switching("pause", handler_option, until_option)
def pause(service: str, wanted: Switch, operator: Operator, deployment: Deployment) -> None:
    """Pause a handler of SERVICE, or the whole service.

    After five seconds at most, none of its runs begins or is repeated. Events are still read and kept in order, and
    deadlines wait. Compensations continue, unless one is named with --handler or the whole service is paused.

    \b
    Exit code 0: it is in the control log of the service.
    Exit code 1: the service has not applied it yet: does it run? The request stays, and is applied when it does.
    Exit code 2: wrong usage, or the service refuses it; standard error says why.
    """
    _switch(service, wanted, operator, deployment)


@control.command()
@_switching("pause", handler_option, off=True)
def resume(service: str, wanted: Switch, operator: Operator, deployment: Deployment) -> None:
    """End the pause of a handler of SERVICE, or of the whole service.

    Paused runs continue within a minute. When the service is resumed, handlers with a pause of their own stay paused.

    \b
    Exit codes: as `saga control pause`.
    """
    _switch(service, wanted, operator, deployment)


def _make_limit(off: bool, **given: Any) -> dict[str, Any]:
    if off and any(given[name] is not None for name in ("rate_per_s", "at_once_max", "until")):
        raise click.UsageError("--none ends a limit: leave out --rate, --at-once and --for")
    return {"off": off, **given}


@control.command()
@_switching(
    "limit",
    click.option("--resource", help="For the calls of steps to this resource."),
    click.option("--handler", help="For the runs of this handler or compensation."),
    click.option("--rate", "rate_per_s", type=float, help="Calls a second, in each process."),
    click.option("--at-once", "at_once_max", type=int, help="Calls or runs at once, in each process."),
    click.option("--none", "off", is_flag=True, help="Apply the declared limits again."),
    until_option,
    check=_make_limit,
)
def limit(service: str, wanted: Switch, operator: Operator, deployment: Deployment) -> None:
    """Override the declared limits of a resource or a handler of SERVICE. The new limits may be lower or higher.

    Limits that are not given stay as declared. A limit applies to each process: two workers together admit twice as
    many.

    \b
    Exit codes: as `saga control pause`.
    """
    _switch(service, wanted, operator, deployment)


def _make_route(to: str | None, off: bool, **given: Any) -> dict[str, Any]:
    if off == (to is not None):
        raise click.UsageError("give --to dead, or --off")
    if off and given["until"] is not None:
        raise click.UsageError("--off ends a route: leave out --for")
    return {"off": off, **given}


@control.command()
@_switching(
    "route",
    click.option("--handler", help="Messages for this handler."),
    click.option("--event", help="Messages of this event, for every handler."),
    click.option("--to", type=click.Choice(["dead"]), help="Target of the route: dead letters."),
    click.option("--off", is_flag=True, help="End the route."),
    until_option,
    check=_make_route,
)
def route(service: str, wanted: Switch, operator: Operator, deployment: Deployment) -> None:
    """Send messages of SERVICE to the dead letters, instead of running their handler.

    This blocks their sagas, as every dead letter does. Later, end the route and replay the dead letters: saga dead
    replay SERVICE --class person. Runs that have begun are finished. Compensations and deadlines cannot be routed.

    \b
    Exit codes: as `saga control pause`.
    """
    _switch(service, wanted, operator, deployment)


@control.command()
@click.argument("service")
@read_stores_option
@json_option
def show(service: str, addresses: tuple[str, ...], as_json: bool) -> None:
    """Show the flags, pauses, limits and routes that are active in SERVICE.

    \b
    Exit code 0: shown, even if there are none.
    Exit code 2: no store, or one that cannot be read.
    """
    clock, deployment = SystemClock(), Deployment(stores=addresses, warn=print_error)
    now = controls.read_controls(asyncio.run(operator_commands.read_control_log(service, deployment)))
    for switch in (*now.flags.for_all.values(), *now.flags.for_one.values()):
        if switch.until is None or from_iso(switch.until) > clock.now_ms():
            if as_json:
                print_json(asdict(switch))
            else:
                print_lines(f"{service}  {controls.describe_switch(switch)}")
    for entry in controls.active_entries(now, clock.now_ms()).values():
        if as_json:
            print_json(asdict(entry.switch) | {"who": entry.who, "why": entry.why, "time": entry.time})
        else:
            print_lines(
                f"{service}  {controls.describe_switch(entry.switch)}  {entry.who} at {entry.time}: {entry.why}"
            )
    if now.unknown:
        print_lines(f"{service} has controls that this version does not know: {', '.join(now.unknown)}", err=True)


# -------------------------------------------------------------------- audit


def _make_filter(kinds: tuple[str, ...], saga: str | None, who: str | None, since: str | None) -> AuditFilter:
    from_ms = 0 if since is None else parse_since_ms("--since", since, SystemClock())
    return AuditFilter(kinds=kinds, saga=saga, who=who, since_ms=from_ms)


@click.command()
@click.argument("service")
@pack_options(
    "asked",
    _make_filter,
    click.option("--kind", "kinds", type=click.Choice(KINDS), multiple=True, help="Only this kind. May be repeated."),
    click.option("--saga", metavar="ID", help="Only actions about this saga."),
    click.option("--who", help="Only actions of this operator."),
    click.option("--since", metavar="TIME", help="Only actions since then: 90s, 30m, 2h, 3d ago, or RFC 3339."),
)
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=1000,
    show_default=True,
    help="At most this many actions, the newest ones.",
)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text, one document per line.")
def audit(service: str, asked: AuditFilter, limit: int, deployment: Deployment, as_json: bool) -> None:
    """Print what operators have done in SERVICE, oldest first, and verify the records.

    For each action: when, what, who, why, its result, and what proves it. Actions are controls (flags, pauses, limits
    and routes), commands about dead letters, and moves of offsets.

    Controls are in the control log of the service (`book`), and results of commands in the history of their saga
    (`history`). Both are hash chains: an entry that was changed, added or removed in the middle is found. To find out
    whether entries at the end of the control log were removed, compare its last digest with one that you kept
    elsewhere.

    Moves of offsets, and commands that are not (or no longer) in a history, are proved only by a topic (`topic`): any
    client that may write to it can have forged them. If records were removed from the beginning of a topic, this is
    noticed, but the records are lost. The name of the operator is the one given with `--who`. Only the broker knows the
    real user, if it asks for a password.

    \b
    Exit code 0: printed, and no contradiction was found.
    Exit code 1: records were tampered with, or some may be missing; standard error says why.
    Exit code 2: no store, or one that cannot be read.
    """
    found = asyncio.run(read_audit(service, deployment, asked))
    for act in found.entries[-limit:]:
        if as_json:
            print_json(_in_json(act))
        else:
            print_lines(_format_entry(act))
    if len(found.entries) > limit:  # one JSON document per line has no place for it
        print_lines(f"and {len(found.entries) - limit} older: raise --limit to see them", err=as_json)
    if not as_json:
        count, digest = len(found.control_log.entries), controls.digest_of(found.control_log)
        print_lines(f"the control log has {count} entries, the last digest is {digest}")
    for note in found.notes:
        print_error(note)
    for reason in found.wrong:
        print_error(reason)
    if found.wrong:
        raise click.exceptions.Exit(1)


def _in_json(act: AuditEntry) -> dict[str, object]:
    fields = {name: value for name, value in asdict(act).items() if name != "entry"}
    if act.entry is None:
        return fields
    return asdict(act.entry) | fields | {"switch": asdict(act.entry.switch)}


def _format_entry(act: AuditEntry) -> str:
    return f"{act.time}  {act.what}  {act.who or '(not known)'}: {act.why}  {act.became} ({act.shown_by})"
