"""Description of Couchbase as a store: addresses, settings, opening. Loads no driver."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from saga.errors import ServiceNeeded
from saga.store.adapter import StoreAddress
from saga.store.port import Store
from saga.store.roles import Keyspace
from saga.support import setting_readers
from saga.support.adapter_description import (
    OPEN_S_LESS,
    Chosen,
    Finding,
    Options,
    Problem,
    driver,
    path,
    secret,
    secret_problems,
)
from saga.support.addresses import HOST, scheme_of
from saga.support.clock import Clock

if TYPE_CHECKING:
    from saga.store.couchbase.settings import CouchbaseSettings

NAME = re.compile(r"(?:_default|[A-Za-z0-9-][A-Za-z0-9_%-]{0,250})")
"""Name of a scope or a collection, as Couchbase has it."""
CAS_PER_MS = 1_000_000
"""Versions per millisecond: Couchbase makes a document's version of the node's clock, in nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CouchbaseOptions:
    """Settings that only Couchbase has."""

    store_durability: Literal["majority", "majorityAndPersistActive", "persistToMajority", "none"] = "majority"
    """Safety that a write to Couchbase must have before it counts. With `none` a failover may lose what was written."""
    couchbase_username: str = ""
    """User name at Couchbase."""
    couchbase_password: str = field(default="", repr=False)
    """Password at Couchbase. Better in a file: variables are seen by whoever may look at the process."""
    couchbase_password_file: str = ""
    """File with the password at Couchbase. It is read at each connect."""
    couchbase_ca_file: str = ""
    """File with the authorities that may have signed Couchbase's certificates: nobody else is trusted then."""
    couchbase_cert_file: str = ""
    """File with our certificate, in the place of user and password."""
    couchbase_key_file: str = ""
    """File with the key of our certificate for Couchbase."""


class CouchbaseAdapter:
    """Description of Couchbase for `saga.configuration.adapters`: see `saga.store.adapter`."""

    schemes = ("couchbase", "couchbases")
    takes = "couchbase://HOST/BUCKET[/SCOPE[/COLLECTION]], or couchbases:// with TLS"
    example = "couchbase://host/bucket"
    options = Options(
        CouchbaseOptions,
        {
            "SAGA_STORE_DURABILITY": setting_readers.word(
                "majority", "majorityAndPersistActive", "persistToMajority", "none"
            ),
            "SAGA_COUCHBASE_USERNAME": setting_readers.text("a name"),
            "SAGA_COUCHBASE_PASSWORD": setting_readers.secret("a password"),
            "SAGA_COUCHBASE_PASSWORD_FILE": setting_readers.SECRET_FILE,
            "SAGA_COUCHBASE_CA_FILE": setting_readers.FILE,
            "SAGA_COUCHBASE_CERT_FILE": setting_readers.FILE,
            "SAGA_COUCHBASE_KEY_FILE": setting_readers.PLAIN_KEY_FILE,
        },
    )

    def check(self, address: str) -> None:
        couchbase_place(address, "x")

    def servers(self, address: str) -> Sequence[str]:
        scheme, _, hosts = couchbase_place(address, "x").connection.partition("://")
        return [f"{scheme}://{re.sub(':[0-9]+$', '', host)}" for host in hosts.split(",")]

    def keyspaces(self, address: str, service: str, collections: Collection[str]) -> Sequence[Keyspace]:
        from saga.store.couchbase.settings import CouchbaseSettings

        place = CouchbaseSettings(**couchbase_place(address, service)._asdict())
        homes = dict.fromkeys(place.home(collection) for collection in collections)
        return [Keyspace(place.bucket, place.scope or "_default", home) for home in homes]

    def problems(self, settings: Chosen) -> Iterator[Problem]:
        mine = settings.of(CouchbaseOptions)
        yield from secret_problems(mine, "couchbase")
        named = bool(mine.couchbase_username) and bool(mine.couchbase_password or mine.couchbase_password_file)
        if not named and not mine.couchbase_cert_file:
            yield (
                frozenset(
                    {"couchbase_username", "couchbase_password", "couchbase_password_file", "couchbase_cert_file"}
                ),
                "couchbase needs SAGA_COUCHBASE_USERNAME and SAGA_COUCHBASE_PASSWORD_FILE, or a certificate "
                "(SAGA_COUCHBASE_CERT_FILE, SAGA_COUCHBASE_KEY_FILE)",
            )
        if scheme_of(settings.store) == "couchbase" and (
            mine.couchbase_ca_file or mine.couchbase_cert_file or mine.couchbase_key_file
        ):
            yield (
                frozenset({"couchbase_ca_file", "couchbase_cert_file", "couchbase_key_file"}),
                "certificates need TLS: write couchbases:// in SAGA_STORE",
            )

    def at(self, settings: Chosen, service: str, clock: Clock, *, readonly: bool = False) -> Store:
        with_couchbase = driver("couchbase", "couchbase", "saga.store.couchbase.store")
        given = couchbase_settings(settings, service)
        return cast("Store", with_couchbase.CouchbaseStore(given, clock=clock, readonly=readonly))

    def shared_as(self, settings: Chosen, service: str) -> str:
        return settings.store

    def stores_of(self, address: str) -> Sequence[StoreAddress]:
        self.check(address)
        if "{service}" in address:
            raise ServiceNeeded(
                "there is no store to be read:",
                [
                    f"{address} is one for each service, and neither broker nor manifests tell which there are: name "
                    "each with --store"
                ],
            )
        return [StoreAddress(address, None)]

    def unmade(self, settings: Chosen, service: str) -> Path | None:
        return None

    def written(self, settings: Chosen, about: str) -> Finding:
        durability = settings.of(CouchbaseOptions).store_durability
        if durability != "none":
            return Finding("ok", about, f"it writes, reads and removes; durability {durability}")
        return Finding(
            "warning",
            about,
            "it writes, reads and removes; durability none, as SAGA_STORE_DURABILITY asks for",
            "a failover may lose what was acknowledged: effects come twice, or sagas stand still",
            "SAGA_STORE_DURABILITY=majority; majorityAndPersistActive for a bucket without replicas",
        )

    def told_ms(self, cas: int) -> int | None:
        return cas // CAS_PER_MS


COUCHBASE = CouchbaseAdapter()


def couchbase_settings(settings: Chosen, service: str) -> "CouchbaseSettings":
    """Settings of a service's store."""
    from saga.store.couchbase.settings import CouchbaseSettings

    mine = settings.of(CouchbaseOptions)
    return CouchbaseSettings(
        **couchbase_place(settings.store, service)._asdict(),
        username=mine.couchbase_username or None,
        password=secret(mine.couchbase_password, mine.couchbase_password_file),
        ca_file=path(mine.couchbase_ca_file),
        cert_file=path(mine.couchbase_cert_file),
        key_file=path(mine.couchbase_key_file),
        durability=mine.store_durability,
        open_s=max(1.0, settings.open_s - OPEN_S_LESS),
    )


class CouchbasePlace(NamedTuple):
    """Place of a store's documents in a cluster."""

    connection: str
    bucket: str
    scope: str | None
    collection: str | None


def couchbase_place(url: str, service: str) -> CouchbasePlace:
    """Place that a URL names: cluster, bucket, and perhaps scope and collection; `{service}` in them becomes the
    service's name.

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
    if not hosts or not all(HOST.fullmatch(host) for host in hosts.split(",")):
        raise ValueError(f"the hosts are missing or wrong: {scheme}://host1,host2/bucket")
    if not 1 <= len(names) <= 3 or not all(names):
        raise ValueError(f"the bucket is missing: {scheme}://host/bucket, /bucket/scope or /bucket/scope/collection")
    if wrong := [name for name in names[1:] if not NAME.fullmatch(name)]:
        raise ValueError(f"{wrong[0]!r} is no scope or collection: they have letters, digits, `-`, `_` and `%`")
    bucket, scope, collection = (*names, None, None)[:3]
    return CouchbasePlace(f"{scheme}://{hosts}", bucket or "", scope, collection)
