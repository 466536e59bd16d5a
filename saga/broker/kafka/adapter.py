"""Kafka adapter: addresses, options and settings, and creation of the broker. Importing this module loads no driver."""

import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Literal, TypeAlias, cast

from saga.broker.adapter import ClientOptions, Copies
from saga.broker.administration import Administration
from saga.broker.port import RECORD_BYTES_MAX, Broker
from saga.errors import ConfigurationError
from saga.support import settings
from saga.support.addresses import HOST, is_plain
from saga.support.clock import Clock
from saga.support.settings import (
    OPEN_S_LESS,
    ChosenSettings,
    Options,
    Problem,
    load_driver,
    path_of,
    secret_problems,
    secret_reader,
)

PORT = 9092
EXTENSION = re.compile(r"[A-Za-z]+")
"""Valid name of a token extension."""
INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""Valid id of a process. Kafka accepts longer ids, but the toolkit appends a suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaOptions:
    """Settings that only Kafka has."""

    kafka_tls: bool = False
    """True to connect to Kafka by TLS."""
    kafka_ca_file: str = ""
    """File with the certificate authorities to trust for Kafka. No others are trusted then. If it is not given, the
    system's authorities are trusted."""
    kafka_cert_file: str = ""
    """File with our certificate, if Kafka requires one."""
    kafka_key_file: str = ""
    """File with the key of our certificate for Kafka."""
    kafka_key_password_file: str = ""
    """File with the password of the certificate's key for Kafka, if the key is encrypted."""
    kafka_sasl: Literal["none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"] = "none"
    """Mechanism of authentication at Kafka. `plain` and `oauthbearer` send the password or token readable over the
    network, so they need TLS or SAGA_KAFKA_CLEARTEXT."""
    kafka_cleartext: bool = False
    """Consent to send a password or token to Kafka without TLS, readable over the network."""
    kafka_username: str = ""
    """User name at Kafka."""
    kafka_password: str = field(default="", repr=False)
    """Password at Kafka. A file is safer, because everyone who may inspect the process can see its environment
    variables."""
    kafka_password_file: str = ""
    """File with the password at Kafka. It is read at each connect, so a new password needs no restart."""
    kafka_token: str = ""
    """Function that returns a token for `oauthbearer`. It is not async, and is called in a thread at each connect."""
    kafka_sasl_extensions: str = ""
    """Extensions to send with the token, if the brokers require some."""
    kafka_instance: str = ""
    """Id of this process: the same after a restart, and different from the id of every other process of the same
    services. With an id the process keeps its partitions while it restarts. Without an id they move at once when a
    process stops."""
    kafka_replication: int = 3
    """Replicas of each record, on different brokers, in topics that `saga topics apply` creates."""
    kafka_min_insync: int = 2
    """Number of in-sync replicas that must have a record before it counts as written."""


def check_hook(text: str) -> None:
    """Check the name of a function in a module, such as `shop.tokens:kafka_token`. Raises `ValueError`."""
    module, _, function = text.partition(":")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError("it must be module:function, as in shop.tokens:kafka_token")


def parse_extensions(text: str) -> Mapping[str, str]:
    """Return the extensions that are sent with a token, by name. Raises `ValueError`.

    >>> parse_extensions("logicalCluster=lkc-1, identityPoolId=pool-2")
    {'logicalCluster': 'lkc-1', 'identityPoolId': 'pool-2'}
    """
    pairs = [pair.strip().partition("=") for pair in text.split(",")] if text else []
    found = {name: value for name, _, value in pairs}
    right = all(EXTENSION.fullmatch(name) and name != "auth" and value.isprintable() for name, value in found.items())
    if not right or len(found) < len(pairs) or not all(value for *_, value in pairs):
        raise ValueError("it must be name=value,name=value: names of letters, each once, none of them auth")
    return found


def check_instance(text: str) -> None:
    """Check the id that identifies a process, such as `payment-0`. Raises `ValueError`."""
    if not INSTANCE.fullmatch(text):
        raise ValueError("it must be letters, digits, '.', '_' and '-', at most 200, as in payment-0")


SaslMechanism: TypeAlias = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
Compression: TypeAlias = Literal["gzip", "snappy", "lz4", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Settings of a `KafkaBroker`, already checked for consistency."""

    servers: tuple[str, ...]
    """Bootstrap servers, each as `host:port`."""
    client_id: str = "saga"
    tls: bool = False
    ca_file: Path | None = None
    """File with the certificate authorities to trust for the brokers; no others are trusted. `None`: trust the system's
    authorities."""
    cert_file: Path | None = None
    key_file: Path | None = None
    """Files of this process's certificate and its key, if the brokers require one. They are read again when they
    change."""
    key_password: Callable[[], str] | None = None
    """Function that returns the password of the key, if it is encrypted."""
    sasl: SaslMechanism | None = None
    username: str = ""
    password: Callable[[], str] | None = None
    """Function that returns the password. It is called for each connection, so a new password needs no restart."""
    token: Callable[[], str] | None = None
    """Function that returns a token for OAUTHBEARER. It is called for each connection, in a thread."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    """Extensions that are sent with the token, as the brokers require them."""

    instance: str = ""
    """Id of this process, which stays the same after a restart. Its group members keep their partitions if the process
    is away for less than `session_s`. Two processes of a service must never have the same id. If it is empty, a member
    that stops leaves its group."""

    replication_factor: int = 3
    min_insync_replicas: int = 2
    """Number of replicas, and smallest number of in-sync replicas, of topics that `ensure_topics` creates. With a
    single broker both must be set to 1."""

    session_s: float = 10
    """Time without a heartbeat after which a member counts as dead, in seconds."""
    heartbeat_s: float = 0.5
    """Pause between two heartbeats of a member, in seconds. Heartbeats also inform the member of a rebalance."""
    rebalance_s: float = 30
    """Longest time that the group waits for its members in a rebalance, in seconds."""
    publish_s: float = 20
    """Time after which a publish without acknowledgement fails, in seconds."""
    commit_s: float = 10
    connect_s: float = 12
    """Longest time for connecting, in seconds. It is shorter than the caller's timeout, because an error of that
    timeout could not name the reason."""
    fetch_wait_s: float = 0.1
    """Longest time that a broker waits for new records before it answers a fetch without records, in seconds."""
    linger_s: float = 0
    """Time to wait for more records of a batch, in seconds. Records that are published during a request are sent as a
    batch anyway."""
    compression: Compression | None = None
    metadata_s: float = 10
    """Age at which a client fetches the metadata of topics and partitions again, in seconds."""
    record_bytes_max: int = RECORD_BYTES_MAX
    """Largest size of a record, in bytes: see `Broker.record_bytes_max`. A topic may accept less: see its
    `max.message.bytes`."""

    def instance_for(self, topics: Collection[str]) -> str | None:
        """Return the static id of a member that reads these topics; `None` without an instance.

        Members with different topics must have different ids. Brokers give a known static member its previous
        partitions again, but no partitions of topics that it did not read before.
        """
        return f"{self.instance}-{zlib.crc32(','.join(sorted(topics)).encode()):08x}" if self.instance else None

    @property
    def request_s(self) -> float:
        """Return the longest time of one request, in seconds. It is longer than a rebalance, because a broker answers a
        request to join a group only when all members have joined again."""
        return self.rebalance_s + 5


class KafkaAdapter:
    """Description of Kafka for `saga.configuration.adapters`: see `saga.broker.adapter`."""

    schemes = ("kafka",)
    takes = "kafka://HOST:PORT,..."
    example = "kafka://host:9092"
    creates_topics = False
    options = Options(
        KafkaOptions,
        {
            "SAGA_KAFKA_TLS": settings.YES_OR_NO,
            "SAGA_KAFKA_CA_FILE": settings.FILE,
            "SAGA_KAFKA_CERT_FILE": settings.FILE,
            "SAGA_KAFKA_KEY_FILE": settings.SECRET_FILE,
            "SAGA_KAFKA_KEY_PASSWORD_FILE": settings.SECRET_FILE,
            "SAGA_KAFKA_SASL": settings.word("none", "plain", "scram-sha-256", "scram-sha-512", "oauthbearer"),
            "SAGA_KAFKA_CLEARTEXT": settings.YES_OR_NO,
            "SAGA_KAFKA_USERNAME": settings.text("a name"),
            "SAGA_KAFKA_PASSWORD": settings.secret("a password"),
            "SAGA_KAFKA_PASSWORD_FILE": settings.SECRET_FILE,
            "SAGA_KAFKA_TOKEN": settings.checked(check_hook, "module:function", lambda _: False),
            "SAGA_KAFKA_SASL_EXTENSIONS": settings.checked(parse_extensions, "name=value,name=value"),
            "SAGA_KAFKA_INSTANCE": settings.checked(check_instance, "letters, digits, `.`, `_` and `-`, at most 200"),
            "SAGA_KAFKA_REPLICATION": settings.number(int, 1, 100, "brokers"),
            "SAGA_KAFKA_MIN_INSYNC": settings.number(int, 1, 100, "brokers"),
        },
    )

    def check(self, address: str) -> None:
        kafka_servers(address)

    def servers(self, address: str) -> Sequence[str]:
        return kafka_servers(address)

    def problems(self, settings: ChosenSettings) -> Iterator[Problem]:
        mine = settings.of(KafkaOptions)
        yield from secret_problems(mine, "kafka")
        yield from _problems(mine)
        yield from _identity_problems(mine)

    def create_broker(self, settings: ChosenSettings, clock: Clock) -> Broker:
        with_kafka = load_driver("kafka", "aiokafka", "saga.broker.kafka.broker")
        return cast("Broker", with_kafka.KafkaBroker(kafka_settings(settings), clock=clock))

    def create_administration(self, settings: ChosenSettings, clock: Clock) -> Administration:
        with_kafka = load_driver("kafka", "aiokafka", "saga.broker.kafka.administration")
        return cast("Administration", with_kafka.KafkaAdministration(kafka_settings(settings), clock=clock))

    def client_options(self, settings: ChosenSettings) -> ClientOptions:
        with_kafka = load_driver("kafka", "aiokafka", "saga.broker.kafka.access")
        return cast("ClientOptions", with_kafka.KafkaAccess(kafka_settings(settings)).options)

    def missing_file(self, settings: ChosenSettings) -> Path | None:
        return None

    def required_replicas(self, settings: ChosenSettings) -> Copies:
        mine = settings.of(KafkaOptions)
        return Copies(mine.kafka_replication, mine.kafka_min_insync)


KAFKA = KafkaAdapter()


def kafka_settings(settings: ChosenSettings) -> KafkaSettings:
    """Return the settings of the broker and its administration."""
    mine = settings.of(KafkaOptions)
    sasl = None if mine.kafka_sasl == "none" else mine.kafka_sasl.upper()
    return KafkaSettings(
        servers=kafka_servers(settings.broker),
        tls=mine.kafka_tls,
        ca_file=path_of(mine.kafka_ca_file),
        cert_file=path_of(mine.kafka_cert_file),
        key_file=path_of(mine.kafka_key_file),
        key_password=secret_reader("", mine.kafka_key_password_file),
        sasl=cast("SaslMechanism | None", sasl),
        username=mine.kafka_username,
        password=secret_reader(mine.kafka_password, mine.kafka_password_file),
        token=_load_hook(mine.kafka_token) if mine.kafka_token else None,
        extensions=parse_extensions(mine.kafka_sasl_extensions),
        instance=mine.kafka_instance,
        replication_factor=mine.kafka_replication,
        min_insync_replicas=mine.kafka_min_insync,
        record_bytes_max=settings.record_bytes_max,
        connect_s=max(1.0, settings.open_s - OPEN_S_LESS),
    )


def kafka_servers(url: str) -> tuple[str, ...]:
    """Return the bootstrap servers, each as host and port.

    >>> kafka_servers("kafka://broker-1:9092,broker-2")
    ('broker-1:9092', 'broker-2:9092')
    >>> kafka_servers("kafka://")
    Traceback (most recent call last):
    ValueError: the servers are missing, as in kafka://host:9092,other:9092
    """
    scheme, _, rest = url.partition("://")
    hosts = [host for host in rest.rstrip("/").split(",") if host]
    if scheme != "kafka" or not hosts:
        raise ValueError("the servers are missing, as in kafka://host:9092,other:9092")
    if wrong := [host for host in hosts if not HOST.fullmatch(host)]:
        which = repr(wrong[0]) if is_plain(url) else "one of the servers"
        raise ValueError(f"{which} is no host:port; user and password have settings of their own (SAGA_KAFKA_...)")
    return tuple(host if re.search(r":[0-9]+$", host) else f"{host}:{PORT}" for host in hosts)


def _problems(mine: KafkaOptions) -> Iterator[Problem]:
    if not mine.kafka_tls and (mine.kafka_ca_file or mine.kafka_cert_file):
        yield (
            frozenset({"kafka_tls", "kafka_ca_file", "kafka_cert_file"}),
            "SAGA_KAFKA_CA_FILE and SAGA_KAFKA_CERT_FILE need SAGA_KAFKA_TLS=true",
        )
    if mine.kafka_min_insync > mine.kafka_replication:
        yield (
            frozenset({"kafka_min_insync", "kafka_replication"}),
            f"SAGA_KAFKA_MIN_INSYNC={mine.kafka_min_insync} is more than SAGA_KAFKA_REPLICATION="
            f"{mine.kafka_replication}: nothing could be written",
        )


def _identity_problems(mine: KafkaOptions) -> Iterator[Problem]:
    sasl, has_password = mine.kafka_sasl, bool(mine.kafka_password or mine.kafka_password_file)
    named = frozenset({"kafka_sasl", "kafka_username", "kafka_password", "kafka_password_file"})
    by_token = frozenset({"kafka_sasl", "kafka_token"})
    if sasl == "oauthbearer" and not mine.kafka_token:
        yield by_token, "SAGA_KAFKA_SASL=oauthbearer needs SAGA_KAFKA_TOKEN=module:function"
    if sasl != "oauthbearer" and mine.kafka_token:
        yield by_token, "SAGA_KAFKA_TOKEN is given, but not how to use it: SAGA_KAFKA_SASL=oauthbearer"
    if mine.kafka_sasl_extensions and not mine.kafka_token:
        names = frozenset({"kafka_token", "kafka_sasl_extensions"})
        yield names, "SAGA_KAFKA_SASL_EXTENSIONS go with a token, and none is given: SAGA_KAFKA_TOKEN=module:function"
    if sasl == "oauthbearer" and (mine.kafka_username or has_password):
        yield named, "SAGA_KAFKA_SASL=oauthbearer takes a token, no user and no password: leave these out"
    if sasl not in ("none", "oauthbearer") and not (mine.kafka_username and has_password):
        yield named, f"SAGA_KAFKA_SASL={sasl} needs SAGA_KAFKA_USERNAME and SAGA_KAFKA_PASSWORD_FILE"
    if sasl == "none" and (mine.kafka_username or has_password):
        what = "SAGA_KAFKA_USERNAME" if mine.kafka_username else "a password for Kafka"
        yield named, f"{what} is given, but not how to use it: SAGA_KAFKA_SASL=plain or scram-sha-512"
    if sasl in ("plain", "oauthbearer") and not mine.kafka_tls and not mine.kafka_cleartext:
        what = "the token" if sasl == "oauthbearer" else "the password"
        yield (
            frozenset({"kafka_sasl", "kafka_tls", "kafka_cleartext"}),
            f"SAGA_KAFKA_SASL={sasl} without TLS sends {what} readable over the network: SAGA_KAFKA_TLS=true"
            + ("" if sasl == "oauthbearer" else ", or SAGA_KAFKA_SASL=scram-sha-512")
            + "; or consent by name, with SAGA_KAFKA_CLEARTEXT=true",
        )


def _load_hook(name: str) -> Callable[[], str]:
    """Load the function with the name `module:function`. Raises `ConfigurationError`."""
    module, _, function = name.partition(
        ":"
    )  # after the colon there may be a password, if the value was meant for another setting
    try:
        found: Callable[[], str] = getattr(import_module(module), function)
    except Exception as why:  # a module may raise anything while it is imported
        problem = f"SAGA_KAFKA_TOKEN names a function of module {module!r}: {type(why).__name__}: {why}"
        raise ConfigurationError("The settings cannot work", [problem]) from why
    if not callable(found) or iscoroutinefunction(found):
        problem = f"SAGA_KAFKA_TOKEN names what is no plain function of module {module!r}: give one that is not async"
        raise ConfigurationError("The settings cannot work", [problem])
    return found
