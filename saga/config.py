"""Settings, from the environment: read once, checked as a whole, handed on as values."""

import difflib
import os
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, TypeVar

import msgspec

from saga.errors import ConfigurationError

T = TypeVar("T")

OTHERS = frozenset({"SAGA_CONTRACTS"})
"""Read elsewhere: where the contracts are."""
TEST_PREFIX = "SAGA_TEST_"
"""Whatever begins so belongs to tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be set, each by the variable in its description. The defaults need no server."""

    broker: str = "embedded:///.saga/broker.db"
    """SAGA_BROKER: where the log is."""
    store: str = "sqlite:///.saga/{service}.db"
    """SAGA_STORE: where a service keeps its documents; `{service}` stands for its name."""
    inflight_max: int = 1000
    """SAGA_INFLIGHT_MAX: messages in flight per worker; a quarter of them at most from one partition."""
    cache_max: int = 2000
    """SAGA_CACHE_MAX: progress documents kept in memory per service."""
    drain_s: float = 20.0
    """SAGA_DRAIN_S: how many seconds what runs may take to end, when the service is to stop."""
    log: Literal["auto", "json", "text"] = "auto"
    """SAGA_LOG: how lines are written; `auto` is `text` on a terminal, else `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """SAGA_LOG_LEVEL: the least that is written."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """From variables; those that are absent or empty have their defaults.

        Raises `ConfigurationError` with all problems at once. Names that begin with `SAGA_` and mean nothing are
        problems too: a typing error would otherwise go unnoticed until it hurts.
        """
        given = {name: text for name, text in environ.items() if name.startswith("SAGA_") and text.strip()}
        values: dict[str, object] = {}
        problems: list[str] = []
        for name in sorted(given):
            if name in OTHERS or name.startswith(TEST_PREFIX):
                continue
            if name not in READERS:
                problems.append(_unknown(name))
                continue
            try:
                values[name.removeprefix("SAGA_").lower()] = READERS[name](given[name].strip())
            except ValueError as why:
                problems.append(f"{name} is {given[name]!r}: {why}")
        if problems:
            raise ConfigurationError("The settings cannot work", problems)
        return msgspec.convert(values, cls)

    @classmethod
    def from_environment(cls) -> Self:
        """From the variables of this process. Raises `ConfigurationError`."""
        return cls.read(os.environ)

    @property
    def broker_path(self) -> Path:
        """The file of the embedded broker."""
        return embedded_path(self.broker)

    def store_path(self, service: str) -> Path:
        """The file of a service's store."""
        return sqlite_path(self.store, service)

    @staticmethod
    def broker_path_of(address: str) -> Path:
        """The file of the embedded broker at an address that somebody gave. Raises `ConfigurationError`."""
        with _telling(f"The broker's address {address!r}"):
            return embedded_path(address)

    @staticmethod
    def store_path_of(address: str) -> Path:
        """The file of the stores at an address that somebody gave, `{service}` still in it. Raises
        `ConfigurationError`."""
        with _telling(f"The store's address {address!r}"):
            return Path(sqlite_template(address))


@contextmanager
def _telling(what: str) -> Iterator[None]:
    try:
        yield
    except ValueError as why:
        raise ConfigurationError(f"{what} cannot work", [str(why)]) from why


def embedded_path(url: str) -> Path:
    """The file of an embedded broker; three slashes begin a path relative to the current folder. Raises `ValueError`.

    >>> embedded_path("embedded:///.saga/broker.db")
    PosixPath('.saga/broker.db')
    >>> embedded_path("embedded:////var/lib/saga/broker.db")
    PosixPath('/var/lib/saga/broker.db')
    >>> embedded_path("kafka://localhost:9092")
    Traceback (most recent call last):
    ValueError: there is no broker 'kafka'; use embedded:///file (relative) or embedded:////folder/file (absolute)
    """
    return Path(_path_of(url, "embedded", "broker"))


def sqlite_path(url: str, service: str) -> Path:
    """The file of a service's SQLite store; `{service}` in the URL becomes its name. Raises `ValueError`.

    >>> sqlite_path("sqlite:///.saga/{service}.db", "payment")
    PosixPath('.saga/payment.db')
    >>> sqlite_path("sqlite:////var/lib/saga/all.db", "payment")
    PosixPath('/var/lib/saga/all.db')
    """
    return Path(sqlite_template(url).replace("{service}", service))


def sqlite_template(url: str) -> str:
    """The path in the URL of SQLite stores, `{service}` still in it. Raises `ValueError`."""
    path = _path_of(url, "sqlite", "store")
    try:
        fields = {field for _, field, _, _ in string.Formatter().parse(path) if field is not None}
    except ValueError:
        fields = {"?"}
    if fields - {"service"}:
        raise ValueError("the only thing that can stand in braces is {service}")
    return path


def _path_of(url: str, scheme: str, what: str) -> str:
    begins, separator, rest = url.partition("://")
    if not separator or begins != scheme:
        raise ValueError(
            f"there is no {what} {begins!r}; use {scheme}:///file (relative) or {scheme}:////folder/file (absolute)"
        )
    if not rest.startswith("/"):
        raise ValueError(f"a file is meant, so three slashes follow the colon: {scheme}:///{rest}")
    path = rest[1:]
    if not path or path.endswith("/"):
        raise ValueError(f"the name of a file is missing, as in {scheme}:///.saga/{what}.db")
    return path


def _checked(check: Callable[[str], object]) -> Callable[[str], str]:
    """A text that `check` does not mind."""

    def read(text: str) -> str:
        check(text)
        return text

    return read


def _number(kind: type[T], least: int, most: int, unit: str) -> Callable[[str], T]:
    def read(text: str) -> T:
        right = f"it must be {'a whole number' if kind is int else 'a number'} of {unit} from {least} to {most}"
        try:
            value = msgspec.convert(text, kind, strict=False)
        except msgspec.ValidationError:
            raise ValueError(right) from None
        if not least <= float(str(value)) <= most:
            raise ValueError(right)
        return value

    return read


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"it must be one of: {', '.join(words)}")
        return text.lower()

    return read


READERS: Mapping[str, Callable[[str], object]] = {
    "SAGA_BROKER": _checked(embedded_path),
    "SAGA_STORE": _checked(sqlite_template),
    "SAGA_INFLIGHT_MAX": _number(int, 1, 100_000, "messages"),
    "SAGA_CACHE_MAX": _number(int, 0, 10_000_000, "documents"),
    "SAGA_DRAIN_S": _number(float, 0, 3600, "seconds"),
    "SAGA_LOG": _one_of("auto", "json", "text"),
    "SAGA_LOG_LEVEL": _one_of("debug", "info", "warning", "error"),
}
"""How each variable is read; each raises `ValueError` saying what would be right."""


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*READERS, *OTHERS], n=1, cutoff=0.7)
    if near:
        return f"{name} is not a setting; did you mean {near[0]}?"
    return f"{name} is not a setting; these are: {', '.join([*READERS, *sorted(OTHERS)])}"
