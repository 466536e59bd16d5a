"""Code under the guard, for its tests: run something under it, and code that lies wherever a test wants it."""

import sysconfig
from collections.abc import Callable
from pathlib import Path

import saga
from saga.testing.simulation.guard import Guard, Stray

SAGA = Path(saga.__file__).parent
LIBRARIES = Path(sysconfig.get_path("purelib"))


def caught_in(call: Callable[[], object]) -> list[Stray]:
    with Guard() as guard:
        call()
    return guard.caught


def first_of(call: Callable[[], object]) -> Stray:
    caught = caught_in(call)
    assert caught, "nothing was noticed"
    return caught[0]


def placed(source: str, file: Path | str) -> Callable[..., object]:
    """The function `called` of a module with this source that lies there."""
    module: dict[str, object] = {"__name__": "placed", "__file__": str(file)}
    exec(compile(source, str(file), "exec"), module)
    called = module["called"]
    assert callable(called)
    return called
