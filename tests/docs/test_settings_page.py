"""The page of settings is complete, and is what the settings say."""

import re

import pytest

from saga.configuration.settings import OTHERS, Settings, known_settings
from tests.docs.markdown import DOCUMENTS, ROOT
from tests.docs.settings_page import FLAGS, KINDS, PAGE, default_of, meanings, page

NAMES = list(KINDS)


def test_the_page_is_what_the_settings_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: make reference"


def test_every_setting_has_its_row_and_no_other_has() -> None:
    rows = re.findall(r"^\| `(SAGA_[A-Z_]+)`", PAGE.read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted([*known_settings(), *OTHERS])


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_says_what_it_is_what_to_give_and_its_default(name: str) -> None:
    variable = f"SAGA_{name.upper()}"
    (row,) = (line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| `{variable}` "))
    _, meaning, takes, default, flag = (cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1])
    assert meaning
    assert meaning == " ".join(meanings()[name].split())
    assert takes
    assert default == (f"`{default_of(name)}`" if default_of(name) else "not given")
    assert flag == FLAGS.get(name, "")


@pytest.mark.parametrize(("ending", "unit"), [("_s", "seconds"), ("bytes_max", "bytes"), ("_max", ""), ("_min", "")])
def test_a_number_says_its_unit(ending: str, unit: str) -> None:
    for name in NAMES:
        if name.endswith(ending) and isinstance(getattr(KINDS[name](), name), int | float):
            assert re.search(rf"number of {unit or '[a-z]+'} from", known_settings()[f"SAGA_{name.upper()}"].takes), (
                name
            )


def test_what_the_page_says_of_defaults_can_be_given() -> None:
    given = {f"SAGA_{name.upper()}": default_of(name) for name in NAMES}
    assert Settings.read(given) == Settings()


@pytest.mark.parametrize(
    ("other", "link"),
    [("docs/index.md", "(reference/settings.md)"), ("docs/operating/README.md", "(../reference/settings.md)")],
)
def test_the_page_is_found_from_others(other: str, link: str) -> None:
    assert link in (ROOT / other).read_text("utf-8")


NAMING = sorted(
    path
    for path in (
        *(page for page in DOCUMENTS if page.name != "CHANGELOG.md"),
        *ROOT.glob("docker-compose*.yml"),
        ROOT / "Makefile",
        *(ROOT / "deploy").rglob("*"),
        *(ROOT / "saga" / "scaffold" / "templates").rglob("*"),
    )
    if path.is_file() and path.suffix != ".pyc"
)
"""Files that tell users, or the programs that they start, to set variables.
The changelog also names variables of the past.
"""
NOT_VARIABLES = {"SAGA_ID", "SAGA_PAYMENT_SERVICE_HOST"}
"""An argument of commands, and the example of what Kubernetes sets, which comes together with a port."""


def test_no_variable_that_we_tell_users_to_set_makes_a_command_fail() -> None:
    names = {
        name: path for path in NAMING for name in re.findall(r"\bSAGA_[A-Z0-9_]*[A-Z0-9]\b", path.read_text("utf-8"))
    }
    others = names.keys() - known_settings().keys() - NOT_VARIABLES
    assert "SAGA_SERVERS" in others
    assert Settings.read(dict.fromkeys(others - {"SAGA_CONFIG"}, "x")) == Settings()
