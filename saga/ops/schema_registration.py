"""Registration of contracts in a schema registry, which only operators do, and the doctor's check of the registry."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from saga.configuration.settings import Settings
from saga.contracts.contract import Contract, Version
from saga.contracts.foreign_values import registered_text
from saga.contracts.library import Library
from saga.declarations.values import Declared
from saga.engine.prepared_service import get_consumed_contracts, get_emitted_contracts
from saga.errors import ConfigurationError
from saga.registry.edge import UNSET, RegistryCache, create_registry
from saga.registry.port import RegistryOptions, RegistryRefused, SchemaRegistry
from saga.support.clock import Clock
from saga.support.settings import Finding


@dataclass(frozen=True, slots=True)
class Registration:
    """Result of registering one version of a contract."""

    path: str
    subject: str
    id: int | None
    """Schema id of the version; `None` if the registry refused it."""
    was_there: bool
    """True if the version had been registered before."""
    refused: str = ""
    """Reason why the registry refused the version; empty if it accepted it."""


def find_registrable(library: Library, names: Collection[str] = ()) -> list[Contract]:
    """Return the contracts whose topics use the registry's wire format: all of them, or those with these names."""
    return [each for each in library.contracts.values() if each.subject and (not names or each.name in names)]


async def register(contracts: Iterable[Contract], settings: Settings, clock: Clock) -> list[Registration]:
    """Register all versions of these contracts, oldest first. If a version is refused, the newer versions of its
    contract are skipped.

    Raises `ConfigurationError` if no registry is set, and `RegistryUnavailable` if it cannot be reached.
    """
    done: list[Registration] = []
    async with _open_registry(settings) as registry:
        known = RegistryCache(registry, clock)
        for contract in contracts:
            for version in contract.versions:
                done.append(await _register_version(known, contract, version))
                if done[-1].id is None:
                    break
    return done


async def _register_version(known: RegistryCache, contract: Contract, version: Version) -> Registration:
    id_ = await known.id_of(contract, version)
    if id_ is not None:
        return Registration(version.path, contract.subject, id_, was_there=True)
    try:
        id_ = await known.registry.register(contract.subject, registered_text(version))
    except RegistryRefused as why:
        return Registration(version.path, contract.subject, None, was_there=False, refused=str(why))
    return Registration(version.path, contract.subject, id_, was_there=False)


def _open_registry(settings: Settings) -> SchemaRegistry:
    registry = create_registry(settings.of(RegistryOptions))
    if registry is None:
        raise ConfigurationError("nothing was registered:", ["no schema registry is set: SAGA_REGISTRY"])
    return registry


async def check_registry(services: Collection[Declared], settings: Settings, clock: Clock) -> list[Finding]:
    """Check that the registry has the schemas of all events that these services emit. Raises `RegistryUnavailable` if
    it cannot be reached."""
    emitted, consumed = get_emitted_contracts(services), get_consumed_contracts(services)
    needed = [contract for contract, _ in emitted if contract.subject] + [each for each in consumed if each.subject]
    if not needed:
        return []
    registry = create_registry(settings.of(RegistryOptions))
    if registry is None:
        topics = dict.fromkeys(contract.topic for contract in needed)
        return [
            Finding("error", topic, UNSET.format(topic=topic), "no service that reads or writes it starts", "set it")
            for topic in topics
        ]
    about, found = f"registry {registry.address}", list[Finding]()
    async with registry:
        known = RegistryCache(registry, clock)
        for contract, version in emitted:
            if contract.subject and await known.id_of(contract, version) is None:
                found.append(
                    Finding(
                        "error",
                        about,
                        f"{version.path} is not registered as {contract.subject}",
                        "no service that emits it starts",
                        "saga contracts register",
                    )
                )
        if not found:
            await registry.versions(needed[0].subject)  # any answer shows that the registry can be reached
            found.append(Finding("ok", about, "it has the schemas of all emitted events"))
    return found
