"""The look for orders that expired although they were answered in time."""

from saga.messages import Record
from tests.torture.in_time import passed


def a_record(type_: str, order: str, time_ms: int) -> Record:
    return Record("orders", 0, 0, order.encode(), b"", (("ce_type", type_.encode()),), time_ms)


def test_an_order_that_was_answered_in_time_may_not_expire() -> None:
    records = [
        a_record("OrderPlaced", "a", 0),
        a_record("OrderPlaced", "b", 0),
        a_record("OrderPlaced", "c", 0),
        a_record("ShipmentBooked", "a", 2000),
        a_record("ShipmentBooked", "b", 12_000),
        a_record("PaymentReserved", "c", 10),
    ]
    assert passed(records, ["a", "b", "c"], 10) == ["a has expired, and ShipmentBooked came after 2.0 s"]
    assert passed(records, ["b", "c"], 10) == []
