"""Writes the tables of changes in `docs/reference/contracts.md` again: `python -m tests.docs.changes_table`."""

import re

from tests.contracts.changes import CHANGES, GROUPS, Change
from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "contracts.md"
COMMAND = "python -m tests.docs.changes_table"


def page() -> str:
    """The page, with the tables as they are to be."""
    text = PAGE.read_text("utf-8")
    for name, body in (("table of changes", table()), ("differences", differences())):
        part = re.compile(rf"(<!-- {name}: {COMMAND} -->\n).*?(<!-- end of the )", re.DOTALL)
        assert part.search(text), f"the page has no place for the {name}"
        text = part.sub(rf"\g<1>\n{body}\n\n\g<2>", text)
    return text


def table() -> str:
    rows = [
        "| change | old messages, read with the new version | new messages, read with the old one |",
        "|---|---|---|",
    ]
    for title, changes in GROUPS.items():
        rows.append(f"| **{title}** | | |")
        rows += [f"| {_what(change)} | {change.backward} | {change.forward} |" for change in changes]
    return "\n".join(rows)


def differences() -> str:
    rows = ["| change | their checker |", "|---|---|"]
    rows += [f"| {_what(change)} | {change.avro} |" for change in CHANGES if change.avro]
    return "\n".join(rows)


def _what(change: Change) -> str:
    return change.what + (" *(not loaded)*" if change.refused else "")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
