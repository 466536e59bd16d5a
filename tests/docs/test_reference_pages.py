"""The reference is complete, and is what the code says."""

import re

import click
import pytest

import saga
import saga.testing
from saga import errors
from saga.cli.main import COMMANDS, main
from saga.telemetry.logs import LEVELS, name_event
from tests.docs.markdown import prose
from tests.docs.reference_pages import COMMAND, FOLDER, pages

MADE = pages()


@pytest.mark.parametrize("page", MADE, ids=lambda path: path.name)
def test_a_page_is_what_the_code_says(page: object) -> None:
    [text] = [text for path, text in MADE.items() if path == page]
    [there] = [path.read_text("utf-8") for path in MADE if path == page]
    assert there == text, f"run: {COMMAND}"


def headings(page: str) -> list[str]:
    return re.findall(r"^#{2,5} (.+)$", prose((FOLDER / page).read_text("utf-8")), re.MULTILINE)


def test_every_public_name_is_described() -> None:
    found = headings("api.md")
    for name in (*saga.__all__, *saga.testing.__all__):
        assert name in found
    for name in ("Service.handler", "Saga.step", "Client.outcome", "World.publish"):
        assert name in found


def test_every_command_has_its_help() -> None:
    found = headings("cli.md")
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        inner = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else []
        assert {f"saga {name}", *(f"saga {name} {each}" for each in inner)} <= set(found)


def test_every_log_line_is_described() -> None:
    assert set(headings("log-events.md")) == {name_event(kind) for kind, level in LEVELS.items() if level}


def test_every_error_is_described_and_has_its_place_in_the_tree() -> None:
    kinds = {n for n, each in vars(errors).items() if isinstance(each, type) and issubclass(each, errors.SagaError)}
    assert set(headings("errors.md")) == kinds
    tree = (FOLDER / "errors.md").read_text("utf-8").partition("```text\n")[2].partition("```")[0]
    assert kinds - {"Problems", "Broken"} <= set(re.findall(r"\w+", tree))


def test_the_list_of_the_reference_names_each_page() -> None:
    listed = (FOLDER / "README.md").read_text("utf-8")
    for page in FOLDER.glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in listed
