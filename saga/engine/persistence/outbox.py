"""Publish records and dead letters, and retry while store or broker is unavailable."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Literal, ParamSpec, TypeVar

from msgspec.structs import replace

from saga.engine.persistence import dead_letters
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, BrokerUnavailable, StoreError, StoreUnavailable
from saga.messages import Outgoing, Position
from saga.messaging import envelope, timers
from saga.progress.document import DeadLetterRecord, SagaProgress, Transition, build_messages
from saga.telemetry.events import WriteRefused

P = ParamSpec("P")
T = TypeVar("T")

WAIT_S_FIRST, WAIT_S_MAX = 0.05, 5.0
"""Shortest and longest pause between two attempts while store or broker is unavailable."""
REFUSED_S_MAX = 30.0
"""Longest pause between two attempts to publish a dead letter that the log refuses."""
READS = frozenset({"get", "get a key"})
"""Operations that write nothing, so their latency says nothing about the load that writes put on store and broker."""
REFUSED = BrokerUnavailable("a dead letter is refused in every form")
OFFERING = "publish a dead letter"


async def retry_while_unavailable(
    service: ServiceRuntime,
    position: Position,
    operation: str,
    act: Callable[P, Awaitable[T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Return the result of `act`. While store, broker or key folder is unavailable, call it again after a pause. This
    does not count as an attempt of the run."""
    pause_s, away, ports = WAIT_S_FIRST, None, service.ports
    while True:
        began = ports.clock.monotonic_s()
        try:
            value = await act(*args, **kwargs)
        except (StoreUnavailable, BrokerUnavailable) as why:
            away = why
            ports.outage_watch.unavailable(operation, why)
            await ports.assignment.pause(pause_s * (0.5 + ports.clock.chance()), position)
            pause_s = min(pause_s * 2, WAIT_S_MAX)
        except Ambiguous:
            ports.outage_watch.answer_lost()
            raise
        else:
            if operation not in READS and (load := ports.outage_watch.load) is not None:
                now = ports.clock.monotonic_s()
                load.took(now - began, now)
            if away is not None:
                ports.outage_watch.recovered(away)
            return value


def report_refused_write(
    service: ServiceRuntime, saga: str | None, operation: Literal["write", "archive", "update"], why: StoreError
) -> None:
    """Report a write that the store refused, for the metrics."""
    kind: Literal["conflict", "ambiguous"] = "ambiguous" if isinstance(why, Ambiguous) else "conflict"
    service.ports.outage_watch.report(WriteRefused(service=service.name, saga=saga, operation=operation, why=kind))


def send(service: ServiceRuntime, position: Position, outgoing: Sequence[Outgoing]) -> Coroutine[object, object, None]:
    """Publish records, and return when all are acknowledged."""
    return retry_while_unavailable(service, position, "publish", service.ports.publisher.publish, outgoing)


async def send_dead_letter(service: ServiceRuntime, position: Position, whole: Outgoing) -> None:
    """Publish a dead letter in full, or with as much of the original as the log accepts; return when it is
    acknowledged.

    While the log rejects every form of it, this is reported, and publishing is tried again.
    """
    ports, pause_s, was_refused = service.ports, WAIT_S_FIRST, False
    while (
        refusal := await offer_dead_letter(service, whole, lambda form: send(service, position, [form]))
    ) is not None:
        was_refused = True
        ports.outage_watch.unavailable(OFFERING, refusal)
        await ports.assignment.pause(pause_s, position)
        pause_s = min(pause_s * 2, REFUSED_S_MAX)
    if was_refused:
        ports.outage_watch.recovered(REFUSED)


async def offer_dead_letter(
    service: ServiceRuntime, whole: Outgoing, publish: Callable[[Outgoing], Awaitable[None]]
) -> BrokerUnavailable | None:
    """Try once to publish the dead letter: in full, then in smaller and smaller forms.

    Returns `None` once it is acknowledged; otherwise the reason why it is not.
    """
    refusal = REFUSED
    for form in dead_letters.shrink(whole, service.ports.publisher.record_bytes_max):
        try:
            await publish(form)
        except BrokerUnavailable as why:  # a smaller dead letter would not help
            return why
        except Exception as why:  # noqa: BLE001 - an error of a dead letter must not end the worker
            refusal = BrokerUnavailable(f"{REFUSED}: {type(why).__name__}: {why}")
        else:
            return None
    return refusal


def report_dead_letter(service: ServiceRuntime, saga: str, letter: DeadLetterRecord) -> None:
    """Report a dead letter or an escalation as a telemetry event."""
    moment = dead_letters.to_telemetry(service.name, saga, letter, service.contracts.get(letter.message.type))
    if moment is not None:
        service.ports.outage_watch.report(moment)


def timer_record(service: ServiceRuntime, saga: str, id_: str, due_ms: int, *, unknown_ms: int = 0) -> Outgoing:
    """Make the record of a timer that is published now."""
    now_ms = service.ports.clock.now_ms()
    return timers.timer_to_record(service.name, saga, id_, due_ms, now_ms, unknown_ms=unknown_ms)


def outbox_records(service: ServiceRuntime, p: SagaProgress, entry: Transition) -> list[Outgoing]:
    """Make the records of a transition: events in recorded order, then dead letters.

    They are built only from the contents of the progress, so publishing them again sends the same bytes.
    """
    contracts = service.contracts
    messages = build_messages(p, entry)
    if (tracing := service.ports.outage_watch.tracing) is not None:
        messages = [replace(m, trace=tracing.outgoing_header(m)) for m in messages]
    records = [envelope.to_record(m, contracts[m.type]) for m in messages]
    if not entry.letters:  # the usual case
        return records
    return records + [
        dead_letters.to_outgoing(
            service.name,
            letter,
            entry.time,
            f"transition {entry.n} of {service.name} in saga {p.saga}",
            contracts.get(letter.message.type),
        )
        for letter in entry.letters
    ]
