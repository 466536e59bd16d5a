"""The site is built strictly: no broken link, no page outside of the navigation, nothing from another host."""

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.docs.diagrams import COMMAND, PICTURES, diagrams, digest
from tests.docs.markdown import ROOT
from tests.docs.site_hooks import FROM_ROOT, indent_lists, resolve_links

BUILD_S_MAX = 60
PAGES = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")} | set(FROM_ROOT.values())


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", config, "--site-dir", site],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_S_MAX,
    )


def html_of(page: str) -> str:
    folder, _, name = page.rpartition("/")
    stem = "index" if name == "README.md" else name.removesuffix(".md")
    return f"{folder}/{stem}.html" if folder else f"{stem}.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", site)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


class Loaded(HTMLParser):
    """Collects what a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe"):
            self.addresses.append(values.get("src") or "")
        if tag == "link":
            self.addresses.append(values.get("href") or "")


def test_every_page_is_on_the_site_and_can_be_searched(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    found = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert {html_of(page) for page in PAGES} <= found
    assert (site / "search/search_index.js").exists(), "a browser that opens files cannot load JSON"


def test_a_page_loads_nothing_from_another_host(site: Path) -> None:
    for file in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(file.read_text("utf-8"))
        for address in filter(None, loaded.addresses):
            assert not re.match(r"(\w+:)?//", address), f"{file.name} loads {address}"
            if file.name != "404.html":  # it is served under any address
                assert (file.parent / address.partition("?")[0]).exists(), f"{file.name} loads {address}"


def test_no_link_of_a_page_leads_out_of_the_site(site: Path) -> None:
    for file in site.rglob("*.html"):
        for target in re.findall(r'href="([^"#]+)', file.read_text("utf-8")):
            if file.name == "404.html" or "://" in target or target.startswith(("mailto:", "data:")):
                continue
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_a_broken_link_a_wrong_anchor_and_a_page_outside_of_the_navigation_are_errors(tmp_path: Path) -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[0]
    hooks = ROOT / "tests/docs/site_hooks.py"
    (tmp_path / "mkdocs.yml").write_text(
        f"{text.replace('tests/docs/site_hooks.py', str(hooks))}\nnav: [index.md, contributing.md, security.md]\n"
    )
    shutil.copytree(ROOT / "docs/assets", tmp_path / "docs/assets")
    (tmp_path / "docs/index.md").write_text("# Home\n\n[one](nowhere.md) [two](lost.md#no-such-heading)\n", "utf-8")
    (tmp_path / "docs/lost.md").write_text("# Lost\n\n## A heading\n", "utf-8")
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode == 1
    problems = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
    for problem in ("nowhere.md", "lost.md#no-such-heading", "- lost.md"):
        assert any(problem in line for line in problems), f"{problem} is not reported:\n{done.stderr}"


def test_each_diagram_has_a_picture_that_was_drawn_from_it(site: Path) -> None:
    found = dict(diagrams())
    assert len(found) >= 4
    for path, text in found.items():
        assert path.exists(), f"{path.name} is missing; run {COMMAND}"
        assert f"drawn from {digest(text)} by" in path.read_text("utf-8"), f"{path.name} is old; run {COMMAND}"
        assert (site / "pictures" / path.name).exists()
    drawn = {path for path in PICTURES.glob("*.svg") if f"by {COMMAND}" in path.read_text("utf-8")}
    assert drawn == set(found), "a picture has no diagram any more"
    assert not [page for page in site.rglob("*.html") if "-->|" in page.read_text("utf-8")], (
        "a diagram is shown as text"
    )


def test_links_lead_to_pages_of_the_site_or_become_text() -> None:
    there = {
        "[`here`](../glossary.md#words)": "[`here`](../glossary.md#words)",
        "[help](../../CONTRIBUTING.md)": "[help](../contributing.md)",
        "[code](../../services/order/__init__.py)": "code",
        "[files](../deploy)": "files",
        "[their site](https://example.org/a.md)": "[their site](https://example.org/a.md)",
        "[below](#words)": "[below](#words)",
        "```\n[a](../../code.py)\n```": "```\n[a](../../code.py)\n```",
    }
    for written, shown in there.items():
        assert resolve_links(written, "docs/operating/page.md", "operating/page.md") == shown
    assert resolve_links("[a](docs/concepts/why.md)", "CONTRIBUTING.md", "contributing.md") == "[a](concepts/why.md)"


def test_a_line_behind_a_list_is_not_part_of_it() -> None:
    assert indent_lists("- one\n\n  two\n\n    code\n\nthree\n\n    code") == (
        "- one\n\n    two\n\n      code\n\nthree\n\n    code"
    )
