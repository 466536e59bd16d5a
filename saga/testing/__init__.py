"""The test kit: test a service alone, or a choreography in a world with every kind of fault. It needs no server.

From the smallest test to the largest:

- `a_saga`: call a handler directly;
- `migrated`: run the migrations of a state;
- `trial`: run one service;
- `World`: run several services;
- `simulate`: run the same test under many seeds;
- `crash_everywhere`: run the same test with a crash at every point.

A fake of a resource is an instance of a subclass of the resource's type, such as `class FakeBank(Bank)`.

Each name is loaded on first use, because pytest imports this package for its plugin in every test run.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saga.testing.decorators import crash_everywhere, replay, simulate
    from saga.testing.fault_plans import faults
    from saga.testing.idempotence import check_idempotent
    from saga.testing.trace_replay import check_trace
    from saga.testing.trials import Trial, a_saga, migrated, trial
    from saga.testing.world import World

__all__ = [
    "Trial",
    "World",
    "a_saga",
    "check_idempotent",
    "check_trace",
    "crash_everywhere",
    "faults",
    "migrated",
    "replay",
    "simulate",
    "trial",
]

_HOMES = {
    "Trial": "saga.testing.trials",
    "World": "saga.testing.world",
    "a_saga": "saga.testing.trials",
    "check_idempotent": "saga.testing.idempotence",
    "check_trace": "saga.testing.trace_replay",
    "crash_everywhere": "saga.testing.decorators",
    "faults": "saga.testing.fault_plans",
    "migrated": "saga.testing.trials",
    "replay": "saga.testing.decorators",
    "simulate": "saga.testing.decorators",
    "trial": "saga.testing.trials",
}
"""The module that defines each name. No module of this package may have one of these names, because the submodule would
then hide the name.
"""


if not TYPE_CHECKING:  # type checkers assume that a module with `__getattr__` has every name

    def __getattr__(name: str) -> object:
        """Import a public name from its module on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module 'saga.testing' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
