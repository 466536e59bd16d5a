"""Difference of two versions of a contract, change by change: what each does to whoever reads with the one or the
other, and which services it concerns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

from saga.contracts.compat import Direction, Finding, reading
from saga.contracts.contract import DEFAULT_MODE, Version
from saga.contracts.schema import (
    MISSING,
    ArrayType,
    EnumType,
    Field,
    MapType,
    OptionalType,
    RecordType,
    Type,
    described,
)

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
"""Kinds of change to which a finding of a rule belongs; of all other rules it is `type`."""
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
    "trusted_time",
    "namespace",
    "upcasts",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Change from one version to another, of one thing."""

    kind: Kind
    old: str | None
    """Path of the field in the older version; `None` if it was not there."""
    new: str | None
    """Path in the newer version; `None` if it is gone. Of the record itself and its attributes both are empty."""
    says: str
    backward: tuple[Finding, ...] = ()
    """Effects on who reads messages of the older version with the newer."""
    forward: tuple[Finding, ...] = ()
    """Effects on who reads messages of the newer version with the older."""

    @property
    def path(self) -> str:
        """Path by which people know it."""
        return (self.old if self.new is None else self.new) or ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumer:
    """Service that reads a contract, as its manifest says."""

    service: str
    fields: frozenset[str] | None
    """Paths of the fields that its code may read, as `total` or `address.street`; `None`: all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Concern:
    """Effect of a change on one service."""

    service: str
    change: Change
    direction: Direction
    """`forward`: until it is deployed with the newer version. `backward`: as soon as it is."""
    effect: Literal["fails", "misread", "default", "gone"]
    """Effect of a `Finding`, or `gone`: its code reads a field that the newer version does not have."""
    says: str


def differences(old: Version, new: Version) -> tuple[Change, ...]:
    """Changes from an older version to a newer one, each with its effects."""
    changes = [*_attributes(old.schema, new.schema), *_records(old.written, new.written, "", "")]
    for finding in reading(old.record, new.record):
        place = _place(finding, [change.new for change in changes], changes)
        changes[place] = replace(changes[place], backward=(*changes[place].backward, finding))
    for finding in reading(new.record, old.record):
        place = _place(finding, [change.old for change in changes], changes)
        changes[place] = replace(changes[place], forward=(*changes[place].forward, finding))
    return tuple(changes)


def concerned(changes: Iterable[Change], consumers: Iterable[Consumer]) -> Iterator[Concern]:
    """Effects of changes on services.

    A message that cannot be read fails for whoever takes it; a value that is misread, or is a default now, concerns
    those that may read its field. A field that is gone, or has another name, concerns the code that reads it.
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
    """True if the code of a service may read this field, a part of it, or what it is a part of."""
    if consumer.fields is None:
        return True
    plain = path.replace("[]", "").replace("{}", "")
    return any(f"{read}.".startswith(f"{plain}.") or f"{plain}.".startswith(f"{read}.") for read in consumer.fields)


def _place(finding: Finding, paths: list[str | None], changes: list[Change]) -> int:
    """Index of the change to which a finding belongs: there always is one, as `tests/contracts/test_any_change.py`
    shows."""
    kinds = _KINDS.get(finding.rule, ("type",))
    return next(i for i, path in enumerate(paths) if path == finding.path and changes[i].kind in kinds)


def _attributes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    pairs = [(name, old.get(name), new.get(name)) for name in _ATTRIBUTES]
    pairs.append(("compatible", old.get("compatible", DEFAULT_MODE), new.get("compatible", DEFAULT_MODE)))
    for name, before, after in pairs:
        if before != after:
            yield Change(kind="attribute", old="", new="", says=f'"{name}": {_said(before)} -> {_said(after)}')


def _said(value: object) -> str:
    return "none" if value is None else repr(value)


def _records(old: RecordType, new: RecordType, at: str, there: str) -> Iterator[Change]:
    """Changes in a record. `at` and `there`: its path in the older and in the newer version."""
    if old.doc != new.doc:
        yield Change(kind="doc", old=at, new=there, says="its description")
    if old.aliases != new.aliases:
        yield Change(kind="aliases", old=at, new=there, says=f"aliases: {_names(old.aliases)} -> {_names(new.aliases)}")
    sources = _sources(old, new)
    for field in new.fields:
        path = _join(there, field.name)
        source = sources.get(field.name)
        if source is None:
            yield Change(kind="added", old=None, new=path, says=f"added: {described(field.type)}{_default(field)}")
        else:
            yield from _fields(source, field, _join(at, source.name), path)
    kept = {source.name for source in sources.values()}
    for field in old.fields:
        if field.name not in kept:
            path = _join(at, field.name)
            yield Change(kind="removed", old=path, new=None, says=f"removed: {described(field.type)}{_default(field)}")
    order = [sources[field.name].name for field in new.fields if field.name in sources]
    if order != [field.name for field in old.fields if field.name in kept]:
        yield Change(kind="order", old=at, new=there, says="its fields stand in another order")


def _sources(old: RecordType, new: RecordType) -> dict[str, Field]:
    """Field of the older record that each field of the newer one was: by an alias, else by its name."""
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


def _fields(old: Field, new: Field, at: str, there: str) -> Iterator[Change]:
    if old.name != new.name:
        alias = f", alias {old.name}"
        yield Change(kind="renamed", old=at, new=there, says=f"renamed: {old.name} -> {new.name}{alias}")
    elif old.aliases != new.aliases:
        yield Change(kind="aliases", old=at, new=there, says=f"aliases: {_names(old.aliases)} -> {_names(new.aliases)}")
    yield from _types(old.type, new.type, at, there)
    if _default(old) != _default(new):
        before, after = (_default(field).removeprefix(", default ") or "none" for field in (old, new))
        yield Change(kind="default", old=at, new=there, says=f"default: {before} -> {after}")
    if old.sensitive != new.sensitive:
        yield Change(kind="sensitive", old=at, new=there, says="sensitive" if new.sensitive else "no longer sensitive")


def _types(old: Type, new: Type, at: str, there: str) -> Iterator[Change]:
    match old, new:
        case OptionalType(before), OptionalType(after):
            yield from _types(before, after, at, there)
        case ArrayType(before), ArrayType(after):
            yield from _types(before, after, f"{at}[]", f"{there}[]")
        case MapType(before), MapType(after):
            yield from _types(before, after, f"{at}{{}}", f"{there}{{}}")
        case RecordType(), RecordType():
            if old.name != new.name:
                yield _retyped(old, new, at, there)
            yield from _records(old, new, at, there)
        case EnumType(), EnumType():
            if old.name != new.name:
                yield _retyped(old, new, at, there)
            yield from _enums(old, new, at, there)
        case _ if old != new:
            yield _retyped(old, new, at, there)
            # What became optional, or no longer is, may have changed inside, too.
            before, after = (getattr(type_, "inner", type_) for type_ in (old, new))
            if type(before) is type(after) and isinstance(before, RecordType | EnumType | ArrayType | MapType):
                yield from _types(before, after, at, there)
        case _:
            return


def _enums(old: EnumType, new: EnumType, at: str, there: str) -> Iterator[Change]:
    more = [symbol for symbol in new.symbols if symbol not in old.symbols]
    less = [symbol for symbol in old.symbols if symbol not in new.symbols]
    if more or less:
        said = [f"added {', '.join(more)}"] if more else []
        said += [f"removed {', '.join(less)}"] if less else []
        yield Change(kind="symbols", old=at, new=there, says=f"symbols: {'; '.join(said)}")
    elif old.symbols != new.symbols:
        yield Change(kind="order", old=at, new=there, says="its symbols stand in another order")
    if old.default != new.default:
        says = f"default of {described(new)}: {old.default or 'none'} -> {new.default or 'none'}"
        yield Change(kind="default", old=at, new=there, says=says)
    if old.aliases != new.aliases:
        yield Change(kind="aliases", old=at, new=there, says=f"aliases: {_names(old.aliases)} -> {_names(new.aliases)}")


def _retyped(old: Type, new: Type, at: str, there: str) -> Change:
    return Change(kind="type", old=at, new=there, says=f"type: {described(old)} -> {described(new)}")


def _default(field: Field) -> str:
    return "" if field.default is MISSING else f", default {field.default!r}"


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _join(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name
