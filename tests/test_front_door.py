"""Front door: what `from saga import ...` gives, and what it costs."""

import os
import subprocess
import sys
from importlib.util import find_spec
from types import ModuleType

import pytest

import saga
from saga import testing

DRIVERS = ("sqlite3", "_sqlite3", "aiokafka", "couchbase", "acouchbase", "faust", "opentelemetry", "structlog", "click")
IMPORT_S_MAX = 0.15


def test_the_front_door_has_these_names() -> None:
    assert saga.__all__ == [
        "Avro",
        "Breaker",
        "BreakerOpen",
        "Change",
        "Client",
        "DeclarationError",
        "Delete",
        "Event",
        "Expiry",
        "Insert",
        "LastGood",
        "Later",
        "Permanent",
        "Progress",
        "Retry",
        "Saga",
        "SagaError",
        "Service",
        "Update",
        "enum_type",
        "event",
        "limited",
        "record",
        "sensitive",
        "upcast",
    ]
    assert dir(saga) == saga.__all__
    assert [getattr(saga, name).__name__ for name in saga.__all__] == saga.__all__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'saga' has no attribute 'Sooner'"):
        _ = saga.Sooner  # type: ignore[attr-defined] # the mistake


def test_importing_it_loads_nothing_and_no_name_but_the_client_a_driver() -> None:
    assert loaded("import saga") == ["saga"]
    names = ", ".join(name for name in saga.__all__ if name != "Client")
    assert "saga.service" in loaded(f"from saga import {names}")
    assert not set(DRIVERS) & set(loaded(f"from saga import {names}"))


def loaded(code: str) -> list[str]:
    """The modules that this code loads, of the toolkit and of drivers."""
    wanted = f"[name for name in sys.modules if name in {DRIVERS!r} or name.partition('.')[0] == 'saga']"
    code = f"import sys\n{code}\nprint(*{wanted})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    return done.stdout.split()


@pytest.mark.parametrize("package", [saga, testing], ids=lambda package: package.__name__)
def test_no_module_hides_a_name_of_its_package(package: ModuleType) -> None:
    assert sorted(package._HOMES) == sorted(package.__all__)
    hidden = [name for name in package.__all__ if find_spec(f"{package.__name__}.{name}")]
    assert not hidden, "once the module of that name is loaded, it is what the package gives"


def test_importing_it_is_quick() -> None:
    code = "import time; began = time.process_time(); from saga import Service; print(time.process_time() - began)"

    def took() -> float:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
        return float(done.stdout)

    # The best of some: what is left of the others is the machine's, and the first may have to compile.
    assert min(took() for _ in range(5)) < IMPORT_S_MAX
