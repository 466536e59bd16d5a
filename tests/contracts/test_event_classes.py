"""Events declared as classes: what a class says, what is refused, and when it is compared with its file."""

import dataclasses
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest

from saga import Avro, Change, Service, event, record, sensitive, upcast
from saga.contracts import codec, library
from saga.contracts.event_classes import declared_contract
from saga.contracts.library import Library, binding_of, contract_at_import
from saga.contracts.schema import RecordType
from saga.contracts.schema_parser import format_schema
from saga.engine.prepared_service import prepare
from saga.errors import DeclarationError
from saga.messages import Event
from tests.contracts.declared import declare, declare_class, run
from tests.contracts.folders import field, put, schema, write
from tests.service.documents import OrderDocument


def test_the_class_is_a_frozen_dataclass_with_keywords_and_slots() -> None:
    cls = declare_class("Paid", "amount: Annotated[Decimal, Avro('decimal(9,2)')]")
    paid: Any = cls(order_id="o", amount=Decimal(1))  # type: ignore[call-arg] # its fields are in the source
    assert issubclass(cls, Event)
    assert cls.__contract__ == "orders/Paid.v1"
    assert not hasattr(paid, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        paid.amount = Decimal(2)
    with pytest.raises(TypeError, match="positional"):
        cls("o")  # type: ignore[call-arg] # the mistake


def test_repr_hides_sensitive_fields_wherever_they_are() -> None:
    above = """
        @record
        class Card:
            number: Annotated[str, sensitive]
            year: int = 30
    """
    lines = ["card: Card", "name: Annotated[str, sensitive] = 'Ada'", "note: Annotated[str, sensitive] | None = None"]
    lines.append("pin: Annotated[str, sensitive] = field(default='1234')")
    cls: Any = declare_class("Paid", *lines, above=above)
    card = sys.modules[cls.__module__].Card
    assert repr(cls(order_id="o", card=card(number="4111"), note="x")) == "Paid(order_id='o', card=Card(year=30))"


def test_sensitive_is_found_behind_type_aliases_wherever_they_are() -> None:
    above = """
        from typing_extensions import TypeAliasType

        Secret = TypeAliasType("Secret", Annotated[str, sensitive])
        Named = TypeAliasType("Named", Annotated[Secret, "Its name."])
        Maybe = TypeAliasType("Maybe", Secret | None)
    """
    lines = ["a: Secret", "b: Secret | None = None", "c: Annotated[Secret | None, 'doc'] = None"]
    lines += ["d: Annotated[Secret, 'doc'] = ''", "e: Named | None = None", "f: str = ''", "g: Maybe = None"]
    cls: Any = declare_class("Paid", *lines, above=above)
    contract = declared_contract(cls)
    assert contract is not None
    assert [each.name for each in contract.newest.record.fields if each.sensitive] == ["a", "b", "c", "d", "e", "g"]
    assert contract.newest.schema["fields"][5]["doc"] == "Its name."
    assert repr(cls(order_id="o", a="1", b="2", c="3", d="4", e="5", g="7")) == "Paid(order_id='o', f='')"


def test_a_type_is_defined_once_and_named_where_it_is_used_again() -> None:
    above = """
        @record(namespace="com.shop")
        class Place:
            house: Address
            colour: Colour
    """
    contract = declare(
        "Sent", "a: Place", "b: tuple[Place, ...]", "c: Address", "d: Colour", above=above, namespace="b"
    )
    types = {field["name"]: field["type"] for field in contract.newest.schema["fields"]}
    assert [part["type"]["name"] for part in types["a"]["fields"]] == ["Address", "Colour"]
    assert types["b"] == {"type": "array", "items": "com.shop.Place"}
    assert (types["c"], types["d"]) == ("com.shop.Address", "com.shop.Colour")
    assert contract.full_name == "b.Sent"


def test_a_docstring_is_the_description_without_its_line_breaks() -> None:
    source = '''
        @event(topic="orders", key="order_id", owner="order")
        class Said(Event):
            """It was
            said.

            Twice."""

            order_id: Annotated[str, """The order,
                and with it the saga."""]
            to: "Plain"
    '''
    plain = """
        @dataclass(frozen=True, kw_only=True, slots=True)
        class Plain:
            x: int
    """
    contract = declared_contract(run(plain + source).Said)
    assert contract is not None
    whole = contract.newest.schema
    assert whole["doc"] == "It was said.\n\nTwice."
    assert whole["fields"][0]["doc"] == "The order, and with it the saga."
    assert "doc" not in whole["fields"][1]["type"], "the text that a dataclass makes is no description"


REFUSED = {
    "amount: Decimal": 'field amount: a Decimal needs its digits: Annotated[Decimal, Avro("decimal(12,2)")]',
    "amount: Annotated[Decimal, Avro('decimal(2,4)')]": "0 <= scale <= precision",
    "x: Annotated[int, Avro('string')]": "field x: Avro('string') is no type of int",
    "x: Annotated[str, Avro('strin')]": "there is no type 'strin'",
    "x: Annotated[tuple[int, ...], Avro('int')]": "Avro('int') is no type of tuple[int, ...]",
    "x: list[int]": "list[int] is no type of a contract; write tuple[T, ...]",
    "x: dict[str, int]": "write Mapping[str, T]",
    "x: Mapping[int, str]": "is no type of a contract; there are bool, int,",
    "x: object": "object is no type of a contract",
    "x: int | str": "int | str is no type of a contract",
    "x: tuple[Annotated[str, sensitive], ...]": "`sensitive` marks a whole field",
    "x: float = 5": "its default 5 is read back as 5.0: write that",
    "x: str = 5": "field x: its default is a whole number, not text",
    "x: Annotated[float, Avro('float')] = 0.1": "its default 0.1 is read back as 0.10000000149011612: write that",
    "x: Annotated[datetime, Avro('timestamp-millis')] = datetime(2026, 1, 1)": "has no time zone",
    "x: tuple[int, ...] = []": "mutable default",
    "x: str = field(default='', init=False)": "leave init=False out",
    "x: 'Nowhere'": "an annotation cannot be read (name 'Nowhere' is not defined): define or import",
    "x: Annotated[str, Avro(aliases=('order_id',))]": "its alias order_id is the name of another field",
    "mro: int": "this name cannot be an attribute",
    "x: Hidden": "repr shows it: declare its class with @record",
    "x: Loop": "Loop contains itself",
}
ABOVE = """
@dataclass(frozen=True, kw_only=True)
class Hidden:
    secret: Annotated[str, sensitive]


@dataclass(frozen=True, kw_only=True)
class Loop:
    next: "Loop"
"""


@pytest.mark.parametrize(("line", "problem"), REFUSED.items())
def test_what_no_contract_can_say_is_refused_with_class_field_and_remedy(line: str, problem: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(problem)) as refused:
        declare("Said", line, above=ABOVE)
    assert re.match(r"declared_for_a_test_\d+\.Said: ", str(refused.value))


def test_a_record_has_the_fields_of_the_record_from_which_it_is_derived() -> None:
    @record
    class Place:
        """Where it is."""

        street: Annotated[str, sensitive, "Street and number."]

    @record
    class Address(Place):
        """Where the goods go."""

        country: str = "CH"

    @event(topic="orders", key="order_id", owner="order")
    class Said(Event):
        order_id: str
        to: Address

    contract = declared_contract(Said)
    assert contract is not None
    to = contract.newest.record.fields[1].type
    assert isinstance(to, RecordType)
    assert [(field.name, field.sensitive) for field in to.fields] == [("street", True), ("country", False)]
    assert repr(Address(street="High Street 1")).endswith("Address(country='CH')")


def test_a_field_with_the_name_of_a_keyword_is_refused() -> None:
    made = type("Said", (Event,), {"__module__": __name__, "__annotations__": {"order_id": str, "class": str}})
    with pytest.raises(DeclarationError, match="Said: field class: this name cannot be an attribute in Python"):
        event(topic="orders", key="order_id", owner="order")(made)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"aliases": "remark"}, r"Avro\(...\): aliases='remark': give a tuple, as in aliases=\('remark',\)"),
        ({"lint": "unit"}, r"Avro\(...\): lint='unit': give a tuple, as in lint=\('unit',\)"),
        ({"type": 3}, r"Avro\(...\): 3 is no name of a type: give text"),
    ],
)
def test_text_in_place_of_a_tuple_is_not_taken_for_its_letters(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError, match=problem):
        Avro(**given)


ATTRIBUTES: list[tuple[dict[str, Any], str]] = [
    ({"topic": None}, "topic=None: give text"),
    ({"topic": "a b"}, "a topic is letters"),
    ({"start": True}, "start= means nothing here: is it starts=?"),
    ({"version": 0}, "version=0: give the number of the version"),
    ({"upcasts": 1, "version": 2}, "upcasts=1: give a tuple, as in upcasts=(1,)"),
    ({"upcasts": (2,), "version": 2}, '"upcasts" names version 2'),
    ({"key": "id"}, "its key 'id' is none of its fields"),
    ({"owner": "Order"}, "\"owner\" is 'Order'"),
    ({"outcome": "maybe"}, '"outcome" is "success" or "failure"'),
    ({"principal": "x-user"}, 'it goes with "starts": true'),
]


@pytest.mark.parametrize(("attributes", "problem"), ATTRIBUTES)
def test_a_wrong_attribute_is_refused_with_class_and_remedy(attributes: dict[str, Any], problem: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(problem)) as refused:
        declare("Said", **attributes)
    assert "Said: " in str(refused.value)


def test_attributes_that_are_missing_are_all_named() -> None:
    with pytest.raises(DeclarationError, match=r"key= is missing; owner= is missing; topic= is missing"):
        run("@event()\nclass Said(Event):\n    order_id: str")
    with pytest.raises(DeclarationError, match=r"\.Said: an event is derived from Event alone"):
        run('@event(topic="a", key="order_id", owner="order")\nclass Said:\n    order_id: str')


def at_home(cls: type[Event], folder: Path) -> type[Event]:
    """The class, as if its module were in this folder."""
    sys.modules[cls.__module__].__file__ = str(folder / "events.py")
    library._load_cached.cache_clear()
    return cls


def written(cls: type[Event], folder: Path) -> None:
    """Write the file of a class."""
    contract = declared_contract(cls)
    assert contract is not None
    put(folder / f"contracts/{contract.newest.path}.avsc", format_schema(contract.newest.schema))


def test_a_service_is_imported_without_files_and_compared_where_it_starts(tmp_path: Path) -> None:
    cls = at_home(declare_class("Placed", starts=True, produced_by="external"), tmp_path)
    service = Service("anyone")

    @service.handler
    async def take(placed: cls) -> None:  # type: ignore[valid-type] # made above
        assert placed

    assert contract_at_import(cls).starts
    with pytest.raises(DeclarationError, match="saga contracts write"):
        binding_of(cls)
    written(declare_class("Other"), tmp_path)
    with pytest.raises(
        DeclarationError, match=r"Placed\.v1\.avsc differ: there is no such file yet; run saga contracts"
    ):
        binding_of(at_home(cls, tmp_path))
    written(cls, tmp_path)
    assert binding_of(at_home(cls, tmp_path)).version.path == "orders/Placed.v1"


@pytest.mark.parametrize(
    ("line", "attributes", "difference"),
    [
        ("note: str", {}, r"note: default: '' -> none"),
        ("note: Annotated[str, sensitive] = ''", {}, "note: sensitive"),
        ("note: str | None = None", {}, "note: type: string -> optional string"),
        ("note: str = ''", {"outcome": "failure"}, "\"outcome\": none -> 'failure'"),
        ("note: str = ''", {"subject": "note"}, "\"subject\": none -> 'note'"),
        ("note: Annotated[str, Avro(aliases=('remark',))] = ''", {}, "note: aliases: none -> remark"),
    ],
)
def test_a_difference_between_class_and_file_is_named(
    tmp_path: Path, line: str, attributes: dict[str, Any], difference: str
) -> None:
    written(declare_class("Said", "note: str = ''"), tmp_path)
    cls = at_home(declare_class("Said", line, **attributes), tmp_path)
    with pytest.raises(DeclarationError, match=f"differ: {re.escape(difference)}.*; run saga contracts write"):
        binding_of(cls)


def test_descriptions_may_differ_where_a_service_starts(tmp_path: Path) -> None:
    written(declare_class("Said", "note: Annotated[str, 'Before.']", "__doc__ = 'Before.'"), tmp_path)
    cls = at_home(declare_class("Said", "note: Annotated[str, 'After.']", "__doc__ = 'After.'"), tmp_path)
    assert binding_of(cls).version.number == 1


def test_null_in_another_place_is_a_difference_for_it_has_other_bytes(tmp_path: Path) -> None:
    write(tmp_path, schema("Said", field("note", ["string", "null"])))
    cls = at_home(declare_class("Said", "note: str | None", "__doc__ = 'Said happened.'"), tmp_path)
    with pytest.raises(DeclarationError, match="has null behind its type in the file; run saga contracts write"):
        binding_of(cls)


def test_the_class_of_a_new_version_reads_messages_of_the_old_one(tmp_path: Path) -> None:
    old: Any = at_home(declare_class("Said"), tmp_path)
    written(old, tmp_path)
    value = codec.encode(old(order_id="o"))
    new: Any = declare_class("Said", "note: str = 'none'", version=2)
    written(new, tmp_path)
    read = codec.decode(value, at_home(new, tmp_path), Library.load(tmp_path / "contracts"))
    assert read == new(order_id="o", note="none")


def test_a_service_of_document_changes_is_imported_before_its_contracts_are_written(tmp_path: Path) -> None:
    cls = at_home(declare_class("Noted", starts=True, produced_by="external"), tmp_path)
    service = Service("watcher")
    service.document(OrderDocument, "orders")

    @service.handler
    async def note(noted: cls) -> None:  # type: ignore[valid-type] # made above
        assert noted

    @service.handler
    async def look(change: Change[OrderDocument]) -> None:
        assert change

    assert [each.name for each in service.declared.reactions] == ["note", "look"]


def test_an_upcaster_of_a_shared_class_serves_every_service_that_takes_it(tmp_path: Path) -> None:
    written(at_home(declare_class("Paid", "cents: int"), tmp_path), tmp_path)
    euros = "euros: Annotated[Decimal, Avro('decimal(12,2)')] = Decimal(0)"
    new: Any = declare_class("Paid", euros, version=2, upcasts=(1,), compatible="none")
    old: Any = declare_class("Paid", "cents: int")

    @upcast(new, 1)
    def from_cents(paid: old) -> new:
        return new(order_id=paid.order_id, euros=Decimal(paid.cents) / 100)

    assert from_cents(old(order_id="o", cents=5)).euros == Decimal("0.05")
    written(at_home(new, tmp_path), tmp_path)
    at_home(old, tmp_path)
    value = codec.encode(old(order_id="o", cents=250))
    for service in (Service("till"), Service("books")):

        @service.handler
        async def take(paid: new) -> None:
            assert paid

        prepared = prepare(service.declared)
        assert prepared.classes["take"] == {"Paid": new}
        read: Any = codec.decode(value, new, prepared.schemas.library)
        assert read.euros == Decimal("2.50")
