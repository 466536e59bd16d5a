"""Parse the JSON of an `.avsc` file into a `RecordType`, and report all problems at once. Format schemas as text."""

import json
import keyword
import re
from collections.abc import Mapping
from typing import Any, Final

from saga.contracts.schema import (
    LOGICAL,
    MISSING,
    PRIMITIVES,
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
    raw_default,
)
from saga.support.printable import quote_text

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TAKEN, _TAKEN_BEGINNINGS = ("mro", "_HAS_DEFAULT_FACTORY"), ("__", "_dflt_")
"""Names that no field can have, and beginnings that no name of a field can have. `mro` is an attribute of every class,
which a dataclass would take for the field's default. Dataclasses use the others internally, and a field would hide
them."""
NULLS = ("null", {"type": "null"})
"""Both forms of the type null in a schema's JSON."""
DEPTH_MAX = 30
"""Maximum depth of nested types. The type of a field is one level below its record."""
PARTS_MAX = 2000
"""Largest number of fields of a record, including those of all nested records. A type that is used twice counts
twice."""

PRECISION_MAX = 1000
"""Largest number of digits of a decimal."""

_DECIMAL = re.compile(r"decimal\(([0-9]+),([0-9]+)\)")
KINDS: Final = f"{', '.join([*PRIMITIVES, *LOGICAL])}, decimal(12,2)"


def why_no_field(name: str) -> str | None:
    """Return the reason why no field can have this name; `None` if a field can have it."""
    if keyword.iskeyword(name) or name.startswith(_TAKEN_BEGINNINGS) or name in _TAKEN:
        return "this name cannot be an attribute in Python; choose another"
    return None


def read_record(schema: Mapping[str, Any]) -> tuple[RecordType | None, list[str]]:
    """Parse the record of a file. Return the record and all problems. The record is `None` if there are problems."""
    reading = _SchemaParser()
    try:
        record = reading.record(schema, "", "")
    except _Unusable as why:
        return None, [*reading.problems, str(why)]
    reading.problems += reading.check_type_aliases()
    return (None if reading.problems else record), reading.problems


def read_foreign(schema: Mapping[str, Any]) -> RecordType:
    """Parse the record of a foreign schema that fastavro accepts.

    Types that contracts do not support become a `ForeignType`.
    """
    return _ForeignSchemaParser().record(schema, "", "")


class _Unusable(Exception):
    """Error for a type that is not supported. The parser reports it, and continues with the next field."""

    def __init__(self, at: str, problem: str) -> None:
        super().__init__(f"field {at}: {problem}" if at else problem)


class _SchemaParser:
    """Parser of one file. It collects the types that the file defines, and the problems."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.named: dict[str, Type | None] = {}
        """Types defined so far, by full name. A type with problems is `None`, so that its uses do not report the
        problems again."""
        self.aliases: list[tuple[str, str, str]] = []
        """Aliases of types: full name of the alias, full name of its type, path of the type."""
        self.open: set[str] = set()
        """Full names of the records that enclose the current position. Using one of them here would be recursion."""
        self.extents: dict[int, tuple[int, int]] = {}
        """Depth and number of fields of each record parsed so far, by the `id()` of the record."""
        self.depth = 0

    def type_(self, schema: Any, at: str, namespace: str) -> Type:
        self.depth += 1
        try:
            if (
                self.depth > 2 * DEPTH_MAX
            ):  # depth of the JSON itself: {"type": {"type": "int"}} has two levels of JSON for one type
                raise _Unusable(at, f"types may nest {DEPTH_MAX} levels deep")
            return self.any_type(schema, at, namespace)
        finally:
            self.depth -= 1

    def any_type(self, schema: Any, at: str, namespace: str) -> Type:
        if isinstance(schema, list):
            return self.union(schema, at, namespace)
        if isinstance(schema, str):
            return self.by_name(schema, at, namespace)
        if not isinstance(schema, dict):
            raise _Unusable(at, f"{schema!r} is no type")
        match schema.get("type"):
            case "record":
                return self.record(schema, at, namespace)
            case "enum":
                return self.enum(schema, at, namespace)
            case "array":
                return ArrayType(self.type_(schema.get("items"), f"{at}[]", namespace))
            case "map":
                return MapType(self.type_(schema.get("values"), f"{at}{{}}", namespace))
            case str() as kind if "logicalType" in schema:
                return self.logical(schema, kind, at)
            case kind:
                return self.type_(kind, at, namespace)

    def by_name(self, name: str, at: str, namespace: str) -> Type:
        if name in PRIMITIVES:
            return ScalarType(PRIMITIVES[name])
        full = _complete_name(name, namespace)
        if full in self.open:
            raise _Unusable(at, f"{name} contains itself; recursive types are not supported")
        if full in self.named:
            known = self.named[full]
            if known is None:
                raise _Unusable(at, f"its type {name} cannot be used, see above")
            return known
        if name == "fixed":
            raise _Unusable(at, "fixed is not supported; use bytes")
        if name == "null":
            raise _Unusable(at, 'null stands only in a union: ["null", type]')
        raise _Unusable(at, f"there is no type {name!r}")

    def union(self, branches: list[Any], at: str, namespace: str) -> Type:
        others = [branch for branch in branches if branch not in NULLS]
        if len(branches) != 2 or len(others) != 1:
            raise _Unusable(at, "a union may only make a field optional: null and one other type")
        inner = self.type_(others[0], at, namespace)
        if isinstance(inner, OptionalType):
            raise _Unusable(at, "a union may not stand directly in a union")
        return OptionalType(inner)

    def logical(self, schema: dict[str, Any], kind: str, at: str) -> Type:
        logical = schema["logicalType"]
        if logical == "decimal":
            return self.decimal(schema, kind, at)
        if not isinstance(logical, str) or logical not in LOGICAL:
            known = ", ".join(["decimal", *LOGICAL])
            raise _Unusable(at, f"logical type {logical!r} is not supported; there are {known}")
        expected, found = LOGICAL[logical]
        if kind != expected:
            raise _Unusable(at, f"logical type {logical} goes with {expected}, not with {kind}")
        return ScalarType(found)

    def decimal(self, schema: dict[str, Any], kind: str, at: str) -> Type:
        if kind != "bytes":
            raise _Unusable(at, f"logical type decimal goes with bytes, not with {kind}")
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        if type(precision) is int and precision > PRECISION_MAX:
            raise _Unusable(at, f"decimal has a precision of {precision}; at most {PRECISION_MAX}")
        if type(precision) is int and type(scale) is int and precision > 0 and 0 <= scale <= precision:
            return DecimalType(precision, scale)
        raise _Unusable(
            at, f"decimal needs whole numbers 0 <= scale <= precision, not scale {scale!r} and precision {precision!r}"
        )

    def enum(self, schema: dict[str, Any], at: str, namespace: str) -> Type:
        full = self.new_name(schema, at, namespace)
        symbols = schema.get("symbols")
        if not isinstance(symbols, list) or not symbols or not all(map(_is_name, symbols)):
            raise _Unusable(at, "an enum needs symbols: a list of names (letters, digits, _)")
        if len(set(symbols)) != len(symbols):
            raise _Unusable(at, "an enum's symbols must differ from each other")
        if "default" in schema and schema["default"] not in symbols:
            raise _Unusable(at, f"the enum's default {schema['default']!r} is none of its symbols")
        space, _, name = full.rpartition(".")
        aliases = self.type_aliases(schema, at, full)
        read = EnumType(name, tuple(symbols), _doc(schema), schema.get("default"), aliases, space)
        self.named[full] = read
        return read

    def record(self, schema: Mapping[str, Any], at: str, namespace: str) -> RecordType:
        full = self.new_name(schema, at, namespace)
        space, _, name = full.rpartition(".")
        fields = schema.get("fields")
        if not isinstance(fields, list) or not fields:
            raise _Unusable(at, f"record {name} has no fields")
        before = len(self.problems)
        self.open.add(full)
        read: list[Field] = []
        for field in fields:
            try:
                read.append(self.field(field, at, space))
            except _Unusable as why:
                self.problems.append(str(why))
        self.open.discard(full)
        names = [field.name for field in read]
        self.problems += [
            str(_Unusable(at, f"record {name} has the field {twice} twice"))
            for twice in sorted({n for n in names if names.count(n) > 1})
        ]
        self.problems += _check_field_aliases(read, at)
        record = RecordType(name, tuple(read), _doc(schema), self.type_aliases(schema, at, full), space)
        depth, parts = self.extents[id(record)] = self.measure(record)
        if depth > DEPTH_MAX:
            raise _Unusable(at, f"record {name} nests {depth} levels deep; types may nest {DEPTH_MAX}")
        if parts > PARTS_MAX:
            raise _Unusable(at, f"record {name} has {parts} fields with those of all its parts; at most {PARTS_MAX}")
        self.named[full] = record if len(self.problems) == before else None
        return record

    def measure(self, type_: Type) -> tuple[int, int]:
        """Return the depth of a type and the number of its fields, including those of nested records."""
        match type_:
            case ArrayType(inner) | MapType(inner) | OptionalType(inner):
                depth, parts = self.measure(inner)
                return depth + 1, parts
            case RecordType(fields=fields):
                if id(type_) in self.extents:
                    return self.extents[id(type_)]
                inside = [self.measure(field.type) for field in fields]
                return 1 + max((depth for depth, _ in inside), default=0), sum(parts for _, parts in inside)
            case _:
                return 0, 1

    def field(self, field: Any, at: str, namespace: str) -> Field:
        if not isinstance(field, dict) or not _is_name(field.get("name")):
            raise _Unusable(at, f"a field needs a name (letters, digits, _): {field!r}")
        name: str = field["name"]
        at = f"{at}.{name}" if at else name
        if (why := why_no_field(name)) is not None:
            raise _Unusable(at, why)
        aliases, sensitive = field.get("aliases", []), field.get("sensitive", False)
        if not isinstance(sensitive, bool):
            raise _Unusable(at, f'"sensitive" is true or false, not {sensitive!r}')
        if not isinstance(aliases, list) or not all(map(_is_name, aliases)):
            raise _Unusable(at, '"aliases" is a list of names')
        type_ = self.type_(field.get("type"), at, namespace)
        default: object = MISSING
        if "default" in field:
            try:
                default = raw_default(type_, field["default"])
            except ValueError as why:
                raise _Unusable(at, f"its default {why}") from why
            if isinstance(type_, OptionalType) and _null_first(field["type"]) is not (default is None):
                raise _Unusable(at, "its default must be of the union's first type: change their order")
        return Field(name, type_, default, tuple(aliases), sensitive)

    def type_aliases(self, schema: Mapping[str, Any], at: str, full: str) -> tuple[str, ...]:
        """Return the names that a type had in earlier versions, as the file contains them."""
        aliases = schema.get("aliases", [])
        if not isinstance(aliases, list) or not all(
            isinstance(a, str) and all(map(_is_name, a.split("."))) for a in aliases
        ):
            raise _Unusable(at, f'"aliases" of {schema["name"]} is a list of names')
        space = full.rpartition(".")[0]
        self.aliases += [(_complete_name(alias, space), full, at) for alias in aliases]
        return tuple(aliases)

    def check_type_aliases(self) -> list[str]:
        """Report aliases of types that are also names of other types in the file."""
        return [
            str(
                _Unusable(
                    at,
                    f"the type {full} has the alias {alias}, which is the name of another type of the file, too: take "
                    "the alias away, or rename the other type",
                )
            )
            for alias, full, at in self.aliases
            if alias in self.named and alias != full
        ]

    def new_name(self, schema: Mapping[str, Any], at: str, around: str) -> str:
        """Check the name of a type that is defined here, and return its full name."""
        name, namespace = schema.get("name"), schema.get("namespace", around)
        if not isinstance(namespace, str) or not all(map(_is_name, namespace.split(".") if namespace else [])):
            raise _Unusable(at, f'"namespace" is names with dots between, not {namespace!r}')
        if not isinstance(name, str) or not all(map(_is_name, name.split("."))):
            raise _Unusable(at, f"{name!r} is no name for a type (letters, digits, _)")
        full = _complete_name(name, namespace)
        short = full.rpartition(".")[2]
        if keyword.iskeyword(short) or short.startswith("__"):
            raise _Unusable(at, f"{name!r} is no name for a type: no class in Python can be called so; choose another")
        if full in self.named or full in self.open:
            raise _Unusable(at, f"the type {full} is defined twice")
        for other in (*self.named, *self.open):
            if other.rpartition(".")[2] == short:
                raise _Unusable(at, f"the types {other} and {full} would be one class {short}: rename one")
        return full


class _ForeignSchemaParser(_SchemaParser):
    """Parser of a foreign schema. An unsupported type becomes a `ForeignType` instead of a problem."""

    def type_(self, schema: Any, at: str, namespace: str) -> Type:
        try:
            return super().type_(schema, at, namespace)
        except _Unusable:
            return _make_foreign(schema)

    def any_type(self, schema: Any, at: str, namespace: str) -> Type:
        kind = schema.get("type") if isinstance(schema, dict) else None
        if kind == "fixed":
            return _make_foreign(schema)
        if isinstance(kind, str) and schema.get("logicalType", "") is None:
            schema = {name: part for name, part in schema.items() if name != "logicalType"}
        if isinstance(kind, str) and kind in PRIMITIVES and "logicalType" not in schema and "connect.name" in schema:
            words = f"{kind} ({quote_text(str(schema['connect.name']))})"
            return ForeignType(PRIMITIVES[kind], words, is_plain=True)
        return super().any_type(schema, at, namespace)

    def union(self, branches: list[Any], at: str, namespace: str) -> Type:
        read = [(branch, self.type_(branch, at, namespace)) for branch in branches if branch not in NULLS]
        if len(read) != 1:
            return ForeignType("bytes", f"one of {' or '.join(_describe_foreign(branch) for branch in branches)}")
        ((_, inner),) = read
        return inner if len(branches) == 1 or isinstance(inner, OptionalType) else OptionalType(inner)

    def record(self, schema: Mapping[str, Any], at: str, namespace: str) -> RecordType:
        full = self.new_name(schema, at, namespace)
        space, _, name = full.rpartition(".")
        self.open.add(full)
        fields = tuple(self.field(field, at, space) for field in schema.get("fields", ()))
        self.open.discard(full)
        record = self.named[full] = RecordType(name, fields, "", (), space)
        return record

    def enum(self, schema: dict[str, Any], at: str, namespace: str) -> Type:
        full = self.new_name(schema, at, namespace)
        space, _, name = full.rpartition(".")
        read = self.named[full] = EnumType(name, tuple(schema["symbols"]), "", None, (), space)
        return read

    def field(self, field: Any, at: str, namespace: str) -> Field:
        aliases = tuple(name for name in field.get("aliases", ()) if isinstance(name, str))
        return Field(field["name"], self.type_(field["type"], at, namespace), MISSING, aliases)

    def new_name(self, schema: Mapping[str, Any], at: str, around: str) -> str:
        return _complete_name(schema["name"], schema.get("namespace", around) or "")


def _make_foreign(schema: Any) -> ForeignType:
    kind = schema.get("type") if isinstance(schema, dict) else None
    return ForeignType(PRIMITIVES.get(kind, "bytes") if isinstance(kind, str) else "bytes", _describe_foreign(schema))


def _describe_foreign(schema: Any) -> str:
    """Describe a type of a foreign schema as readable text."""
    if not isinstance(schema, dict):
        return "a union" if isinstance(schema, list) else quote_text(str(schema))
    kind, logical = schema.get("type"), schema.get("logicalType")
    words = str(kind) if isinstance(kind, str) else "a type"
    if kind == "fixed":
        words = f"fixed of {schema.get('size')} bytes"
    elif "name" in schema:
        words = f"{words} {quote_text(str(schema['name']))}"
    return words if logical is None else f"{words} with the logical type {quote_text(str(logical))}"


def _doc(schema: Mapping[str, Any]) -> str:
    doc = schema.get("doc")
    # JSON can contain half of a surrogate pair, but the docstring of a class cannot.
    return doc.encode("utf-8", "replace").decode() if isinstance(doc, str) else ""


def _check_field_aliases(fields: list[Field], at: str) -> list[str]:
    """Report aliases of a field that are also the name or an alias of another field of the record.

    A value written under such a name could be read as either field, and Avro libraries differ: Java's library refuses
    the schema or uses the last alias; fastavro uses the field of that name.
    """
    owners = {field.name: "the name of another field" for field in fields}
    problems = []
    for field in fields:
        for alias in dict.fromkeys(field.aliases):
            if alias != field.name and alias in owners:
                path = f"{at}.{field.name}" if at else field.name
                remedy = "take the alias away, or rename the other field"
                problems.append(str(_Unusable(path, f"its alias {alias} is {owners[alias]}, too: {remedy}")))
            owners.setdefault(alias, f"an alias of the field {field.name}")
    return problems


def _is_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _complete_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _null_first(union: Any) -> bool:
    while isinstance(union, dict):
        union = union["type"]
    return union[0] in NULLS


# -------------------------------------------------------------------- writing


def format_schema(schema: Mapping[str, Any]) -> str:
    """Format a schema as JSON with one line for each attribute and each field."""
    lines = [f"  {json.dumps(name)}: {_json(value)}" for name, value in schema.items() if name != "fields"]
    fields = ",\n".join(f"    {_json(field)}" for field in schema["fields"])
    lines.append(f'  "fields": [\n{fields}\n  ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def parse_type(kind: str) -> tuple[Any, Type]:
    """Parse the short form of a type, such as `decimal(12,2)`. Return its JSON and the type. Raises `ValueError` with
    the problem."""
    made = type_to_json(kind)
    try:
        return made, _SchemaParser().type_(made, "", "")
    except _Unusable as why:
        raise ValueError(str(why)) from why


def type_to_json(kind: str) -> Any:
    """Return the JSON for the short form of a type. Raises `ValueError` if there is no such type."""
    if kind in PRIMITIVES:
        return kind
    if kind in LOGICAL:
        return {"type": LOGICAL[kind][0], "logicalType": kind}
    decimal = _DECIMAL.fullmatch(kind)
    if decimal is None:
        raise ValueError(f"there is no type {kind!r}; there are {KINDS}")
    precision, scale = int(decimal[1]), int(decimal[2])
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
