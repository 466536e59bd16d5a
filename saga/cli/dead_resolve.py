"""`saga dead resolve`: a person says what the outside did, or that what an escalation tells of is put right."""

import asyncio
import json
from collections.abc import Sequence

import click

from saga.cli.dead_commands import (
    CODES,
    json_option,
    tell_state,
    who_option,
    why_option,
    within_option,
)
from saga.cli.list import LIMIT_MAX
from saga.cli.options import broker_option, check_said, read_stores_option
from saga.cli.printing import tell, tell_trouble
from saga.configuration.settings import Settings
from saga.messaging.operator_commands import Answered
from saga.ops import operator_commands
from saga.ops.attention import find_attention, find_blocking
from saga.ops.dead_letters import DeadLetterRecord, Which
from saga.ops.operator_commands import OUTCOMES, CommandRequest, describe_answer
from saga.ops.saga_list import Choice
from saga.support.clock import Clock, SystemClock


@click.command(
    help="""Say what a step of SAGA did, where the service cannot know it, and have it go on; or close escalations.

    \b
    saga dead resolve order-17 --step charge --answered '"ch-1"' --who ada --why "it is in the bank's list"
    saga dead resolve order-17 --step charge --raised Declined --args '["no money"]' --who ada --why "the bank says so"
    saga dead resolve order-17 --escalation dead-4c87... --who ada --why "refunded by hand"

    With --step: the handler of the dead letter that blocks SAGA is run again, and where it asks for this step it gets
    this answer, whatever its arguments, and no call is made; a step that it does not ask for any more is left out. That
    is the cure for "not deterministic", and where nobody knows whether a call has happened. Look at the outside first:
    what you say is taken for true, and is undone as such. Refused are steps and exceptions that the run does not wait
    for; the line says for which it does.

    With --escalation: nothing runs; it is on record that its calls are put right.
"""
    + CODES
)
@click.argument("saga")
@click.option("--service", help="In this service, if several have a dead letter of SAGA.")
@click.option("--handler", help="Of this handler or compensation, if there are several.")
@click.option("--step", metavar="FUNCTION", help="Name of the function that the handler hands to saga.step.")
@click.option(
    "--number", type=click.IntRange(1), default=1, show_default=True, help="Of its calls of this step, which."
)
@click.option("--answered", metavar="JSON", help="What it returned.")
@click.option("--raised", metavar="NAME", help="Name of the declared exception by which it answered.")
@click.option("--args", "arguments", metavar="JSON", help="The exception's arguments, as a list.")
@click.option(
    "--escalation", "escalations", multiple=True, metavar="ID", help="To be closed. May be given several times."
)
@who_option
@why_option
@within_option
@read_stores_option
@broker_option
@json_option
def resolve(  # an argument for each option of the command
    saga: str,
    service: str | None,
    handler: str | None,
    step: str | None,
    number: int,
    answered: str | None,
    raised: str | None,
    arguments: str | None,
    escalations: tuple[str, ...],
    who: str,
    why: str,
    within_s: float,
    addresses: tuple[str, ...],
    broker: str | None,
    as_json: bool,
) -> None:
    """Send the commands and print what becomes of each."""
    check_said(who, why)
    if (step is None) == (not escalations):
        raise click.UsageError("say --step with its answer, or --escalation")
    answer = None if step is None else _answer(step, number, answered, raised, arguments)
    services = (service,) if service is not None else ()
    choice = Choice(addresses=addresses, sagas=(saga,), services=services, limit=LIMIT_MAX, only_dead=True)
    which, settings, clock = (
        Which(sagas=(saga,), handler=handler),
        Settings.from_environment(broker=broker),
        SystemClock(),
    )
    wish = CommandRequest(wanted="resolve", who=who, why=why, answered=answer)
    if not asyncio.run(_done(choice, which, escalations, wish, settings, clock, within_s, as_json)):
        raise click.exceptions.Exit(1)


def _answer(step: str, number: int, answered: str | None, raised: str | None, arguments: str | None) -> Answered:
    """Answer as the command line says it."""
    if (answered is None) == (raised is None):
        raise click.UsageError("say what the step returned, --answered JSON, or what it raised, --raised NAME")
    if arguments is not None and raised is None:
        raise click.UsageError("--args are those of the exception: give --raised with them")
    name, text = ("--answered", answered) if raised is None else ("--args", arguments or "[]")
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        raise click.UsageError(f"{name} {text}: give JSON, with its quotes: '\"ch-1\"'") from None
    if raised is not None and not isinstance(value, list):
        raise click.UsageError(f"--args {text}: give a list, as '[\"no money\"]'")
    return Answered(step=step, number=number, value=json.dumps(value), raised=raised)


async def _done(  # what the command line says
    choice: Choice,
    which: Which,
    escalations: Sequence[str],
    wish: CommandRequest,
    settings: Settings,
    clock: Clock,
    within_s: float,
    as_json: bool,
) -> bool:
    """True if each was done."""
    if wish.answered is None:
        letters = await _escalations(choice, which, escalations, settings, clock)
    else:
        letters = [
            e.letter async for e in find_blocking(choice, settings, clock, tell_trouble) if which.holds(e.letter)
        ]
        if len(letters) > 1:
            for letter in letters:
                tell(f"{letter.service}  {letter.saga}  {letter.handler}  {letter.id}", err=True)
            raise click.UsageError("several dead letters block this saga: say --service, or --handler")
    unknown = [id_ for id_ in dict.fromkeys(escalations) if all(letter.id != id_ for letter in letters)]
    for id_ in unknown:
        tell_trouble(f"no escalation {id_} of saga {which.sagas[0]} can be closed: `saga dead show` has their ids")
    if not letters:
        tell(f"nothing of saga {which.sagas[0]} is meant: `saga dead show` tells what there is of it", err=True)
        return False
    sent = await operator_commands.send_commands(letters, wish, settings, clock)
    whole = not unknown
    async for answer in operator_commands.wait_for_answers(sent, choice.addresses, clock, within_s):
        whole = whole and answer.outcome == OUTCOMES[wish.wanted] and answer.after != "dead"
        tell_state(answer.sent.dead_letter, describe_answer(answer), answer.reason, as_json)
    return whole


async def _escalations(
    choice: Choice, which: Which, ids: Sequence[str], settings: Settings, clock: Clock
) -> list[DeadLetterRecord]:
    """Escalations of the saga with these ids. One of a compensation that fails is over when it has succeeded."""
    found = await find_attention(choice, settings, clock, tell_trouble, which)
    meant = [each for each in found.items if each.letter.id in ids and each.letter.what == "escalation"]
    for each in meant:
        if each.letter.undoes is not None:
            tell_trouble(f"{each.letter.id}: its compensation is tried without end, and ends it: nobody else can")
    return [each.letter for each in meant if each.letter.undoes is None]
