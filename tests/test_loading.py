"""Modules from which `saga run` loads services, and the errors of those it cannot load."""

from pathlib import Path

import pytest

from saga.configuration.wiring import load_services
from saga.errors import ConfigurationError

EMPTY = 'from saga import Service\n\nhollow = Service("hollow")\n'


def refusal(*names: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load_services(names)
    return str(refused.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules can be imported."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_service_that_two_modules_have_is_one() -> None:
    assert [d.name for d in load_services(["services.payment", "services.payment", "services.order"])] == [
        "payment",
        "order",
    ]


@pytest.mark.parametrize("name", ["services/payment.py", "services/payment", "services.payment:payment", "payment.py"])
def test_a_module_is_named_as_python_does(name: str) -> None:
    assert f"{name}: cannot be imported: name modules as Python does: services.payment for" in refusal(name)


@pytest.mark.parametrize("name", ["services.paymnet", "not_there", "not_there.payment"])
def test_the_searched_folder_of_a_missing_module_is_named(name: str) -> None:
    assert f"is it in the folder {Path.cwd()}, or installed?" in refusal(name)


def test_the_name_of_a_failed_inner_import_is_given(folder: Path) -> None:
    (folder / "needy.py").write_text("import absent_package\n")
    refused = refusal("needy")
    assert (
        f"needy: cannot be imported: No module named 'absent_package'; it is imported at {folder}/needy.py:1" in refused
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [("x = 1\nabsent\n", "NameError: name 'absent' is not defined"), ("x = 1\ndef (:\n", "SyntaxError: ")],
)
def test_the_failing_line_of_a_module_is_named(folder: Path, text: str, message: str) -> None:
    name = f"broken_{message.partition(':')[0].lower()}"
    (folder / f"{name}.py").write_text(text)
    refused = refusal(name)
    assert f"{name}: fails while it is imported: {message}" in refused
    assert f"{folder / name}.py:2" in refused


def test_a_service_without_handlers_is_not_run(folder: Path) -> None:
    (folder / "hollow_module.py").write_text(EMPTY)
    assert "hollow_module: the service 'hollow' has no handler" in refusal("hollow_module")


def test_a_module_without_a_service_is_not_run(folder: Path) -> None:
    (folder / "idle_module.py").write_text("")
    assert "idle_module: declares no service" in refusal("idle_module")


def test_two_services_of_one_name_are_refused(folder: Path) -> None:
    (folder / "second_payment.py").write_text(
        "from saga import Service\n"
        "from services.payment.events import OrderPlaced, PaymentReserved\n"
        'payment = Service("payment")\n'
        "@payment.handler\n"
        "async def reserve(order: OrderPlaced) -> PaymentReserved: ...\n"
    )
    message = refusal("services.payment", "second_payment")
    assert "second_payment: a second service is called 'payment'" in message


def test_all_modules_that_cannot_be_loaded_are_reported_at_once() -> None:
    message = refusal("not_there", "services/payment.py")
    assert "not_there:" in message
    assert "services/payment.py:" in message


FORGETFUL = """
from dataclasses import dataclass
from saga import Service
from services.payment.events import OrderPlaced

@dataclass(frozen=True)
class Old:
    total: str = ""

@dataclass(frozen=True)
class New:
    cents: int = 0

forgetful = Service("forgetful", state=New)

@forgetful.migrate(2)
def move(old: Old) -> New:
    return New()

@forgetful.handler
async def note(order: OrderPlaced) -> None: ...
"""


def test_a_service_whose_migrations_do_not_lead_to_its_state_is_not_run(folder: Path) -> None:
    (folder / "forgetful.py").write_text(FORGETFUL)
    message = "forgetful: the migrations of 'forgetful': nothing takes version 1: declare migrate(1)"
    assert message in refusal("forgetful")
