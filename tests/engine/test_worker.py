"""A worker: bounded in flight, in order within a saga, side by side over sagas, never past what it cannot decide."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from click.testing import CliRunner

from saga import Saga, Service
from saga.cli.main import main
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.progress_cache import ProgressCache
from saga.errors import BrokerError, Permanent
from saga.messages import Partition, texts_of
from saga.messaging import envelope
from saga.progress import history
from saga.progress.document import FORMAT, SagaProgress
from saga.telemetry.events import Handled, Retrying, Stuck
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentDeclined, PaymentReleased, PaymentReserved
from tests.engine.real_worker import SAGA, an_order, at_work, workplace


@dataclass
class Door:
    """Handlers go through it, some slowly; who is inside, and who came through, in order."""

    through: list[tuple[str, int]] = field(default_factory=list)
    inside: Counter[str] = field(default_factory=Counter)
    inside_most: int = 0
    inside_most_of_one: int = 0
    closed: dict[str, asyncio.Event] = field(default_factory=dict)

    async def go(self, saga: str, number: int) -> None:
        self.inside[saga] += 1
        self.inside_most = max(self.inside_most, self.inside.total())
        self.inside_most_of_one = max(self.inside_most_of_one, self.inside[saga])
        if saga in self.closed:
            await self.closed[saga].wait()
        else:
            await asyncio.sleep(0.001)  # noqa: TID251 - others may come in meanwhile
        self.inside[saga] -= 1
        self.through.append((saga, number))


@dataclass(frozen=True)
class Total:
    quantity: int = 0


def doored() -> tuple[Service[Total], Door]:
    payment, door = Service("payment", state=Total), Door()

    @payment.resource
    async def opened() -> AsyncIterator[Door]:
        yield door

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced, door: Door, saga: Saga[Total]) -> PaymentReserved:
        await door.go(order.order_id, order.quantity)
        saga.state = Total(saga.state.quantity + order.quantity)
        return PaymentReserved(order_id=order.order_id, charge_id=f"{order.quantity}", amount=order.total)

    return payment, door


async def test_messages_of_a_saga_are_handled_in_order_one_at_a_time_and_sagas_side_by_side(tmp_path: Path) -> None:
    payment, door = doored()
    sagas = [f"order-{n}" for n in range(20)]
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(*(an_order(saga, quantity=n) for n in range(10) for saga in sagas))
        await place.at_rest(payment)
        for saga in sagas:
            assert [n for s, n in door.through if s == saga] == list(range(10))
            emitted = [entry.events[0].value for entry in await place.history(payment, saga)]
            assert emitted == [r.value for r in await place.records("payments") if r.key == saga.encode()]
    assert door.inside_most_of_one == 1
    assert door.inside_most > 5


async def test_events_of_one_handler_are_published_in_the_order_in_which_it_returned_them(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> list[PaymentReserved]:
        return [PaymentReserved(order_id=order.order_id, charge_id=f"c{n}", amount=order.total) for n in range(5)]

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        values = [record.value or b"" for record in await place.records("payments")]
        assert [b"c%d" % n in value for n, value in enumerate(values)] == [True] * 5
        (entry,) = await place.history(payment)
        assert values == [event.value for event in entry.events]
        assert len({event.id for event in entry.events}) == 5


async def test_no_more_than_the_bound_are_in_flight_and_all_are_handled(tmp_path: Path) -> None:
    payment, door = doored()
    async with workplace(tmp_path) as place:
        await place.publish(*(an_order(f"order-{n}") for n in range(60)))
        door.closed = {f"order-{n}": asyncio.Event() for n in range(60)}
        async with at_work(place, payment, limits=FlowLimits(inflight_max=7)):
            await place.until(lambda: door.inside.total() == 7)
            for closed in door.closed.values():
                closed.set()
            await place.at_rest(payment)
        assert door.inside_most == 7
        assert len(door.through) == 60


async def test_nothing_more_is_taken_while_what_is_in_flight_is_as_large_as_allowed(tmp_path: Path) -> None:
    payment, door = doored()
    async with workplace(tmp_path) as place:
        await place.publish(*(an_order(f"order-{n}") for n in range(60)))
        door.closed = {f"order-{n}": asyncio.Event() for n in range(60)}
        one_poll = 25  # a quarter of what may be in flight
        async with at_work(place, payment, limits=FlowLimits(inflight_max=100, inflight_min=100, inflight_bytes_max=1)):
            await place.until(lambda: door.inside.total() == one_poll)
            for closed in door.closed.values():
                closed.set()
            await place.at_rest(payment)
        assert door.inside_most == one_poll
        assert len(door.through) == 60


async def test_a_slow_saga_holds_back_the_commit_and_not_the_work(tmp_path: Path) -> None:
    payment, door = doored()
    async with workplace(tmp_path) as place:
        await place.publish(an_order("slow"))
        (slow,) = await place.records("orders")
        await place.publish(*(an_order(f"order-{n}") for n in range(60)))
        door.closed["slow"] = asyncio.Event()
        partition = Partition("orders", slow.partition)
        behind = [r for r in await place.records("orders") if r.partition == slow.partition]
        assert len(behind) > 1
        async with at_work(place, payment):
            await place.until(lambda: len(place.reported(Handled)) == 60)
            await place.clock.sleep(0.12)  # twice the time between two commits
            assert place.committed(payment, partition) == slow.offset
            door.closed["slow"].set()
            await place.at_rest(payment)
            assert place.committed(payment, partition) == behind[-1].offset + 1


async def test_a_progress_of_a_newer_format_is_never_overwritten_and_other_sagas_continue(tmp_path: Path) -> None:
    payment, _ = doored()
    newer = b'{"service":"payment","saga":"order-1","format":99,"marvel":true}'
    async with workplace(tmp_path) as place:
        await place.store.insert("saga", "payment::order-1", newer)
        async with at_work(place, payment):
            await place.publish(an_order(), an_order("order-2"))
            await place.until(lambda: len(place.reported(Stuck)) >= 3 and len(place.reported(Handled)) == 1)
            assert {stuck.saga for stuck in place.reported(Stuck)} == {SAGA}
            assert [stuck.retry_s for stuck in place.reported(Stuck)[:3]] == [0.5, 1, 2]
            assert place.reported(Stuck)[0].error == (
                f"SagaError: the progress of saga 'order-1' has format 99, this version reads up to {FORMAT}: "
                "run the newer version of the toolkit"
            )
            assert [e.outcome for e in await place.history(payment, "order-2")] == ["handled"]
        document = await place.store.get("saga", "payment::order-1")
        assert document is not None
        assert document.content == newer
        assert place.is_behind(payment)
        await place.store.remove("saga", "payment::order-1", cas=document.cas)  # a person has mended it
        async with at_work(place, payment):
            await place.at_rest(payment)
        assert [e.outcome for e in await place.history(payment)] == ["handled"]


async def test_a_document_that_cannot_be_read_as_a_progress_is_never_overwritten(tmp_path: Path) -> None:
    payment, _ = doored()
    async with workplace(tmp_path) as place:
        await place.store.insert("saga", "payment::order-1", b'{"service":"payment"')
        async with at_work(place, payment):
            await place.publish(an_order())
            await place.until(lambda: len(place.reported(Stuck)) >= 2)
            assert place.reported(Stuck)[0].error.startswith("SagaError: a progress document cannot be read: ")
        document = await place.store.get("saga", "payment::order-1")
        assert document is not None
        assert document.content == b'{"service":"payment"'


async def test_a_long_history_is_archived_and_verified_as_a_whole(tmp_path: Path) -> None:
    payment, _ = doored()
    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(*(an_order(quantity=n) for n in range(200)))
        await place.at_rest(payment)
        p = await place.progress(payment)
        assert p is not None
        archives = [history.decode_archive(d.content) async for _, d in place.store.scan("saga-archive", "payment::")]
        whole = [raw for archive in archives for raw in archive.transitions] + list(p.transitions)
        assert p.n == len(whole) == 200
        assert len(p.transitions) <= history.TRANSITIONS_MAX
        assert len(archives) >= 2
        assert history.verify_history(whole, p) is None
        assert p.state == {"quantity": sum(range(200))}
        assert len(await place.records("payments")) == 200
        # An inbox entry outlives any redelivery: none is dropped for being one of many.
        assert len(p.inbox) == 200
    (tmp_path / "store.db").rename(tmp_path / "payment.db")
    environment = {"SAGA_STORE": f"sqlite:///{tmp_path}/{{service}}.db"}
    result = await asyncio.to_thread(
        CliRunner().invoke, main, ["sagas", "verify", SAGA], env=environment, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "unchanged" in result.output


async def test_a_message_without_the_start_of_its_saga_waits_until_one_has_it(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def note(confirmed: OrderConfirmed) -> PaymentDeclined:
        return PaymentDeclined(order_id=confirmed.order_id, reason="-")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def late(cancelled: OrderCancelled) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id="c")

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(OrderConfirmed(order_id=SAGA), started=None)
        await place.at_rest(payment)
        await place.publish(an_order(), started="2026-11-21T10:00:00.000Z")
        await place.at_rest(payment)
        assert [(e.handler, e.outcome, e.reason) for e in await place.history(payment)] == [
            ("note", "waiting", "no message with the start of this saga has come yet"),
            ("reserve", "handled", None),
            ("note", "handled", None),
        ]
        await place.publish(OrderCancelled(order_id=SAGA, reason="-"), started=None)
        await place.at_rest(payment)
        started = [dict(record.headers)["ce_sagastart"] for record in await place.records("payments")]
        assert started == [b"2026-11-21T10:00:00.000Z"] * 3


async def test_events_caused_by_a_client_message_carry_the_start_of_the_saga(tmp_path: Path) -> None:
    """A Client cannot know it, unless its event starts the saga: the service that handles it knows, and records it."""
    payment = Service("payment")
    other = Service("inventory")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    async def take() -> None: ...

    @payment.handler
    async def answer(confirmed: OrderConfirmed, saga: Saga) -> PaymentCaptured:
        await saga.step(take)
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal(1))

    @payment.handler
    async def own(captured: PaymentCaptured) -> PaymentReleased:
        return PaymentReleased(order_id=captured.order_id, charge_id="c")

    @payment.handler
    async def waits(captured: PaymentCaptured, cancelled: OrderCancelled) -> None: ...

    @other.handler
    async def heard(released: PaymentReleased) -> None: ...

    began = "2026-11-21T10:00:00.000Z"
    async with workplace(tmp_path) as place:
        async with at_work(place, payment):
            await place.publish(an_order(), started=began)
            await place.at_rest(payment)
            await place.publish(OrderConfirmed(order_id=SAGA), started=None, source="client")
            await place.at_rest(payment)
        starts = {envelope.type_of(r): texts_of(r.headers).get("ce_sagastart") for r in await place.records("payments")}
        assert starts == dict.fromkeys(["PaymentReserved", "PaymentCaptured", "PaymentReleased"], began)
        assert [(e.handler, e.outcome) for e in await place.history(payment)] == [
            ("reserve", "handled"),
            ("answer", "handled"),
            ("own", "handled"),
        ]
        p = await place.progress(payment)
        assert p is not None
        assert [part.event.started for part in p.self_consumed] == [began], "also where it is a part here"
        async with at_work(place, other):
            await place.at_rest(other)
            assert [(e.handler, e.outcome) for e in await place.history(other)] == [("heard", "handled")]


async def test_open_progresses_never_expire_and_others_after_the_retention(tmp_path: Path) -> None:
    payment = Service("payment", retention=timedelta(hours=1))

    @payment.handler
    async def reserve(order: OrderPlaced) -> None:
        if order.order_id == "dead":
            raise Permanent("never")

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order("dead"), an_order("done"))
        await place.at_rest(payment)
        place.clock.ahead_ms = 3_590_000
        assert await place.progress(payment, "done") is not None
        place.clock.ahead_ms = 3_610_000
        assert await place.progress(payment, "done") is None
        assert await place.progress(payment, "dead") is not None


async def test_the_cause_of_a_fan_in_is_the_same_whichever_part_came_last(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def both(order: OrderPlaced, confirmed: OrderConfirmed) -> PaymentDeclined:
        return PaymentDeclined(order_id=order.order_id, reason="-")

    parts = {"z": an_order(), "a": OrderConfirmed(order_id=SAGA)}
    emitted = []
    for folder, order in (("one", "za"), ("other", "az")):
        async with workplace(tmp_path / folder) as place, at_work(place, payment):
            for id in order:
                await place.publish(parts[id], id=id)
                await place.at_rest(payment)
            entry = (await place.history(payment))[-1]
            assert (entry.outcome, entry.cause) == ("handled", "somebody|a+somebody|z")
            emitted += [event.id for event in entry.events]
    assert len(set(emitted)) == 1


async def test_the_copy_of_an_own_event_is_not_looked_at(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @payment.handler
    async def charged(confirmed: OrderConfirmed, reserved: PaymentReserved) -> None: ...

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.publish(OrderConfirmed(order_id=SAGA), source="payment")
        await place.at_rest(payment)
        assert [e.handler for e in await place.history(payment)] == ["reserve"]
        assert len(place.reported(Handled)) == 1


async def test_a_cache_holds_the_sagas_that_were_touched_last_and_forgetting_changes_nothing(tmp_path: Path) -> None:
    payment, _ = doored()
    async with workplace(tmp_path) as place, at_work(place, payment, limits=FlowLimits(cache_max=2)):
        for quantity in range(3):
            await place.publish(*(an_order(f"order-{n}", quantity=quantity) for n in range(6)))
            await place.at_rest(payment)
        for n in range(6):
            p = await place.progress(payment, f"order-{n}")
            assert p is not None
            assert (p.n, p.state) == (3, {"quantity": 3})
        assert not place.reported(Retrying)


def test_a_cache_is_bounded_and_gives_what_it_has_once() -> None:
    cache, p = ProgressCache(2), SagaProgress(service="payment", saga=SAGA)
    for saga in ("a", "b", "c"):
        cache.put(saga, p, 1)
    assert [cache.take(saga) for saga in ("a", "b", "b")] == [None, (p, 1, 0.0), None]
    cache.clear()
    assert (cache.take("c"), len(cache)) == (None, 0)


async def test_a_member_that_cannot_be_one_ends_the_worker_before_it_has_any_partition(tmp_path: Path) -> None:
    class Refused:
        """A membership of a group that does not let it in."""

        def wake(self) -> None: ...

        async def poll(self, partitions: object, *, records_max: int, timeout_s: float) -> list[object]:
            raise BrokerError("the group does not let us in")

    @asynccontextmanager
    async def join(*_: object, **options: object) -> AsyncIterator[Refused]:
        yield Refused()

    payment, _ = doored()
    async with workplace(tmp_path) as place:
        place.broker.join = join  # type: ignore[method-assign, assignment]  # a broker that refuses
        with pytest.raises(ExceptionGroup) as why:
            async with at_work(place, payment):
                await place.until(lambda: False)
        assert why.group_contains(BrokerError, match="does not let us in")
