"""What must be true of all that the services have written down when a world is quiet. Pure."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from saga.contracts.library import contract_of
from saga.declarations.values import Declared
from saga.messages import Event, name_of
from saga.progress.document import decode_entry
from saga.progress.history import verify
from saga.progress.timeline import History


def outcomes_of(declared: Declared) -> dict[str, type[Event]]:
    """The outcomes that a service may say, by name."""
    emitted = {event for handler in declared.handlers for event in handler.emits}
    return {name_of(event): event for event in emitted if contract_of(event).outcome is not None}


def problems(histories: Sequence[History], outcomes: Collection[str]) -> Iterator[str]:
    """What is not as it must be, each naming saga and service. `outcomes`: the names of all that there are."""
    with_people = {history.snapshot.saga for history in histories if _is_with_people(history)}
    for history in histories:
        p = history.snapshot
        broken = verify(history.transitions, p)
        if broken is not None:
            yield f"saga {p.saga} in {p.service}: its history is not what was written: {broken.what}"
        elif p.is_open and p.saga not in with_people:
            kept = {"begun": p.intents, "queued": p.queue, "waiting": p.waiting, "to be undone": p.compensating}
            numbers = ", ".join(f"{len(of)} {what}" for what, of in kept.items() if of)
            yield f"saga {p.saga} in {p.service}: still open when nothing goes on any more: {numbers}"
    for saga, said in _said(histories, outcomes).items():
        if len(said) > 1:
            by_whom = "; ".join(f"{name} by {service}" for name, service in sorted(said.items()))
            yield f"saga {saga} has several outcomes: {by_whom}"


def _is_with_people(history: History) -> bool:
    """Whether something of it has died: what is open of the saga then waits for a person."""
    return any(entry.letters for entry in map(decode_entry, history.transitions))


def _said(histories: Sequence[History], outcomes: Collection[str]) -> Mapping[str, Mapping[str, str]]:
    """By saga each outcome that was said, with who said it."""
    said: dict[str, dict[str, str]] = defaultdict(dict)
    for history in histories:
        p = history.snapshot
        emitted = {event.type for raw in history.transitions for event in decode_entry(raw).events}
        for name in (emitted & set(outcomes)) | ({p.outcome} if p.outcome is not None else set()):
            said[p.saga][name] = p.service
    return said
