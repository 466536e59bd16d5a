"""Any change of a schema, allowed or not: for properties over chains of versions."""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from hypothesis import strategies as st

from saga.contracts.compatibility import find_breaks
from saga.contracts.library import Library
from saga.errors import ContractError
from tests.contracts.anyschema import FIELDS, PLAIN, WORDS, Draw, Names, defaults, fields, types
from tests.contracts.folders import schema, write

Fields: TypeAlias = list[dict[str, Any]]
Change: TypeAlias = Callable[[Draw, Names, Fields, int], None]
TRIES = 8
"""Changes that are tried for each version, at most."""
_WIDER = {"int": "long", "long": "double", "float": "double", "string": "bytes"}


def chain(draw: Draw, folder: Path, mode: str, length: int) -> Library:
    """Contracts with versions of `Said`, each made of the one before by changes that the mode allows; perhaps fewer."""
    names, numbers = Names(), count(1)
    whole = schema("Said", *fields(draw, names, 2, least=1), compatible=mode)
    library = Library.load(write(folder, whole))
    for version in range(2, length + 1):
        for _ in range(TRIES):
            tried = changed(draw, whole, names, next(numbers), CHANGES)
            found = _allowed(write(folder, tried, version=version), version)
            if found is not None:
                whole, library = tried, found
                break
        else:
            break
    return library


def changed(draw: Draw, whole: dict[str, Any], names: Names, number: int, changes: Sequence[Change]) -> dict[str, Any]:
    """The schema with one of these changes, at any depth. `number`: makes the names in it new."""
    tried = deepcopy(whole)
    inside = draw(st.sampled_from(list(_field_lists(tried["fields"]))))
    draw(st.sampled_from(changes))(draw, names, inside, number)
    return tried


def _allowed(contracts: Path, version: int) -> Library | None:
    """Contracts, if the newest version keeps its promise; else that is taken away again."""
    try:
        library = Library.load(contracts)
        if not any(find_breaks(library.contracts["Said"])):
            return library
    except ContractError:
        pass
    (contracts / "orders" / f"Said.v{version}.avsc").unlink()
    return None


def _field_lists(given: Fields) -> Iterator[Fields]:
    """Fields of a record and of the records in it; the key stays outermost, where it is."""
    yield given
    for each in given:
        match each["type"]:
            case {"fields": inside} | {"items": {"fields": inside}} | {"values": {"fields": inside}}:
                yield from _field_lists(inside)
            case [{"fields": inside}, _] | [_, {"fields": inside}]:
                yield from _field_lists(inside)
            case _:
                pass


def _one(draw: Draw, given: Fields) -> dict[str, Any] | None:
    """Some field, but not the key."""
    others = [each for each in given if each["name"] != "order_id"]
    return draw(st.sampled_from(others)) if others else None


def _adds(draw: Draw, names: Names, given: Fields, number: int) -> None:
    type_ = types(draw, names, 1)
    default = {"default": defaults(draw, type_)} if draw(st.integers(0, 3)) else {}
    given.insert(draw(st.integers(0, len(given))), {"name": f"new{number}", "type": type_, **default})


def _removes(draw: Draw, names: Names, given: Fields, number: int) -> None:
    if (one := _one(draw, given)) is not None:
        given.remove(one)


def _renames(draw: Draw, names: Names, given: Fields, number: int) -> None:
    if (one := _one(draw, given)) is not None:
        one |= {"name": f"new{number}", "aliases": [one["name"]]}


def _widens(draw: Draw, names: Names, given: Fields, number: int) -> None:
    one = _one(draw, given)
    if one is not None and isinstance(one["type"], str):
        one["type"] = _WIDER.get(one["type"], one["type"])


def _has_another_default(draw: Draw, names: Names, given: Fields, number: int) -> None:
    if (one := _one(draw, given)) is not None:
        one["default"] = defaults(draw, one["type"])


def _may_be_absent(draw: Draw, names: Names, given: Fields, number: int) -> None:
    one = _one(draw, given)
    if one is not None and not isinstance(one["type"], list):
        one["type"] = [one["type"], "null"]


def _has_more_symbols(draw: Draw, names: Names, given: Fields, number: int) -> None:
    one = _one(draw, given)
    if one is not None and isinstance(one["type"], dict) and "symbols" in one["type"]:
        one["type"]["symbols"].append(f"NEW{number}")
        if draw(st.booleans()):
            one["type"]["default"] = one["type"]["symbols"][0]


def _is_in_another_order(draw: Draw, names: Names, given: Fields, number: int) -> None:
    given[:] = draw(st.permutations(given))


CHANGES: list[Change] = [
    _adds,
    _adds,
    _removes,
    _renames,
    _widens,
    _has_another_default,
    _may_be_absent,
    _has_more_symbols,
    _is_in_another_order,
]


def _has_another_type(draw: Draw, names: Names, given: Fields, number: int) -> None:
    if (one := _one(draw, given)) is not None:
        before, one["type"] = one["type"], _near(draw, names, one["type"])
        if "default" in one and one["type"] != before:
            one["default"] = defaults(draw, one["type"])


def _takes_any_name(draw: Draw, names: Names, given: Fields, number: int) -> None:
    """Renames a field to what another one may have been called before, and may lose or keep aliases."""
    if (one := _one(draw, given)) is not None:
        free = FIELDS.filter(lambda name: all(name != other["name"] for other in given))
        aliases = [one["name"], *one.get("aliases", [])]
        one |= {"aliases": draw(st.sampled_from([aliases, aliases[:1], aliases[1:], []])), "name": draw(free)}


def _near(draw: Draw, names: Names, type_: Any) -> Any:
    """Another type in the place of one, mostly one that is near to it."""
    match type_:
        case [_, _] if draw(st.booleans()):
            return [_near(draw, names, one) if one != "null" else one for one in type_]
        case [_, _]:
            return draw(st.sampled_from([type_[::-1], next(one for one in type_ if one != "null")]))
        case {"symbols": symbols}:
            more = draw(st.lists(WORDS.filter(lambda word: word not in symbols), max_size=2, unique=True))
            kept = draw(st.lists(st.sampled_from(symbols), min_size=1, unique=True))
            default = {"default": draw(st.sampled_from(kept))} if draw(st.booleans()) else {}
            rest = {key: value for key, value in type_.items() if key not in ("symbols", "default")}
            return {**rest, **_called(draw, names, rest["name"]), "symbols": kept + more, **default}
        case {"logicalType": "decimal", "precision": precision, "scale": scale}:
            digits = max(scale, 1, precision + draw(st.integers(-2, 2)))
            return {**type_, "precision": digits, "scale": draw(st.sampled_from([scale, scale, 0]))}
        case {"items": inner}:
            return {**type_, "items": _near(draw, names, inner)}
        case {"values": inner}:
            return {**type_, "values": _near(draw, names, inner)}
        case {"fields": _}:
            return {**type_, **_called(draw, names, type_["name"])}
        case _:
            return draw(st.sampled_from([["null", type_], draw(st.sampled_from(PLAIN)), types(draw, names, 1)]))


def _called(draw: Draw, names: Names, name: str) -> dict[str, Any]:
    """The same name, or another one with an alias or without."""
    if draw(st.integers(0, 3)):
        return {}
    return {"name": names.next(draw, "Type"), "aliases": draw(st.sampled_from([[name], []]))}


ANY: list[Change] = [*CHANGES, _has_another_type, _has_another_type, _takes_any_name]
"""Changes of which many are never allowed, too."""
