"""`saga release`: a person wants sagas tried at once, and not at the time of their next attempt."""

import asyncio

import click

from saga.cli.dead_commands import (
    LIMIT,
    json_option,
    tell_missing,
    tell_state,
    who_option,
    why_option,
    within_option,
)
from saga.cli.list import LIMIT_MAX
from saga.cli.options import age_option, before_of, broker_option, check_said, read_stores_option
from saga.cli.printing import tell, tell_trouble
from saga.configuration.settings import Settings
from saga.ops import operator_commands
from saga.ops.dead_letters import ALL, Which
from saga.ops.operator_commands import OUTCOMES, CommandRequest, describe_answer
from saga.ops.parked_runs import list_parked_runs
from saga.ops.saga_list import Choice
from saga.support.clock import Clock, SystemClock


@click.command(
    help="""Have SERVICE try parked sagas at once, and not wait for their next attempt.

    \b
    saga release payment --handler reserve --who ada --why "the bank is back"
    saga release payment --saga order-17 --dry-run --who ada --why "who waits?"

    A run that failed waits, up to an hour, and its saga behind it. Once the cause is mended, say so here: the run goes
    on where it was, with what is recorded, under the keys it had, and what is queued behind it follows. It is an
    attempt as any other: one that fails is counted, and parked again. What waits by itself, a deadline before its time
    or a handler that returned Later, is not hurried; nor is what a person has paused, or an open breaker holds back.

    \b
    Exit code 0: done, or told.
    Exit code 1: none is meant, or one was refused, failed again, or was not answered in time; its line says so.
    Exit code 2: asked wrongly, or something cannot be used; what to do is on standard error.
"""
)
@click.argument("service")
@click.option("--saga", "sagas", multiple=True, metavar="ID", help="Of this saga. May be given several times.")
@click.option("--handler", help="Of this handler or compensation.")
@click.option("--type", "type_", metavar="EVENT", help="Of this event.")
@click.option("--reason", metavar="TEXT", help="With this in the reason of the last failure.")
@click.option("--before", metavar="TIME", help="Tried last before this time, RFC 3339.")
@age_option
@click.option("--all", "all_", is_flag=True, help="All that there are; asked for if nothing else is chosen.")
@who_option
@why_option
@click.option("--dry-run", is_flag=True, help="Only tell which runs are meant.")
@within_option
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=LIMIT, show_default=True, help="Sagas, at most.")
@read_stores_option
@broker_option
@json_option
def release(  # an argument for each option of the command
    service: str,
    sagas: tuple[str, ...],
    handler: str | None,
    type_: str | None,
    reason: str | None,
    before: str | None,
    age: str | None,
    all_: bool,
    who: str,
    why: str,
    dry_run: bool,
    within_s: float,
    limit: int,
    addresses: tuple[str, ...],
    broker: str | None,
    as_json: bool,
) -> None:
    """Send the commands and print what becomes of each."""
    check_said(who, why)
    clock = SystemClock()
    meant = Which(sagas=sagas, handler=handler, type=type_, reason=reason, before=before_of(before, age, clock))
    if meant == ALL and not all_:
        raise click.UsageError("say which: --saga, --handler, --type, --reason, --before, --age, or --all")
    choice = Choice(addresses=addresses, sagas=sagas, services=(service,), limit=limit, only_open=True)
    settings = Settings.from_environment(broker=broker)
    wish = CommandRequest(wanted="release", who=who, why=why)
    if not asyncio.run(_done(choice, meant, wish, settings, clock, dry_run, within_s, as_json)):
        raise click.exceptions.Exit(1)


async def _done(  # what the command line says
    choice: Choice,
    meant: Which,
    wish: CommandRequest,
    settings: Settings,
    clock: Clock,
    dry_run: bool,
    within_s: float,
    as_json: bool,
) -> bool:
    """True if each was done, and did not fail again."""
    runs = [run async for run in list_parked_runs(choice, meant, settings, clock, tell_trouble)]
    unmeant = tell_missing(meant.sagas, runs, "nothing that is parked")
    if not runs:
        tell("nothing is parked that is meant: `saga list --open` shows what waits for an attempt", err=True)
        return False
    if dry_run:
        for run in runs:
            tell_state(run, "would be released", run.reason, as_json)
        return not unmeant
    sent = await operator_commands.send_commands(runs, wish, settings, clock)
    whole = not unmeant
    async for answer in operator_commands.wait_for_answers(sent, choice.addresses, clock, within_s):
        whole = whole and answer.outcome == OUTCOMES[wish.wanted] and answer.after not in ("dead", "retrying")
        tell_state(answer.sent.dead_letter, describe_answer(answer), answer.reason, as_json)
    return whole
