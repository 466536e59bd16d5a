"""Invariants of messages: events in the log and in the progress are the same, in order, and each occurs once."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain, pairwise

from saga.errors import BadInput
from saga.messages import Partition, Record
from saga.messaging.names import is_timer_topic
from saga.messaging.timers import parse_timer
from saga.progress.decisions import find_closing_reason
from saga.progress.document import PendingMessage, decode_progress
from saga.progress.handlers import HandlerRole
from saga.testing.invariants import evidence, progress_checks
from saga.testing.invariants.evidence import (
    Evidence,
    LoggedEvent,
    ProgressLife,
    SagaCase,
    SagaCases,
    ServiceEvidence,
    Violation,
)


def history(case: SagaCase) -> Iterator[Violation]:
    """Check that the chain of hashes is valid, the state follows from the transitions, nothing was overwritten, and no
    version exceeded its bounds.
    """
    for name, several in case.lives.items():
        for i, life in enumerate(several):
            if life.p.first and i < len(several) - 1:
                continue  # its archives may have been overwritten by the next life
            wrong = evidence.out_of_bounds(life) or evidence.broken_chain(life)
            if wrong is not None:
                yield case.violation("history", wrong, name)
        for before, after in pairwise(several):
            wrong = evidence.again_too_soon(before, after)
            if wrong is not None:
                yield case.violation("history", wrong, name)


def once(case: SagaCase) -> Iterator[Violation]:
    """Check that each id is recorded once, that a handler has run once, or once for each cause, and that a service
    emits one outcome.
    """
    for life in case.every_life():
        wrong = progress_checks.recorded_twice(life.service.roles, life.entries)
        if wrong is not None:
            yield case.violation("once", wrong, life.service.name)


def said_as_recorded(case: SagaCase) -> Iterator[Violation]:
    """Check that each recorded event is in the log, with the same bytes, and that a service has recorded each event
    that it published there.

    In a spoiled saga events may be forged: there only the first is checked.
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
    """Check that a transition set each timer before it was published, and that the current timer is in the log."""
    named = {(life.service.name, t.wake.id) for life in case.every_life() for t in life.entries if t.wake is not None}
    for service, id_ in case.wakes - named:
        yield case.violation("said as recorded", f"{id_} is in the log, and no transition named it", service)
    for service_, life in case.last_lives():
        if life.p.wake is not None and (service_.name, life.p.wake.id) not in case.wakes:
            what = f"LOST WAKE {life.p.wake.id} is the current one, and is not in the log"
            yield case.violation("said as recorded", what, service_.name)


def _recorded_as_said(case: SagaCase) -> Iterator[Violation]:
    values: dict[tuple[str, str], list[bytes]] = {}  # several values if a saga started again, because its ids repeat
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
    """Check that in each partition events first appear in the order in which they are recorded, that handlers of one
    event see them in the order of their first appearance (not checked for spoiled sagas), and that nothing overtakes a
    dead letter.
    """
    for life in case.every_life():
        wrong = progress_checks.ran_behind_a_dead_letter(life.service.roles, life.entries)
        if wrong is not None:
            yield case.violation("in order", wrong, life.service.name)
    if case.spoiled or case.again:
        return
    first: dict[tuple[str, int], dict[str, int]] = {}
    appeared: set[tuple[str, str]] = set()
    for s in case.said:  # a copy may be in another partition
        if (s.record.topic, s.id) not in appeared:
            appeared.add((s.record.topic, s.id))
            places = first.setdefault((s.record.topic, s.record.partition), {})
            places[s.id] = len(places)
    # An event without its saga's start time may have to wait for one that has it, and delays only its own handler.
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


# ---------------------------------------------------------------- nothing waits


def all_committed(evidence: Evidence) -> Iterator[Violation]:
    """Check that each service has committed all records of its topics, apart from timers that no saga waits for any
    more: the timer of a closed deadline stays in the log until its time.
    """
    for name, witnessed in evidence.services.items():
        topics = witnessed.service.topics
        for partition, end in evidence.ends.items():
            done = witnessed.committed.get(Partition(*partition), 0)
            if is_timer_topic(partition.topic) and not _is_awaited(evidence, witnessed, partition, done):
                continue
            if partition.topic in topics and done != end:
                what = f"{partition.topic}/{partition.number} is committed up to {done}, and it ends at {end}"
                yield Violation("nothing waits", None, name, what)


def _is_awaited(evidence: Evidence, witnessed: ServiceEvidence, partition: Partition, done: int) -> bool:
    """Return whether a timer behind the committed position is the current one of its saga."""
    for record in evidence.log:
        if (record.topic, record.partition) == partition and record.offset >= done:
            with suppress(BadInput):  # the topic may contain records of others
                timer = parse_timer(record)
                contents = witnessed.versions.get(timer.saga)
                current = None if not contents else decode_progress(contents[-1]).wake
                if current is not None and current.id == timer.id:
                    return True
    return False


def all_unreadable_told(evidence: Evidence, cases: SagaCases) -> Iterator[Violation]:
    """Check that a record whose saga cannot be determined is a dead letter in each service that reads its topic."""
    told = {(letter.service, letter.position) for letter in cases.letters}
    for record, type_ in cases.unreadable:
        where = f"{record.topic}/{record.partition}/{record.offset}"
        for name, witnessed in evidence.services.items():
            service = witnessed.service
            reads = record.topic in service.topics
            if reads and (type_ is None or type_ in service.consumed) and (name, where) not in told:
                yield Violation(
                    "nothing waits", None, name, f"the record at {where} cannot be read, and nobody was told"
                )


def nothing_waits(case: SagaCase) -> Iterator[Violation]:
    """Check that nothing is left open.

    Nothing is open without a dead letter that blocks it. Every message is in the inbox, pending, or reported to an
    operator. A message that waits for others waits for one that was never published. A service has handled its
    self-consumed events.
    """
    for service, life in case.last_lives():
        wrong = progress_checks.stranded(life.p, service.roles)
        if wrong is not None:
            yield case.violation("nothing waits", wrong, service.name)
        if not case.spoiled and not case.again:
            own = _own_parts(life)
            for kept in life.p.waiting:
                role = service.roles.handlers.get(kept.handler)
                if role is not None and _is_due(role, kept.message.type) and _could_run(case, life, role, own.values()):
                    yield case.violation("nothing waits", _of_waiting(kept), service.name)
            for id_, role in _unheard(case, life, own):
                what = f"{own[id_]} {id_} was said here, {role.name} has all that it takes, and has not run on it"
                yield case.violation("nothing waits", what, service.name)
    changes = case.frame.changes
    for said in case.said:
        for service in case.frame.services.values():
            if said.record.topic in changes and said.record.topic not in service.changes:
                continue  # changes of another service's documents of the same name
            if said.type in service.consumed and said.source != service.name:
                lost = _lost(case, service.name, said)
                if lost is not None:
                    yield case.violation("nothing waits", lost, service.name)


def _of_waiting(kept: PendingMessage) -> str:
    message = kept.message
    return f"{message.type} {message.id} waits for {kept.handler}, and all that it waits for was said"


def _own_parts(life: ProgressLife) -> dict[str, str]:
    """Return the self-consumed events in the service's transitions, by id, without those of runs whose every result is
    compensated.
    """
    roles = life.service.roles
    own: dict[str, str] = {}
    undone = {t.cause for t in life.entries if t.outcome == "compensated"}
    for t in life.entries:
        role = roles.handlers.get(t.handler) if t.ran and undone else None
        results = {e.id for e in t.events if e.type in role.undo.results} if role is not None and role.undo else set()
        if not results or not results <= undone:
            own |= {e.id: e.type for e in t.events if e.type in roles.by_type}
    return own


def _unheard(case: SagaCase, life: ProgressLife, own: Mapping[str, str]) -> Iterator[tuple[str, HandlerRole]]:
    """Yield the self-consumed events on which a handler has to run, and has not."""
    if not own:
        return
    ran = {(t.handler, cause) for t in life.entries if t.ran for cause in progress_checks.causes(t)}
    for id_, type_ in own.items():
        for role in life.service.roles.by_type[type_]:
            if _is_due(role, type_) and (role.name, id_) not in ran and _could_run(case, life, role, own.values()):
                yield id_, role


def _is_due(role: HandlerRole, type_: str) -> bool:
    """Return True if an event of that type makes a handler run. A handler with `repeats` runs only on its first event;
    the others just stay available.
    """
    return not role.many or type_ in role.takes[0]


def _could_run(case: SagaCase, life: ProgressLife, role: HandlerRole, own: Collection[str]) -> bool:
    """Return True if all events of a handler are there, and it may still run. `own`: types of self-consumed events."""
    p = life.p
    if p.started is None or find_closing_reason(p, role) is not None:
        return False
    if p.is_quarantined:
        return False
    if not role.many and any(t.handler == role.name and t.ran for t in life.entries):
        return False
    dead = {letter.message for letter in case.letters if letter.service == life.service.name}
    there = {s.type for s in case.said if s.source != life.service.name and s.id not in dead}
    there.update(own)
    return all(types & there for types in role.takes)


def _lost(case: SagaCase, service: str, said: LoggedEvent) -> str | None:
    """Return the handler for which a message is missing; `None` if the service has accounted for the message."""
    lives = case.lives.get(service, [])
    missing: str | None = "any handler: the service knows nothing of the saga"
    for life in lives:
        missing = progress_checks.unaccounted(life.p, life.service.roles, said.type, said.id)
        if missing is None:
            return None
    if any(letter.service == service and letter.message == said.id for letter in case.letters):
        return None
    # An inbox with many entries drops those older than the retention; the transitions still have them.
    if any(
        said.id in (t.message, *progress_checks.causes(t)) for t in chain.from_iterable(life.entries for life in lives)
    ):
        return None
    where = "/".join(map(str, said.record[:3]))
    return f"LOST MESSAGE {said.type} {said.id} at {where} for {missing}"
