"""Scenarios in which an operator resolves a dead letter, by recording the result of a call that the external system
made."""

import re
from collections.abc import Iterator

from saga.progress.document import SagaProgress, StepRecord, Transition
from verification.building_blocks import ORD, N, X, note, of, reserve, step_look, two_steps
from verification.handlers import Reacts
from verification.operator_scenarios import command
from verification.scenario import Scenario

taken_back = Reacts(
    name="two", to=(("O",),), does=("step", "step"), emits=("R",), undo=("step", "step"), takes_back=True
)
looks_between = Reacts(
    name="two",
    to=(("O",),),
    does=("step", "look", "step"),
    emits=("R",),
    undo=("step", "nothing", "step"),
    takes_back=True,
)
_EFFECT = re.compile(r'"((?:un)?do:[^"]*)"')
"""Pattern that finds the effect of a step, or of undoing it, in the arguments that are recorded of the step."""


def answers() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios in which an operator records the result of a call, which the run then does not repeat."""
    resolution = command("resolve", "reserve", ORD, answers=1)
    for name, crash, move, lost in (("crash", 1, 0, 0), ("rebalance", 0, 1, 0), ("lost answers", 0, 0, 1)):
        yield Scenario(
            name=f"resolve: {name}",
            service=of(reserve, note, attempts_max=1),
            a=(ORD, N),
            b=(resolution,),
            fail=1,
            crash=crash,
            move=move,
            lost=lost,
            may_die=True,
            at_the_end=answers_stay,
        )
    yield Scenario(
        name="resolve: the first of two steps, while a zombie has its answer",
        service=of(two_steps, note, attempts_max=1),
        a=(ORD,),
        b=(N, command("resolve", "two", ORD, answers=1)),
        fail=1,
        move=1,
        may_die=True,
        at_the_end=answers_stay,
    )
    yield Scenario(
        name="resolve: the second of two steps",
        service=of(two_steps, note, attempts_max=1),
        a=(ORD, N),
        b=(command("resolve", "two", ORD, answers=2),),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=answers_stay,
    )
    for name, a, b in (("behind", (ORD, X), (resolution,)), ("beside", (ORD, resolution), (X,))):
        yield Scenario(
            name=f"resolve: the outcome {name} it",
            service=of(reserve, attempts_max=1),
            a=a,
            b=b,
            fail=1,
            crash=1,
            may_die=True,
            at_the_end=answers_stay,
        )
    yield Scenario(
        name="resolve and replay: two people",
        service=of(two_steps, note, attempts_max=1),
        a=(ORD, N, command("replay", "two", ORD)),
        b=(command("resolve", "two", ORD, answers=1, who="bob"),),
        fail=1,
        crash=1,
        owner=(0, 1),
        may_die=True,
        at_the_end=only_the_open_call_is_answered,
    )
    yield Scenario(
        name="resolve: it fails behind the answer, and is answered again",
        service=of(two_steps, attempts_max=1),
        a=(ORD,),
        b=(command("resolve", "two", ORD, answers=1), command("resolve", "two", ORD, answers=2, replays=1)),
        fail=2,
        crash=1,
        may_die=True,
        at_the_end=answers_stay,
    )
    yield Scenario(
        name="resolve: of what failed behind its last step",
        service=of(step_look, note, attempts_max=1),
        a=(ORD, N),
        b=(resolution,),
        fail=1,
        move=1,
        may_die=True,
        at_the_end=answers_stay,
    )

    yield Scenario(
        name="resolve: a step that nobody asks for",
        service=of(two_steps, note, attempts_max=1),
        a=(ORD, N, command("replay", "two", ORD)),
        b=(command("resolve", "two", ORD, answers=1, step="call_outsied", who="bob"),),
        fail=1,
        crash=1,
        owner=(0, 1),
        may_die=True,
        at_the_end=only_the_open_call_is_answered,
    )


def answers_before_aborts() -> Iterator[Scenario]:
    """Yield scenarios of runs that never finish, and are aborted after an operator has recorded the result of a
    call."""
    yield Scenario(
        name="resolve: a step that an abort undoes",
        service=of(taken_back, attempts_max=1),
        a=(ORD, X),
        b=(command("resolve", "two", ORD, answers=1),),
        fail=2,
        crash=1,
        may_die=True,
        at_the_end=nothing_undone_is_reported,
    )
    yield Scenario(
        name="resolve: a step that an abort undoes, after another failure",
        service=of(looks_between, attempts_max=1),
        a=(ORD, X),
        b=(command("resolve", "two", ORD, answers=1), command("replay", "two", ORD, replays=1)),
        fail=3,
        may_die=True,
        at_the_end=nothing_undone_is_reported,
    )


def only_the_open_call_is_answered(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that an operator has recorded a result only for the step that was open. Results that are recorded stay, and
    a result for a later step would leave the open call to be repeated."""
    step, recorded = "call_outside", tuple[StepRecord, ...]()
    for t in entries:
        if t.outcome == "dead":
            recorded = t.calls
        for call in t.calls if t.outcome == "resolved" else ():
            if (call.name, call.number) != (step, len(recorded) + 1):
                return f"ANSWERED {call.name} {call.number}, AND {len(recorded)} WERE RECORDED"
    return answers_stay(p, entries)


def nothing_undone_is_reported(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that an abort does not report a step that it has undone as one whose effect remains."""
    for t in entries:
        undone = {name for call in t.calls for name in _EFFECT.findall(call.arguments) if t.outcome == "compensated"}
        remains = {name for letter in t.letters for call in letter.calls for name in _EFFECT.findall(call)}
        if wrong := sorted(name for name in remains if name.replace("do:", "undo:", 1) in undone):
            return f"UNDONE AND REPORTED {wrong}"
    return answers_stay(p, entries)


def answers_stay(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that a run for which an operator recorded a result ends with that result, and without another call in its
    place."""
    given = [(t.handler, call) for t in entries if t.outcome == "resolved" for call in t.calls]
    ended = [t for t in entries if t.outcome in ("handled", "compensated")]
    lost = [t.handler for t in ended for handler, call in given if t.handler == handler and call not in t.calls]
    return f"ANSWER NOT TAKEN {lost}" if lost else None
