"""Prepares the pages of `docs/` for the site: `mkdocs.yml` names this file as a hook of MkDocs.

The pages are written for CommonMark, as code hosts render them. The renderer of the site differs in one thing that
matters here: what belongs to an item of a list has to be indented by four columns. And the site has the pages of
`docs/` only, with the root's pages for contributors; a link to another file of the project becomes text.
"""

import posixpath
import re
from itertools import count
from typing import TYPE_CHECKING

from tests.docs.markdown import ROOT

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

FROM_ROOT = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the root that the site has too, with their names there."""

_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"(?:^ *```.*?^ *```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_MERMAID = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
_ITEM = re.compile(r"(?P<indent> *)(?P<marker>(?:[-*]|\d+\.) +)\S")


def on_files(files: "Files", *, config: "MkDocsConfig") -> "Files":
    """Add the pages of the root."""
    from mkdocs.structure.files import File

    for source, page in FROM_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Resolve the links of a page in the project, and indent its lists by four columns."""
    names = {name: source for source, name in FROM_ROOT.items()}
    source = names.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return indent_lists(resolve_links(show_pictures(markdown, page.file.src_uri), source, page.file.src_uri))


def show_pictures(markdown: str, page: str) -> str:
    """Replace each Mermaid diagram of a page by its picture, which `tests.docs.diagrams` has drawn."""
    folder, stem = posixpath.split(page.removesuffix(".md"))
    numbers = count(1)
    pictures = posixpath.relpath("pictures", folder or ".")
    return _MERMAID.sub(lambda _: f"![Diagram]({pictures}/{stem}-{next(numbers)}.svg)", markdown)


def resolve_links(markdown: str, source: str, page: str) -> str:
    """Point links of a file of the project to pages of the site, and keep the text alone of links to other files."""

    def resolve(link: re.Match[str]) -> str:
        file, hash_, anchor = link["target"].partition("#")
        if not file or "://" in file:
            return link[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(source), file))
        there = FROM_ROOT.get(there, there.removeprefix("docs/") if there.startswith("docs/") else "")
        if not there.endswith((".md", ".svg", ".png")):
            return link["text"]
        return f"[{link['text']}]({posixpath.relpath(there, posixpath.dirname(page) or '.')}{hash_}{anchor})"

    parts = _split(markdown)
    return "".join(part if is_code else _LINK.sub(resolve, part) for part, is_code in parts)


def _split(markdown: str) -> list[tuple[str, bool]]:
    """The parts of a page, each with whether it is a fenced block. Links may have code in their text."""
    parts: list[tuple[str, bool]] = []
    end = 0
    for match in _FENCE.finditer(markdown):
        if match[0].lstrip().startswith("```"):
            parts += [(markdown[end : match.start()], False), (match[0], True)]
            end = match.end()
    return [*parts, (markdown[end:], False)]


def indent_lists(markdown: str) -> str:
    """Indent what belongs to items of lists by four columns for each level.

    >>> print(indent_lists("1. one\\n   more\\n   - two\\n\\n     ```sh\\n     ls\\n     ```\\n\\nend"))
    1. one
        more
        - two
    <BLANKLINE>
            ```sh
            ls
            ```
    <BLANKLINE>
    end
    """
    contents: list[int] = []  # the columns at which the contents of the open items begin
    lines = []
    fence: int | None = None
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip() and fence is None:
            while contents and indent < contents[-1]:
                contents.pop()
        level = len(contents)
        if line.strip():
            lines.append(" " * (4 * level + max(0, indent - (contents[-1] if contents else 0))) + line.lstrip())
        else:
            lines.append("")
        if line.lstrip().startswith("```"):
            fence = indent if fence is None else None
        elif fence is None and (item := _ITEM.match(line)):
            contents.append(indent + len(item["marker"]))
    return "\n".join(lines)
