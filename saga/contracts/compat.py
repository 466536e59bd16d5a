"""Comparison of two versions of a contract: what of the messages written with one the other cannot read, or takes for
something else.

Avro's resolution says what can be read. It does not see what bytes mean: here are also logical types, digits, rounding,
and defaults that changed. Everything is a pure function of two record types; `tests/contracts/changes.py` has the table
of changes, and each of its verdicts is shown by writing with one version and reading with the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from saga.contracts.contract import Contract, Mode, Version
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
    described,
    full_name,
    meaning_of,
)

Direction: TypeAlias = Literal["backward", "forward"]
"""Direction of reading: `backward`, the newer version reads what the older wrote; `forward`, the older what the newer
wrote."""
Effect: TypeAlias = Literal["fails", "misread", "default"]
"""Effect on whoever reads: `fails`, there are messages that cannot be read; `misread`, values come as something else,
and nothing tells; `default`, the reader's default stands in for what was not written, or is not known to it."""

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
"""Primitive types that Avro reads as another: written, read."""
FOREIGN: Final = "foreign-type"
"""Rule about types of other people's schemas that contracts cannot have."""
_ROUNDED: Final = {("int", "float"), ("long", "float"), ("long", "double")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Effect that reading with another version has, on one field."""

    rule: str
    """Name of the rule, as `no-default`."""
    path: str
    """Path of the field in the version that reads: `items[].price`."""
    effect: Effect
    says: str
    """Words that go on after the path."""
    remedy: str = ""
    """Words for how to change the newer version instead, if there is a common way."""

    @property
    def breaks(self) -> bool:
        """True if a message cannot be read, or is taken for something else."""
        return self.effect != "default"


@dataclass(frozen=True, kw_only=True, slots=True)
class Break:
    """Finding that the mode of a version forbids."""

    newer: Version
    older: Version
    direction: Direction
    finding: Finding


def reading(writer: RecordType, reader: RecordType) -> tuple[Finding, ...]:
    """Effects of reading messages of one version with another; without any, each value comes as it was written."""
    return tuple(_record(writer, reader, ""))


def broken(contract: Contract) -> Iterator[Break]:
    """Findings that the modes of a contract's versions forbid: each version against the one before it, or all of
    them."""
    for newer in contract.versions[1:]:
        for older in reversed(contract.versions[: newer.number - 1]):
            for direction in directions(newer.compatible):
                if direction == "backward" and older.number in newer.upcasts:
                    continue
                writer, reader = (older, newer) if direction == "backward" else (newer, older)
                for finding in reading(writer.record, reader.record):
                    if finding.breaks:
                        yield Break(newer=newer, older=older, direction=direction, finding=finding)
            if not newer.compatible.endswith("_transitive"):
                break


def directions(mode: Mode) -> tuple[Direction, ...]:
    """Directions in which a mode promises that messages are read."""
    match mode.removesuffix("_transitive"):
        case "full":
            return ("backward", "forward")
        case "backward":
            return ("backward",)
        case "forward":
            return ("forward",)
        case _:
            return ()


def _types(writer: Type, reader: Type, at: str) -> Iterator[Finding]:
    match writer, reader:
        case OptionalType(one), OptionalType(other):
            yield from _types(one, other, at)
        case OptionalType(one), _:
            yield Finding(
                rule="optional",
                path=at,
                effect="fails",
                says="may be absent in what is written, and is not optional where it is read",
                remedy="leave it as optional as it was, or add a new field",
            )
            yield from _types(one, reader, at)
        case _, OptionalType(other):
            yield from _types(writer, other, at)
        case ForeignType(), _:
            yield from _foreign(writer, reader, at)
        case ArrayType(one), ArrayType(other):
            yield from _types(one, other, f"{at}[]")
        case MapType(one), MapType(other):
            yield from _types(one, other, f"{at}{{}}")
        case RecordType(), RecordType():
            yield from _names(writer, reader, at)
            yield from _record(writer, reader, at)
        case EnumType(), EnumType():
            yield from _names(writer, reader, at)
            yield from _symbols(writer, reader, at)
        case ((ScalarType() | DecimalType()), (ScalarType() | DecimalType())):
            yield from _scalars(writer, reader, at)
        case _:
            yield _other_type(writer, reader, at)


def _foreign(writer: ForeignType, reader: Type, at: str) -> Iterator[Finding]:
    """Finding if a value of a type that contracts cannot have is read as something that it may not be. Text is text,
    whatever is meant by it."""
    if writer.is_plain or writer.kind == "string":
        found = list(_types(ScalarType(writer.kind), reader, at))
    else:
        found = [_other_type(writer, reader, at)]
    if any(finding.breaks for finding in found):
        yield Finding(
            rule=FOREIGN,
            path=at,
            effect="misread",
            says=f"is written as {described(writer)} and read as {described(reader)}: contracts do not have that type, "
            "and nobody guesses what it means",
            remedy="have its sender write a type that contracts have",
        )


def _record(writer: RecordType, reader: RecordType, at: str) -> Iterator[Finding]:
    taken, clashes = _resolved(writer, reader)
    written = {field.name: field for field in writer.fields}
    aliased = any(field.aliases for field in (*writer.fields, *reader.fields))
    for field in reader.fields:
        path = f"{at}.{field.name}" if at else field.name
        source = taken.get(field.name)
        if aliased:
            fails = field.name in clashes or (source is None and field.default is MISSING)
            yield from _doubts(field, writer, path, "fails" if fails else "misread")
        if source is None:
            if not any(name in written for name in (field.name, *field.aliases)):
                yield _unwritten(field, path)
            continue
        found = list(_types(source.type, field.type, path))
        yield from found
        if not any(finding.breaks for finding in found) and _default_changed(source, field):
            yield Finding(
                rule="default-changed",
                path=path,
                effect="misread",
                says=f"has the default {_default(source)} where it is written, and {_default(field)} where it is read: "
                "messages that do not have it mean two things, and equal events of a Client are no longer the same one",
                remedy="leave the default, or add a new field",
            )


def _doubts(field: Field, writer: RecordType, path: str, effect: Effect) -> Iterator[Finding]:
    """Findings of aliases that leave open what a field is read from. `effect`: of reading it as fastavro does.
    A contract, as which it is read, has no alias that is the name of another field; a schema of others' may."""
    sources = [source for source in writer.fields if _fits(source, field)]
    if not sources:
        return
    if len(sources) > 1:
        yield _ambiguous(sources, path, effect)
    elif renamed := [f.name for f in writer.fields if field.name == sources[0].name and field.name in f.aliases]:
        yield Finding(
            rule="alias",
            path=path,
            effect="misread",
            says=f"is another field where it is written: the aliases there say that it is {renamed[0]} now",
            remedy="give the new field a name that no version had",
        )


def _resolved(writer: RecordType, reader: RecordType) -> tuple[dict[str, Field], set[str]]:
    """Field of the writer from which each field of the reader is read, as fastavro finds it; and fields of the reader
    that it finds twice, which is an error there."""
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


def _fits(source: Field, field: Field) -> bool:
    """True if a field of the reader may be read from this one."""
    return source.name == field.name or source.name in field.aliases


def _default_changed(writer: Field, reader: Field) -> bool:
    if writer.default is MISSING or reader.default is MISSING:
        return False
    return not _equal(writer.type, writer.default, reader.type, reader.default)


def _equal(writer: Type, one: object, reader: Type, other: object) -> bool:
    """True if a raw value of one version is what a raw value of the other is, in all that both have."""
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
            pairs = [(a, b) for a in writer.fields for b in reader.fields if _fits(a, b)]
            return all(_equal(a.type, one[a.name], b.type, other[b.name]) for a, b in pairs)
        case _, bytes(), _, str():
            return one == other.encode()
        case _, str(), _, bytes():
            return one.encode() == other
        case _:
            return one == other


def _unwritten(field: Field, path: str) -> Finding:
    if field.default is MISSING:
        return Finding(
            rule="no-default",
            path=path,
            effect="fails",
            says="is not in what is written, and has no default where it is read",
            remedy="give it a default in the first version that has it, or an alias if it was renamed",
        )
    return Finding(
        rule="unwritten",
        path=path,
        effect="default",
        says=f"is not in what is written: its default {_default(field)} stands in",
    )


def _ambiguous(sources: list[Field], path: str, effect: Effect) -> Finding:
    """Finding for aliases by which one field could be read from several."""
    names = ", ".join(source.name for source in sources)
    return Finding(
        rule="alias",
        path=path,
        effect=effect,
        says=f"could be read from {names}: its name and its aliases do not say from which",
        remedy="take the alias away, or give the field a name that no version had",
    )


def _names(writer: RecordType | EnumType, reader: RecordType | EnumType, at: str) -> Iterator[Finding]:
    """Finding if a named type has another name, and no alias for the one that is written."""
    known = {full_name(alias, reader.namespace) for alias in reader.aliases}
    if writer.name != reader.name and full_name(writer.name, writer.namespace) not in known:
        yield Finding(
            rule="type-name",
            path=at,
            effect="fails",
            says=f"is written as {described(writer)} and read as {described(reader)}, which has no alias for that name",
            remedy=f'keep the name, for an alias ("aliases": ["{writer.name}"]) helps in one direction alone',
        )


def _symbols(writer: EnumType, reader: EnumType, at: str) -> Iterator[Finding]:
    unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if unknown and reader.default is None:
        yield Finding(
            rule="symbols",
            path=at,
            effect="fails",
            says=f"is written with {', '.join(unknown)}, which is not known where it is read, "
            f"and {described(reader)} has no default",
            remedy="keep all symbols; only an enum that has a default from its first version on can have new ones",
        )
    elif unknown:
        yield Finding(
            rule="symbols",
            path=at,
            effect="default",
            says=f"is written with {', '.join(unknown)}, which is not known where it is read: "
            f"its default {reader.default} stands in",
        )


def _scalars(writer: ScalarType | DecimalType, reader: ScalarType | DecimalType, at: str) -> Iterator[Finding]:
    if writer == reader:
        return
    pair = primitive(writer), primitive(reader)
    if pair[0] != pair[1] and pair not in _PROMOTED:
        yield _other_type(writer, reader, at)
        return
    words = f"is written as {described(writer)} and read as {described(reader)}"
    new = "give the field another name"
    match writer, reader:
        case DecimalType(precision, scale), DecimalType(limit, other) if scale == other:
            if precision > limit:
                says = f"{words}: amounts of more than {limit} digits cannot be read"
                yield Finding(rule="precision", path=at, effect="fails", says=says, remedy="leave its precision")
        case ScalarType("uuid"), ScalarType("string"):
            return
        case _, ScalarType("uuid"):
            says = f"{words}: what is no UUID cannot be read"
            yield Finding(rule="uuid", path=at, effect="fails", says=says, remedy=new)
        case _ if meaning_of(writer) != meaning_of(reader):
            says = f"{words}: the same bytes mean something else, and Avro does not look at logical types"
            yield Finding(rule="logical-type", path=at, effect="misread", says=says, remedy=new)
        case ScalarType("bytes"), ScalarType("string"):
            says = f"{words}: bytes that are no UTF-8 cannot be read"
            yield Finding(rule="utf-8", path=at, effect="fails", says=says, remedy=new)
        case _ if pair in _ROUNDED:
            says = f"{words}, in which great numbers are rounded"
            yield Finding(rule="rounding", path=at, effect="misread", says=says, remedy=new)
        case _:
            return


def primitive(type_: ScalarType | DecimalType) -> str:
    """Primitive type in which a value is written."""
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


def _other_type(writer: Type, reader: Type, at: str) -> Finding:
    return Finding(
        rule="type",
        path=at,
        effect="fails",
        says=f"is written as {described(writer)} and read as {described(reader)}",
        remedy="leave its type, and add a field with another name",
    )


def _default(field: Field) -> str:
    return ascii(field.default) if isinstance(field.default, bytes) else repr(field.default)
