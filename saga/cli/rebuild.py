"""`saga sagas rebuild`: make progresses that a service has lost anew from the topics."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict

import click

from saga.cli.options import broker_option, stores_option
from saga.cli.printing import tell, tell_json, tell_trouble
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.ops import rebuild as rebuilding
from saga.ops.rebuild import RebuiltSaga
from saga.support.clock import SystemClock
from saga.support.printable import counted


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
@click.option("--saga", "saga", metavar="ID", help="This saga alone.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be made.")
@click.option("--apply", is_flag=True, help="Make it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line for each saga, instead of text.")
def rebuild(  # a parameter for each option
    modules: tuple[str, ...],
    broker: str | None,
    store: str | None,
    saga: str | None,
    dry_run: bool,
    apply: bool,
    as_json: bool,
) -> None:
    """Rebuild lost progress documents from the topics.

    For sagas of which the service has handled messages and its store has no progress: after a store was restored from
    an old copy, or documents were removed. MODULES declare the services, as in `saga sagas rebuild services.payment
    --dry-run`, then with --apply. A progress that is there is never touched.

    Nothing outside is called. A run of a handler that has said something is recorded with what the log has of it; one
    that has said nothing, and asks for nothing outside, is made again here; any other is left to the service, which
    makes it under the same keys as before. A saga of which the log does not say what it was is refused, with the
    reason. What steps answered is not in the log, and not in the progress that is made.

    \b
    Exit code 0: all were made, or would be.
    Exit code 1: one could not be; its line says why, the others are made. Or nothing is known of the saga of --saga.
    Exit code 2: asked wrongly, or something cannot be opened; what to do is on standard error.
    """
    if dry_run == apply:
        raise click.UsageError("say --dry-run to see what would be made, or --apply to make it")
    settings = Settings.from_environment(broker=broker, store=store)
    whole = asyncio.run(_rebuilt(wiring.load_services(modules), settings, saga, apply, as_json))
    sys.exit(0 if whole else 1)


async def _rebuilt(
    services: Sequence[Declared], settings: Settings, saga: str | None, apply: bool, as_json: bool
) -> bool:
    """Print a line for each saga; true if none has a problem."""
    made, problems, clock = 0, 0, SystemClock()
    async for one in rebuilding.rebuild(services, settings, clock, saga=saga, apply=apply):
        problems += one.problem is not None
        made += one.problem is None
        if as_json:
            tell_json(asdict(one))
        else:
            tell(_line(one))
    if not as_json:
        tell(f"{counted(made, 'saga')} {'made' if apply else 'to be made'} anew, {problems} cannot be")
    if saga is not None and not made + problems and not await rebuilding.is_known(saga, services, settings, clock):
        names = ", ".join(service.name for service in services)
        tell_trouble(
            f"nothing is known of saga {saga}: {names} has no progress of it, and the topics hold no message of it "
            "that was handled and is to be remembered: see its id"
        )
        return False
    return problems == 0


def _line(one: RebuiltSaga) -> str:
    if one.problem is not None:
        return f"{one.service}  {one.saga}  cannot be made: {one.problem}"
    words = [", ".join(f"{handler or 'a deadline'} {outcome}" for handler, outcome in one.did)]
    if one.left:
        words.append(f"run again by the service: {', '.join(one.left)}")
    if one.unsaid:
        words.append(f"published now: {', '.join(one.unsaid)}")
    return f"{one.service}  {one.saga}  {'; '.join(words)}"
