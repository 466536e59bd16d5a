"""Whatever a contract says, a class can say it: class, `.avsc` and generated class have the same fields and bytes."""

import json
import tempfile
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from saga.contracts import codec, schema
from saga.contracts.codegen import list_types
from saga.contracts.contract import Version
from saga.contracts.conversion import to_typed
from saga.contracts.event_classes import declared_contract
from saga.contracts.library import Library, binding_of
from saga.contracts.loading import make_version
from saga.contracts.schema_parser import format_schema
from saga.messages import Event
from tests.contracts import declared
from tests.contracts.anyschema import Draw, Names, fields, values
from tests.contracts.folders import generated, put
from tests.contracts.folders import schema as make_schema

ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"starts": True, "produced_by": "external", "principal": "x-user", "id_header": "x-id"},
    {"outcome": "failure", "consumed_by": "external", "trusted_time": True, "subject": "order_id"},
    {"compatible": "backward", "lint": ["unit", "doc"], "namespace": "com.shop", "aliases": ["Told", "com.b.Spoken"]},
    {"produced_by": "external", "id_field": "order_id"},
]
OWN = [
    "Annotated",
    "Avro",
    "Decimal",
    "Event",
    "Mapping",
    "StrEnum",
    "enum_type",
    "event",
    "field",
    "record",
    "sensitive",
]
OWN += ["tuple"]
SCALARS = {"int": "Avro('int')", "float": "Avro('float')", "timestamp-millis": "Avro('timestamp-millis')"}
SPELLINGS = {
    **{"boolean": "bool", "int": "int", "long": "int", "float": "float", "double": "float", "string": "str"},
    **{
        "bytes": "bytes",
        "uuid": "UUID",
        "date": "date",
        "timestamp-millis": "datetime",
        "timestamp-micros": "datetime",
    },
}


class ClassWriter:
    """Writes the classes of a contract as a user would, each with names that no field can hide."""

    def __init__(self, folder: Path) -> None:
        self.module = declared.run("")
        self.module.__file__ = str(folder / "declared.py")
        self.classes: dict[str, type[Any]] = {}
        names = [*OWN, *sorted(set(SPELLINGS.values()))]
        self.run("\n".join(f"OUR_{name} = {name}" for name in names))

    def run(self, source: str) -> None:
        exec(compile(source, "<written>", "exec"), self.module.__dict__)

    def event(self, version: Version) -> type[Event]:
        whole = version.schema
        for part in list_types(version.record):
            if part.name in self.classes or part is version.record:
                continue
            json_ = next(each for each in _definitions(whole["fields"]) if each["name"] == part.name)
            attributes = {key: value for key, value in json_.items() if key in ("aliases", "namespace", "lint")}
            self.run(
                self.enum(part, attributes)
                if isinstance(part, schema.EnumType)
                else self.record(part, json_, attributes)
            )
            self.add(part.name)
        attributes = {key: value for key, value in whole.items() if key not in ("type", "name", "doc", "fields")}
        self.run(
            f"@OUR_event({_keywords(attributes)}, version=1)\n"
            f"class Said(OUR_Event):\n{self.body(version.record, whole)}"
        )
        return self.add("Said")

    def add(self, name: str) -> type[Any]:
        made: type[Any] = getattr(self.module, name)
        setattr(self.module, f"THE_{name}", made)
        self.classes[name] = made
        return made

    def enum(self, enum: schema.EnumType, attributes: dict[str, Any]) -> str:
        above = (
            f"@OUR_enum_type({_keywords({**attributes, 'default': enum.default})})\n"
            if attributes or enum.default
            else ""
        )
        members = "".join(f"    member{i} = {symbol!r}\n" for i, symbol in enumerate(enum.symbols))
        return f"{above}class {enum.name}(OUR_StrEnum):\n    {enum.doc!r}\n{members}"

    def record(self, record: schema.RecordType, whole: Any, attributes: dict[str, Any]) -> str:
        return f"@OUR_record({_keywords(attributes)})\nclass {record.name}:\n{self.body(record, whole)}"

    def body(self, record: schema.RecordType, whole: Any) -> str:
        lines = [f"    {record.doc!r}"]
        for part, field in zip(whole["fields"], record.fields, strict=True):
            extra = [repr(part["doc"])] if part.get("doc") else []
            extra += ["OUR_sensitive"] if field.sensitive else []
            more = {key: part[key] for key in ("aliases", "lint") if key in part}
            extra += [f"OUR_Avro({_keywords(more)})"] if more else []
            hint = self.hint(field.type)
            hint = f"OUR_Annotated[{', '.join([hint, *extra])}]" if extra else hint
            default = ""
            if field.default is not schema.MISSING:
                name = f"default_{len(vars(self.module))}"
                setattr(self.module, name, to_typed(field.type, field.default, self.classes))
                default = f" = OUR_field(default_factory=lambda: {name})"
            lines.append(f"    {field.name}: {hint}{default}")
        return "\n".join(lines) + "\n"

    def hint(self, type_: schema.Type) -> str:
        match type_:
            case schema.ScalarType(kind):
                name = f"OUR_{SPELLINGS[kind]}"
                return f"OUR_Annotated[{name}, OUR_{SCALARS[kind]}]" if kind in SCALARS else name
            case schema.DecimalType(precision, scale):
                return f"OUR_Annotated[OUR_Decimal, OUR_Avro('decimal({precision},{scale})')]"
            case schema.ArrayType(items):
                return f"OUR_tuple[{self.hint(items)}, ...]"
            case schema.MapType(inner):
                return f"OUR_Mapping[OUR_str, {self.hint(inner)}]"
            case schema.OptionalType(inner):
                return f"{self.hint(inner)} | None"
            case schema.RecordType() | schema.EnumType():
                return f"THE_{type_.name}"


def _keywords(attributes: dict[str, Any]) -> str:
    return ", ".join(f"{key}={tuple(v) if isinstance(v, list) else v!r}" for key, v in attributes.items())


def _definitions(part: Any) -> list[dict[str, Any]]:
    """The records and enums that are defined in a part of a schema."""
    if isinstance(part, list):
        return [found for each in part for found in _definitions(each)]
    if not isinstance(part, dict):
        return []
    inside = [found for key in ("type", "items", "values", "fields") for found in _definitions(part.get(key))]
    return [part, *inside] if part.get("type") in ("record", "enum") else inside


def _spice(draw: Draw, fields_: list[dict[str, Any]]) -> None:
    """Add what a class has to say besides types and defaults, and put null first where no default says otherwise."""
    for number, field in enumerate(fields_):
        is_union = isinstance(field["type"], list)
        if is_union and "default" in field:
            field["type"] = [_null_first(each) for each in field["type"]]
        else:
            field["type"] = _null_first(field["type"])
        more: dict[str, Any] = {"doc": "What it is.", "sensitive": True, "aliases": [f"was{number}"], "lint": ["unit"]}
        field |= {key: more[key] for key in draw(st.lists(st.sampled_from(sorted(more)), max_size=2, unique=True))}


def _null_first(type_: Any) -> Any:
    match type_:
        case [*branches] if "null" in branches:
            return ["null", *(_null_first(each) for each in branches if each != "null")]
        case {"items": items}:
            return {**type_, "items": _null_first(items)}
        case {"values": inner}:
            return {**type_, "values": _null_first(inner)}
        case _:
            return type_


def _any_contract(draw: Draw) -> dict[str, Any]:
    whole = make_schema(
        "Said", *fields(draw, Names(), 3, least=0), doc="It was said.", **draw(st.sampled_from(ATTRIBUTES))
    )
    for number, part in enumerate(_definitions(whole)[1:]):
        part["doc"] = draw(st.sampled_from(["", "A part of it.", 'Has "quotes" and \\.']))
        more: dict[str, Any] = {"aliases": [f"Former{number}"], "lint": ["doc"], "namespace": "com.parts"}
        part |= {key: more[key] for key in draw(st.lists(st.sampled_from(sorted(more)), max_size=2, unique=True))}
        if part["type"] == "enum" and draw(st.booleans()):
            part["default"] = part["symbols"][-1]
    for part in _definitions(whole):
        _spice(draw, part["fields"][part is whole :]) if part["type"] == "record" else None
    return whole


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_a_class_says_what_any_contract_says_with_the_same_bytes(data: st.DataObject) -> None:
    wanted = make_version(_any_contract(data.draw), "orders/Said.v1", "Said", 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cls = ClassWriter(folder).event(wanted)
        contract = declared_contract(cls)
        assert contract is not None
        assert contract.newest.record == wanted.record
        assert contract.newest.fingerprint == wanted.fingerprint
        others = ("type", "fields", "name", "doc")
        assert _without(contract.newest.schema, others) == _without(wanted.schema, others)
        put(folder / "contracts/orders/Said.v1.avsc", format_schema(contract.newest.schema))
        made: type[Event] = generated(folder, "Said").Said
        bindings, library = [binding_of(cls), binding_of(made)], Library.load(folder / "contracts")
    assert _shape(cls) == _shape(made)
    for event in data.draw(st.lists(values(wanted.record, dict(bindings[1].classes)), min_size=1, max_size=3)):
        value = codec.encode(event)
        same = codec.decode(value, cls, library)
        assert codec.encode(same) == value
        assert json.dumps(codec.to_json(same)) == json.dumps(codec.to_json(event))
    assert bindings[0].version == bindings[1].version


def _without(whole: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in whole.items() if key not in names}


def _shape(cls: type[Event]) -> object:
    """What a dataclass is, apart from the classes of its fields."""
    params = vars(cls)["__dataclass_params__"]
    # an event class is a dataclass, which its type does not say
    shown = [(each.name, each.repr, each.kw_only) for each in fields_of(cls)]  # type: ignore[arg-type] # see above
    return repr(params), shown, cls.__slots__, cls.__bases__, cls.__contract__
