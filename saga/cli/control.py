"""`saga control`: what people switch in services that run."""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import click
from msgspec.structs import asdict

from saga.cli.dead_commands import who_option, why_option, within_option
from saga.cli.options import broker_option, check_said, read_stores_option, time_of
from saga.cli.printing import tell, tell_json
from saga.configuration.settings import Settings
from saga.errors import BadInput
from saga.messaging import active_controls
from saga.messaging.controls import Switch
from saga.ops import operator_commands
from saga.support.clock import Clock, SystemClock, iso


@click.group()
def control() -> None:
    """Switch flags, pause, limit or route services while they run, without a deployment.

    A handler asks `await saga.flag("new_pricing")`. A run that has begun keeps the answer it got. What is paused, a
    handler or the whole service, begins nothing; nothing of it is lost, and no attempt is counted.

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


@control.command()
@click.argument("service")
@click.argument("name")
@click.option(
    "--percent", type=click.FloatRange(0, 100), help="Share of the sagas for which it is on; of one saga all."
)
@click.option("--for", "saga", metavar="SAGA", help="For this saga alone: it wins over the share.")
@click.option("--until", metavar="TIME", help="As if it had never been set from then on: 90s, 2h, 3d, or RFC 3339.")
@who_option
@why_option
@within_option
@read_stores_option
@broker_option
def flag(  # an argument for each option of the command
    service: str,
    name: str,
    percent: float | None,
    saga: str | None,
    until: str | None,
    who: str,
    why: str,
    within_s: float,
    addresses: tuple[str, ...],
    broker: str | None,
) -> None:
    """Set flag NAME of SERVICE, for a share of its sagas or for one.

    A saga that is in a share is in every larger one of that flag. Workers look after five seconds at the latest.

    \b
    Exit code 0: it is in the service's book.
    Exit code 1: the service has not come to it yet: does it run? The wish stays, and is heeded when it does.
    Exit code 2: asked wrongly, or something cannot be used; what to do is on standard error.
    """
    check_said(who, why)
    if percent is None and saga is None:
        raise click.UsageError("say for how many: --percent, or --for SAGA")
    clock, settings = SystemClock(), Settings.from_environment(broker=broker)
    wanted = Switch(
        flag=name, percent=100 if percent is None else percent, saga=saga, until=time_of("--until", until, clock)
    )
    _have(service, wanted, who, why, _Way(addresses, settings, clock, within_s))


handler_option = click.option("--handler", help="For this handler, compensation or deadline.")
until_option = click.option(
    "--until", "--for", "until", metavar="TIME", help="It ends by itself then: 90s, 2h, 3d, or RFC 3339."
)


def _switching(command: Callable[..., None]) -> Callable[..., None]:
    """Options of all commands that switch something."""
    for option in (broker_option, read_stores_option, within_option, why_option, who_option):
        command = option(command)
    return click.argument("service")(command)


class _Way(NamedTuple):
    """Way to a service, and back."""

    addresses: tuple[str, ...]
    settings: Settings
    clock: Clock
    within_s: float


def _have(service: str, wanted: Switch, who: str, why: str, way: _Way) -> None:
    """Have a service do so, and tell what it says."""
    wish = asyncio.run(operator_commands.send_switch(service, wanted, who, why, way.settings, way.clock))
    entry = asyncio.run(operator_commands.wait_for_entry(service, wish, way.addresses, way.clock, way.within_s))
    if entry is None:
        tell(f"{service} has not come to it yet: does it run?", err=True)
        raise click.exceptions.Exit(1)
    if entry.refused is not None:
        raise BadInput(f"{service} does not do so: {entry.refused}")
    tell(f"{service}  {active_controls.in_words(wanted)}")


@control.command()
@handler_option
@until_option
@_switching
def pause(handler: str | None, until: str | None, **given: Any) -> None:
    """Have a handler of SERVICE begin nothing, or the whole service.

    Within five seconds no message begins a run of it any more, nor does a rerun of what had begun. Events are read on
    and kept in their order; deadlines wait as well. A compensation waits if it is named, or with the whole service.

    \b
    Exit code 0: it is in the service's book.
    Exit code 1: the service has not come to it yet: does it run? The wish stays, and is heeded when it does.
    Exit code 2: asked wrongly, or the service refuses it; why is on standard error.
    """
    _wish(given, until, kind="pause", handler=handler)


@control.command()
@handler_option
@_switching
def resume(handler: str | None, **given: Any) -> None:
    """End a pause: of a handler of SERVICE, or that of the whole service.

    What was paused goes on within a minute. Handlers that were paused by themselves stay so when the service goes on.

    \b
    Exit codes: as `saga control pause`.
    """
    _wish(given, None, kind="pause", handler=handler, off=True)


@control.command()
@click.option("--resource", help="For the calls of steps to this resource.")
@click.option("--handler", help="For the runs of this handler or compensation.")
@click.option("--rate", type=float, help="Calls a second, in each process.")
@click.option("--at-once", type=int, help="Calls or runs at once, in each process.")
@click.option("--none", "off", is_flag=True, help="What is declared holds again.")
@until_option
@_switching
def limit(  # an argument for each option of the command
    resource: str | None,
    handler: str | None,
    rate: float | None,
    at_once: int | None,
    off: bool,
    until: str | None,
    **given: Any,
) -> None:
    """Limit a resource or a handler of SERVICE, in the place of what is declared: less, or more.

    What is not given stays as declared. Limits are those of each process: two workers let twice as many through.

    \b
    Exit codes: as `saga control pause`.
    """
    if off and (rate is not None or at_once is not None or until is not None):
        raise click.UsageError("--none ends a limit: leave out --rate, --at-once and --for")
    more: dict[str, Any] = {"resource": resource, "rate_per_s": rate, "at_once_max": at_once}
    _wish(given, until, kind="limit", handler=handler, off=off, **more)


@control.command()
@click.option("--handler", help="The messages of this handler.")
@click.option("--event", help="Messages of this event, for whichever handler.")
@click.option("--to", type=click.Choice(["dead"]), help="Where they go: they become dead letters at once.")
@click.option("--off", is_flag=True, help="End it.")
@until_option
@_switching
def route(  # an argument for each option of the command
    handler: str | None, event: str | None, to: str | None, off: bool, until: str | None, **given: Any
) -> None:
    """Send messages of SERVICE to the dead letters, instead of running their handler.

    Their sagas wait, as behind each dead letter. End the route, and replay them: saga dead replay SERVICE --class
    person. What has begun is brought to its end; compensations and deadlines cannot be routed.

    \b
    Exit codes: as `saga control pause`.
    """
    if off == (to is not None):
        raise click.UsageError("say which: --to dead, or --off")
    if off and until is not None:
        raise click.UsageError("--off ends a route: leave out --for")
    _wish(given, until, kind="route", handler=handler, event=event, off=off)


def _wish(given: dict[str, Any], until: str | None, **switch: Any) -> None:
    """Switch something that is no flag. `given`: the options of all commands."""
    check_said(given["who"], given["why"])
    clock, settings = SystemClock(), Settings.from_environment(broker=given["broker"])
    wanted = Switch(**switch, until=time_of("--until", until, clock))
    way = _Way(given["addresses"], settings, clock, given["within_s"])
    _have(given["service"], wanted, given["who"], given["why"], way)


@control.command()
@click.argument("service")
@read_stores_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each flag, instead of text.")
def show(service: str, addresses: tuple[str, ...], as_json: bool) -> None:
    """Show what is switched in SERVICE now.

    \b
    Exit code 0: shown, even if it is nothing.
    Exit code 2: no store, or one that cannot be read.
    """
    clock = SystemClock()
    now = active_controls.in_force(asyncio.run(operator_commands.read_control_log(service, addresses, clock)))
    for switch in (*now.flags.for_all.values(), *now.flags.for_one.values()):
        if switch.until is None or switch.until > iso(clock.now_ms()):
            if as_json:
                tell_json(asdict(switch))
            else:
                tell(f"{service}  {active_controls.in_words(switch)}")
    for entry in active_controls.active(now, clock.now_ms()).values():
        if as_json:
            tell_json(asdict(entry.switch) | {"who": entry.who, "why": entry.why, "time": entry.time})
        else:
            tell(f"{service}  {active_controls.in_words(entry.switch)}  {entry.who} at {entry.time}: {entry.why}")
    if now.unknown:
        tell(f"{service} has switches that this version does not know: {', '.join(now.unknown)}", err=True)
