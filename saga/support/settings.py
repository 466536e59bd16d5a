"""Common parts of adapter descriptions: the settings that adapters read, problems in them, secrets and drivers.

Each adapter is described by an object that `saga.configuration.adapters` lists, in a module that loads no driver.
`saga.store.adapter` defines the description of a store, `saga.broker.adapter` the description of a broker.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from saga.errors import ConfigurationError
from saga.support.addresses import is_plain
from saga.support.printable import printable, shorten

T = TypeVar("T")

OPEN_S_MAX = 14.0
"""Default for the longest time without progress, in seconds, that a process waits for its broker, stores and resources
to open."""
OPEN_S_LESS = 2.0
"""Seconds by which an adapter gives up earlier than its caller, because only the adapter knows the reason for a
failure."""
UNCLOSED: set[object] = set()
"""Driver clients that have threads of their own and are not closed yet.

While there are any, the interpreter must not be finalized normally, because the driver would abort the process and so
change its exit code.
"""
SAID_MAX = 200
"""Maximum size, in bytes, of the text that is shown for an exception raised by other code."""

Problem: TypeAlias = tuple[frozenset[str], str]
"""Names of settings that contradict each other, and an explanation. A problem is reported only if each of its settings
is valid by itself."""

Severity: TypeAlias = Literal["error", "warning", "ok"]


class Finding(NamedTuple):
    """Result of one check of `saga doctor`."""

    severity: Severity
    about: str
    what: str
    risk: str = ""
    """What may be lost if the finding is ignored."""
    remedy: str = ""
    """What to do about the finding."""


class Options(NamedTuple):
    """Settings that only one adapter has."""

    kind: type
    """Frozen dataclass with a field for each setting. Each field has a default, and a docstring that describes the
    setting. The environment variable of the field `kafka_tls` is `SAGA_KAFKA_TLS`.
    """
    readers: Mapping[str, "SettingReader"]
    """Readers of the settings, by environment variable."""


class ChosenSettings(Protocol):
    """All settings, as an adapter reads them. They contain the address of the broker or store for which the adapter was
    chosen."""

    @property
    def broker(self) -> str: ...

    @property
    def store(self) -> str: ...

    @property
    def record_bytes_max(self) -> int: ...

    @property
    def open_s(self) -> float: ...

    def of(self, kind: type[T]) -> T:
        """Return the settings that only one adapter has, given their class."""


class Adapter(Protocol):
    """Description of an adapter for a broker or a store."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """Return the schemes of the adapter's addresses: the part before `://`."""

    @property
    def takes(self) -> str:
        """Return the pattern of the adapter's addresses, such as `embedded:///FILE`, for the description of the
        settings."""

    @property
    def example(self) -> str:
        """Return an example of an address, for the error about an address that no adapter accepts."""

    @property
    def options(self) -> Options | None:
        """Return the settings that only this adapter has."""

    def check(self, address: str) -> None:
        """Check an address of this adapter. Raises `ValueError` with a message that says what is valid."""

    def problems(self, settings: ChosenSettings) -> Iterator[Problem]:
        """Yield the problems of settings that are valid by themselves but do not fit together."""


def path_of(text: str) -> Path | None:
    """Return the path of a file, or `None` for an empty text."""
    return Path(text) if text else None


def secret_reader(given: str, file: str) -> Callable[[], str] | None:
    """Return a function that reads a secret each time it is called, because the secret's file may be replaced. Return
    `None` if no secret is configured."""
    if file:
        return lambda: Path(file).read_text("utf-8").strip()
    return (lambda: given) if given else None


def read_secret(secret: Callable[[], str]) -> str:
    """Call the function that returns a secret, and return the secret.

    Raises `ValueError` with the text of any exception that the function raises, even `SystemExit`, because the function
    is user code and must not end the process.
    """
    try:
        given: object = secret()
        if not isinstance(given, str):
            raise TypeError(f"it gave {type(given).__name__}, and no str")
    except (Exception, SystemExit) as why:
        raise ValueError(shorten(printable(f"{type(why).__name__}: {why}"), SAID_MAX)) from why
    return given


def load_certificate(
    context: ssl.SSLContext, cert: Path, key: Path | None, password: Callable[[], str] | None, setting: str
) -> None:
    """Load this process's certificate into a TLS context. Raises `OSError`, `ValueError`.

    `password`: function that returns the password of the key, if the key is encrypted. `setting`: name of the
    password's setting, for errors.
    """

    def given() -> str:  # without a password function OpenSSL would prompt at the terminal and wait
        if password is None:
            raise ValueError(f"the key is encrypted: give the file with its password in {setting}")
        return read_secret(password)

    context.load_cert_chain(cert, key, given)


def secret_problems(options: object, of: str) -> Iterator[Problem]:
    """Yield a problem for each combination of password, password file, certificate and key that does not fit
    together."""
    names = [f"{of}_{what}" for what in ("password", "password_file", "cert_file", "key_file")]
    password, password_file, cert, key = (bool(getattr(options, name)) for name in names)
    prefix = f"SAGA_{of.upper()}"
    if password and password_file:
        yield frozenset(names[:2]), f"{prefix}_PASSWORD and {prefix}_PASSWORD_FILE are both given: keep one"
    if cert != key:
        yield frozenset(names[2:]), f"{prefix}_CERT_FILE and {prefix}_KEY_FILE belong together: give both"
    if getattr(options, opens := f"{of}_key_password_file", "") and not key:
        yield frozenset({opens, names[3]}), f"{prefix}_KEY_PASSWORD_FILE is given without {prefix}_KEY_FILE: give both"


def load_driver(extra: str, package: str, module: str) -> ModuleType:
    """Load the module of an adapter, with its driver.

    Raises `ConfigurationError` if the driver is missing or does not fit, with the `pip install` command that remedies
    this.
    """
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


# -------------------------------------------------------------------- setting readers


@dataclass(frozen=True, slots=True)
class SettingReader:
    """Reader of one setting's text."""

    read: Callable[[str], object]
    """Function that converts the text, without surrounding spaces, to its value. It raises `ValueError` with a message
    that says what is valid."""
    takes: str
    """Description of valid values, with unit and bounds."""
    may_show: Callable[[str], bool] = lambda _: True
    """Function that says whether an invalid text may be shown in messages and logs. It must not be shown if it may
    contain a secret."""


def number(kind: type[T], least: int, most: int, unit: str) -> SettingReader:
    """Return a reader of a number between two bounds."""
    what = f"{'a whole number' if kind is int else 'a number'} of {unit} from {least} to {most}"

    def read(text: str) -> T:
        try:
            value = msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError:
            raise ValueError(f"it must be {what}") from None
        if not least <= float(str(value)) <= most:
            raise ValueError(f"it must be {what}")
        return value

    return SettingReader(read, what)


def word(*words: str) -> SettingReader:
    """Return a reader of one of these words, in upper or lower case."""
    by_lower = {word.lower(): word for word in words}

    def read(text: str) -> str:
        if text.lower() not in by_lower:
            raise ValueError(f"it must be one of: {', '.join(words)}")
        return by_lower[text.lower()]

    return SettingReader(read, f"one of: {', '.join(words)}")


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
        raise ValueError("it must be true or false")
    return text.lower() in ("true", "yes", "1")


def text(what: str) -> SettingReader:
    """Return a reader of any text."""
    return SettingReader(str, what)


def secret(what: str) -> SettingReader:
    """Return a reader of a string that is never shown."""
    return SettingReader(str, what, lambda _: False)


def address(check: Callable[[str], object], what: str) -> SettingReader:
    """Return a reader of a URL. An invalid URL is shown only if no part of it can be a password."""
    return checked(check, what, is_plain)


def checked(
    check: Callable[[str], object], what: str, may_show: Callable[[str], bool] = lambda _: True
) -> SettingReader:
    """Return a reader of a string that `check` accepts."""

    def read(text: str) -> str:
        check(text)
        return text

    return SettingReader(read, what, may_show)


def _readable(path: str) -> str:
    try:
        with Path(path).open("rb"):
            return path
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except (OSError, ValueError) as why:  # `ValueError` for a string that cannot be a path
        reason = why.strerror if isinstance(why, OSError) else str(why)
        raise ValueError(f"it cannot be read: {reason}") from None


def _read_unencrypted(path: str) -> str:
    if b"ENCRYPTED" in Path(_readable(path)).read_bytes():
        raise ValueError("the key is encrypted, and the driver has no way to be given a password: give it decrypted")
    return path


def _folder(path: str) -> str:
    if "/" not in path:
        raise ValueError("it must be the path of a folder, with a / in it, as in /var/run/keys or ./keys")
    return path


YES_OR_NO = SettingReader(_yes_or_no, "true or false")
"""Reader of true or false."""
FILE = SettingReader(_readable, "path of a file")
"""Reader of the path of a file that this process can open."""
SECRET_FILE = SettingReader(_readable, "path of a file", lambda _: False)
"""Reader of the path of a file with a secret. The text is not shown, because someone may have given the secret itself
by mistake."""
PLAIN_KEY_FILE = SettingReader(_read_unencrypted, "path of a file, with a key that is not encrypted", lambda _: False)
"""Reader of the path of a file with a key, for a driver that cannot use an encrypted key."""
FOLDER = SettingReader(_folder, "path of a folder, with a / in it", lambda _: False)
"""Reader of the path of a folder, which need not exist yet. The text is not shown, because someone may have given a
secret by mistake."""


# -------------------------------------------------------------------- addresses
