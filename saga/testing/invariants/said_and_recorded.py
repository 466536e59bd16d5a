"""Events in the log and events on record: they are the same, in order, and each thing once."""

from collections.abc import Iterator
from itertools import pairwise

from saga.messages import Record
from saga.testing.invariants import progress_checks, progress_lives
from saga.testing.invariants.evidence import Violation
from saga.testing.invariants.saga_cases import SagaCase


def history(case: SagaCase) -> Iterator[Violation]:
    """Check that the chain of hashes holds, the state is what the transitions make of it, nothing was written over, and
    no version was larger than it may be."""
    for name, several in case.lives.items():
        for i, life in enumerate(several):
            if life.p.first and i < len(several) - 1:
                continue  # its archives may be another life's by now
            wrong = progress_lives.out_of_bounds(life) or progress_lives.broken_chain(life)
            if wrong is not None:
                yield case.violation("history", wrong, name)
        for before, after in pairwise(several):
            wrong = progress_lives.again_too_soon(before, after)
            if wrong is not None:
                yield case.violation("history", wrong, name)


def once(case: SagaCase) -> Iterator[Violation]:
    """Check that each id is recorded once, that a handler has run once, or once for each cause, and that a service says
    one outcome."""
    for life in case.every_life():
        wrong = progress_checks.recorded_twice(life.service.roles, life.entries)
        if wrong is not None:
            yield case.violation("once", wrong, life.service.name)


def said_as_recorded(case: SagaCase) -> Iterator[Violation]:
    """Check that each recorded event is in the log, with these bytes, and that a service has recorded each event that
    it said there.

    In a spoiled saga anybody may have said anything: there only the first is asked for.
    """
    said, letters = {s.id for s in case.said}, {letter.id for letter in case.letters}
    for life in case.every_life():
        for t in life.entries:
            for event in t.events:
                if event.id not in said:
                    what = f"LOST EVENT {event.type} {event.id} of transition {t.n} of {t.handler} is not in the log"
                    yield case.violation("said as recorded", what, life.service.name)
            for letter in t.letters:
                if letter.id not in letters:
                    what = f"LOST DEAD LETTER {letter.id} of transition {t.n} of {t.handler} is not in the log"
                    yield case.violation("said as recorded", what, life.service.name)
    if not case.spoiled:
        yield from _recorded_as_said(case)
        yield from _wakes_as_named(case)


def _wakes_as_named(case: SagaCase) -> Iterator[Violation]:
    """Check that a wake was named by a transition before it was published, and that the current one is in the log."""
    named = {(life.service.name, t.wake.id) for life in case.every_life() for t in life.entries if t.wake is not None}
    for service, id_ in case.wakes - named:
        yield case.violation("said as recorded", f"{id_} is in the log, and no transition named it", service)
    for service_, life in case.last_lives():
        if life.p.wake is not None and (service_.name, life.p.wake.id) not in case.wakes:
            what = f"LOST WAKE {life.p.wake.id} is the current one, and is not in the log"
            yield case.violation("said as recorded", what, service_.name)


def _recorded_as_said(case: SagaCase) -> Iterator[Violation]:
    values: dict[tuple[str, str], list[bytes]] = {}  # several where a saga began anew: its ids come again
    for life in case.every_life():
        for event in (e for t in life.entries for e in t.events):
            values.setdefault((life.service.name, event.id), []).append(event.value)
    first: dict[tuple[str, str], Record] = {}
    for said in case.said:
        if said.source not in case.frame.services:
            continue
        key = (said.source, said.id)
        if key not in values:
            what = f"{said.type} {said.id} is in the log and in no transition"
            yield case.violation("said as recorded", what, said.source)
        elif said.record.value not in values[key]:
            what = f"{said.type} {said.id} is in the log with other bytes than in its transition"
            yield case.violation("said as recorded", what, said.source)
        elif not case.again and first.setdefault(key, said.record)[3:6] != said.record[3:6]:
            what = f"{said.type} {said.id} is in the log twice, with different bytes or headers"
            yield case.violation("said as recorded", what, said.source)
    known = {(life.service.name, letter.id) for life in case.every_life() for t in life.entries for letter in t.letters}
    for letter in case.letters:
        if letter.handler is not None and (letter.service, letter.id) not in known:
            what = f"the dead letter {letter.id} of {letter.handler} is in the log and in no transition"
            yield case.violation("said as recorded", what, letter.service)


def in_order(case: SagaCase) -> Iterator[Violation]:
    """Check that in each partition events first appear in the order in which they are recorded; that handlers of one
    event see them in the order in which they first appeared, which is not asked of spoiled sagas; and that nothing
    overtakes a dead letter."""
    for life in case.every_life():
        wrong = progress_checks.ran_behind_a_dead_letter(life.service.roles, life.entries)
        if wrong is not None:
            yield case.violation("in order", wrong, life.service.name)
    if case.spoiled or case.again:
        return
    first: dict[tuple[str, int], dict[str, int]] = {}
    appeared: set[tuple[str, str]] = set()
    for s in case.said:  # a copy may lie in another partition
        if (s.record.topic, s.id) not in appeared:
            appeared.add((s.record.topic, s.id))
            places = first.setdefault((s.record.topic, s.record.partition), {})
            places[s.id] = len(places)
    # One that does not tell when its saga began may have to wait until another does, and holds up its own handler only.
    apart = any(s.started is None for s in case.said)
    for service, life in case.last_lives():
        order = progress_checks.recorded(life.entries)
        known = set(order)
        for places in first.values():
            wrong = progress_checks.out_of_recorded_order(order, [id_ for id_ in places if id_ in known])
            if wrong is None:
                wrong = progress_checks.out_of_log_order(service.roles, life.entries, places, apart=apart)
            if wrong is not None:
                yield case.violation("in order", wrong, service.name)
