"""A transition's events as records: built from what the progress holds, so that a repeat has the same bytes."""

from saga import envelope
from saga.messages import Outgoing
from saga.progress.document import Entry, Snapshot, messages_of
from saga.runtime import deadletters
from saga.runtime.prepared import Prepared


def outgoing(service: Prepared, p: Snapshot, entry: Entry) -> list[Outgoing]:
    """Events first, in recorded order, then dead letters."""
    contracts = service.contracts
    records = [envelope.to_record(m, contracts[m.type]) for m in messages_of(p, entry)]
    if not entry.letters:
        return records
    records += [
        deadletters.letter(
            service.name,
            letter,
            entry.time,
            f"transition {entry.n} of {service.name} in saga {p.saga}",
            contracts.get(letter.message.type),
        )
        for letter in entry.letters
    ]
    return records
