"""`saga dead replay` and `saga dead discard`: what a person wants done with dead letters, told to the services."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import click

from saga.cli.list import LIMIT_MAX
from saga.cli.options import age_option, before_of, broker_option, check_said, class_option, read_stores_option
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.cli.rehearsals import tell_rehearsals
from saga.configuration.settings import Settings
from saga.configuration.wiring import keys_of, load_services
from saga.declarations.values import Declared
from saga.errors import BadInput
from saga.messages import Message
from saga.messaging.operator_commands import Wanted
from saga.ops import operator_commands
from saga.ops.attention import BlockingDeadLetter, add_owners, find_blocking, find_too_old
from saga.ops.dead_letters import ALL, DeadLetterRecord, Which, read_originals
from saga.ops.operator_commands import OUTCOMES, REPLAYS_MAX, CommandRequest, describe_answer
from saga.ops.saga_list import Choice
from saga.support.clock import Clock, SystemClock

Option: TypeAlias = Callable[[Callable[..., None]], Callable[..., None]]
LIMIT = 1000
WITHIN_S = 10.0


who_option = click.option("--who", required=True, help="Your name, for the record.")
why_option = click.option("--why", required=True, help="Your reason, for the record.")
within_option = click.option(
    "--within",
    "within_s",
    type=click.FloatRange(0),
    default=WITHIN_S,
    show_default=True,
    help="Seconds to wait for the service's answers.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document a line for each, instead of text."
)
older_option = click.option(
    "--older", is_flag=True, help="Also what was older than the service's memory, and is handled as new then."
)
code_option = click.option(
    "--code",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="With --dry-run: run the code of this module on a copy, and tell what it would do.",
)
_OPTIONS: tuple[Option, ...] = (
    click.argument("service"),
    click.option("--saga", "sagas", multiple=True, metavar="ID", help="Of this saga. May be given several times."),
    click.option("--handler", help="Of this handler or compensation."),
    click.option("--type", "type_", metavar="EVENT", help="Of this event."),
    click.option("--reason", metavar="TEXT", help="With this in the reason."),
    class_option,
    click.option("--owner", metavar="SERVICE", help="Of events whose contract this service owns, as its letter says."),
    click.option("--before", metavar="TIME", help="From before this time, RFC 3339."),
    age_option,
    click.option("--all", "all_", is_flag=True, help="All that there are; asked for if nothing else is chosen."),
    who_option,
    why_option,
    click.option("--again", is_flag=True, help=f"Also of sagas that had {REPLAYS_MAX} replays in this service."),
    click.option("--dry-run", is_flag=True, help="Only tell which dead letters are meant."),
    within_option,
    click.option(
        "--limit", type=click.IntRange(1, LIMIT_MAX), default=LIMIT, show_default=True, help="Sagas, at most."
    ),
    read_stores_option,
    broker_option,
    json_option,
)
"""Options of these commands, in the order of their help."""


def _command(wanted: Wanted, help_text: str) -> click.Command:
    """Make the command: they differ in what is wanted."""

    def command(  # an argument for each option of the command
        service: str,
        sagas: tuple[str, ...],
        handler: str | None,
        type_: str | None,
        reason: str | None,
        blame: str | None,
        owner: str | None,
        before: str | None,
        age: str | None,
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
        older: bool = False,
        modules: tuple[str, ...] = (),
    ) -> None:
        check_said(who, why)
        if modules and not dry_run:
            raise click.UsageError("--code is for --dry-run: otherwise the service runs its own")
        meant = Which(
            sagas=sagas,
            handler=handler,
            type=type_,
            reason=reason,
            blame=blame,
            owner=owner,
            before=before_of(before, age, SystemClock()),
        )
        if meant == ALL and not all_:
            raise click.UsageError(
                "say which: --saga, --handler, --type, --reason, --class, --owner, --before, --age, or --all"
            )
        choice = Choice(addresses=addresses, sagas=sagas, services=(service,), limit=limit, only_dead=True)
        wish = CommandRequest(wanted=wanted, who=who, why=why)
        settings = Settings.from_environment(broker=broker)
        code = _declared_in(modules, service) if modules else None
        done = asyncio.run(_done(choice, meant, wish, settings, again, older, dry_run, code, within_s, as_json))
        if not done:
            raise click.exceptions.Exit(1)

    options: tuple[Option, ...] = (*_OPTIONS, older_option, code_option) if wanted == "replay" else _OPTIONS
    for option in reversed(options):
        command = option(command)
    return click.command(wanted, help=help_text)(command)


async def _done(  # what the command line says
    choice: Choice,
    meant: Which,
    wish: CommandRequest,
    settings: Settings,
    again: bool,
    older: bool,
    dry_run: bool,
    code: Declared | None,
    within_s: float,
    as_json: bool,
) -> bool:
    """Send the commands and print the answers; true if each was done."""
    clock = SystemClock()
    late = await find_too_old(choice, settings, clock, tell_trouble, meant) if older else []
    found = [each async for each in find_blocking(choice, settings, clock, tell_trouble)]
    if meant.owner is not None:
        found = await add_owners(found, choice.services[0], settings, clock, tell_trouble)
    found = [each for each in found if meant.holds(each.letter)]
    looping = [each for each in found if _loops(each, wish, again)]
    letters = [each.letter for each in found if not _loops(each, wish, again)]
    for letter, replays in looping:
        tell_trouble(
            f"{letter.saga} had {replays} replays in {letter.service} already: mend the cause, then say --again"
        )
    unmeant = tell_missing(meant.sagas, [*(each.letter for each in found), *late], "no dead letter")
    if not found and not late:
        tell("no dead letter is meant: `saga dead list` shows those that block a saga", err=True)
        return False
    if dry_run and code is None:
        for letter in letters:
            tell_state(letter, f"would be {OUTCOMES[wish.wanted]}", letter.reason, as_json)
        for letter in late:
            tell_state(letter, "would be handled as new", letter.reason, as_json)
        return not looping and not unmeant
    originals = await _originals(choice.services[0], late, settings, clock)
    if code is not None:
        rehearsing = [*letters, *(letter for letter in late if letter.id in originals)]
        keys = keys_of(settings, clock, [code])
        told = await tell_rehearsals(code, rehearsing, originals, wish, choice.addresses, clock, keys, as_json)
        return told and not looping and not unmeant
    letters += [letter for letter in late if letter.id in originals]
    sent = await operator_commands.send_commands(letters, wish, settings, clock, originals) if letters else []
    whole = not looping and not unmeant and len(originals) == len(late)
    async for answer in operator_commands.wait_for_answers(sent, choice.addresses, clock, within_s):
        whole = whole and answer.outcome == OUTCOMES[wish.wanted] and answer.after != "dead"
        tell_state(answer.sent.dead_letter, describe_answer(answer), answer.reason, as_json)
    return whole


def _declared_in(modules: Sequence[str], service: str) -> Declared:
    """The service's declarations, as today's code has them."""
    found = next((declared for declared in load_services(modules) if declared.name == service), None)
    if found is None:
        raise click.UsageError(f"--code: none of these modules declares {service!r}")
    return found


async def _originals(
    service: str, late: Sequence[DeadLetterRecord], settings: Settings, clock: Clock
) -> Mapping[str, Message]:
    """Messages of these letters, as far as they are whole."""
    found = await read_originals(service, {letter.id for letter in late}, settings, clock) if late else {}
    for letter in late:
        if isinstance(why := found.get(letter.id), BadInput):
            tell_trouble(f"{letter.saga} cannot be replayed: {why}")
    return {id_: message for id_, message in found.items() if isinstance(message, Message)}


def _loops(each: BlockingDeadLetter, wish: CommandRequest, again: bool) -> bool:
    return wish.wanted == "replay" and not again and each.replays >= REPLAYS_MAX


def tell_missing(sagas: Sequence[str], found: Sequence[DeadLetterRecord], what: str) -> bool:
    """Tell of which of these sagas nothing was found; true if there is one."""
    there = {letter.saga for letter in found}
    missing = [saga for saga in dict.fromkeys(sagas) if saga not in there]
    for saga in missing:
        tell_trouble(f"{what} of saga {saga} is meant: see its id")
    return bool(missing)


def tell_state(letter: DeadLetterRecord, what: str, why: str, as_json: bool) -> None:
    """Print what becomes of a letter."""
    if as_json:
        tell_json({"service": letter.service, "saga": letter.saga, "dead": letter.id, "state": what, "why": why})
    else:
        tell(f"{letter.service}  {letter.saga}  {letter.handler}  {what}: {why}")


CODES = """
    \b
    Exit code 0: done, or told.
    Exit code 1: none is meant, or one was refused, died again, or was not answered in time; its line says so.
    Exit code 2: asked wrongly, or something cannot be used; what to do is on standard error.
"""
replay = _command(
    "replay",
    """Have SERVICE try dead letters again, when their cause is mended.

    \b
    saga dead replay payment --saga order-17 --who ada --why "the bank is back"

    A handler goes on where it was: steps and updates that have answered are not made again, and those that are have
    the keys they had. What waits behind it in its saga follows, in order. What dies again is another dead letter.

    A message that was older than the service's memory blocks nothing, and nothing of it is kept. With --older it is
    handled as if it came now, as the first of a new saga if nothing is known: look first whether it was handled then.
    Of what says something else than what was handled the first counts: it is never handled.

    \b
    saga dead replay payment --all --dry-run --code services.payment --who ada --why "is it mended?"

    With --dry-run and --code nothing is sent: the code of today runs here, on a copy of the saga and of the documents
    that it asks for. What is recorded is answered from the record; at the first call that is not, it ends, and says
    which call it would make. It tells the transitions, the state before and after, and the events that would follow.
    Code of a handler that goes outside without a step does so here, too.
"""
    + CODES,
)
discard = _command(
    "discard",
    """Have SERVICE never handle dead letters, and go on with what waits behind them.

    \b
    saga dead discard audit --saga order-17 --who ada --why "a test order"

    What the run had begun stands, and is told as an escalation, call by call, to be put right by hand. Refused, because
    others count on it: a compensation, a handler that an outcome sets off, and any at the service that decides how
    sagas end, unless a deadline is open there that ends this one.
"""
    + CODES,
)
