"""Problems of contracts, as commands tell them: in words, as JSON, and as SARIF 2.1.0, which reviews show."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import quote

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Problem in a file: of a contract, or of a generated module."""

    rule: str
    """Name of the rule that finds it: `no-default`."""
    file: str
    """Path of the file, with `/`."""
    at: str = ""
    """Path of the field in it, `items[].price`; empty for the file as a whole."""
    line: int = 1
    """Line of the file on which the field is defined, or the first."""
    says: str
    """Words that say what is wrong, whole without the path."""
    remedy: str = ""
    """Words that say what to do."""
    lines: tuple[str, ...] = ()
    """Lines that show it, as those of a difference."""

    def __str__(self) -> str:
        remedy = f"; {self.remedy}" if self.remedy else ""
        return "\n".join([f"{self.file}: {self.says}{remedy} [{self.rule}]", *self.lines])


def as_json(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Problems as JSON has them."""
    return [asdict(problem) | {"lines": list(problem.lines)} for problem in problems]


def as_sarif(problems: Iterable[Problem], rules: Mapping[str, str], version: str) -> dict[str, Any]:
    """Problems as a SARIF log. `rules`: a sentence for each rule; `version`: that of the toolkit."""
    found = list(problems)
    names = sorted({problem.rule for problem in found} | set(rules))
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "saga contracts",
                        "semanticVersion": version,
                        "rules": [{"id": name, "shortDescription": {"text": rules.get(name, name)}} for name in names],
                    }
                },
                "results": [_result(problem, names.index(problem.rule)) for problem in found],
            }
        ],
    }


def _result(problem: Problem, rule: int) -> dict[str, Any]:
    remedy = f"; {problem.remedy}" if problem.remedy else ""
    place = {"artifactLocation": {"uri": quote(problem.file)}, "region": {"startLine": problem.line}}
    location: dict[str, Any] = {"physicalLocation": place}
    if problem.at:
        location["logicalLocations"] = [{"fullyQualifiedName": problem.at, "kind": "member"}]
    return {
        "ruleId": problem.rule,
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": "\n".join([f"{problem.says}{remedy}", *problem.lines])},
        "locations": [location],
    }
