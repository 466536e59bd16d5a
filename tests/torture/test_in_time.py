"""The look for orders that expired although they were answered in time."""

from saga.messages import Record
from tests.torture.in_time import find_expired_in_time


def a_record(type_: str, order: str, time_ms: int) -> Record:
    return Record("orders", 0, 0, order.encode(), b"", (("ce_type", type_.encode()),), time_ms)


PLACED = {"a": 0, "b": 0, "c": 0}


def test_an_order_that_was_answered_in_time_may_not_expire() -> None:
    records = [
        a_record("ShipmentBooked", "a", 2000),
        a_record("ShipmentBooked", "b", 12_000),
        a_record("PaymentReserved", "c", 10),
    ]
    assert find_expired_in_time(records, PLACED, ["a", "b", "c"], 10) == [
        "a has expired, and ShipmentBooked came after 2.0 s"
    ]
    assert find_expired_in_time(records, PLACED, ["b", "c"], 10) == []


def test_a_copy_of_an_order_that_outlived_the_first_in_the_log_is_not_when_it_was_placed() -> None:
    records = [a_record("ShipmentBooked", "b", 12_000), a_record("OrderPlaced", "b", 90_000)]
    assert find_expired_in_time(records, PLACED, ["b"], 10) == []
