"""End of waiting: at rest all is committed, nothing is open, and every message has come to an end."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import chain

from saga.errors import BadInput
from saga.messages import Partition
from saga.messaging.names import is_wakes
from saga.messaging.timers import wake_in
from saga.progress.decisions import find_closing_reason
from saga.progress.document import PendingMessage, decode_progress
from saga.progress.handlers import HandlerRole
from saga.testing.invariants import progress_checks
from saga.testing.invariants.evidence import Evidence, Violation, Witnessed
from saga.testing.invariants.progress_lives import ProgressLife
from saga.testing.invariants.saga_cases import SagaCase, SagaCases, Said


def all_committed(evidence: Evidence) -> Iterator[Violation]:
    """Check that each service has committed all records of its topics, less timers that no saga waits for any more:
    the timer of a deadline that was closed lies in the log until its time."""
    for name, witnessed in evidence.services.items():
        topics = witnessed.service.topics
        for partition, end in evidence.ends.items():
            done = witnessed.committed.get(Partition(*partition), 0)
            if is_wakes(partition.topic) and not _is_awaited(evidence, witnessed, partition, done):
                continue
            if partition.topic in topics and done != end:
                what = f"{partition.topic}/{partition.number} is committed up to {done}, and it ends at {end}"
                yield Violation("nothing waits", None, name, what)


def _is_awaited(evidence: Evidence, witnessed: Witnessed, partition: Partition, done: int) -> bool:
    """Return whether a timer behind the committed position is the current one of its saga."""
    for record in evidence.log:
        if (record.topic, record.partition) == partition and record.offset >= done:
            with suppress(BadInput):  # anybody may write to the topic
                timer = wake_in(record)
                contents = witnessed.versions.get(timer.saga)
                current = None if not contents else decode_progress(contents[-1]).wake
                if current is not None and current.id == timer.id:
                    return True
    return False


def all_unreadable_told(evidence: Evidence, cases: SagaCases) -> Iterator[Violation]:
    """Check that a record of which not even the saga can be told is a dead letter in each service that reads its
    topic."""
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
    """Check that nothing is open without a dead letter in its way; that every message is in the inbox, kept or told to
    a person; that a message that waits for other parts waits for one that was never said; and that a service has
    handled its own events."""
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
                continue  # another service's changes of documents of that name
            if said.type in service.consumed and said.source != service.name:
                lost = _lost(case, service.name, said)
                if lost is not None:
                    yield case.violation("nothing waits", lost, service.name)


def _of_waiting(kept: PendingMessage) -> str:
    message = kept.message
    return f"{message.type} {message.id} waits for {kept.handler}, and all that it waits for was said"


def _own_parts(life: ProgressLife) -> dict[str, str]:
    """Own events that handlers of the service take, by id, as its transitions have them: without those of runs whose
    every result is undone."""
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
    """Own events on which a handler has to run, and has not."""
    if not own:
        return
    ran = {(t.handler, cause) for t in life.entries if t.ran for cause in progress_checks.causes(t)}
    for id_, type_ in own.items():
        for role in life.service.roles.by_type[type_]:
            if _is_due(role, type_) and (role.name, id_) not in ran and _could_run(case, life, role, own.values()):
                yield id_, role


def _is_due(role: HandlerRole, type_: str) -> bool:
    """True if an event of that type makes a handler run: the other parts of one with `repeats` only stay."""
    return not role.many or type_ in role.takes[0]


def _could_run(case: SagaCase, life: ProgressLife, role: HandlerRole, own: Collection[str]) -> bool:
    """True if all parts of a handler are there, and it may run still. `own`: types of own events."""
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


def _lost(case: SagaCase, service: str, said: Said) -> str | None:
    """The handler that a message is missing for, in words; `None` if the service has accounted for the message."""
    lives = case.lives.get(service, [])
    missing: str | None = "any handler: the service knows nothing of the saga"
    for life in lives:
        missing = progress_checks.unaccounted(life.p, life.service.roles, said.type, said.id)
        if missing is None:
            return None
    if any(letter.service == service and letter.message == said.id for letter in case.letters):
        return None
    # An inbox with many entries drops those older than the memory; the transitions still know.
    if any(
        said.id in (t.message, *progress_checks.causes(t)) for t in chain.from_iterable(life.entries for life in lives)
    ):
        return None
    where = "/".join(map(str, said.record[:3]))
    return f"LOST MESSAGE {said.type} {said.id} at {where} for {missing}"
