"""Settings, from a file, the environment or flags: read once, checked as a whole, handed on as values."""

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, Self, TypeAlias

import msgspec

from saga import readers
from saga.addresses import (
    check_broker,
    check_hook,
    check_http,
    check_instance,
    check_store,
    embedded_path,
    is_plain,
    scheme_of,
    sqlite_path,
    sqlite_template,
)
from saga.errors import ConfigurationError

FILE = "SAGA_CONFIG"
OTHERS: Mapping[str, str] = {
    "SAGA_CONTRACTS": "Folder of the contracts; without it the nearest `contracts/` above a module.",
    "SAGA_SCHEMA_BASE": "What the URI of each schema begins with in what is published, as "
    "`https://example.org/schemas/`; without it `urn:saga:`.",
    FILE: "A TOML file with settings, a line each: `drain_s = 30`.",
}
"""Variables that are read elsewhere, and are no settings: they stand in no file."""
TEST_PREFIX = "SAGA_TEST_"
"""Whatever begins so belongs to tests."""

INFLIGHT_MIN = 64
"""As `saga.policies.concurrency` has it."""
RECORD_BYTES_MAX, RECORD_BYTES_LEAST, RECORD_BYTES_LIMIT = 1_000_000, 100_000, 1 << 24
"""Bounds, equal to those of `saga.broker.port`, which this module may not import."""

LINK = re.compile(r"SERVICE_(?:HOST|PORT(?:_[A-Z0-9_]+)?)|PORT(?:_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?")
"""Endings that Kubernetes puts behind a Service's name in the variables it gives to every pod of its namespace."""

HIDDEN = " (what was given is not shown: it may hold a secret)"

Problem: TypeAlias = tuple[frozenset[str], str]
"""The fields that do not go together, and why. It is told only where each of them is right by itself."""


class Given(NamedTuple):
    """The text of a setting."""

    text: str
    said: str
    """Place at which the setting was given, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What can be set: each by its variable, by a line of the file, and some by a flag. The defaults need no server.

    `docs/settings.md` is made from these descriptions and from `READERS`.
    """

    broker: str = "embedded:///.saga/broker.db"
    """Where the log is: one file, or the servers of a Kafka to ask first."""
    store: str = "sqlite:///.saga/{service}.db"
    """Where a service keeps its documents; `{service}` stands for its name."""
    store_durability: Literal["majority", "majorityAndPersistActive", "persistToMajority", "none"] = "majority"
    """How safe a write to Couchbase is before it counts. With `none` a failover may lose what was written."""
    kafka_tls: bool = False
    """TLS to Kafka."""
    kafka_ca_file: str = ""
    """Certificates of who may have signed Kafka's: nobody else is trusted then. Without it those whom the system
    trusts."""
    kafka_cert_file: str = ""
    """Our certificate, where Kafka asks for one."""
    kafka_key_file: str = ""
    """The key of our certificate for Kafka."""
    kafka_sasl: Literal["none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"] = "none"
    """How we say who we are to Kafka. `plain` and `oauthbearer` show password or token to whoever listens on the
    network: they need TLS, or SAGA_KAFKA_CLEARTEXT."""
    kafka_cleartext: bool = False
    """Consent to send a password or token to Kafka without TLS, readable by everybody on the network."""
    kafka_username: str = ""
    """Our name at Kafka."""
    kafka_password: str = field(default="", repr=False)
    """Our password at Kafka. Better in a file: variables are seen by whoever may look at the process."""
    kafka_password_file: str = ""
    """The file with our password at Kafka. It is read at each connect, so a new password needs no restart."""
    kafka_token: str = ""
    """A function that returns a token for `oauthbearer`. It is not async, and is called in a thread at each connect."""
    kafka_instance: str = ""
    """The id of this process, the same after a restart, and that of no other process of the same services: it keeps its
    partitions while it restarts. Without one whoever stops hands them on at once."""
    kafka_replication: int = 3
    """Copies of each record on different brokers, of the topics that `saga topics apply` makes."""
    kafka_min_insync: int = 2
    """How many of these copies there must be before a record counts as written."""
    couchbase_username: str = ""
    """Our name at Couchbase."""
    couchbase_password: str = field(default="", repr=False)
    """Our password at Couchbase. Better in a file: variables are seen by whoever may look at the process."""
    couchbase_password_file: str = ""
    """The file with our password at Couchbase. It is read at each connect."""
    couchbase_ca_file: str = ""
    """Certificates of who may have signed Couchbase's: nobody else is trusted then."""
    couchbase_cert_file: str = ""
    """Our certificate, in the place of user and password."""
    couchbase_key_file: str = ""
    """The key of our certificate for Couchbase."""
    http: str = ""
    """Where each process answers `/health/live`, `/health/ready` and `/metrics`. Without it nothing listens."""
    inflight_max: int = 1000
    """Messages in flight per worker, at most; a quarter of them at most from one partition."""
    inflight_min: int = INFLIGHT_MIN
    """Lower bound of what a slow store leaves in flight; as SAGA_INFLIGHT_MAX: the bound does not adapt. Where that is
    less than this default, it counts in its place."""
    inflight_bytes_max: int = 64 << 20
    """Bytes that the messages in flight may have together before no more are taken."""
    record_bytes_max: int = RECORD_BYTES_MAX
    """Bytes that one record of the log may have, headers and key included. Services and clients refuse a larger event
    before anything is written. On Kafka each topic has to take as much: `max.message.bytes`."""
    cache_max: int = 2000
    """Progress documents kept in memory per service."""
    drain_s: float = 20.0
    """How long what runs may take to end, when the service is to stop."""
    log: Literal["auto", "json", "text"] = "auto"
    """Form of the lines that `saga run` writes; `auto` is `text` on a terminal, else `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Self:
        """From variables; those that are absent or blank have their defaults.

        Raises `ConfigurationError` with all problems at once: of each setting, and of those that do not go together.
        Names that begin with `SAGA_` and mean nothing are problems too: a typing error would otherwise go unnoticed
        until it hurts. What Kubernetes gives to pods for a Service whose name begins with `saga` is passed over.
        """
        return cls._of(_in_variables(environ))

    @classmethod
    def from_environment(cls, **flags: str | None) -> Self:
        """From the file that SAGA_CONFIG names, then the variables of this process, then `flags` by name; what comes
        later wins, and what is blank is not given. Raises `ConfigurationError`."""
        given = {f"SAGA_{name.upper()}": Given(text or "", f"the {name} given") for name, text in flags.items()}
        in_file, troubles = _in_file(os.environ.get(FILE, "").strip())
        return cls._of({**in_file, **_in_variables(os.environ), **_without_blanks(given)}, troubles)

    @classmethod
    def _of(cls, given: Mapping[str, Given], troubles: Sequence[str] = ()) -> Self:
        """`troubles`: of the file, which then is not known whole: what does not go together may only seem so. Raises
        `ConfigurationError`."""
        values: dict[str, object] = {}
        wrong: dict[str, object] = {}
        problems = list(troubles)
        for name, (text, said) in sorted(given.items()):
            kind, field_ = READERS.get(name), name.removeprefix("SAGA_").lower()
            if kind is None:
                problems.append(_unknown(name, said))
                continue
            try:
                values[field_] = kind.read(text)
            except ValueError as why:
                problems.append(f"{said} is {text!r}: {why}" if kind.may_show(text) else f"{said}: {why}{HIDDEN}")
                wrong[field_] = f"{scheme_of(text)}://"  # of an address that is wrong, this much is meant
        meant = {name: address for name, address in wrong.items() if name in ("broker", "store")}
        together = () if troubles else msgspec.convert({**values, **meant}, cls)._problems_together()
        problems += [text for fields, text in together if not fields & wrong.keys()]
        if problems:
            raise ConfigurationError("The settings cannot work", problems)
        return msgspec.convert(values, cls)

    def _problems_together(self) -> Iterator[Problem]:
        """What cannot work of settings that are right each by itself."""
        if (
            self.inflight_min > self.inflight_max and self.inflight_min != INFLIGHT_MIN
        ):  # nobody has to repeat a default
            yield (
                frozenset({"inflight_min", "inflight_max"}),
                f"SAGA_INFLIGHT_MIN={self.inflight_min} is more than SAGA_INFLIGHT_MAX={self.inflight_max}: make it "
                "less, or the same to have as many in flight however slow the store is",
            )
        if scheme_of(self.broker) == "kafka":
            yield from self._secret_problems("kafka")
            yield from self._kafka_problems()
            yield from self._kafka_identity_problems()
        if scheme_of(self.store).startswith("couchbase"):
            yield from self._secret_problems("couchbase")
            yield from self._couchbase_problems()

    def _secret_problems(self, of: Literal["kafka", "couchbase"]) -> Iterator[Problem]:
        names = [f"{of}_{what}" for what in ("password", "password_file", "cert_file", "key_file")]
        password, password_file, cert, key = (bool(getattr(self, name)) for name in names)
        prefix = f"SAGA_{of.upper()}"
        if password and password_file:
            yield frozenset(names[:2]), f"{prefix}_PASSWORD and {prefix}_PASSWORD_FILE are both given: keep one"
        if cert != key:
            yield frozenset(names[2:]), f"{prefix}_CERT_FILE and {prefix}_KEY_FILE belong together: give both"

    def _kafka_problems(self) -> Iterator[Problem]:
        if not self.kafka_tls and (self.kafka_ca_file or self.kafka_cert_file):
            yield (
                frozenset({"kafka_tls", "kafka_ca_file", "kafka_cert_file"}),
                "SAGA_KAFKA_CA_FILE and SAGA_KAFKA_CERT_FILE need SAGA_KAFKA_TLS=true",
            )
        if self.kafka_min_insync > self.kafka_replication:
            yield (
                frozenset({"kafka_min_insync", "kafka_replication"}),
                f"SAGA_KAFKA_MIN_INSYNC={self.kafka_min_insync} is more than SAGA_KAFKA_REPLICATION="
                f"{self.kafka_replication}: nothing could be written",
            )

    def _kafka_identity_problems(self) -> Iterator[Problem]:
        sasl, has_password = self.kafka_sasl, bool(self.kafka_password or self.kafka_password_file)
        named = frozenset({"kafka_sasl", "kafka_username", "kafka_password", "kafka_password_file"})
        by_token = frozenset({"kafka_sasl", "kafka_token"})
        if sasl == "oauthbearer" and not self.kafka_token:
            yield by_token, "SAGA_KAFKA_SASL=oauthbearer needs SAGA_KAFKA_TOKEN=module:function"
        if sasl != "oauthbearer" and self.kafka_token:
            yield by_token, "SAGA_KAFKA_TOKEN is given, but not how to use it: SAGA_KAFKA_SASL=oauthbearer"
        if sasl == "oauthbearer" and (self.kafka_username or has_password):
            yield named, "SAGA_KAFKA_SASL=oauthbearer takes a token, no user and no password: leave these out"
        if sasl not in ("none", "oauthbearer") and not (self.kafka_username and has_password):
            yield named, f"SAGA_KAFKA_SASL={sasl} needs SAGA_KAFKA_USERNAME and SAGA_KAFKA_PASSWORD_FILE"
        if sasl == "none" and (self.kafka_username or has_password):
            what = "SAGA_KAFKA_USERNAME" if self.kafka_username else "a password for Kafka"
            yield named, f"{what} is given, but not how to use it: SAGA_KAFKA_SASL=plain or scram-sha-512"
        if sasl in ("plain", "oauthbearer") and not self.kafka_tls and not self.kafka_cleartext:
            what = "the token" if sasl == "oauthbearer" else "the password"
            yield (
                frozenset({"kafka_sasl", "kafka_tls", "kafka_cleartext"}),
                f"SAGA_KAFKA_SASL={sasl} without TLS sends {what} readable over the network: SAGA_KAFKA_TLS=true"
                + ("" if sasl == "oauthbearer" else ", or SAGA_KAFKA_SASL=scram-sha-512")
                + "; or consent by name, with SAGA_KAFKA_CLEARTEXT=true",
            )

    def _couchbase_problems(self) -> Iterator[Problem]:
        named = bool(self.couchbase_username) and bool(self.couchbase_password or self.couchbase_password_file)
        if not named and not self.couchbase_cert_file:
            yield (
                frozenset(
                    {"couchbase_username", "couchbase_password", "couchbase_password_file", "couchbase_cert_file"}
                ),
                "couchbase needs SAGA_COUCHBASE_USERNAME and SAGA_COUCHBASE_PASSWORD_FILE, or a certificate "
                "(SAGA_COUCHBASE_CERT_FILE, SAGA_COUCHBASE_KEY_FILE)",
            )
        if scheme_of(self.store) == "couchbase" and (
            self.couchbase_ca_file or self.couchbase_cert_file or self.couchbase_key_file
        ):
            yield (
                frozenset({"couchbase_ca_file", "couchbase_cert_file", "couchbase_key_file"}),
                "certificates need TLS: write couchbases:// in SAGA_STORE",
            )

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
            which = f" {address!r}" if is_plain(address) else ""
            raise ConfigurationError(f"The store's address{which} cannot work", [str(why)]) from None


def _without_blanks(given: Mapping[str, Given]) -> dict[str, Given]:
    """What is blank is not given: so an unset variable of a compose file, or of a shell, overrides nothing."""
    return {name: Given(text.strip(), said) for name, (text, said) in given.items() if text.strip()}


def _in_variables(environ: Mapping[str, str]) -> dict[str, Given]:
    """Settings in the environment; also names that begin like one and mean nothing."""
    linked = tuple(
        name.removesuffix("SERVICE_HOST")
        for name in environ
        if name.startswith("SAGA_") and name.endswith("_SERVICE_HOST") and f"{name[:-4]}PORT" in environ
    )
    return _without_blanks(
        {
            name: Given(text, name)
            for name, text in environ.items()
            if name.startswith("SAGA_") and name not in OTHERS and not name.startswith(TEST_PREFIX)
            if not any(name.startswith(of) and LINK.fullmatch(name.removeprefix(of)) for of in linked)
        }
    )


def _in_file(path: str) -> tuple[dict[str, Given], list[str]]:
    """Settings in a TOML file, `broker = "kafka://host:9092"`, and what is wrong with the file itself."""
    if not path:
        return {}, []
    try:
        given = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as why:
        return {}, [f"{FILE} is {path!r}: {why}"]
    nested = [name for name, value in given.items() if isinstance(value, dict | list)]
    return (
        _without_blanks(
            {
                f"SAGA_{name.upper()}": Given(str(value), f"{name} in {path}")
                for name, value in given.items()
                if name not in nested
            }
        ),
        [f"{path}: {name} is no single value; a setting is a line as in: drain_s = 30" for name in nested],
    )


READERS: Mapping[str, readers.Kind] = {
    "SAGA_BROKER": readers.address(check_broker, "embedded:///FILE or kafka://HOST:PORT,..."),
    "SAGA_STORE": readers.address(
        check_store, "sqlite:///FILE, couchbase://HOST/BUCKET[/SCOPE[/COLLECTION]], or couchbases:// with TLS"
    ),
    "SAGA_STORE_DURABILITY": readers.word("majority", "majorityAndPersistActive", "persistToMajority", "none"),
    "SAGA_KAFKA_TLS": readers.yes_or_no(),
    "SAGA_KAFKA_CA_FILE": readers.file(),
    "SAGA_KAFKA_CERT_FILE": readers.file(),
    "SAGA_KAFKA_KEY_FILE": readers.secret_file(),
    "SAGA_KAFKA_SASL": readers.word("none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"),
    "SAGA_KAFKA_CLEARTEXT": readers.yes_or_no(),
    "SAGA_KAFKA_USERNAME": readers.text("a name"),
    "SAGA_KAFKA_PASSWORD": readers.secret("a password"),
    "SAGA_KAFKA_PASSWORD_FILE": readers.secret_file(),
    "SAGA_KAFKA_TOKEN": readers.checked(check_hook, "module:function", lambda _: False),
    "SAGA_KAFKA_INSTANCE": readers.checked(check_instance, "letters, digits, `.`, `_` and `-`, at most 200"),
    "SAGA_KAFKA_REPLICATION": readers.number(int, 1, 100, "brokers"),
    "SAGA_KAFKA_MIN_INSYNC": readers.number(int, 1, 100, "brokers"),
    "SAGA_COUCHBASE_USERNAME": readers.text("a name"),
    "SAGA_COUCHBASE_PASSWORD": readers.secret("a password"),
    "SAGA_COUCHBASE_PASSWORD_FILE": readers.secret_file(),
    "SAGA_COUCHBASE_CA_FILE": readers.file(),
    "SAGA_COUCHBASE_CERT_FILE": readers.file(),
    "SAGA_COUCHBASE_KEY_FILE": readers.secret_file(),
    "SAGA_HTTP": readers.address(check_http, "HOST:PORT"),
    "SAGA_INFLIGHT_MAX": readers.number(int, 1, 100_000, "messages"),
    "SAGA_INFLIGHT_MIN": readers.number(int, 1, 100_000, "messages"),
    "SAGA_INFLIGHT_BYTES_MAX": readers.number(int, 1, 1 << 40, "bytes"),
    "SAGA_RECORD_BYTES_MAX": readers.number(int, RECORD_BYTES_LEAST, RECORD_BYTES_LIMIT, "bytes"),
    "SAGA_CACHE_MAX": readers.number(int, 0, 10_000_000, "documents"),
    "SAGA_DRAIN_S": readers.number(float, 0, 3600, "seconds"),
    "SAGA_LOG": readers.word("auto", "json", "text"),
    "SAGA_LOG_LEVEL": readers.word("debug", "info", "warning", "error"),
}
"""How the setting of each variable is read."""


def _unknown(name: str, said: str) -> str:
    if name in OTHERS:
        return f"{said}: give it as the variable {name}"
    near = difflib.get_close_matches(name, [*READERS, *OTHERS], n=1, cutoff=0.7)
    if near:
        return f"{said} is not a setting; did you mean {near[0]}?"
    return f"{said} is not a setting; these are: {', '.join([*READERS, *OTHERS])}"
