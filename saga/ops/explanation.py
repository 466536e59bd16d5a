"""Explain in three sentences why a saga is not finished: what it waits for, which service holds it up, and what would
end the wait. Pure functions.

`saga.ops.saga_facts` reads the facts, `saga.ops.obstacles` finds what holds the saga up, and `saga.ops.saga_path` draws
its events. `explain` combines them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from saga.ops.obstacles import Obstacle, find_obstacles, join_types
from saga.ops.saga_path import PathEvent, draw_path
from saga.ops.saga_situation import Result, SagaFacts, SagaSituation, list_undone
from saga.support.printable import count_noun

State: TypeAlias = Literal["finished", "unfinished", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaExplanation:
    """Explanation of why a saga is not finished, or the statement that it is."""

    saga: str
    state: State
    outcome: str | None
    result: Result
    ended: str | None
    """Time at which the outcome was emitted."""
    waits_for: str
    held_up_by: str
    ends_with: str
    obstacles: tuple[Obstacle, ...]
    """Everything that is unfinished. The sentences explain the first one."""
    path: tuple[PathEvent, ...]
    notes: tuple[str, ...]

    @property
    def sentences(self) -> tuple[str, str, str]:
        return self.waits_for, self.held_up_by, self.ends_with


def explain(facts: SagaFacts) -> SagaExplanation:
    """Explain why a saga is not finished, or say that it is."""
    situation = SagaSituation(facts)
    obstacles = find_obstacles(situation)
    ended = situation.outcome
    state: State
    if not (facts.histories or facts.reports.transitions or facts.unreadable):
        state, sentences = "unknown", _describe_unknown(situation)
    elif obstacles:
        state, sentences = "unfinished", _describe_obstacle(situation, obstacles)
    else:
        state, sentences = "finished", _describe_end(situation)
    return SagaExplanation(
        saga=facts.saga,
        state=state,
        outcome=None if ended is None else ended.type,
        result="" if ended is None else situation.result_of(ended.type),
        ended=None if ended is None else ended.time,
        waits_for=sentences[0],
        held_up_by=sentences[1],
        ends_with=sentences[2],
        obstacles=tuple(obstacles),
        path=tuple(draw_path(situation, obstacles)),
        notes=facts.notes,
    )


def _describe_obstacle(situation: SagaSituation, obstacles: Sequence[Obstacle]) -> tuple[str, str, str]:
    """Describe the first obstacle: what the saga waits for, what holds that up, and what ends the wait."""
    each, saga, ended = obstacles[0], situation.facts.saga, situation.outcome
    before = f"Saga {saga} ended with {ended.type} at {ended.time}, and still waits" if ended else f"Saga {saga} waits"
    run = f"{each.handler or 'a run'} in {each.service}" + (f" to handle {each.type}" if each.type else "")
    waits = f"{before} for {join_types(each.awaited)}." if each.awaited else f"{before} for {run}."
    since = f" (since {each.since})" if each.since else ""
    ends = each.ends + ("" if each.kind == "deadline" else _describe_deadline(each, obstacles))
    if not each.service:
        return waits, f"{each.what[:1].upper()}{each.what[1:]}{since}.", ends
    task = f"{each.service} has to emit it with {each.handler}" if each.handler and each.awaited else each.service
    return waits, f"{task}: {each.what}{since}; {situation.describe_last(each.service)}.", ends


def _describe_deadline(first: Obstacle, obstacles: Sequence[Obstacle]) -> str:
    """Describe the earliest of the other obstacles that is a deadline which emits an event; empty if there is none."""
    deadlines = [each for each in obstacles if each.kind == "deadline" and each.awaited and each is not first]
    if not deadlines:
        return ""
    next_ = min(deadlines, key=lambda each: each.until or "~")
    emits = join_types(next_.awaited)
    return f" Otherwise the deadline {next_.handler} of {next_.service} emits {emits} at {next_.until}."


def _describe_end(situation: SagaSituation) -> tuple[str, str, str]:
    """Describe a saga for which no service has anything left to do."""
    saga, ended = situation.facts.saga, situation.outcome
    services = sorted({run.service for run in situation.runs})
    nothing = f"No service has anything left to do for it: {', '.join(services)}."
    if ended is None:
        return (
            f"Saga {saga} waits for nothing: everything that its events trigger has run, and its outcome is not known.",
            nothing,
            "Nothing is to be done. If an outcome should exist, check that the stores of all services are read.",
        )
    result = situation.result_of(ended.type)
    undone = sorted({service for service, _ in list_undone(situation)})
    word = {"success": "success", "failure": "failure", "": "outcome not known as success or failure"}[result]
    compensated = (
        f" {' and '.join(undone)} compensated what {'it' if len(undone) == 1 else 'they'} did." if undone else ""
    )
    return (
        f"Saga {saga} is finished: it ended with {ended.type} ({word}), emitted by {ended.service} at {ended.time}.",
        nothing + compensated,
        "Nothing is to be done.",
    )


def _describe_unknown(situation: SagaSituation) -> tuple[str, str, str]:
    """Describe a saga that no service knows. Name the services that have not handled all records yet."""
    facts = situation.facts
    waiting = [
        f"{name} is {count_noun(behind, 'record')} behind" + ("" if each.members else " and no worker of it runs")
        for name, each in sorted(facts.offsets.items())
        if (behind := situation.count_behind(name))
    ]
    read = ", ".join(sorted(facts.services_read)) or "none"
    return (
        f"No service knows saga {facts.saga}.",
        f"Its first event may not be handled yet: {'; '.join(waiting)}." if waiting
        else f"The stores of these services were read, and none has it: {read}.",
        "Check the id: `saga sagas list` shows the known ones. A finished saga is forgotten after its retention.",
    )  # fmt: skip
