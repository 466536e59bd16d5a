"""Create a million sagas for the monitor within seconds.

A few sagas are created from transition events. The others are copies of them with other ids and times. A test checks
that a copy equals a saga that was created from the same transitions. A copy takes a tenth of the time, and as much
memory. Rates and similar figures cover only the sagas that were created from events.
"""

from collections.abc import Iterator

import msgspec

from saga.messages import Outgoing, Record
from saga.messaging.transition_events import (
    EmittedMessage,
    TransitionCause,
    TransitionEvent,
    WaitingMessage,
    make_line,
    parse_transitions,
    transitions_to_records,
)
from saga.monitor.counters import TimeHistogram
from saga.monitor.read_model import ReadModel
from saga.monitor.saga_index import PACKING, ServiceState, TrackedSaga
from saga.support.clock import iso

APART_MS = 2
"""Milliseconds between the starts of two sagas: 500 sagas per second with ten transitions each are 5,000 transitions
per second."""
GROUP = 400
"""Size of a group of sagas. In each group, one saga of each kind is created from events, and the others are copies."""
RUNNING = 20
"""One in this number of sagas is still running."""
STUCK = 500
"""Number of stuck sagas. They are waiting, and unlike other running sagas they have no deadline."""
DAY_MS = 86_400_000
SHAPE = (
    ("order", "place", "handled", "OrderPlaced"),
    ("payment", "reserve", "handled", "PaymentReserved"),
    ("inventory", "set_aside", "handled", "InventoryReserved"),
    ("shipping", "book", "waiting", ""),
    ("shipping", "book", "waiting", ""),
    ("shipping", "book", "handled", "ShipmentBooked"),
    ("order", "confirm", "handled", "OrderConfirmed"),
    ("payment", "capture", "handled", "PaymentCaptured"),
    ("inventory", "hand_out", "handled", "StockHandedOut"),
    ("shipping", "dispatch", "handled", "Dispatched"),
)
"""Transitions of a saga of the example, in the order in which they are published."""
_standings = msgspec.json.Decoder(tuple[ServiceState, ...])


def make_transition_events(
    n: int, begin_ms: int, upto: int = len(SHAPE), due: str | None = None
) -> Iterator[TransitionEvent]:
    """Yield the first `upto` transitions of the n-th saga. `due`: time at which its deadline is due; `None` if it has
    none."""
    numbers: dict[str, int] = {}
    for place, (service, handler, outcome, emitted) in enumerate(SHAPE[:upto]):
        number = numbers[service] = numbers.get(service, -1) + 1
        yield TransitionEvent(
            service=service,
            saga=name_of(n),
            number=number,
            time=iso(begin_ms + n * APART_MS + place * 20),
            handler=handler,
            outcome=outcome,
            message=TransitionCause(
                id=f"{n:024}{place:08}", type="OrderPlaced", source="order", topic="orders", partition=n % 12, offset=n
            ),
            worker=f"host-{n // GROUP % 4}:17",
            emitted=(EmittedMessage(id=f"{n:024}{place:08}", type=emitted),) if emitted else (),
            steps=("reserve",) if handler == "reserve" else (),
            queued_ms=n // GROUP % 7,
            handler_ms=n // GROUP % 50,
            open=due is not None and not place,
            due=due if not place else None,
            awaits=(WaitingMessage(handler="book", types=("PaymentReserved",)),) if outcome == "waiting" else (),
            result="success" if handler == "confirm" else None,
            hash="0" * 64,
            previous="0" * 64,
        )


def name_of(n: int) -> str:
    """Return the id of the n-th saga."""
    return f"order-{n:07}"


def population(count: int, begin_ms: int, due_ms: int) -> ReadModel:
    """Return the read model of `count` sagas. One in `RUNNING` is still running; `STUCK` of these have no deadline."""
    folds, originals = ReadModel(count), dict[tuple[bool, bool], tuple[int, TrackedSaga]]()
    for n in range(count):
        kind = n % RUNNING == 0, n < RUNNING * STUCK
        first, original = originals.get(kind, (-GROUP, None))
        if original is not None and n - first < GROUP:
            _copy(folds, original, name_of(n), (n - first) * APART_MS)
            continue
        fold(folds, n, begin_ms, due_ms)
        originals[kind] = n, folds.sagas[name_of(n)]
    return folds


def fold(folds: ReadModel, n: int, begin_ms: int, due_ms: int) -> None:
    """Apply the transitions of the n-th saga to the read model."""
    is_running, is_stuck = n % RUNNING == 0, n < RUNNING * STUCK
    due = iso(due_ms) if is_running and not is_stuck else None
    transitions = make_transition_events(n, begin_ms, 5 if is_running else len(SHAPE), due)
    for record in transitions_to_records(map(make_line, transitions)):
        for each in parse_transitions(record_of(record)):
            folds.apply(each, 1 << 50)


def _copy(folds: ReadModel, of: TrackedSaga, saga: str, later_ms: int) -> None:
    """Add a copy of the saga `of` to the read model, with the id `saga` and with times that are later by `later_ms`."""
    known = TrackedSaga(saga)
    known.packed = b"".join(PACKING.pack(*each[:2], each[2] + later_ms, *each[3:]) for each in of)
    known.began_ms, known.changed_ms, known.has_start = of.began_ms + later_ms, of.changed_ms + later_ms, of.has_start
    known.kind = of.kind
    if of.ended is not None:
        known.ended = of.ended[0] + later_ms, *of.ended[1:]
        folds.lives.setdefault(of.kind, TimeHistogram()).add(known.ended[0] - known.began_ms)
    else:
        folds.without_outcome.add(known, known.began_ms)
    if of.service_states:  # with strings of its own, as after decoding
        known.service_states = _standings.decode(msgspec.json.encode(of.service_states))
    known.stuck_candidates = tuple(
        (why, since_ms if why[0] == "overdue" else since_ms + later_ms) for why, since_ms in of.stuck_candidates
    )
    for why, since_ms in known.stuck_candidates:
        folds.stuck_candidates[why].add(known, since_ms)
    folds.by_change_time.add(known, known.changed_ms)
    folds.sagas[saga] = known
    folds.taken += known.count


def record_of(outgoing: Outgoing) -> Record:
    """Return a published record in the form in which a reader gets it."""
    return Record(outgoing.topic, 0, 0, outgoing.key, outgoing.value, (), 0)
