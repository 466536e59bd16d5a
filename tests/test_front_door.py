"""What `from saga import ...` gives, and what it costs."""

import os
import subprocess
import sys

import pytest

import saga

DRIVERS = ("sqlite3", "_sqlite3", "aiokafka", "couchbase", "acouchbase", "faust", "opentelemetry", "structlog", "click")
IMPORT_S_MAX = 0.15


def test_the_front_door_has_these_names() -> None:
    assert saga.__all__ == [
        "Client",
        "DeclarationError",
        "Event",
        "Progress",
        "Retry",
        "Saga",
        "SagaError",
        "Service",
    ]
    assert dir(saga) == saga.__all__
    assert [getattr(saga, name).__name__ for name in saga.__all__] == saga.__all__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'saga' has no attribute 'Later'"):
        _ = saga.Later  # type: ignore[attr-defined] # the mistake


def test_importing_it_loads_no_driver() -> None:
    code = f"import sys, saga; print([name for name in {DRIVERS!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_importing_it_is_quick() -> None:
    code = "import time; began = time.process_time(); import saga; print(time.process_time() - began)"

    def took() -> float:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
        return float(done.stdout)

    # The best of some: what is left of the others is the machine's, and the first may have to compile.
    assert min(took() for _ in range(5)) < IMPORT_S_MAX
