"""`saga sagas repair`: go on with sagas that have something to do and nothing that sets it off."""

import asyncio
import sys
from collections.abc import Sequence

import click

from saga.cli.options import broker_option, stores_option
from saga.cli.printing import tell, tell_json
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.ops import repair as repairing
from saga.ops.repair import RepairedSaga
from saga.support.clock import SystemClock
from saga.support.printable import counted
from saga.telemetry.logs import Log


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
@click.option("--saga", "saga", metavar="ID", help="This saga alone.")
@click.option("--dry-run", is_flag=True, help="Only tell which sagas it would go on with.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each saga, instead of text.")
def repair(
    modules: tuple[str, ...], broker: str | None, store: str | None, saga: str | None, dry_run: bool, as_json: bool
) -> None:
    """Resume sagas that have ready work but nothing that triggers it.

    What waits for a time (parked runs, compensations that fail, deadlines, runs that go on later) has a wake on a
    topic. If these topics were removed, or positions on them moved, nobody would come: this command sends the wake of
    each saga that waits again, and the service goes on with it. What has begun, or is ready, and was left for longer
    than a handler may take it goes on with itself, with the same keys.

    Topics that were deleted and created again, or a log that was lost, have lost what was published there: for each of
    its sagas the service published it, and records so. This command publishes it again, in the same order and with the
    same ids, so whoever has had it takes it for a repetition. It finds these topics by itself.

    After a release in which a handler takes an event that its own service emits: what earlier releases emitted is in
    the progress of each saga, and a saga hears of it with its next message. This command does it for all sagas at once,
    those that will get no message with them. MODULES declare the services, as in `saga sagas repair services.payment
    --dry-run`, then without.

    Call it when all processes run the new release. They may go on meanwhile: it works as one more of them. It may be
    stopped at any time, and called again: what is done stays done, and it goes on with the rest.

    \b
    Exit code 0: done, or told.
    Exit code 1: a saga could not be gone on with; its line says why, the others are done.
    Exit code 2: asked wrongly, or something cannot be opened; what to do is on standard error.
    """
    settings = Settings.from_environment(broker=broker, store=store)
    whole = asyncio.run(_repaired(wiring.load_services(modules), settings, saga, dry_run, as_json))
    sys.exit(0 if whole else 1)


async def _repaired(
    services: Sequence[Declared], settings: Settings, saga: str | None, dry_run: bool, as_json: bool
) -> bool:
    """Print a line for each saga as it is done; true if none has a problem."""
    count = problems = 0
    report = Log(sys.stderr, settings).report
    async for one in repairing.repair(services, settings, SystemClock(), report, saga=saga, dry_run=dry_run):
        count += 1
        problems += one.problem is not None
        if as_json:
            tell_json(_told(one))
        else:
            tell(_line(one, dry_run))
    if not as_json:
        done = "to go on with" if dry_run else f"gone on with, {counted(problems, 'problem')}"
        tell(f"{counted(count, 'saga')} {done}")
    return problems == 0


def _told(one: RepairedSaga) -> dict[str, object]:
    return {
        "service": one.service,
        "saga": one.saga,
        "again": one.again,
        "heard": one.work.heard,
        "begun": [intent.handler for intent in one.work.begun],
        "ready": one.work.ready,
        "wakes_at": one.work.wakes_at,
        "did": one.did,
        "problem": one.problem,
    }


def _line(one: RepairedSaga, dry_run: bool) -> str:
    return f"{one.service}  {one.saga}  {one.problem or _in_words(one, dry_run)}"


def _in_words(one: RepairedSaga, dry_run: bool) -> str:
    """Words for what was done with a saga, or would be."""
    work, words = one.work, []
    if one.again:
        words.append(f"{counted(one.again, 'record')} {'would be' if dry_run else 'are'} published again")
    if dry_run:
        words += [f"would hear of {', '.join(work.heard)}"] if work.heard else []
        left = [*(f"{each.handler}, which has begun" for each in work.begun), *([work.ready] if work.ready else [])]
        words += [f"would go on with {', '.join(left)}"] if left else []
        words += [f"would be woken at {work.wakes_at}"] if work.wakes_at else []
        return "; ".join(words)
    if one.did:
        words.append(", ".join(f"{handler} {outcome}" for handler, outcome, _ in one.did))
    elif not work.is_wake_alone and not one.again:
        words.append("nothing was ready")
    elif work.wakes_at:
        words.append(f"its wake is sent again, for {work.wakes_at}")
    return "; ".join(words)
