"""Progresses rebuilt from the log of a world full of faults: as they were, or refused with a reason."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta

import pytest

from saga.broker.port import RECORD_BYTES_MAX
from saga.engine.consumer.record_router import route_record
from saga.engine.prepared_service import PreparedService
from saga.engine.repair import RebuildEnvironment, ReceivedMessage, Unknowable, rebuild_progress
from saga.messages import Message, Partition, Position, Record
from saga.messaging import envelope
from saga.messaging.message_ids import could_be_own
from saga.progress.document import SagaProgress, decode_progress
from saga.testing.invariants.evidence import Evidence, ServiceEvidence
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import PATIENCE, order
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier
from tests.testing.faulty_worlds import seeds, simulated
from tests.testing.simulation.orders import an_order
from tests.testing.test_deadlines_in_worlds import SilentBank

SEEDS = seeds(12)
KEPT = ("queue", "waiting", "compensating", "deadlines")
LEFT_OUT = ("transitions", "hash", "n", "published", "first", "inbox", "wake", "heard", *KEPT)


def meaning(p: SagaProgress) -> Mapping[str, object]:
    """All that decisions read of a progress at rest, less times and the order of what waits."""
    fields = {name: getattr(p, name) for name in p.__struct_fields__ if name not in LEFT_OUT}
    kept = {name: {(k.handler, k.message.id) for k in getattr(p, name)} for name in KEPT}
    results = [(r.handler, r.cause, r.event.id, r.event.value) for r in p.results]
    own = {(o.event.id, o.event.value) for o in p.self_consumed}
    ran = {(r.handler, r.parameter, r.type, r.content) for r in p.completed_runs}
    sets = {"closed": set(p.closed), "failed": set(p.failed), "results": results, "own": own, "ran": ran}
    return {**fields, **kept, **sets, "inbox": set(p.inbox)}


def of_saga(
    witnessed: ServiceEvidence, log: list[Record], saga: str
) -> tuple[list[ReceivedMessage], dict[str, Message]]:
    """What the service had handled of a saga, and what it has emitted."""
    service, taken, logged = witnessed.service, list[ReceivedMessage](), dict[str, Message]()
    for record in (record for record in log if record.key == saga.encode()):
        own = own_of(service, record)
        if own is not None:
            logged[own.id] = own
        elif record.topic in service.topics and record.topic not in service.wakes:
            message = route_record(record, service)
            if isinstance(message, Message):
                assert record.offset < witnessed.committed[Partition(*record[:2])]
                taken.append(ReceivedMessage(message, Position(*record[:3]), record.time_ms))
    return taken, logged


def own_of(service: PreparedService, record: Record) -> Message | None:
    type_ = envelope.type_of(record) or ""
    if type_ not in service.contracts or record.topic != service.contracts[type_].topic:
        return None
    message = envelope.to_message(record, type_=type_, schema="", contract=service.contracts[type_])
    return message if message.source == service.name and could_be_own(message.id, type_) else None


async def compared(evidence: Evidence, now_ms: int) -> tuple[int, list[str], list[str]]:
    """Count of progresses made as they were; those made otherwise; reasons of those refused."""
    same, others, refused = 0, list[str](), list[str]()
    for name, witnessed in evidence.services.items():
        for saga, versions in witnessed.versions.items():
            taken, logged = of_saga(witnessed, list(evidence.log), saga)
            try:
                rebuilt = await rebuild_progress(
                    witnessed.service,
                    saga,
                    taken,
                    logged,
                    now_ms,
                    RebuildEnvironment(RECORD_BYTES_MAX, 20_000_000),
                )
            except Unknowable as why:
                refused.append(f"{name} {saga}: {why}")
                continue
            assert rebuilt is not None
            once, now = meaning(decode_progress(versions[-1])), meaning(rebuilt.snapshot)
            if once == now and not rebuilt.unpublished and not rebuilt.left_to_service:
                same += 1
            else:
                different = {k: (once[k], now[k]) for k in once if once[k] != now[k]}
                others.append(
                    f"{name} {saga}: {different}; unpublished {rebuilt.unpublished}; left {rebuilt.left_to_service}"
                )
    return same, others, refused


def orders(world: SimulatedWorld) -> None:
    """Orders of every kind, brought to their ends."""
    world.start(order, payment, inventory, shipping, use=[Bank(), Carrier()], documents={"tea": Stock(left=5)})
    world.publish(an_order(1), an_order(2, card="declined-1"), principal="user:4711")
    world.publish(an_order(3, address="Atlantis"), an_order(4))
    world.run_until_quiet()


def expired(world: SimulatedWorld) -> None:
    """An order that the bank answers only when it has expired."""
    bank = SilentBank()
    world.start(order, payment, inventory, shipping, use=[bank, Carrier()], documents={"tea": Stock(left=5)})
    world.publish(an_order(1))
    world.run_for(PATIENCE + timedelta(minutes=1))
    bank.is_there = True
    world.run_until_quiet()


@pytest.mark.parametrize(("scenario", "sagas"), [(orders, 4), (expired, 1)])
@pytest.mark.parametrize("seed", SEEDS)
def test_rebuilt_progresses_equal_the_lost_ones(
    seed: int, scenario: Callable[[SimulatedWorld], None], sagas: int
) -> None:
    with simulated(seed) as world:
        scenario(world)
        evidence = world.evidence()
    same, others, refused = asyncio.run(compared(evidence, 2_000_000_000_000))
    assert (others, refused) == ([], [])
    assert same == 4 * sagas
