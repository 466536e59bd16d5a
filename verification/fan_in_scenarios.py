"""Scenarios about fan-ins, self-consumed events, queued messages and repetitions."""

from collections.abc import Iterator
from dataclasses import replace

from saga.messaging.message_ids import id_of_change
from saga.progress.document import SagaProgress, Transition
from verification.building_blocks import (
    NEXT_N,
    ORD,
    OTHER,
    SAME,
    M,
    N,
    Q,
    after_that,
    join,
    join_each,
    join_step,
    last_of_all,
    meet,
    meet_step,
    memo,
    note,
    of,
    on_own,
    on_own_step,
    pay,
    place,
    reserve,
    two_events,
)
from verification.handlers import Reacts
from verification.scenario import Scenario, check_other_content_reported, has_run
from verification.services import message


def fan_ins() -> Iterator[Scenario]:  # a list: one scenario after another
    """Yield scenarios of fan-ins, self-consumed events, events that arrive after later ones, and queued messages."""
    ran = has_run("place", "join")
    yield Scenario(
        name="a fan-in with an own part", service=of(place, join), a=(ORD,), b=(Q,), crash=1, move=1, at_the_end=ran
    )
    yield Scenario(
        name="a fan-in with an own part: by a step",
        service=of(place, join_step, note),
        a=(ORD, N),
        b=(Q,),
        crash=1,
        fail=1,
        at_the_end=ran,
    )
    yield Scenario(
        name="a fan-in of many with an own part, two owners",
        service=of(place, join_each),
        a=(ORD,),
        b=(N, NEXT_N),
        crash=1,
        owner=(0, 1),
        at_the_end=ran,
    )
    yield Scenario(
        name="a fan-in of others",
        service=of(meet_step, note),
        a=(ORD, N),
        b=(Q,),
        crash=1,
        fail=1,
        at_the_end=has_run("meet", "note"),
    )
    yield Scenario(
        name="a settle chain of three",
        service=of(place, on_own, after_that, last_of_all),
        a=(ORD,),
        crash=3,
        at_the_end=has_run("last_of_all"),
    )
    yield Scenario(
        name="a settle chain: rebalance",
        service=of(place, on_own, after_that),
        a=(ORD,),
        crash=2,
        move=1,
        at_the_end=has_run("after_that"),
    )
    yield Scenario(
        name="a zombie settles a chain",
        service=of(place, on_own, note),
        a=(N,),
        b=(ORD,),
        crash=1,
        move=1,
        owner=(0, 1),
        at_the_end=has_run("on_own", "note"),
    )
    yield Scenario(
        name="a zombie settles a wait",
        service=of(meet, note),
        a=(N, ORD),
        b=(Q,),
        crash=1,
        move=1,
        owner=(0, 1),
        at_the_end=has_run("meet", "note"),
    )
    yield Scenario(
        name="a step on an own event, two owners",
        service=of(place, on_own_step, note),
        a=(ORD,),
        b=(N,),
        crash=1,
        owner=(0, 1),
        at_the_end=has_run("on_own", "note"),
    )
    yield Scenario(
        name="a step on an own event fails",
        service=of(place, on_own_step, note),
        a=(ORD,),
        b=(N,),
        fail=1,
        crash=1,
        at_the_end=has_run("on_own", "note"),
    )
    yield Scenario(
        name="a queue behind an intent",
        service=of(reserve, note, memo),
        a=(ORD, N),
        b=(M,),
        crash=1,
        fail=1,
        at_the_end=has_run("reserve", "note", "memo"),
    )
    yield Scenario(
        name="a queue behind an intent: rebalance",
        service=of(reserve, note, memo),
        a=(ORD, N, M),
        fail=1,
        move=1,
        at_the_end=has_run("reserve", "note", "memo"),
    )
    both = of(reserve, Reacts(name="log", to=(("O",), ("P",)), emits=("g",)), pay)
    yield Scenario(
        name="two handlers of one message",
        service=both,
        a=(ORD,),
        b=(N,),
        crash=1,
        move=1,
        fail=1,
        at_the_end=has_run("reserve", "pay"),
    )


def several_events() -> Iterator[Scenario]:
    """Yield scenarios of a transition with two events, of which only one was published."""
    both = of(two_events, on_own, note)
    ran = has_run("two", "on_own", "note")
    yield Scenario(name="two events at once: crash", service=both, a=(ORD,), b=(N,), crash=2, move=1, at_the_end=ran)
    yield Scenario(name="two events at once: lost answers", service=both, a=(ORD, N), lost=2, crash=1, at_the_end=ran)


GONE = message(id_of_change("o", 1, is_gone=True), "O", "x")
MADE_AGAIN = message(id_of_change("o", 2, is_gone=False), "O", "y")
reserve_document = replace(reserve, changes=True)


def ran_on_the_document(p: SagaProgress, entries: tuple[Transition, ...]) -> str | None:
    """Check that the handler has run, and that it was given the last state of the document."""
    ran = [entry.message for entry in entries if entry.handler == "reserve" and entry.outcome == "handled"]
    return None if ran == [MADE_AGAIN.id] else f"RAN ON {ran}"


def repetitions() -> Iterator[Scenario]:
    """Yield scenarios of duplicates with equal and with different contents, and of changes of a document, of which the
    first one counts."""
    yield Scenario(
        name="a document removed, and made again",
        service=of(reserve_document, note),
        a=(GONE, MADE_AGAIN),
        b=(N,),
        crash=1,
        fail=1,
        at_the_end=ran_on_the_document,
    )
    yield Scenario(
        name="a repetition with equal content",
        service=of(reserve, note),
        a=(ORD, SAME),
        b=(N,),
        crash=1,
        fail=1,
    )
    yield Scenario(
        name="a repetition with other content",
        service=of(reserve, note),
        a=(ORD, OTHER),
        b=(N,),
        crash=1,
        move=1,
        may_die=True,
        at_the_end=check_other_content_reported,
    )
    yield Scenario(
        name="a late original, published again", service=of(reserve, note), a=(ORD, ORD), b=(N,), crash=1, move=1
    )
    yield Scenario(
        name="a stray duplicate, no cache", service=of(reserve), a=(ORD, ORD), b=(ORD,), evict=2, move=1, fail=1
    )
    yield Scenario(
        name="a part with other content",
        service=of(meet),
        a=(ORD, OTHER),
        b=(Q,),
        crash=1,
        may_die=True,
        at_the_end=check_other_content_reported,
    )
