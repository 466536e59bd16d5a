"""Schedules just outside of what is explored: other states, other versions, no start time, several results."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace as with_

from saga import Retry, Saga, Service
from saga.engine.consumer.delivery import MessageDelivery
from saga.engine.consumer.keyed_executor import WorkItem
from saga.engine.consumer.offset_tracker import OffsetTracker
from saga.engine.errors import Draining, Superseded
from saga.engine.execution import document_updates
from saga.engine.execution.document_updates import DocumentUpdate
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.repair import republish_saga
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, BadInput, Conflict, SagaError, StoreError
from saga.messages import Event, Message, Outgoing, Position, texts_of
from saga.messaging import envelope
from saga.progress import failed_attempts as attempts_that_failed
from saga.progress import history, overflow
from saga.progress.document import decode_progress, encode
from saga.progress.takeover import is_takeover_due
from saga.telemetry.events import Escalated
from saga.testing.trials import TrialClock
from services.inventory.stock import Stock
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentReleased, PaymentReserved
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, an_order

CANCELLED = OrderCancelled(order_id=SAGA, reason="no")
CONFIRMED = OrderConfirmed(order_id=SAGA)
MONTHS = timedelta(days=40)


@dataclass(frozen=True)
class Seen:
    confirmed: bool = False


def passes(at: Workers, time: timedelta) -> None:
    """Time passes, without anything that happens."""
    at.clock._now_ms += int(time.total_seconds() * 1000)


def once(act: Callable[[], Awaitable[object]]) -> Callable[[str, str], Awaitable[None]]:
    """Have it happen before the first write, and before no other."""
    left = [act]

    async def before(collection: str, key: str) -> None:
        if left:
            await left.pop()()

    return before


# ---------------------------------------------------------------- what a rerun is bound to


def reads_unless_confirmed(read: list[bool]) -> Service[Seen]:
    payment = Service("payment", state=Seen)
    payment.document(Stock, "stock")

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[Seen]) -> PaymentReserved:
        if not saga.state.confirmed:
            await saga.read(Stock, order.sku)
        read.append(not saga.state.confirmed)
        await saga.update(Stock, order.sku, opened)
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def note(confirmed: OrderConfirmed, saga: Saga[Seen]) -> None:
        saga.state = replace(saga.state, confirmed=True)

    return payment


async def test_reads_before_a_refused_first_write_do_not_bind_a_rerun(tmp_path: Path) -> None:
    read: list[bool] = []
    payment = reads_unless_confirmed(read)
    async with place(tmp_path) as at:
        one, other = await at.worker(payment), await at.worker(payment)
        at.watched.before = once(lambda: other.takes(CONFIRMED))
        await one.takes(an_order())
        assert read == [True, False], "the state had changed: the rerun goes another way"
        assert await one.outcomes() == [("note", "handled"), ("reserve", "handled")]
        assert not one.dead


async def test_reads_before_a_refused_first_write_do_not_bind_a_run_of_another_worker(
    tmp_path: Path,
) -> None:
    read: list[bool] = []
    payment = reads_unless_confirmed(read)
    async with place(tmp_path) as at:
        one, other = await at.worker(payment), await at.worker(payment)

        async def another_begins() -> None:
            await other.takes(CONFIRMED)
            at.watched.before = only_to_the_intent
            with suppress(Draining):
                await other.takes(an_order())
            at.watched.before = None

        at.watched.before = once(another_begins)
        await one.takes(an_order())
        assert await one.outcomes() == [("note", "handled"), ("reserve", "handled")]
        assert not one.dead


def opened(stock: Stock | None) -> Stock:
    return stock or Stock(left=5)


# ---------------------------------------------------------------- outcomes that come without a start, or early


def undoable(ran: list[str], *, many: bool = False) -> Service:
    payment = Service("payment")

    @payment.handler(repeats=OrderPlaced if many else None)
    async def reserve(order: OrderPlaced) -> list[PaymentReserved]:
        ran.append("reserve")
        both = (PaymentReserved(order_id=order.order_id, charge_id=c, amount=order.total) for c in "ab")
        return list(both) if many else list(both)[:1]

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> PaymentReleased:
        ran.append(f"release {reserved.charge_id}")
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    return payment


async def test_a_failure_without_a_start_time_waits_where_nothing_is_known_of_its_saga(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        payment = undoable(ran)
        worker = await at.worker(payment)
        await worker.takes(an_order())
        await at.store.remove("saga", f"payment::{SAGA}", cas=(await at.store.get("saga", f"payment::{SAGA}")).cas)  # type: ignore[union-attr]
        passes(at, MONTHS)
        await worker.takes(CANCELLED, started=None)
        p = await worker.progress()
        assert await worker.outcomes() == [("release", "waiting")]
        assert [k.message.type for k in p.compensating] == ["OrderCancelled"]
        assert p.is_open, "it never expires"
        assert not p.closed, "that nothing was to be undone is not known"
        first = await worker.takes(CANCELLED, started=None)
        assert first.is_complete
        assert (await worker.progress()).n == 1, "it is kept already"


async def test_a_pending_message_does_not_restart_a_forgotten_saga(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        worker = await at.worker(undoable(ran))
        began = "2025-06-01T00:00:00.000Z"
        await worker.takes(CANCELLED, started=None)
        await worker.takes(an_order(), started=began)
        assert not ran, "it may have run then"
        assert [letter["dead_reason"][:24] for letter in worker.dead] == ["older than the retention"]
        assert (await worker.progress()).started is None


async def test_a_message_rejected_as_too_old_by_a_clock_far_ahead_runs_when_published_again(
    tmp_path: Path,
) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        worker, clock_before = await at.worker(undoable(ran)), at.clock
        at.clock = TrialClock()
        await at.clock.sleep(400 * 86_400)
        ahead = await at.worker(undoable(ran))
        for event in (an_order(), CANCELLED):
            message = worker.message(event)
            assert (await MessageProcessor(ahead.participant).process(ahead.begun(event, message))).is_complete
        assert not ran
        assert [letter["dead_type"] if "dead_type" in letter else letter["ce_type"] for letter in ahead.dead] == [
            "OrderPlaced",
            "OrderCancelled",
        ]
        assert all("whether this worker's clock is ahead" in letter["dead_remedy"] for letter in ahead.dead)
        assert (await worker.progress()).n == 0, "nothing is kept of it"
        at.clock = clock_before
        await worker.takes(CANCELLED)
        await worker.takes(an_order())
        assert await worker.outcomes() == [("release", "compensated"), ("reserve", "ignored")]


async def test_a_cached_progress_of_which_nothing_is_known_does_not_make_a_forgotten_saga_a_new_one(
    tmp_path: Path,
) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        worker = await at.worker(undoable(ran))
        turn = await worker.takes(CANCELLED, started=None)
        late = worker.message(an_order(), started="2025-06-01T00:00:00.000Z")
        await MessageProcessor(worker.participant).process(
            MessageProcessor(worker.participant).begin(
                late, Position("orders", 0, 9), (turn.loaded_progress, turn.cas)
            ),
        )
        assert not ran
        assert (await worker.progress()).started is None


async def test_a_failure_that_waited_closes_what_never_ran_once_its_saga_is_known(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        worker = await at.worker(undoable(ran))
        await worker.takes(CANCELLED, started=None)
        await worker.takes(an_order())
        assert await worker.outcomes() == [("release", "waiting"), ("reserve", "queued"), ("release", "compensated")]
        p = await worker.progress()
        assert (p.closed, p.compensating, p.queue) == (("reserve",), (), ())


async def test_no_original_runs_between_two_undoings(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        payment = undoable(ran, many=True)
        one, other = await at.worker(payment), await at.worker(payment)
        await one.takes(an_order())
        crashed = await one.takes(CANCELLED, id="cancel", writes_max=1)
        assert not crashed.is_complete
        assert ran[-1] == "release b"
        await other.takes(an_order(card="visa-2"))
        await one.takes(CANCELLED, id="cancel")
        assert [each for each in ran if each != "reserve"] == ["release b", "release a"]
        assert [o for h, o in await one.outcomes() if h == "reserve"] == ["handled", "queued"]
        p = await one.progress()
        assert (p.results, p.queue, p.compensating, p.closed) == ((), (), (), ("reserve",))


# ---------------------------------------------------------------- a version that takes more of its own events


def version(ran: list[str], *, joins: bool, many: bool = False) -> Service:
    """Version of the same service: the newer one takes what both emit."""
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        ran.append("reserve")
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler(repeats=OrderConfirmed)
    async def thank(confirmed: OrderConfirmed) -> None:
        ran.append("thank")

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        ran.append("release")

    if joins:

        @payment.handler(repeats=PaymentReserved if many else None)
        async def capture(reserved: PaymentReserved, confirmed: OrderConfirmed) -> None:
            ran.append(f"capture {reserved.charge_id}")

    return payment


@pytest.mark.parametrize("archived", [False, True])
async def test_a_new_handler_of_an_own_event_hears_what_earlier_versions_emitted(
    tmp_path: Path, archived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    if archived:
        monkeypatch.setattr(history, "TRANSITIONS_MAX", 3)
        monkeypatch.setattr(history, "TRANSITIONS_KEPT", 1)
    async with place(tmp_path) as at:
        old, new = await at.worker(version(ran, joins=False)), await at.worker(version(ran, joins=True))
        await old.takes(an_order())
        for n in range(8 if archived else 1):
            await old.takes(CONFIRMED, id=f"early-{n}")
        assert bool((await old.progress()).first) is archived
        await new.takes(CONFIRMED, id="late")
        assert "capture c" in ran
        assert (await new.progress()).self_consumed_types == ("PaymentReserved",)
        outcomes = await new.outcomes()
        await new.takes(CONFIRMED, id="late")
        await new.takes(an_order())
        assert await new.outcomes() == outcomes


async def test_events_of_undone_results_are_not_taken_over(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        old, new = await at.worker(version(ran, joins=False)), await at.worker(version(ran, joins=True))
        await old.takes(an_order())
        await old.takes(CANCELLED)
        await new.takes(CONFIRMED)
        assert ran == ["reserve", "release", "thank"]
        assert [own.event.type for own in (await new.progress()).self_consumed] == []


async def test_a_version_that_emits_an_event_no_more_hears_what_earlier_ones_emitted(tmp_path: Path) -> None:
    captures: list[str] = []
    newest = Service("payment")

    @newest.handler
    async def capture(reserved: PaymentReserved, confirmed: OrderConfirmed) -> None:
        captures.append(reserved.charge_id)

    former = Service("payment")

    @former.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    async with place(tmp_path) as at:
        await (await at.worker(former)).takes(an_order())
        await (await at.worker(newest)).takes(CONFIRMED)
        assert captures == ["c"]


async def test_events_taken_over_are_withdrawn_when_their_result_is_undone(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        old, new = await at.worker(version(ran, joins=False)), await at.worker(version(ran, joins=True))
        await old.takes(an_order())
        await new.takes(an_order(), id="another")
        assert [own.event.type for own in (await new.progress()).self_consumed] == ["PaymentReserved"]
        await new.takes(CANCELLED)
        await new.takes(CONFIRMED)
        assert [h for h, o in await new.outcomes() if o != "ignored"] == ["reserve", "release", "thank", "capture"]
        assert (await new.outcomes())[-1] == ("capture", "waiting")


async def test_a_handler_that_repeats_is_not_given_again_what_it_may_have_had_before_the_memory(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        old = await at.worker(version(ran, joins=False))
        new = await at.worker(version(ran, joins=True, many=True))
        await old.takes(an_order())
        for day in (20, 40):
            passes(at, timedelta(days=20))
            assert (await old.progress()).n, "it is not forgotten"
            await (old if day == 20 else new).takes(CONFIRMED, id=f"c{day}")
        assert ran == ["reserve", "thank", "thank"]


async def test_versions_that_take_turns_give_each_own_event_once(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        old, new = await at.worker(version(ran, joins=False)), await at.worker(version(ran, joins=True))
        await new.takes(an_order())
        await old.takes(CONFIRMED, id="c1")
        assert (await old.progress()).self_consumed == (), "it does not know what for"
        await new.takes(CONFIRMED, id="c2")
        await old.takes(CONFIRMED, id="c3")
        await new.takes(CONFIRMED, id="c4")
        assert ran.count("capture c") == 1


async def test_inbox_entries_in_segments_count_when_a_version_handles_an_event_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version between forgot the event, and so many messages came that its inbox entry is in a segment."""
    monkeypatch.setattr(overflow, "BOUNDS", overflow.OverflowBounds(inbox_max=4, inbox_kept=1))
    ran: list[str] = []
    async with place(tmp_path) as at:
        old, new = await at.worker(version(ran, joins=False)), await at.worker(version(ran, joins=True, many=True))
        await new.takes(an_order())
        await new.takes(CONFIRMED)
        for n in range(6):
            await old.takes(CONFIRMED, id=f"c{n}")
        p = await old.progress()
        assert p.self_consumed == ()
        assert p.segments
        await new.takes(CONFIRMED, id="late")
        assert ran.count("capture c") == 1


# ---------------------------------------------------------------- what one handler can decode and another cannot


async def test_a_handler_that_can_decode_waits_for_its_other_part_though_another_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    service = Service("billing")

    @service.handler
    async def first(reserved: PaymentReserved, order: OrderPlaced) -> None:
        raise AssertionError("it cannot decode the order")

    @service.handler
    async def second(confirmed: OrderConfirmed, order: OrderPlaced) -> None:
        ran.append((confirmed, order))

    as_it_is = ServiceRuntime.decode

    def only_second(self: ServiceRuntime, handler: str, message: Message) -> Event:
        if handler == "first" and message.type == "OrderPlaced":
            raise BadInput("of a version that it does not know")
        return as_it_is(self, handler, message)

    monkeypatch.setattr(ServiceRuntime, "decode", only_second)
    async with place(tmp_path) as at:
        worker = await at.worker(service)
        await worker.takes(an_order())
        assert await worker.outcomes() == [("first", "dead"), ("second", "waiting")]
        assert [letter["dead_reason"] for letter in worker.dead] == ["BadInput: of a version that it does not know"]


async def test_a_fan_in_that_a_later_version_can_decode_runs_with_all_its_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[Event, Event]] = []
    payment = Service("payment", state=Seen)

    @payment.handler(retry=Retry(attempts_max=1))
    async def note(confirmed: OrderConfirmed) -> None:
        raise OSError("not now")

    @payment.handler
    async def both(order: OrderPlaced, cancelled: OrderCancelled) -> None:
        ran.append((order, cancelled))

    as_it_is = ServiceRuntime.decode

    def not_yet(self: ServiceRuntime, handler: str, message: Message) -> Event:
        if message.type == "OrderPlaced":
            raise BadInput("not yet")
        return as_it_is(self, handler, message)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        await worker.takes(CONFIRMED)
        with monkeypatch.context() as patch:
            patch.setattr(ServiceRuntime, "decode", not_yet)
            await worker.takes(an_order())
        p = await worker.progress()
        assert [(k.handler, k.undecodable) for k in p.queue] == [("note", None), ("both", "not yet")]
        document = await at.store.get("saga", f"payment::{SAGA}")
        assert document is not None
        mended = replace_queue(document.content)
        await at.store.replace("saga", f"payment::{SAGA}", mended, cas=document.cas)
        await worker.takes(CANCELLED)
        assert ran == [(an_order(), CANCELLED)]
        assert len(worker.dead) == 1


def replace_queue(content: bytes) -> bytes:
    """The progress as if a person had taken the dead letter away."""
    p = decode_progress(content)
    return encode(with_(p, queue=tuple(k for k in p.queue if not k.dead)))


# ---------------------------------------------------------------- documents that many change


async def test_an_update_of_a_document_that_others_always_change_first_fails_by_the_handlers_timeout(
    tmp_path: Path,
) -> None:
    payment = Service("payment")
    payment.document(Stock, "stock")
    tries: list[str] = []

    @payment.handler(timeout_s=30, retry=Retry(attempts_max=2))
    async def take(order: OrderPlaced, saga: Saga) -> None:
        await saga.update(Stock, order.sku, opened)

    async def others_are_faster(collection: str, key: str) -> None:
        if collection == "stock":
            tries.append(key)
            raise Conflict("changed by another")

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        at.watched.before = others_are_faster
        await worker.takes(an_order())
        assert [letter["dead_attempts"] for letter in worker.dead] == ["2"]
        assert "it is too hot" in worker.dead[0]["dead_reason"]
        assert len(tries) > 100


async def test_an_update_that_was_applied_is_one_though_its_answer_was_lost_and_its_time_is_over(
    tmp_path: Path,
) -> None:
    payment = Service("payment")
    payment.document(Stock, "stock")

    @payment.handler(timeout_s=30, retry=Retry(attempts_max=1))
    async def take(order: OrderPlaced, saga: Saga) -> None:
        await saga.update(Stock, order.sku, opened)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)

        async def loses_the_answer(collection: str, key: str, content: bytes) -> None:
            if collection == "stock":
                await at.store.insert(collection, key, content)
                passes(at, timedelta(seconds=31))
                raise Ambiguous("the answer was lost")

        at.watched.instead = loses_the_answer
        await worker.takes(an_order())
        assert await worker.outcomes() == [("take", "handled")]


async def test_each_batched_update_checks_its_own_run(tmp_path: Path) -> None:
    payment = Service("payment")
    payment.document(Stock, "stock")

    @payment.handler
    async def take(order: OrderPlaced, saga: Saga) -> None:
        await saga.update(Stock, order.sku, opened)

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        for saga, writes in (("open-1", 1), ("over", 100), ("open-2", 1)):
            turn = worker.begun(an_order(saga), worker.message(an_order(saga)))
            at.watched.before = only_to_the_intent if writes == 1 else None
            with suppress(Draining):
                await MessageProcessor(worker.participant).process(turn)
        at.watched.before = None
        declared = worker.participant.documents[Stock]
        made = await document_updates.apply_together(
            worker.participant,
            Position("orders", 0, 0),
            [
                DocumentUpdate(
                    declared=declared,
                    key="rum",
                    marker=f"m-{saga}",
                    saga=saga,
                    run=("do", "take", worker.message(an_order(saga)).id),
                    change=opened,
                    args=(),
                    kwargs={},
                    until_s=at.clock.monotonic_s() + 9,
                )
                for saga in ("open-1", "over", "open-2")
            ],
        )
        assert [isinstance(m, Superseded) for m in made] == [False, True, False]


async def only_to_the_intent(collection: str, key: str) -> None:
    if collection == "stock":
        raise Draining


# ---------------------------------------------------------------- what a worker remembers


async def test_a_progress_that_was_only_read_is_as_old_in_the_cache_as_its_last_transition(tmp_path: Path) -> None:
    payment = Service("payment", retention=timedelta(days=30))

    @payment.handler
    async def reserve(order: OrderPlaced) -> None: ...

    async with place(tmp_path) as at:
        one, other = await at.worker(payment), await at.worker(payment)
        await one.takes(an_order(), id="m")
        passes(at, timedelta(days=10))
        message = other.message(an_order(), id="m", started="2026-01-01T00:00:00.000Z")
        delivery = MessageDelivery(other.participant, 1, lambda item, awaits: None)
        now_s = at.clock.monotonic_s()
        for turns in (1, 2):  # the second one finds it in the cache
            for _ in range(turns):
                assert await delivery.deliver(WorkItem(message, Position("orders", 0, 0), OffsetTracker(0), 0.0))
            assert delivery.cache.take(SAGA, now_s + 6 * 86400) is None, "15 days: half of the memory"
        assert await delivery.deliver(WorkItem(message, Position("orders", 0, 0), OffsetTracker(0), 0.0))
        assert delivery.cache.take(SAGA, now_s + 4 * 86400) is not None


@pytest.mark.parametrize("off_by", [timedelta(days=-200), timedelta(days=200)], ids=["behind", "ahead"])
async def test_a_write_by_a_wrong_clock_runs_no_handler_twice(tmp_path: Path, off_by: timedelta) -> None:
    ran: list[str] = []
    payment = Service("payment")

    @payment.handler(repeats=OrderConfirmed)
    async def note(confirmed: OrderConfirmed) -> None:
        ran.append("note")

    async with place(tmp_path) as at:
        worker = await at.worker(payment)
        for n in range(70):
            await worker.takes(CONFIRMED, id=f"n{n}")
        wrong = worker.message(CONFIRMED, id="wrong")
        right, wrong_clock = worker.participant, TrialClock()  # the store has its own
        wrong_clock._now_ms += int(off_by.total_seconds() * 1000)
        worker.participant = replace(right, ports=replace(right.ports, clock=wrong_clock))
        await MessageProcessor(worker.participant).process(worker.begun(CONFIRMED, wrong))
        worker.participant = right
        await worker.takes(CONFIRMED, id="after")
        count = len(ran)
        for id_ in (*(f"n{n}" for n in range(70)), "wrong"):
            await worker.takes(CONFIRMED, id=id_)
        assert len(ran) == count


# ---------------------------------------------------------------- trouble of the store


def stocking(calls: list[str]) -> Service:
    """Does something outside, changes a document, reads it; gives up at the first attempt that fails."""
    payment = Service("payment")
    payment.document(Stock, "stock")

    def open_(stock: Stock | None) -> Stock:
        return stock or Stock(left=9)

    async def charge() -> str:
        calls.append("charge")
        return "c"

    @payment.handler(retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
        charge_id = await saga.step(charge)
        await saga.update(Stock, order.sku, open_)
        assert await saga.read(Stock, order.sku) is not None
        return PaymentReserved(order_id=order.order_id, charge_id=charge_id, amount=order.total)

    return payment


@pytest.mark.parametrize("fails", ["the intent", "the document", "the transition"])
async def test_trouble_of_the_store_is_no_attempt_of_the_handler(tmp_path: Path, fails: str) -> None:
    calls, trouble = list[str](), StoreError("no rights")
    async with place(tmp_path) as at:
        worker, writes = await at.worker(stocking(calls)), list[str]()

        async def before(collection: str, key: str) -> None:
            writes.append(collection)
            if (fails, writes.count("saga")) in (("the intent", 1), ("the transition", 3)):
                raise trouble
            if fails == "the document" and collection == "stock":
                raise trouble

        at.watched.before = before
        with pytest.raises(StoreError, match="no rights"):
            await worker.takes(an_order())
        at.watched.before = None
        assert worker.dead == []
        assert [entry.outcome for entry in await worker.history()] == []
        await worker.takes(an_order())
        assert [entry.outcome for entry in await worker.history()] == ["handled"]
        assert len(calls) <= 2, "what was not recorded is called again, with its key"


# ---------------------------------------------------------------- repair


async def test_a_repair_does_for_a_saga_what_no_message_sets_off(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        old, new = await at.worker(version(ran, joins=False)), await at.worker(version(ran, joins=True))
        await old.takes(CONFIRMED)
        await old.takes(an_order())
        ended = await republish_saga(new.participant, SAGA)
        assert ended == [], "the other part went to another handler, before there was this one"
        p = await new.progress()
        assert (p.self_consumed_types, [own.event.type for own in p.self_consumed]) == (
            ("PaymentReserved",),
            ["PaymentReserved"],
        )


def undoing(attempts: list[str], *, fails: bool, longer: bool = True) -> Service:
    """Undoes what it has reserved, or fails to. The newer one takes what it says itself."""
    payment = Service("payment")

    async def charge() -> str:
        return "c"

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id=await saga.step(charge), amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None:
        attempts.append("release")
        if fails:
            raise LookupError("nobody there")

    if longer:

        @payment.handler
        async def note(reserved: PaymentReserved) -> None: ...

    return payment


async def test_a_repair_does_not_wait_in_a_compensation_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []
    async with place(tmp_path) as at:
        old = await at.worker(undoing(attempts, fails=False, longer=False))
        written: list[str] = []

        async def before(collection: str, key: str) -> None:
            written.append(key)
            if len(written) == 2:
                raise Draining

        at.watched.before = before
        with pytest.raises(Draining):
            await old.takes(an_order())  # it has begun
        at.watched.before = None
        await old.takes(CANCELLED)
        await old.takes(an_order(), writes_max=1)  # it ends, and the worker dies before what is ready by now
        failing = await at.worker(undoing(attempts, fails=True))
        assert ("release", "retrying", "LookupError: nobody there") in await republish_saga(failing.participant, SAGA)
        p = await failing.progress()
        assert p.timer is not None
        assert (len(attempts), set(wakes_at(failing))) == (4, {p.timer.id})
        failing.log.messages.clear()
        assert await republish_saga(failing.participant, SAGA) == []
        assert (len(attempts), wakes_at(failing)) == (4, [p.timer.id]), "should the first have been lost"

        await at.clock.sleep(2)
        with monkeypatch.context() as patch:
            patch.setattr(attempts_that_failed, "parks", lambda retry, attempt: False)
            with pytest.raises(SagaError, match="release failed 17 times, the last with LookupError") as raised:
                await republish_saga(failing.participant, SAGA)
        assert "run the repair again" in str(raised.value)
        assert len(attempts) == 17
        assert [moment.handler for moment in failing.moments if isinstance(moment, Escalated)] == ["release"]
        assert [letter["dead_what"] for letter in failing.dead] == ["escalation"]
        mended = await at.worker(undoing(attempts, fails=False))
        assert ("release", "compensated", None) in await republish_saga(mended.participant, SAGA)


def wakes_at(worker: At) -> list[str]:
    return [texts_of(record.headers)["ce_id"] for record in worker.log.messages if ".wake." in record.topic]


def chain(ran: list[str], *, longer: bool) -> Service:
    """Versions of the same service: the newer one takes what both emit, and needs nothing else for it."""
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    if longer:

        @payment.handler
        async def capture(reserved: PaymentReserved) -> PaymentCaptured:
            ran.append("capture")
            return PaymentCaptured(order_id=reserved.order_id, amount=reserved.amount)

        @payment.handler
        async def file(captured: PaymentCaptured) -> None:
            ran.append("file")

    return payment


async def test_a_repair_that_dies_anywhere_is_gone_on_with_by_the_next_one(tmp_path: Path) -> None:
    for writes in range(1, 5):
        ran: list[str] = []
        async with place(tmp_path / str(writes)) as at:
            old, new = await at.worker(chain(ran, longer=False)), await at.worker(chain(ran, longer=True))
            await old.takes(an_order())
            left = [writes]

            async def dies(collection: str, key: str, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise Draining

            at.watched.before = dies
            with suppress(Draining):
                await republish_saga(new.participant, SAGA)
            at.watched.before = None
            again = await at.worker(chain(ran, longer=True))
            await republish_saga(again.participant, SAGA)
            assert {"capture", "file"} <= set(ran), writes
            assert [h for h, _ in await again.outcomes()] == ["reserve", "capture", "file"], writes
            types = {envelope.type_of(r) for r in (*new.log.messages, *again.log.messages)}
            assert "PaymentCaptured" in types, f"published, though the {writes + 1}th write failed"
            assert await republish_saga(again.participant, SAGA) == []


async def test_unpublished_events_of_a_repair_are_published_by_the_next_one(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        old, new = await at.worker(chain(ran, longer=False)), await at.worker(chain(ran, longer=True))
        await old.takes(an_order())

        async def dies(messages: Sequence[Outgoing]) -> None:
            if any(envelope.type_of(m) == "PaymentCaptured" for m in messages):
                raise Draining
            new.log.messages.extend(messages)

        new.log.publish = dies  # type: ignore[method-assign]
        with suppress(Draining):
            await republish_saga(new.participant, SAGA)
        assert [h for h, _ in await new.outcomes()] == ["reserve", "capture"]
        again = await at.worker(chain(ran, longer=True))
        assert is_takeover_due(await again.progress(), again.participant.roles), "it is not republish_saga yet"
        await republish_saga(again.participant, SAGA)
        assert any(envelope.type_of(m) == "PaymentCaptured" for m in again.log.messages)
        assert [h for h, _ in await again.outcomes()] == ["reserve", "capture", "file"]


async def test_a_repair_beside_a_worker_that_is_faster_does_nothing_twice(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        old = await at.worker(chain(ran, longer=False))
        one, other = await at.worker(chain(ran, longer=True)), await at.worker(chain(ran, longer=True))
        await old.takes(an_order())
        at.watched.before = once(lambda: other.takes(an_order(), id="again"))
        await republish_saga(one.participant, SAGA)
        assert [h for h, o in await one.outcomes() if o == "handled"] == ["reserve", "capture", "file"]
        assert (await one.progress()).self_consumed_types == ("PaymentCaptured", "PaymentReserved")


# ---------------------------------------------------------------- a version with more to undo than the last one


def with_an_extra(ran: list[str]) -> Service:
    newer = undoable(ran)

    @newer.handler
    async def extra(confirmed: OrderConfirmed) -> PaymentCaptured:
        ran.append("extra")
        return PaymentCaptured(order_id=confirmed.order_id, amount=an_order().total)

    @newer.compensation(extra)
    async def give_back(cancelled: OrderCancelled, captured: PaymentCaptured) -> None:
        ran.append("give back")

    return newer


async def test_a_handler_that_was_not_there_when_its_saga_failed_does_not_run(tmp_path: Path) -> None:
    ran: list[str] = []
    async with place(tmp_path) as at:
        older = await at.worker(undoable(ran))
        await older.takes(an_order())
        await older.takes(CANCELLED)
        worker = await at.worker(with_an_extra(ran))
        await worker.takes(CONFIRMED)
        assert (await worker.outcomes())[-1] == ("extra", "ignored")
        assert "extra" not in ran
        assert (await worker.history())[-1].reason == "the saga has failed, so extra would never be undone"


async def test_a_handler_that_was_not_there_when_a_failure_came_that_still_waits_does_not_run(tmp_path: Path) -> None:
    """The outcome does not come again: no compensation would undo what ran now."""
    ran: list[str] = []
    async with place(tmp_path) as at:
        older = await at.worker(undoable(ran))
        await older.takes(CANCELLED, started=None)
        worker = await at.worker(with_an_extra(ran))
        await worker.takes(CONFIRMED)
        assert await worker.outcomes() == [("release", "waiting"), ("extra", "ignored"), ("release", "compensated")]
        assert not ran
