"""Port of a schema registry: what the toolkit asks of it, its errors, and its settings.

Every adapter keeps these promises:
- An id refers to the same schema for ever.
- A schema that is registered under a subject keeps its id for ever.
- Only `register` changes anything.

Not promised: that the registry can be reached.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from saga.errors import SagaError
from saga.support import settings
from saga.support.addresses import check_registry
from saga.support.settings import Options, Problem, SettingReader, secret_problems


class RegisteredSchema(NamedTuple):
    """A schema that is registered under a subject."""

    id: int
    schema: str
    """The schema, as JSON text."""


ID_MAX = (1 << 31) - 1
"""Largest schema id. Registries read ids as signed 32-bit numbers. They answer a request for a larger one as if the
path did not exist."""


class RegistryRefused(SagaError):
    """Error for a schema that the registry refuses: it is invalid, or incompatible with the registered ones."""


class SchemaIncomplete(SagaError):
    """Error for a schema that refers to a schema which the registry does not have."""


class SchemaRegistry(AbstractAsyncContextManager["SchemaRegistry"], Protocol):
    """A schema registry. Every method raises `RegistryUnavailable` if there is no answer, or an invalid one."""

    address: str
    """Address of the registry, for messages."""

    async def __aenter__(self) -> Self:
        """Prepare a session. No request is sent yet. Raises `ConfigurationError` for certificates that cannot be
        used."""

    async def schema(self, id_: int) -> str:
        """Return the schema with this id, with its references inlined; an empty string if there is none. Raises
        `SchemaIncomplete`."""

    async def versions(self, subject: str) -> Sequence[int]:
        """Return the version numbers under a subject, oldest first; empty for an unknown subject."""

    async def version(self, subject: str, number: int) -> RegisteredSchema:
        """Return one version, with its references inlined. Raises `SchemaIncomplete`."""

    async def register(self, subject: str, schema: str) -> int:
        """Register a schema and return its id. Registering the same schema again returns the same id. Raises
        `RegistryRefused`."""


# -------------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """Settings that only the schema registry has."""

    registry: str = ""
    """Address of the schema registry, with the path of Confluent's interface if it has one. Without it nothing is read
    or written in the wire format of a registry."""
    registry_user: str = ""
    """User at the registry. Without a user, requests are anonymous."""
    registry_password: str = field(default="", repr=False)
    """The user's password."""
    registry_password_file: str = ""
    """File with the user's password, read for each request. Set this or the password."""
    registry_ca_file: str = ""
    """File with the certificate authorities to trust for the registry. No others are trusted then. If it is not given,
    the system's authorities are trusted."""
    registry_cert_file: str = ""
    """File with our certificate, if the registry requires one."""
    registry_key_file: str = ""
    """File with the key of our certificate."""
    registry_key_password_file: str = ""
    """File with the password of the certificate's key, if the key is encrypted."""


def _check_user(text: str) -> None:
    if ":" in text:
        raise ValueError("there is a colon in it, behind which the password would begin")


READERS: Mapping[str, SettingReader] = {
    "SAGA_REGISTRY": settings.address(check_registry, "https://HOST:PORT/PATH or http://HOST:PORT/PATH"),
    "SAGA_REGISTRY_USER": settings.checked(_check_user, "a name, without a colon", lambda text: ":" not in text),
    "SAGA_REGISTRY_PASSWORD": settings.secret("a password"),
    "SAGA_REGISTRY_PASSWORD_FILE": settings.SECRET_FILE,
    "SAGA_REGISTRY_CA_FILE": settings.FILE,
    "SAGA_REGISTRY_CERT_FILE": settings.FILE,
    "SAGA_REGISTRY_KEY_FILE": settings.SECRET_FILE,
    "SAGA_REGISTRY_KEY_PASSWORD_FILE": settings.SECRET_FILE,
}

OPTIONS = Options(RegistryOptions, READERS)


def problems(options: RegistryOptions) -> Iterator[Problem]:
    """Yield the problems of combinations of these settings, each of which is valid alone."""
    yield from secret_problems(options, "registry")
    password = {"registry_password", "registry_password_file"}
    if (options.registry_password or options.registry_password_file) and not options.registry_user:
        yield (
            frozenset({*password, "registry_user"}),
            "SAGA_REGISTRY_PASSWORD or SAGA_REGISTRY_PASSWORD_FILE is given without SAGA_REGISTRY_USER: give both",
        )
    if options.registry_user and options.registry.startswith("http://"):
        yield (
            frozenset({"registry_user", "registry"}),
            "SAGA_REGISTRY_USER is given, but SAGA_REGISTRY is http://, where the password would be readable over the "
            "network: use https://",
        )
    if not options.registry and options != RegistryOptions():
        yield (
            frozenset({"registry"}),
            "a setting of the schema registry is given without its address: SAGA_REGISTRY",
        )
