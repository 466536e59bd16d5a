"""What adapters describe themselves with: the settings they read, what cannot work of them, secrets and drivers.

An adapter is described in a module that loads no driver, by an object that `saga.adapters` lists: of a store as
`saga.store.adapter` says, of a broker as `saga.broker.adapter` says.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from saga.errors import ConfigurationError
from saga.readers import SettingReader

T = TypeVar("T")

Problem: TypeAlias = tuple[frozenset[str], str]
"""The fields that do not go together, and why. It is told only where each of them is right by itself."""

Severity: TypeAlias = Literal["error", "warning", "ok"]


class Finding(NamedTuple):
    """One thing that a doctor has looked at."""

    severity: Severity
    about: str
    what: str
    risk: str = ""
    """What may be lost."""
    remedy: str = ""
    """What to do."""


class Options(NamedTuple):
    """Settings that only one adapter has."""

    kind: type
    """Frozen dataclass of them: each field has a default and a text behind it that says what it is; the variable of
    `kafka_tls` is `SAGA_KAFKA_TLS`."""
    readers: Mapping[str, SettingReader]
    """How the text of each variable becomes its value."""


class Chosen(Protocol):
    """Settings, as the adapter reads them that was chosen by an address in them."""

    @property
    def broker(self) -> str: ...

    @property
    def store(self) -> str: ...

    @property
    def record_bytes_max(self) -> int: ...

    def of(self, kind: type[T]) -> T:
        """The settings that only one adapter has."""


class Adapter(Protocol):
    """What every adapter says of itself, of a broker or of a store."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """What its addresses begin with, before `://`."""

    @property
    def takes(self) -> str:
        """The form of its addresses, for the page of settings."""

    @property
    def example(self) -> str:
        """Addresses for those who gave one of no adapter."""

    @property
    def options(self) -> Options | None:
        """Its own settings."""

    def check(self, address: str) -> None:
        """Raises `ValueError`, saying what would do, for what cannot be an address of it."""

    def problems(self, settings: Chosen) -> Iterator[Problem]:
        """What cannot work of settings that are right each by itself."""


def path(text: str) -> Path | None:
    """A file that was given, or none."""
    return Path(text) if text else None


def secret(given: str, file: str) -> Callable[[], str] | None:
    """Asks for a secret anew each time: a file may have been replaced."""
    if file:
        return lambda: Path(file).read_text("utf-8").strip()
    return (lambda: given) if given else None


def secret_problems(options: object, of: str) -> Iterator[Problem]:
    """What does not go together of a password, its file, a certificate and its key."""
    names = [f"{of}_{what}" for what in ("password", "password_file", "cert_file", "key_file")]
    password, password_file, cert, key = (bool(getattr(options, name)) for name in names)
    prefix = f"SAGA_{of.upper()}"
    if password and password_file:
        yield frozenset(names[:2]), f"{prefix}_PASSWORD and {prefix}_PASSWORD_FILE are both given: keep one"
    if cert != key:
        yield frozenset(names[2:]), f"{prefix}_CERT_FILE and {prefix}_KEY_FILE belong together: give both"


def driver(extra: str, package: str, module: str) -> ModuleType:
    """The module of an adapter, with its driver. Raises `ConfigurationError` with the `pip install` that mends it."""
    try:
        import_module(package)
    except ImportError as why:
        raise ConfigurationError(
            f"{extra}://... was chosen, and its driver cannot be imported:",
            [f"{why}; pip install 'saga-choreography[{extra}]'"],
        ) from why
    try:
        return import_module(module)
    except ImportError as why:
        raise ConfigurationError(
            f"{extra}://... was chosen, and its driver has become another one:",
            [f"{why}; pip install 'saga-choreography[{extra}]' brings one that fits this release of saga"],
        ) from why
