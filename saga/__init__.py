"""Choreographed sagas: independent services, no coordinator, every effect recorded once. What a service imports.

Reading order: `Event`, `Retry`, `Service`, `Saga`; then `Client`, `Progress`, the errors. Behind them: `saga.service`
and `saga.declarations` (what is declared), `saga.contracts` (schemas), `saga.progress` (every decision, pure),
`saga.runtime` (what carries them out, from `saga.runtime.turn`), the ports `saga.broker.port` and `saga.store.port`.

Importing this loads nothing; each name is loaded when it is asked for. None of them but `Client` loads a driver, and
none opens anything.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saga.client import Client
    from saga.errors import DeclarationError, SagaError
    from saga.messages import Event
    from saga.policies.retry import Retry
    from saga.progress.look import Progress
    from saga.service import Service
    from saga.view import Saga

__all__ = ["Client", "DeclarationError", "Event", "Progress", "Retry", "Saga", "SagaError", "Service"]

_HOMES = {
    "Client": "saga.client",
    "DeclarationError": "saga.errors",
    "Event": "saga.messages",
    "Progress": "saga.progress.look",
    "Retry": "saga.policies.retry",
    "Saga": "saga.view",
    "SagaError": "saga.errors",
    "Service": "saga.service",
}
"""Module of each name. `saga.client` brings the adapters, which a service does not need; and pytest loads `saga` for
its plugin in every run, before coverage is measured."""


if not TYPE_CHECKING:  # checkers take a module with `__getattr__` to have every name

    def __getattr__(name: str) -> object:
        """Load a name from its module."""
        if name not in _HOMES:
            raise AttributeError(f"module 'saga' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
