"""One progress rebuilt from messages and from emitted events: what is known, what is reconstructed, and what is
refused."""

import dataclasses
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec import structs

from saga import Event, Later, Saga, Service, limited
from saga.engine.prepared_service import prepare
from saga.engine.repair import RebuildEnvironment, RebuiltProgress, ReceivedMessage, Unknowable, rebuild_progress
from saga.messages import Message, Position, Record
from saga.messaging import envelope
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress.document import SagaProgress, decode_transition
from saga.progress.history import decode_archive
from saga.support.clock import from_iso
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentCaptured, PaymentDeclined, PaymentReleased, PaymentReserved
from tests.engine.driven_workers import At, place
from tests.engine.real_worker import SAGA, an_order, topic_of

CONFIRMED, CANCELLED = OrderConfirmed(order_id=SAGA), OrderCancelled(order_id=SAGA, reason="-")
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Count:
    seen: int = 0


@dataclass(frozen=True)
class Last:
    handler: str = ""


class Bank:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def charge(self) -> str:
        self.calls += 1
        return "c"


def reserved(order: OrderPlaced, charge: str = "c") -> PaymentReserved:
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


class Life:
    """What a service was given and has emitted, message by message, and its progress after that."""

    def __init__(self, worker: At) -> None:
        self.worker = worker
        self.taken: list[ReceivedMessage] = []

    async def takes(self, *events: Event) -> None:
        for event in events:
            message = self.worker.message(event)
            position = Position(topic_of(event), 0, len(self.taken))
            self.taken.append(ReceivedMessage(message, position, from_iso(message.time)))
            await self.worker.takes(event)
            await self.worker.participant.ports.clock.sleep(1)

    @property
    def logged_events(self) -> dict[str, Message]:
        """Events in the log."""
        contracts, found = self.worker.participant.contracts, dict[str, Message]()
        for out in self.worker.log.messages:
            type_ = envelope.type_of(Record(out.topic, 0, 0, out.key, out.value, out.headers, 0)) or ""
            if type_ in contracts and not out.topic.endswith(".dead"):
                record = Record(out.topic, 0, 0, out.key, out.value, out.headers, 0)
                message = envelope.to_message(record, type_=type_, schema="", contract=contracts[type_])
                found[message.id] = message
        return found

    async def rebuild(
        self,
        service: Service | None = None,
        logged: dict[str, Message] | None = None,
        taken: list[ReceivedMessage] | None = None,
    ) -> RebuiltProgress:
        """Its progress rebuilt, by this version of the service. Raises `Unknowable`."""
        made = await rebuild_progress(
            self.worker.participant if service is None else prepare(service.declared),
            SAGA,
            self.taken if taken is None else taken,
            self.logged_events if logged is None else logged,
            self.worker.participant.ports.clock.now_ms() + HOUR_MS,
            RebuildEnvironment(1_000_000, 20_000_000),
        )
        assert made is not None
        return made


def summarize(p: SagaProgress) -> list[tuple[str, str, str | None]]:
    return [(e.handler, e.outcome, e.reason) for e in map(decode_transition, p.transitions)]


async def test_handlers_that_ask_for_nothing_outside_are_made_again_with_what_they_changed(tmp_path: Path) -> None:
    payment = Service("payment", state=Count)

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[Count]) -> PaymentReserved:
        saga.state = Count(saga.state.seen + order.quantity)
        return reserved(order)

    @payment.handler(repeats=OrderConfirmed)
    async def note(confirmed: OrderConfirmed, saga: Saga[Count]) -> None:
        saga.state = Count(saga.state.seen + 100)

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(an_order(quantity=7), CONFIRMED)
        rebuilt, once = await life.rebuild(), await life.worker.progress()
        assert rebuilt.snapshot.state == once.state == {"seen": 107}
        assert (rebuilt.snapshot.inbox, rebuilt.unpublished, rebuilt.left_to_service) == (once.inbox, [], [])
        assert summarize(rebuilt.snapshot) == [
            ("reserve", "handled", "rebuilt from the log"),
            ("note", "handled", "rebuilt from the log"),
        ]


async def test_events_that_were_never_published_are_listed_as_they_would_have_been(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> tuple[PaymentReserved, PaymentCaptured]:
        return reserved(order), PaymentCaptured(order_id=order.order_id, amount=order.total)

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(an_order())
        first, second = life.logged_events.values()
        rebuilt = await life.rebuild(logged={first.id: first})
        assert [(e.id, e.value) for e in rebuilt.unpublished] == [(second.id, second.value)]
        rebuilt = await life.rebuild(logged={})
        assert [e.id for e in rebuilt.unpublished] == [first.id, second.id]
        named = [
            dataclasses.replace(each, message=structs.replace(each.message, principal="user:4711"))
            for each in life.taken
        ]
        rebuilt = await life.rebuild(logged={}, taken=named)
        assert [rebuilt.snapshot.principal, *(e.principal for e in rebuilt.unpublished)] == ["user:4711"] * 3


async def test_a_step_is_never_made_and_what_it_led_to_is_taken_from_the_log(tmp_path: Path) -> None:
    payment, bank = Service("payment"), Bank()

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga) -> PaymentReserved | PaymentDeclined:
        return reserved(order, await saga.step(bank.charge))

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, saga: Saga) -> PaymentReleased:
        await saga.step(bank.charge)
        return PaymentReleased(order_id=cancelled.order_id, charge_id=reserved.charge_id)

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(an_order(), CANCELLED)
        assert bank.calls == 2
        rebuilt, once = await life.rebuild(), await life.worker.progress()
        assert [entry[:2] for entry in summarize(rebuilt.snapshot)] == [
            ("reserve", "handled"),
            ("release", "compensated"),
        ]
        assert (rebuilt.snapshot.closed, rebuilt.snapshot.results) == (once.closed, once.results)
        first, _ = life.logged_events.values()
        rebuilt = await life.rebuild(logged={first.id: first})
        assert rebuilt.left_to_service == ["release"]
        assert [k.handler for k in rebuilt.snapshot.compensating] == ["reserve"]
        assert bank.calls == 2


@limited(rate_per_s=0.001)
async def tell(who: str) -> str:
    return who


async def test_limits_of_calls_that_are_not_made_hold_nothing_back(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return reserved(order)

    @payment.handler
    async def capture(confirmed: OrderConfirmed) -> PaymentCaptured:
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal(1))

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved, saga: Saga) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id=await saga.step(tell, "customer"))

    @payment.compensation(capture)
    async def refund(cancelled: OrderCancelled, captured: PaymentCaptured, saga: Saga) -> PaymentReleased:
        return PaymentReleased(order_id=cancelled.order_id, charge_id=await saga.step(tell, "shop"))

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(an_order(), CONFIRMED, CANCELLED)
        first, second, *_ = life.logged_events.values()
        rebuilt = await life.rebuild(logged={first.id: first, second.id: second})
        assert rebuilt.left_to_service == ["refund", "release"]


async def test_a_deadline_that_has_run_has_run_and_another_is_left_to_the_service(tmp_path: Path) -> None:
    order = Service("order")

    @order.deadline(within=timedelta(seconds=10))
    async def expire(placed: OrderPlaced) -> OrderCancelled:
        return OrderCancelled(order_id=placed.order_id, reason="late")

    @order.handler(repeats=PaymentCaptured)
    async def note(captured: PaymentCaptured) -> None: ...

    late = PaymentCaptured(order_id=SAGA, amount=an_order().total)
    async with place(tmp_path) as at:
        life = Life(await at.worker(order))
        await life.takes(an_order())
        await at.clock.sleep(10)
        await life.takes(late)
        rebuilt, once = await life.rebuild(), await life.worker.progress()
        assert ("expire", "handled") in [entry[:2] for entry in summarize(rebuilt.snapshot)]
        assert (rebuilt.snapshot.outcome, rebuilt.snapshot.closed) == (once.outcome, once.closed)
        assert rebuilt.snapshot.outcome == "OrderCancelled"
        rebuilt = await life.rebuild(logged={})
        assert [entry[:2] for entry in summarize(rebuilt.snapshot)] == [("", "noted"), ("note", "handled")]
        assert [k.handler for k in rebuilt.snapshot.deadlines] == ["expire"]
        assert rebuilt.unpublished == []


async def test_a_message_that_lay_in_the_log_for_long_is_taken_when_it_was_handled(tmp_path: Path) -> None:
    payment = Service("payment", state=Last)

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[Last]) -> PaymentReserved:
        saga.state = Last("order")
        return reserved(order)

    @payment.handler
    async def capture(confirmed: OrderConfirmed, saga: Saga[Last]) -> PaymentCaptured:
        saga.state = Last("confirmed")
        return PaymentCaptured(order_id=SAGA, amount=an_order().total)

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(an_order(), CONFIRMED)
        first, second = life.taken
        early = ReceivedMessage(second.message, Position("other", 0, 0), first.time_ms - HOUR_MS)
        rebuilt = await life.rebuild(taken=[first, early])
        assert rebuilt.snapshot.state == {"handler": "confirmed"}


async def test_a_long_history_comes_with_its_archives(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler(repeats=OrderPlaced)
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return reserved(order, str(order.quantity))

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(*(an_order(quantity=n) for n in range(1, 100)))
        rebuilt = await life.rebuild()
        *before, (last, _) = rebuilt.documents
        assert (last, {collection for collection, _ in before}) == (PROGRESS, {ARCHIVES})
        archived = [
            decode_archive(content).transitions for (c, _), (content, _) in rebuilt.documents.items() if c == ARCHIVES
        ]
        assert sum(map(len, archived)) + len(rebuilt.snapshot.transitions) == rebuilt.snapshot.n == 99


# -------------------------------------------------------------------- what is refused


@dataclass(frozen=True)
class Seen:
    """The count as it is, in another unit than before."""

    thousands: int = 1


async def test_a_state_in_its_newest_version_is_rebuilt_without_a_migration(tmp_path: Path) -> None:
    service = Service("payment", state=Seen)

    @service.migrate(1)
    def in_thousands(old: Count) -> Seen:
        return Seen(thousands=-1)

    @service.handler
    async def reserve(order: OrderPlaced, saga: Saga[Seen]) -> PaymentReserved:
        saga.state = Seen(thousands=saga.state.thousands * 1000)
        return reserved(order)

    @service.handler(repeats=OrderConfirmed)
    async def count(confirmed: OrderConfirmed, saga: Saga[Seen]) -> None:
        saga.state = Seen(thousands=saga.state.thousands * 1000)

    async with place(tmp_path) as at:
        life = Life(await at.worker(service))
        await life.takes(an_order(), CONFIRMED)
        rebuilt, once = await life.rebuild(), await life.worker.progress()
    assert rebuilt.snapshot.state == once.state == {"thousands": 1_000_000}
    assert rebuilt.snapshot.version == once.version == 2


def refused(words: str) -> "pytest.RaisesExc[Unknowable]":
    return pytest.raises(Unknowable, match=words)


async def test_a_state_that_a_run_with_steps_may_have_changed_is_refused(tmp_path: Path) -> None:
    payment, bank = Service("payment", state=Count), Bank()

    @payment.handler
    async def reserve(order: OrderPlaced, saga: Saga[Count]) -> PaymentReserved:
        saga.state = Count(len(await saga.step(bank.charge)))
        return reserved(order)

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(an_order())
        with refused("reserve may have changed the state"):
            await life.rebuild()


async def test_a_run_with_steps_that_may_say_nothing_is_refused(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved | None:
        await saga.step(bank.charge)
        return None

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(an_order())
        with refused("reserve makes calls, and may emit nothing"):
            await life.rebuild()


def version(charge: str, *, breaks: bool = False) -> Service:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        if breaks:
            raise ValueError("a bug")
        return reserved(order, charge)

    return payment


async def test_a_version_that_emits_something_else_is_refused(tmp_path: Path) -> None:
    async with place(tmp_path) as at:
        life = Life(await at.worker(version("1")))
        await life.takes(an_order())
        await life.rebuild(version("1"))
        with refused("reserve emits other events than the log has of it"):
            await life.rebuild(version("2"))
        with refused("reserve fails on OrderPlaced: ValueError: a bug"):
            await life.rebuild(version("1", breaks=True))


async def test_events_caused_by_messages_that_are_gone_are_refused(tmp_path: Path) -> None:
    payment = Service("payment")

    @payment.handler
    async def reserve(order: OrderPlaced) -> PaymentReserved:
        return reserved(order)

    @payment.handler
    async def both(order: OrderPlaced, confirmed: OrderConfirmed) -> PaymentCaptured:
        return PaymentCaptured(order_id=order.order_id, amount=order.total)

    async with place(tmp_path) as at:
        life = Life(await at.worker(payment))
        await life.takes(an_order(), CONFIRMED)
        assert len((await life.rebuild()).snapshot.transitions) == 3
        with refused("the log has events that nothing here leads to: PaymentCaptured PaymentCaptured-"):
            await life.rebuild(taken=life.taken[:1])


async def test_a_run_that_may_be_suspended_cannot_be_rebuilt_from_the_log(tmp_path: Path) -> None:
    service = Service("payment")

    @service.handler
    async def wait(order: OrderPlaced, saga: Saga) -> PaymentDeclined | Later:
        if not saga.elapsed:
            return Later(after=timedelta(days=1))
        return PaymentDeclined(order_id=order.order_id, reason="late")

    async with place(tmp_path) as at:
        life = Life(await at.worker(service))
        await life.takes(an_order())
        with refused("wait may wait"):
            await life.rebuild()
