"""Check a folder of manifests, leaving out the findings that a team has accepted in a file under version control."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from saga.choreography.check.reports import format_verdict
from saga.choreography.check.verdicts import (
    ADVICE,
    CheckFinding,
    ChoreographyVerdict,
    PropertyVerdict,
    check_manifests,
)
from saga.choreography.manifest import Manifest
from saga.choreography.releases import read_manifests
from saga.errors import ConfigurationError
from saga.support.printable import quote_text

FILE = "accepted.toml"
"""Name of the file with the accepted findings; it is in the folder of the manifests."""
OLDEST_FORMAT = 2
"""Oldest manifest format that lists which events a handler emits together. The check needs this list."""
_FIELDS = ("code", "subject", "reason")


@dataclass(frozen=True, slots=True)
class AcceptedFinding:
    """A finding that a team has accepted, with the reason."""

    code: str
    subject: str
    reason: str


def read_accepted(path: Path) -> tuple[AcceptedFinding, ...]:
    """Read the accepted findings from a file; none if the file does not exist. Raises a `ConfigurationError` that lists
    all problems of the file."""
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as why:
        raise ConfigurationError(f"{path} cannot be used:", [f"it cannot be read: {why}"]) from why
    problems = [f"it has {quote_text(name)}: write [[finding]] entries only" for name in given if name != "finding"]
    entries = given.get("finding", [])
    found: list[AcceptedFinding] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else [entries], start=1):
        if problem := _find_problem(entry):
            problems.append(f"entry {number}: {problem}")
        else:
            found.append(AcceptedFinding(**entry))
    if problems:
        raise ConfigurationError(f"{path} cannot be used:", problems)
    return tuple(found)


def _find_problem(entry: object) -> str:
    """Return what is wrong with an entry; empty if it is usable."""
    if not isinstance(entry, Mapping) or sorted(entry) != sorted(_FIELDS):
        return "give it code, subject and reason, and nothing else"
    if not all(isinstance(entry[name], str) and entry[name].strip() for name in _FIELDS):
        return "code, subject and reason must be strings that are not empty"
    if entry["code"] not in ADVICE:
        return f"there is no code {quote_text(entry['code'])}; there are {', '.join(ADVICE)}"
    return ""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The verdicts on all choreographies of a folder."""

    verdicts: tuple[ChoreographyVerdict, ...]
    used: tuple[tuple[CheckFinding, AcceptedFinding], ...] = ()
    """Findings that were left out, each with the entry that accepts it."""
    unused: tuple[AcceptedFinding, ...] = ()
    """Entries that match no finding."""

    @property
    def is_proved(self) -> bool:
        """Return whether every property is proved. Accepted and noted findings do not count as violations."""
        return all(each.status in ("proved", "accepted") for each in self.verdicts)

    @property
    def report(self) -> str:
        """Return the verdicts as text, for the message of a failing test."""
        return "\n".join(line for each in self.verdicts for line in format_verdict(each, None))


def check_folder(folder: Path) -> CheckResult:
    """Check the manifests in a folder, leaving out the findings that the folder's `accepted.toml` accepts.

    Raises `ConfigurationError` if the folder has no manifest, or a file in it cannot be used.
    """
    manifests = read_manifests(folder)
    if not manifests:
        raise ConfigurationError("there is no manifest:", [f"{folder} has none: write it with saga manifest --write"])
    return accept(check_manifests(refuse_old_formats(manifests).values()), read_accepted(folder / FILE))


def refuse_old_formats(manifests: Mapping[str, Manifest]) -> Mapping[str, Manifest]:
    """Return the manifests unchanged. Raises `ConfigurationError` if some have a format that does not list which events
    a handler emits together."""
    problems = [
        f"{service}: its manifest has format {each.format}; write it again: saga manifest --write"
        for service, each in manifests.items()
        if each.format < OLDEST_FORMAT
    ]
    if problems:
        raise ConfigurationError("these manifests are too old to be checked:", problems)
    return manifests


def accept(verdicts: Sequence[ChoreographyVerdict], accepted: Sequence[AcceptedFinding]) -> CheckResult:
    """Remove accepted findings from verdicts. A property gets the status `accepted` if all its findings are
    accepted."""
    by_key = {(each.code, each.subject): each for each in accepted}
    used: list[tuple[CheckFinding, AcceptedFinding]] = []
    judged = []
    for verdict in verdicts:
        properties = tuple(_accept_property(each, by_key, used) for each in verdict.properties)
        judged.append(replace(verdict, properties=properties))
    fitting = {entry for _, entry in used}
    return CheckResult(tuple(judged), tuple(used), tuple(each for each in accepted if each not in fitting))


def _accept_property(
    verdict: PropertyVerdict,
    by_key: Mapping[tuple[str, str], AcceptedFinding],
    used: list[tuple[CheckFinding, AcceptedFinding]],
) -> PropertyVerdict:
    mine = [(each, by_key[each.key]) for each in verdict.findings if each.key in by_key]
    used += mine
    left = tuple(each for each in verdict.findings if each.key not in by_key)
    if mine and not left:
        return replace(verdict, status="accepted", how="; ".join(e.reason for _, e in mine), findings=())
    return replace(verdict, findings=left)
