"""Steps in meaning between the versions of a contract: older ones that a newer one reads by an upcaster, for resolution
cannot bridge them. Its file names them: `"upcasts": [1]`."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from saga.contracts.contract import Version


def wrong_upcasts(schema: Mapping[str, Any], number: int) -> Iterator[str]:
    """Problems of the `"upcasts"` in the file of the version `number`, by itself."""
    given = schema.get("upcasts", [])
    if not isinstance(given, list) or any(type(each) is not int for each in given) or len(set(given)) < len(given):
        yield f'"upcasts" is a list of numbers of older versions, each once, as [1], not {given!r}'
        return
    for each in given:
        if not 1 <= each < number:
            yield f'"upcasts" names version {each}: it names versions before this one, {_until(number)}'


def _until(number: int) -> str:
    return "of which there are none" if number == 1 else f"from 1 to {number - 1}"


def unsettled(versions: Sequence[Version]) -> Iterator[tuple[int, str]]:
    """Problems of the steps of one contract together, each with the number of its version. `versions`: as they are
    there, oldest first.

    Versions that are read as each other mean the same. So where one of them needs an upcaster, the other does; left
    out, it would be read as what it does not mean, and nobody would notice.
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
        if first.fingerprint == third.fingerprint and (one in second.upcasts or two in third.upcasts):
            yield (
                third.number,
                f"has the fingerprint of version {one}, and version {two} between them is another step: nothing would "
                "tell which of the two wrote a message; give a field another name",
            )
    for (number, older), why in wanting.items():
        yield number, f'"upcasts" has to name version {older}, too: {why}'
    for first, second in combinations(versions, 2):
        if first.number in second.upcasts and first.fingerprint == second.fingerprint:
            yield (
                second.number,
                f"upcasts version {first.number} and has its fingerprint: nothing would tell which of the two wrote a "
                "message, and no upcaster be asked; give a field another name",
            )
