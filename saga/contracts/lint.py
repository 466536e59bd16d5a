"""Rules of style for contracts: names, owner, docs, key, sensitive fields, units of numbers. Each has an id, by which a
field or a record may be left out of it: `"lint": ["unit"]`."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from saga.contracts.contract import Contract, Version
from saga.contracts.problems import Problem
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    DecimalType,
    EnumType,
    Field,
    MapType,
    OptionalType,
    RecordType,
    ScalarType,
    Type,
    described,
)

RULES: Final[Mapping[str, str]] = {
    "contract": "A file of contracts/ cannot be used.",
    "type-case": "Events, records and enums are called in CamelCase: OrderPlaced.",
    "field-case": "Fields are called in snake_case: order_id.",
    "symbol-case": "Symbols of an enum are written alike: UPPER_CASE, lower_case or CamelCase.",
    "topic-case": "A topic is lower case letters, digits, `-` and `.`.",
    "doc": "Events, records, enums and fields have a description.",
    "key-name": "The key's name is that of the kind of saga, and ends in _id.",
    "sensitive": "A field whose name sounds like personal data or a secret says whether it is sensitive.",
    "unit": "A number whose name is that of a measure says its unit.",
    "money-float": "Money is a decimal: float and double round it.",
    "time-type": "A moment or a day is a timestamp or a date.",
    "optional-default": "An optional field has the default null, so that it can be left out.",
    "enum-default": "An enum has a default, so that it can get symbols later.",
    "silenced": "What `lint` names is a rule.",
}
"""Rules of `saga contracts lint`, each with a sentence."""

_TYPE = re.compile(r"[A-Z][A-Za-z0-9]*")
_FIELD = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SYMBOLS = [re.compile(case) for case in (r"[A-Z][A-Z0-9_]*", r"[a-z][a-z0-9_]*", r"[A-Z][A-Za-z0-9]*")]
_TOPIC = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SENSITIVE: Final = _words("""
    address bic birth birthday birthdate card cvc cvv email fax firstname gender iban income lastname mail mobile
    nationality pan passport password phone pin religion salary secret ssn street surname taxid tel telephone token vat
""")
"""Words of names that sound like a person's data, or a secret."""
_NOT_SENSITIVE: Final = _words("id ids count counts kind type")
"""Last words of names that only count or refer to what sounds so: `card_count`, `address_id`."""
_MONEY: Final = _words("amount balance charge cost fee price refund salary tax total")
_MEASURES: Final = _MONEY | _words("""
    age delay depth distance duration height interval latency length limit memory period size speed temperature timeout
    volume weight width
""")
_UNITS: Final = _words("""
    ms s sec secs second seconds m min mins minute minutes h hour hours d day days week weeks month months year years
    millis micros nanos mm cm km meter meters metre metres kilometers inch inches ft miles mg g kg t gram grams
    kilograms lb pounds ml l litre litres liter liters b byte bytes kb mb gb kib mib gib percent pct ppm bps celsius
    kelvin fahrenheit kmh mph c f k eur euro euros usd dollar dollars gbp chf jpy yen cent cents pence currency pieces
    items units
""")
"""Words that are units, in the name of a field."""
_UNITS_IN_TEXT: Final = _UNITS - _words("a b c d f g h k l m s t in")
"""Words that are units, in a description."""
_TIMES: Final = _words("at on date time timestamp until since")


def lint(contracts: Iterable[Contract]) -> list[Problem]:
    """Problems of style in the newest version of each contract: older ones are as they are."""
    return [problem for contract in contracts for problem in lint_version(contract.newest)]


def lint_version(version: Version) -> list[Problem]:
    """Problems of style in one version, in the order of its file."""
    return _Linting(version).problems()


@dataclass(frozen=True)
class _Place:
    """Place in a file: the JSON of a record, enum or field, and the rules that it is left out of."""

    at: str
    silenced: frozenset[str]

    def inside(self, name: str, given: Mapping[str, Any]) -> "_Place":
        """Place of a part."""
        path = f"{self.at}.{name}" if self.at and name else self.at or name
        return _Place(path, self.silenced | _silenced(given))


class _Linting:
    """State of going over one version."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.found: list[Problem] = []
        self.seen: set[str] = set()
        """Named types looked at: each is told once, where it is defined."""

    def problems(self) -> list[Problem]:
        """Problems in the order of the file."""
        schema, place = self.version.schema, _Place("", _silenced(self.version.schema))
        if not _TOPIC.fullmatch(schema["topic"]):
            self.says(place, "topic-case", f"the topic {schema['topic']} is not lower case letters, digits, - and .")
        if not schema["key"].endswith("_id"):
            key = schema["key"]
            self.says(place, "key-name", f"the key {key} is the name of the kind of saga, and does not end in _id")
        self.record(schema, self.version.record, place)
        return self.found

    def says(self, place: _Place, rule: str, says: str, remedy: str = "") -> None:
        if rule not in place.silenced:
            subject = f"{place.at}: " if place.at else ""
            problem = Problem(
                rule=rule, file=f"{self.version.path}.avsc", at=place.at, says=f"{subject}{says}", remedy=remedy
            )
            self.found.append(problem)

    def named(self, given: Mapping[str, Any], kind: str, place: _Place) -> None:
        """Look at the name and the description of a record or an enum, and at what it is left out of."""
        name = given["name"].rpartition(".")[2]
        self.seen.add(name)
        if not _TYPE.fullmatch(name):
            self.says(place, "type-case", f"the {kind} {name} is not called in CamelCase")
        self.doc(given, f"the {kind} {name}", place)
        self.rules(given, place)

    def doc(self, given: Mapping[str, Any], what: str, place: _Place) -> None:
        if not str(given.get("doc") or "").strip():
            self.says(place, "doc", f"{what} has no description", 'add "doc": a sentence that says what it is')

    def rules(self, given: Mapping[str, Any], place: _Place) -> None:
        names = given.get("lint", [])
        if not isinstance(names, list):
            return self.says(place, "silenced", f'"lint" is a list of rules, as ["unit"], not {names!r}')
        for name in names:
            if name not in RULES:
                self.says(place, "silenced", f'"lint" names {name!r}, which is no rule', f"rules: {', '.join(RULES)}")

    def record(self, given: Mapping[str, Any], record: RecordType, place: _Place) -> None:
        self.named(given, "record" if place.at else "event", place)
        for part, field in zip(given["fields"], record.fields, strict=True):
            self.field(part, field, record, place.inside(field.name, part))

    def field(self, given: Mapping[str, Any], field: Field, record: RecordType, place: _Place) -> None:
        if not _FIELD.fullmatch(field.name):
            self.says(place, "field-case", "is not called in snake_case")
        self.doc(given, "it", place)
        self.rules(given, place)
        if "sensitive" not in given and _sounds_sensitive(field.name):
            remedy = 'add "sensitive": true, and people see *** in its place, or "sensitive": false if it is none'
            self.says(place, "sensitive", "sounds like personal data or a secret, and does not say so", remedy)
        self.number(given, field, record, place)
        if isinstance(field.type, OptionalType) and field.default is MISSING:
            remedy = 'write ["null", ...] and "default": null'
            self.says(place, "optional-default", "is optional, and has no default: none can leave it out", remedy)
        self.type_(given["type"], field.type, place)

    def number(self, given: Mapping[str, Any], field: Field, record: RecordType, place: _Place) -> None:
        inner = _inmost(field.type)
        words = field.name.split("_")
        money = not _MONEY.isdisjoint(words)
        if isinstance(inner, ScalarType) and inner.kind in ("float", "double") and money:
            self.says(place, "money-float", f"is money as {inner.kind}, which rounds", "make it a decimal")
        if isinstance(inner, ScalarType) and inner.kind in ("string", "int", "long") and words[-1] in _TIMES:
            remedy = "make it a timestamp-millis, a timestamp-micros or a date"
            self.says(place, "time-type", f"is called like a time and is {described(inner)}", remedy)
        if not _is_number(inner) or _MEASURES.isdisjoint(words) or not _UNITS.isdisjoint(words[1:]):
            return
        told = set(re.findall(r"[a-z]+", str(given.get("doc") or "").lower())) & _UNITS_IN_TEXT
        if told or (money and any("currency" in other.name.split("_") for other in record.fields)):
            return
        example = f"{field.name}_{'eur' if money else 'kg' if 'weight' in words else 's'}"
        beside = ", in its description, or, as it is money, in a field `currency` beside it" if money else ""
        where = beside or " or in its description"
        self.says(place, "unit", "is a measure without a unit", f"say it in its name ({example}){where}")

    def type_(self, given: Any, type_: Type, place: _Place) -> None:
        """Look at the records and enums that are defined in a type."""
        match type_:
            case OptionalType(inner) if isinstance(given, list):
                self.type_(next(branch for branch in given if branch not in ("null", {"type": "null"})), inner, place)
            case ArrayType(items) if isinstance(given, dict):
                self.type_(given["items"], items, _Place(f"{place.at}[]", place.silenced))
            case MapType(values) if isinstance(given, dict):
                self.type_(given["values"], values, _Place(f"{place.at}{{}}", place.silenced))
            case RecordType() if isinstance(given, dict):
                self.record(given, type_, place.inside("", given))
            case EnumType() if isinstance(given, dict):
                self.enum(given, type_, place.inside("", given))
            case _:
                return

    def enum(self, given: Mapping[str, Any], enum: EnumType, place: _Place) -> None:
        self.named(given, "enum", place)
        if not any(all(map(case.fullmatch, enum.symbols)) for case in _SYMBOLS):
            self.says(place, "symbol-case", f"the symbols of {enum.name} are not written alike")
        if enum.default is None:
            remedy = 'add "default": one of its symbols, as UNKNOWN; a later version cannot make up for it'
            self.says(place, "enum-default", f"the enum {enum.name} has no default, so it can get no symbols", remedy)


def _silenced(given: Mapping[str, Any]) -> frozenset[str]:
    """Rules that a record, enum or field is left out of, with all in it."""
    names = given.get("lint", [])
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _inmost(type_: Type) -> Type:
    """Type of the values themselves, of a field that is optional, or has many."""
    while isinstance(type_, OptionalType | ArrayType | MapType):
        match type_:
            case OptionalType(inner) | ArrayType(inner) | MapType(inner):
                type_ = inner
    return type_


def _is_number(type_: Type) -> bool:
    return isinstance(type_, DecimalType) or (
        isinstance(type_, ScalarType) and type_.kind in ("int", "long", "float", "double")
    )


def _sounds_sensitive(name: str) -> bool:
    words = name.lower().split("_")
    return "".join(words[-2:]) in _SENSITIVE or (words[-1] not in _NOT_SENSITIVE and not _SENSITIVE.isdisjoint(words))
