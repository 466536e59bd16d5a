"""Write verdicts as text, as a sequence diagram, as JSON, and as SARIF for code hosts. Pure functions."""

import re
from collections.abc import Iterable, Mapping, Sequence

from saga.choreography.check.model import ChoreographyModel, Move, ReactionRun
from saga.choreography.check.search import EventTrace
from saga.choreography.check.verdicts import ADVICE, NOTED, CheckFinding, ChoreographyVerdict
from saga.support.documentation import link_page
from saga.support.printable import count_noun

PAGE = "guides/check"
"""Page of the documentation that explains each code."""
OUTSIDE = "from outside"
"""Participant of a diagram that stands for clients and other systems. No service has a name with a space."""


def format_verdict(verdict: ChoreographyVerdict, manifests: str | None, docs: str = "") -> list[str]:
    """Return the verdict on one kind of saga as lines: each property, then each finding with its trace.

    Args:
        manifests: Folder of the manifests, for the test that replays a trace; `None` to leave the test out.
        docs: Address of the documentation, with `{page}`.
    """
    choreography = verdict.choreography
    services = count_noun(len(choreography.services), "service")
    events = count_noun(len(choreography.contracts), "event")
    lines = [f"sagas by {choreography.kind}: {services}, {events}: {verdict.status}"]
    width = max(len(each.status) for each in verdict.properties)
    for each in verdict.properties:
        lines += [f"  {each.status:{width}}  {each.property}", f"  {'':{width}}  {each.how}"]
    for number, finding in enumerate(verdict.findings, start=1):
        lines += ["", f"finding {number}: {finding.code} ({finding.subject}): {finding.text}"]
        if finding.trace is not None:
            lines += [f"  {line}" for line in format_trace(choreography, finding.trace)]
        lines += [f"  what to do: {finding.advice}; see {link_page(PAGE, finding.code, docs)}"]
        if finding.trace is not None:
            lines += ["  as a sequence diagram:", ""]
            lines += [f"    {line}" for line in format_sequence_diagram(choreography, finding.trace).splitlines()]
        if manifests is not None and finding.trace is not None:
            lines += ["", "  a test that fails until it is fixed:", ""]
            lines += [f"    {line}".rstrip() for line in format_test(finding, manifests)]
    return lines


# -------------------------------------------------------------------- traces


def format_trace(choreography: ChoreographyModel, trace: EventTrace) -> list[str]:
    """Return a trace as numbered lines, one for each event from outside and each run.

    An event that no later line mentions was not delivered in the trace, or had no effect.
    """
    texts = [f"{trace.start} comes from outside"]
    for step in trace.steps:
        if step.move.kind == "start":
            texts.append(f"{step.move.name} comes from outside")
        texts += [_describe_run(choreography, run) for run in step.runs]
    return [f"{number}. {text}" for number, text in enumerate(texts, start=1)]


def _describe_run(choreography: ChoreographyModel, run: ReactionRun) -> str:
    reaction = choreography.services[run.service].reactions[run.reaction]
    emits = f"emits {' and '.join(run.emitted)}" if run.emitted else "emits nothing"
    emits += ", and goes on later" if run.later else ""
    if reaction.kind == "deadline":
        return f"{run.label} is due, and {emits}"
    if reaction.kind == "compensation":
        return f"{run.label} undoes {run.service}.{reaction.undoes}, and {emits}"
    return f"{run.label} takes {' and '.join(run.taken) or 'its next turn'}, and {emits}"


def format_sequence_diagram(choreography: ChoreographyModel, trace: EventTrace) -> str:
    """Return a trace as a Mermaid sequence diagram. Participants have numbers, because a service may have the name of a
    Mermaid keyword, such as `end` or `loop`."""
    runs = trace.runs
    ids = {name: f"p{n}" for n, name in enumerate([OUTSIDE, *dict.fromkeys(run.service for run in runs)])}
    lines = ["sequenceDiagram", *(f"    participant {id_} as {name}" for name, id_ in ids.items())]
    producers: dict[str, str] = {trace.start: OUTSIDE}
    producers |= {step.move.name: OUTSIDE for step in trace.steps if step.move.kind == "start"}
    for run in runs:
        reaction, own = choreography.services[run.service].reactions[run.reaction], ids[run.service]
        arrow = "-->>" if reaction.kind == "compensation" else "->>"
        if reaction.kind == "deadline":
            lines.append(f"    Note over {own}: {run.reaction} is due")
        for event in run.taken if reaction.kind != "deadline" else ():
            source = ids[producers.get(event, OUTSIDE)]
            lines.append(f"    {source}{arrow}{own}: {event} ({run.reaction})")
        producers.update(dict.fromkeys(run.emitted, run.service))
        lines += [f"    Note over {own}: {event}" for event in run.emitted]
    return "\n".join(lines) + "\n"


# -------------------------------------------------------------------- tests


def format_test(finding: CheckFinding, manifests: str) -> list[str]:
    """Return a test that replays the trace of a finding on the real runtime, as lines of Python. The test fails until
    the choreography is corrected. `manifests`: the folder of the manifests."""
    trace = finding.trace
    if trace is None:
        return []
    name = "_".join(re.findall(r"[A-Za-z0-9]+", f"{finding.code} {finding.subject}")).lower()
    return [
        "from saga.testing import check_trace",
        "",
        "",
        f"def test_{name}() -> None:",
        f'    """What `saga check` found: {finding.text}."""',
        "    check_trace(",
        f"        {manifests!r},",
        f"        start={trace.start!r},",
        "        moves=[",
        *(f"            {text!r}," for text in format_moves(trace)),
        "        ],",
        f"        finding={finding.code!r},",
        f"        subject={finding.subject!r},",
        "    )",
    ]


def format_moves(trace: EventTrace) -> list[str]:
    """Return the moves of a trace as strings, each with the runs that it caused and their choices."""
    return [_format_move(step.move, step.runs) for step in trace.steps]


def _format_move(move: Move, runs: Sequence[ReactionRun]) -> str:
    where = f"{move.service}: " if move.service else ""
    texts = [f"{run.reaction} -> {' '.join(run.emitted) or '-'}{' @later' if run.later else ''}" for run in runs]
    number = f" {move.number}" if move.number else ""
    return f"{where}{move.kind} {move.name}{number}" + "".join(f"; {text}" for text in texts)


# -------------------------------------------------------------------- JSON and SARIF


def verdict_to_json(verdict: ChoreographyVerdict) -> dict[str, object]:
    """Return a verdict as JSON values."""
    choreography = verdict.choreography
    return {
        "kind": choreography.kind,
        "services": list(choreography.services),
        "events": list(choreography.contracts),
        "status": verdict.status,
        "properties": [
            {"property": each.property, "status": each.status, "how": each.how} for each in verdict.properties
        ],
        "findings": [_finding_to_json(choreography, each) for each in verdict.findings],
    }


def _finding_to_json(choreography: ChoreographyModel, finding: CheckFinding) -> dict[str, object]:
    trace = finding.trace
    return {
        "code": finding.code,
        "subject": finding.subject,
        "text": finding.text,
        "advice": finding.advice,
        "events": [] if trace is None else format_trace(choreography, trace),
        "diagram": None if trace is None else format_sequence_diagram(choreography, trace),
        "moves": [] if trace is None else format_moves(trace),
    }


def verdicts_to_sarif(
    verdicts: Iterable[ChoreographyVerdict], files: Mapping[str, str], docs: str = ""
) -> dict[str, object]:
    """Return the findings in the Static Analysis Results Interchange Format 2.1.0 (OASIS).

    Args:
        files: Path of each service's manifest, if it was read from a file.
        docs: Address of the documentation, with `{page}`.
    """
    results = [_to_sarif_result(each, finding, files) for each in verdicts for finding in each.findings]
    rules = [
        {
            "id": code,
            "shortDescription": {"text": code.replace("-", " ")},
            "help": {"text": f"{advice}: {link_page(PAGE, code, docs)}"},
            **({"helpUri": link_page(PAGE, code, docs)} if docs else {}),
        }
        for code, advice in ADVICE.items()
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": {"name": "saga check", "rules": rules}}, "results": results}],
    }


def _to_sarif_result(
    verdict: ChoreographyVerdict, finding: CheckFinding, files: Mapping[str, str]
) -> dict[str, object]:
    service = finding.subject.partition(".")[0]
    trace = finding.trace
    steps: Sequence[str] = () if trace is None else format_trace(verdict.choreography, trace)
    location: dict[str, object] = {"logicalLocations": [{"fullyQualifiedName": finding.subject}]}
    if service in files:
        location["physicalLocation"] = {"artifactLocation": {"uri": files[service]}}
    result: dict[str, object] = {
        "ruleId": finding.code,
        "level": "warning" if any(finding.code in codes for codes in NOTED.values()) else "error",
        "message": {"text": f"{finding.text}; {finding.advice}"},
        "locations": [location],
    }
    if steps:
        flow = [{"location": {"message": {"text": text}}} for text in steps]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    return result
