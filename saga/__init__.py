"""Public names of the toolkit. It runs choreographed sagas across independent services, without a coordinator.

Suggested reading order: `Event`, `Retry`, `Breaker`, `Service`, `Saga`, `Later`, `Change` (`Insert`, `Update`,
`Delete`, `Expiry`), `limited`, `LastGood`, `sensitive`, `event` (`record`, `enum_type`, `Avro`), `upcast`; then
`Client`, `Progress`, the errors. The modules behind them: `saga.service` and `saga.declarations` (declarations and
their checks), `saga.contracts` (schemas), `saga.messaging` (messages and their envelopes), `saga.progress` (all
decisions, as pure functions), `saga.engine` (carries out the decisions), the ports `saga.broker.port` and
`saga.store.port` with their adapters in the same folders, `saga.telemetry` (events, logs, metrics); then
`saga.configuration` (starts services from settings) and, for operators, `saga.ops`.

Importing this package loads none of these modules: each name is loaded at its first use. Only `Client` loads a driver,
and no import opens a connection.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from saga.change import Change, Delete, Expiry, Insert, Update
    from saga.clients.client import Client
    from saga.contracts.event_classes import Avro, enum_type, event, record
    from saga.declarations.migrations import upcast
    from saga.declarations.resources import limited
    from saga.encryption.sensitive_fields import sensitive
    from saga.errors import BreakerOpen, DeclarationError, Permanent, SagaError
    from saga.messages import Event
    from saga.policies.breaker import Breaker, LastGood
    from saga.policies.retry import Retry
    from saga.progress.document import Progress
    from saga.service import Service
    from saga.view import Later, Saga

__all__ = [
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

_HOMES = {
    "Avro": "saga.contracts.event_classes",
    "Breaker": "saga.policies.breaker",
    "BreakerOpen": "saga.errors",
    "Change": "saga.change",
    "Client": "saga.clients.client",
    "DeclarationError": "saga.errors",
    "Delete": "saga.change",
    "Event": "saga.messages",
    "Expiry": "saga.change",
    "Insert": "saga.change",
    "LastGood": "saga.policies.breaker",
    "Later": "saga.view",
    "Permanent": "saga.errors",
    "Progress": "saga.progress.document",
    "Retry": "saga.policies.retry",
    "Saga": "saga.view",
    "SagaError": "saga.errors",
    "Service": "saga.service",
    "Update": "saga.change",
    "enum_type": "saga.contracts.event_classes",
    "event": "saga.contracts.event_classes",
    "limited": "saga.declarations.resources",
    "record": "saga.contracts.event_classes",
    "sensitive": "saga.encryption.sensitive_fields",
    "upcast": "saga.declarations.migrations",
}
"""Module of each public name. The modules are loaded at first use, for two reasons: `saga.clients.client` loads the
adapters, which a service does not need; and pytest loads `saga` for its plugin in every run, before coverage is
measured."""


if not TYPE_CHECKING:  # type checkers assume that a module with `__getattr__` has every name

    def __getattr__(name: str) -> object:
        """Load a name from its module at its first use."""
        if name not in _HOMES:
            raise AttributeError(f"module 'saga' has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
