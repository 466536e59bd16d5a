"""Check of a folder's contracts: what `saga contracts check` finds in it, each problem with the file and what to do."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from saga.contracts.compat import Break, broken
from saga.contracts.contract import DEFAULT_MODE, Contract, Mode
from saga.contracts.merged_marks import lacking_marks, with_marks_of
from saga.contracts.problems import Problem
from saga.contracts.schema import RecordType

RULES: Final[Mapping[str, str]] = {
    "contract": "A file of contracts/ cannot be used.",
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
    "utf-8": "Bytes are read as text.",
    "uuid": "Anything is read as a UUID.",
}
"""Rules of `saga contracts check`, each with a sentence."""


def incompatible(contracts: Collection[Contract]) -> list[Problem]:
    """Problems of versions that break what their modes promise; those of one version against several others are told
    once. And marks that an earlier version has, and a later one lacks."""
    groups: dict[tuple[object, ...], list[Break]] = defaultdict(list)
    for contract in contracts:
        for found in broken(contract):
            groups[found.newer.path, found.direction, found.finding].append(found)
    return [_problem(group) for group in groups.values()] + [each for c in contracts for each in _find_unmarked(c)]


def _find_unmarked(contract: Contract) -> Iterator[Problem]:
    """Problems of fields that are marked in an earlier version alone: they stay sensitive, and the file does not say
    so."""
    earlier: list[RecordType] = []
    for version in contract.versions:
        for path in lacking_marks(version.written, with_marks_of(version.written, earlier)):
            yield Problem(
                rule="sensitive",
                file=f"{version.path}.avsc",
                at=path,
                says=f"{path} is sensitive in an earlier version, and not marked in v{version.number}: it is hidden in "
                "all versions, and encrypted where there are keys",
                remedy='add "sensitive": true; for a value that nobody has to hide, add a field with another name',
            )
        earlier.append(version.written)


REASON: Final = (
    "topics, queues and archives keep messages of all versions, and services are deployed, and rolled back, "
    "independently of each other"
)
"""Reason for which the default mode is what it is."""


def modes(contracts: Iterable[Contract]) -> list[str]:
    """Modes that contracts declare in their newest versions, a line for each; the default mode with its reason."""
    names: dict[Mode, list[str]] = {DEFAULT_MODE: []}
    for contract in contracts:
        names.setdefault(contract.compatible, []).append(contract.name)
    default = names.pop(DEFAULT_MODE)
    lines = [f"{DEFAULT_MODE}, the default, because {REASON}: {counted(len(default), 'contract')}"] if default else []
    return [*lines, *(f"{mode}, as declared: {', '.join(found)}" for mode, found in names.items())]


def counted(number: int, noun: str) -> str:
    """Number of something, in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _problem(group: list[Break]) -> Problem:
    first = group[0]
    newer, older = f"v{first.newer.number}", ", ".join(f"v{found.older.number}" for found in reversed(group))
    writer, reader = (older, newer) if first.direction == "backward" else (newer, older)
    verb = "misreads" if first.finding.effect == "misread" else "cannot read"
    if first.direction == "forward" and len(group) > 1:
        verb = verb.replace("misreads", "misread")
    remedy = first.finding.remedy
    if first.direction == "forward" and all(found.older.number in found.newer.upcasts for found in group):
        remedy = (
            'it is a step in meaning ("upcasts"), which services of before cannot know: declare "compatible": '
            '"backward_transitive", and deploy all who hear it before its owner'
        )
    return Problem(
        rule=first.finding.rule,
        file=f"{first.newer.path}.avsc",
        at=first.finding.path,
        says=f"{reader} {verb} messages of {writer}: {first.finding.path} {first.finding.says}",
        remedy=remedy,
    )
