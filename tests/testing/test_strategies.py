"""`events`: whatever it generates is allowed, comes back equal, and is simple where nothing else is asked for."""

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar, assert_type
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from saga.contracts import codec
from saga.contracts.library import binding_of
from saga.errors import BadInput, SagaError
from saga.messages import Event
from saga.testing.strategies import events
from services.inventory import events as inventory
from services.order import events as order
from services.order.events import OrderPlaced
from services.payment import events as payment
from services.shipping import events as shipping
from tests.contracts.anyschema import Names, fields
from tests.contracts.folders import decimal, event, field, generated, schema, write

E = TypeVar("E", bound=Event)

EXAMPLES = [
    kind
    for module in (inventory, order, payment, shipping)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
]
PART = {"type": "record", "name": "Part", "fields": [field("count", "int"), field("note", ["null", "string"])]}
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["red", "green"]}


@pytest.fixture(scope="module")
def every_type() -> Iterator[type[Event]]:
    """A contract with every kind of type."""
    with tempfile.TemporaryDirectory() as folder:
        yield event(
            Path(folder),
            field("yes", "boolean"),
            field("small", "int"),
            field("great", "long"),
            field("rough", "float"),
            field("fine", "double"),
            field("text", "string"),
            field("data", "bytes"),
            field("id", {"type": "string", "logicalType": "uuid"}),
            field("day", {"type": "int", "logicalType": "date"}),
            field("millis", {"type": "long", "logicalType": "timestamp-millis"}),
            field("micros", {"type": "long", "logicalType": "timestamp-micros"}),
            field("total", decimal(12, 2)),
            field("colour", COLOUR),
            field("parts", {"type": "array", "items": PART}),
            field("names", {"type": "map", "values": "string"}),
            field("maybe", ["null", "int"]),
            field("known", "int", default=7),
        )


def simplest(strategy: st.SearchStrategy[E], *phases: Phase) -> E:
    """Event that Hypothesis finds when any will do. It is drawn in these phases, by default also made simpler."""
    drawn = settings(database=None, deadline=None, phases=phases or (Phase.generate, Phase.shrink))
    return find(strategy, lambda event: True, settings=drawn)


def back(every_type: Event) -> Event:
    return codec.decode(codec.encode(every_type), type(every_type), binding_of(type(every_type)).library)


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: f"{kind.__module__.split('.')[1]}-{kind.__name__}")
def test_events_of_the_example_come_back_equal(kind: type[Event]) -> None:
    @settings(max_examples=10, database=None)
    @given(events(kind))
    def check(every_type: Event) -> None:
        assert type(every_type) is kind
        assert back(every_type) == every_type

    check()


@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_events_of_any_schema_come_back_equal(data: st.DataObject) -> None:
    whole = schema("Said", *fields(data.draw, Names(), 3, least=0))
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), whole)
        kind: type[Event] = generated(Path(folder), "Said").Said
        binding_of(kind)
    drawn = data.draw(st.lists(events(kind), max_size=5))
    for one in drawn:
        assert back(one) == one


def test_it_shrinks_towards_simple_values(every_type: type[Any]) -> None:
    assert simplest(events(every_type)) == every_type(
        order_id="0",
        yes=False,
        small=0,
        great=0,
        rough=0.0,
        fine=0.0,
        text="",
        data=b"",
        id=UUID(int=0),
        day=date(2000, 1, 1),
        millis=datetime(2000, 1, 1, tzinfo=UTC),
        micros=datetime(2000, 1, 1, tzinfo=UTC),
        total=Decimal("0.00"),
        colour="red",
        parts=(),
        names={},
        maybe=None,
        known=7,
    )


CORNERS: dict[str, Callable[[Any], bool]] = {
    "negative": lambda e: e.small < 0 or e.great < 0 or e.total < 0,
    "more than 32 bits": lambda e: abs(e.great) >= 2**32,
    "without end": lambda e: abs(e.rough) == float("inf"),
    "a fraction of a float": lambda e: e.fine % 1 != 0,
    "to the millisecond": lambda e: e.millis.microsecond != 0,
    "to the microsecond": lambda e: e.micros.microsecond % 1000 != 0,
    "a great amount": lambda e: e.total.adjusted() >= 6,
    "the last word": lambda e: e.colour == "green",
    "several parts": lambda e: len(e.parts) > 1,
    "a part with a note": lambda e: any(part.note for part in e.parts),
    "several names": lambda e: len(e.names) > 1,
    "what may be absent": lambda e: e.maybe is not None,
    "another than the default": lambda e: e.known != 7,
    "text that is not ASCII": lambda e: not e.text.isascii(),
}


def test_the_corners_of_a_contract_are_reached_and_no_others(every_type: type[Any]) -> None:
    reached: set[str] = set()

    @settings(max_examples=200, database=None, derandomize=True, phases=[Phase.generate])
    @given(events(every_type))
    def look(one: Event) -> None:
        reached.update(corner for corner, holds in CORNERS.items() if holds(one))
        assert one.order_id, "it is the saga id"  # type: ignore[attr-defined] # a class made for these tests
        assert back(one) == one, "NaN would not be"

    look()
    assert reached == CORNERS.keys()


@settings(max_examples=30, database=None)
@given(placed=events(OrderPlaced, order_id="o-1", total=Decimal("9.80"), quantity=st.integers(1, 5)))
def test_fields_may_be_fixed_by_a_value_or_a_strategy(placed: OrderPlaced) -> None:
    assert (placed.order_id, placed.total) == ("o-1", Decimal("9.80"))
    assert placed.quantity in range(1, 6)
    assert back(placed) == placed


def test_a_field_with_a_default_may_be_fixed(every_type: type[Any]) -> None:
    assert simplest(events(every_type, known=3), Phase.generate).known == 3


def test_the_key_may_be_a_uuid(tmp_path: Path) -> None:
    id_ = field("trip_id", {"type": "string", "logicalType": "uuid"})
    kind: type[Any] = event(tmp_path, id_, key="trip_id")
    found = simplest(events(kind))
    assert found == kind(order_id="", trip_id=UUID(int=0))
    assert simplest(events(kind, trip_id=UUID(int=5))) == kind(order_id="", trip_id=UUID(int=5))


def test_what_a_contract_does_not_have_or_allow_is_refused_at_once() -> None:
    with pytest.raises(SagaError, match="OrderPlaced has no field 'amount'; its fields are order_id, customer_id, sku"):
        events(OrderPlaced, amount=3)
    with pytest.raises(SagaError, match="OrderPlaced cannot have this: quantity: is text, not a whole number"):
        events(OrderPlaced, quantity="3")
    with pytest.raises(SagaError, match="OrderPlaced cannot have this: total: has more than 2 digits after the point"):
        events(OrderPlaced, total=Decimal("0.001"))
    with pytest.raises(SagaError, match="OrderPlaced cannot have this: order_id: is empty, but it is the saga id"):
        events(OrderPlaced, order_id="")


def test_what_a_strategy_gives_and_the_contract_does_not_allow_is_refused_as_it_is_drawn() -> None:
    with pytest.raises(BadInput, match="OrderPlaced: quantity: must lie between"):
        simplest(events(OrderPlaced, quantity=st.just(2**40)), Phase.generate)


def test_it_is_typed_by_the_class() -> None:
    assert_type(events(OrderPlaced), st.SearchStrategy[OrderPlaced])


def test_without_hypothesis_the_import_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "saga.testing.strategies")
    with pytest.raises(ImportError, match=r"needs hypothesis: pip install saga-choreography\[testing\]"):
        importlib.import_module("saga.testing.strategies")


def test_nothing_else_of_the_kit_needs_hypothesis() -> None:
    program = "import sys, saga.testing, saga.testing.idempotence; sys.exit('hypothesis' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
