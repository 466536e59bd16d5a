"""`saga explain`: why a saga is not finished, and what would end the wait."""

import asyncio
import sys
from dataclasses import asdict

import click

from saga.cli.monitor import MonitorClient
from saga.cli.options import deployment_options
from saga.cli.printing import print_error, print_json, print_lines
from saga.configuration.settings import Settings
from saga.errors import SagaError
from saga.monitor.reports import list_reports
from saga.ops.explanation import SagaExplanation
from saga.ops.explanation import explain as explain_facts
from saga.ops.saga_facts import read_facts, read_overview
from saga.ops.saga_path import format_path
from saga.ops.saga_situation import NO_REPORTS, SagaReports
from saga.ops.selection import Deployment


@click.command()
@click.argument("saga_id")
@click.option("--monitor", metavar="HOST:PORT", help="Address of a monitor, instead of SAGA_MONITOR.")
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def explain(saga_id: str, monitor: str | None, deployment: Deployment, as_json: bool) -> None:
    """Explain why a saga is not finished, and what would end the wait.

    It prints three sentences. The first says what the saga waits for. The second says which service has to emit that,
    what holds it up, since when, and what the service did last. The third says what ends the wait, with the command to
    type. Below them is the path of the saga:

    \b
    +  an event that has happened
    -  an event whose handler was compensated
    !  the event that is missing: the sentences are about it
    .  an event that comes later

    It reads the progress of this saga in each service, the controls, the offsets of the services, and the manifests
    next to the contracts. `saga manifest --write` makes the manifests; without them only handlers that have begun are
    known. Services whose store is not read here are explained by what they reported to the monitor at SAGA_MONITOR or
    --monitor, if there is one. What could not be read is on standard error.

    \b
    Exit code 0: the saga is finished.
    Exit code 1: it is not, or no service knows it.
    Exit code 2: wrong usage, or contracts or manifests cannot be used; standard error says what to do.
    """
    settings = Settings.from_environment(broker=deployment.broker_settings.broker, monitor=monitor)
    reports = _ask_monitor(saga_id, settings.monitor)
    found = explain_facts(asyncio.run(read_facts(saga_id, deployment, read_overview(), reports)))
    if as_json:
        print_json(asdict(found))
    else:
        print_lines(*_format_explanation(found))
    for note in found.notes:
        print_error(note)
    sys.exit(0 if found.state == "finished" else 1)


def _ask_monitor(saga: str, address: str) -> SagaReports:
    """Return what the monitor at this address knows about the saga. Without an address, or if the monitor does not
    answer, return reports with nothing in them."""
    if not address:
        return NO_REPORTS
    try:
        return list_reports(MonitorClient(address).saga(saga))
    except (OSError, SagaError) as why:
        print_error(f"what the monitor at {address} knows is left out: {why}")
        return NO_REPORTS


def _format_explanation(found: SagaExplanation) -> list[str]:
    others = [f"  {each.service or 'outside'}: {each.what}" for each in found.obstacles[1:]]
    path = format_path(found.path)
    return [
        *found.sentences,
        *(["", *path] if path else []),
        *(["", "also unfinished:", *others] if others else []),
    ]
