"""`saga deploy`: check a release before it is deployed."""

import asyncio
from dataclasses import asdict

import click

from saga.cli.main import Commands, LazyGroup
from saga.cli.options import deployment_options
from saga.cli.printing import print_json, print_lines
from saga.configuration import wiring
from saga.ops.deployments import DeploymentReport, check_release
from saga.ops.selection import Deployment
from saga.support.printable import count_noun

SHOWN_MAX = 50
DEPLOY: Commands = {
    "check": ("saga.cli.deploy:check", "Print which open sagas a release would strand, and why."),
}


@click.group(cls=LazyGroup, commands=DEPLOY)
def deploy() -> None:
    """Compare a release with what is in flight before it is deployed.

    \b
    Exit code 0: the answer is yes.
    Exit code 1: the answer is no; the lines say why.
    Exit code 2: wrong usage, or something cannot be opened; standard error says what to do.
    """


@click.command()
@click.argument("modules", nargs=-1, required=True)
@deployment_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on one line.")
def check(modules: tuple[str, ...], deployment: Deployment, as_json: bool) -> None:
    """Print which open sagas a release would strand, and why.

    The command compares the services in MODULES, as they are in the code, with what is in flight: open runs and
    suspended runs, deadlines, queued and pending messages, dead letters, results that a compensation may have to undo,
    events that may not be published yet, states of newer versions, and records that are not handled yet. It reads the
    progress of each saga in the services' stores, and changes nothing. In contrast, `saga check --during` looks at the
    choreography, and `saga manifest --check` at the declarations of the last release.

    \b
    saga deploy check services.payment
        with the stores and the broker of the settings

    \b
    Exit code 0: nothing would be stranded.
    Exit code 1: something would be; its line says why.
    Exit code 2: wrong usage, or a store that cannot be read.
    """
    report = asyncio.run(check_release(wiring.load_services(modules), deployment))
    if as_json:
        print_json({"safe": report.is_safe, **asdict(report)})
    else:
        _print_report(report)
    if not report.is_safe:
        raise SystemExit(1)


def _print_report(report: DeploymentReport) -> None:
    for saga in report.sagas[:SHOWN_MAX]:
        print_lines(f"saga {saga.saga} in {saga.service}:", *(f"  {reason}" for reason in saga.reasons))
    if len(report.sagas) > SHOWN_MAX:
        print_lines(f"and {len(report.sagas) - SHOWN_MAX} more: --json shows all")
    for topic in report.topics:
        print_lines(f"topic {topic.topic} of {topic.service}: {topic.reason}")
    stranded = "nothing would be stranded"
    if not report.is_safe:
        counts = f"{count_noun(len(report.sagas), 'saga')} and {count_noun(len(report.topics), 'topic')}"
        stranded = f"{counts} would be stranded"
    print_lines(f"{count_noun(report.checked, 'progress document')} read: {stranded}")
