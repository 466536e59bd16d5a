"""A saga that its store cannot take: a permanent failure of that saga, reported by name; others are not affected."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from msgspec.structs import replace as with_

from saga import Retry, Saga, Service
from saga.engine.execution import document_updates
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import RecordingPublisher
from saga.engine.prepared_service import prepare
from saga.engine.service_runtime import make_service_runtime
from saga.errors import Permanent
from saga.messages import Position
from saga.progress import history
from saga.progress.actions import RunHandler
from saga.progress.document import PendingMessage, decode_progress
from saga.progress.journal import new_progress
from saga.store.sqlite.store import SqliteStore
from saga.telemetry.events import DeadLettered, Escalated, Handled, Retrying, Stuck, Unavailable
from saga.testing.trials import TrialClock, trial_ports
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentReserved
from tests.engine.driven_workers import place as place_of_workers
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

BYTES_MAX = 600_000
LARGE = "x" * 50_000


@dataclass(frozen=True)
class Notes:
    """A state that grows with each message, by as much as is asked."""

    text: str = ""


@dataclass(frozen=True)
class Ledger:
    """A business document that grows."""

    lines: tuple[str, ...] = ()

    def noted(self, line: str) -> Self:
        return replace(self, lines=(*self.lines, line))


def narrow(place: Workplace, bytes_max: int = BYTES_MAX) -> None:
    place.store.document_bytes_max = bytes_max


def notes() -> Service[Any]:
    """Keeps the address of every order in its state, and lets that be undone."""
    payment = Service("payment", state=Notes)

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced, saga: Saga[Notes]) -> PaymentReserved:
        saga.state = Notes(saga.state.text + order.address)
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, saga: Saga[Notes]) -> None:
        saga.state = Notes("")

    return payment


def a_large_order(saga: str, number: int, times: int = 1) -> OrderPlaced:
    return replace(an_order(saga, quantity=number), address=LARGE * times)


async def test_a_saga_that_outgrows_the_store_is_a_dead_letter_by_name_and_no_other_saga_is_affected(
    tmp_path: Path,
) -> None:
    payment = notes()
    async with workplace(tmp_path) as place:
        narrow(place, 10 * BYTES_MAX)
        for number in range(32):
            await place.publish(a_large_order("big", number, times=4), an_order(f"small-{number}"))
        async with at_work(place, payment):
            await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert record.key == b"big"
        assert headers["dead_reason"].startswith("TooLarge: the progress of saga 'big' in 'payment' would have ")
        assert f"bytes, and the store takes {10 * BYTES_MAX}" in headers["dead_reason"]
        assert "state " in headers["dead_reason"]
        assert "keep less" in headers["dead_remedy"]
        assert len(place.reported(DeadLettered)) == 1
        assert not place.reported(Retrying)
        assert not place.reported(Stuck)
        assert not place.reported(Unavailable)
        assert len([m for m in place.reported(Handled) if m.saga.startswith("small-")]) == 32
        p = await place.progress(payment, "big")
        assert p is not None
        assert p.queue[0].dead
        outcomes = [o for m in place.reported(Handled) if m.saga == "big" for o in m.outcomes]
        ran = [o for o in outcomes if o[1] == "handled"]
        assert len(ran) >= 2
        queued = len(p.queue) + sum(page.count for page in p.segments if page.kind == "queue")
        assert queued > 3
        assert len(ran) + queued == 32, "each has run or is queued behind the dead letter"
        assert [k.n for k in p.queue[1:]] == sorted(k.n for k in p.queue[1:])


async def test_a_saga_that_outgrew_the_store_can_still_be_undone(tmp_path: Path) -> None:
    payment = notes()
    async with workplace(tmp_path) as place:
        narrow(place)
        await place.publish(*(a_large_order("big", number) for number in range(7)))
        async with at_work(place, payment):
            await place.at_rest(payment)
            assert len(await place.dead(payment)) == 1
            await place.publish(OrderCancelled(order_id="big", reason="too large"))
            await place.at_rest(payment)
        p = await place.progress(payment, "big")
        assert p is not None
        assert (p.queue, p.results, p.compensating, p.closed) == ((), (), (), ("reserve",))
        assert p.state == {"text": ""}


async def test_a_message_too_large_to_queue_is_a_whole_dead_letter_and_quarantines(tmp_path: Path) -> None:
    payment = notes()
    async with workplace(tmp_path) as place:
        narrow(place)
        await place.publish(a_large_order("big", 1, times=11), an_order("big", quantity=2), an_order("other"))
        async with at_work(place, payment):
            await place.at_rest(payment)
        ((record, headers),) = await place.dead(payment)
        assert record.value is not None
        assert len(record.value) > 550_000, "all of its text"
        assert headers["dead_reason"].startswith("the progress cannot be written: the store ")
        assert headers["dead_handler"] == "reserve"
        assert [m.reason for m in place.reported(DeadLettered)] == [headers["dead_reason"]]
        p = await place.progress(payment, "big")
        assert p is not None
        assert [(k.dead, len(k.message.value) > 0) for k in p.queue] == [(headers["dead_id"], False), (None, True)]
        assert [t.outcome for t in await place.history(payment, "big")] == ["dead", "queued"]
        assert [t.outcome for t in await place.history(payment, "other")] == ["handled"]


async def test_handlers_that_keep_a_message_or_would_ignore_it_are_not_concerned(tmp_path: Path) -> None:
    async with place_of_workers(tmp_path) as at:
        payment = notes()

        @payment.handler
        async def count(order: OrderPlaced, confirmed: OrderConfirmed) -> None: ...

        worker = await at.worker(payment)
        service, order = worker.participant, an_order("big")
        failures, message = MessageProcessor(service).failures, worker.message(order)
        reserve, p = service.roles.handlers["reserve"], new_progress("payment", "big", 1)
        kept = (PendingMessage(handler="count", message=message, n=0),)
        for known, names in ((p, ["count"]), (with_(p, waiting=kept), []), (with_(p, closed=("count",)), [])):
            turn = with_(worker.begun(order, message), progress=known)
            assert list(failures._other_handlers(turn, RunHandler(reserve, message, (message,)))) == names
        paged = with_(worker.begun(order, message), progress=p, paged=("count",))
        assert list(failures._other_handlers(paged, RunHandler(reserve, message, (message,)))) == []


async def test_without_room_for_anything_a_message_is_a_dead_letter_for_each_handler_it_was_for(tmp_path: Path) -> None:
    payment = notes()

    @payment.handler
    async def count(order: OrderPlaced, confirmed: OrderConfirmed) -> None: ...

    @payment.handler
    async def file(order: OrderPlaced, reserved: PaymentReserved) -> None: ...

    async with workplace(tmp_path) as place:
        await place.publish(a_large_order("big", 1))
        async with at_work(place, payment):
            await place.at_rest(payment)
        narrow(place, 50_000)  # it was moved to a store that takes less
        await place.publish(a_large_order("big", 1), replace(a_large_order("big", 1), quantity=2))
        await place.publish(OrderCancelled(order_id="big", reason="-"))
        async with at_work(place, payment):
            await place.at_rest(payment)
        dead = [(headers["dead_handler"], headers["ce_type"]) for _, headers in await place.dead(payment)]
        assert dead == [
            *(("reserve", "OrderPlaced"), ("count", "OrderPlaced"), ("file", "OrderPlaced")),
            ("release", "OrderCancelled"),
        ], "those that have run already are not concerned"
        assert [m.handler for m in place.reported(DeadLettered)] == ["reserve", "count", "file", "release"]


async def test_without_room_for_anything_each_message_of_the_saga_is_a_dead_letter(tmp_path: Path) -> None:
    payment = notes()
    async with workplace(tmp_path) as place:
        await place.publish(a_large_order("big", 1))
        async with at_work(place, payment):
            await place.at_rest(payment)
        narrow(place, 50_000)  # it was moved to a store that takes less
        await place.publish(an_order("big", quantity=2), an_order("big", quantity=3), an_order("other"))
        async with at_work(place, payment):
            await place.at_rest(payment)
        dead = await place.dead(payment)
        assert len({headers["dead_id"] for _, headers in dead}) == 2
        assert len(place.reported(DeadLettered)) == 1, "it is reported once"
        assert not place.reported(Stuck)
        assert [t.outcome for t in await place.history(payment, "big")] == ["handled"]
        assert [t.outcome for t in await place.history(payment, "other")] == ["handled"]


async def test_an_answer_of_a_step_that_has_no_room_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    payment, called = Service("payment"), list[int]()

    async def fetched(times: int) -> str:
        called.append(times)
        return LARGE * times

    @payment.handler(retry=Retry(attempts_max=5))
    async def reserve(order: OrderPlaced, saga: Saga) -> PaymentReserved:
        for times in (1, 13, 2):
            await saga.step(fetched, times)
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    async with workplace(tmp_path) as place:
        narrow(place)
        await place.publish(an_order("big"), an_order("other"))
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert sorted(called) == [1, 1, 13, 13], "no call is made again, and the step behind them never begins"
        for saga in ("big", "other"):
            p = await place.progress(payment, saga)
            assert p is not None
            (intent,) = p.intents
            assert intent.begins is not None
            assert ([c.number for c in intent.calls], intent.begins.number) == ([1], 2), (
                "what may have happened is known"
            )
        assert {headers["dead_reason"][:9] for _, headers in await place.dead(payment)} == {"TooLarge:"}


async def test_a_batched_update_that_is_too_large_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stands(*_: object) -> bool:
        return True

    monkeypatch.setattr(document_updates, "_is_open", stands)
    payment = notes()
    payment.document(Ledger, "ledger")
    declared, clock = payment.declared, TrialClock()
    async with SqliteStore(tmp_path / "store.db", clock=clock, document_bytes_max=100_000) as store:
        await store.insert("ledger", "all", b"{}")
        service = make_service_runtime(
            prepare(declared), {}, trial_ports(declared.name, store, clock, RecordingPublisher())
        )
        updates = [
            document_updates.DocumentUpdate(
                declared=service.documents[Ledger],
                key="all",
                marker=f"m-{n}",
                saga=f"s-{n}",
                run=("do", "reserve", f"c-{n}"),
                change=Ledger.noted,
                args=("y" * 100_000 if n == 1 else f"line {n}",),
                kwargs={},
                until_s=1e12,
            )
            for n in range(3)
        ]
        made = await document_updates.apply_together(service, Position("orders", 0, 0), updates)
        assert [type(one) for one in made] == [document_updates.Marker, Permanent, document_updates.Marker]
        assert "document 'all' of 'ledger' would be too large: " in str(made[1])
        ledger = await store.get("ledger", "all")
        assert ledger is not None
        assert document_updates.as_kind(ledger.content, Ledger) == Ledger(lines=("line 0", "line 2"))


async def test_one_update_that_makes_a_document_too_large_fails_alone(tmp_path: Path) -> None:
    payment = Service("payment")
    payment.document(Ledger, "ledger")

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga) -> PaymentReserved:
        await saga.update(Ledger, "all", Ledger.noted, order.address[:500_000])
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    async with workplace(tmp_path) as place:
        narrow(place, 400_000)
        await place.store.insert("ledger", "all", b"{}")
        orders = [an_order(f"order-{number}") for number in range(20)]
        orders[7] = replace(orders[7], address="y" * 395_000)
        await place.publish(*orders)
        async with at_work(place, payment):
            await place.at_rest(payment)
        ledger = await place.store.get("ledger", "all")
        assert ledger is not None
        assert ledger.content.count(b"Kiel") == 19
        dead = await place.dead(payment)
        assert [record.key for record, _ in dead] == [b"order-7"]
        assert not place.reported(Escalated)
        assert not place.reported(Stuck)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (Ledger(lines=("y" * 399_900,)), "document 'all' of 'ledger' would be too large"),
        ({"_saga": 5}, "document 'all' of 'ledger' is no JSON object"),
    ],
    ids=["full", "damaged"],
)
async def test_an_abort_whose_document_takes_no_marker_is_retried_until_the_document_is_repaired(
    tmp_path: Path, content: object, why: str
) -> None:
    payment = Service("payment", retry=Retry(attempts_max=2))
    payment.document(Ledger, "ledger")

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga) -> PaymentReserved:
        await saga.update(Ledger, "all", Ledger.noted, order.address)
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    async with workplace(tmp_path) as place:
        narrow(place, 400_000)
        await place.store.insert("ledger", "all", msgspec.json.encode(content))
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.at_rest(payment)
            await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
            await place.until(lambda: bool(place.reported(Escalated)) or bool(place.reported(Stuck)))
            assert not place.reported(Stuck)
            assert why in place.reported(Escalated)[0].reason
            full = await place.store.get("ledger", "all")
            assert full is not None
            await place.store.replace("ledger", "all", b"{}", cas=full.cas)
            await place.at_rest(payment)
        assert [(e.handler, e.outcome) for e in await place.history(payment)][-1] == ("release", "compensated")
        p = await place.progress(payment)
        assert p is not None
        assert (p.closed, p.intents, p.compensating) == (("reserve",), (), ())
        assert not place.reported(Stuck)


async def test_a_history_of_large_events_stays_within_its_bytes(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id=LARGE, amount=order.total)

    async with workplace(tmp_path) as place:
        await place.publish(*(an_order("big", quantity=n) for n in range(30)))
        async with at_work(place, payment):
            await place.at_rest(payment)
        document = await place.store.get("saga", "payment::big")
        assert document is not None
        assert len(document.content) < history.HISTORY_BYTES_MAX + 3 * len(LARGE)
        p = decode_progress(document.content)
        archives = [history.decode_archive(d.content) async for _, d in place.store.scan("saga-archive", "payment::")]
        whole = [raw for archive in archives for raw in archive.transitions] + list(p.transitions)
        assert len(whole) == 30
        assert history.verify_history(whole, p) is None
        assert len(await place.records("payments")) == 30
