"""Declare a contract as a Python class: `@event` above an event, `@record` and `@enum_type` above its nested types.

The class is the source, and the `.avsc` file in `contracts/` is generated from it. `saga contracts write` writes the
file; `saga contracts check` compares the two. The decorator makes the same frozen dataclass that `saga contracts
generate` would write, so the rest of the toolkit does not distinguish the two kinds of classes. Declaring a class reads
no file: the schema is made from the annotations of the class, and all problems are reported while its module is
imported.
"""

import dataclasses
import inspect
import keyword
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from difflib import get_close_matches
from enum import StrEnum
from typing import (
    Any,
    ClassVar,
    Final,
    Literal,
    Required,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)
from uuid import UUID

from typing_extensions import dataclass_transform

from saga.contracts import schema
from saga.contracts.contract import Contract, Mode
from saga.contracts.conversion import PYTHON_TYPES, InvalidValue, to_raw, to_typed
from saga.contracts.loading import ATTRIBUTES, make_contract
from saga.contracts.schema_parser import KINDS, parse_type, why_no_field
from saga.encryption.sensitive_fields import sensitive, unwrap_annotation
from saga.errors import ContractError, DeclarationError
from saga.messages import Event

E = TypeVar("E", bound=Event)
T = TypeVar("T")
S = TypeVar("S", bound=StrEnum)

_AVRO_TYPES: Final[Mapping[type, str]] = {
    bool: "boolean",
    int: "long",
    float: "double",
    str: "string",
    bytes: "bytes",
    UUID: "uuid",
    date: "date",
    datetime: "timestamp-micros",
}
"""Avro type of each Python type, unless `Avro` in the annotation names another. If several Avro types are possible, it
is the one that loses no information."""


class EventAttributes(TypedDict, total=False):
    """Attributes of a contract: see `docs/reference/contracts.md`. Only `version` does not occur in contract files."""

    topic: Required[str]
    """Topic of the event, and folder of its contract."""
    key: Required[str]
    """Field that contains the saga id. Its name also identifies the kind of the saga."""
    owner: Required[str]
    """Name of the only service that may emit the event."""
    version: int
    """Number of the contract version that this class declares; 1 if it is left out."""
    starts: bool
    """True if the event starts a saga."""
    outcome: Literal["success", "failure"]
    """Outcome with which the event ends a saga."""
    produced_by: Literal["external"]
    """`"external"` if Clients, and services other than the owner, may publish the event."""
    consumed_by: Literal["external"]
    """`"external"` if others than the known services may consume the event."""
    principal: str
    """Header in which an external sender names the principal who starts the saga."""
    id_header: str
    """Header that contains the message id, for senders that write no `ce_id`."""
    id_field: str
    """Field that contains the message id, for senders that write no `ce_id`."""
    subject: str
    """Field that identifies the subject of the event, whose key encrypts the event's sensitive fields."""
    trusted_time: bool
    """True if deadlines count from the time that the event states, even if its publisher is external."""
    compatible: Mode
    """Compatibility mode in which this version is checked against the versions before it."""
    upcasts: Sequence[int]
    """Numbers of the older versions whose events an upcaster converts to this version."""
    lint: Sequence[str]
    """Rules of `saga contracts lint` that do not apply to the event."""
    aliases: Sequence[str]
    """Names that the record had in earlier versions."""
    namespace: str
    """Namespace of the record."""


class TypeAttributes(TypedDict, total=False):
    """Attributes of a nested record or an enum."""

    aliases: Sequence[str]
    """Names that the type had in earlier versions."""
    namespace: str
    """Namespace of the type; if it is left out, the namespace of the event."""
    lint: Sequence[str]
    """Rules of `saga contracts lint` that do not apply to the type."""


@dataclass(frozen=True, slots=True)
class Avro:
    """Details of a field that its Python type does not express, as in `Annotated[Decimal, Avro("decimal(12,2)")]`."""

    type: str = ""
    """Avro type of the values, if it is not the default for the Python type: `int` or `float` for 32 bits,
    `timestamp-millis`, `decimal(PRECISION,SCALE)`."""
    aliases: Sequence[str] = dataclasses.field(default=(), kw_only=True)
    """Names that the field had in earlier versions."""
    lint: Sequence[str] = dataclasses.field(default=(), kw_only=True)
    """Rules of `saga contracts lint` that do not apply to the field."""

    def __post_init__(self) -> None:
        problems = [] if isinstance(self.type, str) else [f"{self.type!r} is no name of a type: give text"]
        problems += [
            f"{name}={given!r}: give a tuple, as in {name}=({given!r},)"
            for name, given in (("aliases", self.aliases), ("lint", self.lint))
            if isinstance(given, str | int)
        ]
        if problems:
            raise DeclarationError(f"Avro(...): {'; '.join(problems)}")


_contracts: dict[type[Event], Contract] = {}
_named_types: dict[type, Mapping[str, Any]] = {}
"""Attributes passed to `@record` and `@enum_type`, by the class of the nested type."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def event(**attributes: Unpack[EventAttributes]) -> Callable[[type[E]], type[E]]:
    """Declare the contract of an event as a class.

    The annotations define the schema: `str`, `int`, `Decimal`, `tuple[T, ...]`, `Mapping[str, T]`, `T | None`, enums,
    and classes decorated with `@record`. `Annotated` adds what a type cannot express: a string that describes the
    field, `sensitive`, `Avro`. The docstring describes the event.

        @event(topic="payments", key="order_id", owner="payment")
        class PaymentReserved(Event):
            \"\"\"The amount is set aside on the customer's card.\"\"\"
            order_id: str
            amount: Annotated[Decimal, Avro("decimal(12,2)"), "What was set aside, in euros."]
            card: Annotated[str, sensitive]

    Guarantees:

    - The class becomes a frozen dataclass with slots and keyword-only arguments, as `saga contracts generate` would
      write it.
    - Declaring the class reads no file. When a service starts, the class is compared with its file in `contracts/`.

    Raises `DeclarationError` with all problems of the class.
    """

    def declare(cls: type[E]) -> type[E]:
        where = f"{cls.__module__}.{cls.__qualname__}"
        values = cast("Mapping[str, Any]", attributes)
        _check_attributes(values, EventAttributes, f"@event above {where}")
        if cls.__bases__ != (Event,):
            raise DeclarationError(f"{where}: an event is derived from Event alone: write class {cls.__name__}(Event)")
        doc = _read_doc(cls)
        made = _make_dataclass(cls, where)
        number, topic = attributes.get("version", 1), attributes["topic"]
        path = f"{topic}/{made.__name__}.v{number}"
        made.__contract__ = path
        given = {name: values[name] for name in ATTRIBUTES if name in values}
        head = {"namespace": values.get("namespace"), "doc": doc, "aliases": values.get("aliases"), **given}
        builder = _SchemaBuilder(where)
        whole = builder.event(made, {name: _plain(value) for name, value in head.items() if _is_given(value)})
        if builder.problems:
            raise DeclarationError(f"{where}: {'; '.join(builder.problems)}")
        try:
            _contracts[made] = make_contract(whole, path, made.__name__, number)
        except ContractError as why:
            raise DeclarationError(f"{where}: {'; '.join(why.problems)}") from why
        return made

    return declare


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(**attributes: Unpack[TypeAttributes]) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def record(cls: type[T] | None = None, /, **attributes: Unpack[TypeAttributes]) -> Any:
    """Declare a nested record of an event as a class. Its fields are declared in the same way as those of an event.

        @record
        class Address:
            \"\"\"Where the goods go.\"\"\"
            street: Annotated[str, sensitive]
            country: str = "CH"

    Raises `DeclarationError` with all problems of the class.
    """

    def declare(cls: type[T]) -> type[T]:
        where = f"{cls.__module__}.{cls.__qualname__}"
        _check_attributes(attributes, TypeAttributes, f"@record above {where}")
        doc = _read_doc(cls)
        made = _make_dataclass(cls, where)
        _named_types[made] = {**attributes, "doc": doc}
        return made

    return declare if cls is None else declare(cls)


def enum_type(*, default: str | None = None, **attributes: Unpack[TypeAttributes]) -> Callable[[type[S]], type[S]]:
    """Declare the default and other attributes of an enum. An enum without such attributes needs no decorator.

        @enum_type(default="UNKNOWN")
        class Carrier(StrEnum):
            \"\"\"Who brings the goods.\"\"\"
            POST = "POST"
            UNKNOWN = "UNKNOWN"

    Args:
        default: the symbol that replaces an unknown symbol in a message.
        attributes: aliases, namespace and lint rules.
    """

    def declare(cls: type[S]) -> type[S]:
        _check_attributes(attributes, TypeAttributes, f"@enum_type above {cls.__module__}.{cls.__qualname__}")
        _named_types[cls] = {**attributes, "default": default}
        return cls

    return declare


def declared_contract(cls: type[Event]) -> Contract | None:
    """Return the contract that `@event` has made from a class. It has only the version that the class declares. Return
    `None` for a class without `@event`."""
    return _contracts.get(cls)


# -------------------------------------------------------------------- the class


def _check_attributes(given: Mapping[str, Any], known: Any, where: str) -> None:
    """Check the names of the attributes, and the types of those that are used before the schema is parsed."""
    problems = [f"{name}= is missing" for name in sorted(known.__required_keys__ - given.keys())]
    for name in sorted(given.keys() - known.__annotations__.keys()):
        close = get_close_matches(name, known.__annotations__, n=1)
        problems.append(f"{name}= means nothing here" + (f": is it {close[0]}=?" if close else ""))
    number = given.get("version", 1)
    if type(number) is not int or number < 1:
        problems.append(f"version={number!r}: give the number of the version, 1 for the first")
    problems += [
        f"{name}={given[name]!r}: give a tuple, as in {name}=({given[name]!r},)"
        for name in ("aliases", "lint", "upcasts")
        if name in given and isinstance(given[name], str | int)
    ]
    problems += [
        f"{name}={given[name]!r}: give text" for name in ("topic", "key") if type(given.get(name, "")) is not str
    ]
    if problems:
        raise DeclarationError(f"{where}: {'; '.join(problems)}")


def _make_dataclass(cls: type[T], where: str) -> type[T]:
    """Turn the class into a frozen dataclass whose `repr` does not show sensitive fields."""
    hints = _read_hints(cls, where)
    for name, hint in hints.items():
        if keyword.iskeyword(name):
            raise DeclarationError(f"{where}: field {name}: {why_no_field(name)}")
        if _split(hint).sensitive:
            given = cls.__dict__.get(name, dataclasses.MISSING)
            if isinstance(given, dataclasses.Field):
                given.repr = False
            elif given is dataclasses.MISSING:
                setattr(cls, name, dataclasses.field(repr=False))
            else:
                setattr(cls, name, dataclasses.field(default=given, repr=False))
    try:
        return dataclass(frozen=True, kw_only=True, slots=True)(cls)
    except (TypeError, ValueError) as why:
        raise DeclarationError(f"{where}: {why}") from why


def _read_hints(cls: type, where: str, *, inherited: bool = False) -> dict[str, Any]:
    """Return the annotations of a class's fields, in the order of the fields. Raises `DeclarationError` if one cannot
    be evaluated.

    `inherited`: true to include those of the classes from which it is derived.
    """
    try:
        hints = get_type_hints(cls, include_extras=True)
    except (NameError, TypeError, AttributeError, SyntaxError) as why:
        raise DeclarationError(
            f"{where}: an annotation cannot be read ({why}): define or import what it names above the class"
        ) from why
    names = hints if inherited else inspect.get_annotations(cls)
    return {
        name: hints[name] for name in names if hints[name] is not ClassVar and get_origin(hints[name]) is not ClassVar
    }


def _read_doc(cls: type) -> str:
    """Return the docstring of a class, with each paragraph on one line. Return an empty string if there is none, or if
    `dataclass` has generated it."""
    doc = cls.__dict__.get("__doc__")
    if not isinstance(doc, str) or doc.startswith(f"{cls.__name__}("):
        return ""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(doc))
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs).strip()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hint:
    """A field's annotation, split into the type and the additions from `Annotated`."""

    inner: Any
    doc: str
    sensitive: bool
    avro: Avro


def _split(hint: Any) -> _Hint:
    """Split an annotation. `sensitive` may stand inside or outside of `... | None`."""
    hint, metadata = unwrap_annotation(hint)
    if (inside := _optional(hint)) is not None:
        metadata += unwrap_annotation(inside)[1]
    marks = [each for each in metadata if isinstance(each, Avro)]
    avro = Avro(
        next((each.type for each in marks if each.type), ""),
        aliases=tuple(alias for each in marks for alias in each.aliases),
        lint=tuple(rule for each in marks for rule in each.lint),
    )
    doc = next((each for each in metadata if isinstance(each, str)), "")
    return _Hint(inner=hint, doc=" ".join(doc.split()), sensitive=sensitive in metadata, avro=avro)


def _optional(hint: Any) -> Any:
    """Return `T` if the annotation is `T | None`; otherwise `None`."""
    arguments = get_args(hint)
    if get_origin(hint) not in (Union, types.UnionType) or types.NoneType not in arguments or len(arguments) != 2:
        return None
    return next(each for each in arguments if each is not types.NoneType)


# -------------------------------------------------------------------- its schema


class _SchemaBuilder:
    """Builder of the schema of one event. It collects only those problems that the later parsing of the schema would
    not find."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.problems: list[str] = []
        self.classes: dict[str, type] = {}
        """Classes of the nested types, by name."""
        self.named: dict[type, tuple[str, schema.Type]] = {}
        """Full name and type of each nested type that is already defined."""
        self.open: list[type] = []
        """Records that enclose the current field, from the outermost to the innermost."""

    def event(self, cls: type[Event], head: Mapping[str, Any]) -> dict[str, Any]:
        """Build the schema of an event from its class and its attributes."""
        fields, _ = self.fields(cls, head.get("namespace", ""), "")
        return {"type": "record", "name": cls.__name__, **head, "fields": fields}

    def fields(self, cls: type, namespace: str, at: str) -> tuple[list[dict[str, Any]], list[schema.Field]]:
        """Return the fields of a record, as JSON and as parsed fields."""
        self.open.append(cls)
        hints = _read_hints(cls, self.where, inherited=True)
        built = []
        for field in dataclasses.fields(cls):
            path = f"{at}.{field.name}" if at else field.name
            try:
                built.append(self.field(field, hints[field.name], namespace, path))
            except _UnsupportedAnnotation as why:
                if str(why):
                    self.problems.append(f"field {path}: {why}")
        self.open.pop()
        return [made for made, _ in built], [parsed for _, parsed in built]

    def field(
        self, field: "dataclasses.Field[Any]", hint: Any, namespace: str, at: str
    ) -> tuple[dict[str, Any], schema.Field]:
        given = _split(hint)
        if (why := why_no_field(field.name)) is not None:
            raise _UnsupportedAnnotation(why)
        if not field.init:
            raise _UnsupportedAnnotation("an event is created from all its fields: leave init=False out")
        if given.sensitive and field.repr:
            raise _UnsupportedAnnotation("is sensitive, and repr shows it: declare its class with @record")
        made, type_ = self.type_(hint, given.avro.type, namespace, at)
        default: object = schema.MISSING
        whole = {"name": field.name, "type": made}
        if field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING:
            value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            default = self.default(type_, value)
            if isinstance(made, list) and value is not None:
                whole["type"] = made[::-1]
            whole["default"] = _default_to_json(type_, default)
        more = {"doc": given.doc, "sensitive": given.sensitive, "aliases": given.avro.aliases, "lint": given.avro.lint}
        whole |= {name: _plain(value) for name, value in more.items() if value}
        return whole, schema.Field(field.name, type_, default, tuple(given.avro.aliases), given.sensitive)

    def type_(self, hint: Any, avro: str, namespace: str, at: str) -> tuple[Any, schema.Type]:
        """Return the type for an annotation, as JSON and as a parsed type.

        Args:
            hint: the annotation.
            avro: the Avro type that an enclosing annotation names; empty if there is none.
            namespace: the enclosing namespace.
            at: path of the field.
        """
        split = _split(hint)
        inner, avro = split.inner, split.avro.type or avro
        if (optional := _optional(inner)) is not None:
            made, type_ = self.type_(optional, avro, namespace, at)
            return ["null", made], schema.OptionalType(type_)
        if isinstance(inner, type) and (inner in _AVRO_TYPES or inner is Decimal):
            return self.scalar(inner, avro)
        if avro:
            raise _UnsupportedAnnotation(f"Avro({avro!r}) is no type of {_spell(inner)}")
        arguments = get_args(inner)
        if get_origin(inner) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
            made, type_ = self.part(arguments[0], namespace, f"{at}[]")
            return {"type": "array", "items": made}, schema.ArrayType(type_)
        if get_origin(inner) is Mapping and arguments[0] is str:
            made, type_ = self.part(arguments[1], namespace, f"{at}{{}}")
            return {"type": "map", "values": made}, schema.MapType(type_)
        if isinstance(inner, type) and issubclass(inner, StrEnum):
            return self.named_type(inner, namespace, self.enum)
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            if inner in self.open:
                raise _UnsupportedAnnotation(f"{inner.__name__} contains itself; recursive types are not supported")
            return self.named_type(inner, namespace, lambda cls, around: self.record(cls, around, at))
        raise _UnsupportedAnnotation(
            f"{_spell(inner)} is no type of a contract; {_REMEDIES.get(get_origin(inner) or inner, _TYPES)}"
        )

    def part(self, hint: Any, namespace: str, at: str) -> tuple[Any, schema.Type]:
        """Return the type of the items of a list, or of the values of a mapping."""
        if _split(hint).sensitive:
            raise _UnsupportedAnnotation("`sensitive` marks a whole field: write it around the list or the mapping")
        return self.type_(hint, "", namespace, at)

    def scalar(self, inner: type, avro: str) -> tuple[Any, schema.Type]:
        if inner is Decimal and not avro:
            raise _UnsupportedAnnotation(f"a Decimal needs its digits: {_DECIMAL_EXAMPLE}")
        try:
            made, type_ = parse_type(avro or _AVRO_TYPES[inner])
        except ValueError as why:
            raise _UnsupportedAnnotation(f"Avro({avro!r}): {why}") from why
        wanted = PYTHON_TYPES[type_.kind] if isinstance(type_, schema.ScalarType) else Decimal
        if wanted is not inner:
            raise _UnsupportedAnnotation(f"Avro({avro!r}) is no type of {inner.__name__}")
        return made, type_

    def named_type(
        self, cls: type, around: str, build: Callable[[Any, str], tuple[dict[str, Any], schema.Type]]
    ) -> tuple[Any, schema.Type]:
        """Build a record or an enum. Its first use contains the definition; later uses only refer to it by name."""
        if cls in self.named:
            full, type_ = self.named[cls]
            space, _, short = full.rpartition(".")
            return (short if space == around else full), type_
        given = _named_types.get(cls, {})
        namespace = given.get("namespace", around)
        body, type_ = build(cls, namespace)
        self.named[cls] = (schema.full_name(cls.__name__, namespace), type_)
        self.classes[cls.__name__] = cls
        head = {
            "namespace": given.get("namespace"),
            "doc": given.get("doc") or _read_doc(cls),
            "aliases": given.get("aliases"),
            "lint": given.get("lint"),
        }
        attributes = {name: _plain(value) for name, value in head.items() if value}
        return {"type": body.pop("type"), "name": cls.__name__, **attributes, **body}, type_

    def record(self, cls: type, namespace: str, at: str) -> tuple[dict[str, Any], schema.Type]:
        fields, parsed = self.fields(cls, namespace, at)
        if len(parsed) < len(dataclasses.fields(cls)):
            raise _UnsupportedAnnotation
        return {"type": "record", "fields": fields}, schema.RecordType(cls.__name__, tuple(parsed), "")

    def enum(self, cls: type[StrEnum], _namespace: str) -> tuple[dict[str, Any], schema.Type]:
        symbols = [member.value for member in cls]
        default = _named_types.get(cls, {}).get("default")
        body = {"type": "enum", "symbols": symbols, **({} if default is None else {"default": default})}
        return body, schema.EnumType(cls.__name__, tuple(symbols), "")

    def default(self, type_: schema.Type, value: object) -> object:
        """Convert a default to its raw form."""
        try:
            raw = to_raw(type_, self.classes)(value)
            stored = schema.raw_default(type_, _default_to_json(type_, raw))
        except (InvalidValue, ValueError) as why:
            raise _UnsupportedAnnotation(f"its default {why}") from why
        read = to_typed(type_, stored, self.classes)
        if read != value or type(read) is not type(value):
            raise _UnsupportedAnnotation(f"its default {value!r} is read back as {read!r}: write that")
        return stored


class _UnsupportedAnnotation(Exception):
    """Error for an annotation that cannot be the type of a field. Its text is empty if the problem has already been
    reported for a nested field."""


def _default_to_json(type_: schema.Type, raw: Any) -> Any:
    """Convert a raw default to JSON, as it is written in a schema."""
    match type_:
        case schema.OptionalType(inner):
            return None if raw is None else _default_to_json(inner, raw)
        case schema.ArrayType(items):
            return [_default_to_json(items, each) for each in raw]
        case schema.MapType(values):
            return {key: _default_to_json(values, each) for key, each in raw.items()}
        case schema.RecordType(fields=fields):
            return {field.name: _default_to_json(field.type, raw[field.name]) for field in fields}
        case _:
            return raw.decode("latin-1") if isinstance(raw, bytes) else raw


_DECIMAL_EXAMPLE: Final = 'Annotated[Decimal, Avro("decimal(12,2)")]'
_TYPES: Final = (
    f"there are {', '.join(each.__name__ for each in _AVRO_TYPES)}, Decimal, T | None, tuple[T, ...], Mapping[str, T], "
    f"a StrEnum and a class decorated with @record; Avro(...) names one of {KINDS}"
)
_REMEDIES: Final[Mapping[Any, str]] = {
    list: "write tuple[T, ...]",
    dict: "write Mapping[str, T]",
}


def _spell(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list | set | frozenset) else value


def _is_given(value: Any) -> bool:
    """Return whether an attribute has an effect. False and an empty list have the same meaning as a missing
    attribute."""
    return value not in (None, False, "", (), [])


def iterate_declared(module: types.ModuleType) -> Iterator[type[Event]]:
    """Yield the event classes that this module itself declares, in order. Imported classes are left out."""
    for value in vars(module).values():
        if isinstance(value, type) and value.__module__ == module.__name__ and value in _contracts:
            yield value
