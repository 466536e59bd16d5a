"""Settings, from the environment or a file: read once, checked as a whole, handed on as values."""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self, TypeVar

import msgspec

from saga.addresses import (
    check_broker,
    check_hook,
    check_http,
    check_instance,
    check_store,
    embedded_path,
    scheme_of,
    sqlite_path,
    sqlite_template,
)
from saga.errors import ConfigurationError

T = TypeVar("T")

FILE = "SAGA_CONFIG"
OTHERS = frozenset({"SAGA_CONTRACTS", FILE})
"""Read elsewhere: where the contracts are, and where a file with settings is."""
TEST_PREFIX = "SAGA_TEST_"
"""Whatever begins so belongs to tests."""

INFLIGHT_MIN = 64
"""As `saga.policies.concurrency` has it."""
RECORD_BYTES_MAX, RECORD_BYTES_LEAST, RECORD_BYTES_LIMIT = 1_000_000, 100_000, 1 << 24
"""As `saga.broker.port` has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be set, each by the variable in its description. The defaults need no server."""

    broker: str = "embedded:///.saga/broker.db"
    """SAGA_BROKER: where the log is."""
    store: str = "sqlite:///.saga/{service}.db"
    """SAGA_STORE: where a service keeps its documents; `{service}` stands for its name."""
    store_durability: Literal["majority", "majorityAndPersistActive", "persistToMajority", "none"] = "majority"
    """SAGA_STORE_DURABILITY: what a write to Couchbase waits for. With `none` a failover may lose what was written."""
    kafka_tls: bool = False
    """SAGA_KAFKA_TLS: whether to speak TLS with Kafka."""
    kafka_ca_file: str = ""
    """SAGA_KAFKA_CA_FILE: who may have signed Kafka's certificates; without it whom the system trusts."""
    kafka_cert_file: str = ""
    """SAGA_KAFKA_CERT_FILE: our certificate, where Kafka asks for one."""
    kafka_key_file: str = ""
    """SAGA_KAFKA_KEY_FILE: its key."""
    kafka_sasl: Literal["none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"] = "none"
    """SAGA_KAFKA_SASL: how we say who we are."""
    kafka_username: str = ""
    """SAGA_KAFKA_USERNAME"""
    kafka_password: str = field(default="", repr=False)
    """SAGA_KAFKA_PASSWORD: better in a file."""
    kafka_password_file: str = ""
    """SAGA_KAFKA_PASSWORD_FILE: read at each connect, so a new password needs no restart."""
    kafka_token: str = ""
    """SAGA_KAFKA_TOKEN: for oauthbearer, `module:function`; it returns a token, is not async, and is called in a thread
    at each connect."""
    kafka_instance: str = ""
    """SAGA_KAFKA_INSTANCE: the id of this process, the same after a restart, and that of no other process of the same
    services: it keeps its partitions while it restarts. Without one whoever stops hands them on at once."""
    kafka_replication: int = 3
    """SAGA_KAFKA_REPLICATION: on how many brokers the topics that `saga topics apply` makes lie."""
    kafka_min_insync: int = 2
    """SAGA_KAFKA_MIN_INSYNC: on how many of them a record has to be before it counts."""
    couchbase_username: str = ""
    """SAGA_COUCHBASE_USERNAME"""
    couchbase_password: str = field(default="", repr=False)
    """SAGA_COUCHBASE_PASSWORD: better in a file."""
    couchbase_password_file: str = ""
    """SAGA_COUCHBASE_PASSWORD_FILE: read at each connect."""
    couchbase_ca_file: str = ""
    """SAGA_COUCHBASE_CA_FILE: who may have signed the cluster's certificate."""
    couchbase_cert_file: str = ""
    """SAGA_COUCHBASE_CERT_FILE: our certificate, in the place of user and password."""
    couchbase_key_file: str = ""
    """SAGA_COUCHBASE_KEY_FILE: its key."""
    http: str = ""
    """SAGA_HTTP: where each process answers /health/live, /health/ready and /metrics, as `127.0.0.1:8080`."""
    inflight_max: int = 1000
    """SAGA_INFLIGHT_MAX: messages in flight per worker, at most; a quarter of them at most from one partition."""
    inflight_min: int = INFLIGHT_MIN
    """SAGA_INFLIGHT_MIN: how many of them a slow store leaves at least; as SAGA_INFLIGHT_MAX: it leaves all. Where that
    is less than the default, it counts in its place."""
    inflight_bytes_max: int = 64 << 20
    """SAGA_INFLIGHT_BYTES_MAX: how many bytes they may have together before no more are taken."""
    record_bytes_max: int = RECORD_BYTES_MAX
    """SAGA_RECORD_BYTES_MAX: what one record of the log may hold, headers and key included. Services and clients refuse
    a larger event before anything is written. On Kafka each topic has to take as much: `max.message.bytes`."""
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
        settings = msgspec.convert(values, cls)
        if not problems:
            problems += settings._problems_together()
        if problems:
            raise ConfigurationError("The settings cannot work", problems)
        return settings

    @classmethod
    def from_environment(cls, **given: str | None) -> Self:
        """From the file that SAGA_CONFIG names, then the variables of this process, then what was `given` by name; what
        comes later wins. Raises `ConfigurationError`."""
        flags = {f"SAGA_{name.upper()}": value for name, value in given.items() if value is not None}
        return cls.read({**_from_file(os.environ.get(FILE, "")), **os.environ, **flags})

    def _problems_together(self) -> Iterator[str]:
        """What cannot work of settings that are right each by itself."""
        if (
            self.inflight_min > self.inflight_max and self.inflight_min != INFLIGHT_MIN
        ):  # nobody has to repeat a default
            yield (
                f"SAGA_INFLIGHT_MIN={self.inflight_min} is more than SAGA_INFLIGHT_MAX={self.inflight_max}: make it "
                "less, or the same to have as many in flight however slow the store is"
            )
        if scheme_of(self.broker) == "kafka":
            yield from self._kafka_problems()
        if scheme_of(self.store).startswith("couchbase"):
            yield from self._couchbase_problems()

    def _kafka_problems(self) -> Iterator[str]:
        yield from _secret_problems("SAGA_KAFKA_PASSWORD", self.kafka_password, self.kafka_password_file)
        yield from _pair_problems("SAGA_KAFKA", self.kafka_cert_file, self.kafka_key_file)
        if not self.kafka_tls and (self.kafka_ca_file or self.kafka_cert_file):
            yield "SAGA_KAFKA_CA_FILE and SAGA_KAFKA_CERT_FILE need SAGA_KAFKA_TLS=true"
        if self.kafka_sasl == "oauthbearer" and not self.kafka_token:
            yield "SAGA_KAFKA_SASL=oauthbearer needs SAGA_KAFKA_TOKEN=module:function"
        named = bool(self.kafka_username) and bool(self.kafka_password or self.kafka_password_file)
        if self.kafka_sasl not in ("none", "oauthbearer") and not named:
            yield f"SAGA_KAFKA_SASL={self.kafka_sasl} needs SAGA_KAFKA_USERNAME and SAGA_KAFKA_PASSWORD_FILE"
        if self.kafka_sasl == "none" and self.kafka_username:
            yield "SAGA_KAFKA_USERNAME is given, but not how to use it: SAGA_KAFKA_SASL=plain or scram-sha-512"
        if self.kafka_min_insync > self.kafka_replication:
            yield (
                f"SAGA_KAFKA_MIN_INSYNC={self.kafka_min_insync} is more than SAGA_KAFKA_REPLICATION="
                f"{self.kafka_replication}: nothing could be written"
            )

    def _couchbase_problems(self) -> Iterator[str]:
        yield from _secret_problems("SAGA_COUCHBASE_PASSWORD", self.couchbase_password, self.couchbase_password_file)
        yield from _pair_problems("SAGA_COUCHBASE", self.couchbase_cert_file, self.couchbase_key_file)
        named = bool(self.couchbase_username) and bool(self.couchbase_password or self.couchbase_password_file)
        if not named and not self.couchbase_cert_file:
            yield (
                "couchbase needs SAGA_COUCHBASE_USERNAME and SAGA_COUCHBASE_PASSWORD_FILE, or a certificate "
                "(SAGA_COUCHBASE_CERT_FILE, SAGA_COUCHBASE_KEY_FILE)"
            )
        if scheme_of(self.store) == "couchbase" and (self.couchbase_ca_file or self.couchbase_cert_file):
            yield "certificates need TLS: write couchbases:// in SAGA_STORE"

    @property
    def broker_path(self) -> Path:
        """The file of the embedded broker."""
        return embedded_path(self.broker)

    def store_path(self, service: str) -> Path:
        """The file of a service's store."""
        return sqlite_path(self.store, service)

    @staticmethod
    def store_path_of(address: str) -> Path:
        """The file of the stores at an address that somebody gave, `{service}` still in it. Raises
        `ConfigurationError`."""
        try:
            return Path(sqlite_template(address))
        except ValueError as why:
            raise ConfigurationError(f"The store's address {address!r} cannot work", [str(why)]) from why


def _from_file(path: str) -> dict[str, str]:
    """The settings in a TOML file, as if they were variables: `broker = "kafka://host:9092"`."""
    if not path:
        return {}
    try:
        given = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as why:
        raise ConfigurationError("The settings cannot work", [f"{FILE} is {path!r}: {why}"]) from why
    nested = [name for name, value in given.items() if isinstance(value, dict | list)]
    if nested:
        problem = f"{path}: {nested[0]} is no single value; a setting is a line as in: drain_s = 30"
        raise ConfigurationError("The settings cannot work", [problem])
    return {f"SAGA_{name.upper()}": str(value) for name, value in given.items()}


def _secret_problems(name: str, given: str, file: str) -> Iterator[str]:
    if given and file:
        yield f"{name} and {name}_FILE are both given: keep one"
    if file and not Path(file).is_file():
        yield f"{name}_FILE: there is no file {file}"


def _pair_problems(prefix: str, cert: str, key: str) -> Iterator[str]:
    if bool(cert) != bool(key):
        yield f"{prefix}_CERT_FILE and {prefix}_KEY_FILE belong together: give both"


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


def _word(*words: str) -> Callable[[str], str]:
    """One of these, however it is capitalised."""
    by_lower = {word.lower(): word for word in words}

    def read(text: str) -> str:
        if text.lower() not in by_lower:
            raise ValueError(f"it must be one of: {', '.join(words)}")
        return by_lower[text.lower()]

    return read


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
        raise ValueError("it must be true or false")
    return text.lower() in ("true", "yes", "1")


def _file(text: str) -> str:
    if not Path(text).is_file():
        raise ValueError("there is no such file")
    return text


READERS: Mapping[str, Callable[[str], object]] = {
    "SAGA_BROKER": _checked(check_broker),
    "SAGA_STORE": _checked(check_store),
    "SAGA_STORE_DURABILITY": _word("majority", "majorityAndPersistActive", "persistToMajority", "none"),
    "SAGA_KAFKA_TLS": _yes_or_no,
    "SAGA_KAFKA_CA_FILE": _file,
    "SAGA_KAFKA_CERT_FILE": _file,
    "SAGA_KAFKA_KEY_FILE": _file,
    "SAGA_KAFKA_SASL": _word("none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"),
    "SAGA_KAFKA_USERNAME": str,
    "SAGA_KAFKA_PASSWORD": str,
    "SAGA_KAFKA_PASSWORD_FILE": str,
    "SAGA_KAFKA_TOKEN": _checked(check_hook),
    "SAGA_KAFKA_INSTANCE": _checked(check_instance),
    "SAGA_KAFKA_REPLICATION": _number(int, 1, 100, "brokers"),
    "SAGA_KAFKA_MIN_INSYNC": _number(int, 1, 100, "brokers"),
    "SAGA_COUCHBASE_USERNAME": str,
    "SAGA_COUCHBASE_PASSWORD": str,
    "SAGA_COUCHBASE_PASSWORD_FILE": str,
    "SAGA_COUCHBASE_CA_FILE": _file,
    "SAGA_COUCHBASE_CERT_FILE": _file,
    "SAGA_COUCHBASE_KEY_FILE": _file,
    "SAGA_HTTP": _checked(check_http),
    "SAGA_INFLIGHT_MAX": _number(int, 1, 100_000, "messages"),
    "SAGA_INFLIGHT_MIN": _number(int, 1, 100_000, "messages"),
    "SAGA_INFLIGHT_BYTES_MAX": _number(int, 1, 1 << 40, "bytes"),
    "SAGA_RECORD_BYTES_MAX": _number(int, RECORD_BYTES_LEAST, RECORD_BYTES_LIMIT, "bytes"),
    "SAGA_CACHE_MAX": _number(int, 0, 10_000_000, "documents"),
    "SAGA_DRAIN_S": _number(float, 0, 3600, "seconds"),
    "SAGA_LOG": _word("auto", "json", "text"),
    "SAGA_LOG_LEVEL": _word("debug", "info", "warning", "error"),
}
"""How each variable is read; each raises `ValueError` saying what would be right."""


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, [*READERS, *OTHERS], n=1, cutoff=0.7)
    if near:
        return f"{name} is not a setting; did you mean {near[0]}?"
    return f"{name} is not a setting; these are: {', '.join([*READERS, *sorted(OTHERS)])}"
