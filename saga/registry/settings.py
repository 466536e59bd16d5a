"""Settings of the schema registry. Loads no HTTP client."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from saga.support import setting_readers
from saga.support.adapter_description import Options, Problem, secret_problems
from saga.support.addresses import check_registry
from saga.support.setting_readers import SettingReader


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """Settings that only the schema registry has."""

    registry: str = ""
    """Address of the schema registry, with the path of Confluent's interface if it has one. Without it nothing is read
    or written in the wire format of a registry."""
    registry_user: str = ""
    """User at the registry. Without one nobody is named."""
    registry_password: str = field(default="", repr=False)
    """The user's password."""
    registry_password_file: str = ""
    """File with the user's password, read anew for each question. Give this or the password."""
    registry_ca_file: str = ""
    """Authorities that signed the registry's certificate: no others are trusted. Without it those of the system."""
    registry_cert_file: str = ""
    """Our certificate, where the registry wants one."""
    registry_key_file: str = ""
    """The key of our certificate."""
    registry_key_password_file: str = ""
    """File with the password of that key, where it is encrypted."""


def _check_user(text: str) -> None:
    if ":" in text:
        raise ValueError("there is a colon in it, behind which the password would begin")


READERS: Mapping[str, SettingReader] = {
    "SAGA_REGISTRY": setting_readers.address(check_registry, "https://HOST:PORT/PATH or http://HOST:PORT/PATH"),
    "SAGA_REGISTRY_USER": setting_readers.checked(_check_user, "a name, without a colon", lambda text: ":" not in text),
    "SAGA_REGISTRY_PASSWORD": setting_readers.secret("a password"),
    "SAGA_REGISTRY_PASSWORD_FILE": setting_readers.SECRET_FILE,
    "SAGA_REGISTRY_CA_FILE": setting_readers.FILE,
    "SAGA_REGISTRY_CERT_FILE": setting_readers.FILE,
    "SAGA_REGISTRY_KEY_FILE": setting_readers.SECRET_FILE,
    "SAGA_REGISTRY_KEY_PASSWORD_FILE": setting_readers.SECRET_FILE,
}

OPTIONS = Options(RegistryOptions, READERS)


def problems(options: RegistryOptions) -> Iterator[Problem]:
    """Problems of settings that are right each by itself, but do not go together."""
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
            "SAGA_REGISTRY_USER is given, but SAGA_REGISTRY is http://, where everybody could read the password: use "
            "https://",
        )
    if not options.registry and options != RegistryOptions():
        yield (
            frozenset({"registry"}),
            "a setting of the schema registry is given without its address: SAGA_REGISTRY",
        )
