"""Self-consumed events that wait, events that a handler does not need, and nested segments, at a real worker."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga import Later, Retry, Service
from saga.messaging import operator_commands
from saga.messaging.names import ARCHIVES
from saga.progress import history, overflow
from saga.progress.document import SagaProgress, decode_transition, encode
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

SMALL = overflow.OverflowBounds(
    inbox_max=20, inbox_kept=8, small_segments_max=4, head_max=4, segment_max=8, index_max=4
)
ORDERS = 300
CONFIRMED = OrderConfirmed(order_id=SAGA)
CANCELLED = OrderCancelled(order_id=SAGA, reason="late")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "BOUNDS", SMALL)


def joining(taken: list[str]) -> Service[Any]:
    payment = Service("payment")

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id=f"c-{order.quantity}", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    @payment.handler(repeats=PaymentReserved)
    async def join(reserved: PaymentReserved, confirmed: OrderConfirmed) -> None:
        taken.append(reserved.charge_id)

    return payment


async def documents_of(place: Workplace) -> dict[str, bytes]:
    return {key: d.content async for key, d in place.store.scan(ARCHIVES) if overflow.is_segment(key)}


async def progress_of(place: Workplace, payment: Service[Any]) -> SagaProgress:
    p = await place.progress(payment)
    assert p is not None
    return p


async def whole_history(place: Workplace, p: SagaProgress) -> list[Raw]:
    archives = [history.decode_archive(d.content) async for _, d in place.store.scan(ARCHIVES, "payment::")]
    return [raw for archive in archives for raw in archive.transitions] + list(p.transitions)


async def test_self_consumed_events_that_wait_in_vain_are_in_segments_and_all_handled_in_order_at_last(
    tmp_path: Path,
) -> None:
    taken: list[str] = []
    payment = joining(taken)
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.publish(*(an_order(quantity=n) for n in range(ORDERS)))
            await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert len(p.self_consumed) <= SMALL.head_max + SMALL.segment_max
        assert len(encode(replace(p, transitions=()))) < 12_000
        assert any(page.level for page in p.segments)
        whole = overflow.restore_all(p, await documents_of(place))
        assert len(whole.self_consumed) == ORDERS
        transitions = await whole_history(place, p)
        assert history.verify_history(transitions, whole) is None
        found = history.verify_history(transitions, replace(p, self_consumed=(replace(p.self_consumed[0], n=7),)))
        assert found is not None
        assert "own" in found.what
        async with at_work(place, payment):  # another one, that knows no page
            await place.publish(CONFIRMED)
            await place.at_rest(payment)
            assert taken == [f"c-{n}" for n in range(ORDERS)]
            p = await progress_of(place, payment)
            assert p.self_consumed == ()
            assert {page.kind for page in p.segments} == {"inbox", "results"}
            await place.publish(an_order(quantity=ORDERS))
            await place.at_rest(payment)
            assert taken[ORDERS:] == [f"c-{ORDERS}"]
        assert not [
            key
            for key, content in (await documents_of(place)).items()
            if overflow.decode_segment(content).kind == "own"
        ]


async def test_events_withdrawn_in_segments_are_never_handled(tmp_path: Path) -> None:
    taken: list[str] = []
    payment = joining(taken)
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(*(an_order(quantity=n) for n in range(100)))
        await place.at_rest(payment)
        await place.publish(CANCELLED)
        await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert (p.self_consumed, p.results, p.closed) == ((), (), ("reserve",))
        assert {page.kind for page in p.segments} == {"inbox"}
        assert (
            history.verify_history(await whole_history(place, p), overflow.restore_all(p, await documents_of(place)))
            is None
        )
        await place.publish(CONFIRMED)
        await place.at_rest(payment)
        assert taken == []


async def test_events_that_a_handler_does_not_need_are_in_segments_and_shown_in_order(tmp_path: Path) -> None:
    payment, shown = Service("payment"), list[str]()

    @payment.handler
    async def settle(confirmed: OrderConfirmed, order: OrderPlaced | None) -> PaymentDeclined | Later[OrderPlaced]:
        if order is None:
            return Later(until=OrderPlaced, within=timedelta(days=1))
        shown.append(f"{order.quantity}")
        if order.quantity < 59:
            return Later(until=OrderPlaced, within=timedelta(days=1))
        return PaymentDeclined(order_id=confirmed.order_id, reason="done")

    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.publish(*(an_order(quantity=n) for n in range(60)))
            await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert len(p.waiting) <= SMALL.head_max + SMALL.segment_max
        assert {page.types for page in p.segments} == {("OrderPlaced",)}
        whole = overflow.restore_all(p, await documents_of(place))
        assert len(whole.waiting) == 60
        assert history.verify_history(await whole_history(place, p), whole) is None
        async with at_work(place, payment):
            await place.publish(CONFIRMED)
            await place.at_rest(payment)
        assert shown == [f"{n}" for n in range(60)]
        p = await progress_of(place, payment)
        assert (p.waiting, {page.kind for page in p.segments}) == ((), {"inbox"})


async def test_thousands_of_queued_messages_are_in_nested_segments_and_run_in_order(tmp_path: Path) -> None:
    payment, noted, mended = Service("payment"), list[int](), list[str]()

    @payment.handler(retry=Retry(attempts_max=1))
    async def fail(confirmed: OrderConfirmed) -> None:
        if not mended:
            raise ValueError("no")

    @payment.handler(repeats=OrderPlaced)
    async def note(order: OrderPlaced) -> None:
        noted.append(order.quantity)

    orders = [an_order(quantity=n) for n in range(700)]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order(quantity=-1), CONFIRMED)
        await place.at_rest(payment)
        await place.publish(*orders)
        await place.at_rest(payment)
        await place.publish(*orders[::50])  # each is known, wherever it lies
        await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert max(page.level for page in p.segments) == 2
        assert len([page for page in p.segments if page.kind == "queue"]) <= 5 * SMALL.index_max
        whole = overflow.restore_all(p, await documents_of(place))
        assert len(whole.queue) == 1 + 700
        transitions = await whole_history(place, p)
        assert history.verify_history(transitions, whole) is None
        assert history.verify_history(transitions, replace(p, segments=p.segments[1:])) is not None
        assert sum(entry.outcome == "queued" for entry in map(decode_transition, transitions)) == 700
        mended.append("by hand")
        [dead] = [kept.dead for kept in p.queue if kept.dead]
        now_ms = place.clock.now_ms()
        wish = operator_commands.command_to_record(
            "payment", SAGA, "replay", operator_commands.CommandValue(dead=dead, who="ada", why="mended"), now_ms
        )
        await place.broker.publish([wish])
        await place.at_rest(payment)
        assert noted == [-1, *range(700)]


async def test_only_the_first_large_self_consumed_events_stay_in_the_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overflow, "BOUNDS", overflow.OverflowBounds())
    payment, size = Service("payment"), 100_000

    @payment.handler(retry=Retry(attempts_max=1))
    async def fail(confirmed: OrderConfirmed) -> None:
        raise ValueError("no")

    @payment.handler(repeats=OrderPlaced)
    async def note(order: OrderPlaced) -> None: ...

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order(quantity=-1), CONFIRMED)
        await place.at_rest(payment)
        await place.publish(*(an_order(quantity=n, sku="x" * size) for n in range(30)))
        await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert len(p.queue) <= 1 + 2 + 3, "the dead letter, the head, and what fills no page yet"
        assert len(encode(p)) < 1_000_000
        pages = (await documents_of(place)).values()
        assert sum(len(overflow.decode_segment(content).messages) for content in pages) + len(p.queue) == 31
