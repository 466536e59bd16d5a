"""Check the compatibility, the style and the released versions of a contracts folder. Each problem names its file and a
remedy.

`saga contracts check` reports changes that would break readers. `saga contracts lint` reports violations of style
rules. Both print problems as text, as JSON, or as SARIF 2.1.0, which code review tools display.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from saga.contracts.compatibility import CompatibilityBreak, find_breaks, suggest_remedy
from saga.contracts.contract import DEFAULT_MODE, Contract, Mode, Version
from saga.contracts.json_form import read_json
from saga.contracts.loading import find_missing_marks, merge_all_marks, merge_marks
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
    describe_type,
)
from saga.contracts.schema_parser import NULLS
from saga.errors import ContractError
from saga.support.printable import count_noun

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"

CHECK_RULES: Final[Mapping[str, str]] = {
    "contract": "A file of contracts/ cannot be used.",
    "class": "A class decorated with @event is not what the contracts say, or cannot be imported.",
    "alias": "An alias leaves open from which field a value is read.",
    "default-changed": "A default has changed.",
    "drift": "A generated module is not what the contracts say.",
    "logical-type": "A logical type has changed: the same bytes mean something else.",
    "no-default": "A field without a default is not in messages of the other version.",
    "optional": "A field that may be absent in one version is not optional in the other.",
    "precision": "An amount may have more digits than the other version reads.",
    "released": "A version that is released has changed, or is gone.",
    "sensitive": "A field that an earlier version marks as sensitive is not marked.",
    "rounding": "Great numbers are rounded by the other version.",
    "symbols": "Symbols of an enum are not known in the other version.",
    "type": "A type cannot be read as that of the other version.",
    "type-name": "A record or an enum has another name, and no alias for the one that is written.",
    "upcasts": "An older version reads messages whose meaning it does not know.",
    "utf-8": "Bytes are read as text.",
    "uuid": "Anything is read as a UUID.",
}
"""Rules of `saga contracts check`, each with a description."""
REASON: Final = (
    "topics, queues and archives keep messages of all versions, and services are deployed, and rolled back, "
    "independently of each other"
)
"""Reason for the default compatibility mode, as `describe_modes` prints it."""
LINT_RULES: Final[Mapping[str, str]] = {
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
"""Rules of `saga contracts lint`, each with a description."""
_TYPE = re.compile(r"[A-Z][A-Za-z0-9]*")
_FIELD = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SYMBOLS = [re.compile(case) for case in (r"[A-Z][A-Z0-9_]*", r"[a-z][a-z0-9_]*", r"[A-Z][A-Za-z0-9]*")]
_TOPIC = re.compile(r"[a-z0-9]+([.-][a-z0-9]+)*")
RELEASED_FILE: Final = "released.json"
_FORMAT: Final = 1
_WORDS: Final = ("doc", "lint")
"""Attributes on which no program relies: text for people, and silenced lint rules. They may be changed even in a
released version."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractProblem:
    """A problem in the file of a contract or of a generated module."""

    rule: str
    """Name of the rule that found it, such as `no-default`."""
    file: str
    """Path of the file, with `/` as separator."""
    at: str = ""
    """Path of the field in that file, such as `items[].price`; empty for a problem of the whole file."""
    line: int = 1
    """Line on which the field is defined; 1 for the whole file."""
    says: str
    """What is wrong. The sentence can be understood without `at`."""
    remedy: str = ""
    """How to fix the problem."""
    lines: tuple[str, ...] = ()
    """Lines that show the problem, such as the lines of a diff."""

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return "\n".join([f"{self.file}: {self.says}{remedy} [{self.rule}]", *self.lines])


def problems_to_json(problems: Iterable[ContractProblem]) -> list[dict[str, Any]]:
    """Convert problems to JSON."""
    return [asdict(problem) | {"lines": list(problem.lines)} for problem in problems]


def problems_to_sarif(problems: Iterable[ContractProblem], rules: Mapping[str, str], version: str) -> dict[str, Any]:
    """Convert problems to a SARIF log.

    Args:
        problems: the problems.
        rules: descriptions of the rules, by name.
        version: version of the toolkit.
    """
    found = list(problems)
    names = sorted({problem.rule for problem in found} | set(rules))
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "saga contracts",
                        "semanticVersion": version,
                        "rules": [{"id": name, "shortDescription": {"text": rules.get(name, name)}} for name in names],
                    }
                },
                "results": [_sarif_result(problem, names.index(problem.rule)) for problem in found],
            }
        ],
    }


def _sarif_result(problem: ContractProblem, rule: int) -> dict[str, Any]:
    remedy = f"; {problem.remedy}" if problem.remedy else ""
    place = {"artifactLocation": {"uri": quote(problem.file)}, "region": {"startLine": problem.line}}
    location: dict[str, Any] = {"physicalLocation": place}
    if problem.at:
        location["logicalLocations"] = [{"fullyQualifiedName": problem.at, "kind": "member"}]
    return {
        "ruleId": problem.rule,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": "\n".join([f"{problem.says}{remedy}", *problem.lines])},
        "locations": [location],
    }


# -------------------------------------------------------------------- checking


def find_incompatible(contracts: Collection[Contract]) -> list[ContractProblem]:
    """Report versions that violate their compatibility mode, and fields that only an earlier version marks as
    sensitive.

    If a version has the same problem with several other versions, it is reported once.
    """
    groups: dict[tuple[object, ...], list[CompatibilityBreak]] = defaultdict(list)
    for contract in contracts:
        for found in find_breaks(contract):
            groups[found.newer.path, found.direction, found.finding].append(found)
    return [_problem(group) for group in groups.values()] + [each for c in contracts for each in _find_unmarked(c)]


def _find_unmarked(contract: Contract) -> Iterator[ContractProblem]:
    """Report fields that an earlier version marks as sensitive and a later version does not mark.

    Such fields are treated as sensitive in all versions, but a reader of the later file would not know this.
    """
    earlier: list[RecordType] = []
    for version in contract.versions:
        for path in find_missing_marks(version.written, merge_marks(version.written, earlier)):
            yield ContractProblem(
                rule="sensitive",
                file=f"{version.path}.avsc",
                at=path,
                says=f"{path} is sensitive in an earlier version, and not marked in v{version.number}: it is hidden in "
                "all versions, and encrypted where there are keys",
                remedy='add "sensitive": true; for a value that need not be hidden, add a field with another name',
            )
        earlier = merge_all_marks([*earlier, version.written])


def describe_modes(contracts: Iterable[Contract]) -> list[str]:
    """Describe the compatibility modes of the contracts' newest versions, one line for each mode. The line of the
    default mode also gives its reason."""
    names: dict[Mode, list[str]] = {DEFAULT_MODE: []}
    for contract in contracts:
        names.setdefault(contract.compatible, []).append(contract.name)
    default = names.pop(DEFAULT_MODE)
    lines = (
        [f"{DEFAULT_MODE}, the default, because {REASON}: {count_noun(len(default), 'contract')}"] if default else []
    )
    return [*lines, *(f"{mode}, as declared: {', '.join(found)}" for mode, found in names.items())]


def _problem(group: list[CompatibilityBreak]) -> ContractProblem:
    first = group[0]
    newer, older = f"v{first.newer.number}", ", ".join(f"v{found.older.number}" for found in reversed(group))
    writer, reader = (older, newer) if first.direction == "backward" else (newer, older)
    verb = "misreads" if first.finding.effect == "misread" else "cannot read"
    if first.direction == "forward" and len(group) > 1:
        verb = verb.replace("misreads", "misread")
    remedy = first.finding.remedy
    if first.direction == "backward":
        remedy = suggest_remedy(first.finding, first.newer, [found.older.number for found in group])
    elif all(found.older.number in found.newer.upcasts for found in group):
        remedy = (
            'it is a step in meaning ("upcasts"), which services of before cannot know: declare "compatible": '
            '"backward_transitive", and deploy all its consumers before its owner'
        )
    return ContractProblem(
        rule=first.finding.rule,
        file=f"{first.newer.path}.avsc",
        at=first.finding.path,
        says=f"{reader} {verb} messages of {writer}: {f'{first.finding.path} {first.finding.says}'.strip()}",
        remedy=remedy,
    )


# -------------------------------------------------------------------- lint


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SENSITIVE: Final = _words("""
    address bic birth birthday birthdate card cvc cvv email fax firstname gender iban income lastname mail mobile
    nationality pan passport password phone pin religion salary secret ssn street surname taxid tel telephone token vat
""")
"""Words that, in the name of a field, suggest personal data or a secret."""
_NOT_SENSITIVE: Final = _words("id ids count counts kind type")
"""Last words in names of fields that do not contain sensitive data, but count it or refer to it, such as `card_count`
and `address_id`. Such fields are not reported."""
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
"""Words that name a unit of measure when they occur in the name of a field."""
_UNITS_IN_TEXT: Final = _UNITS - _words("a b c d f g h k l m s t in")
"""Words that name a unit of measure when they occur in a description: `_UNITS` without those that are also ordinary
words."""
_TIMES: Final = _words("at on date time timestamp until since")


def lint(contracts: Iterable[Contract]) -> list[ContractProblem]:
    """Report style problems in the newest version of each contract. Older versions are released and cannot change any
    more."""
    return [problem for contract in contracts for problem in lint_version(contract.newest)]


def lint_version(version: Version) -> list[ContractProblem]:
    """Report style problems in one version, in the order of its file."""
    return _Linter(version).find_problems()


@dataclass(frozen=True)
class _Place:
    """Position of a record, enum or field in a file: its path, and the lint rules that are silenced there."""

    at: str
    silenced: frozenset[str]

    def inside(self, name: str, given: Mapping[str, Any]) -> "_Place":
        """Return the place of a part of this one. The part also silences all rules that are silenced here."""
        path = f"{self.at}.{name}" if self.at and name else self.at or name
        return _Place(path, self.silenced | _find_silenced(given))


class _Linter:
    """Linter of one contract version. It collects the problems in `found`."""

    def __init__(self, version: Version) -> None:
        self.version = version
        self.found: list[ContractProblem] = []

    def find_problems(self) -> list[ContractProblem]:
        """Return the problems of the version, in the order of its file."""
        schema, place = self.version.schema, _Place("", _find_silenced(self.version.schema))
        if not _TOPIC.fullmatch(schema["topic"]):
            self.report(place, "topic-case", f"the topic {schema['topic']} is not lower case letters, digits, - and .")
        if not schema["key"].endswith("_id"):
            key = schema["key"]
            self.report(place, "key-name", f"the key {key} is the name of the kind of saga, and does not end in _id")
        self.check_record(schema, self.version.record, place)
        return self.found

    def report(self, place: _Place, rule: str, says: str, remedy: str = "") -> None:
        if rule not in place.silenced:
            subject = f"{place.at}: " if place.at else ""
            problem = ContractProblem(
                rule=rule, file=f"{self.version.path}.avsc", at=place.at, says=f"{subject}{says}", remedy=remedy
            )
            self.found.append(problem)

    def check_named(self, given: Mapping[str, Any], kind: str, place: _Place) -> None:
        """Check the name, the description and the silenced rules of a record or an enum."""
        name = given["name"].rpartition(".")[2]
        if not _TYPE.fullmatch(name):
            self.report(place, "type-case", f"the {kind} {name} is not called in CamelCase")
        self.check_doc(given, f"the {kind} {name}", place)
        self.check_rules(given, place)

    def check_doc(self, given: Mapping[str, Any], what: str, place: _Place) -> None:
        if not str(given.get("doc") or "").strip():
            self.report(place, "doc", f"{what} has no description", 'add "doc": a sentence that says what it is')

    def check_rules(self, given: Mapping[str, Any], place: _Place) -> None:
        names = given.get("lint", [])
        if not isinstance(names, list):
            return self.report(place, "silenced", f'"lint" is a list of rules, as ["unit"], not {names!r}')
        for name in names:
            if not isinstance(name, str) or name not in LINT_RULES:
                self.report(
                    place, "silenced", f'"lint" names {name!r}, which is no rule', f"rules: {', '.join(LINT_RULES)}"
                )

    def check_record(self, given: Mapping[str, Any], record: RecordType, place: _Place) -> None:
        self.check_named(given, "record" if place.at else "event", place)
        for part, field in zip(given["fields"], record.fields, strict=True):
            self.check_field(part, field, record, place.inside(field.name, part))

    def check_field(self, given: Mapping[str, Any], field: Field, record: RecordType, place: _Place) -> None:
        if not _FIELD.fullmatch(field.name):
            self.report(place, "field-case", "is not called in snake_case")
        self.check_doc(given, "it", place)
        self.check_rules(given, place)
        if "sensitive" not in given and _sounds_sensitive(field.name):
            remedy = 'add "sensitive": true, and people see *** in its place, or "sensitive": false if it is none'
            self.report(place, "sensitive", "sounds like personal data or a secret, and does not say so", remedy)
        self.check_number(given, field, record, place)
        if isinstance(field.type, OptionalType) and field.default is MISSING:
            remedy = 'write ["null", ...] and "default": null'
            self.report(place, "optional-default", "is optional, and has no default: none can leave it out", remedy)
        self.check_type(given["type"], field.type, place)

    def check_number(self, given: Mapping[str, Any], field: Field, record: RecordType, place: _Place) -> None:
        inner = _inmost(field.type)
        words = field.name.split("_")
        money = not _MONEY.isdisjoint(words)
        if isinstance(inner, ScalarType) and inner.kind in ("float", "double") and money:
            self.report(place, "money-float", f"is money as {inner.kind}, which rounds", "make it a decimal")
        if isinstance(inner, ScalarType) and inner.kind in ("string", "int", "long") and words[-1] in _TIMES:
            remedy = "make it a timestamp-millis, a timestamp-micros or a date"
            self.report(place, "time-type", f"is called like a time and is {describe_type(inner)}", remedy)
        if not _is_number(inner) or _MEASURES.isdisjoint(words) or not _UNITS.isdisjoint(words[1:]):
            return
        units = set(re.findall(r"[a-z]+", str(given.get("doc") or "").lower())) & _UNITS_IN_TEXT
        if units or (money and any("currency" in other.name.split("_") for other in record.fields)):
            return
        example = f"{field.name}_{'eur' if money else 'kg' if 'weight' in words else 's'}"
        beside = ", in its description, or, as it is money, in a field `currency` beside it" if money else ""
        where = beside or " or in its description"
        self.report(place, "unit", "is a measure without a unit", f"say it in its name ({example}){where}")

    def check_type(self, given: Any, type_: Type, place: _Place) -> None:
        """Check the records and enums that are defined inside a type."""
        match type_:
            case OptionalType(inner) if isinstance(given, list):
                self.check_type(next(branch for branch in given if branch not in NULLS), inner, place)
            case ArrayType(items) if isinstance(given, dict):
                self.check_type(given["items"], items, _Place(f"{place.at}[]", place.silenced))
            case MapType(values) if isinstance(given, dict):
                self.check_type(given["values"], values, _Place(f"{place.at}{{}}", place.silenced))
            case RecordType() if isinstance(given, dict):
                self.check_record(given, type_, place.inside("", given))
            case EnumType() if isinstance(given, dict):
                self.check_enum(given, type_, place.inside("", given))
            case _:
                return

    def check_enum(self, given: Mapping[str, Any], enum: EnumType, place: _Place) -> None:
        self.check_named(given, "enum", place)
        if not any(all(map(case.fullmatch, enum.symbols)) for case in _SYMBOLS):
            self.report(place, "symbol-case", f"the symbols of {enum.name} are not written alike")
        if enum.default is None:
            remedy = 'add "default": one of its symbols, as UNKNOWN; a later version cannot make up for it'
            self.report(place, "enum-default", f"the enum {enum.name} has no default, so it can get no symbols", remedy)


def _find_silenced(given: Mapping[str, Any]) -> frozenset[str]:
    """Return the rules that are silenced for a record, enum or field and everything in it."""
    names = given.get("lint", [])
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _inmost(type_: Type) -> Type:
    """Return the type inside of all enclosing optional types, arrays and maps."""
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


# -------------------------------------------------------------------- released


def read_released(folder: Path) -> dict[str, str] | None:
    """Return the digests of released versions, by path; `None` if the folder has no file of released versions. Raises
    `ContractError`."""
    path = folder / RELEASED_FILE
    if not path.exists():
        return None
    try:
        read, twice = read_json(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as why:
        raise _unreadable(path, f"is no JSON: {why}") from why
    if twice:
        raise _unreadable(path, f"names {twice[0]!r} twice")
    if not isinstance(read, dict) or read.get("format") != _FORMAT or not isinstance(read.get("versions"), dict):
        raise _unreadable(path, f'is no file of format {_FORMAT}, {{"format": {_FORMAT}, "versions": {{...}}}}')
    versions: dict[str, str] = read["versions"]
    return versions


def check_released(versions: Mapping[str, Version], digests: Mapping[str, str]) -> list[ContractProblem]:
    """Report released versions that have changed or are missing.

    Args:
        versions: the versions that exist now, by path.
        digests: the digests of the released versions, by path.
    """
    problems = []
    for path, known in digests.items():
        file = f"{path}.avsc"
        if path not in versions:
            says = "is released, and is gone: messages of it cannot be read any more"
            problems.append(ContractProblem(rule="released", file=file, says=says, remedy="bring it back"))
        elif version_digest(versions[path]) != known:
            says = "is released, and has changed: messages of it, and other services, are of what it was"
            remedy = "bring back what it was, and make the change in the next version: saga contracts bump"
            problems.append(ContractProblem(rule="released", file=file, says=says, remedy=remedy))
    return problems


def release(folder: Path, versions: Iterable[Version]) -> list[str]:
    """Add versions to the file of released versions. Return the paths of the versions that are new in it.

    For a version that the file already contains, the digest is replaced.
    """
    known = read_released(folder) or {}
    digests = known | {version.path: version_digest(version) for version in versions}
    text = json.dumps({"format": _FORMAT, "versions": dict(sorted(digests.items()))}, indent=2)
    (folder / RELEASED_FILE).write_text(text + "\n", "utf-8")
    return sorted(digests.keys() - known.keys())


def version_digest(version: Version) -> str:
    """Return a SHA-256 digest of everything in a version on which other services may rely. Unlike the fingerprint, it
    also covers logical types and contract attributes."""
    text = json.dumps(_without_descriptions(version.schema), ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_descriptions(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value if name == "default" else _without_descriptions(value)
        for name, value in schema.items()
        if name not in _WORDS
    }


def _unreadable(path: Path, problem: str) -> ContractError:
    remedy = "bring back the file that is committed"
    return ContractError("what is released cannot be read:", [f"{path.name}: {problem}; {remedy}"])


# -------------------------------------------------------------------- places


def find_line(text: str, at: str) -> int:
    """Return the number of the line on which the name of a field is written; 1 if there is no such field.

    Args:
        text: text of the file.
        at: path of the field, such as `items[].price`; empty for the whole file.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError):
        return 1
    named = list(_named_objects(schema))
    field = _find_field(schema, at, {name: part for name, part in named if "fields" in part})
    if field is None:
        return 1
    name = field["name"]
    # Objects are in the order of the text, so the n-th object with that name belongs to its n-th occurrence.
    number = next(i for i, part in enumerate(part for other, part in named if other == name) if part is field)
    places = [match.start() for match in re.finditer(rf'"name"\s*:\s*"{re.escape(name)}"', text)]
    return text.count("\n", 0, places[number]) + 1 if number < len(places) else 1


def _named_objects(part: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that have a name, in the order in which the names occur in the file."""
    if isinstance(part, list):
        for one in part:
            yield from _named_objects(one)
    elif isinstance(part, dict):
        for key, value in part.items():
            if key == "name" and isinstance(value, str):
                yield value, part
            yield from _named_objects(value)


def _find_field(schema: Any, at: str, records: dict[str, Any]) -> Any:
    """Return the JSON of the field at a path, or `None`."""
    field = None
    inside = schema
    for name in re.sub(r"\[\]|\{\}", "", at).split("."):
        record = _find_record(inside, records)
        field = next((one for one in (record or {}).get("fields", []) if one.get("name") == name), None)
        if field is None:
            return None
        inside = field.get("type")
    return field


def _find_record(type_: Any, records: dict[str, Any]) -> Any:
    """Return the JSON of the record to which a type refers, or `None`. `records` contains the records of the file, by
    name."""
    match type_:
        case {"fields": list()}:
            return type_
        case {"items": inner} | {"values": inner}:
            return _find_record(inner, records)
        case list():
            return next((found for branch in type_ if (found := _find_record(branch, records)) is not None), None)
        case str():
            return records.get(type_.rpartition(".")[2], records.get(type_))
        case _:
            return None
