"""Load a contracts folder with `<topic>/<Name>.v<N>.avsc` and `<topic>/topic.json` files, and report all its problems
at once.

Three rules concern all versions of a contract together. Attributes such as topic and key never change (`Terms`). A
field that is sensitive in one version is sensitive in all. `"upcasts"` lists every older version that schema resolution
cannot read.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType, to_parsing_canonical_form

from saga.contracts.contract import MODES, URN, Contract, Version, fingerprint_of
from saga.contracts.json_form import read_json
from saga.contracts.schema import (
    ArrayType,
    MapType,
    OptionalType,
    RecordType,
    ScalarType,
    Type,
    is_same_field,
    meaning_changes,
)
from saga.contracts.schema_parser import read_record
from saga.errors import ContractError
from saga.messages import Topic

_FILE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)\.v(?P<number>[1-9][0-9]*)\.avsc")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_OWNER = re.compile(r"[a-z0-9][a-z0-9-]*")
ATTRIBUTES = (
    "topic",
    "key",
    "subject",
    "owner",
    "starts",
    "outcome",
    "produced_by",
    "consumed_by",
    "principal",
    "id_header",
    "id_field",
    "trusted_time",
    "compatible",
    "upcasts",
    "lint",
)
"""Attributes of a contract file that are not part of Avro's schema of a record."""
RETENTION_DAYS_MAX = 10_000_000_000
"""Largest retention of a topic. Brokers keep it in milliseconds, as a number of 64 bits."""
_ENVELOPE = re.compile(r"ce_(id|source|type|time|subject|dataschema|specversion|saga.*)|content-type|traceparent")
_HEADER = re.compile(r"[!-~]{1,100}")
_ID_TYPES = tuple(ScalarType(kind) for kind in ("string", "uuid", "int", "long"))
_AVROS = ("type", "name", "namespace", "doc", "aliases", "fields")


class Terms(NamedTuple):
    """The attributes of a contract that must be the same in all versions."""

    topic: str
    key: str
    owner: str
    starts: bool = False
    outcome: Literal["success", "failure"] | None = None
    produced_by: str | None = None
    consumed_by: str | None = None
    namespace: str = ""


@dataclass(frozen=True)
class _File:
    """An `.avsc` file that was parsed without problems."""

    place: str
    version: Version
    terms: Terms


def load(folder: Path, schemas: str = URN) -> tuple[Mapping[str, Contract], Mapping[str, Topic]]:
    """Return the contracts and the topics of a folder, each by name and sorted.

    Raises `ContractError` with all problems in the folder.

    Args:
        folder: the contracts folder.
        schemas: prefix of the URIs of the schemas.
    """
    if not folder.is_dir():
        raise ContractError(f"{folder} cannot be read:", ["there is no such folder: make it, or set SAGA_CONTRACTS"])
    problems: list[str] = []
    files: list[_File] = []
    numbers: dict[tuple[str, str], list[int]] = defaultdict(list)
    for path in sorted(folder.rglob("*.avsc")):
        place = path.relative_to(folder).as_posix()
        match = _FILE.fullmatch(path.name)
        if match is None or path.parent.parent != folder or not _TOPIC.fullmatch(path.parent.name):
            problems.append(f"{place}: a schema belongs at <topic>/<Name>.v<N>.avsc, with N from 1")
            continue
        numbers[path.parent.name, match["name"]].append(int(match["number"]))
        read, wrong = _read_version_file(path, place, match["name"], int(match["number"]))
        problems += [f"{place}: {problem}" for problem in wrong]
        if read is not None:
            files.append(read)
    problems += _check_numbers(numbers)
    problems += _check_owners(files)
    problems += _check_agreement(files)
    topics = _read_topics(folder, {topic for topic, _ in numbers}, problems)
    problems += _check_id_fields(files, topics)
    if problems:
        raise ContractError(f"the contracts in {folder} cannot be used:", problems)
    return _make_contracts(files, schemas, topics), topics


def read_version(path: Path) -> Version:
    """Read a version from a file `<Name>.v<N>.avsc` in any folder. Raises `ContractError`."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        raise ContractError(f"{path} cannot be used:", ["call it <Name>.v<N>.avsc, with N from 1"])
    schema, wrong = _read_json_file(path)
    if not wrong:
        return make_version(schema, f"{path.parent.name}/{path.stem}", match["name"], int(match["number"]))
    raise ContractError(f"{path} cannot be used:", wrong)


def make_version(schema: Any, path: str, name: str, number: int) -> Version:
    """Make a version from the JSON of its schema. Raises `ContractError` with all problems in it.

    Args:
        schema: the JSON.
        path: path of the file that contains the schema, or will contain it, without `.avsc`.
        name: name of the contract.
        number: number of the version.
    """
    topic = schema.get("topic") if isinstance(schema, dict) else None
    read, wrong = _parse_version(schema, f"{path}.avsc", name, number, topic if isinstance(topic, str) else "")
    if read is None:
        raise ContractError(f"{path}.avsc cannot be used:", wrong)
    return read.version


def make_contract(schema: Mapping[str, Any], path: str, name: str, number: int) -> Contract:
    """Make a contract with a single version from the JSON of its schema. Raises `ContractError` as `make_version`
    does."""
    topic = str(schema["topic"])
    read, wrong = _parse_version(schema, f"{path}.avsc", name, number, topic)
    if not _TOPIC.fullmatch(topic):
        wrong = [*wrong, f'"topic" is {topic!r}: a topic is letters, digits, `.`, `_` and `-`']
    if read is None or wrong:
        raise ContractError(f"{path}.avsc cannot be used:", wrong)
    return _make_contracts([read], URN, {topic: Topic(topic)})[name]


def _read_version_file(path: Path, place: str, name: str, number: int) -> tuple[_File | None, list[str]]:
    """Read a version from a file. Return the version and its problems. The version is `None` if there are any."""
    schema, wrong = _read_json_file(path)
    return (None, wrong) if wrong else _parse_version(schema, place, name, number, path.parent.name)


def _parse_version(schema: Any, place: str, name: str, number: int, topic: str) -> tuple[_File | None, list[str]]:
    """Parse the JSON of a contract file in the folder of `topic`. Return the parsed file and no problems, or `None` and
    the problems.
    """
    if not isinstance(schema, dict) or schema.get("type") != "record":
        return None, ['must be an object with "type": "record"']
    problems = [] if schema.get("name") == name else [f"the record is called {schema.get('name')!r}, the file {name!r}"]
    record, wrong = read_record(schema)
    problems += [*_check_terms(schema, topic), *check_upcasts(schema, number), *wrong]
    if record is None or problems:
        return None, problems
    key = record.field(schema["key"])
    if key is None:
        return None, [f"its key {schema['key']!r} is none of its fields"]
    if key.sensitive:
        return None, [
            f"field {key.name}: the key cannot be sensitive: it is the saga id, which appears in logs, in lists and in "
            "names of documents; take a number that reveals nothing about a person"
        ]
    if key.type not in (ScalarType("string"), ScalarType("uuid")):
        return None, [f"field {key.name}: the key must be a string (or a uuid), because it is the saga id"]
    if odd := _check_subject(schema, record):
        return None, [odd]
    if "id_field" in schema and (odd := _check_id_field(schema["id_field"], record)):
        return None, [odd]
    try:
        canonical = to_parsing_canonical_form(parse_schema(schema))
    except (SchemaParseException, UnknownType, ValueError, TypeError, KeyError) as why:
        return None, [f"is no Avro schema: {why}"]
    version = Version(
        name=name,
        number=number,
        path=place.removesuffix(".avsc"),
        schema=schema,
        fingerprint=fingerprint_of(canonical),
        record=record,
        written=record,
        upcasts=frozenset(schema.get("upcasts", ())),
    )
    return _File(place, version, Terms(**{name: schema[name] for name in Terms._fields if name in schema})), []


def _read_json_file(path: Path) -> tuple[Any, list[str]]:
    """Read JSON from a file. Return it with its problems, such as a name that occurs twice in one object."""
    try:
        read, twice = read_json(path.read_text("utf-8"))
    except (ValueError, OSError, RecursionError) as why:
        return None, [f"is no JSON: {why}"]
    return read, [f"is no JSON: the name {name!r} comes twice in one object" for name in twice[:1]]


def _check_terms(schema: dict[str, Any], folder: str) -> Iterator[str]:
    for name in ("topic", "key", "owner"):
        if name not in schema:
            yield f'"{name}" is missing'
        elif not isinstance(schema[name], str):
            yield f'"{name}" must be text, not {schema[name]!r}'
    topic, owner = schema.get("topic", folder), schema.get("owner")
    if isinstance(topic, str) and topic != folder:
        yield f'"topic" is {topic!r}, but the file is in the folder {folder!r}'
    if isinstance(owner, str) and not _OWNER.fullmatch(owner):
        yield f'"owner" is {owner!r}: the name of a service is lower case letters, digits and -'
    if not isinstance(schema.get("starts", False), bool):
        yield f'"starts" is true or false, not {schema["starts"]!r}'
    if not isinstance(schema.get("trusted_time", False), bool):
        yield f'"trusted_time" is true or false, not {schema["trusted_time"]!r}'
    if "outcome" in schema and schema["outcome"] not in ("success", "failure"):
        yield f'"outcome" is "success" or "failure", not {schema["outcome"]!r}'
    if schema.get("compatible", MODES[0]) not in MODES:
        yield f'"compatible" is one of {", ".join(MODES)}, not {schema["compatible"]!r}'
    yield from _check_parties(schema)
    yield from _check_principal(schema)
    yield from _check_id(schema)
    for name in schema:
        known = name in ATTRIBUTES or name in _AVROS
        if not known and (close := get_close_matches(name, ATTRIBUTES, n=1, cutoff=0.75)):
            yield f'"{name}" means nothing here: is it "{close[0]}"?'


def _check_parties(schema: dict[str, Any]) -> Iterator[str]:
    """Check the attributes that declare external producers and consumers."""
    for name, former in (("produced_by", "said"), ("consumed_by", "heard")):
        if name in schema and schema[name] != "external":
            yield f'"{name}" can only be "external", not {schema[name]!r}'
        if schema.get(former) == "outside":  # if the former name were ignored, clients would silently lose the event
            yield f'"{former}": "outside" is called "{name}": "external"'


def _check_principal(schema: dict[str, Any]) -> Iterator[str]:
    """Check the attribute that names the header with the principal who starts a saga."""
    header = schema.get("principal")
    if "principal" not in schema:
        return
    if not isinstance(header, str) or not _HEADER.fullmatch(header):
        yield f'"principal" is the name of a header, as in "x-user", not {header!r}'
    elif _ENVELOPE.fullmatch(header):
        yield f'"principal" is {header!r}, which says something else of each event: name a header of its sender\'s'
    if schema.get("starts") is not True or schema.get("produced_by") != "external":
        yield '"principal" says who begins a saga: it goes with "starts": true and "produced_by": "external"'


def _check_id(given: Mapping[str, Any]) -> Iterator[str]:
    """Check the attributes with which a contract or a topic declares where its messages contain their id."""
    header = given.get("id_header")
    if "id_header" in given and "id_field" in given:
        yield '"id_header" and "id_field" both say where the id of a message is: keep one of them'
    if "id_header" in given and (not isinstance(header, str) or not _HEADER.fullmatch(header)):
        yield f'"id_header" is the name of a header, as in "id", not {header!r}'
    elif isinstance(header, str) and _ENVELOPE.fullmatch(header):
        yield f'"id_header" is {header!r}, which is read anyway, or says something else: name a header of its sender\'s'
    if "id_field" in given and not isinstance(given["id_field"], str):
        yield f'"id_field" is the name of a field, not {given["id_field"]!r}'


def _check_id_field(name: str, record: RecordType) -> str | None:
    """Check the field that is declared to contain the message id. Return the problem; `None` if there is none."""
    field = record.field(name)
    if field is None:
        return f'its "id_field" {name!r} is none of its fields'
    if field.sensitive or field.type not in _ID_TYPES:
        return f"field {name}: the id of a message is a string, a uuid, an int or a long that is not sensitive"
    return None


def _check_subject(schema: Mapping[str, Any], record: RecordType) -> str | None:
    """Check the field that identifies the subject of an event. Return the problem; `None` if there is none."""
    name = schema.get("subject", schema["key"])
    subject = record.field(name) if isinstance(name, str) else None
    if subject is None:
        return f'its "subject" {name!r} is none of its fields'
    if subject.sensitive or subject.type not in (ScalarType("string"), ScalarType("uuid")):
        return f"field {name}: the subject is a string or a uuid that is not sensitive: its key is found by it"
    return None


def _check_numbers(numbers: Mapping[tuple[str, str], list[int]]) -> Iterator[str]:
    """Report gaps in the version numbers, and contract names that occur in two folders."""
    for (topic, name), found in numbers.items():
        for number in sorted(set(range(1, max(found))) - set(found)):
            yield f"{topic}/{name}.v{number}.avsc: is missing, though v{max(found)} is there: keep every version"
    homes = defaultdict(list)
    for topic, name in numbers:
        homes[name].append(topic)
    for name, topics in homes.items():
        for topic in topics[1:]:
            yield f"{topic}/{name}: the name is taken by {topics[0]}/{name}; names are unique over all topics"


def _check_owners(files: list[_File]) -> Iterator[str]:
    """Report topics that have more than one owner, and outcomes of one kind of saga that have more than one owner."""
    of_topic: dict[str, _File] = {}
    of_kind: dict[str, _File] = {}
    for file in files:
        first = of_topic.setdefault(file.terms.topic, file)
        if first.terms.owner != file.terms.owner:
            yield (
                f"{file.place}: its owner is {file.terms.owner!r}, that of {first.place} is {first.terms.owner!r}; "
                f"a topic has one owner: give each its own topic"
            )
        if file.terms.outcome is None:
            continue
        first = of_kind.setdefault(file.terms.key, file)
        if first.terms.owner != file.terms.owner:
            yield (
                f"{file.place}: is an outcome owned by {file.terms.owner!r}, {first.place} one owned by "
                f"{first.terms.owner!r}; one service decides how a saga of kind {file.terms.key!r} ends"
            )


def _check_agreement(files: list[_File]) -> Iterator[str]:
    """Report versions of one contract that differ in attributes that must be the same in all of them."""
    for group in _group_by_contract(files):
        places = {file.version.number: file.place for file in group}
        yield from (f"{places[number]}: {why}" for number, why in check_upcast_steps([file.version for file in group]))
        first = group[0]
        for file in group[1:]:
            for name, then, now in zip(Terms._fields, first.terms, file.terms, strict=True):
                if then != now:
                    yield f'{file.place}: "{name}" is {now!r}, in {first.place} {then!r}; it never changes'
        for one, other in combinations(group, 2):
            changes = meaning_changes(one.version.record, other.version.record)
            if changes and one.version.fingerprint == other.version.fingerprint:
                yield (
                    f"{other.place}: has the same fingerprint as {one.place}, but other logical types, so one would be "
                    f"read as the other: {'; '.join(changes)}; give the field another name"
                )
            elif changes and one.version.number not in other.version.upcasts:
                yield (
                    f"{other.place}: its logical types are not those of {one.place}, and Avro does not look at them: "
                    f"{'; '.join(changes)}; give the field another name, or have an upcaster read the older version: "
                    f'"upcasts": [{one.version.number}]'
                )


def _group_by_contract(files: list[_File]) -> Collection[list[_File]]:
    """Group files by contract, each group ordered by version number."""
    versions: dict[str, list[_File]] = defaultdict(list)
    for file in sorted(files, key=lambda file: file.version.number):
        versions[file.version.path.rpartition(".v")[0]].append(file)
    return versions.values()


def _read_topics(folder: Path, named: set[str], problems: list[str]) -> dict[str, Topic]:
    """Read the topics of all folders that contain contracts. Append problems of `topic.json` files to `problems`."""
    topics = {name: Topic(name) for name in sorted(named)}
    for path in sorted(folder.rglob("topic.json")):
        place, name = path.relative_to(folder).as_posix(), path.parent.name
        if path.parent.parent != folder or name not in named:
            problems.append(f"{place}: there is no contract beside it")
            continue
        given, wrong = _read_json_file(path)
        wrong = wrong or list(_check_topic(given))
        problems += [f"{place}: {problem}" for problem in wrong]
        if not wrong:
            topics[name] = Topic(name, **given)
    return topics


def _check_id_fields(files: list[_File], topics: Mapping[str, Topic]) -> Iterator[str]:
    """Check that each contract of a topic has the field that the topic declares as the field of the message id."""
    for group in _group_by_contract(files):
        newest = group[-1]
        name = topics[newest.terms.topic].id_field
        if name is None or not newest.version.schema.keys().isdisjoint(("id_header", "id_field")):
            continue
        if odd := _check_id_field(name, newest.version.record):
            yield f"{newest.place}: {odd.replace('its', 'the topic', 1)}"


def _check_topic(given: object) -> Iterator[str]:
    if not isinstance(given, dict):
        yield 'must be an object: {"partitions": 12, "retention_days": 7}'
        return
    yield from _check_id(given)
    for name, value in given.items():
        match name:
            case "id_header" | "id_field":
                pass
            case "partitions":
                if type(value) is not int or not 1 <= value <= 10_000:
                    yield f'"partitions" is a whole number from 1 to 10000, not {value!r}'
            case "retention_days":
                number = type(value) in (int, float) and 0 < value <= RETENTION_DAYS_MAX
                if value is not None and not number:
                    yield f'"retention_days" is a number above 0, or null for ever, not {value!r}'
            case "wire":
                if value not in ("single-object", "registry"):
                    yield f'"wire" is "single-object" or "registry", not {value!r}'
            case _:
                known = '"partitions", "retention_days", "wire", "id_header" and "id_field"'
                yield f'"{name}" means nothing here; there are {known}'


def _make_contracts(files: list[_File], schemas: str, topics: Mapping[str, Topic]) -> dict[str, Contract]:
    contracts = {}
    for group in sorted(_group_by_contract(files), key=lambda group: group[0].version.name):
        name, terms, newest = group[0].version.name, group[0].terms._asdict(), group[-1].version
        produced_by, consumed_by = terms.pop("produced_by"), terms.pop("consumed_by")
        topic = topics[terms["topic"]]
        declares = newest.schema if {"id_header", "id_field"} & newest.schema.keys() else topic._asdict()
        contracts[name] = Contract(
            **terms,
            name=name,
            produced_externally=produced_by == "external",
            consumed_externally=consumed_by == "external",
            doc=newest.record.doc,
            schemas=schemas,
            wire=topic.wire,
            id_header=declares.get("id_header"),
            id_field=declares.get("id_field"),
            versions=_mark_in_all_versions([file.version for file in group]),
        )
    return contracts


def _mark_in_all_versions(versions: list[Version]) -> tuple[Version, ...]:
    """Return the versions after marking each field as sensitive in all of them if any of them marks it."""
    records = merge_all_marks([version.written for version in versions])
    return tuple(replace(version, record=record) for version, record in zip(versions, records, strict=True))


# -------------------------------------------------------------------- upcasts


def check_upcasts(schema: Mapping[str, Any], number: int) -> Iterator[str]:
    """Check the attribute `"upcasts"` in the file of version `number`. The other versions are not needed for this."""
    given = schema.get("upcasts", [])
    if not isinstance(given, list) or any(type(each) is not int for each in given) or len(set(given)) < len(given):
        yield f'"upcasts" is a list of numbers of older versions, each once, as [1], not {given!r}'
        return
    for each in given:
        if not 1 <= each < number:
            yield f'"upcasts" names version {each}: it names versions before this one, {_describe_range(number)}'


def _describe_range(number: int) -> str:
    return "of which there are none" if number == 1 else f"from 1 to {number - 1}"


def check_upcast_steps(versions: Sequence[Version]) -> Iterator[tuple[int, str]]:
    """Check `"upcasts"` across all versions of one contract. Yield each problem with the number of its version.

    If one version reads another without an upcaster, the fields of both have the same meaning. So if version 3 needs an
    upcaster for version 2, and version 2 reads version 1 without one, then version 3 needs an upcaster for version 1,
    too. If `"upcasts"` did not list it, messages of version 1 would silently be misread. The same holds for a version
    with the fingerprint of an upcast one: a reader takes messages of both for those of the newer of the two.

    Args:
        versions: the existing versions, oldest first.
    """
    if not any(version.upcasts for version in versions):
        return
    wanting: dict[tuple[int, int], str] = {}
    for first, second, third in combinations(versions, 3):
        one, two = first.number, second.number
        if two in third.upcasts and one not in third.upcasts and one not in second.upcasts:
            wanting[third.number, one] = f"version {two}, which it upcasts, reads version {one} as itself"
        if one in second.upcasts and not {one, two} & third.upcasts:
            wanting[third.number, one] = f"version {two} upcasts it, and this one reads version {two} as itself"
        if first.fingerprint == second.fingerprint and one in third.upcasts and two not in third.upcasts:
            wanting[third.number, two] = f"it has the fingerprint of version {one}, which this one upcasts"
        if first.fingerprint == third.fingerprint and (one in second.upcasts or two in third.upcasts):
            yield (
                third.number,
                f"has the fingerprint of version {one}, and version {two} between them is another step: a reader could "
                "not know which of the two wrote a message; give a field another name",
            )
    for (number, older), why in wanting.items():
        yield number, f'"upcasts" has to name version {older}, too: {why}'
    for first, second in combinations(versions, 2):
        if first.number in second.upcasts and first.fingerprint == second.fingerprint:
            yield (
                second.number,
                f"upcasts version {first.number} and has its fingerprint: a reader could not know which of the two "
                "wrote a message, and would not call the upcaster; give a field another name",
            )


# -------------------------------------------------------------------- merged marks


def merge_all_marks(records: list[RecordType]) -> list[RecordType]:
    """Return the records of all versions of a contract. If any of them marks a field as sensitive, all of them mark it.

    Marks are passed on repeatedly, because a field may have been renamed twice: then no single alias connects its first
    name with its last.
    """
    while (merged := [merge_marks(record, records) for record in records]) != records:
        records = merged
    return records


def merge_marks(record: RecordType, others: Iterable[RecordType]) -> RecordType:
    """Return the record after marking every field as sensitive that this record or one of the others marks.

    A nested record that is used in several places gets the same marks in all places.

    Args:
        record: the record of one version.
        others: the records of other versions.
    """
    for other in others:
        record = _merge_record_marks(record, other)
    named: dict[str, set[str]] = {}
    _collect(record, named)
    made = _mark_by_name(record, named)
    assert isinstance(made, RecordType)
    return made


def find_missing_marks(written: Type, merged: Type, at: str = "") -> Iterator[str]:
    """Yield the paths of the fields that are sensitive in `merged`, the result of `merge_marks`, and that the file does
    not mark."""
    match written, merged:
        case RecordType(), RecordType():
            for field, other in zip(written.fields, merged.fields, strict=True):
                path = f"{at}.{field.name}".lstrip(".")
                if other.sensitive and not field.sensitive:
                    yield path
                else:
                    yield from find_missing_marks(field.type, other.type, path)
        case ArrayType(items), ArrayType(others):
            yield from find_missing_marks(items, others, f"{at}[]")
        case MapType(values), MapType(others):
            yield from find_missing_marks(values, others, f"{at}{{}}")
        case OptionalType(inner), OptionalType(other):
            yield from find_missing_marks(inner, other, at)
        case _:
            return


def _collect(type_: Type, named: dict[str, set[str]]) -> None:
    """Add to `named` the names of the sensitive fields in each record of a type, by the name of the record."""
    match type_:
        case RecordType(name=name, fields=fields):
            for field in fields:
                if field.sensitive:
                    named.setdefault(name, set()).add(field.name)
                _collect(field.type, named)
        case ArrayType(inner) | MapType(inner) | OptionalType(inner):
            _collect(inner, named)
        case _:
            return


def _mark_by_name(type_: Type, named: Mapping[str, set[str]]) -> Type:
    match type_:
        case RecordType(name=name, fields=fields):
            marked = named.get(name, ())
            return replace(
                type_,
                fields=tuple(
                    replace(field, sensitive=field.name in marked, type=_mark_by_name(field.type, named))
                    for field in fields
                ),
            )
        case ArrayType(inner):
            return ArrayType(_mark_by_name(inner, named))
        case MapType(inner):
            return MapType(_mark_by_name(inner, named))
        case OptionalType(inner):
            return OptionalType(_mark_by_name(inner, named))
        case _:
            return type_


def _merge_record_marks(record: RecordType, other: RecordType) -> RecordType:
    made = []
    for field in record.fields:
        for of in other.fields:
            if is_same_field(field, of):
                type_ = _merge_type_marks(field.type, of.type)
                field = replace(field, sensitive=field.sensitive or of.sensitive, type=type_)
        made.append(field)
    return replace(record, fields=tuple(made))


def _merge_type_marks(type_: Type, other: Type) -> Type:
    match type_, other:
        case OptionalType(inner), OptionalType(of):
            return OptionalType(_merge_type_marks(inner, of))
        case OptionalType(inner), _:
            return OptionalType(_merge_type_marks(inner, other))
        case _, OptionalType(of):
            return _merge_type_marks(type_, of)
        case RecordType(), RecordType():
            return _merge_record_marks(type_, other)
        case ArrayType(items), ArrayType(of):
            return ArrayType(_merge_type_marks(items, of))
        case MapType(values), MapType(of):
            return MapType(_merge_type_marks(values, of))
        case _:
            return type_
