"""`saga dead`: what needs a person; and what a person wants done with dead letters, told to the services."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import click

from saga.administration import commanding
from saga.administration.commanding import Answer, Wish
from saga.cli.list import LIMIT_MAX, tell_dead
from saga.cli.options import broker_option, check_said, read_stores_option
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.clock import SystemClock, from_iso, iso
from saga.commands import Wanted
from saga.config import Settings
from saga.inspection.attention import Blocking, attention, blocking
from saga.inspection.letters import Letter
from saga.inspection.listing import Choice

REPLAYS_MAX = 5
"""Replays of one saga in one service after which each more has to be asked for by name: a loop helps nobody."""
LIMIT = 1000
WITHIN_S = 10.0


@click.group()
def dead() -> None:
    """See what needs a person, and have services try it again or leave it.

    A dead letter keeps its saga waiting, in order, until a person decides. REPLAY it when its cause is mended: the
    service goes on where it was, with all that is recorded, under the same keys. DISCARD it when it must never be
    handled: what its run had begun is told, to be put right by hand.

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
@click.option("--service", "services", multiple=True, help="Only of this service. May be given several times.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def list_dead(  # an argument for each option of the command
    addresses: tuple[str, ...],
    broker: str | None,
    prefix: str,
    services: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> None:
    """List what needs a person, as `saga list --dead` does, newest first.

    \b
    Exit code 0: listed, even if there is none.
    Exit code 2: no store, or one that cannot be read.
    """
    choice = Choice(addresses=addresses, prefix=prefix, services=services, limit=limit, only_dead=True)
    asyncio.run(tell_dead(choice, Settings.from_environment(broker=broker), as_json))


@dead.command()
@click.argument("saga")
@read_stores_option
@broker_option
def show(saga: str, addresses: tuple[str, ...], broker: str | None) -> None:
    """Show all that was said of SAGA for people: each dead letter whole, with its remedy, and what became of it.

    \b
    Exit code 0: shown.
    Exit code 1: nothing was said of it.
    Exit code 2: no store, or one that cannot be read.
    """
    choice = Choice(addresses=addresses, prefix=saga, limit=LIMIT_MAX, only_dead=True)
    found = asyncio.run(attention(choice, Settings.from_environment(broker=broker), SystemClock(), tell_trouble))
    told = [each for each in found.told if each.letter.saga == saga]
    for each in reversed(told):
        tell(f"{each.letter.what}  {each.letter.id}", *(f"  {line}" for line in _lines(each.letter, each.now)))
    if not told:
        tell(f"nothing was said of saga {saga} that needs a person", err=True)
        raise click.exceptions.Exit(1)


def _lines(letter: Letter, now: str) -> Sequence[str]:
    said = {
        "now": now if now != "-" else None,
        "time": letter.time,
        "service": letter.service,
        "handler": letter.handler,
        "message": f"{letter.type or '?'} {letter.message or ''}".strip(),
        "attempts": letter.attempts,
        "why": letter.reason,
        "where": letter.where,
        "remedy": letter.remedy,
        "lies at": letter.whole,
    }
    lines = [f"{name:<9}{text}" for name, text in said.items() if text]
    return [*lines, *(f"{'call':<9}{call}" for call in letter.calls)]


# ---------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Dead letters that are meant: those for which all that is given holds."""

    sagas: Sequence[str]
    handler: str | None
    type_: str | None
    reason: str | None
    before: str | None

    def holds(self, letter: Letter) -> bool:
        return (
            (not self.sagas or letter.saga in self.sagas)
            and (self.handler is None or letter.handler == self.handler)
            and (self.type_ is None or letter.type == self.type_)
            and (self.reason is None or self.reason in letter.reason)
            and (self.before is None or letter.time < self.before)
        )


def _commands(wanted: Wanted, help_text: str) -> click.Command:
    """Make the command: the two differ in what is wanted."""

    @click.command(wanted, help=help_text)
    @click.argument("service")
    @click.option("--saga", "sagas", multiple=True, metavar="ID", help="Of this saga. May be given several times.")
    @click.option("--handler", help="Of this handler or compensation.")
    @click.option("--type", "type_", metavar="EVENT", help="Of this event.")
    @click.option("--reason", metavar="TEXT", help="With this in the reason.")
    @click.option("--before", metavar="TIME", help="From before this time, RFC 3339.")
    @click.option("--all", "all_", is_flag=True, help="All that there are; asked for if nothing else is chosen.")
    @click.option("--who", required=True, help="Your name, for the record.")
    @click.option("--why", required=True, help="Your reason, for the record.")
    @click.option("--again", is_flag=True, help=f"Also of sagas that had {REPLAYS_MAX} replays in this service.")
    @click.option("--dry-run", is_flag=True, help="Only tell which dead letters are meant.")
    @click.option(
        "--within",
        "within_s",
        type=click.FloatRange(0),
        default=WITHIN_S,
        show_default=True,
        help="Seconds to wait for the service's answers.",
    )
    @click.option(
        "--limit", type=click.IntRange(1, LIMIT_MAX), default=LIMIT, show_default=True, help="Sagas, at most."
    )
    @read_stores_option
    @broker_option
    @click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each, instead of text.")
    def command(  # an argument for each option of the command
        service: str,
        sagas: tuple[str, ...],
        handler: str | None,
        type_: str | None,
        reason: str | None,
        before: str | None,
        all_: bool,
        who: str,
        why: str,
        again: bool,
        dry_run: bool,
        within_s: float,
        limit: int,
        addresses: tuple[str, ...],
        broker: str | None,
        as_json: bool,
    ) -> None:
        check_said(who, why)
        meant = Filter(sagas=sagas, handler=handler, type_=type_, reason=reason, before=_time(before))
        if meant == Filter(sagas=(), handler=None, type_=None, reason=None, before=None) and not all_:
            raise click.UsageError("say which: --saga, --handler, --type, --reason, --before, or --all")
        prefix = sagas[0] if len(sagas) == 1 else ""
        choice = Choice(addresses=addresses, prefix=prefix, services=(service,), limit=limit, only_dead=True)
        wish = Wish(wanted=wanted, who=who, why=why)
        settings = Settings.from_environment(broker=broker)
        done = asyncio.run(_done(choice, meant, wish, settings, again, dry_run, within_s, as_json))
        if not done:
            raise click.exceptions.Exit(1)

    return command


def _time(text: str | None) -> str | None:
    try:
        return None if text is None else iso(from_iso(text))
    except ValueError:
        raise click.UsageError(f"--before {text}: give a time as 2026-11-22T16:00:00Z") from None


async def _done(  # what the command line says
    choice: Choice,
    meant: Filter,
    wish: Wish,
    settings: Settings,
    again: bool,
    dry_run: bool,
    within_s: float,
    as_json: bool,
) -> bool:
    """Send the commands and print the answers; true if each was done."""
    clock = SystemClock()
    found = [each async for each in blocking(choice, clock, tell_trouble) if meant.holds(each.letter)]
    looping = [each for each in found if _loops(each, wish, again)]
    letters = [each.letter for each in found if not _loops(each, wish, again)]
    for letter, replays in looping:
        tell_trouble(
            f"{letter.saga} had {replays} replays in {letter.service} already: mend the cause, then say --again"
        )
    if not found:
        tell("no dead letter is meant: `saga dead list` shows those that block a saga", err=True)
        return False
    if dry_run:
        for letter in letters:
            _print(letter, f"would be {_PAST[wish.wanted]}", letter.reason, as_json)
        return not looping
    sent = await commanding.send(letters, wish, settings, clock) if letters else []
    whole = not looping
    async for answer in commanding.answers(sent, choice.addresses, clock, within_s):
        whole = whole and answer.outcome == _PAST[wish.wanted] and answer.after != "dead"
        _print(answer.sent.letter, _in_words(answer), answer.reason, as_json)
    return whole


_PAST = {"replay": "replayed", "discard": "discarded"}


def _loops(each: Blocking, wish: Wish, again: bool) -> bool:
    return wish.wanted == "replay" and not again and each.replays >= REPLAYS_MAX


def _in_words(answer: Answer) -> str:
    if answer.outcome == "ignored":
        return "refused"
    if answer.outcome and answer.after:
        return f"{answer.outcome}, then {answer.after}"
    return answer.outcome or "not yet"


def _print(letter: Letter, what: str, why: str, as_json: bool) -> None:
    if as_json:
        tell_json({"service": letter.service, "saga": letter.saga, "dead": letter.id, "state": what, "why": why})
    else:
        tell(f"{letter.service}  {letter.saga}  {letter.handler}  {what}: {why}")


_CODES = """
    \b
    Exit code 0: done, or told.
    Exit code 1: none is meant, or one was refused, died again, or was not answered in time; its line says so.
    Exit code 2: asked wrongly, or something cannot be used; what to do is on standard error.
"""
dead.add_command(
    _commands(
        "replay",
        """Have SERVICE try dead letters again, when their cause is mended.

    \b
    saga dead replay payment --saga order-17 --who ada --why "the bank is back"

    A handler goes on where it was: steps and updates that have answered are not made again, and those that are have
    the keys they had. What waits behind it in its saga follows, in order. What dies again is another dead letter.
"""
        + _CODES,
    )
)
dead.add_command(
    _commands(
        "discard",
        """Have SERVICE never handle dead letters, and go on with what waits behind them.

    \b
    saga dead discard audit --saga order-17 --who ada --why "a test order"

    What the run had begun stands, and is told as an escalation, call by call, to be put right by hand. Refused, because
    others count on it: a compensation, a handler that an outcome sets off, and any at the service that decides how
    sagas end.
"""
        + _CODES,
    )
)
