"""Check choreographies: give a verdict on each property, from a rule if one proves it, otherwise from a search."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from saga.choreography.check import rules, search
from saga.choreography.check.model import (
    ChoreographyModel,
    begin,
    build_choreography,
    group_by_kind,
    merge_releases,
)
from saga.choreography.check.search import EventTrace, Exploration, PropertyViolation
from saga.choreography.manifest import Manifest
from saga.support.printable import count_noun

Status: TypeAlias = Literal["proved", "accepted", "noted", "found", "not decided"]

PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "every saga ends in exactly one outcome": ("two-outcomes", "no-outcome", "no-start"),
    "success can be reached": ("no-success",),
    "a failure leaves nothing done that can be undone": ("not-undone", "no-compensation"),
    "nothing irreversible happens before success is certain": ("irreversible-early",),
    "nothing waits for ever": ("waits-for-ever",),
    "every event has a producer and a consumer": ("no-producer", "no-consumer", "contradiction"),
    "every handler can run": ("never-runs",),
    "there is no endless loop": ("endless-loop",),
    "one service decides": ("two-deciders",),
    "services react to outcomes, not to failures of neighbours": ("neighbours-failure",),
}
"""The properties that are checked, each with the codes of the findings that violate it."""
NOTED: Mapping[str, tuple[str, ...]] = {"handlers call resources through saga.step only": ("direct-call",)}
"""Properties that a team may violate on purpose. A violation is reported, but does not fail the check."""

ADVICE: Mapping[str, str] = {
    "two-outcomes": "let one service emit all outcomes: the runtime lets it decide once",
    "no-outcome": "give the deciding service a deadline from the event that starts the saga to a failure outcome",
    "no-start": "mark the contract of the event with which a saga begins: produced_by external, starts true",
    "no-success": "find the event that is missing for the success outcome, or the alternatives that exclude each other",
    "not-undone": "let the compensation take every failure outcome: A | B",
    "no-compensation": "add a compensation, or declare the handler irreversible and let it wait for success",
    "irreversible-early": "let the handler wait for the success outcome",
    "waits-for-ever": "wait beside the outcome only for events that every such saga has",
    "no-producer": "add the manifest of the service that emits it, or mark its contract produced_by external",
    "no-consumer": "remove it, or mark its contract consumed_by external",
    "contradiction": "write the manifests again with the same contracts",
    "never-runs": "remove the handler, or repair what it waits for",
    "endless-loop": "leave out repeats= in one of them, or accept this finding if a condition ends the chain; let a "
    "handler that returns Later also return something without it",
    "two-deciders": "let the other service report a plain event, and the deciding service emit the outcome",
    "neighbours-failure": "replace the handler by a compensation on the failure outcome",
    "direct-call": "call it by `await saga.step(...)`, or accept a call that only reads",
}
"""What to do about each kind of finding."""


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """Limits of the searches for properties that no rule proves."""

    states_max: int = 30_000
    """Maximum number of states of an exploration. A choreography with more states is checked by random runs."""
    walks: int = 200
    """Number of random runs of a choreography that has too many states or services to be explored."""
    services_max: int = 8
    """Maximum number of services of a choreography that is explored."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """A violation of a property."""

    kind: str
    """Kind of saga: the name of the key field."""
    code: str
    subject: str
    """What violates the property: the label of a reaction, a contract, or outcomes."""
    text: str
    trace: EventTrace | None = None
    """A sequence of steps that leads to the violation. It is `None` if no sequence is needed to show it, such as for a
    problem in the declarations."""

    @property
    def advice(self) -> str:
        return ADVICE[self.code]

    @property
    def key(self) -> tuple[str, str]:
        """Return the code and the subject, by which an accepted finding is recognised."""
        return (self.code, self.subject)


@dataclass(frozen=True, slots=True)
class PropertyVerdict:
    """The verdict on one property of one kind of saga."""

    kind: str
    property: str
    status: Status
    how: str
    """Rule that proves the property, what the search covered, the number of findings, or the reason why they are
    accepted."""
    findings: tuple[CheckFinding, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoreographyVerdict:
    """The verdicts on all properties of one kind of saga."""

    choreography: ChoreographyModel
    properties: tuple[PropertyVerdict, ...]

    @property
    def findings(self) -> tuple[CheckFinding, ...]:
        return tuple(each for verdict in self.properties for each in verdict.findings)

    @property
    def status(self) -> Status:
        """Return `found` if a property is violated, `not decided` if a property is neither proved nor violated, and
        otherwise `proved`. Accepted and noted findings do not count as violations."""
        statuses = {each.status for each in self.properties}
        return "found" if "found" in statuses else "not decided" if "not decided" in statuses else "proved"


SEARCHABLE = [*PROPERTIES][:5]
"""Properties whose proofs assume a single release of each service. For a deployment of releases that differ, a search
always decides them."""
LIMITS = CheckLimits()


def check_manifests(manifests: Iterable[Manifest], limits: CheckLimits = LIMITS) -> list[ChoreographyVerdict]:
    """Check the choreography of each kind of saga in these manifests. The verdicts are in the order of the kinds'
    names."""
    return [
        check_choreography(build_choreography(kind, services), limits, _find_defects(services))
        for kind, services in group_by_kind(manifests).items()
    ]


def check_deployment(
    old: Iterable[Manifest], new: Iterable[Manifest], limits: CheckLimits = LIMITS
) -> list[ChoreographyVerdict]:
    """Check each kind of saga during a deployment, while processes of both the old and the new release of each service
    take messages."""
    before = group_by_kind(old)
    verdicts = []
    for kind, services in group_by_kind(new).items():
        released = build_choreography(kind, before.get(kind, services))
        together = merge_releases(released, build_choreography(kind, services))
        verdicts.append(check_choreography(together, limits, _find_defects(services)))
    return verdicts


def _find_defects(manifests: Sequence[Manifest]) -> Iterable[rules.Defect]:
    """Yield the problems that only the manifests show. The model that is built from them no longer contains what is
    wrong."""
    yield from rules.find_contradictions(manifests)
    yield from rules.find_direct_calls(manifests)


def check_choreography(
    choreography: ChoreographyModel, limits: CheckLimits = LIMITS, of_manifests: Iterable[rules.Defect] = ()
) -> ChoreographyVerdict:
    """Check one choreography: report the problems that its declarations show, prove properties by the rules, and search
    for violations of the properties that are not proved."""
    defects = [*of_manifests, *rules.find_defects(choreography)]
    proofs = _prove(choreography)
    if choreography.releases:  # the rules assume one release of each service
        proofs.update(dict.fromkeys(SEARCHABLE))
    findings = [CheckFinding(choreography.kind, each.code, each.subject, each.text) for each in defects]
    covered = "the declarations"
    if unproved := [name for name, how in proofs.items() if how is None]:
        wanted = {code for name in unproved for code in PROPERTIES[name]}
        explored, joint = _search(choreography, limits), choreography.find_joint_reactions()
        if joint:
            explored = replace(explored, is_complete=False)
        traces = [search.shrink(choreography, each) for each in explored.traces if each.violation.code in wanted]
        findings += [_to_finding(choreography, each) for each in traces]
        findings += _find_impossible(choreography, explored, wanted)
        covered = f"{explored.states:,} states"
        if explored.is_complete:
            proofs.update(dict.fromkeys(unproved, f"all {covered} were visited"))
        elif not explored.states:
            covered = f"{limits.walks:,} random runs"
        elif joint:
            covered += f", which do not include everything: {joint}"
    judged = [_judge(choreography, name, proofs[name], findings, covered) for name in PROPERTIES]
    return ChoreographyVerdict(choreography, (*judged, *_note(choreography.kind, findings)))


def _prove(choreography: ChoreographyModel) -> dict[str, str | None]:
    """Return why each property holds. The reason is `None` if the property is not proved, so that a search is
    needed."""
    seen = rules.find_witnesses(choreography)
    successes = seen.outcomes & choreography.successes
    idle = [each.label for each in choreography.reactions if each.label not in seen.completed]
    proofs: list[str | None] = [
        rules.prove_one_outcome(choreography),
        f"a run ends in {min(successes)}" if successes else None,
        rules.prove_undone(choreography),
        rules.prove_irreversible_late(choreography),
        rules.prove_no_endless_wait(choreography),
        "the manifests name one of each",
        None if idle else f"each of {len(seen.completed)} reactions has run in a run of the model",
        "no cycle of handlers with repeats",
        "one service emits all outcomes" if choreography.deciders else "no service emits an outcome",
        "each handler with effects waits for events of the process or for outcomes",
    ]
    return dict(zip(PROPERTIES, proofs, strict=True))


def _search(choreography: ChoreographyModel, limits: CheckLimits) -> Exploration:
    """Explore the choreography. If it cannot be explored completely within the limits, make random runs instead; the
    number of states in the result is then 0."""
    if len(choreography.services) <= limits.services_max:
        explored = search.explore(choreography, limits.states_max)
        if explored.is_complete:
            return explored
    if not choreography.starts:
        return Exploration(0, True, (), frozenset(), frozenset())
    traces = tuple(search.find_by_walks(choreography, range(limits.walks)))
    return Exploration(0, False, traces, frozenset(), frozenset())


def _find_impossible(
    choreography: ChoreographyModel, explored: Exploration, wanted: set[str]
) -> Iterable[CheckFinding]:
    """Yield findings about outcomes and reactions that can never happen. They are certain, because either all states
    were visited, or no sequence of events leads to them."""
    costs = rules.estimate_costs(choreography)
    kind = choreography.kind
    if "no-success" in wanted and choreography.outcomes:
        possible = {name for name in choreography.successes if name in costs}
        if not possible or (explored.is_complete and not explored.outcomes & choreography.successes):
            names = " or ".join(sorted(choreography.successes)) or "no contract is a success outcome"
            yield CheckFinding(kind, "no-success", names, "no saga can end in success")
    for reaction in choreography.reactions if "never-runs" in wanted else ():
        missing = [names for names in reaction.parameters if not names & costs.keys()]
        excluded = rules.waits_for_exclusive_events(choreography, reaction)
        if missing or excluded or (explored.is_complete and reaction.label not in explored.completed):
            text = "no saga has all the events that it waits for"
            text += f": no way leads to {' or '.join(sorted(missing[0]))}" if missing else ""
            yield CheckFinding(kind, "never-runs", reaction.label, text)


def _to_finding(choreography: ChoreographyModel, trace: EventTrace) -> CheckFinding:
    code, subject, _ = trace.violation
    text = _describe(trace.violation)
    state = trace.steps[-1].state if trace.steps else begin(choreography, trace.start)
    if code == "no-outcome" and (waiting := search.describe_waiting(choreography, state)):
        text += f"; then {waiting} waits"
    return CheckFinding(choreography.kind, code, subject, text, trace)


def _describe(violation: PropertyViolation) -> str:
    subject = violation.subject
    texts: Mapping[str, Callable[[], str]] = {
        "two-outcomes": lambda: f"a saga may end in {subject}",
        "no-outcome": lambda: "a saga may stop without an outcome",
        "not-undone": lambda: f"{subject} has a compensation, but not on this failure outcome",
        "no-compensation": lambda: f"{subject} has effects and no compensation, and the saga may fail",
        "irreversible-early": lambda: f"{subject} is irreversible, and the saga may fail after it",
        "waits-for-ever": lambda: f"{subject} may wait for an event that never comes",
    }
    return texts[violation.code]()


def _judge(
    choreography: ChoreographyModel, name: str, proof: str | None, findings: Sequence[CheckFinding], covered: str
) -> PropertyVerdict:
    mine = tuple(each for each in findings if each.code in PROPERTIES[name])
    if mine:
        return PropertyVerdict(choreography.kind, name, "found", count_noun(len(mine), "finding"), mine)
    if proof is not None:
        return PropertyVerdict(choreography.kind, name, "proved", proof)
    return PropertyVerdict(choreography.kind, name, "not decided", f"nothing found in {covered}")


def _note(kind: str, findings: Sequence[CheckFinding]) -> Iterable[PropertyVerdict]:
    """Yield the properties of `NOTED` that are broken."""
    for name, codes in NOTED.items():
        if mine := tuple(each for each in findings if each.code in codes):
            yield PropertyVerdict(kind, name, "noted", count_noun(len(mine), "finding"), mine)
