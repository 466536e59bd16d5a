"""The order saga in real processes: whole, in spite of what happens to them; and what this world says it cannot do."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from saga import Saga, Service
from saga.errors import DeclarationError, SagaError
from saga.messages import Outgoing
from saga.testing.processes import LEFT_OUT, ProcessWorld
from saga.testing.world import World
from services.demo.fleet import ROOT
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.payment.events import OrderPlaced as OrderToPay
from services.payment.events import PaymentDeclined
from services.shipping import shipping
from services.shipping.carrier import Carrier

GONE_S_MAX = 60.0

PARKED_S_MAX = 60.0
"""How long a busy machine may take until a handler whose line is dead waits for its timer."""

EVERYTHING = {"crash": 0.04, "duplicate": 0.02, "freeze": 0.02, "rebalance": 0.01}


def an_order(number: int = 17, *, card: str = "4242") -> OrderPlaced:
    return OrderPlaced(
        order_id=f"order-{number}",
        customer_id="c-1",
        sku="tea",
        quantity=2,
        total=Decimal("9.80"),
        card=card,
        address="Kiel",
    )


def orders_are_paid_once_or_not_at_all(world: World) -> None:
    """Four orders, for two of which there is enough, one of them declined: in any kind of world."""
    bank, carrier = Bank(), Carrier()
    world.always("nobody is charged twice", lambda: len(bank.taken) + len(bank.held) <= 3)
    world.start(order, payment, inventory, shipping, use=[bank, carrier], documents={"tea": Stock(left=5)})
    world.publish(an_order(1), an_order(2), an_order(3), an_order(4, card="declined-1"))
    world.run_until_quiet()
    outcomes = [world.outcome(f"order-{number}") for number in (1, 2, 3, 4)]
    confirmed = outcomes.count(OrderConfirmed)
    assert outcomes.count(OrderCancelled) == 4 - confirmed
    assert outcomes[3] is OrderCancelled
    assert 1 <= confirmed <= 2, "the declined order may hold goods while others ask for them"
    assert (len(bank.taken), bank.held) == (confirmed, {})
    assert (len(carrier.dispatched), carrier.booked) == (confirmed, {})
    assert world.read(inventory, Stock, "tea") == Stock(left=5 - 2 * confirmed)


@pytest.fixture
def world() -> Iterator[ProcessWorld]:
    with ProcessWorld() as world:
        yield world


@pytest.mark.slow
def test_the_order_saga_runs_in_real_processes(world: ProcessWorld) -> None:
    orders_are_paid_once_or_not_at_all(world)
    assert len(set(world.pids)) == 8
    world.verify()


def test_the_order_saga_survives_what_happens_to_its_processes() -> None:
    with ProcessWorld(1, EVERYTHING) as world:
        orders_are_paid_once_or_not_at_all(world)
        world.verify()
        happened = " ".join(world.happened)
    assert [happened.count(what) for what in ("killed", "frozen", "again", "joined", "told to leave")] == [
        4,
        2,
        2,
        1,
        1,
    ]


@pytest.mark.slow
def test_a_declared_answer_of_a_fake_comes_through(world: ProcessWorld) -> None:
    bank = Bank()
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=5)})
    assert world.read(inventory, Stock, "tea") == Stock(left=5)
    assert world.read(inventory, Stock, "coffee") is None
    world.publish(an_order(card="declined-1"))
    assert world.outcome("order-17") is None
    world.run_until_quiet()
    assert world.outcome("order-17") is OrderCancelled
    assert [call.operation for call in bank.calls.values()] == ["reserve"], "asked once, and its no was recorded"
    world.verify()


def test_a_second_run_continues_where_the_first_one_ended(world: ProcessWorld) -> None:
    bank = Bank()
    world.start(payment, use=[bank])
    for number in (1, 2):
        world.publish(an_order(number))
        world.run_until_quiet()
        assert len(bank.held) == number


def test_a_broken_always_condition_fails_with_its_description(world: ProcessWorld) -> None:
    bank = Bank()
    world.always("money stays where it is", lambda: not bank.held)
    world.start(payment, use=[bank])
    world.publish(an_order())
    with pytest.raises(AssertionError, match="money stays where it is"):
        world.run_until_quiet()
    with pytest.raises(AssertionError, match="money stays where it is"):
        world.verify()


@pytest.mark.slow
def test_the_invariants_of_the_kit_are_looked_at_in_what_the_processes_left(world: ProcessWorld) -> None:
    world.start(order, payment, inventory, shipping, use=[Bank(), Carrier()], documents={"tea": Stock(left=5)})
    world.publish(an_order())
    world.run_until_quiet()
    world.verify()
    assert world.unseen[-1] == "reruns"
    forged = next(r for r in world._shared.evidence([order.declared]).log if r.topic == "orders" and r.offset > 0)
    headers = tuple((name, b"forged" if name == "ce_id" else value) for name, value in forged.headers)
    world._shared.publish([Outgoing(forged.topic, forged.key or b"", forged.value, headers)])
    world.run_until_quiet()
    with pytest.raises(AssertionError) as found:
        world.verify()
    first, *_, last = str(found.value).splitlines()
    assert first.startswith("one outcome: saga 'order-17': it has 2 outcomes: ")
    assert "published as recorded: saga 'order-17' in 'order': " in str(found.value)
    assert last == "what went wrong before: no fault"


class DeadBank(Bank):
    """Never answers."""

    async def reserve(self, key: str, card: str, amount: Decimal) -> str:
        raise ConnectionError("the line is dead")


careless = Service("payment")


@careless.handler
async def reserve(placed: OrderToPay) -> PaymentDeclined:
    return None  # type: ignore[return-value]  # the mistake


def test_a_handler_that_returns_what_its_annotation_does_not_allow_fails_the_world(world: ProcessWorld) -> None:
    world.start(careless)
    world.publish(an_order())
    for check in (world.run_until_quiet, world.verify):
        with pytest.raises(AssertionError) as failed:
            check()
        assert str(failed.value).splitlines() == [
            "as annotated: saga 'order-17': payment.reserve returned None, which its return annotation does not allow: "
            "return PaymentDeclined as it says, or correct the annotation",
            "what went wrong before: no fault",
        ]


def test_a_world_that_does_not_become_quiet_reports_what_is_still_running() -> None:
    # One wake or more: that of an earlier attempt, too, which is about to be committed.
    parked = re.compile(r"payment: 0 records and [1-9]\d* wakes not committed, 2 members in its group")
    with ProcessWorld(deadline_s=4) as world:
        world.start(payment, use=[DeadBank()])
        world.publish(an_order())
        message, until = "", time.monotonic() + PARKED_S_MAX
        while not parked.search(message) and time.monotonic() < until:
            # On a busy machine the workers may still be starting, or in the first attempt, when the 4 s are over.
            with pytest.raises(SagaError) as raised:
                world.run_until_quiet()
            message = str(raised.value)
            assert "has not become quiet within 4 s (faults: no fault)" in message
        with pytest.raises(AssertionError, match=r"saga 'order-17' in 'payment': STRANDED begun \(reserve\)"):
            world.verify()
    assert parked.search(message), message
    assert "payment-2 (running, process" in message
    assert "the line is dead" in message


def test_time_passes_while_the_world_runs_for_a_while(world: ProcessWorld) -> None:
    looks: list[float] = []

    def time_is_noted() -> bool:
        looks.append(time.monotonic())
        return True

    world.always("time is noted", time_is_noted)
    world.start(order)
    world.run_for(timedelta(milliseconds=200))
    assert looks[-1] - looks[0] > 0.1
    with pytest.raises(SagaError, match="this world has the real clock"):
        world.run_for(timedelta(minutes=1))


def test_a_service_that_no_module_holds_is_refused(world: ProcessWorld) -> None:
    hidden = Service("payment")

    @hidden.handler
    async def decline(placed: OrderToPay, saga: Saga) -> PaymentDeclined:
        return PaymentDeclined(order_id=placed.order_id, reason="closed")

    with pytest.raises(SagaError, match=r"'payment' cannot be run by another process.*move it to the top level"):
        world.start(hidden)
    assert not world.pids


def test_fakes_and_documents_that_no_service_uses_are_refused(world: ProcessWorld) -> None:
    with pytest.raises(DeclarationError, match="what the fake Carrier stands for"):
        world.start(payment, use=[Bank(), Carrier()])
    with pytest.raises(SagaError, match=r"no service of this world declares a document Stock \(key 'tea'\)"):
        world.start(payment, use=[Bank()], documents={"tea": Stock(left=5)})
    with pytest.raises(SagaError, match="no service 'payment' of this world declares a document Stock"):
        world.read(payment, Stock, "tea")
    assert not world.pids


def test_a_service_is_started_once(world: ProcessWorld) -> None:
    world.start(order)
    with pytest.raises(SagaError, match="'order' runs in this world already"):
        world.start(order)


def test_a_worker_that_cannot_start_is_reported_with_its_last_output(monkeypatch: pytest.MonkeyPatch) -> None:
    with ProcessWorld() as world:
        monkeypatch.setenv("PAYMENT_LEDGER", "/dev/null/ledger.db")
        world.start(payment, real=[Bank])
        with pytest.raises(SagaError, match=r"(?s)worker payment-\d ended by itself, with 2; .*resource bank"):
            world.run_until_quiet()


def test_kinds_of_faults_that_are_left_out_are_reported_with_the_reason(world: ProcessWorld) -> None:
    reasons = world.left_out(["crash", "clock", "full disk"])
    assert [line.split(":")[0] for line in reasons] == ["clock", "full disk"]
    assert LEFT_OUT["clock"] in reasons[0]
    with pytest.raises(SagaError, match=r"there is no fault 'crush': choose from crash, .*poison"):
        ProcessWorld(faults={"crush": 0.1})


async def test_a_test_in_a_world_is_no_coroutine() -> None:
    with pytest.raises(SagaError, match="write `def`, not `async def`"), ProcessWorld():
        pass


def test_there_is_no_schedule_to_save(world: ProcessWorld) -> None:
    with pytest.raises(SagaError, match="cannot be replayed"):
        world.save_schedule()


def test_nothing_is_left_of_a_world_whose_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        world = ProcessWorld(1, {"freeze": 0.05})
        with pytest.raises(ZeroDivisionError):
            fail_in(world, pids := list[int]())
        assert not os.listdir(folder)
    assert any("frozen" in what for what in world.happened)
    assert len(pids) == 2
    assert not [pid for pid in pids if is_there(pid)]


def fail_in(world: ProcessWorld, pids: list[int]) -> None:
    with world:
        world.start(payment, use=[Bank()])
        world.publish(an_order())
        while not any("frozen" in what for what in world.happened):
            world.run_for(timedelta(seconds=0.1))
        pids += world.pids
        raise ZeroDivisionError


FORSAKEN = """
import sys, time
from saga.testing.processes import ProcessWorld
from services.order import order

with ProcessWorld() as world:
    world.start(order)
    world.run_until_quiet()
    print(*world.pids, flush=True)
    sys.stdin.read()
"""


def test_workers_end_when_the_process_of_the_test_is_killed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": folder}
        with subprocess.Popen(
            [sys.executable, "-c", FORSAKEN], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as test:
            assert test.stdout is not None
            pids = [int(pid) for pid in test.stdout.readline().split()]
            assert len(pids) == 2
            assert all(map(is_there, pids))
            test.send_signal(signal.SIGKILL)
            test.wait()
        until_s = time.monotonic() + GONE_S_MAX
        while left := [pid for pid in pids if is_there(pid)]:
            assert time.monotonic() < until_s, f"{left} are still there"
            threading.Event().wait(0.02)


def is_there(pid: int) -> bool:
    """True if a process runs; one that has ended and was not waited for does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat")
        return not state.parent.parent.is_dir() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
