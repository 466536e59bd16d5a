"""Port of a schema registry.

Promised: an id means the same schema for ever; a schema registered under a subject keeps its id for ever; only
`register` changes anything.

Not promised: that the registry can be reached.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, Self

from saga.errors import SagaError


class Registered(NamedTuple):
    """A schema that is registered under a subject."""

    id: int
    schema: str
    """JSON text."""


class RegistryRefused(SagaError):
    """The registry refuses a schema: it is invalid, or incompatible with the registered ones."""


class SchemaIncomplete(SagaError):
    """A schema refers to another one that the registry does not have."""


class SchemaRegistry(AbstractAsyncContextManager["SchemaRegistry"], Protocol):
    """A schema registry. Every method raises `RegistryUnavailable` without an answer, or for an invalid one."""

    address: str
    """Address of the registry, for messages."""

    async def __aenter__(self) -> Self:
        """Prepare a session without a request. Raises `ConfigurationError` for certificates that cannot be used."""

    async def schema(self, id_: int) -> str:
        """Return the schema with this id, its references resolved; empty if there is none. Raises
        `SchemaIncomplete`."""

    async def versions(self, subject: str) -> Sequence[int]:
        """Return the version numbers under a subject, oldest first; empty for an unknown subject."""

    async def version(self, subject: str, number: int) -> Registered:
        """Return one version, its references resolved. Raises `SchemaIncomplete`."""

    async def register(self, subject: str, schema: str) -> int:
        """Register a schema and return its id, which is the same for the same schema. Raises `RegistryRefused`."""
