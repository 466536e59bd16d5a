"""Documents are true: links lead somewhere, names exist, quoted code is the code."""

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from saga import Saga
from saga.messaging.names import TRANSITIONS
from tests.docs.markdown import DOCUMENTS, MODULES, ROOT, anchors, blocks, code_spans, links


@cache
def parse(path: Path) -> ast.Module:
    """The code of a file, parsed once."""
    return ast.parse(path.read_text("utf-8"))


documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())

FOLDERS = ("saga", "services", "contracts", "manifests", "docs", "tests", "benchmarks", "verification")
_PATH = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*")
_MODULE = re.compile(r"(?:saga|verification)(?:\.\w+)+")
NO_MODULES = {TRANSITIONS, "saga.client"}
"""Names that look like a module's: a topic, and a logger."""


def paragraphs(code: str) -> list[str]:
    """Its parts between two empty lines."""
    return [part.strip("\n") for part in code.split("\n\n\n")]


@documents
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in links(document.read_text("utf-8")):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        there = (document.parent / file).resolve() if file else document
        assert there.exists(), f"{target} leads nowhere"
        assert there.is_relative_to(ROOT), f"{target} leads out of the project"
        if anchor:
            assert anchor in anchors(there.read_text("utf-8")), f"{target}: there is no such heading"


@documents
def test_every_path_and_module_that_is_named_exists(document: Path) -> None:
    for span in code_spans(document.read_text("utf-8")):
        if _PATH.fullmatch(span):
            assert (ROOT / span).exists(), f"`{span}` does not exist"
        if _MODULE.fullmatch(span):
            assert exists(span), f"`{span}` does not exist"


@documents
def test_no_line_is_longer_than_120_columns(document: Path) -> None:
    long = [line for line in document.read_text("utf-8").splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long


@cache
def exists(name: str) -> bool:
    """True if a dotted name is a module, or a name in one; `saga.step` is what a handler's parameter `saga` has."""
    if name in NO_MODULES or name.partition(".")[2] in dir(Saga):
        return True
    try:
        if find_spec(name) is not None:
            return True
    except ModuleNotFoundError:
        pass
    module, _, attribute = name.rpartition(".")
    try:
        found = find_spec(module)
    except ModuleNotFoundError:
        return False
    if found is None or found.origin is None:
        return False
    return attribute in names_in(Path(found.origin))


def names_in(module: Path) -> set[str]:
    """Names that a module defines or imports at its top, also for checkers alone."""
    names: set[str] = set()
    body = parse(module).body
    for node in [*body, *(inner for outer in body if isinstance(outer, ast.If) for inner in outer.body)]:
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Assign():
                names.update(target.id for target in node.targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in node.names)
            case _:
                continue
    return names


def test_a_name_that_is_not_there_is_found() -> None:
    assert exists("saga.engine.execution.message_processor")
    assert exists("saga.errors.BadInput")
    assert exists("saga.step")
    assert not exists("saga.nowhere")
    assert not exists("saga.engine.nowhere")
    assert not exists("saga.errors.Nothing")


def modules_named_in(path: Path) -> set[str]:
    """The modules of the toolkit that the docstrings of a file name."""
    tree = parse(path)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    return {name for text in docstrings for name in re.findall(rf"`({_MODULE.pattern})`", text)}


OTHER_NAMES = {
    *("True", "False", "None"),
    *("Describe", "Write"),  # rights of Kafka
    *("DefaultSchemaSourceHandler", "RawJsonWithMetadataSourceHandler", "JsonConverter", "TopicRecordNameStrategy"),
    *("DocumentLockedException", "TemporaryFailException", "InvalidStateError", "PartitionRecords"),  # drivers
    *("OrderNote", "OrderPlacedV1", "StockTaking"),  # examples
}
"""Names in docstrings of what this project does not define."""


def identifiers_in(path: Path) -> set[str]:
    """Names that the code of a file defines or uses; words in strings and comments are none."""
    found: set[str] = set()
    for node in ast.walk(parse(path)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                found.add(name)
            case _:
                continue
    return found


def classes_named_in(path: Path) -> set[str]:
    """Names in backticks in the docstrings of a file, those of attributes too, that look like a class's."""
    nodes = ast.walk(parse(path))
    texts = [node.value.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    return {name for text in texts if isinstance(text, str) for name in re.findall(r"`([A-Z][a-z]\w+)`", text)}


def test_every_module_and_class_that_a_docstring_names_exists() -> None:  # one test: each file is parsed once
    known = set().union(*map(identifiers_in, [*MODULES, *(ROOT / "services").rglob("*.py")]))
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        for name in (
            *sorted(classes_named_in(path) - known - OTHER_NAMES),
            *(name for name in sorted(modules_named_in(path)) if not exists(name)),
        )
    ]
    assert not wrong


def test_every_page_that_a_docstring_names_exists() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        for name in re.findall(r"\bdocs/[\w/-]+\.md", path.read_text("utf-8"))
        if not (ROOT / name).exists()
    ]
    assert not wrong


QUOTED = {
    "README.md": ["services/payment/__init__.py"],
}
"""Documents that quote code, and the files that they quote, in order. What has a title is a file of the reader's."""


@pytest.mark.parametrize("document", QUOTED)
def test_quoted_code_is_the_code_that_runs(document: str) -> None:
    found = blocks((ROOT / document).read_text("utf-8"))
    quoted = [block.body for block in found if block.language == "python" and block.title is None]
    for body, path in zip(quoted, QUOTED[document], strict=True):
        code = (ROOT / path).read_text("utf-8")
        places = [code.find(f"\n{part}\n") for part in paragraphs(body.strip("\n"))]
        assert -1 not in places, f"a paragraph of {document} is not in {path}"
        assert places == sorted(places)


def test_the_crash_table_in_the_readme_is_that_of_the_heart() -> None:
    heart = ast.get_docstring(ast.parse((ROOT / "saga/engine/execution/message_processor.py").read_text("utf-8"))) or ""
    table = [line for line in heart.splitlines() if line.startswith("|")]
    assert len(table) > 5
    assert "\n".join(table) in (ROOT / "README.md").read_text("utf-8")


def test_the_readme_is_a_shop_window_whose_figures_are_true() -> None:
    from saga.testing.fault_plans import KINDS
    from verification.parallel import chosen

    readme = (ROOT / "README.md").read_text("utf-8")
    assert len(readme.splitlines()) <= 150
    assert f"{len(KINDS)} kinds of faults" in readme
    scenarios = re.search(r"more than (\d+) scenarios", readme)
    assert scenarios is not None
    assert len(chosen("", deep=False)) > int(scenarios[1])
    measured = (ROOT / "docs/concepts/benchmarks.md").read_text("utf-8")
    tortured = readme.partition("**Tortured.**")[2].partition("\n\n")[0]
    figures = re.findall(r"\b\d[\d,]{2,}\b", tortured)
    assert len(figures) >= 4
    assert [figure for figure in figures if figure not in measured] == []


def test_the_commands_in_the_readme_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", (ROOT / "README.md").read_text("utf-8")))
    assert named >= {"demo", "test"}
    assert named <= targets


def test_the_commands_in_the_documents_are_those_of_the_command_line() -> None:
    from saga.cli.main import COMMANDS

    text = "\n".join(document.read_text("utf-8") for document in DOCUMENTS)
    named = set(re.findall(r"(?:^|`)saga ([a-z][a-z-]+)", text, re.MULTILINE))
    assert named >= {"run", "publish", "sagas"}
    assert named <= set(COMMANDS)


def test_every_rule_that_the_protocol_names_is_taken_away_by_a_test() -> None:
    text = (ROOT / "docs/concepts/protocol.md").read_text("utf-8")
    lists = re.findall(r"\*\*Without it\*\*:(?: for [^`]*)?((?:\s*[^`.]*`\w+`,?)+)", text)
    named = {name for part in lists for name in re.findall(r"`(\w+)`", part)}
    taken = {name for path in sorted((ROOT / "tests/exploration").glob("test_rules*.py")) for name in _rules_in(path)}
    assert len(named) >= 12
    assert named == taken, f"{sorted(named ^ taken)} are in one of the protocol and tests/exploration/test_rules*.py"


def _rules_in(path: Path) -> set[str]:
    tree = parse(path)
    [rules] = [
        node.value
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "RULES"
    ]
    assert isinstance(rules, ast.Dict)
    return {key.id for key in rules.keys if isinstance(key, ast.Name)}


@pytest.mark.parametrize("page", sorted((ROOT / "docs/decisions").glob("[0-9]*.md")), ids=lambda path: path.stem)
def test_a_decision_answers_a_question(page: Path) -> None:
    text = page.read_text("utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Answer", "Why", "Given up", "Evidence"]
    title = text.partition("\n")[0]
    assert title.startswith(f"# {int(page.name[:2])}. "), "the title begins with the number of the page"
    assert title.endswith("?"), "the title is not a question"
    assert f"({page.name})" in (ROOT / "docs/decisions/README.md").read_text("utf-8"), "the list has no line of it"


def test_every_dependency_has_its_reason_on_record() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {re.split(r"[><=~!]", dependency)[0].strip() for dependency in project["dependencies"]}
    page = (ROOT / "docs/decisions/01-which-dependencies.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == names


def test_a_requirement_is_listed_once_with_a_module_and_what_shows_it() -> None:
    text = (ROOT / "docs/concepts/requirements.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    listed = [row for row in rows if re.fullmatch(r"[A-Z]\d+", row[0])]
    assert len(listed) == len(rows) - 2, "a row has no id"
    assert len({row[0] for row in listed}) == len(listed)
    for _, _, module, shown_by in listed:
        assert "`saga/" in module
        assert "`tests/" in shown_by
