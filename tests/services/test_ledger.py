"""The simulated bank and carrier are idempotent by key, durable, and shared by processes."""

import asyncio
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from services import ledger
from services.ledger import Answer, Call, Contradiction, Ledger
from services.payment.bank import Bank, Declined
from services.shipping.carrier import Carrier, Refused

AMOUNT = Decimal("9.80")


@pytest.fixture(params=["in memory", "in a file"])
async def bank(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bank]:
    if request.param == "in memory":
        yield Bank()
        return
    monkeypatch.setenv("PAYMENT_LEDGER", str(tmp_path / "new folder" / "bank.db"))
    async with Bank.connect() as connected:
        yield connected


@pytest.fixture(params=["in memory", "in a file"])
async def carrier(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Carrier]:
    if request.param == "in memory":
        yield Carrier()
        return
    monkeypatch.setenv("SHIPPING_LEDGER", str(tmp_path / "carrier.db"))
    async with Carrier.connect() as connected:
        yield connected


async def test_a_charge_is_captured_once_however_often_it_is_asked_for(bank: Bank) -> None:
    charge = await bank.reserve("k-1", "visa-1", AMOUNT)
    assert await bank.reserve("k-1", "visa-1", AMOUNT) == charge
    await bank.capture("k-2", charge)
    await bank.capture("k-2", charge)
    assert await bank.reserve("k-1", "visa-1", AMOUNT) == charge
    with pytest.raises(Contradiction, match="capture of charge"):
        await bank.capture("k-3", charge)


async def test_a_charge_is_released_once_and_not_captured_afterwards(bank: Bank) -> None:
    charge = await bank.reserve("k-1", "visa-1", AMOUNT)
    await bank.release("k-2", charge)
    await bank.release("k-2", charge)
    for attempt in (bank.capture, bank.release):
        with pytest.raises(Contradiction, match="of charge"):
            await attempt("k-3", charge)


async def test_a_captured_charge_cannot_be_released(bank: Bank) -> None:
    charge = await bank.reserve("k-1", "visa-1", AMOUNT)
    await bank.capture("k-2", charge)
    with pytest.raises(Contradiction, match="release of charge"):
        await bank.release("k-3", charge)


async def test_an_unknown_charge_is_neither_captured_nor_released(bank: Bank) -> None:
    for attempt in (bank.capture, bank.release):
        with pytest.raises(Contradiction, match="of charge 'c-0'"):
            await attempt("k-1", "c-0")


async def test_a_refused_settlement_leaves_its_key_unused(bank: Bank) -> None:
    with pytest.raises(Contradiction):
        await bank.capture("k-1", "c-0")
    charge = await bank.reserve("k-2", "visa-1", AMOUNT)
    await bank.capture("k-1", charge)


async def test_a_blocked_card_is_declined_each_time_without_a_charge(bank: Bank) -> None:
    for _ in range(2):
        with pytest.raises(Declined, match=r"^card declined$"):
            await bank.reserve("k-1", "declined-1", AMOUNT)
    with pytest.raises(Contradiction):
        await bank.capture("k-2", "k-1")


@pytest.mark.parametrize("card", ["visa-1", "declined-1"])
async def test_a_key_reused_with_other_arguments_is_an_error(bank: Bank, card: str) -> None:
    await asyncio.gather(bank.reserve("k-1", card, AMOUNT), return_exceptions=True)
    for other_card, amount in (("visa-2", AMOUNT), (card, Decimal("9.81"))):
        with pytest.raises(Contradiction, match=r"key 'k-1' was used for .* a new call needs a new key"):
            await bank.reserve("k-1", other_card, amount)
    with pytest.raises(Contradiction, match="key 'k-1' was used"):
        await bank.capture("k-1", "k-1")


async def test_a_bank_in_memory_shows_reserved_and_captured_charges() -> None:
    bank = Bank()
    first, second = await bank.reserve("k-1", "visa-1", AMOUNT), await bank.reserve("k-2", "visa-1", Decimal(1))
    assert bank.held == {first: AMOUNT, second: Decimal(1)}
    await bank.capture("k-3", first)
    await bank.release("k-4", second)
    assert (bank.held, bank.taken) == ({}, {first: AMOUNT})


async def test_a_booking_is_dispatched_or_taken_back_but_not_both(carrier: Carrier) -> None:
    sent, kept = await carrier.book("k-1", "Kiel", 1), await carrier.book("k-2", "Leeds", 2)
    assert await carrier.book("k-1", "Kiel", 1) == sent
    tracking = await carrier.dispatch("k-3", sent)
    assert await carrier.dispatch("k-3", sent) == tracking
    await carrier.unbook("k-4", kept)
    await carrier.unbook("k-4", kept)
    for booking in (sent, kept, "nothing"):
        with pytest.raises(Contradiction, match="dispatch of booking"):
            await carrier.dispatch("k-5", booking)
        with pytest.raises(Contradiction, match="unbook of booking"):
            await carrier.unbook("k-6", booking)


async def test_a_shipment_to_atlantis_is_refused_each_time(carrier: Carrier) -> None:
    for _ in range(2):
        with pytest.raises(Refused, match="nobody delivers to 3 Poseidon Parade, Atlantis"):
            await carrier.book("k-1", "3 Poseidon Parade, Atlantis", 1)
    with pytest.raises(Contradiction, match="key 'k-1' was used"):
        await carrier.book("k-1", "Kiel", 1)


async def test_answers_outlive_the_process_that_asked(tmp_path: Path) -> None:
    call = Call("reserve", "c-1", ("visa-1", "9.80"))
    async with Ledger(tmp_path / "bank.db") as first:
        await first.once("k-1", call, lambda _: Answer("yes"))
    async with Ledger(tmp_path / "bank.db") as second:
        assert await second.once("k-1", call, lambda _: Answer("no", refused=True)) == Answer("yes")
    (row,) = ledger.read(tmp_path / "bank.db")
    assert row[:3] == ("k-1", call, Answer("yes"))
    assert row.time.endswith("Z")


async def test_a_missing_ledger_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no ledger .*bank\.db"):
        ledger.read(tmp_path / "bank.db")


CLIENT = """
import asyncio, sys
from pathlib import Path
from services.ledger import Answer, Call, Ledger

async def main(path, name):
    async with Ledger(Path(path)) as ledger:
        print(flush=True)
        sys.stdin.readline()
        for n in range(60):
            answer = await ledger.once(f"k-{n}", Call("reserve", f"c-{n}"), lambda _: Answer(name))
            print(answer.text, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_processes_with_the_same_key_both_get_the_first_answer(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    clients = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, str(path), name, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        for name in ("one", "two")
    ]
    for client in clients:
        assert client.stdin is not None
        assert client.stdout is not None
        await client.stdout.readline()
    for client in clients:
        assert client.stdin is not None
        client.stdin.write(b"go\n")
    heard = [(await client.communicate())[0].decode().split() for client in clients]
    assert [client.returncode for client in clients] == [0, 0]
    rows = ledger.read(path)
    assert len(rows) == 60
    assert heard[0] == heard[1] == [row.answer.text for row in rows]


async def test_no_other_process_writes_between_the_lookup_and_the_insert_of_a_call(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    async with Ledger(path) as mine:
        other = sqlite3.connect(path, isolation_level=None, timeout=0)

        def rule(_: Sequence[str]) -> Answer:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                other.execute("BEGIN IMMEDIATE")
            return Answer("yes")

        assert await mine.once("k-1", Call("reserve", "c-1"), rule) == Answer("yes")
        other.close()


async def test_a_call_waits_for_another_process_without_blocking_the_loop(tmp_path: Path) -> None:
    path = tmp_path / "bank.db"
    async with Ledger(path) as mine:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(mine.once("k-1", Call("reserve", "c-1"), lambda _: Answer("yes")))
            await asyncio.wait([waiting], timeout=0.05)
            assert not waiting.done()
            other.execute("COMMIT")
        other.close()
    assert waiting.result() == Answer("yes")


async def test_a_lock_that_is_never_released_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "BUSY_S_MAX", 0.05)
    path = tmp_path / "bank.db"
    async with Ledger(path) as mine:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await mine.once("k-1", Call("reserve", "c-1"), lambda _: Answer("yes"))
        other.close()
    assert ledger.read(path) == []


async def test_an_answer_takes_the_configured_latency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYMENT_LEDGER", str(tmp_path / "bank.db"))
    monkeypatch.setenv("PAYMENT_LATENCY_MS", "30")
    async with Bank.connect() as bank:
        began = time.monotonic()
        await bank.reserve("k-1", "visa-1", AMOUNT)
    assert time.monotonic() - began >= 0.03
