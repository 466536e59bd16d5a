"""`saga dead`: what needs a person; and what a person wants done with dead letters, told to the services."""

import asyncio
from collections.abc import Sequence

import click

from saga.cli.dead_commands import discard, replay
from saga.cli.dead_resolve import resolve
from saga.cli.list import LIMIT_MAX, letter_in_json, tell_dead
from saga.cli.options import age_option, before_of, broker_option, class_option, read_stores_option
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.configuration.settings import Settings
from saga.ops.attention import find_attention
from saga.ops.dead_letters import DeadLetterRecord, Which
from saga.ops.saga_list import Choice
from saga.policies.blame import BLAMES
from saga.support.clock import SystemClock


@click.group()
def dead() -> None:
    """See what needs a person, and have services try it again or leave it.

    A dead letter keeps its saga waiting, in order, until a person decides. REPLAY it when its cause is mended: the
    service goes on where it was, with all that is recorded, under the same keys. DISCARD it when it must never be
    handled: what its run had begun is told, to be put right by hand. RESOLVE it when nobody but you knows what the
    outside did; and so an escalation, when its calls are put right.

    \b
    saga dead list
    saga dead replay payment --reason BankDown --who ada --why "the bank is back"

    Nobody but the service changes its progress: these are commands on its topic <service>.commands, carried out in the
    saga's own order, and recorded in its history with who and why.
    """


@dead.command("list")
@read_stores_option
@broker_option
@click.option("--prefix", default="", metavar="TEXT", help="Only sagas whose id begins so.")
@click.option("--saga", "sagas", multiple=True, metavar="ID", help="Only of this saga. May be given several times.")
@click.option("--handler", help="Only of this handler or compensation.")
@click.option("--reason", metavar="TEXT", help="Only with this in the reason.")
@click.option("--service", "services", multiple=True, help="Only of this service. May be given several times.")
@class_option
@click.option("--owner", metavar="SERVICE", help="Only of events whose contract this service owns.")
@click.option("--type", "type_", metavar="EVENT", help="Only of this event.")
@age_option
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=50, show_default=True, help="At most so many.")
@click.option("--all", "all_", is_flag=True, help="Also what has come to its end.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def list_dead(  # an argument for each option of the command
    addresses: tuple[str, ...],
    broker: str | None,
    prefix: str,
    sagas: tuple[str, ...],
    handler: str | None,
    reason: str | None,
    services: tuple[str, ...],
    blame: str | None,
    owner: str | None,
    type_: str | None,
    age: str | None,
    limit: int,
    all_: bool,
    as_json: bool,
) -> None:
    """List what needs a person now, newest first: dead letters that block a saga, escalations that nobody has closed,
    and runs that are tried again although their service's own code fails (`failing`); and messages that were refused
    and are in no saga's way (`-`), which nothing ends. With --all also what has ended, as `saga list --dead` lists it.

    CLASS says who can mend it: `data`, who sent it; `code`, who writes this service; `outside`, who runs what it calls.

    \b
    Exit code 0: nothing that is chosen waits for a person.
    Exit code 1: something does.
    Exit code 2: no store, one that cannot be read, or a service that nobody knows.
    """
    choice = Choice(addresses=addresses, prefix=prefix, sagas=sagas, services=services, limit=limit, only_dead=True)
    before = before_of(None, age, SystemClock())
    which = Which(sagas=sagas, handler=handler, type=type_, reason=reason, blame=blame, owner=owner, before=before)
    settings = Settings.from_environment(broker=broker)
    if asyncio.run(tell_dead(choice, settings, as_json, which, with_ended=all_)):
        raise click.exceptions.Exit(1)


@dead.command()
@click.argument("saga")
@read_stores_option
@broker_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def show(saga: str, addresses: tuple[str, ...], broker: str | None, as_json: bool) -> None:
    """Show all that was said of SAGA for people: each dead letter whole, with its remedy, and what became of it.

    Of each: the original's headers; why it failed, where, and through which lines of the service; who can mend it, and
    who owns the event; the saga's state before the run; and the calls that stand. These are values from messages.

    \b
    Exit code 0: shown.
    Exit code 1: nothing was said of it.
    Exit code 2: no store, or one that cannot be read.
    """
    choice = Choice(addresses=addresses, sagas=(saga,), limit=LIMIT_MAX, only_dead=True)
    found = asyncio.run(find_attention(choice, Settings.from_environment(broker=broker), SystemClock(), tell_trouble))
    told = [each for each in found.items if each.letter.saga == saga]
    if as_json:
        tell_json({"letters": [letter_in_json(each) for each in reversed(told)]})
    for each in reversed(told) if not as_json else ():
        tell(f"{each.letter.what}  {each.letter.id}", *(f"  {line}" for line in _lines(each.letter, each.state)))
    if not told:
        tell(f"nothing was said of saga {saga} that needs a person", err=True)
        raise click.exceptions.Exit(1)


def _lines(letter: DeadLetterRecord, now: str) -> Sequence[str]:
    said = {
        "now": now if now != "-" else None,
        "time": letter.time,
        "service": letter.service,
        "handler": letter.handler,
        "message": f"{letter.type or '?'} {letter.message or ''}".strip(),
        "owner": letter.owner,
        "attempts": letter.attempts,
        "class": next((words for blame, words in BLAMES.items() if blame == letter.blame), letter.blame),
        "why": letter.reason,
        "where": letter.where,
        "remedy": letter.remedy,
        "state": letter.state,
        "lies at": letter.whole,
    }
    lines = [f"{name:<9}{text}" for name, text in said.items() if text]
    lines += [f"{'call':<9}{call}" for call in letter.calls]
    lines += [f"{'through':<9}{place}" for place in letter.stack]
    return [
        *lines,
        *(f"{'header':<9}{name}: {value if value is not None else '(null)'}" for name, value in letter.headers),
    ]


dead.add_command(replay)
dead.add_command(discard)
dead.add_command(resolve)
