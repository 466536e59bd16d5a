"""The addresses of brokers and stores: URLs, taken apart. Each function raises `ValueError` and says what would do."""

import re
import string
from pathlib import Path
from typing import NamedTuple

KAFKA_PORT = 9092
_PLAIN = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:(?=/))?(?:\[[0-9a-fA-F:.]*\]|:[0-9]+(?![^,/])|[\w ./,{}\\~+-])*")
"""No `@`, `?`, `%` or `=`, and a colon only behind the scheme, in brackets and before a port."""
COUCHBASE_NAME = re.compile(r"(?:_default|[A-Za-z0-9-][A-Za-z0-9_%-]{0,250})")
"""Name of a scope or a collection, as Couchbase has it."""
_HOST = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")

INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,200}")
"""What Kafka takes as the id of a member of a group, with room for what is added to it."""


def scheme_of(url: str) -> str:
    """What stands before `://`.

    >>> scheme_of("kafka://broker-1:9092")
    'kafka'
    """
    return url.partition("://")[0] if "://" in url else ""


def is_plain(url: str) -> bool:
    """True if nothing in an address can be a user, a password or an option, right or wrong as it may be: so it may be
    shown to people.

    >>> is_plain("kafka://broker-1:9092,[::1]:9092"), is_plain("sqlite:///.saga/{service}.db")
    (True, True)
    >>> is_plain("kafka://ada:secret@broker-1"), is_plain("kafka://ada:secret"), is_plain("redis://h/?password=x")
    (False, False, False)
    """
    return _PLAIN.fullmatch(url) is not None


def check_broker(url: str) -> None:
    """Whether it can be the address of a broker."""
    if scheme_of(url) == "kafka":
        kafka_servers(url)
    else:
        embedded_path(url)


def check_store(url: str) -> None:
    """Whether it can be the address of stores."""
    if scheme_of(url) in ("couchbase", "couchbases"):
        couchbase_place(url, "x")
    else:
        sqlite_template(url)


def check_hook(text: str) -> None:
    """Whether it can name a function of a module: `shop.tokens:kafka_token`."""
    module, _, function = text.partition(":")
    if not function.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise ValueError("it must be module:function, as in shop.tokens:kafka_token")


def check_instance(text: str) -> None:
    """Whether it can say which process this is: `payment-0`."""
    if not INSTANCE.fullmatch(text):
        raise ValueError("it must be letters, digits, '.', '_' and '-', at most 200, as in payment-0")


def check_http(text: str) -> None:
    """Whether it can be where to listen: `127.0.0.1:8080`."""
    host, _, port = text.rpartition(":")
    if not host or "@" in host or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ValueError("it must be host:port, as in 127.0.0.1:8080 or 0.0.0.0:8080")


def kafka_servers(url: str) -> tuple[str, ...]:
    """The servers to ask first, each as host and port.

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
    if wrong := [host for host in hosts if not _HOST.fullmatch(host)]:
        which = repr(wrong[0]) if is_plain(url) else "one of the servers"
        raise ValueError(f"{which} is no host:port; user and password have settings of their own (SAGA_KAFKA_...)")
    return tuple(host if re.search(r":[0-9]+$", host) else f"{host}:{KAFKA_PORT}" for host in hosts)


class CouchbasePlace(NamedTuple):
    """Where in a cluster."""

    connection: str
    bucket: str
    scope: str | None
    collection: str | None


def couchbase_place(url: str, service: str) -> CouchbasePlace:
    """Cluster, bucket, and perhaps scope and collection; `{service}` in them becomes the service's name.

    >>> couchbase_place("couchbase://db1/shop/{service}", "payment").scope
    'payment'
    >>> couchbase_place("couchbases://db1,db2/shop/payment", "payment")
    CouchbasePlace(connection='couchbases://db1,db2', bucket='shop', scope='payment', collection=None)
    >>> couchbase_place("couchbase://db1:11210/shop", "payment")
    CouchbasePlace(connection='couchbase://db1:11210', bucket='shop', scope=None, collection=None)
    >>> couchbase_place("couchbase://db1", "payment")
    Traceback (most recent call last):
    ValueError: the bucket is missing: couchbase://host/bucket, /bucket/scope or /bucket/scope/collection
    """
    scheme, _, rest = url.replace("{service}", service).partition("://")
    if scheme not in ("couchbase", "couchbases"):
        raise ValueError("it is no address of a Couchbase: couchbase://host1,host2/bucket, or couchbases:// with TLS")
    if "?" in rest:
        raise ValueError("options after `?` are not taken: there are settings for them (SAGA_COUCHBASE_...)")
    if "@" in rest:
        raise ValueError("user and password are not taken: they have settings of their own (SAGA_COUCHBASE_...)")
    hosts, *names = rest.split("/")
    if not hosts or not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise ValueError(f"the hosts are missing or wrong: {scheme}://host1,host2/bucket")
    if not 1 <= len(names) <= 3 or not all(names):
        raise ValueError(f"the bucket is missing: {scheme}://host/bucket, /bucket/scope or /bucket/scope/collection")
    if wrong := [name for name in names[1:] if not COUCHBASE_NAME.fullmatch(name)]:
        raise ValueError(f"{wrong[0]!r} is no scope or collection: they have letters, digits, `-`, `_` and `%`")
    bucket, scope, collection = (*names, None, None)[:3]
    return CouchbasePlace(f"{scheme}://{hosts}", bucket or "", scope, collection)


def embedded_path(url: str) -> Path:
    """The file of an embedded broker; three slashes begin a path relative to the current folder. Raises `ValueError`.

    >>> embedded_path("embedded:///.saga/broker.db")
    PosixPath('.saga/broker.db')
    >>> embedded_path("embedded:////var/lib/saga/broker.db")
    PosixPath('/var/lib/saga/broker.db')
    >>> embedded_path("embedded://broker.db")
    Traceback (most recent call last):
    ValueError: a file is meant, so three slashes follow the colon: embedded:///broker.db
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
        named = f"there is no {what} {begins!r}" if separator and is_plain(url) else f"it is no address of a {what}"
        raise ValueError(
            f"{named}; use {scheme}:///file (relative) or {scheme}:////folder/file (absolute), "
            f"or {'kafka://host:9092' if what == 'broker' else 'couchbase://host/bucket'}"
        )
    if not rest.startswith("/"):
        right = f"{scheme}:///{rest}" if is_plain(url) else f"{scheme}:///file"
        raise ValueError(f"a file is meant, so three slashes follow the colon: {right}")
    path = rest[1:]
    if not path or path.endswith("/"):
        raise ValueError(f"the name of a file is missing, as in {scheme}:///.saga/{what}.db")
    return path
