"""Port of a schema registry.

Promises: an id means the same schema for ever; a schema under a subject has an id for ever. What is asked changes
nothing, except `register`. Not promised: that the registry is there.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, Self

from saga.errors import SagaError


class Registered(NamedTuple):
    """Schema under a subject."""

    id: int
    schema: str
    """JSON text."""


class RegistryRefused(SagaError):
    """Refusal of a schema by the registry: it does not go together with those that are there, or is none."""


class SchemaIncomplete(SagaError):
    """Schema that refers to another one, which the registry does not have."""


class SchemaRegistry(AbstractAsyncContextManager["SchemaRegistry"], Protocol):
    """Registry of schemas. Everything raises `RegistryUnavailable` when there is no answer, or one that makes no
    sense."""

    address: str
    """Address of the registry, for people."""

    async def __aenter__(self) -> Self:
        """Be ready to ask; nobody is asked yet. Raises `ConfigurationError` for certificates that cannot be used."""

    async def schema(self, id_: int) -> str:
        """Text of the schema with this id, with all that it refers to in it; empty if there is none. Raises
        `SchemaIncomplete`."""

    async def versions(self, subject: str) -> Sequence[int]:
        """Numbers of the schemas under a subject, oldest first; none if there is no such subject."""

    async def version(self, subject: str, number: int) -> Registered:
        """One of them, with all that it refers to in it. Raises `SchemaIncomplete`."""

    async def register(self, subject: str, schema: str) -> int:
        """Register a schema, which has an id then; the same again has the same id. Raises `RegistryRefused`."""
