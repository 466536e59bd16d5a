"""`saga doctor`: check whether broker and stores are set up as services need them."""

import asyncio
import sys

import click

from saga.cli.options import broker_option, stores_option
from saga.cli.printing import print_json, print_lines
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.ops.doctor import Diagnosis, diagnose
from saga.ops.findings import group_findings
from saga.support.clock import SystemClock
from saga.support.printable import count_noun, printable_lines

NAMED_MAX = 3
"""Maximum number of names that are printed before the text of a finding. Further names are listed after the text."""


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def doctor(modules: tuple[str, ...], broker: str | None, store: str | None, as_json: bool) -> None:
    """Check that broker and stores are set up as the services need.

    It connects as the services would, with their settings (SAGA_BROKER, SAGA_STORE, ...). It compares topics with the
    contracts, and how long records are kept with how long services remember sagas. It checks partitions, replicas,
    rights, the brokers' settings, positions outside the log, and clocks. Each finding says what is at risk and what to
    do. Errors come first, then warnings; among each of them, rare findings come before frequent ones. A finding about
    several topics is printed once, and NAME in its remedy stands for each of them.

    It writes one document to each store and removes it. On Kafka it writes one record to the topic saga.doctor, which
    it creates and which keeps records for a day. Nothing else is created or changed.

    \b
    Exit code 0: no error; there may be warnings.
    Exit code 1: at least one error.
    Exit code 2: wrong usage, or a server cannot be reached or refuses access; the finding says what to do.
    """
    settings = Settings.from_environment(broker=broker, store=store)
    diagnosis = asyncio.run(diagnose(wiring.load_services(modules), settings, SystemClock()))
    if as_json:
        document = {
            "errors": diagnosis.count("error"),
            "warnings": diagnosis.count("warning"),
            "reached": diagnosis.reached,
            "findings": [finding._asdict() for finding in diagnosis.findings],
        }
        print_json(document)
    else:
        _print(diagnosis)
    sys.exit(1 if diagnosis.reached and diagnosis.count("error") else 0 if diagnosis.reached else 2)


def _print(diagnosis: Diagnosis) -> None:
    for names, (severity, _, what, risk, remedy) in group_findings(diagnosis.findings):
        first, others = names[:NAMED_MAX], ", ".join(names[NAMED_MAX:])
        more = f" and {len(names) - NAMED_MAX} more" if others else ""
        print_lines(*printable_lines(f"{severity:<7}  {', '.join(first)}{more}: {what}"))
        for word, text in (("at risk", risk), ("to do", remedy), ("also for", others)):
            if text:
                print_lines(*printable_lines(f"         {word}: {text}"))
    print_lines(", ".join(count_noun(diagnosis.count(severity), severity) for severity in ("error", "warning")))
