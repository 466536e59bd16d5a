"""Records of what a turn publishes: of a transition, and of wakes."""

from msgspec.structs import replace

from saga.engine.persistence import dead_letters
from saga.engine.service_runtime import ServiceRuntime
from saga.messages import Outgoing
from saga.messaging import envelope, timers
from saga.progress.document import SagaProgress, Transition, messages_of


def wake_record(service: ServiceRuntime, saga: str, id_: str, due_ms: int, *, unknown_ms: int = 0) -> Outgoing:
    """Record of a wake that is published now."""
    now_ms = service.ports.clock.now_ms()
    return timers.to_record(service.name, saga, id_, due_ms, now_ms, unknown_ms=unknown_ms)


def records_of(service: ServiceRuntime, p: SagaProgress, entry: Transition) -> list[Outgoing]:
    """Records of a transition: events, in recorded order, then dead letters. All is built from what the progress holds,
    so a repeat has the same bytes."""
    contracts = service.contracts
    said = messages_of(p, entry)
    if (tracing := service.ports.outage_watch.tracing) is not None:
        said = [replace(m, trace=tracing.handed_on(m)) for m in said]
    records = [envelope.to_record(m, contracts[m.type]) for m in said]
    if not entry.letters:  # nearly always
        return records
    return records + [
        dead_letters.letter(
            service.name,
            letter,
            entry.time,
            f"transition {entry.n} of {service.name} in saga {p.saga}",
            contracts.get(letter.message.type),
        )
        for letter in entry.letters
    ]
