"""From addresses and settings to brokers and stores, not yet open: the only file that knows all adapters.

A driver is imported when its address is chosen; a missing one fails here, with the `pip install` that mends it.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from saga.addresses import couchbase_place, kafka_servers, scheme_of, sqlite_path
from saga.broker.administration import Administration
from saga.broker.port import Broker
from saga.clock import Clock
from saga.config import Settings
from saga.errors import ConfigurationError
from saga.store.port import Store

if TYPE_CHECKING:
    from saga.broker.kafka import KafkaSettings
    from saga.store.couchbase import CouchbaseSettings


def broker_at(settings: Settings, clock: Clock) -> Broker:
    """The broker of the settings. Raises `ConfigurationError` for a driver that is not installed."""
    if scheme_of(settings.broker) == "kafka":
        with_kafka = _driver("kafka", "aiokafka", "saga.broker.kafka")
        broker: Broker = with_kafka.KafkaBroker(kafka_settings(settings), clock=clock)
        return broker
    from saga.broker.embedded import EmbeddedBroker

    return EmbeddedBroker(settings.broker_path, clock=clock, record_bytes_max=settings.record_bytes_max)


def administration_at(settings: Settings, clock: Clock) -> Administration:
    """The same broker, for tools. Raises `ConfigurationError` for a driver that is not installed."""
    if scheme_of(settings.broker) == "kafka":
        with_kafka = _driver("kafka", "aiokafka", "saga.broker.kafka.administration")
        broker: Administration = with_kafka.KafkaAdministration(kafka_settings(settings), clock=clock)
        return broker
    from saga.broker.embedded.administration import EmbeddedAdministration

    return EmbeddedAdministration(settings.broker_path, clock=clock)


def store_at(settings: Settings, service: str, clock: Clock, *, readonly: bool = False) -> Store:
    """The store of a service. Raises `ConfigurationError` for a driver that is not installed. `readonly`: for tools;
    nothing is created or changed."""
    if scheme_of(settings.store).startswith("couchbase"):
        with_couchbase = _driver("couchbase", "couchbase", "saga.store.couchbase")
        store: Store = with_couchbase.CouchbaseStore(
            couchbase_settings(settings, service), clock=clock, readonly=readonly
        )
        return store
    return sqlite_at(sqlite_path(settings.store, service), clock, readonly=readonly)


def sqlite_at(path: Path, clock: Clock, *, readonly: bool = False) -> Store:
    """A store file."""
    from saga.store.sqlite import SqliteStore

    return SqliteStore(path, clock=clock, readonly=readonly)


def kafka_settings(settings: Settings) -> "KafkaSettings":
    """What the Kafka adapter has to know."""
    from saga.broker.kafka import KafkaSettings

    sasl = None if settings.kafka_sasl == "none" else settings.kafka_sasl.upper()
    return KafkaSettings(
        servers=kafka_servers(settings.broker),
        tls=settings.kafka_tls,
        ca_file=_path(settings.kafka_ca_file),
        cert_file=_path(settings.kafka_cert_file),
        key_file=_path(settings.kafka_key_file),
        sasl=cast('Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None', sasl),
        username=settings.kafka_username,
        password=_secret(settings.kafka_password, settings.kafka_password_file),
        token=_hook(settings.kafka_token) if settings.kafka_token else None,
        instance=settings.kafka_instance,
        replication_factor=settings.kafka_replication,
        min_insync_replicas=settings.kafka_min_insync,
        record_bytes_max=settings.record_bytes_max,
    )


def couchbase_settings(settings: Settings, service: str) -> "CouchbaseSettings":
    """What the Couchbase adapter has to know, for the store of a service."""
    from saga.store.couchbase import CouchbaseSettings

    place = couchbase_place(settings.store, service)
    return CouchbaseSettings(
        connection=place.connection,
        bucket=place.bucket,
        scope=place.scope,
        collection=place.collection,
        username=settings.couchbase_username or None,
        password=_secret(settings.couchbase_password, settings.couchbase_password_file),
        ca_file=_path(settings.couchbase_ca_file),
        cert_file=_path(settings.couchbase_cert_file),
        key_file=_path(settings.couchbase_key_file),
        durability=settings.store_durability,
    )


def _driver(extra: str, package: str, module: str) -> "_Module":
    try:
        import_module(package)
    except ImportError as why:
        raise ConfigurationError(
            f"{extra}://... was chosen, and its driver cannot be imported:",
            [f"{why}; pip install 'saga-choreography[{extra}]'"],
        ) from why
    try:
        return cast("_Module", import_module(module))
    except ImportError as why:
        raise ConfigurationError(
            f"{extra}://... was chosen, and its driver has become another one:",
            [f"{why}; pip install 'saga-choreography[{extra}]' brings one that fits this release of saga"],
        ) from why


class _Module:
    """What is used of the module of an adapter."""

    KafkaBroker: Callable[..., Broker]
    KafkaAdministration: Callable[..., Administration]
    CouchbaseStore: Callable[..., Store]


def _path(text: str) -> Path | None:
    return Path(text) if text else None


def _secret(given: str, file: str) -> Callable[[], str] | None:
    """Asks for a secret anew each time: a file may have been replaced."""
    if file:
        return lambda: Path(file).read_text("utf-8").strip()
    return (lambda: given) if given else None


def _hook(name: str) -> Callable[[], str]:
    """The function that `module:function` names. Raises `ConfigurationError`."""
    module, _, function = name.partition(":")
    try:
        found: Callable[[], str] = getattr(import_module(module), function)
    except (ImportError, AttributeError) as why:
        raise ConfigurationError("The settings cannot work", [f"SAGA_KAFKA_TOKEN is {name!r}: {why}"]) from why
    return found
