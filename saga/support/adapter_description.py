"""Descriptions of adapters: the settings they read, what cannot work of them, their secrets and drivers.

An adapter is described in a module that loads no driver, by an object that `saga.configuration.adapters` lists: of a
store as `saga.store.adapter` says, of a broker as `saga.broker.adapter` says.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from saga.errors import ConfigurationError
from saga.support.printable import printable, shortened
from saga.support.setting_readers import SettingReader

T = TypeVar("T")

OPEN_S_MAX = 14.0
"""Seconds for which a process waits by default while nothing of what it opens comes on."""
OPEN_S_LESS = 2.0
"""Seconds by which an adapter gives up before whoever waits for it: it knows why, and they do not."""
UNCLOSED: set[object] = set()
"""Clients with threads of a driver that are not closed yet. While there are some, the interpreter must not be torn down
beside those threads: the driver would abort the process, whatever its exit code was to be."""
SAID_MAX = 200
"""Most bytes that are told of an exception that is not ours."""

Problem: TypeAlias = tuple[frozenset[str], str]
"""Fields that do not go together, and why. It is told only where each of them is right by itself."""

Severity: TypeAlias = Literal["error", "warning", "ok"]


class Finding(NamedTuple):
    """Result of one look of `saga doctor`."""

    severity: Severity
    about: str
    what: str
    risk: str = ""
    """Possible loss, if nothing is done."""
    remedy: str = ""
    """Action that mends it."""


class Options(NamedTuple):
    """Settings that only one adapter has."""

    kind: type
    """Frozen dataclass of the settings: each field has a default and a text behind it that says what it is; the
    variable of `kafka_tls` is `SAGA_KAFKA_TLS`."""
    readers: Mapping[str, SettingReader]
    """Reader of each variable's text."""


class Chosen(Protocol):
    """Settings, as an adapter reads them that was chosen by an address in them."""

    @property
    def broker(self) -> str: ...

    @property
    def store(self) -> str: ...

    @property
    def record_bytes_max(self) -> int: ...

    @property
    def open_s(self) -> float: ...

    def of(self, kind: type[T]) -> T:
        """Settings that only one adapter has, by their class."""


class Adapter(Protocol):
    """Description of an adapter, of a broker or of a store."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """Beginnings of its addresses, before `://`."""

    @property
    def takes(self) -> str:
        """Form of its addresses, for the page of settings."""

    @property
    def example(self) -> str:
        """Example of its addresses, for people who gave one of no adapter."""

    @property
    def options(self) -> Options | None:
        """Settings that only this adapter has."""

    def check(self, address: str) -> None:
        """Check an address of this adapter. Raises `ValueError` that says what would do."""

    def problems(self, settings: Chosen) -> Iterator[Problem]:
        """Problems of settings that are right each by itself, but do not go together."""


def path(text: str) -> Path | None:
    """Path of a file that was given, or `None`."""
    return Path(text) if text else None


def secret(given: str, file: str) -> Callable[[], str] | None:
    """Function that reads a secret anew each time, as its file may have been replaced; `None` if none was given."""
    if file:
        return lambda: Path(file).read_text("utf-8").strip()
    return (lambda: given) if given else None


def asked(secret: Callable[[], str]) -> str:
    """Text that the function of a secret gives. Raises `ValueError` with the words of whatever it raises: it is
    anybody's, and to end the process is not for it."""
    try:
        given: object = secret()
        if not isinstance(given, str):
            raise TypeError(f"it gave {type(given).__name__}, and no str")
    except (Exception, SystemExit) as why:
        raise ValueError(shortened(printable(f"{type(why).__name__}: {why}"), SAID_MAX)) from why
    return given


def show_certificate(
    context: ssl.SSLContext, cert: Path, key: Path | None, password: Callable[[], str] | None, setting: str
) -> None:
    """Have a TLS context show our certificate. `password`: function that gives the one with which the key is
    encrypted; `setting`: name of the setting to give it in. Raises `OSError`, `ValueError`."""

    def given() -> str:  # without it OpenSSL would ask at the terminal, and wait
        if password is None:
            raise ValueError(f"the key is encrypted: give the file with its password in {setting}")
        return asked(password)

    context.load_cert_chain(cert, key, given)


def secret_problems(options: object, of: str) -> Iterator[Problem]:
    """Problems between a password, its file, a certificate and its key."""
    names = [f"{of}_{what}" for what in ("password", "password_file", "cert_file", "key_file")]
    password, password_file, cert, key = (bool(getattr(options, name)) for name in names)
    prefix = f"SAGA_{of.upper()}"
    if password and password_file:
        yield frozenset(names[:2]), f"{prefix}_PASSWORD and {prefix}_PASSWORD_FILE are both given: keep one"
    if cert != key:
        yield frozenset(names[2:]), f"{prefix}_CERT_FILE and {prefix}_KEY_FILE belong together: give both"
    if getattr(options, opens := f"{of}_key_password_file", "") and not key:
        yield frozenset({opens, names[3]}), f"{prefix}_KEY_PASSWORD_FILE is given without {prefix}_KEY_FILE: give both"


def driver(extra: str, package: str, module: str) -> ModuleType:
    """Load the module of an adapter, with its driver. Raises `ConfigurationError` with the `pip install` that mends
    it."""
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
