"""Kafka connectors for changes of Couchbase documents: the configuration that each service needs, and checks of the
connectors on a Kafka Connect cluster."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from http.client import HTTPException
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

from saga.change import ChangeSource
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.declarations.changes import kind_of
from saga.declarations.values import Declared
from saga.errors import ConfigurationError
from saga.messaging.names import change_topic
from saga.store.adapter import HasStoreUsers
from saga.store.port import Store
from saga.support.addresses import scheme_of
from saga.support.printable import printable, shorten
from saga.support.settings import Finding

HANDLER = "com.couchbase.connect.kafka.handler.source.RawJsonWithMetadataSourceHandler"
ASK_S_MAX = 10.0
"""Maximum time in seconds to wait for an answer of Kafka Connect."""
ANSWER_BYTES_MAX = 1 << 20
REASON_BYTES_MAX = 300


class ConnectorConfig(NamedTuple):
    """The name and the configuration of one service's connector."""

    name: str
    config: Mapping[str, str]
    """The configuration without the password, which Kafka Connect reads from its variable KAFKA_COUCHBASE_PASSWORD."""


class ConnectQuery(Protocol):
    """Function that returns the JSON at a path of Kafka Connect's REST API; `None` if there is nothing at this path.
    Raises `ConfigurationError` if Kafka Connect cannot be queried."""

    async def __call__(self, path: str) -> Any: ...


def list_watched_collections(service: Declared) -> Sequence[str]:
    """Return the collections of documents whose changes a service consumes."""
    taken = (kind_of(event) for reaction in service.reactions for event in reaction.taken_events)
    return sorted({kind.collection for kind in taken if kind is not None})


def make_connector(service: Declared, settings: Settings, user: str | None = None) -> ConnectorConfig:
    """Return the connector configuration for the document changes that a service consumes. Raises `ConfigurationError`
    with all reasons why no connector can deliver them."""
    adapter, collections = adapters.store_adapter(settings.store), list_watched_collections(service)
    problems = list(_find_obstacles(service, settings))
    if problems:
        raise ConfigurationError(f"there is no connector for {service.name!r}:", problems)
    assert isinstance(adapter, HasStoreUsers)
    places = adapter.keyspaces(settings.store, service.name, collections)
    servers = adapter.servers(settings.store)
    started = "SAVED_OFFSET_OR_BEGINNING" if settings.changes_from == "beginning" else "SAVED_OFFSET_OR_NOW"
    config = {
        "connector.class": "com.couchbase.connect.kafka.CouchbaseSourceConnector",
        "tasks.max": "1",
        "couchbase.seed.nodes": ",".join(server.partition("://")[2] for server in servers),
        "couchbase.username": user or service.name,
        "couchbase.bucket": places[0].bucket,
        "couchbase.collections": ",".join(f"{place.scope}.{place.collection}" for place in places),
        "couchbase.topic": change_topic(service.name, "${collection}"),
        "couchbase.source.handler": HANDLER,
        "couchbase.stream.from": started,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "producer.override.acks": "all",
        "producer.override.max.request.size": str(settings.record_bytes_max),
    }
    if servers[0].startswith("couchbases://"):
        config["couchbase.enable.tls"] = "true"
    return ConnectorConfig(f"saga-changes-{service.name}", config)


def _find_obstacles(service: Declared, settings: Settings) -> Iterator[str]:
    """Yield the reasons why no connector can deliver the document changes that a service consumes."""
    adapter, collections = adapters.store_adapter(settings.store), list_watched_collections(service)
    if not collections:
        yield f"{service.name!r} takes no Change[...]"
    if not isinstance(adapter, HasStoreUsers):
        yield f"SAGA_STORE is {settings.store}, which notes changes itself: a connector is for couchbase://"
        return
    if scheme_of(settings.broker) != "kafka":
        yield f"SAGA_BROKER is {settings.broker}: Couchbase's connector writes to Kafka alone"
    places = adapter.keyspaces(settings.store, service.name, collections)
    if [place.collection for place in places] != list(collections):
        yield (
            f"SAGA_STORE is {settings.store}, with all documents in one collection of Couchbase: name bucket and scope "
            "alone, so that each collection is one there, or progress would be taken for documents"
        )


# -------------------------------------------------------------------- checks


async def check_connectors(
    services: Sequence[Declared], settings: Settings, ask: ConnectQuery | None
) -> Sequence[Finding]:
    """Check that document changes reach these services.

    Args:
        ask: Function that queries Kafka Connect; `None` if its address is not set.
    """
    found = []
    for service in services:
        if collections := list_watched_collections(service):
            about = f"changes of {', '.join(collections)} for {service.name}"
            found += [each async for each in _check_connector(about, service, settings, ask)]
    return found


async def _check_connector(
    about: str, service: Declared, settings: Settings, ask: ConnectQuery | None
) -> AsyncIterator[Finding]:
    if not isinstance(adapters.store_adapter(settings.store), HasStoreUsers):
        yield Finding("ok", about, "the store notes them, and the service takes them on")
        return
    problems = list(_find_obstacles(service, settings))
    for problem in problems:
        yield Finding("error", about, problem, "no document ever starts a saga", "correct the settings")
    if problems:
        return
    wanted = make_connector(service, settings)
    make = f"saga changes connector MODULES, and give what it prints to the Kafka Connect as {wanted.name}"
    if ask is None:
        yield Finding(
            "warning",
            about,
            "SAGA_CONNECT does not say where the Kafka Connect is",
            "whether their connector is there, runs, and is as it should be was not looked at",
            "SAGA_CONNECT=http://HOST:8083",
        )
        return
    try:
        config, status = [await ask(f"/connectors/{quote(wanted.name)}/{part}") for part in ("config", "status")]
    except ConfigurationError as why:
        yield Finding(
            "error", about, str(why), "documents may start no sagas", "correct that, and run saga doctor again"
        )
        return
    if not isinstance(config, dict) or not isinstance(status, dict):
        yield Finding("error", about, f"there is no connector {wanted.name}", "no document ever starts a saga", make)
        return
    other = sorted(name for name, value in wanted.config.items() if name not in FREE and config.get(name) != value)
    for name in other:
        yield Finding(
            "error",
            about,
            f"the connector {wanted.name} has {name} = {config.get(name)!r}, wanted is {wanted.config[name]!r}",
            "changes go elsewhere, come in another form, or not at all",
            make,
        )
    states = _list_states(status)
    if stopped := [f"{what} is {state}" for what, state in states if state != "RUNNING"]:
        yield Finding(
            "error",
            about,
            f"the connector {wanted.name} does not run: {', '.join(stopped)}",
            "documents start no sagas until it does; none is lost while Couchbase has it",
            f"look at its trace ({settings.connect}/connectors/{wanted.name}/status), fix that, and restart it",
        )
    elif not other:
        yield Finding("ok", about, f"the connector {wanted.name} runs, and is as it should be")


FREE = frozenset({"tasks.max", "couchbase.username", "couchbase.stream.from", "couchbase.seed.nodes"})
"""Names of connector settings that operators may choose freely."""


def _list_states(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the states of a connector and its tasks. The server's answer may be any JSON object."""
    tasks = status.get("tasks")
    listed = [each for each in tasks if isinstance(each, dict)] if isinstance(tasks, list) else []
    connector = status.get("connector")
    own = connector.get("state") if isinstance(connector, dict) else None
    states = [("it", str(own)), *((f"task {each.get('id')}", str(each.get("state"))) for each in listed)]
    return states if listed else [*states, ("its task", "missing")]


def make_query(address: str) -> ConnectQuery | None:
    """Return a function that queries the Kafka Connect at an address; `None` if the address is empty."""

    def answer(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"{address.rstrip('/')}{path}", timeout=ASK_S_MAX) as response:
                return json.loads(response.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as why:
            why.close()
            if why.code == 404:
                return None
            raise ConfigurationError(f"Kafka Connect {address}", [f"it answers {why.code} {why.reason}"]) from why
        except (OSError, HTTPException, ValueError, RecursionError) as why:
            raise ConfigurationError(
                f"Kafka Connect {address}", [f"it cannot be asked: {shorten(printable(str(why)), REASON_BYTES_MAX)}"]
            ) from why

    async def ask(path: str) -> Any:
        return await asyncio.to_thread(answer, path)

    return ask if address else None


# -------------------------------------------------------------------- watched collections


def check_watched_collections(service: Declared, store: Store) -> Iterator[Finding]:
    """Yield findings about collections whose changes the store still records for a service that no longer consumes
    them. Raises `StoreError` if the store fails."""
    watched = store.list_watched(service.name) if isinstance(store, ChangeSource) else ()
    for collection in sorted(set(watched) - set(list_watched_collections(service))):
        yield Finding(
            "warning",
            f"changes of {collection} for {service.name}",
            f"the store notes them, and this release of {service.name} takes none of them",
            f"if no other release does, they pile up on {change_topic(service.name, collection)} for nothing",
            f"once no release takes them: saga changes drop MODULE --collection {collection}",
        )


async def stop_watching(service: Declared, collections: Collection[str], store: Store) -> None:
    """Stop recording changes of these collections for a service, and delete recorded changes that have not been relayed
    yet.

    Raises:
        ConfigurationError: One of the collections must not be dropped. Nothing was changed.
        StoreError: The store failed.
    """
    if not isinstance(store, ChangeSource):
        raise ConfigurationError(
            "nothing was dropped:", ["this store notes no changes: take the collection out of the connector"]
        )
    watched, taken = store.list_watched(service.name), list_watched_collections(service)
    there = ", ".join(sorted(watched)) or "of none"
    problems = [
        f"{service.name!r} takes changes of {each!r}: deploy a release first that does not"
        if each in taken
        else f"no changes of {each!r} are noted for {service.name!r}; they are of: {there}"
        for each in collections
        if each in taken or each not in watched
    ]
    if problems:
        raise ConfigurationError("nothing was dropped:", problems)
    await store.unwatch(service.name, collections)
