"""Choreographed sagas: independent services, no coordinator, every effect recorded once. What a service imports.

Reading order: `Event`, `Retry`, `Service`, `Saga`; then `Client`, `Progress`, the errors. Behind them: `saga.service`
and `saga.declarations` (what is declared), `saga.contracts` (schemas), `saga.progress` (every decision, pure),
`saga.runtime` (what carries them out, from `saga.runtime.turn`), the ports `saga.broker.port` and `saga.store.port`.

Importing this loads no driver and opens nothing.
"""

from typing import TYPE_CHECKING

from saga.errors import DeclarationError, SagaError
from saga.messages import Event
from saga.policies.retry import Retry
from saga.progress.look import Progress
from saga.service import Service
from saga.view import Saga

if TYPE_CHECKING:
    from saga.client import Client

__all__ = ["Client", "DeclarationError", "Event", "Progress", "Retry", "Saga", "SagaError", "Service"]


if not TYPE_CHECKING:  # checkers take a module with `__getattr__` to have every name

    def __getattr__(name: str) -> object:
        """`Client` is loaded when it is asked for: with it come the adapters, which a service does not need."""
        if name == "Client":
            from saga.client import Client

            return Client
        raise AttributeError(f"module 'saga' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
