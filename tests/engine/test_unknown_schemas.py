"""Messages of a schema that is not deployed here yet: nothing is lost, quarantined or out of order because of them."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from saga import Event, Retry, Saga, Service
from saga.contracts.library import Library
from saga.engine.execution import control_log
from saga.engine.execution.message_processor import MessageProcessor
from saga.messages import Position, Record
from saga.messaging import controls, operator_commands
from saga.messaging.controls import Switch
from saga.messaging.operator_commands import Wanted
from saga.progress.document import SagaProgress
from saga.progress.failed_attempts import LOOK_S_MAX, READ_S_MIN, SPREAD, find_parked_runs
from saga.telemetry.events import ContractsUnreadable, DeadLettered, Escalated, Handled, Parked, SchemasDeployed, Stuck
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.deployed_contracts import Contracts, newer_order
from tests.engine.driven_workers import At, Workers, place
from tests.engine.real_worker import SAGA, an_order, at_work, workplace
from tests.engine.test_parking import Bank, only, process_when_due, published_timers

payment = Service("payment")
CONFIRMED, CANCELLED = OrderConfirmed(order_id=SAGA), OrderCancelled(order_id=SAGA, reason="-")


async def ask(order: str) -> str:
    return f"asked {order}"


@payment.handler
async def reserve(order: OrderPlaced, saga: Saga[None]) -> PaymentReserved:
    charge = await saga.step(ask, order.order_id)
    return PaymentReserved(order_id=order.order_id, charge_id=charge, amount=order.total)


@payment.handler
async def note(confirmed: OrderConfirmed, order: OrderPlaced) -> None: ...


@payment.compensation(reserve)
async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...


async def worker_at(at: Workers, contracts: Contracts, service: Service[None] = payment) -> At:
    """A worker whose contracts are those."""
    worker = await at.worker(service)
    ports = replace(worker.participant.ports, reload_contracts=contracts.read)
    return At(replace(worker.participant, ports=ports), worker.log, worker.moments, worker.store)


async def process_next_timer(at: Workers, worker: At) -> SagaProgress:
    """Progress after the next timer, at its time."""
    await process_when_due(at, worker, published_timers(worker)[-1])
    return await worker.progress()


async def test_a_message_of_an_unknown_schema_is_parked_until_its_schema_is_deployed(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    order = newer_order(contracts.newer_class("OrderPlaced"))
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts)
        await worker.takes(order)
        kept, _ = (await worker.progress()).queue
        assert (kept.handler, kept.attempts, kept.dead) == ("reserve", 1, None)
        assert kept.due_ms - at.clock.now_ms() >= READ_S_MIN * 1000 - 1
        p = await process_next_timer(at, worker)
        assert (p.queue[0].attempts, worker.dead) == (2, [])
        contracts.deploy()
        p = await process_next_timer(at, worker)
        assert (p.queue, p.timer, worker.dead) == ((), None, [])
        assert [(e.outcome, e.handler, e.attempt) for e in await worker.history()] == [
            ("retrying", "reserve", 1),
            ("queued", "note", 1),
            ("retrying", "reserve", 2),
            ("handled", "reserve", 3),
            ("waiting", "note", 1),
        ]


async def test_a_schema_that_is_deployed_and_means_something_else_waits_for_the_release_that_reads_it(
    tmp_path: Path,
) -> None:
    contracts = Contracts(tmp_path)
    order = newer_order(contracts.newer_class("OrderPlaced"))
    (newer,) = contracts.newer
    newer.write_text(json.dumps({**json.loads(newer.read_text()), "upcasts": [1], "compatible": "backward"}))
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts)
        await worker.takes(order)
        contracts.deploy()
        p = await process_next_timer(at, worker)
        assert (p.queue[0].attempts, worker.dead) == (2, [])
        readings, (_, again) = contracts.readings, [m.error for m in worker.moments if isinstance(m, Parked)]
        assert again.startswith("NewerVersion: it is of orders/OrderPlaced.v2, and this release of the service, which")
        p = await process_next_timer(at, worker)
        assert (p.queue[0].attempts, contracts.readings) == (3, readings), "nothing that could be deployed mends it"


async def test_messages_behind_one_with_an_unknown_schema_are_handled_after_it(tmp_path: Path) -> None:
    contracts, service = Contracts(tmp_path), Service("payment")

    @service.handler(repeats=OrderPlaced)
    async def see(order: OrderPlaced) -> None: ...

    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts, service)
        await worker.takes(newer_order(contracts.newer_class("OrderPlaced")))
        await worker.takes(an_order(), id="behind")
        assert [k.due_ms > 0 for k in (await worker.progress()).queue] == [True, False]
        contracts.deploy()
        await process_next_timer(at, worker)
        first, _, *done = await worker.history()
        assert [(e.outcome, e.message) for e in done] == [("handled", first.message), ("handled", "behind")]


async def test_a_schema_that_was_deployed_since_the_start_parks_nothing(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    order = newer_order(contracts.newer_class("OrderPlaced"))
    contracts.deploy()
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts)
        await worker.takes(order)
        assert await worker.outcomes() == [("reserve", "handled"), ("note", "waiting")]
        (moment,) = [m for m in worker.moments if isinstance(m, SchemasDeployed)]
        assert moment.schemas == ("orders/OrderPlaced.v2",)
        assert contracts.readings == 1


def once() -> Service:
    """A service that tries nothing twice."""
    service = Service("payment")

    @service.handler(retry=Retry(attempts_max=1))
    async def see(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    return service


async def until_ms(at: Workers, worker: At, end_ms: int) -> list[int]:
    """Handle timers at their times until this time; how long it was from each to the next."""
    between, wake = [], published_timers(worker)[-1]
    while wake.due_ms <= end_ms:
        before_ms = at.clock.now_ms()
        worker.log.messages[:] = [out for out in worker.log.messages if out.topic not in worker.participant.wakes]
        await process_when_due(at, worker, wake)
        wake = published_timers(worker)[-1]
        between.append(at.clock.now_ms() - before_ms)
    return between


async def test_attempts_never_run_out_and_every_tenth_is_reported(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts, once())
        await worker.takes(newer_order(contracts.newer_class("OrderPlaced")))
        began_ms = at.clock.now_ms()
        await until_ms(at, worker, began_ms + 3_600_000)
        (moment,) = [m for m in worker.moments if isinstance(m, Escalated)]
        assert (moment.handler, moment.id) == ("see", None)
        assert moment.reason.startswith("10 attempts failed, the last with UnknownSchema: no schema in ")
        assert moment.reason.endswith("send the message to the dead letters: saga control route")
        await until_ms(at, worker, began_ms + 10 * 3_600_000)
        assert len([m for m in worker.moments if isinstance(m, Escalated)]) in (2, 3)
        assert (worker.dead, only((await worker.progress()).queue).dead) == ([], None)
        contracts.deploy()
        await process_next_timer(at, worker)
        assert (await worker.outcomes())[-1] == ("see", "handled")


async def test_after_hours_a_schema_that_is_deployed_is_met_within_a_minute_and_looks_write_nothing(
    tmp_path: Path,
) -> None:
    contracts = Contracts(tmp_path)
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts, once())
        await worker.takes(newer_order(contracts.newer_class("OrderPlaced")))
        began_ms = at.clock.now_ms()
        looks = await until_ms(at, worker, began_ms + 4 * 3_600_000)
        assert max(looks) <= LOOK_S_MAX * 1000
        assert len(looks) <= 4 * 3600 / (LOOK_S_MAX * (1 - SPREAD)) + 10
        p, parked = await worker.progress(), [m for m in worker.moments if isinstance(m, Parked)]
        assert p.n == len(parked) <= 25, "one transition for each attempt, and none for a look"
        assert parked[-1].delay_s <= LOOK_S_MAX
        another = await worker_at(at, contracts, once())  # what has waited is in no memory
        await at.clock.sleep(1)
        contracts.deploy()
        deployed_ms = at.clock.now_ms()
        await process_when_due(at, another, published_timers(worker)[-1])
        assert (await another.outcomes())[-1] == ("see", "handled")
        assert at.clock.now_ms() - deployed_ms <= (60 - READ_S_MIN) * 1000, "READ_S_MIN more, had it just been read"


async def route(at: Workers, worker: At, handler: str, *, off: bool = False) -> None:
    """A person has what a handler is to run go to the dead letters, or not any more."""
    out = controls.control_to_record(
        "payment",
        Switch(kind="route", handler=handler, off=off),
        who="ada",
        why="nobody has that schema",
        now_ms=at.clock.now_ms(),
    )
    parsed = controls.parse_control(Record(out.topic, 0, 0, out.key, out.value, out.headers, at.clock.now_ms()))
    await control_log.write_control(worker.participant, Position(out.topic, 0, 0), parsed)


async def command(at: Workers, worker: At, wanted: Wanted, dead: str) -> None:
    """A person says what becomes of a dead letter."""
    out = operator_commands.command_to_record(
        "payment",
        SAGA,
        wanted,
        operator_commands.CommandValue(dead=dead, who="ada", why="looked at"),
        at.clock.now_ms(),
    )
    parsed = operator_commands.parse_command(
        Record(out.topic, 0, 0, out.key, out.value, out.headers, at.clock.now_ms())
    )
    await MessageProcessor(worker.participant).process(
        MessageProcessor(worker.participant).begin(parsed, Position(out.topic, 0, 0), None)
    )


async def test_an_attempt_that_a_person_asks_for_is_written_so_that_its_end_is_seen(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts, once())
        await worker.takes(newer_order(contracts.newer_class("OrderPlaced")))
        await until_ms(at, worker, at.clock.now_ms() + 3 * 3_600_000)
        p = await worker.progress()
        (run,) = find_parked_runs(p)
        await command(at, worker, "release", run.id)
        assert [(e.outcome, e.attempt) for e in (await worker.history())[p.n :]] == [
            ("released", only(p.queue).attempts),
            ("retrying", only(p.queue).attempts + 1),
        ]


async def test_a_wait_for_a_missing_schema_is_ended_by_a_route_to_the_dead_letters(
    tmp_path: Path,
) -> None:
    contracts = Contracts(tmp_path)
    made = contracts.newer_class("OrderPlaced")
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts, once())
        await worker.takes(newer_order(made))
        await until_ms(at, worker, at.clock.now_ms() + 3 * 3_600_000)
        await route(at, worker, "see")
        await process_next_timer(at, worker)
        (dead,) = worker.dead
        assert (dead["dead_class"], dead["dead_handler"]) == ("person", "see")
        await route(at, worker, "see", off=True)
        await command(at, worker, "discard", dead["dead_id"])
        p = await worker.progress()
        assert ((await worker.outcomes())[-1], p.queue, p.timer) == (("see", "discarded"), (), None)


async def test_a_part_that_waits_for_a_schema_that_never_comes_is_ended_so_too_and_replayed_when_it_does(
    tmp_path: Path,
) -> None:
    contracts = Contracts(tmp_path)
    confirmed = contracts.newer_class("OrderConfirmed")(order_id=SAGA)  # type: ignore[call-arg] # of a class made here
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts)
        await worker.takes(confirmed)
        await route(at, worker, "note")
        await process_next_timer(at, worker)
        (dead,) = worker.dead
        assert dead["dead_class"] == "person"
        await route(at, worker, "note", off=True)
        contracts.deploy()
        await at.clock.sleep(READ_S_MIN)
        await command(at, worker, "replay", dead["dead_id"])
        await worker.takes(an_order())
        assert (await worker.outcomes())[-2:] == [("reserve", "handled"), ("note", "handled")]


async def test_a_part_of_several_waits_for_its_schema_first_and_for_the_other_parts_then(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    confirmed = contracts.newer_class("OrderConfirmed")(order_id=SAGA)  # type: ignore[call-arg] # of a class made here
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts)
        await worker.takes(confirmed)
        kept = only((await worker.progress()).queue)
        assert (kept.handler, kept.attempts) == ("note", 1)
        assert kept.undecodable is not None
        await worker.takes(an_order())
        contracts.deploy()
        await process_next_timer(at, worker)
        assert [(e.handler, e.outcome) for e in await worker.history()] == [
            ("note", "retrying"),
            ("reserve", "queued"),
            ("note", "waiting"),
            ("note", "handled"),
            ("reserve", "handled"),
        ]
        assert worker.dead == []


async def test_a_part_whose_schema_is_deployed_while_it_is_looked_at_is_no_run_without_the_others(
    tmp_path: Path,
) -> None:
    contracts = Contracts(tmp_path)
    confirmed = contracts.newer_class("OrderConfirmed")(order_id=SAGA)  # type: ignore[call-arg] # of a class made here
    contracts.deploy()
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts)
        await worker.takes(confirmed)
        assert await worker.outcomes() == [("note", "waiting")]
        turn = worker.begun(confirmed, worker.message(confirmed, id="another"))
        other = await worker_at(at, contracts)
        stale = other.begun(confirmed, worker.message(confirmed, id="another"))
        assert (dict(turn.undecodable), list(stale.undecodable)) == ({}, ["note"])
        await MessageProcessor(worker.participant).process(stale)  # another lane has read the contracts meanwhile
        assert await worker.outcomes() == [("note", "waiting"), ("note", "ignored")]


async def test_a_run_that_a_newer_worker_began_is_gone_on_with_when_its_schema_is_here(tmp_path: Path) -> None:
    contracts, theirs = Contracts(tmp_path / "old"), Contracts(tmp_path / "new")
    service, bank = Service("payment"), Bank()

    @service.handler
    async def charge(order: OrderPlaced, saga: Saga[None]) -> None:
        await saga.step(bank.prepare)
        await saga.step(bank.charge, saga.idempotency_key("charge"))

    order = newer_order(contracts.newer_class("OrderPlaced"))
    theirs.newer_class("OrderPlaced")
    theirs.deploy()
    async with place(tmp_path) as at:
        newer, older = await worker_at(at, theirs, service), await worker_at(at, contracts, service)
        await newer.takes(order)
        failed = only((await newer.progress()).queue).attempts
        await process_when_due(at, older, published_timers(newer)[-1])
        p = await older.progress()
        assert (len(p.intents[0].calls), only(p.queue).attempts, older.dead) == (1, failed + 1, [])
        contracts.deploy()
        bank.mended = True
        p = await process_next_timer(at, older)
        assert (p.intents, p.queue) == ((), ())
        assert (await older.outcomes())[-1] == ("charge", "handled")
        assert len(set(bank.asked)) == 1, "its key is what it was"


async def test_an_outcome_of_an_unknown_schema_undoes_when_its_schema_is_here(tmp_path: Path) -> None:
    contracts, service = Contracts(tmp_path), Service("payment")

    @service.handler
    async def take(order: OrderPlaced) -> PaymentReserved:
        return PaymentReserved(order_id=order.order_id, charge_id="c", amount=order.total)

    @service.compensation(take)
    async def give(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    made = contracts.newer_class("OrderCancelled")
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts, service)
        await worker.takes(an_order())
        await worker.takes(made(order_id=SAGA, reason="-"))  # type: ignore[call-arg] # of a class made here
        await until_ms(at, worker, at.clock.now_ms() + 3 * 3_600_000)
        kept = only((await worker.progress()).compensating)
        assert (kept.attempts >= 11, kept.dead) == (True, None)
        assert {dead["dead_what"] for dead in worker.dead} == {"escalation"}
        contracts.deploy()
        p = await process_next_timer(at, worker)
        assert (p.compensating, (await worker.outcomes())[-1]) == ((), ("give", "compensated"))


# -------------------------------------------------------------------- reading the contracts


async def test_contracts_that_cannot_be_read_are_reported_once_and_known_ones_stay_known(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    order = newer_order(contracts.newer_class("OrderPlaced"))
    broken = contracts.here / "orders" / "OrderPlaced.v2.avsc"
    broken.write_text("{")  # in the middle of a deployment
    async with place(tmp_path) as at:
        worker = await worker_at(at, contracts)
        await worker.takes(order)
        for _ in range(2):
            await process_next_timer(at, worker)
        (moment,) = [m for m in worker.moments if isinstance(m, ContractsUnreadable)]
        assert "OrderPlaced.v2.avsc" in moment.error
        await worker.takes(an_order("order-2"))
        assert (await worker.progress("order-2")).inbox
        contracts.deploy()
        assert (await process_next_timer(at, worker)).queue == ()


def test_schemas_that_are_no_longer_in_the_folder_stay_known(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    before = Library.load(contracts.here)
    (contracts.here / "orders" / "OrderConfirmed.v1.avsc").unlink()
    after = before.reload()
    assert after.by_fingerprint == before.by_fingerprint
    assert after.contracts == before.contracts
    assert after.topics == before.topics


def test_a_contract_keeps_a_version_that_is_missing_in_the_folder_for_a_moment(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    contracts.newer_class("OrderConfirmed")
    contracts.deploy()
    before = Library.load(contracts.here)
    (contracts.here / "orders" / "OrderConfirmed.v2.avsc").unlink()
    after = before.reload()
    assert after.contracts["OrderConfirmed"].newest.number == 2
    contracts.deploy()
    assert after.reload().contracts == before.contracts


async def test_the_contracts_are_read_seldom_however_many_messages_are_unknown(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    made = contracts.newer_class("OrderPlaced")
    async with workplace(tmp_path) as here:
        began_s = here.clock.monotonic_s()
        async with at_work(here, payment, contracts=contracts.read):
            await here.publish(*(newer_order(made, f"order-{n}") for n in range(50)))
            await here.until(lambda: len(parked_now(here.reported(Parked))) == 50)
            readings, passed_s = contracts.readings, here.clock.monotonic_s() - began_s
            assert readings <= 2 + passed_s / READ_S_MIN
            contracts.deploy()
            await here.at_rest(payment)
        assert not here.reported(DeadLettered)
        assert not here.reported(Stuck)
        assert {m.saga for m in here.reported(Handled) if ("reserve", "handled", None) in m.outcomes} == {
            f"order-{n}" for n in range(50)
        }


def parked_now(moments: Sequence[Parked]) -> set[str]:
    return {m.saga for m in moments}


async def test_a_message_with_an_unknown_schema_is_parked_and_affects_no_other_saga(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    made = contracts.newer_class("OrderPlaced")
    async with workplace(tmp_path) as here:
        here.leaps = False
        async with at_work(here, payment, contracts=contracts.read):
            await here.publish(newer_order(made))
            await here.until(lambda: bool(here.reported(Parked)))
            await here.publish(*(an_order(f"order-{n}") for n in range(2, 8)))
            await here.until(lambda: len(handled(here.reported(Handled))) == 6)
            assert not here.reported(DeadLettered)


async def test_a_restart_with_the_newer_contracts_handles_it(tmp_path: Path) -> None:
    contracts = Contracts(tmp_path)
    made = contracts.newer_class("OrderPlaced")
    async with workplace(tmp_path) as here:
        here.leaps = False
        async with at_work(here, payment, contracts=contracts.read):
            await here.publish(newer_order(made))
            await here.until(lambda: bool(here.reported(Parked)))
        contracts.deploy()
        here.leaps = True
        async with at_work(here, payment, contracts=contracts.read):
            await here.until(lambda: bool(handled(here.reported(Handled))))
            await here.at_rest(payment)
        assert not here.reported(DeadLettered)


def handled(moments: Sequence[Handled]) -> set[str]:
    return {m.saga for m in moments if ("reserve", "handled", None) in m.outcomes}


@pytest.mark.parametrize("cut", [9, 20])
async def test_bytes_that_are_no_message_at_all_are_a_dead_letter_at_once(tmp_path: Path, cut: int) -> None:
    contracts = Contracts(tmp_path)
    order: Event = newer_order(contracts.newer_class("OrderPlaced"))
    contracts.deploy()
    async with workplace(tmp_path) as here, at_work(here, payment, contracts=contracts.read):
        bad = here.record_of(order)
        await here.broker.publish([bad._replace(value=bad.value and bad.value[:cut])])
        await here.at_rest(payment)
        assert {headers["dead_attempts"] for _, headers in await here.dead(payment)} == {"1"}
        assert not here.reported(Parked)
