"""Schema registry of the settings, and the broker behind it. What asks a registry is loaded only where one is set."""

from typing import cast

from saga.broker.administration import Administration
from saga.broker.port import Broker
from saga.errors import ConfigurationError
from saga.registry.edge import RegistryEdge, ToolsEdge
from saga.registry.port import SchemaRegistry
from saga.registry.settings import RegistryOptions
from saga.support.clock import Clock


def registry_at(options: RegistryOptions) -> SchemaRegistry | None:
    """Registry of these options; `None` if they name none. Raises `ConfigurationError` if what asks it is not
    installed."""
    if not options.registry:
        return None
    try:
        from saga.registry.http import HttpRegistry
    except ImportError as why:
        problem = f"SAGA_REGISTRY is set: {why}; pip install 'saga-choreography[registry]'"
        raise ConfigurationError("nothing was started:", [problem]) from why
    return HttpRegistry(options)


def tools_behind(broker: Administration, options: RegistryOptions, clock: Clock) -> Administration:
    """The broker for tools with the schema registry of these options, or as it is if they name none. Raises
    `ConfigurationError`."""
    registry = registry_at(options)
    return broker if registry is None else cast("Administration", ToolsEdge(broker, registry, clock))


def behind(broker: Broker, options: RegistryOptions, clock: Clock) -> Broker:
    """The broker with the schema registry of these options, or as it is if they name none. Raises
    `ConfigurationError`."""
    registry = registry_at(options)
    return broker if registry is None else RegistryEdge(broker, registry, clock)
