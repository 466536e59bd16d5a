"""Transitions as a worker publishes them: each as it was written, blocking no message, and none missing for ever."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga import Saga, Service
from saga.broker.port import RECORD_BYTES_MAX
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence import transition_publisher
from saga.engine.persistence.transition_publisher import TransitionPublisher
from saga.engine.prepared_service import prepare
from saga.engine.processing_state import Measurements
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Record
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import TOPIC, TransitionEvent, WaitingMessage, parse_transitions
from saga.progress.document import PendingMessage, SagaProgress, SuspendedRun, Transition, decode_transition
from saga.support.clock import LATEST_MS, iso
from saga.telemetry.events import TransitionsDropped
from services.payment.events import (
    OrderCancelled,
    OrderConfirmed,
    OrderPlaced,
    PaymentCaptured,
    PaymentReleased,
    PaymentReserved,
)
from tests.engine.real_worker import Impatient, Workplace, an_order, at_work, workplace

CARD = "4111-SECRET-1111"
payment = Service("payment")


class Terminal:
    async def charge(self, card: str) -> str:
        if card == "unheard-of":
            raise ConnectionError(f"{card}: no answer, says PIN-SECRET")
        return f"charged {card}"


@payment.resource(timeout_s=5)
async def terminal() -> AsyncIterator[Terminal]:
    yield Terminal()


@payment.handler
async def reserve(order: OrderPlaced, terminal: Terminal, saga: Saga) -> PaymentReserved:
    charge = await saga.step(terminal.charge, order.card)
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


@payment.handler
async def capture(confirmed: OrderConfirmed, reserved: PaymentReserved) -> PaymentCaptured:
    return PaymentCaptured(order_id=confirmed.order_id, amount=reserved.amount)


@payment.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
    return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)


async def read_transition_events(place: Workplace) -> list[TransitionEvent]:
    return [transition for record in await place.records(TRANSITIONS) for transition in parse_transitions(record)]


# ---------------------------------------------------------------- at a worker


async def test_a_worker_publishes_what_became_of_each_message_and_what_the_saga_waits_for(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        await place.broker.ensure_topics([TOPIC])
        async with at_work(place, payment, tells=TOPIC):
            await place.publish(OrderConfirmed(order_id="order-1"))
            await place.at_rest(payment)
            await place.publish(an_order(card=CARD))
            await place.at_rest(payment)
        waits, reserved, captured = await read_transition_events(place)
        history = await place.history(payment)
        p = await place.progress(payment)
    assert [(t.service, t.saga, t.number) for t in (waits, reserved, captured)] == [
        ("payment", "order-1", n) for n in range(3)
    ]
    assert (waits.outcome, waits.message.type, waits.awaits) == (
        "waiting",
        "OrderConfirmed",
        (WaitingMessage(handler="capture", types=("PaymentReserved",)),),
    )
    assert (reserved.outcome, reserved.handler, reserved.steps) == ("handled", "reserve", ("charge",))
    assert [event.type for event in reserved.emitted] == ["PaymentReserved"]
    assert (reserved.message.topic, reserved.message.id) == ("orders", history[1].message)
    assert reserved.worker == "payment-1"
    assert None not in (reserved.queued_ms, reserved.handler_ms)
    assert [t.time for t in (waits, reserved, captured)] == [entry.time for entry in history]
    assert [waits.hash, reserved.hash] == [entry.previous for entry in history[1:]]
    assert p is not None
    assert captured.hash == p.hash
    assert (captured.open, captured.kept_s, captured.awaits) == (False, 30 * 86400, ())


async def test_a_failure_is_published_with_its_class_and_no_text_and_no_event_with_its_content(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        await place.broker.ensure_topics([TOPIC])
        async with at_work(place, payment, tells=TOPIC):
            await place.publish(an_order(card=CARD), an_order("order-2", card="unheard-of"))
            await place.publish(OrderConfirmed(order_id="order-1"))
            await place.until(lambda: any(t.saga == "order-2" for t in place.reported_dead_letters()))
            await place.at_rest(payment)
        transitions, raw = (
            await read_transition_events(place),
            b"".join(r.value or b"" for r in await place.records(TRANSITIONS)),
        )
    dead = [t for t in transitions if t.outcome == "dead"]
    assert [(t.saga, t.error, t.attempt > 1) for t in dead] == [("order-2", "ConnectionError", True)]
    assert dead[0].open
    assert len(transitions) >= 3
    # An amount, and not a part of a time.
    for secret in (rb"SECRET", rb"unheard-of", rb"charged", rb"\b9\.80\b", rb"Kiel", rb"customer-1"):
        assert not re.search(secret, raw)


async def test_the_handler_whose_dead_letter_the_failure_of_the_saga_closes_is_published(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        await place.broker.ensure_topics([TOPIC])
        async with at_work(place, payment, tells=TOPIC):
            await place.publish(an_order(card="unheard-of"))
            await place.until(lambda: bool(place.reported_dead_letters()))
            await place.publish(OrderCancelled(order_id="order-1", reason="no money"))
            await place.at_rest(payment)
        transitions = await read_transition_events(place)
    assert [(t.handler, t.outcome, t.closed) for t in transitions][-2:] == [
        ("reserve", "dead", ()),
        ("release", "compensated", ("reserve",)),
    ]


async def test_a_worker_that_is_not_to_publish_transitions_publishes_none(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        await place.broker.ensure_topics([TOPIC])
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.at_rest(payment)
        assert await read_transition_events(place) == []
        p = await place.progress(payment)
    assert p is not None
    assert p.transitions_published == 0


async def test_transitions_of_a_worker_without_publishing_are_published_by_the_next_that_loads_them(
    tmp_path: Path,
) -> None:
    async with workplace(tmp_path) as place:
        await place.broker.ensure_topics([TOPIC])
        async with at_work(place, payment):
            await place.publish(an_order(), an_order("order-2"))
            await place.at_rest(payment)
        async with at_work(place, payment, tells=TOPIC):
            await place.publish(OrderConfirmed(order_id="order-1"))
            await place.at_rest(payment)
        transitions = await read_transition_events(place)
        p = await place.progress(payment)
    assert [(t.saga, t.number, t.handler_ms is None) for t in transitions] == [
        ("order-1", 0, True),
        ("order-1", 1, False),
    ]
    assert p is not None
    assert [t.hash for t in transitions][-1] == p.hash


async def test_messages_are_handled_and_committed_though_no_transition_can_be_published(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:  # the topic is not there
        async with at_work(place, payment, tells=TOPIC):
            await place.publish(an_order())
            await place.at_rest(payment)
        assert len(await place.history(payment)) == 1
        (moment,) = place.reported(TransitionsDropped)
        assert (moment.count, "there is no topic 'saga.transitions'" in moment.error) == (1, True)
        await place.broker.ensure_topics([TOPIC])
        async with at_work(place, payment, tells=TOPIC):
            await place.publish(OrderConfirmed(order_id="order-1"))
            await place.at_rest(payment)
        assert [t.number for t in await read_transition_events(place)] == [0, 1]


# ---------------------------------------------------------------- by itself


@dataclass
class Paper:
    """Log that takes what it can."""

    fails: Exception | None = None
    taken: list[Outgoing] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    has_taken: asyncio.Event = field(default_factory=asyncio.Event)
    record_bytes_max: int = RECORD_BYTES_MAX

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        if self.fails is not None:
            raise self.fails
        self.taken += messages
        self.batches.append(len(messages))
        self.has_taken.set()

    def transition_events(self) -> list[TransitionEvent]:
        records = [Record(r.topic, 0, n, r.key, r.value, r.headers, 0) for n, r in enumerate(self.taken)]
        return [transition for record in records for transition in parse_transitions(record)]


@dataclass
class Desk:
    """Place of a telling on a log of paper."""

    log: Paper = field(default_factory=Paper)
    moments: list[object] = field(default_factory=list)
    clock: Impatient = field(default_factory=Impatient)

    def telling(self) -> TransitionPublisher:
        return TransitionPublisher(
            prepare(payment.declared), self.log, OutageWatch("payment", self.clock, self.moments.append)
        )


KNOWN: list[SagaProgress] = []


async def history_at(folder: Path) -> list[SagaProgress]:
    """The versions of one progress, each with one more transition."""
    if KNOWN:  # that takes its time
        return KNOWN
    async with workplace(folder) as place:
        for event in (an_order(), OrderConfirmed(order_id="order-1"), OrderCancelled(order_id="order-1", reason="")):
            async with at_work(place, payment):
                await place.publish(event)
                await place.at_rest(payment)
            p = await place.progress(payment)
            assert p is not None
            KNOWN.append(p)
    return KNOWN


def last(p: SagaProgress) -> Transition:
    return decode_transition(p.transitions[-1])


async def test_the_mark_rises_with_what_is_acknowledged_and_not_before(tmp_path: Path) -> None:
    desk = Desk()
    one, two, *_ = await history_at(tmp_path)
    telling = desk.telling()
    telling.on_written(one, last(one), Measurements())
    assert telling.published_below(one) == 0
    desk.log.fails = BrokerUnavailable("it is away")
    assert not await telling.publish()
    assert telling.published_below(one) == 0
    desk.log.fails = None
    desk.clock.ahead_ms += 1000
    assert await telling.publish()
    assert telling.published_below(one) == one.n
    telling.on_written(two, last(two), Measurements())
    await telling.publish()
    assert telling.published_below(two) == two.n
    assert [t.number for t in desk.log.transition_events()] == [last(one).n, last(two).n]
    telling.on_loaded(two)  # nothing of it is new
    await telling.publish()
    assert len(desk.log.taken) == 2


async def test_a_commit_waits_for_a_log_that_is_away_for_ten_seconds_and_no_longer(tmp_path: Path) -> None:
    desk = Desk(Paper(fails=BrokerUnavailable("it is away")))
    one, *_ = await history_at(tmp_path)
    telling = desk.telling()
    telling.on_loaded(one)
    waits = []
    for _ in range(24):
        waits.append(not await telling.publish())
        desk.clock.ahead_ms += 500
    assert waits[:20] == [True] * 20
    assert waits[22:] == [False, False]
    desk.log.fails = None
    desk.clock.ahead_ms += 1000
    assert await telling.publish()
    assert [t.number for t in desk.log.transition_events()] == [0]


async def test_beyond_the_bound_new_ones_are_dropped_and_published_when_their_saga_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk()
    one, two, three = await history_at(tmp_path)
    telling_ = desk.telling()
    telling_.on_written(one, last(one), Measurements())
    monkeypatch.setattr(transition_publisher, "QUEUED_BYTES_MAX", telling_._bytes)
    telling_.on_written(two, last(two), Measurements())
    (moment,) = desk.moments
    assert isinstance(moment, TransitionsDropped)
    assert moment.count == 1
    await telling_.publish()
    monkeypatch.undo()
    telling_.on_written(three, last(three), Measurements())
    await telling_.publish()
    assert telling_.published_below(three) == 0  # as the progress says: one is missing
    telling_.on_loaded(three)  # as this worker itself left it: it is not published again while it is known
    again = desk.telling()
    again.on_loaded(three)
    await again.publish()
    assert [t.number for t in desk.log.transition_events()] == [0, 2, 0, 1, 2]
    assert again.published_below(three) == 3


async def test_a_transition_event_has_the_due_times_of_the_parked_head_and_of_the_next_deadline(tmp_path: Path) -> None:
    desk = Desk()
    one, *_ = await history_at(tmp_path)
    message = one.results[0].event
    late, soon, dead, never = (
        PendingMessage(handler="reserve", message=message, n=0, due_ms=ms) for ms in (9000, 5000, 0, LATEST_MS + 1)
    )
    held_up = replace(soon, put_off=True)  # its checks are not published, so it is never late
    telling = desk.telling()
    for queue, deadlines in (
        ((late, soon), ()), ((dead, soon), (late, soon)), ((), ()), ((never,), (never,)), ((held_up,), (held_up, late))
    ):  # fmt: skip
        telling.on_written(replace(one, queue=queue, deadlines=deadlines), last(one), Measurements())
    await telling.publish()
    assert [(t.parked_until, t.due, t.open) for t in desk.log.transition_events()] == [
        ("1970-01-01T00:00:09.000Z", None, True),
        (None, "1970-01-01T00:00:05.000Z", True),
        (None, None, False),
        (iso(LATEST_MS), iso(LATEST_MS), True),
        (iso(LATEST_MS), "1970-01-01T00:00:09.000Z", True),
    ]


async def test_what_postpones_a_run_is_published_by_its_class_as_long_as_it_is_parked(tmp_path: Path) -> None:
    desk = Desk()
    one, *_ = await history_at(tmp_path)
    kept = PendingMessage(handler="reserve", message=one.results[0].event, n=0, due_ms=5000, put_off=True)
    refused = replace(
        last(one), outcome="retrying", reason="BreakerOpen: the breaker of bank is open: calls to it failed"
    )
    telling = desk.telling()
    for entry, queue in (
        (refused, (kept,)),
        (refused, (replace(kept, put_off=False),)),
        (refused, ()),
        (replace(refused, outcome="handled"), (kept,)),
        (replace(refused, reason="paused"), (kept,)),
    ):
        telling.on_written(replace(one, queue=queue), entry, Measurements())
    await telling.publish()
    assert [t.postponed_by for t in desk.log.transition_events()] == ["BreakerOpen", None, None, None, None]


async def test_a_suspended_run_is_published_with_its_time_unless_an_operator_has_to_release_it(tmp_path: Path) -> None:
    desk = Desk()
    one, *_ = await history_at(tmp_path)
    message = one.results[0].event
    goes_on = SuspendedRun(
        handler="reserve",
        parts=(message,),
        n=0,
        turn=1,
        first_ms=0,
        seen_ms=0,
        due_ms=7000,
        awaited_types=("OrderConfirmed",),
    )
    dead = PendingMessage(handler="reserve", message=message, n=0, dead="letter")
    telling = desk.telling()
    for queue in ((), (replace(dead, handler="capture"),), (dead,)):
        telling.on_written(replace(one, suspended_runs=(goes_on,), queue=queue), last(one), Measurements())
    await telling.publish()
    assert [(each.handler, each.types, each.until) for t in desk.log.transition_events() for each in t.awaits] == [
        ("reserve", ("OrderConfirmed",), "1970-01-01T00:00:07.000Z"),
        ("reserve", ("OrderConfirmed",), "1970-01-01T00:00:07.000Z"),
        ("reserve", ("OrderConfirmed",), None),
    ]


async def test_a_message_pending_for_the_start_of_its_saga_is_published_with_the_start_types(
    tmp_path: Path,
) -> None:
    desk = Desk()
    one, *_ = await history_at(tmp_path)
    outcome = PendingMessage(handler="reserve", message=one.results[0].event, n=0)
    telling = desk.telling()
    for p in (replace(one, compensating=(outcome,)), replace(one, waiting=(outcome,))):
        telling.on_written(replace(p, started=None), last(one), Measurements())
    await telling.publish()
    assert [(each.handler, each.types) for t in desk.log.transition_events() for each in t.awaits] == [
        ("release", ("OrderPlaced",)),
        ("reserve", ("OrderPlaced",)),
    ]


async def test_a_transition_event_that_cannot_be_published_is_dropped_and_blocks_nothing(tmp_path: Path) -> None:
    desk = Desk(Paper(fails=BrokerError("no such topic")))
    one, two, *_ = await history_at(tmp_path)
    telling = desk.telling()
    telling.on_loaded(one)
    assert await telling.publish()
    desk.log.fails = None
    telling.on_loaded(two)
    assert await telling.publish()
    assert [t.number for t in desk.log.transition_events()] == [0, 1]


async def test_a_saga_that_begins_again_under_its_id_is_published_from_its_beginning(tmp_path: Path) -> None:
    desk = Desk()
    one, two, _ = await history_at(tmp_path)
    telling = desk.telling()
    for p in (one, two, one):
        telling.on_written(p, last(p), Measurements())
    await telling.publish()
    assert [t.number for t in desk.log.transition_events()] == [0, 1, 0]
    telling.on_written(two, last(two), Measurements())
    assert telling.published_below(two) == 1


async def test_a_damaged_transition_is_a_gap_and_stops_no_worker(tmp_path: Path) -> None:
    desk = Desk()
    *_, three = await history_at(tmp_path)
    telling = desk.telling()
    telling.on_loaded(replace(three, transitions=(three.transitions[0], Raw(b'{"n":"one"}'), three.transitions[2])))
    await telling.publish()
    assert [t.number for t in desk.log.transition_events()] == [0, 2]
    assert telling.published_below(three) == 1


async def test_transitions_of_many_lanes_are_published_in_one_batch(tmp_path: Path) -> None:
    desk = Desk()
    one, two, _ = await history_at(tmp_path)
    telling = desk.telling()
    async with asyncio.timeout(40), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(telling.run())
        telling.on_written(one, last(one), Measurements())
        telling.on_written(two, last(two), Measurements())
        await desk.log.has_taken.wait()
        running.cancel()
    assert (desk.log.batches, len(desk.log.transition_events())) == ([1], 2)


async def test_published_transitions_free_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    one, two, _ = await history_at(tmp_path)
    telling_ = desk.telling()
    telling_.on_written(one, last(one), Measurements())
    monkeypatch.setattr(transition_publisher, "QUEUED_BYTES_MAX", 2 * telling_._bytes - 1)
    await telling_.publish()
    telling_.on_written(two, last(two), Measurements())
    await telling_.publish()
    assert [t.number for t in desk.log.transition_events()] == [0, 1]
    assert not desk.moments
