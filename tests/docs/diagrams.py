"""Draws the Mermaid diagrams of the documents for the site: `python -m tests.docs.diagrams`. It needs Graphviz.

Code hosts draw a Mermaid diagram themselves; the site would have to load a script for that. So each diagram has a
picture, which names the digest of the text that it was drawn from.
"""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.docs.markdown import ROOT, blocks

PICTURES = ROOT / "docs" / "pictures"
COMMAND = "python -m tests.docs.diagrams"
_STYLE = (
    'rankdir=TB; bgcolor="transparent"; fontname="sans-serif"; nodesep=0.35; ranksep=0.5;\n'
    'node [shape=box, style="rounded,filled", fillcolor="#eef2fa", color="#5b74a8", fontname="sans-serif",'
    " fontsize=11];\n"
    'edge [color="#5b6470", fontname="sans-serif", fontsize=10];'
)
_NODE = r"(?P<{0}>\w+|\[\*\])(?:\[\(?\"(?P<{0}_text>[^\"]*)\"\)?\])?"
_ARROW = re.compile(
    rf"{_NODE.format('one')}\s*(?P<arrow><-->|-->|---)(?:\|\"?(?P<label>[^|\"]*)\"?\|)?\s*{_NODE.format('other')}"
    r"(?:\s*:\s*(?P<state>.+))?"
)
_ALONE = re.compile(_NODE.format("one"))


def diagrams() -> Iterator[tuple[Path, str]]:
    """Each diagram of the documents, with the path of its picture."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        texts = [block.body for block in blocks(page.read_text("utf-8")) if block.language == "mermaid"]
        for number, text in enumerate(texts, 1):
            yield PICTURES / f"{page.stem}-{number}.svg", text


def digest(text: str) -> str:
    """The digest that the picture of a diagram names."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def to_dot(text: str) -> str:
    """A flowchart or a state diagram as Graphviz reads it.

    >>> print(to_dot('flowchart LR\\n  a["one<br>two"] -->|"calls"| b\\n').splitlines()[-3:])
    ['"a" [label="one\\\\ntwo"];', '"a" -> "b" [label="calls"];', '}']
    """
    first, *lines = text.strip().splitlines()
    drawn = ["digraph {", _STYLE]
    if first.startswith("stateDiagram"):
        drawn += ['"begin" [shape=point, width=0.12];', '"end" [shape=doublecircle, width=0.1, label=""];']
    for line in map(str.strip, lines):
        if group := re.fullmatch(r"subgraph (\w+)(?:\[\"(.*)\"\])?", line):
            drawn.append(f'subgraph "cluster_{group[1]}" {{ label="{group[2] or group[1]}"; color="#9aa5b8";')
        elif line == "end":
            drawn.append("}")
        elif line:
            drawn += _draw_line(line)
    return "\n".join([*drawn, "}"])


def _draw_line(line: str) -> Iterator[str]:
    """The nodes and arrows of a line; an arrow may follow another."""
    place, found = 0, False
    while arrow := _ARROW.match(line, place):
        found = True
        for end in ("one", "other"):
            if arrow[f"{end}_text"]:
                yield _draw_node(arrow[end], arrow[f"{end}_text"])
        ends = {"<-->": ", dir=both", "---": ", dir=none"}.get(arrow["arrow"], "")
        label = _text(arrow["label"] or arrow["state"] or "")
        one = "begin" if arrow["one"] == "[*]" else arrow["one"]
        other = "end" if arrow["other"] == "[*]" else arrow["other"]
        yield f'"{one}" -> "{other}" [label="{label}"{ends}];'
        place = arrow.start("other")
    if not found and (node := _ALONE.fullmatch(line)) is not None and node["one_text"]:
        yield _draw_node(node["one"], node["one_text"])


def _draw_node(name: str, text: str) -> str:
    return f'"{name}" [label="{_text(text)}"];'


def _text(text: str) -> str:
    return text.replace("<br>", "\\n")


def draw(text: str) -> str:
    """The picture of a diagram."""
    drawn = subprocess.run(["dot", "-Tsvg"], input=to_dot(text), capture_output=True, text=True, check=True).stdout
    svg = drawn[drawn.index("<svg") :]
    return f"<!-- drawn from {digest(text)} by {COMMAND} -->\n{re.sub(r'<!--.*?-->', '', svg, flags=re.DOTALL)}"


if __name__ == "__main__":
    for path, text in diagrams():
        path.write_text(draw(text), "utf-8")
