"""Transitions as services would tell them, made by hand."""

from dataclasses import dataclass, field

from saga.messages import Outgoing
from saga.messaging.transition_events import (
    EmittedMessage,
    Result,
    TransitionCause,
    TransitionEvent,
    WaitingMessage,
    make_line,
    transitions_to_records,
)
from saga.monitor.queries import Queries
from saga.monitor.read_model import ReadModel
from saga.support.clock import iso

BEGIN_MS = 1_795_270_000_000
S, MINUTE = 1000, 60_000


def record_of(event: TransitionEvent) -> Outgoing:
    """Record of a single transition event."""
    (record,) = transitions_to_records([make_line(event)])
    return record


def make_transition(  # an argument for each field that tests choose
    service: str,
    number: int,
    ms: int,
    outcome: str = "handled",
    *,
    saga: str = "order-1",
    handler: str = "reserve",
    type_: str = "OrderPlaced",
    emitted: tuple[str, ...] = (),
    awaits: tuple[tuple[str, tuple[str, ...]], ...] = (),
    later: tuple[tuple[str, tuple[str, ...], int], ...] = (),
    open_: bool = False,
    due_ms: int | None = None,
    parked_ms: int | None = None,
    result: Result | None = None,
    error: str | None = None,
    blame: str | None = None,
    handler_ms: int | None = 5,
    queued_ms: int | None = 2,
    partition: int = 0,
    closed: tuple[str, ...] = (),
) -> TransitionEvent:
    """Transition of a saga, `ms` after the beginning of all."""
    return TransitionEvent(
        service=service,
        saga=saga,
        number=number,
        time=iso(BEGIN_MS + ms),
        handler=handler,
        outcome=outcome,
        error=error,
        blame=blame,
        message=TransitionCause(
            id=f"{type_}-{saga}", type=type_, source="client", topic="orders", partition=partition, offset=number
        ),
        emitted=tuple(EmittedMessage(id=f"{type_}-{saga}", type=type_) for type_ in emitted),
        steps=("charge",),
        closed=closed,
        queued_ms=queued_ms,
        handler_ms=handler_ms,
        open=open_,
        awaits=(
            *(WaitingMessage(handler=handler, types=types) for handler, types in awaits),
            *(
                WaitingMessage(handler=handler, types=types, until=iso(BEGIN_MS + until))
                for handler, types, until in later
            ),
        ),
        due=None if due_ms is None else iso(BEGIN_MS + due_ms),
        parked_until=None if parked_ms is None else iso(BEGIN_MS + parked_ms),
        result=result,
        worker="here:1",
        hash=f"{service}-{number}",
        previous="",
    )


@dataclass
class Monitor:
    """Folds, and their answers at times after the beginning of all."""

    folds: ReadModel = field(default_factory=ReadModel)

    def __post_init__(self) -> None:
        self.answers = Queries(self.folds)

    def take(self, *transitions: TransitionEvent) -> "Monitor":
        """Fold these."""
        for each in transitions:
            self.folds.apply(each, BEGIN_MS + 1000 * MINUTE)
        return self

    def stuck(self, ms: int) -> list[tuple[str, str, int]]:
        """Sagas that are stuck then, why, and since when."""
        found = self.answers.stuck(BEGIN_MS + ms).sagas
        return [(each.saga, each.why, each.since_ms - BEGIN_MS) for each in found]

    def ends(self, ms: int) -> str:
        """Words for what would end the first stuck saga."""
        return self.answers.stuck(BEGIN_MS + ms).sagas[0].awaited.ends
