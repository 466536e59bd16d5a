"""Compare two versions of a contract, to find messages of one version that the other cannot read, or would misread.

Avro's schema resolution only decides whether bytes can be read. This comparison also finds changes of their meaning:
logical types, digits, rounding and changed defaults. Everything here is a pure function of two record types or
versions. `tests/contracts/changes.py` has a table of changes. Each verdict in it is proved by writing with one
version and reading with the other.

`list_changes` lists all changes from one version to the next, and `find_concerns` finds the services that they affect.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from saga.contracts.contract import DEFAULT_MODE, Contract, Mode, Version
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    DecimalType,
    EnumType,
    Field,
    ForeignType,
    MapType,
    OptionalType,
    RecordType,
    ScalarType,
    Type,
    describe_type,
    full_name,
    meaning_of,
)

Direction: TypeAlias = Literal["backward", "forward"]
"""Direction of reading. `backward`: the newer version reads what the older one wrote; `forward`: the older version
reads what the newer one wrote."""
Effect: TypeAlias = Literal["fails", "misread", "default"]
"""Effect on the reader. `fails`: some messages cannot be read; `misread`: values are silently read as something else;
`default`: the reader's default replaces a value that was not written, or that the reader does not know."""

_PROMOTED: Final = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}
"""Pairs of primitive types that Avro promotes: the writer's type, and the reader's type to which it is converted."""
FOREIGN: Final = "foreign-type"
"""Name of the rule about types in foreign schemas that contracts do not support."""
_ROUNDED: Final = {("int", "float"), ("long", "float"), ("long", "double")}

_MEANING_RULES: Final = ("type", "logical-type", "rounding", "default-changed", "utf-8", "uuid")
"""Rules whose findings may mean that a field has changed its meaning."""

Kind: TypeAlias = Literal[
    "added", "removed", "renamed", "order", "type", "symbols", "default", "aliases", "doc", "sensitive", "attribute"
]
_KINDS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "no-default": ("added", "removed", "renamed"),
    "unwritten": ("added", "removed", "renamed"),
    "symbols": ("symbols",),
    "default-changed": ("default", "type"),
    "alias": ("renamed", "aliases", "added", "removed"),
}
"""For each rule, the kinds of change to which its findings may belong. Findings of all other rules belong to a change
of kind `type`."""
_ATTRIBUTES: Final = (
    "topic",
    "key",
    "owner",
    "starts",
    "outcome",
    "produced_by",
    "consumed_by",
    "principal",
    "id_header",
    "id_field",
    "subject",
    "trusted_time",
    "namespace",
    "upcasts",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompatibilityFinding:
    """The effect on one field when a message of one version is read with another."""

    rule: str
    """Name of the rule, such as `no-default`."""
    path: str
    """Path of the field in the reader's version, such as `items[].price`."""
    effect: Effect
    says: str
    """What is wrong. The text continues a sentence whose subject is the path."""
    remedy: str = ""
    """How to change the newer version instead; empty if there is no usual remedy."""

    @property
    def breaks(self) -> bool:
        """True if some messages cannot be read, or are misread."""
        return self.effect != "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class CompatibilityBreak:
    """A finding that the compatibility mode of the newer version forbids."""

    newer: Version
    older: Version
    direction: Direction
    finding: CompatibilityFinding


def compare_schemas(writer: RecordType, reader: RecordType) -> tuple[CompatibilityFinding, ...]:
    """Return the effects of reading one version's messages with another version. The result is empty if every value is
    read as it was written."""
    return tuple(_compare_records(writer, reader, ""))


def find_breaks(contract: Contract) -> Iterator[CompatibilityBreak]:
    """Yield the findings that the compatibility modes of a contract's versions forbid.

    Each version is compared with the version before it, or with all earlier ones if its mode is transitive.
    """
    for newer in contract.versions[1:]:
        for older in reversed(contract.versions[: newer.number - 1]):
            for direction in promised_directions(newer.compatible):
                if direction == "backward" and older.number in newer.upcasts:
                    continue
                writer, reader = (older, newer) if direction == "backward" else (newer, older)
                found = [finding for finding in compare_schemas(writer.record, reader.record) if finding.breaks]
                if direction == "forward" and not found:
                    found = _find_other_meaning(contract, newer, older)
                for finding in found:
                    yield CompatibilityBreak(newer=newer, older=older, direction=direction, finding=finding)
            if not newer.compatible.endswith("_transitive"):
                break


def _find_other_meaning(contract: Contract, newer: Version, older: Version) -> list[CompatibilityFinding]:
    """Report that an older version would read messages with another meaning, although the schemas fit: a version
    between the two has the meaning of the newer one, and its mode does not let older ones read it."""
    steps = [
        step
        for step in contract.versions[older.number : newer.number - 1]
        if older.number in step.upcasts
        and step.number not in newer.upcasts
        and "forward" not in promised_directions(step.compatible)
    ]
    return [
        CompatibilityFinding(
            rule="upcasts",
            path="",
            effect="misread",
            says=f"they mean the same as those of v{step.number}, which it must not read",
        )
        for step in steps[:1]
    ]


def promises_forward(newer: Version, older: Version) -> bool:
    """Return whether a version promises that an older version reads its messages."""
    is_covered = newer.compatible.endswith("_transitive") or newer.number == older.number + 1
    return is_covered and "forward" in promised_directions(newer.compatible)


def suggest_remedy(finding: CompatibilityFinding, newer: Version, older: Iterable[int]) -> str:
    """Return what to do about a finding for older messages that a newer version reads. If the field may have changed
    its meaning, the text also offers an upcaster.

    Args:
        finding: the finding.
        newer: the newer version.
        older: numbers of the older versions.
    """
    if finding.rule not in _MEANING_RULES:
        return finding.remedy
    upcasts = sorted({*newer.upcasts, *older})
    return (
        f'{finding.remedy}; or, if it means something else now, declare "upcasts": {upcasts} and "compatible": '
        f'"backward_transitive", and have an upcaster read the older messages'
    )


def promised_directions(mode: Mode) -> tuple[Direction, ...]:
    """Return the directions of reading that a compatibility mode promises."""
    match mode.removesuffix("_transitive"):
        case "full":
            return ("backward", "forward")
        case "backward":
            return ("backward",)
        case "forward":
            return ("forward",)
        case _:
            return ()


def _compare_types(writer: Type, reader: Type, at: str) -> Iterator[CompatibilityFinding]:
    match writer, reader:
        case OptionalType(one), OptionalType(other):
            yield from _compare_types(one, other, at)
        case OptionalType(one), _:
            yield CompatibilityFinding(
                rule="optional",
                path=at,
                effect="fails",
                says="may be absent in what is written, and is not optional where it is read",
                remedy="leave it as optional as it was, or add a new field",
            )
            yield from _compare_types(one, reader, at)
        case _, OptionalType(other):
            yield from _compare_types(writer, other, at)
        case ForeignType(), _:
            yield from _compare_foreign(writer, reader, at)
        case ArrayType(one), ArrayType(other):
            yield from _compare_types(one, other, f"{at}[]")
        case MapType(one), MapType(other):
            yield from _compare_types(one, other, f"{at}{{}}")
        case RecordType(), RecordType():
            yield from _compare_names(writer, reader, at)
            yield from _compare_records(writer, reader, at)
        case EnumType(), EnumType():
            yield from _compare_names(writer, reader, at)
            yield from _compare_symbols(writer, reader, at)
        case ((ScalarType() | DecimalType()), (ScalarType() | DecimalType())):
            yield from _compare_scalars(writer, reader, at)
        case _:
            yield _report_other_type(writer, reader, at)


def _compare_foreign(writer: ForeignType, reader: Type, at: str) -> Iterator[CompatibilityFinding]:
    """Report a value of an unsupported type if the reader's type could misread it.

    Text can always be read as text, whatever it means to the sender.
    """
    if writer.is_plain or writer.kind == "string":
        found = list(_compare_types(ScalarType(writer.kind), reader, at))
    else:
        found = [_report_other_type(writer, reader, at)]
    if any(finding.breaks for finding in found):
        yield CompatibilityFinding(
            rule=FOREIGN,
            path=at,
            effect="misread",
            says=f"is written as {describe_type(writer)} and read as {describe_type(reader)}: contracts do not have "
            "that type, so its meaning is not known",
            remedy="have its sender write a type that contracts have",
        )


def _compare_records(writer: RecordType, reader: RecordType, at: str) -> Iterator[CompatibilityFinding]:
    taken, clashes = _resolve_fields(writer, reader)
    written = {field.name: field for field in writer.fields}
    aliased = any(field.aliases for field in (*writer.fields, *reader.fields))
    for field in reader.fields:
        path = f"{at}.{field.name}" if at else field.name
        source = taken.get(field.name)
        if aliased:
            fails = field.name in clashes or (source is None and field.default is MISSING)
            yield from _check_aliases(field, writer, path, "fails" if fails else "misread")
        if source is None:
            if not any(name in written for name in (field.name, *field.aliases)):
                yield _report_unwritten(field, path)
            continue
        found = list(_compare_types(source.type, field.type, path))
        yield from found
        if not any(finding.breaks for finding in found) and _default_changed(source, field):
            yield CompatibilityFinding(
                rule="default-changed",
                path=path,
                effect="misread",
                says=f"has the default {_show_default(source)} where it is written, and {_show_default(field)} where "
                "it is read: messages that do not have it mean two things, and equal events of a Client are no longer "
                "the same one",
                remedy="leave the default, or add a new field",
            )


def _check_aliases(field: Field, writer: RecordType, path: str, effect: Effect) -> Iterator[CompatibilityFinding]:
    """Report a field if aliases make it unclear from which field of the writer it is read.

    In a contract an alias is never the name of another field, but in a foreign schema it may be.

    Args:
        field: the field of the reader.
        writer: the record of the writer.
        path: path of the field.
        effect: the effect of reading the field as fastavro does.
    """
    sources = [source for source in writer.fields if _may_be_read_from(source, field)]
    if not sources:
        return
    if len(sources) > 1:
        yield _report_ambiguous(sources, path, effect)
    elif renamed := [f.name for f in writer.fields if field.name == sources[0].name and field.name in f.aliases]:
        yield CompatibilityFinding(
            rule="alias",
            path=path,
            effect="misread",
            says=f"is another field where it is written: the aliases there say that it is {renamed[0]} now",
            remedy="give the new field a name that no version had",
        )


def _resolve_fields(writer: RecordType, reader: RecordType) -> tuple[dict[str, Field], set[str]]:
    """Match the reader's fields with the writer's, as fastavro does.

    Return the writer's field for each reader's field, by the name of the reader's field, and the names of the reader's
    fields that match two fields of the writer. fastavro raises an error for these.
    """
    aliases = {alias: field for field in reader.fields for alias in field.aliases}
    left = {field.name: field for field in reader.fields}
    taken: dict[str, Field] = {}
    clashes = set()
    for source in writer.fields:
        field = left.get(source.name) or aliases.get(source.name)
        if field is None:
            continue
        if field.name in left:
            taken[field.name] = source
            del left[field.name]
        else:
            clashes.add(field.name)
    return taken, clashes


def _may_be_read_from(source: Field, field: Field) -> bool:
    """Return whether the reader's field may be read from this field of the writer."""
    return source.name == field.name or source.name in field.aliases


def _default_changed(writer: Field, reader: Field) -> bool:
    if writer.default is MISSING or reader.default is MISSING:
        return False
    return not _equal(writer.type, writer.default, reader.type, reader.default)


def _equal(writer: Type, one: object, reader: Type, other: object) -> bool:
    """Return whether raw values of two versions are equal. In records, only fields that both versions have are
    compared."""
    match writer, one, reader, other:
        case OptionalType(inner), _, _, _:
            return _equal(inner, one, reader, other)
        case _, _, OptionalType(inner), _:
            return _equal(writer, one, inner, other)
        case ArrayType(items), list(), ArrayType(others), list():
            return len(one) == len(other) and all(_equal(items, a, others, b) for a, b in zip(one, other, strict=True))
        case MapType(values), dict(), MapType(others), dict():
            return one.keys() == other.keys() and all(_equal(values, one[key], others, other[key]) for key in one)
        case RecordType(), dict(), RecordType(), dict():
            pairs = [(a, b) for a in writer.fields for b in reader.fields if _may_be_read_from(a, b)]
            return all(_equal(a.type, one[a.name], b.type, other[b.name]) for a, b in pairs)
        case _, bytes(), _, str():
            return one == other.encode()
        case _, str(), _, bytes():
            return one.encode() == other
        case _:
            return one == other


def _report_unwritten(field: Field, path: str) -> CompatibilityFinding:
    if field.default is MISSING:
        return CompatibilityFinding(
            rule="no-default",
            path=path,
            effect="fails",
            says="is not in what is written, and has no default where it is read",
            remedy="give it a default in the first version that has it, or an alias if it was renamed",
        )
    return CompatibilityFinding(
        rule="unwritten",
        path=path,
        effect="default",
        says=f"is not in what is written: its default {_show_default(field)} stands in",
    )


def _report_ambiguous(sources: list[Field], path: str, effect: Effect) -> CompatibilityFinding:
    """Report that a field could be read from several fields of the writer."""
    names = ", ".join(source.name for source in sources)
    return CompatibilityFinding(
        rule="alias",
        path=path,
        effect=effect,
        says=f"could be read from {names}: its name and its aliases do not say from which",
        remedy="take the alias away, or give the field a name that no version had",
    )


def _compare_names(
    writer: RecordType | EnumType, reader: RecordType | EnumType, at: str
) -> Iterator[CompatibilityFinding]:
    """Report a named type that has another name in the reader's version, without an alias for the writer's name."""
    known = {full_name(alias, reader.namespace) for alias in reader.aliases}
    if writer.name != reader.name and full_name(writer.name, writer.namespace) not in known:
        yield CompatibilityFinding(
            rule="type-name",
            path=at,
            effect="fails",
            says=f"is written as {describe_type(writer)} and read as {describe_type(reader)}, which has no alias for "
            "that name",
            remedy=f'keep the name, for an alias ("aliases": ["{writer.name}"]) helps in one direction alone',
        )


def _compare_symbols(writer: EnumType, reader: EnumType, at: str) -> Iterator[CompatibilityFinding]:
    unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if unknown and reader.default is None:
        yield CompatibilityFinding(
            rule="symbols",
            path=at,
            effect="fails",
            says=f"is written with {', '.join(unknown)}, which is not known where it is read, "
            f"and {describe_type(reader)} has no default",
            remedy="keep all symbols; only an enum that has a default from its first version on can have new ones",
        )
    elif unknown:
        yield CompatibilityFinding(
            rule="symbols",
            path=at,
            effect="default",
            says=f"is written with {', '.join(unknown)}, which is not known where it is read: "
            f"its default {reader.default} stands in",
        )


def _compare_scalars(
    writer: ScalarType | DecimalType, reader: ScalarType | DecimalType, at: str
) -> Iterator[CompatibilityFinding]:
    if writer == reader:
        return
    pair = primitive(writer), primitive(reader)
    if pair[0] != pair[1] and pair not in _PROMOTED:
        yield _report_other_type(writer, reader, at)
        return
    words = f"is written as {describe_type(writer)} and read as {describe_type(reader)}"
    new = "give the field another name"
    match writer, reader:
        case DecimalType(precision, scale), DecimalType(limit, other) if scale == other:
            if precision > limit:
                says = f"{words}: amounts of more than {limit} digits cannot be read"
                yield CompatibilityFinding(
                    rule="precision", path=at, effect="fails", says=says, remedy="leave its precision"
                )
        case ScalarType("uuid"), ScalarType("string"):
            return
        case _, ScalarType("uuid"):
            says = f"{words}: what is no UUID cannot be read"
            yield CompatibilityFinding(rule="uuid", path=at, effect="fails", says=says, remedy=new)
        case _ if meaning_of(writer) != meaning_of(reader):
            says = f"{words}: the same bytes mean something else, and Avro does not look at logical types"
            yield CompatibilityFinding(rule="logical-type", path=at, effect="misread", says=says, remedy=new)
        case ScalarType("bytes"), ScalarType("string"):
            says = f"{words}: bytes that are no UTF-8 cannot be read"
            yield CompatibilityFinding(rule="utf-8", path=at, effect="fails", says=says, remedy=new)
        case _ if pair in _ROUNDED:
            says = f"{words}, in which great numbers are rounded"
            yield CompatibilityFinding(rule="rounding", path=at, effect="misread", says=says, remedy=new)
        case _:
            return


def primitive(type_: ScalarType | DecimalType) -> str:
    """Return the primitive type in which Avro encodes a value of a type."""
    match type_:
        case DecimalType():
            return "bytes"
        case ScalarType("uuid"):
            return "string"
        case ScalarType("date"):
            return "int"
        case ScalarType("timestamp-millis" | "timestamp-micros"):
            return "long"
        case ScalarType(kind):
            return kind


def _report_other_type(writer: Type, reader: Type, at: str) -> CompatibilityFinding:
    return CompatibilityFinding(
        rule="type",
        path=at,
        effect="fails",
        says=f"is written as {describe_type(writer)} and read as {describe_type(reader)}",
        remedy="leave its type, and add a field with another name",
    )


def _show_default(field: Field) -> str:
    return ascii(field.default) if isinstance(field.default, bytes) else repr(field.default)


# -------------------------------------------------------------------- differences


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaChange:
    """One change from an older version to a newer one."""

    kind: Kind
    old: str | None
    """Path of the field in the older version; `None` if the field is new."""
    new: str | None
    """Path of the field in the newer version; `None` if it was removed. Both paths are empty for a change of the record
    itself or of a contract attribute."""
    says: str
    backward: tuple[CompatibilityFinding, ...] = ()
    """Effects of reading messages of the older version with the newer one."""
    forward: tuple[CompatibilityFinding, ...] = ()
    """Effects of reading messages of the newer version with the older one."""

    @property
    def path(self) -> str:
        """Path to show to people: the path in the newer version, or in the older one if the field was removed."""
        return (self.old if self.new is None else self.new) or ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumer:
    """A service that consumes a contract, according to its manifest."""

    service: str
    fields: frozenset[str] | None
    """Paths of the fields that the service's code may read, such as `total` or `address.street`; `None` for all fields.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Concern:
    """The effect of a change on one consumer."""

    service: str
    change: SchemaChange
    direction: Direction
    """When the effect occurs. `forward`: until the service is deployed with the newer version, because until then it
    reads newer messages with the older version. `backward`: from then on, while older messages remain."""
    effect: Literal["fails", "misread", "default", "gone"]
    """The effect, as in `CompatibilityFinding`. In addition `gone`: the code may read a field that the newer version
    does not have."""
    says: str


def list_changes(old: Version, new: Version) -> tuple[SchemaChange, ...]:
    """List the changes from an older version to a newer one, each with its effects in both directions."""
    changes = [*_compare_attributes(old.schema, new.schema), *_changes_of_record(old.written, new.written, "", "")]
    for finding in compare_schemas(old.record, new.record):
        place = _find_change(finding, [change.new for change in changes], changes)
        changes[place] = replace(changes[place], backward=(*changes[place].backward, finding))
    for finding in compare_schemas(new.record, old.record):
        place = _find_change(finding, [change.old for change in changes], changes)
        changes[place] = replace(changes[place], forward=(*changes[place].forward, finding))
    return tuple(changes)


def find_concerns(changes: Iterable[SchemaChange], consumers: Iterable[Consumer]) -> Iterator[Concern]:
    """Yield the effects of changes on consumers.

    A message that cannot be read concerns every consumer. A value that is misread or replaced by a default, and a field
    that was removed or renamed, concern only consumers whose code may read the field.
    """
    for consumer in consumers:
        for change in changes:
            for direction, findings in (("forward", change.forward), ("backward", change.backward)):
                for finding in findings:
                    if finding.effect == "fails" or _reads(consumer, finding.path):
                        yield Concern(
                            service=consumer.service,
                            change=change,
                            direction="forward" if direction == "forward" else "backward",
                            effect=finding.effect,
                            says=f"{finding.path} {finding.says}",
                        )
            if change.kind in ("removed", "renamed") and change.old is not None and _reads(consumer, change.old):
                yield Concern(
                    service=consumer.service,
                    change=change,
                    direction="backward",
                    effect="gone",
                    says=f"its code may read {change.old}, which the newer version does not have"
                    + (f": it is {change.new} there" if change.new is not None else ""),
                )


def _reads(consumer: Consumer, path: str) -> bool:
    """Return whether a consumer's code may read a field, something inside the field, or a field that contains it."""
    if consumer.fields is None:
        return True
    plain = path.replace("[]", "").replace("{}", "")
    return any(f"{read}.".startswith(f"{plain}.") or f"{plain}.".startswith(f"{read}.") for read in consumer.fields)


def _find_change(finding: CompatibilityFinding, paths: list[str | None], changes: list[SchemaChange]) -> int:
    """Return the index of the change to which a finding belongs.

    If a field has its older name back, only the older version sees that both fields are one, by its alias. Then the
    finding belongs to the change of the field around it, which was removed.

    Each finding belongs to a change: `tests/contracts/test_any_change.py` tests this.
    """
    kinds = _KINDS.get(finding.rule, ("type",))
    exact = (i for i, path in enumerate(paths) if path == finding.path and changes[i].kind in kinds)
    around = (
        i for i, path in enumerate(paths) if path and re.match(rf"{re.escape(path)}(?![A-Za-z0-9_])", finding.path)
    )
    found = next(exact, None)
    return max(around, key=lambda i: len(paths[i] or "")) if found is None else found


def _compare_attributes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[SchemaChange]:
    # False and an empty list are equivalent to leaving the attribute out.
    pairs = [(name, old.get(name) or None, new.get(name) or None) for name in _ATTRIBUTES]
    pairs.append(("compatible", old.get("compatible", DEFAULT_MODE), new.get("compatible", DEFAULT_MODE)))
    for name, before, after in pairs:
        if before != after:
            yield SchemaChange(
                kind="attribute", old="", new="", says=f'"{name}": {_show_value(before)} -> {_show_value(after)}'
            )


def _show_value(value: object) -> str:
    return "none" if value is None else repr(value)


def _changes_of_record(old: RecordType, new: RecordType, at: str, there: str) -> Iterator[SchemaChange]:
    """Yield the changes inside a record. `at` is its path in the older version, `there` its path in the newer one."""
    if old.doc != new.doc:
        yield SchemaChange(kind="doc", old=at, new=there, says="its description")
    if old.aliases != new.aliases:
        yield SchemaChange(
            kind="aliases", old=at, new=there, says=f"aliases: {_names(old.aliases)} -> {_names(new.aliases)}"
        )
    sources = _match_fields(old, new)
    for field in new.fields:
        path = _join(there, field.name)
        source = sources.get(field.name)
        if source is None:
            yield SchemaChange(
                kind="added", old=None, new=path, says=f"added: {describe_type(field.type)}{_describe_default(field)}"
            )
        else:
            yield from _changes_of_field(source, field, _join(at, source.name), path)
    source_names = {source.name for source in sources.values()}
    for field in old.fields:
        if field.name not in source_names:
            path = _join(at, field.name)
            yield SchemaChange(
                kind="removed",
                old=path,
                new=None,
                says=f"removed: {describe_type(field.type)}{_describe_default(field)}",
            )
    order = [sources[field.name].name for field in new.fields if field.name in sources]
    if order != [field.name for field in old.fields if field.name in source_names]:
        yield SchemaChange(kind="order", old=at, new=there, says="its fields stand in another order")


def _match_fields(old: RecordType, new: RecordType) -> dict[str, Field]:
    """Pair each field of the newer record with the same field of the older record, found by alias or else by name."""
    before = {field.name: field for field in old.fields}
    renamed = {
        alias: field.name
        for field in new.fields
        for alias in field.aliases
        if alias in before and field.name not in before
    }
    sources = {name: before[alias] for alias, name in renamed.items()}
    for field in new.fields:
        if field.name in before and field.name not in renamed and field.name not in sources:
            sources[field.name] = before[field.name]
    return sources


def _changes_of_field(old: Field, new: Field, at: str, there: str) -> Iterator[SchemaChange]:
    if old.name != new.name:
        alias = f", alias {old.name}"
        yield SchemaChange(kind="renamed", old=at, new=there, says=f"renamed: {old.name} -> {new.name}{alias}")
    elif old.aliases != new.aliases:
        yield SchemaChange(
            kind="aliases", old=at, new=there, says=f"aliases: {_names(old.aliases)} -> {_names(new.aliases)}"
        )
    yield from _changes_of_type(old.type, new.type, at, there)
    if _describe_default(old) != _describe_default(new):
        before, after = (_describe_default(field).removeprefix(", default ") or "none" for field in (old, new))
        yield SchemaChange(kind="default", old=at, new=there, says=f"default: {before} -> {after}")
    if old.sensitive != new.sensitive:
        yield SchemaChange(
            kind="sensitive", old=at, new=there, says="sensitive" if new.sensitive else "no longer sensitive"
        )


def _changes_of_type(old: Type, new: Type, at: str, there: str) -> Iterator[SchemaChange]:
    match old, new:
        case OptionalType(before), OptionalType(after):
            yield from _changes_of_type(before, after, at, there)
        case ArrayType(before), ArrayType(after):
            yield from _changes_of_type(before, after, f"{at}[]", f"{there}[]")
        case MapType(before), MapType(after):
            yield from _changes_of_type(before, after, f"{at}{{}}", f"{there}{{}}")
        case RecordType(), RecordType():
            if old.name != new.name:
                yield _change_of_type(old, new, at, there)
            yield from _changes_of_record(old, new, at, there)
        case EnumType(), EnumType():
            if old.name != new.name:
                yield _change_of_type(old, new, at, there)
            yield from _changes_of_enum(old, new, at, there)
        case _ if old != new:
            yield _change_of_type(old, new, at, there)
            # A type that became optional, or is no longer optional, may also have changed inside.
            before, after = (getattr(type_, "inner", type_) for type_ in (old, new))
            if type(before) is type(after) and isinstance(before, RecordType | EnumType | ArrayType | MapType):
                yield from _changes_of_type(before, after, at, there)
        case _:
            return


def _changes_of_enum(old: EnumType, new: EnumType, at: str, there: str) -> Iterator[SchemaChange]:
    more = [symbol for symbol in new.symbols if symbol not in old.symbols]
    less = [symbol for symbol in old.symbols if symbol not in new.symbols]
    if more or less:
        parts = [f"added {', '.join(more)}"] if more else []
        parts += [f"removed {', '.join(less)}"] if less else []
        yield SchemaChange(kind="symbols", old=at, new=there, says=f"symbols: {'; '.join(parts)}")
    elif old.symbols != new.symbols:
        yield SchemaChange(kind="order", old=at, new=there, says="its symbols stand in another order")
    if old.default != new.default:
        says = f"default of {describe_type(new)}: {old.default or 'none'} -> {new.default or 'none'}"
        yield SchemaChange(kind="default", old=at, new=there, says=says)
    if old.aliases != new.aliases:
        yield SchemaChange(
            kind="aliases", old=at, new=there, says=f"aliases: {_names(old.aliases)} -> {_names(new.aliases)}"
        )


def _change_of_type(old: Type, new: Type, at: str, there: str) -> SchemaChange:
    return SchemaChange(kind="type", old=at, new=there, says=f"type: {describe_type(old)} -> {describe_type(new)}")


def _describe_default(field: Field) -> str:
    return "" if field.default is MISSING else f", default {field.default!r}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
