"""Writes the pages of `docs/reference/` that are made of the code: `python -m tests.docs.reference_pages`.

The Python API is read from signatures and docstrings, the command line from its help texts, the log lines from the
telemetry events, and the errors from their classes.
"""

import ast
import inspect
import logging
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

import click
import msgspec

import saga
import saga.testing
from saga import errors
from saga.cli.main import main
from saga.telemetry import events
from saga.telemetry.logs import ALWAYS, LEVELS, name_event
from tests.docs.markdown import ROOT
from tests.docs.test_documents import parse

FOLDER = ROOT / "docs" / "reference"
COMMAND = "make reference"
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Declare a service": ("Service", "Retry", "Breaker", "LastGood", "limited", "upcast", "sensitive"),
    "Events as classes": ("event", "record", "enum_type", "Avro"),
    "In a handler": ("Saga", "Later", "Event", "Change", "Insert", "Update", "Delete", "Expiry"),
    "From an application": ("Client", "Progress"),
    "Errors": ("SagaError", "DeclarationError", "Permanent", "BreakerOpen"),
}
"""The order of the public names; those that are in no group come at the end."""
WIDTH = 100


def pages() -> dict[Path, str]:
    """All generated pages, by their path."""
    made = {"api": api_page, "cli": cli_page, "log-events": log_page, "errors": errors_page}
    return {FOLDER / f"{name}.md": f"{make().rstrip()}\n" for name, make in made.items()}


# The Python API


def api_page() -> str:
    grouped = {name for names in GROUPS.values() for name in names}
    groups = {**GROUPS, "More": tuple(name for name in saga.__all__ if name not in grouped)}
    parts = [
        "# Python API",
        "```python\nfrom saga import Later, Saga, Service\nfrom saga.testing import World, trial\n```",
        _fill(
            "All public names, from their docstrings. What is not here may change in any release. The "
            f"[guides](../guides/README.md) show how they are used. (`{COMMAND}` writes this page.)"
        ),
    ]
    for title, names in groups.items():
        if names:
            parts += [f"## {title}", *(_describe(name, getattr(saga, name)) for name in names)]
    tested = (_describe(name, getattr(saga.testing, name)) for name in saga.testing.__all__)
    return "\n\n".join([*parts, "## In tests", "`from saga.testing import ...`", *tested])


def _describe(name: str, value: object) -> str:
    """A class with its public members, a function, or a module with its public functions."""
    parts = [f"### {name}"]
    if inspect.ismodule(value):
        functions = [each for each in vars(value).values() if inspect.isfunction(each) and _is_of(each, value)]
        parts += [_prose(value.__doc__), *(_function(f"{name}.{each.__name__}", each) for each in functions)]
    elif isinstance(value, type):
        parts += [_class(name, value)]
    elif inspect.isfunction(value):
        parts += [_function(name, value, heading=False)]
    else:
        parts += [_prose(_text_behind(name, inspect.getsourcefile(type(value))))]
    return "\n\n".join(filter(None, parts))


def _text_behind(name: str, file: str | None) -> str:
    """The text behind the assignment of a name at the top of a module."""
    assert file is not None
    body = parse(Path(file)).body
    for node, text in pairwise(body):
        match node, text:
            case ast.AnnAssign(target=ast.Name(id=found)), ast.Expr(value=ast.Constant(value=str(meaning))):
                if found == name:
                    return inspect.cleandoc(meaning)
    raise AssertionError(f"{name} has no text")


def _is_of(function: Callable[..., object], module: object) -> bool:
    return function.__module__ == getattr(module, "__name__", "") and not function.__name__.startswith("_")


def _class(name: str, kind: type) -> str:
    node = _node_of(kind)
    assert isinstance(node, ast.ClassDef)
    parts = [_prose(inspect.cleandoc(kind.__doc__ or ""))]
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and not _target(each).startswith("_")]
    if fields and not any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in node.body):
        lines = ",\n".join(f"    {ast.unparse(each)}" for each in fields)
        parts.append(f"```python\n{name}(\n{lines},\n)\n```")
    parts += [
        _member(name, each)
        for each in node.body
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and _is_shown(each)
    ]
    return "\n\n".join(filter(None, parts))


def _member(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = _prose(inspect.cleandoc(ast.get_docstring(node) or ""))
    if node.name == "__init__":
        return f"{_signature(name, node)}\n\n{text}"
    marks = {ast.unparse(each) for each in node.decorator_list}
    if "property" in marks:
        kind = "" if node.returns is None else f": {ast.unparse(node.returns)}"
        return f"#### {name}.{node.name}\n\n```python\n{node.name}{kind}\n```\n\n{text}"
    return f"#### {name}.{node.name}\n\n{_signature(node.name, node)}\n\n{text}"


def _function(name: str, function: Callable[..., object], *, heading: bool = True) -> str:
    node = _node_of(function)
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    shown = f"{_signature(name, node)}\n\n{_prose(inspect.cleandoc(function.__doc__ or ''))}"
    return f"#### {name}\n\n{shown}" if heading else shown


def _is_shown(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    marks = {ast.unparse(each) for each in node.decorator_list}
    documented = ast.get_docstring(node) is not None
    if "overload" in marks or any(mark.endswith(".setter") for mark in marks) or not documented:
        return False
    return node.name == "__init__" or not node.name.startswith("_")


def _signature(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The call as a block of Python, a parameter a line if it is long."""
    arguments = ast.parse(ast.unparse(node)).body[0]
    assert isinstance(arguments, ast.FunctionDef | ast.AsyncFunctionDef)
    positional = arguments.args.posonlyargs or arguments.args.args
    if positional and positional[0].arg in ("self", "cls"):
        del positional[0]
    returned = "" if node.name == "__init__" or node.returns is None else f" -> {ast.unparse(node.returns)}"
    prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    text = f"{prefix}{name}({ast.unparse(arguments.args).removeprefix('/, ')}){returned}"
    if len(text) > WIDTH:
        inside = ",\n".join(f"    {each}" for each in _split(ast.unparse(arguments.args).removeprefix("/, ")))
        text = f"{prefix}{name}(\n{inside},\n){returned}"
    return f"```python\n{text}\n```"


def _split(arguments: str) -> Iterator[str]:
    """The parameters of a signature: split at the commas outside of brackets."""
    depth, begin = 0, 0
    for place, sign in enumerate(arguments):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            yield arguments[begin:place].strip()
            begin = place + 1
    yield arguments[begin:].strip()


def _node_of(value: type | Callable[..., object]) -> ast.AST:
    """The definition of a class or function."""
    file = inspect.getsourcefile(value)
    assert file is not None
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [each for each in parse(Path(file)).body if isinstance(each, kinds) and each.name == value.__name__]
    return found[-1]  # overloads come before


def _target(node: ast.AnnAssign) -> str:
    return ast.unparse(node.target)


def _prose(docstring: str | None) -> str:
    """A docstring as Markdown: sections as lists, indented code as blocks. Its lines are filled."""
    parts: list[str] = []
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring or "")):
        heading, _, rest = paragraph.partition("\n")
        if heading.strip() in ("Args:", "Raises:", "Returns:") and rest.strip():
            parts.append(f"**{heading.strip().removesuffix(':')}**\n\n{_entries(textwrap.dedent(rest))}")
        elif paragraph.lstrip().startswith(">>>") or paragraph.startswith("    "):
            parts.append(f"```python\n{textwrap.dedent(paragraph)}\n```")
        elif re.search(r"^[-*] ", paragraph, re.MULTILINE):
            lead, *items = re.split(r"^[-*] ", paragraph, flags=re.MULTILINE)
            lists = "\n".join(_fill(each, "- ", "  ") for each in items)
            parts.append(f"{_fill(lead)}\n\n{lists}" if lead.strip() else lists)
        else:
            parts.append(_fill(paragraph))
    return "\n\n".join(parts)


def _entries(text: str) -> str:
    """The entries of `Args:` as a list."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith(" ") and found:
            found[-1] += f" {line.strip()}"
        else:
            found.append(line)
    return "\n".join(_fill(re.sub(r"^(\*{0,2}\w+):", r"`\1`:", each), "- ", "  ") for each in found)


def _fill(text: str, first: str = "", rest: str = "") -> str:
    return textwrap.fill(
        " ".join(text.split()),
        120,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


# The command line


def cli_page() -> str:
    listed = "\n".join(f"| [`saga {name}`](#saga-{name}) | {about} |" for name, (_, about) in _commands().items())
    parts = [
        "# Command line",
        "```sh\nsaga --help\nsaga dead replay --help\n```",
        _fill(
            "Exit codes: 0 is yes, 1 means that the answer is no, 2 that the question was wrong. Most commands take "
            f"`--json`. [Settings](settings.md) apply to all of them. (`{COMMAND}` writes this page.)"
        ),
        f"| command | what it does |\n|---|---|\n{listed}",
    ]
    for name in _commands():
        command = main.get_command(click.Context(main), name)
        assert command is not None
        parts += _helps(command, f"saga {name}", 2)
    return "\n\n".join(parts)


def _commands() -> Mapping[str, tuple[str, str]]:
    from saga.cli.main import COMMANDS

    return COMMANDS


def _helps(command: click.Command, name: str, level: int) -> Iterator[str]:
    """The help of a command, then of its commands."""
    context = click.Context(command, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH)
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"{'#' * level} {name}\n\n```text\n{text}\n```"
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            inner = command.get_command(context, each)
            assert inner is not None
            yield from _helps(inner, f"{name} {each}", level + 1)


# Log lines


def log_page() -> str:
    rows = "\n\n".join(_log_event(kind) for kind in sorted(LEVELS, key=name_event) if LEVELS[kind])
    example = '{"event": "handled", "level": "info", "service": "payment", "saga": "order-17", "type": "OrderPlaced"}'
    about = _fill(
        "`saga run` writes a line for each of these events to standard error, like the one above with more fields. "
        "`event` is its name; it never depends on data. Every line also has `time`, `level` and `service`. "
        "Of each kind at most 20 lines a minute are "
        "written, then a `suppressed` line with the number of the others; lines marked *always* are never suppressed. "
        f"[Logs](../operating/logs.md) says how to search them. (`{COMMAND}` writes this page.)"
    )
    return f"# Log events\n\n```json\n{example}\n```\n\n{about}\n\n{rows}"


def _log_event(kind: type[events.TelemetryEvent]) -> str:
    level = logging.getLevelName(LEVELS[kind]).lower() + (", *always*" if kind in ALWAYS else "")
    texts = _field_texts(kind)
    names = [each.name for each in msgspec.structs.fields(kind) if each.name != "service"]
    lines = "\n".join(_fill(f"`{name}`{': ' + texts[name] if name in texts else ''}", "- ", "  ") for name in names)
    about = _prose(f"Level: {level}. {kind.__doc__}")
    return f"## {name_event(kind)}\n\n{about}\n\n{lines}".rstrip()


@cache
def _field_texts(kind: type) -> dict[str, str]:
    """The text behind each field of a class."""
    node = _node_of(kind)
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                found[name] = meaning
    return found


# Errors


def errors_page() -> str:
    tree = inspect.cleandoc(errors.__doc__ or "").partition("\n\n")[2]
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.SagaError)]
    parts = [
        "# Errors and codes\n\n"
        "```python\nfrom saga import SagaError\n\ntry:\n    await client.publish(order)\nexcept SagaError as why:\n"
        "    print(why)  # what happened, where, and what to do next\n```\n\n"
        "| code of | where it is explained |\n|---|---|\n"
        "| a finding of `saga check` | [Findings](../guides/check.md#findings) |\n"
        "| a rule of `saga contracts lint` | [Style](contracts.md#style) |\n"
        "| a change that breaks a contract | [Table of changes](contracts.md#table-of-changes) |\n"
        "| a log line | [Log events](log-events.md) |\n"
        "| an alert | [Alerts](../operating/alerts.md) |\n"
        "| an exit code | [Command line](cli.md) |\n\n"
        f"The classes below are ordered by the reaction that they call for. (`{COMMAND}` writes this page.)\n\n"
        f"```text\n{tree}\n```"
    ]
    return "\n\n".join([*parts, *(f"## {each.__name__}\n\n{_prose(each.__doc__)}" for each in kinds)])


def write(made: Mapping[Path, str]) -> Iterable[Path]:
    for path, text in made.items():
        path.write_text(text, "utf-8")
        yield path


if __name__ == "__main__":
    list(write(pages()))
