"""A state of an older release at a real worker: migrated once, at the end of a run, and not touched by the old release
from then on."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import Raw
from msgspec.structs import replace as with_

from saga import Saga, Service
from saga.cli.main import main
from saga.contracts import codec
from saga.contracts.library import find_library
from saga.errors import Permanent
from saga.messages import Partition
from saga.messaging.names import ARCHIVES
from saga.ops.histories import SagaHistory, find_transition
from saga.progress import history
from saga.progress.document import PLAIN, VERSIONED, SagaProgress, decode_transition, encode
from saga.progress.history import archive_key, decode_archive, fold_state, verify_history
from saga.telemetry.events import Stuck
from services.payment.events import OrderCancelled, OrderConfirmed, OrderPlaced, PaymentCaptured, PaymentReserved
from tests.engine.deployed_contracts import Contracts
from tests.engine.real_worker import ROOT, SAGA, Workplace, an_order, at_work, workplace


@dataclass(frozen=True)
class NotesV1:
    total: str = "0.00"
    noted: int = 0
    moved: int = 0
    """Times that it was migrated."""


@dataclass(frozen=True)
class Notes:
    cents: int = 0
    moved: int = 1


@dataclass
class Bank:
    """The outside: it notes what it is asked."""

    asked: list[str] = field(default_factory=list)
    away: bool = False

    async def reserve(self, key: str, total: str) -> str:
        self.asked.append(total)
        return f"charge-{len(self.asked)}"

    async def capture(self, key: str, charge: str) -> str:
        self.asked.append(charge)
        if self.away:
            raise OSError("away")
        return "taken"


def before() -> Service[NotesV1]:
    """The release before: it keeps euros."""
    service = Service("payment", state=NotesV1)

    @service.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @service.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga[NotesV1]) -> PaymentReserved:
        charge = await saga.step(bank.reserve, saga.idempotency_key("charge"), str(order.total))
        saga.state = replace(saga.state, total=str(order.total))
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @service.handler
    async def capture(confirmed: OrderConfirmed, reserved: PaymentReserved, bank: Bank, saga: Saga[NotesV1]) -> None:
        await saga.step(bank.capture, saga.idempotency_key("capture"), reserved.charge_id)
        await saga.step(bank.capture, saga.idempotency_key("again"), saga.state.total)

    @service.handler(repeats=OrderCancelled)
    async def note(cancelled: OrderCancelled, saga: Saga[NotesV1]) -> None:
        saga.state = replace(saga.state, noted=saga.state.noted + 1)

    return service


def after() -> Service[Notes]:
    """The release that keeps cents; its steps are those of before."""
    service = Service("payment", state=Notes)

    @service.migrate(1)
    def in_cents(old: NotesV1) -> Notes:
        return Notes(cents=round(float(old.total) * 100), moved=old.moved + 1)

    @service.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @service.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga[Notes]) -> PaymentReserved:
        charge = await saga.step(bank.reserve, saga.idempotency_key("charge"), str(order.total))
        saga.state = replace(saga.state, cents=round(float(order.total) * 100))
        return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)

    @service.handler
    async def capture(
        confirmed: OrderConfirmed, reserved: PaymentReserved, bank: Bank, saga: Saga[Notes]
    ) -> PaymentCaptured:
        await saga.step(bank.capture, saga.idempotency_key("capture"), reserved.charge_id)
        await saga.step(bank.capture, saga.idempotency_key("again"), f"{saga.state.cents / 100:.2f}")
        return PaymentCaptured(order_id=confirmed.order_id, amount=reserved.amount)

    @service.handler(repeats=OrderCancelled)
    async def note(cancelled: OrderCancelled, saga: Saga[Notes]) -> None:
        saga.state = replace(saga.state, cents=saga.state.cents + 1)

    return service


def cancelled(number: int) -> OrderCancelled:
    return OrderCancelled(order_id=SAGA, reason=str(number))


async def known(place: Workplace) -> SagaProgress:
    p = await place.progress(before())
    assert p is not None
    return p


async def handled(place: Workplace, service: Service[Any], bank: Bank, *events: Any) -> SagaProgress:
    """The progress after a release has handled these events."""
    async with at_work(place, service, use=[bank] if service.declared.resources else []):
        await place.publish(*events)
        await place.at_rest(service)
    return await known(place)


async def test_the_end_of_the_first_run_holds_the_whole_state_and_its_version(tmp_path: Path) -> None:
    bank = Bank()
    async with workplace(tmp_path) as place:
        old = await handled(place, before(), bank, an_order())
        assert (old.version, old.format, old.state) == (1, PLAIN, {"total": "9.80"})
        new = await handled(place, after(), bank, OrderConfirmed(order_id=SAGA))
        assert (new.version, new.format, new.state) == (2, VERSIONED, {"cents": 980, "moved": 1})
        first, last = map(decode_transition, new.transitions)
        assert (first.version, first.delta) == (1, {"total": "9.80"})
        assert (last.version, last.delta) == (2, {"cents": 980, "moved": 1})
        assert bank.asked == ["9.80", "charge-1", "9.80"]
        third = await handled(place, after(), bank, cancelled(1))
        assert third.state == {"cents": 981, "moved": 1}
        assert decode_transition(third.transitions[-1]).delta == {"cents": 981}
        assert verify_history(third.transitions, third) is None
        shown = SagaHistory(third, third.transitions)
        assert [find_transition(shown, n)[1] for n in range(3)] == [{"total": "9.80"}, new.state, third.state]


async def test_people_are_shown_the_state_in_the_version_of_then(tmp_path: Path) -> None:
    bank = Bank()
    async with workplace(tmp_path) as place:
        await handled(place, before(), bank, an_order())
        await handled(place, after(), bank, OrderConfirmed(order_id=SAGA))
    (tmp_path / "store.db").rename(tmp_path / "payment.db")
    environment = {"SAGA_STORE": f"sqlite:///{tmp_path}/{{service}}.db"}

    async def run_command(*arguments: str) -> str:
        result = await asyncio.to_thread(CliRunner().invoke, main, arguments, env=environment, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "known to payment (state version 2)" in await run_command("sagas", "show", SAGA)
    services = json.loads(await run_command("sagas", "show", SAGA, "--json"))["services"]
    assert services["payment"]["version"] == 2
    (listed,) = json.loads(await run_command("sagas", "list", "--json"))["sagas"]
    assert listed["services"]["payment"]["version"] == 2
    assert 'state after transition 0: {\n  "total": "9.80"\n}' in await run_command(
        "sagas", "show", SAGA, "--transition", "0"
    )
    assert "state after transition 1, version 2: {" in await run_command("sagas", "show", SAGA, "--transition", "1")
    assert "unchanged" in await run_command("sagas", "verify", SAGA)


async def test_a_write_that_only_keeps_a_message_stays_readable_for_the_earlier_release(tmp_path: Path) -> None:
    bank = Bank()
    async with workplace(tmp_path) as place:
        await handled(place, before(), bank, cancelled(1))
        waits = await handled(place, after(), bank, OrderConfirmed(order_id=SAGA))
        assert [kept.handler for kept in waits.waiting] == ["capture"]
        assert (waits.version, waits.state) == (1, {"noted": 1})
        again = await handled(place, before(), bank, an_order())
        assert again.state == {"noted": 1, "total": "9.80"}
        assert not again.waiting
        assert bank.asked == ["9.80", "charge-1", "9.80"]


async def test_a_saga_that_the_new_release_hears_of_first_has_its_version(tmp_path: Path) -> None:
    async with workplace(tmp_path) as place:
        waits = await handled(place, after(), Bank(), OrderConfirmed(order_id=SAGA))
        assert [kept.handler for kept in waits.waiting] == ["capture"]
        assert (waits.version, waits.format, waits.state) == (2, VERSIONED, {})


async def test_the_release_before_decides_nothing_on_a_newer_state_and_reports_that(tmp_path: Path) -> None:
    bank = Bank()
    async with workplace(tmp_path) as place:
        new = await handled(place, after(), bank, an_order())
        assert (new.version, new.state) == (2, {"cents": 980})
        service = before()
        async with at_work(place, service, use=[bank]):
            await place.publish(cancelled(1), an_order("order-2"))
            await place.until(lambda: len(place.reported(Stuck)) >= 2)
            other = None
            while other is None:  # another saga goes on
                other = await place.progress(service, "order-2")
            assert place.reported(Stuck)[0].error == (
                "SagaError: the state of saga 'order-1' has version 2, and this version of 'payment' knows 1: a newer "
                "release has migrated it; deploy that one"
            )
        assert await known(place) == new
        assert place.is_behind(service)
        (note,) = [r for r in await place.records("orders") if b"OrderCancelled" in repr(r.headers).encode()]
        assert place.committed(service, Partition("orders", note.partition)) <= note.offset
        async with at_work(place, after(), use=[bank]):
            await place.at_rest(service)
        assert (await known(place)).state == {"cents": 981}


async def test_a_run_that_began_on_the_earlier_state_resumes_with_that_state_migrated(tmp_path: Path) -> None:
    """What it has got is not asked for again, and what it asks for is what it would have asked for."""
    bank = Bank()
    async with workplace(tmp_path) as place:
        await handled(place, before(), bank, an_order())
        bank.away = True
        async with at_work(place, before(), use=[bank]):
            await place.publish(OrderConfirmed(order_id=SAGA))
            await place.until(lambda: "charge-1" in bank.asked)
        began = await known(place)
        assert [(i.handler, i.version, i.state) for i in began.intents] == [("capture", 1, {"total": "9.80"})]
        bank.away, bank.asked = False, []
        async with at_work(place, after(), use=[bank]):
            await place.at_rest(after())
        p = await known(place)
        assert (p.version, p.state) == (2, {"cents": 980, "moved": 1})
        assert bank.asked == ["charge-1", "9.80"]
        assert verify_history(p.transitions, p) is None


async def test_archives_of_both_versions_make_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "TRANSITIONS_MAX", 4)
    monkeypatch.setattr(history, "TRANSITIONS_KEPT", 1)
    bank = Bank()
    async with workplace(tmp_path) as place:
        await handled(place, before(), bank, *map(cancelled, range(6)))
        p = await handled(place, after(), bank, an_order(), *map(cancelled, range(6, 12)))
        raws: list[Raw] = []
        while len(raws) < p.first:
            archive = await place.store.get(ARCHIVES, archive_key("payment", SAGA, len(raws)))
            assert archive is not None
            raws += decode_archive(archive.content).transitions
        whole = (*raws, *p.transitions)
        assert {decode_transition(raw).version for raw in raws} == {1, 2}
        assert p.state == {"cents": 986, "moved": 1}
        assert fold_state(map(decode_transition, whole)) == p.state
        assert verify_history(whole, p) is None
        mismatch = verify_history(whole, with_(p, version=3))
        assert mismatch is not None
        assert "version" in mismatch.what
        assert encode(p)


async def test_a_message_that_waits_in_an_old_schema_is_read_by_the_release_with_a_newer_one_and_another_state(
    tmp_path: Path,
) -> None:
    newer = Contracts(tmp_path).newer_class("OrderPlaced")
    assert newer.__contract__ != OrderPlaced.__contract__
    old, new = Service("payment", state=NotesV1), Service("payment", state=Notes)

    @old.handler(repeats=OrderCancelled)
    async def note(cancelled: OrderCancelled, saga: Saga[NotesV1]) -> None:
        saga.state = replace(saga.state, total="9.80")

    @old.handler
    async def meet(order: OrderPlaced, confirmed: OrderConfirmed, saga: Saga[NotesV1]) -> None: ...

    async def seen(order: Any, confirmed: OrderConfirmed, saga: Saga[Notes]) -> PaymentCaptured:
        assert (type(order), order.note) == (newer, "")
        return PaymentCaptured(order_id=order.order_id, amount=Decimal(saga.state.cents))

    seen.__annotations__["order"] = newer
    seen.__name__ = "meet"
    new.handler(seen)
    new.handler(repeats=OrderCancelled)(after_note)

    @new.migrate(1)
    def in_cents(before: NotesV1) -> Notes:
        return Notes(cents=round(float(before.total) * 100))

    async with workplace(tmp_path) as place:
        waits = await handled(place, old, Bank(), cancelled(1), an_order())
        assert [kept.message.schema for kept in waits.waiting] == [OrderPlaced.__contract__]
        p = await handled(place, new, Bank(), OrderConfirmed(order_id=SAGA))
        assert (p.version, p.state, p.waiting) == (2, {"cents": 980, "moved": 1}, ())
        (captured,) = await place.records("payments")
        decoded = codec.decode(captured.value or b"", PaymentCaptured, find_library(ROOT))
        assert isinstance(decoded, PaymentCaptured)
        assert decoded.amount == Decimal(980)


async def after_note(cancelled: OrderCancelled, saga: Saga[Notes]) -> None:
    """The handler `note`, as the release after has it."""


after_note.__name__ = "note"


def taking_back(service: Service[Any], kind: type[Any], value: object) -> Service[Any]:
    """A service that charges what it has reserved, never comes to its end with that, and has declared how to undo
    it."""

    @service.resource
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    async def reserve(order: OrderPlaced, saga: Saga[Any]) -> PaymentReserved:
        saga.state = value
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    async def charge(reserved: PaymentReserved, bank: Bank, saga: Saga[Any]) -> PaymentCaptured:
        saga.on_abort(bank.capture, saga.idempotency_key("back"), "taken back")
        await saga.step(bank.capture, saga.idempotency_key("take"), "taken")
        raise Permanent("the rest of it is broken")

    async def give_back(cancelled: OrderCancelled, captured: PaymentCaptured, bank: Bank) -> None: ...

    for handler in (reserve, charge):
        handler.__annotations__["saga"] = Saga[kind]  # type: ignore[valid-type] # the one of this release
        service.handler(handler)
    service.compensation(charge)(give_back)
    return service


async def test_an_abort_does_not_migrate_the_state(tmp_path: Path) -> None:
    bank, new = Bank(), Service("payment", state=Notes)

    @new.migrate(1)
    def in_cents(old: NotesV1) -> Notes:
        return Notes(cents=round(float(old.total) * 100))

    async with workplace(tmp_path) as place:
        old = taking_back(Service("payment", state=NotesV1), NotesV1, NotesV1(total="9.80"))
        p = await handled(place, old, bank, an_order())
        assert p.queue[0].dead is not None
        p = await handled(place, taking_back(new, Notes, Notes()), bank, cancelled(1))
        assert bank.asked == ["taken", "taken back"]
        assert (p.version, p.state) == (1, {"total": "9.80"})
        assert verify_history(p.transitions, p) is None
