"""`saga list`: the sagas that services know, from their stores, and all that needs a person, from the log as well."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict

import click

from saga.cli.options import broker_option, read_stores_option
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.configuration.settings import Settings
from saga.ops.attention import AttentionItem, find_attention
from saga.ops.dead_letters import ALL, Which
from saga.ops.saga_list import OPEN, Choice, ListedSaga, list_sagas
from saga.support.clock import SystemClock

LIMIT = 50
LIMIT_MAX = 100_000
HEADING, WIDTHS = ("SAGA", "OUTCOME", "STARTED", "CHANGED", "OPEN", "SERVICES"), (24, 16, 24, 24, 20)
DEAD_HEADING = ("TIME", "SERVICE", "WHAT", "SAGA", "MESSAGE", "HANDLER", "CLASS", "NOW", "WHY")
DEAD_WIDTHS = (24, 14, 12, 24, 20, 16, 8, 14)
"""Least widths of the columns: rows are printed as they are found, before the others are known."""


@click.command("list")
@read_stores_option
@broker_option
@click.option("--open", "only_open", is_flag=True, help="Only sagas to which something is still to happen.")
@click.option("--dead", "only_dead", is_flag=True, help="What needs a person: dead letters, escalations, and the like.")
@click.option("--prefix", default="", metavar="TEXT", help="Only sagas whose id begins so.")
@click.option("--service", "services", multiple=True, help="Only what this service knows. May be given several times.")
@click.option("--principal", metavar="TEXT", help="Only sagas that this one began, as in user:4711.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=LIMIT, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def list_command(  # an argument for each option of the command
    addresses: tuple[str, ...],
    broker: str | None,
    only_open: bool,
    only_dead: bool,
    prefix: str,
    services: tuple[str, ...],
    principal: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """List the sagas that the services know, newest first: by when a service first heard of them.

    For each saga: the event with which it ended, if it has; when it started and last changed; what is still open over
    all services; and its state in each service that knows it, in a word:

    \b
    handled, ignored, waiting, queued, compensated  what became of the last message
    later         a handler goes on another time
    begun         a handler is at it
    retrying      a run has failed, and waits for its next attempt
    quarantined   a dead letter blocks it
    damaged       what the service keeps of it cannot be read

    In OPEN, `parked` are runs that wait for their next attempt, `deadlines` what runs at its time, `later` what goes
    on later; `queue` is what waits behind what is parked, and behind dead letters. --json says of each handler how
    often it failed, why, since when, and when it is tried again. `unstarted` are messages, failures of the saga among
    them, that wait for one which tells when the saga began: if its service has forgotten the saga, they wait for ever.

    A part of a fan-in is open until its handler can never run: it is closed, has run, or emits outcomes and the saga
    has ended there. Nor is it open in a saga that has an outcome, or failed as some service knows, has nothing else
    open anywhere, and of which no service has written anything for an hour.

    With --dead: all that the services have said on their topics <service>.dead, and what blocks a saga in their
    stores, each with the reason: dead letters, escalations (a compensation that fails, or what it cannot undo),
    messages that nobody could read or that came too late, and how each stands. It reads these topics from their
    beginning.

    A list costs what it prints, where a store knows in which order its documents came: SQLite does. Of Couchbase, which
    lists keys only, the first 20000 documents of a service are looked at: --prefix chooses others. --open, --dead
    and --principal look at all.

    \b
    Exit code 0: listed, even if there is none.
    Exit code 2: no store, or one that cannot be read.
    """
    if principal is not None and only_dead:
        raise click.UsageError("--principal is about sagas, --dead about what needs a person: give one of them")
    if only_open and only_dead:
        raise click.UsageError("--open lists sagas, --dead what needs a person: give one of them")
    choice = Choice(
        addresses=addresses,
        prefix=prefix,
        services=services,
        limit=limit,
        only_open=only_open,
        only_dead=only_dead,
        principal=principal,
    )
    if only_dead:
        asyncio.run(tell_dead(choice, Settings.from_environment(broker=broker), as_json))
    else:
        asyncio.run(_tell(choice, Settings.from_environment(broker=broker) if broker else None, as_json))


async def _tell(choice: Choice, settings: Settings | None, as_json: bool) -> None:
    found, more = list[ListedSaga](), False
    async for each in list_sagas(choice, SystemClock(), tell_trouble, settings):
        if each is None:
            more = True
            break
        if not as_json:
            tell(*([_row(HEADING, WIDTHS)] if not found else []), _row(_cells(each), WIDTHS))
        found.append(each)
    if as_json:
        tell_json({"sagas": [_as_json(each) for each in found], "more": more})
    elif not found:
        tell("no sagas")
    if more and not as_json:
        tell("and more: --limit shows them")


async def tell_dead(
    choice: Choice, settings: Settings, as_json: bool, which: Which = ALL, *, with_ended: bool = True
) -> bool:
    """Print what needs a person; true if something does now. `with_ended`: with what has come to its end."""
    found = await find_attention(choice, settings, SystemClock(), tell_trouble, which, with_ended=with_ended)
    if as_json:
        letters = list(map(letter_in_json, found.items))
        tell_json({"letters": letters, "sagas": list(map(_as_json, found.sagas)), "more": found.more})
        return any(each.is_open for each in found.items)
    rows = [_row(_dead_cells(each), DEAD_WIDTHS) for each in found.items]
    tell(*([_row(DEAD_HEADING, DEAD_WIDTHS), *rows] if rows else ["nothing needs a person"]))
    if found.more:
        tell("and more: --limit shows them")
    return any(each.is_open for each in found.items)


def letter_in_json(each: AttentionItem) -> dict[str, object]:
    """A letter for programs."""
    said = asdict(each.letter)
    blame = said.pop("blame")
    return {**said, "class": blame, "now": each.state}


def _cells(each: ListedSaga) -> Sequence[str]:
    still_open = " ".join(f"{sort}:{count}" for sort, count in each.open.items())
    states = [f"{s.service}:{s.state}" for s in each.statuses] + [f"{d.source.service}:damaged" for d in each.damaged]
    waits = [f"({r.error})" for s in each.statuses for r in s.retries if r.error and not r.attempts]  # none has failed
    cells = each.saga, each.outcome, each.started, each.changed, still_open, " ".join((*sorted(states), *waits))
    return [cell or "-" for cell in cells]


def _dead_cells(each: AttentionItem) -> Sequence[str]:
    letter = each.letter
    message = letter.type or letter.whole
    about = letter.time, letter.service, letter.what, letter.saga, message, letter.handler, letter.blame
    return [*(cell or "-" for cell in about), each.state, letter.reason]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join([*(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=False)), cells[-1]])


def _as_json(each: ListedSaga) -> dict[str, object]:
    return {
        "saga": each.saga,
        "outcome": each.outcome,
        "started": each.started,
        "principals": each.principals,
        "changed": each.changed,
        "open": each.open,
        "left": each.left,
        "services": {
            s.service: {
                "state": s.state,
                "version": s.version,
                "outcome": s.outcome,
                "changed": s.changed,
                "left": s.left,
                **{sort: getattr(s, sort) for sort in OPEN},
                "retries": list(map(asdict, s.retries)),
            }
            for s in each.statuses
        }
        | {d.source.service: {"state": "damaged", "key": d.key, "what": d.damage} for d in each.damaged},
    }
