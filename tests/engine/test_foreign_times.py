"""The time of an event that neither a service nor a `Client` published: a deadline does not count from it."""

from dataclasses import replace
from datetime import timedelta

from saga.clients import events
from saga.contracts.library import contract_of
from saga.engine.consumer.record_router import route_record
from saga.engine.prepared_service import PreparedService, prepare
from saga.messages import Message, Outgoing, Record
from saga.messaging import envelope
from saga.support.clock import iso
from saga.testing.simulation.loop import BEGINNING_MS
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.order import order
from services.order.events import OrderCancelled, OrderPlaced
from tests.engine.real_worker import an_order, message_of

DAYS_AGO = iso(BEGINNING_MS - 3 * 86_400_000)


def foreign(time: str = DAYS_AGO) -> Outgoing:
    """An order that a shop exports with the time at which it was placed."""
    message = message_of(an_order(), time=time, source="https://shop.example", started=None, id="4711")
    return envelope.to_record(message, contract_of(OrderPlaced))


def read_message(out: Outgoing, service: PreparedService) -> Message:
    found = route_record(Record(out.topic, 0, 0, out.key, out.value, out.headers, BEGINNING_MS), service)
    assert isinstance(found, Message)
    return found


def test_its_time_is_marked_as_foreign_unless_its_contract_trusts_it() -> None:
    service = prepare(order.declared)
    assert read_message(foreign(), service).foreign_time
    assert not read_message(events.to_record(an_order(), BEGINNING_MS), service).foreign_time
    contract = service.contracts["OrderPlaced"]
    newest = replace(contract.newest, schema={**contract.newest.schema, "trusted_time": True})
    trusting = replace(contract, versions=(*contract.versions[:-1], newest))
    service = replace(service, contracts={**service.contracts, "OrderPlaced": trusting})
    assert not read_message(foreign(), service).foreign_time


def test_an_order_that_is_exported_days_later_is_not_cancelled_at_once() -> None:
    with SimulatedWorld(1, None, guarded=False) as world:
        world.start(order)
        world._send_record(foreign())
        world.run_for(timedelta(minutes=10))
        assert world.outcome("order-1") is None
        world.run_for(timedelta(minutes=10))
        assert world.outcome("order-1") is OrderCancelled
