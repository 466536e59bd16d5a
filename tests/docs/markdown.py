"""Reads the documents: their fenced blocks, headings, links, and the names in them; lists the modules beside them."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(path for folder in ("saga", "verification") for path in (ROOT / folder).rglob("*.py"))

_FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    language: str
    title: str | None
    """The file it is, as `title="..."` says."""
    body: str


def blocks(text: str) -> list[Block]:
    """All fenced blocks, in order."""
    found = []
    for match in _FENCE.finditer(text):
        language, _, rest = match["info"].partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        found.append(Block(language, title[1] if title else None, match["body"]))
    return found


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)


def links(text: str) -> list[str]:
    """The targets of all links."""
    return [match["target"] for match in _LINK.finditer(_CODE.sub("", prose(text)))]


def code_spans(text: str) -> list[str]:
    """Text between single backticks."""
    return [span.strip("`") for span in _CODE.findall(prose(text))]


def anchors(text: str) -> set[str]:
    """The names by which headings can be linked to."""
    headings = (match["text"] for match in _HEADING.finditer(prose(text)))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def wrong_in(files: Iterable[Path], look: Callable[[str], object]) -> dict[str, object]:
    """Whatever `look` finds in the text of each of these files, by file: there are too many for a test each."""
    found = {file.relative_to(ROOT).as_posix(): look(file.read_text("utf-8")) for file in files}
    return {name: what for name, what in found.items() if what}
