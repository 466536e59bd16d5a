"""Each verdict of the table of changes is shown by doing it: written with one version, read with the other, both
ways."""

import dataclasses
import json
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from saga.contracts import codec
from saga.contracts.compatibility import compare_schemas
from saga.contracts.contract import Version
from saga.contracts.library import Library, binding_of
from saga.contracts.loading import make_version
from saga.contracts.schema import EnumType, RecordType
from saga.errors import BadInput, ContractError
from saga.messages import Event
from tests.contracts.changes import CHANGES, Change, Verdict
from tests.contracts.folders import event, schema, write

ORDER: list[Verdict] = ["fine", "default", "misread", "fails"]
"""Verdicts, the worse ones last."""


def worst(*verdicts: Verdict) -> Verdict:
    return max(verdicts, key=ORDER.index, default="fine")


@pytest.fixture
def versions(change: Change, tmp_path: Path) -> tuple[type[Event], type[Event]]:
    """The classes of the two versions, each in a folder of its own: some could not stand in one."""
    return event(tmp_path / "old", *change.old), event(tmp_path / "new", *change.new)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)
def test_the_verdict_is_what_becomes_of_messages(
    change: Change, versions: tuple[type[Event], type[Event]], tmp_path: Path
) -> None:
    old, new = versions
    backward, forward = list(ways_of(old, new, change.says_old)), list(ways_of(new, old, change.says_new))
    left_out = list(of_what_is_left_out(old, new, change, tmp_path))
    assert worst(*backward, *left_out) == change.backward
    assert worst(*forward, *left_out) == change.forward


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)
def test_the_check_finds_the_verdict(change: Change) -> None:
    old, new = (
        make_version(schema("Said", *fields), f"orders/Said.v{number}", "Said", number).record
        for number, fields in enumerate((change.old, change.new), 1)
    )
    found = [worst(*(finding.effect for finding in compare_schemas(*pair))) for pair in ((old, new), (new, old))]
    assert found == [change.backward, change.forward]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.what)
def test_what_would_be_misread_cannot_stand_in_one_folder(change: Change, tmp_path: Path) -> None:
    write(tmp_path, schema("Said", *change.old))
    contracts = write(tmp_path, schema("Said", *change.new, compatible="none"), version=2)
    if not change.refused:
        Library.load(contracts)
        return
    with pytest.raises(ContractError, match="logical types"):
        Library.load(contracts)


def test_the_table_has_each_type() -> None:
    text = json.dumps([[change.old, change.new] for change in CHANGES])
    for kind in ("boolean", "int", "long", "float", "double", "string", "bytes", "enum", "array", "map", "record"):
        assert f'"{kind}"' in text
    for kind in ("uuid", "date", "timestamp-millis", "timestamp-micros", "decimal"):
        assert f'"logicalType": "{kind}"' in text
    assert len(CHANGES) >= 60
    assert len({change.what for change in CHANGES}) == len(CHANGES)


def ways_of(writer: type[Event], reader: type[Event], lines: Any) -> Iterator[Verdict]:
    """What becomes of each message, and of each field, from one version to the other."""
    written = version_of(writer)
    library = reading_with(reader, written)
    for line in lines:
        event = codec.from_json({"order_id": "o-1", **line}, writer)
        try:
            heard = codec.decode(codec.encode(event), reader, library)
        except BadInput:
            yield "fails"
            continue
        yield from kept(event, written.record, heard, version_of(reader).record)
        again = codec.decode(codec.encode(heard), reader, library)
        yield "fine" if again == heard else "misread"  # a float holds 32 bits when it is written


def reading_with(reader: type[Event], written: Version) -> Library:
    """The library of a class, which knows the other version too."""
    own = binding_of(reader).library
    return dataclasses.replace(own, by_fingerprint={**own.by_fingerprint, written.fingerprint: written}, readers={})


def version_of(cls: type[Event]) -> Version:
    return binding_of(cls).version


def kept(one: Any, wrote: RecordType, other: Any, reads: RecordType) -> Iterator[Verdict]:
    """What became of a record's fields."""
    for target in reads.fields:
        names = [source.name for source in wrote.fields]
        wanted = [target.name, *target.aliases]
        renamed = [source.name for source in wrote.fields if target.name in source.aliases]
        if renamed and target.name in names:  # its name means something else by now
            wanted = renamed
        name = next((name for name in wanted if name in names), None)
        if name is None:
            yield "default"
            continue
        source = wrote.field(name)
        assert source is not None
        yield from value_kept(getattr(one, name), source.type, getattr(other, target.name), target.type)


def value_kept(one: Any, wrote: Any, other: Any, reads: Any) -> Iterator[Verdict]:
    wrote, reads = getattr(wrote, "inner", wrote), getattr(reads, "inner", reads)
    match one, other:
        case tuple(), tuple():
            pairs: Any = zip(one, other, strict=True)
        case dict(), dict():
            assert one.keys() == other.keys()
            pairs = [(one[key], other[key]) for key in one]
        case Enum(), Enum():
            assert isinstance(reads, EnumType)
            known = str(one) in reads.symbols
            yield ("fine" if str(one) == str(other) else "misread") if known else "default"
            return
        case _ if dataclasses.is_dataclass(one):
            assert isinstance(wrote, RecordType)
            assert isinstance(reads, RecordType)
            yield from kept(one, wrote, other, reads)
            return
        case str(), bytes():
            yield "fine" if one.encode() == other else "misread"
            return
        case _:
            # What has another form is another thing: a day is no number, a moment no day. A UUID may be text.
            alike = type(one) is type(other) or isinstance(other, str) or {type(one), type(other)} == {int, float}
            same = str(one) == other if isinstance(other, str) else one == other or (one != one and other != other)
            yield "fine" if alike and same and not isinstance(one, Decimal) else decimals(one, other)
            return
    inside = [getattr(type_, "items", None) or getattr(type_, "values", None) for type_ in (wrote, reads)]
    for a, b in pairs:
        yield from value_kept(a, inside[0], b, inside[1])


def decimals(one: Any, other: Any) -> Verdict:
    return "fine" if isinstance(one, Decimal) and isinstance(other, Decimal) and one == other else "misread"


def of_what_is_left_out(old: type[Event], new: type[Event], change: Change, folder: Path) -> Iterator[Verdict]:
    """Whether both versions take a message without what has a default, as from before it was added, for the same."""
    bare = event(folder / "bare", *without_defaults(change.old))
    value = codec.encode(codec.from_json({"order_id": "o-1", **pruned(change.says_old[0], change.old)}, bare))
    heard = []
    for cls in (old, new):
        try:
            heard.append(codec.decode(value, cls, reading_with(cls, version_of(bare))))
        except BadInput:
            return  # which the two versions themselves report
    ways = kept(heard[0], version_of(old).record, heard[1], version_of(new).record)
    yield from (way for way in ways if way == "misread")


def without_defaults(fields: Any) -> list[dict[str, Any]]:
    bare = [dict(field) for field in fields if "default" not in field]
    for one in bare:
        if isinstance(one["type"], dict) and "fields" in one["type"]:
            one["type"] = {**one["type"], "fields": without_defaults(one["type"]["fields"])}
    return bare


def pruned(line: dict[str, Any], fields: Any) -> dict[str, Any]:
    kept_ = {one["name"]: line[one["name"]] for one in fields if "default" not in one}
    for one in fields:
        if one["name"] in kept_ and isinstance(one["type"], dict) and "fields" in one["type"]:
            kept_[one["name"]] = pruned(kept_[one["name"]], one["type"]["fields"])
    return kept_
