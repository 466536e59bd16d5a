"""`saga check`: prove a choreography from the manifests of its services, or show events that break it."""

from pathlib import Path

import click

from saga.choreography.check.accepted import FILE, accept, read_accepted, refuse_old_formats
from saga.choreography.check.reports import format_verdict, verdict_to_json, verdicts_to_sarif
from saga.choreography.check.verdicts import (
    LIMITS,
    CheckLimits,
    check_deployment,
    check_manifests,
)
from saga.cli.options import find_docs, pack_options
from saga.cli.printing import print_json, print_lines
from saga.cli.sources import ManifestSources, load_manifests
from saga.support.documentation import WHERE_TO_FIND


@click.command()
@click.argument("sources", nargs=-1, metavar="[MANIFEST|MODULE]...")
@click.option(
    "--during",
    nargs=2,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="OLD NEW",
    help="Check a rolling deployment: folders of the manifests before and after it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document on one line.")
@click.option("--sarif", "as_sarif", is_flag=True, help="Print the findings as SARIF 2.1.0, for code hosts.")
@click.option(
    "--accepted",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"File of accepted findings. Default: {FILE} in the folder of the manifests.",
)
@pack_options(
    "limits",
    CheckLimits,
    click.option(
        "--states", "states_max", default=LIMITS.states_max, show_default=True, help="Most states that a search visits."
    ),
    click.option("--walks", default=LIMITS.walks, show_default=True, help="Random runs, where there are more states."),
)
def check(
    sources: tuple[str, ...],
    during: tuple[Path, Path] | None,
    as_json: bool,
    as_sarif: bool,
    accepted: Path | None,
    limits: CheckLimits,
) -> None:
    """Prove a choreography before it runs, or show what breaks it.

    The command proves from the manifests that every saga ends in exactly one outcome, that success can be reached, that
    a failure leaves nothing done, that nothing irreversible happens too early, that nothing waits for ever, and that
    every event has a producer and a consumer. For choreographies in the usual style, rules prove this at once. Where a
    rule does not hold, a search looks for a sequence of events that breaks the property, and prints the shortest one
    that it finds.

    \b
    saga check
        the services whose manifests are in manifests/
    saga check services.order services.payment
        services as they are in the code
    saga check --during released/ manifests/
        old and new processes side by side, in any order

    \b
    Exit code 0: every property is proved, or its findings are accepted; calls outside saga.step are only noted.
    Exit code 1: something was found or is not decided.
    Exit code 2: wrong usage: no manifests, or an unusable manifest, module or file.
    """
    if as_json and as_sarif:
        raise click.UsageError("--json and --sarif are two formats: give one of them")
    if during and sources:
        raise click.UsageError("--during names the folders of all manifests: leave out the others")
    if during:
        old, new = (refuse_old_formats(load_manifests((), folder).manifests) for folder in during)
        verdicts = check_deployment(old.values(), new.values(), limits)
        loaded = ManifestSources(new, {}, during[1])
    else:
        loaded = load_manifests(sources, None)
        verdicts = check_manifests(refuse_old_formats(loaded.manifests).values(), limits)
    path = accepted or (None if loaded.folder is None else loaded.folder / FILE)
    entries = () if path is None else read_accepted(path)
    result = accept(verdicts, entries)
    if as_json:
        print_json([verdict_to_json(each) for each in result.verdicts])
    elif as_sarif:
        print_json(verdicts_to_sarif(result.verdicts, loaded.files, find_docs()))
    else:
        docs = find_docs()
        folder = None if during or loaded.folder is None else loaded.folder.as_posix()
        for number, verdict in enumerate(result.verdicts):
            print_lines(*([""] if number else []), *format_verdict(verdict, folder, docs))
        if not docs and any(verdict.findings for verdict in result.verdicts):
            print_lines(WHERE_TO_FIND, err=True)
        for finding, entry in result.used:
            print_lines(f"accepted: {finding.code} ({finding.subject}): {entry.reason}")
        for entry in result.unused:
            print_lines(f"no longer found: {entry.code} ({entry.subject}): remove it from {path}")
    if not result.is_proved:
        raise SystemExit(1)
