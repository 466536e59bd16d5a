"""Scenarios about dead letters that operators replay, at any time after they can see them."""

from collections.abc import Iterator

import msgspec

from saga.messages import Message
from saga.messaging.message_ids import identity
from saga.messaging.operator_commands import OPERATOR, OperatorCommand, StepAnswer, Wanted, type_of
from saga.progress import ids
from saga.progress.document import SagaProgress, Transition
from verification.building_blocks import (
    NEXT_N,
    ORD,
    N,
    Q,
    X,
    look_each_own,
    look_own,
    meet_step,
    memo,
    note,
    of,
    pay,
    place,
    reserve,
    reserve_own,
    step_look,
    two_steps,
)
from verification.deadline_scenarios import expire_by_step, place_by_step, remind, remind_early
from verification.handlers import SAGA, SERVICE, Reacts
from verification.scenario import AtTheEnd, Scenario, has_run
from verification.services import message, time_after

each = Reacts(name="each", to=(("N",),), does=("step",), emits=("n",), many=True)
slow_job = Reacts(name="job", to=(("O",),), turns=1, after=1, emits=("d",))
looks = Reacts(name="reserve", to=(("O",),), does=("read", "step"), emits=("R",))
RESERVED = msgspec.structs.replace(ORD, id=ids.event_id("P", SERVICE, SAGA, "reserve", ORD.id, 0), type="P")
"""Event that `reserve` emits because of the order."""
ORD_UNDONE_BADLY = message("x1", "X", bad=["undo_reserve"])


def command(  # everything that a command contains
    wanted: Wanted,
    handler: str,
    about: Message,
    *,
    replays: int = 0,
    who: str = "ada",
    answers: int = 0,
    step: str = "call_outside",
    names: str = "",
) -> OperatorCommand:
    """Make an operator command about the dead letter of a message that was replayed `replays` times before.

    `answers`: number of the step for which the operator records a result; `step` is its name. `names`: id that the
    command is about, if it is not a dead letter.
    """
    dead = names or ids.dead_letter_id(SERVICE, SAGA, handler, about.id, replays)
    type_ = type_of(wanted)
    return OperatorCommand(
        id=identity(OPERATOR, f"{wanted}-{who}-{replays}", type_, ""),
        type=type_,
        schema="",
        saga=SAGA,
        source=OPERATOR,
        time=time_after(0),
        value=b"",
        wanted=wanted,
        dead=dead,
        who=who,
        why="the cause is mended",
        answered=StepAnswer(step=step, number=answers, value='"ok"') if answers else None,
    )


def as_new(about: Message, handler: str = "-", who: str = "ada") -> OperatorCommand:
    """Make the command that a message is handled as if it were new, given after two ages. `handler`: handler of the
    dead letter; `-` if the whole saga is forgotten."""
    wish = command("replay", handler, about, who=who)
    return msgspec.structs.replace(wish, time=time_after(2), original=about if handler == "-" else None)


def once_as_new(handler: str) -> AtTheEnd:
    """Check that a message that an operator replays as new is handled exactly once."""

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        wanted = any(t.outcome == "replayed" for t in entries)
        handled = sum(t.outcome == "handled" and t.handler == handler for t in entries)
        return f"HANDLED {handled} TIMES {handler}" if handled != wanted and (wanted or handled > 1) else None

    return check


def has_become(outcome: str, handler: str) -> AtTheEnd:
    """Check that a command about the handler's dead letter had this outcome, if there was such a dead letter."""

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        died = any(t.outcome == "dead" and t.handler == handler for t in entries)
        became = any(t.outcome == outcome and t.handler == handler for t in entries)
        return f"NEVER {outcome} {handler}" if died and not became else None

    return check


def counted_on(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that no failed attempt is counted twice: each adds one, and a replay starts the count again."""
    last = dict[str, int]()
    for t in entries:
        if t.outcome in ("retrying", "dead"):
            if t.attempt <= last.get(t.handler, 0):
                return f"ATTEMPT {t.attempt} TWICE {t.handler}"
            last[t.handler] = t.attempt
        elif t.outcome == "replayed":
            last.pop(t.handler, None)
    return None


def stays_dead(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that a dead letter still blocks the saga."""
    return None if p.is_quarantined else "DISCARDED WITHOUT PERMISSION"


def at_last(*names: str) -> AtTheEnd:
    """Check that these handlers have run, unless a dead letter is left because one of them failed more often than it
    was replayed."""
    ran = has_run(*names)

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        return ran(p, entries) if stays_dead(p, entries) else None

    return check


def both(*checks: AtTheEnd) -> AtTheEnd:
    """Make a check that runs all these checks."""

    def check(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
        return next((wrong for one in checks if (wrong := one(p, entries)) is not None), None)

    return check


def operators() -> Iterator[Scenario]:
    """Yield all scenarios about operator commands."""
    yield from replays()
    yield from held_up()
    yield from forgotten()


def replays() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of dead letters that are replayed, with the messages that they have blocked."""
    noted = of(reserve, note, attempts_max=1)
    again = command("replay", "reserve", ORD)
    ran = at_last("reserve", "note")
    yield Scenario(
        name="replay: crash",
        service=noted,
        a=(ORD, N),
        b=(again,),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=ran,
    )
    yield Scenario(
        name="replay: rebalance", service=noted, a=(ORD, N), b=(again,), fail=1, move=1, may_die=True, at_the_end=ran
    )
    yield Scenario(
        name="replay: lost answers", service=noted, a=(ORD, N), b=(again,), fail=1, lost=1, may_die=True, at_the_end=ran
    )
    yield Scenario(
        name="replay: of two steps, others queue",
        service=of(two_steps, pay, attempts_max=1),
        a=(ORD, command("replay", "two", ORD)),
        b=(N, command("replay", "pay", N)),
        fail=1,
        crash=1,
        owner=(0, 1),
        may_die=True,
        at_the_end=at_last("two", "pay"),
    )
    yield Scenario(
        name="replay: one of many that waited, others wait behind it",
        service=of(look_each_own, place, attempts_max=1),
        a=(N, NEXT_N),
        b=(ORD, command("replay", "look", N)),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=at_last("look"),
    )
    yield Scenario(
        name="replay: of a run on an own event that is withdrawn meanwhile",
        service=of(reserve_own, look_own, attempts_max=1),
        a=(ORD, X),
        b=(command("replay", "look", RESERVED),),
        fail=1,
        crash=1,
        may_die=True,
    )
    yield Scenario(
        name="replay: of what failed behind its last step",
        service=of(step_look, attempts_max=1),
        a=(ORD,),
        b=(again,),
        fail=1,
        move=1,
        may_die=True,
        at_the_end=at_last("reserve"),
    )
    yield Scenario(
        name="replay: it dies again, and is replayed again",
        service=of(reserve, attempts_max=1),
        a=(ORD,),
        b=(again, command("replay", "reserve", ORD, replays=1)),
        fail=2,
        crash=1,
        may_die=True,
        at_the_end=at_last("reserve"),
    )
    yield Scenario(
        name="replay: two people want it",
        service=noted,
        a=(ORD, N),
        b=(again, command("replay", "reserve", ORD, who="bob")),
        fail=1,
        crash=1,
        may_die=True,
        at_the_end=ran,
    )
    yield Scenario(
        name="replay: what was read stays, while another saga gives",
        service=of(looks, attempts_max=1),
        a=(ORD,),
        b=(again,),
        stock=1,
        other=1,
        fail=1,
        may_die=True,
        at_the_end=at_last("reserve"),
    )
    for name, a, b in (("behind", (ORD, X), (again,)), ("before", (ORD,), (X, again)), ("beside", (ORD, again), (X,))):
        yield Scenario(
            name=f"replay: the outcome {name} it",
            service=of(reserve, attempts_max=1),
            a=a,
            b=b,
            fail=1,
            crash=1,
            may_die=True,
        )
    yield Scenario(
        name="replay: of a compensation",
        service=of(reserve, note),
        a=(ORD, ORD_UNDONE_BADLY, N),
        b=(command("replay", "undo_reserve", ORD_UNDONE_BADLY),),
        crash=1,
        may_die=True,
        at_the_end=has_become("replayed", "undo_reserve"),
    )
    yield Scenario(
        name="replay: of a fan-in",
        service=of(meet_step, attempts_max=1),
        a=(ORD, command("replay", "meet", ORD)),
        b=(Q, command("replay", "meet", Q)),
        fail=1,
        move=1,
        may_die=True,
        at_the_end=at_last("meet"),
    )
    yield Scenario(
        name="replay: of a deadline that fails again, and is parked",
        service=of(expire_by_step, note, attempts_max=2, parks=True),
        a=(ORD, N),
        b=(command("replay", "expire", ORD),),
        fail=4,
        may_die=True,
        at_the_end=both(at_last("expire", "note"), counted_on),
    )


def held_up() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of work that becomes due while a dead letter blocks the saga. Work that only an operator can
    continue has no timer; all other work has one."""
    again, behind = command("replay", "pay", N), at_last("pay", "remind_early")
    for name, crash, early, lost in (("crash", 1, 0, 0), ("its wake comes early", 0, 1, 0), ("lost answers", 0, 0, 1)):
        yield Scenario(
            name=f"replay: a deadline waits behind it: {name}",
            service=of(pay, remind_early, attempts_max=1),
            a=(ORD, N),
            b=(again,),
            fail=1,
            crash=crash,
            early=early,
            lost=lost,
            may_die=True,
            at_the_end=behind,
        )
    yield Scenario(
        name="a deadline waits behind a dead letter",
        service=of(place_by_step, remind_early, attempts_max=1),
        a=(ORD,),
        fail=1,
        crash=1,
        may_die=True,
    )
    yield Scenario(
        name="replay: a run that goes on waits behind it",
        service=of(slow_job, pay, attempts_max=1),
        a=(ORD, N),
        b=(again,),
        fail=1,
        may_die=True,
        at_the_end=at_last("job", "pay"),
    )
    yield Scenario(
        name="a dead letter of an undoing, and a deadline that has begun",
        service=of(reserve, remind, attempts_max=2, parks=True),
        a=(ORD,),
        b=(ORD_UNDONE_BADLY,),
        fail=1,
        early=1,
        may_die=True,
    )


def forgotten() -> Iterator[Scenario]:
    """Yield scenarios of messages that came too late, and that an operator replays as new ones."""
    for name, crash, move, lost in (("crash", 1, 0, 0), ("rebalance", 0, 1, 0), ("lost answers", 0, 0, 1)):
        yield Scenario(
            name=f"handled as new: {name}",
            service=of(reserve, note),
            a=(ORD,),
            b=(as_new(ORD),),
            age=2,
            crash=crash,
            move=move,
            lost=lost,
            may_die=True,
            at_the_end=once_as_new("reserve"),
        )
    yield Scenario(
        name="handled as new: two people want it",
        service=of(reserve),
        a=(ORD, as_new(ORD, who="bob")),
        b=(as_new(ORD),),
        age=2,
        crash=1,
        owner=(0, 1),
        may_die=True,
        at_the_end=once_as_new("reserve"),
    )
    for name, a, b, crash in (
        ("of the outcome", (X,), (ORD, as_new(X)), 1),
        ("behind the outcome", (ORD, X), (as_new(ORD),), 1),
        ("behind the outcome of a run that is forgotten", (ORD, X), (as_new(ORD),), 2),
    ):
        yield Scenario(name=f"handled as new: {name}", service=of(reserve), a=a, b=b, age=2, crash=crash, may_die=True)
    old = message("n1", "N")
    yield Scenario(
        name="handled as new: for a handler that takes many",
        service=of(each, memo),
        a=(message("m1", "M", after=1), old, as_new(old, "each", who="bob")),
        b=(as_new(old, "each"),),
        age=2,
        crash=1,
        may_die=True,
        at_the_end=once_as_new("each"),
    )
