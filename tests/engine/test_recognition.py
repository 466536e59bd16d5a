"""Of which contract a record is, by its type and by its bytes: see `saga.testing.conformance.foreign_records` for what
services make of such records."""

import pytest

from saga.contracts import codec
from saga.contracts.library import binding_of
from saga.engine.consumer import record_router
from saga.engine.consumer.record_router import Recognition, recognize
from saga.messages import Headers, Record
from services.payment.events import OrderPlaced
from tests.engine.real_worker import an_order

LIBRARY = binding_of(OrderPlaced).library
NATIVE = codec.encode(an_order())


def record(type_: str | None, value: bytes = NATIVE, *more: tuple[str, bytes | None]) -> Record:
    headers: Headers = more if type_ is None else (("ce_type", type_.encode()), *more)
    return Record("orders", 0, 0, b"order-1", value, headers, 0)


@pytest.mark.parametrize(
    "type_", ["OrderPlaced", "shop.OrderPlaced", '"OrderPlaced"', " OrderPlaced\n", "\0OrderPlaced"]
)
def test_a_type_that_has_the_name_is_exact(type_: str) -> None:
    assert recognize(record(type_), LIBRARY) == Recognition("OrderPlaced")
    assert recognize(record(type_, b"{}"), LIBRARY) == Recognition("OrderPlaced")


@pytest.mark.parametrize(
    "type_", ["order.placed", "ORDER_PLACED", "a.b.orderPlaced.v12", "OrderPlaced:1.0", "x/OrderPlacedV3"]
)
def test_a_type_that_comes_near_is_taken_by_what_the_bytes_are_and_else_doubted(type_: str) -> None:
    found = recognize(record(type_), LIBRARY)
    assert (found.name, found.doubt) == ("OrderPlaced", "")
    assert found.remark == f"no contract is called {type_!r}; it comes near OrderPlaced"
    later = recognize(record(type_, b"\xc3\x01" + bytes(20)), LIBRARY)
    assert (later.name, later.doubt) == ("OrderPlaced", ""), "a version that is not here says later what it is"
    doubted = recognize(record(type_, b"{}"), LIBRARY)
    assert doubted.name == "OrderPlaced"
    assert doubted.doubt.endswith("nothing in it shows that it is one: have its sender write OrderPlaced")


@pytest.mark.parametrize("type_", ["", "Placed", "OrderPlacedTwice", "placed.order", "v1", "...", "1.0", "\udcff"])
def test_a_type_that_means_nothing_here_is_unknown(type_: str) -> None:
    header = type_.encode("utf-8", "surrogatepass")
    found = recognize(record(None, b"{}", ("ce_type", header or b"-")), LIBRARY)
    assert (found.name, found.doubt) == ("", "")
    doubted = recognize(record(None, NATIVE, ("ce_type", header or b"-")), LIBRARY)
    assert "its bytes are those of orders/OrderPlaced.v1" in doubted.doubt


def test_types_are_remembered_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_router, "TYPES_MAX", len(LIBRARY.types) + 2)
    for number in range(5):
        assert recognize(record(f"Nobody{number}x", b"{}"), LIBRARY).name == ""
    assert len(LIBRARY.types) == record_router.TYPES_MAX
