"""A saga with more messages than its progress has room for, at a real worker: overflow segments have the rest."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace as with_
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga import Retry, Saga, Service
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.progress_cache import ROOM_BYTES, OverflowCache
from saga.errors import StoreError
from saga.messages import Position
from saga.messaging import operator_commands
from saga.messaging.message_ids import identity
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.ops.histories import UnreadableHistory
from saga.ops.histories import complete_history as whole_history_of
from saga.ops.sources import ServiceStore
from saga.progress import history, overflow
from saga.progress.document import SagaProgress, decode_progress, decode_transition, encode, progress_key
from saga.telemetry.events import Handled, Retrying, Stuck
from saga.testing.trials import TrialClock
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentDeclined, PaymentReserved
from tests.engine.driven_workers import At, place
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, message_of, workplace

SMALL = overflow.OverflowBounds(inbox_max=20, inbox_kept=8, small_segments_max=4, head_max=4, segment_max=8)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overflow, "BOUNDS", SMALL)


def payment_of() -> Service[Any]:
    payment = Service("payment")

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id=f"c-{order.quantity}", amount=order.total)

    return payment


def dying() -> Service[Any]:
    """Gives up the first order of each saga, and takes all notes of it."""
    payment = Service("payment")

    @payment.handler(repeats=OrderPlaced, retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        if order.card == "declined":
            raise ValueError("no")
        return PaymentReserved(order_id=order.order_id, charge_id=f"c-{order.quantity}", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    @payment.handler(repeats=OrderConfirmed)
    async def note(confirmed: OrderConfirmed) -> PaymentDeclined:
        return PaymentDeclined(order_id=confirmed.order_id, reason="noted")

    return payment


async def pages_of(place: Workplace) -> dict[str, bytes]:
    return {key: d.content async for key, d in place.store.scan(ARCHIVES) if overflow.is_segment(key)}


async def progress_of(place: Workplace, payment: Service[Any]) -> SagaProgress:
    p = await place.progress(payment)
    assert p is not None
    return p


async def test_an_inbox_moves_to_overflow_segments_and_every_duplicate_is_still_recognized(tmp_path: Path) -> None:
    payment = payment_of()
    orders = [an_order(quantity=n) for n in range(300)]
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.publish(*orders)
            await place.at_rest(payment)
            await place.publish(*orders[::7])  # at the worker that knows the pages
            await place.at_rest(payment)
        async with at_work(place, payment):  # at one that knows none
            await place.publish(*orders)
            await place.at_rest(payment)
        p, leaves = await progress_of(place, payment), await pages_of(place)
        assert p.n == 300
        assert len(await place.records("payments")) == 300
        assert len(p.inbox) <= SMALL.inbox_max
        assert len(p.segments) <= 12
        whole = overflow.restore_all(p, leaves)
        assert len(whole.inbox) == 300
        transitions = await whole_history(place, p)
        assert history.verify_history(transitions, whole) is None
        assert history.verify_history(transitions, p) is None, "what a page adds stands beside its name"
        found = history.verify_history(transitions, replace(p, segments=p.segments[1:]))
        assert found is not None
        assert "inbox" in found.what
        assert [m.outcomes for m in place.reported(Handled)][300:] == [()] * (len(orders[::7]) + 300)


async def test_a_message_in_a_command_is_looked_up_in_the_segments_too(tmp_path: Path) -> None:
    """The progress itself knows nothing any more of a message that a command contains: it was handled long ago."""
    payment, orders, asked = payment_of(), [an_order(quantity=n) for n in range(60)], an_order(quantity=1000)
    others = [an_order(quantity=n) for n in range(2000, 2050)]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(*orders)
        await place.at_rest(payment)
        for number, event in enumerate((orders[0], asked, asked)):
            original = message_of(event, started="2026-01-01T00:00:00.000Z")
            original = replace(original, id=identity(original.source, original.id, original.type, "order"))
            value = operator_commands.CommandValue(dead=f"dead-{number}", who="ada", why="x", original=original)
            await place.broker.publish([operator_commands.command_to_record("payment", SAGA, "replay", value, number)])
            await place.at_rest(payment)
            await place.publish(*others)  # the entries of what was handled so far move to segments
            await place.at_rest(payment)
        transitions = await whole_history(place, await progress_of(place, payment))
        entries = [decode_transition(raw) for raw in transitions]
        assert [t.outcome for t in entries if t.type.endswith("replay")] == ["ignored", "replayed", "ignored"]
        runs = Counter(t.message for t in entries if t.outcome == "handled")
        assert runs.total() == len({*runs}) == len(orders) + 1 + len(others)


async def test_the_progress_of_a_hot_saga_stays_small(tmp_path: Path) -> None:
    payment, sizes = payment_of(), list[int]()
    async with workplace(tmp_path) as place, at_work(place, payment):
        for first in range(0, 600, 200):
            await place.publish(*(an_order(quantity=n) for n in range(first, first + 200)))
            await place.at_rest(payment)
            p = await progress_of(place, payment)
            sizes.append(len(encode(replace(p, transitions=()))))
        assert sizes[-1] < 6000
        assert sizes[-1] - sizes[0] < 1500, "a few pages more"


async def test_segments_expire_a_day_after_the_retention_of_their_newest_entry(tmp_path: Path) -> None:
    payment = payment_of()
    async with workplace(tmp_path) as place:
        await place.publish(*(an_order(quantity=n) for n in range(60)))
        async with at_work(place, payment):
            await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert {overflow.segment_key("payment", SAGA, page) for page in p.segments} <= set(await pages_of(place))
        until = {overflow.segment_key("payment", SAGA, page): page.expires for page in p.segments}
        with closing(sqlite3.connect(tmp_path / "store.db")) as file:
            rows = file.execute("SELECT key, expires_at_ms FROM documents WHERE collection = ?", (ARCHIVES,)).fetchall()
        day_ms = 86_400_000
        found = {key: at_ms for key, at_ms in rows if key in until}
        assert found.keys() == until.keys()
        for key, at_ms in found.items():
            assert 0 <= at_ms - until[key] * 1000 - day_ms < 10_000
            assert abs(until[key] * 1000 - 30 * day_ms - place.clock.now_ms()) < 60_000


@pytest.mark.parametrize("ahead_from", [1, SMALL.inbox_max], ids=["all but the first", "only the last"])
async def test_a_segment_written_under_a_clock_that_is_ahead_lives_for_the_retention_counted_from_its_message(
    tmp_path: Path, ahead_from: int
) -> None:
    """The server's clock, and other workers', are not ahead."""
    async with place(tmp_path) as at_hand:
        worker, clock = await at_hand.worker(payment_of()), at_hand.clock
        retention_s, ahead_s = worker.participant.retention_s, 400 * 86_400
        at_hand.clock = TrialClock()
        await at_hand.clock.sleep(ahead_s)
        ahead = await at_hand.worker(payment_of())
        for n in range(SMALL.inbox_max + 1):
            order, at = an_order(quantity=n), worker if n < ahead_from else ahead
            await MessageProcessor(at.participant).process(at.begun(order, worker.message(order)))
        (page,) = (await worker.progress()).segments
        with closing(sqlite3.connect(tmp_path / "store.db")) as file:
            query = "SELECT expires_at_ms FROM documents WHERE collection = ?"
            ((at_ms,),) = file.execute(query, (ARCHIVES,)).fetchall()
        newest_s = clock.monotonic_s() + (ahead_s if ahead_from == 1 else 0)
        assert abs(page.expires - newest_s - retention_s) < 60
        assert abs(at_ms / 1000 - page.expires - 86_400) < 60


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00.000Z", "1970-01-01T00:00:00.000Z", "9999-12-31T00:00:00.000Z"])
async def test_messages_with_an_impossible_time_block_no_saga_with_segments(tmp_path: Path, time: str) -> None:
    """Some senders put in an impossible time: no store keeps a segment for two thousand years."""
    async with place(tmp_path) as at_hand:
        worker = await at_hand.worker(payment_of())
        for n in range(SMALL.inbox_max + 1):
            order = an_order(quantity=n)
            message = worker.message(order)
            if n in (0, SMALL.inbox_max):
                message = replace(message, time=time)
            assert (await MessageProcessor(worker.participant).process(worker.begun(order, message))).is_complete
        (page,) = (await worker.progress()).segments
        assert await worker.store.get(ARCHIVES, overflow.segment_key("payment", SAGA, page)) is not None


async def test_an_expired_segment_is_not_needed_any_more(tmp_path: Path) -> None:
    payment = payment_of()
    async with workplace(tmp_path) as place:
        await place.publish(*(an_order(quantity=n) for n in range(60)))
        async with at_work(place, payment):
            await place.at_rest(payment)
        where = f"payment::{SAGA}"
        document = await place.store.get("saga", where)
        assert document is not None
        p = decode_progress(document.content)
        aged = replace(p, segments=tuple(replace(page, name=f"gone-{page.name}", expires=1) for page in p.segments))
        await place.store.replace("saga", where, encode(aged), cas=document.cas)
        await place.publish(an_order(quantity=1000))
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert not place.reported(Stuck)
        assert (await progress_of(place, payment)).n == 61


async def test_a_segment_that_was_removed_is_reported_by_name_and_nothing_is_decided(tmp_path: Path) -> None:
    payment = payment_of()
    async with workplace(tmp_path) as place:
        await place.publish(*(an_order(quantity=n) for n in range(40)))
        async with at_work(place, payment):
            await place.at_rest(payment)
        p = await progress_of(place, payment)
        key = overflow.segment_key("payment", SAGA, p.segments[0])
        page = await place.store.get(ARCHIVES, key)
        assert page is not None
        await place.store.remove(ARCHIVES, key, cas=page.cas)
        await place.publish(an_order(quantity=0))
        async with at_work(place, payment):
            await place.until(lambda: bool(place.reported(Stuck)))
            assert f"lists the page '{key}', which is not in 'saga-archive'" in place.reported(Stuck)[0].error
            await place.store.insert(ARCHIVES, key, page.content)
            await place.at_rest(payment)
        assert (await progress_of(place, payment)).n == 40


async def test_an_older_version_refuses_a_progress_with_segments(tmp_path: Path) -> None:
    payment = payment_of()
    async with workplace(tmp_path) as place:
        await place.publish(*(an_order(quantity=n) for n in range(40)))
        async with at_work(place, payment):
            await place.at_rest(payment)
        document = await place.store.get("saga", f"payment::{SAGA}")
        assert document is not None
        assert msgspec.json.decode(document.content)["format"] == 2
        assert decode_progress(document.content).segments


def test_the_cache_of_segments_is_bounded() -> None:
    known = OverflowCache(bytes_max=10 * (ROOM_BYTES + 12))
    for number in range(100):
        known.learn(f"{number}", b"x" * 12)
        assert known.entries_of("0") == (b"x" * 12), "what is asked for stays"
    assert sum(known.entries_of(f"{number}") is not None for number in range(100)) == 10
    assert OverflowCache(bytes_max=0).entries_of("0") is None


async def test_a_queue_behind_a_dead_letter_moves_to_segments_and_comes_back_in_order(tmp_path: Path) -> None:
    payment, sizes = dying(), list[int]()
    notes = [f"note-{n}" for n in range(120)]
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.publish(an_order(card="declined"))
            for first in range(0, 120, 40):
                for id_ in notes[first : first + 40]:
                    await place.publish(OrderConfirmed(order_id=SAGA), id=id_)
                await place.at_rest(payment)
                sizes.append(len(encode(replace(await progress_of(place, payment), transitions=()))))
            await place.publish(OrderConfirmed(order_id=SAGA), id=notes[50])  # it is in a page
            await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert len(p.queue) <= 1 + SMALL.head_max + SMALL.segment_max + 1
        assert sizes[2] - sizes[1] < 3000, "a few descriptions of pages more"
        whole = overflow.restore_all(p, await pages_of(place))
        assert [k.message.id.rpartition("|")[2] for k in whole.queue[1:]] == notes
        async with at_work(place, payment):
            await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
            await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert (p.queue, [page for page in p.segments if page.kind != "inbox"]) == ((), [])
        assert len([r for r in await place.records("payments") if b"noted" in (r.value or b"")]) == 120
        history_ = await whole_history(place, p)
        ran = [decode_transition(raw) for raw in history_]
        assert [t.message.rpartition("|")[2] for t in ran if t.outcome == "handled"] == notes
        assert history.verify_history(history_, overflow.restore_all(p, await pages_of(place))) is None
        left = [overflow.decode_segment(content) for content in (await pages_of(place)).values()]
        assert {leaf.kind for leaf in left} == {"inbox"}, "what is not listed is removed, or expires"


async def test_a_reader_sees_the_whole_saga_while_messages_are_taken_out_of_segments(tmp_path: Path) -> None:
    """Between reading the progress and its segments the worker continues, and removes those that it has emptied."""
    payment = dying()
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.publish(an_order(card="declined"))
            for n in range(60):
                await place.publish(OrderConfirmed(order_id=SAGA), id=f"note-{n}")
            await place.at_rest(payment)
        source = ServiceStore("payment", place.store)
        before = await progress_of(place, payment)
        assert any(page.kind == "queue" for page in before.segments)
        async with at_work(place, payment):
            await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
            await place.at_rest(payment)
        seen = await whole_history_of(source, before)
        assert history.verify_history(seen.transitions, seen.progress) is None
        assert not seen.progress.queue
        now = await progress_of(place, payment)
        page = overflow.segment_key("payment", SAGA, now.segments[0])
        document = await place.store.get(ARCHIVES, page)
        assert document is not None
        await place.store.remove(ARCHIVES, page, cas=document.cas)
        with pytest.raises(UnreadableHistory, match="is gone"):
            await whole_history_of(source, now)


def joining() -> Service[Any]:
    """Confirms once for each confirmation, as soon as the order is there."""
    payment = Service("payment")

    @payment.handler(repeats=OrderConfirmed)
    async def reserve(confirmed: OrderConfirmed, order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    return payment


async def confirm(place: Workplace, ids: Sequence[str]) -> None:
    for id_ in ids:
        await place.publish(OrderConfirmed(order_id=SAGA), id=id_)


async def test_pending_messages_move_to_segments_and_run_in_order_when_the_other_event_comes(tmp_path: Path) -> None:
    payment, ids = joining(), [f"note-{n}" for n in range(100)]
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await confirm(place, ids)
            await place.at_rest(payment)
            p = await progress_of(place, payment)
            assert len(p.waiting) <= SMALL.head_max + SMALL.segment_max + 1
            assert sum(page.count for page in p.segments if page.kind == "waiting") + len(p.waiting) == 100
            await confirm(place, ids[::9])
            await place.at_rest(payment)
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.at_rest(payment)
        p = await progress_of(place, payment)
        transitions = await whole_history(place, p)
        ran = [t for t in map(decode_transition, transitions) if t.outcome == "handled"]
        causes = [{c.rpartition("|")[2] for c in (t.cause or t.message).split("+")} for t in ran]
        assert [next(iter(c & set(ids))) for c in causes] == ids
        assert [k.message.type for k in p.waiting] == ["OrderPlaced"]
        assert {page.kind for page in p.segments} == {"inbox", "results"}
        assert history.verify_history(transitions, overflow.restore_all(p, await pages_of(place))) is None


async def test_segments_are_searched_again_for_a_message_when_the_progress_is_read_again(tmp_path: Path) -> None:
    """Another worker has moved it to a segment since: it would be kept twice, and the second copy never removed."""
    notes = [OrderConfirmed(order_id=SAGA) for _ in range(21)]
    async with place(tmp_path) as at_hand:
        one, other = await at_hand.worker(joining()), await at_hand.worker(joining())
        for n, note in enumerate(notes[:13]):
            await one.takes(note, id=f"note-{n}")
        cached = await cached_of(one)
        assert cached[0].segments
        assert "note-12" in [k.message.id.rpartition("|")[2] for k in cached[0].waiting]
        for n, note in enumerate(notes[13:], 13):
            await other.takes(note, id=f"note-{n}")
        p, cas = await cached_of(other)
        assert "note-12" not in [k.message.id.rpartition("|")[2] for k in p.waiting]
        again = MessageProcessor(one.participant).begin(
            one.message(notes[12], id="note-12"), Position("orders", 0, 12), cached
        )
        assert (await MessageProcessor(one.participant).process(again)).is_complete
        assert (await cached_of(one))[1] == cas, "it is kept already"


async def cached_of(worker: At) -> tuple[SagaProgress, int]:
    document = await worker.store.get(PROGRESS, progress_key("payment", SAGA))
    assert document is not None
    return decode_progress(document.content), document.cas


async def test_a_compensation_closes_pending_messages_in_segments_without_reading_them(tmp_path: Path) -> None:
    payment, ids = joining(), [f"note-{n}" for n in range(60)]
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await confirm(place, ids)
            await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
            await place.at_rest(payment)
            p = await progress_of(place, payment)
            assert (p.waiting, p.closed) == ((), ("reserve",))
            assert {page.kind for page in p.segments} == {"inbox"}
            n = p.n
            await confirm(place, ids)  # each is known as had
            await place.at_rest(payment)
        p = await progress_of(place, payment)
        assert p.n == n
        assert (
            history.verify_history(await whole_history(place, p), overflow.restore_all(p, await pages_of(place)))
            is None
        )


def standing(*, undone: bool) -> Service[Any]:
    """Gives up each order; takes notes that wait for it. `undone`: those can be undone as well, and are first."""
    payment = Service("payment")

    @payment.handler(repeats=OrderConfirmed)
    async def note(confirmed: OrderConfirmed, reserved: PaymentReserved) -> PaymentDeclined:
        return PaymentDeclined(order_id=confirmed.order_id, reason="noted")

    if undone:

        @payment.compensation(note)
        async def forget(cancelled: OrderCancelled, noted: PaymentDeclined) -> None: ...

    @payment.handler(retry=Retry(attempts_max=1))
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        raise ValueError("no")

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    return payment


def left_s(folder: Path, clock: TrialClock) -> dict[str, float | None]:
    """For how long each segment stays in the store; `None`: without end."""
    with closing(sqlite3.connect(folder / "store.db")) as file:
        rows = file.execute("SELECT key, expires_at_ms FROM documents WHERE collection = ?", (ARCHIVES,)).fetchall()
    return {key: None if at_ms is None else at_ms / 1000 - clock.monotonic_s() for key, at_ms in rows}


@pytest.mark.parametrize("undone", [False, True])
async def test_segments_of_pending_messages_never_expire_while_the_saga_may_stand_and_outlive_it_by_a_year_else(
    tmp_path: Path, undone: bool
) -> None:
    async with place(tmp_path) as at_hand:
        worker, clock = await at_hand.worker(standing(undone=undone)), at_hand.clock
        retention_s, year_s, day_s = worker.participant.retention_s, 365 * 86_400, 86_400
        for n in range(30):
            await worker.takes(OrderConfirmed(order_id=SAGA), id=f"note-{n}")
        p = await worker.progress()
        assert {page.kind for page in p.segments} == {"waiting"}
        made = left_s(tmp_path, clock)
        assert made.keys() == {overflow.segment_key("payment", SAGA, page) for page in p.segments}
        assert all(left is not None and 0 <= left - retention_s - year_s - day_s < 60 for left in made.values())

        await worker.takes(an_order())
        p = await worker.progress()
        assert p.queue[0].dead
        standing_ = left_s(tmp_path, clock)
        assert standing_.keys() == {overflow.segment_key("payment", SAGA, page) for page in p.segments}
        assert list(standing_.values()) == [None] * len(p.segments), "a person may need months"

        await worker.takes(OrderCancelled(order_id=SAGA, reason="no"))
        p = await worker.progress()
        assert not p.is_open
        ended = left_s(tmp_path, clock)
        assert ended.keys() == {overflow.segment_key("payment", SAGA, page) for page in p.segments}
        stays_s = retention_s + day_s if undone else retention_s + year_s + day_s
        assert all(left is not None and 0 <= left - stays_s < 60 for left in ended.values())
        assert {page.kind for page in p.segments} == {"inbox" if undone else "waiting"}
        n = p.n
        await worker.takes(OrderConfirmed(order_id=SAGA), id="note-7")
        assert (await worker.progress()).n == n, "it is known still"


async def test_segments_of_pending_messages_are_renewed_when_half_of_their_extra_year_is_left(tmp_path: Path) -> None:
    async with place(tmp_path) as at_hand:
        worker, clock = await at_hand.worker(joining()), at_hand.clock
        for n in range(20):
            await worker.takes(OrderConfirmed(order_id=SAGA), id=f"note-{n}")
        names: list[list[str]] = []
        for day in range(0, 200, 20):
            await worker.takes(OrderConfirmed(order_id=SAGA), id=f"on day {day}")
            names.append([page.name for page in (await worker.progress()).segments][:1])
            await clock.sleep(20 * 86_400)
        assert names == [names[0]] * 10
        await worker.takes(OrderConfirmed(order_id=SAGA), id="on day 200")
        assert (await worker.progress()).segments[0].name != names[0][0]
        soon_s = worker.participant.retention_s + 365 / 2 * 86_400
        assert all(left is not None and left > soon_s for left in left_s(tmp_path, clock).values())


async def test_a_missing_or_damaged_segment_does_not_count_as_an_attempt_of_the_handler_whose_step_needs_it(
    tmp_path: Path,
) -> None:
    payment, calls = joining(), list[str]()

    async def ring() -> None:
        calls.append("ring")

    @payment.handler
    async def tell(declined: PaymentDeclined, saga: Saga[None]) -> None:
        await saga.step(ring)

    async with place(tmp_path) as at_hand:
        worker = await at_hand.worker(payment)
        ports = with_(
            worker.participant.ports, overflow_cache=OverflowCache()
        )  # as a worker that has seen what it holds
        worker.participant = with_(worker.participant, ports=ports)
        for n in range(20):
            await worker.takes(OrderConfirmed(order_id=SAGA), id=f"note-{n}")
        key = overflow.segment_key("payment", SAGA, (await worker.progress()).segments[0])
        page = await worker.store.get(ARCHIVES, key)
        assert page is not None
        for day in range(0, 200, 20):
            await worker.takes(OrderConfirmed(order_id=SAGA), id=f"on day {day}")
            await at_hand.clock.sleep(20 * 86_400)
        # It is to be renewed by the next write, which is an intent.
        for content, why in (
            (None, "which is not in 'saga-archive'"),
            (b"{", "in 'saga-archive' was changed since it was written"),
        ):
            there = await worker.store.get(ARCHIVES, key)
            if there is not None:
                await worker.store.remove(ARCHIVES, key, cas=there.cas)
            if content is not None:
                await worker.store.insert(ARCHIVES, key, content)
            with pytest.raises(StoreError, match=why):
                await worker.takes(PaymentDeclined(order_id=SAGA, reason="no"))
            assert (worker.dead, calls) == ([], [])
            assert not [moment for moment in worker.moments if isinstance(moment, Retrying)]
        there = await worker.store.get(ARCHIVES, key)
        assert there is not None
        await worker.store.replace(ARCHIVES, key, page.content, cas=there.cas)
        await worker.takes(PaymentDeclined(order_id=SAGA, reason="no"))
        assert calls == ["ring"]


async def whole_history(place: Workplace, p: SagaProgress) -> list[Raw]:
    archives = [history.decode_archive(d.content) async for _, d in place.store.scan(ARCHIVES, "payment::")]
    return [raw for archive in archives for raw in archive.transitions] + list(p.transitions)
