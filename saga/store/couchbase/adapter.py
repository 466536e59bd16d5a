"""Couchbase adapter: addresses, settings and creation of the store. Importing this module loads no driver."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, cast

from saga.errors import ServiceNeeded, StoreUnavailable
from saga.store.adapter import Keyspace, StoreAddress
from saga.store.port import Store
from saga.support import settings
from saga.support.addresses import HOST, scheme_of
from saga.support.clock import Clock
from saga.support.settings import (
    OPEN_S_LESS,
    ChosenSettings,
    Finding,
    Options,
    Problem,
    load_driver,
    path_of,
    read_secret,
    secret_problems,
    secret_reader,
)

NAME = re.compile(r"(?:_default|[A-Za-z0-9-][A-Za-z0-9_%-]{0,250})")
"""Form of the name of a scope or a collection of Couchbase."""
UNASKED = "whether the bucket evicts was not asked, because without TLS that would send the password readable"
"""Note of the doctor for an address without TLS."""
CAS_PER_MS = 1_000_000
"""Number by which versions grow per millisecond. A document's version is the clock of its Couchbase node, in
nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CouchbaseOptions:
    """Settings that only Couchbase has."""

    store_durability: Literal["majority", "majorityAndPersistActive", "persistToMajority", "none"] = "majority"
    """Durability that a write to Couchbase needs before it counts as written. With `none` a failover may lose
    acknowledged writes."""
    couchbase_username: str = ""
    """User name at Couchbase."""
    couchbase_password: str = field(default="", repr=False)
    """Password at Couchbase. A file is safer, because everyone who may inspect the process can see its environment
    variables."""
    couchbase_password_file: str = ""
    """File with the password at Couchbase. It is read at each connect."""
    couchbase_ca_file: str = ""
    """File with the certificate authorities to trust for Couchbase. No others are trusted then."""
    couchbase_cert_file: str = ""
    """File with our certificate, used instead of user and password."""
    couchbase_key_file: str = ""
    """File with the key of our certificate for Couchbase."""


Durability: TypeAlias = Literal["majority", "majorityAndPersistActive", "persistToMajority", "none"]
OPEN_S = 12.0
"""Default of the longest time that opening a store may take, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CouchbaseSettings:
    """Settings of a Couchbase store. `CouchbaseAdapter.problems` has checked their consistency."""

    connection: str
    """Servers: `couchbase://host1,host2`, or `couchbases://` for TLS."""
    bucket: str
    scope: str | None = None
    collection: str | None = None
    """Couchbase collection for all documents.

    If it is `None` and there is a scope, each collection of the toolkit is a Couchbase collection with the same name in
    this scope. If it is `None` and there is no scope, all documents are in the bucket's default collection. Where all
    documents share a Couchbase collection, each key begins with the name of the toolkit's collection.
    """
    username: str | None = None
    password: Callable[[], str] | None = field(default=None, repr=False)
    """Function that returns the password. It is called at each connect, and again when the server refuses a connection,
    so that a changed file is noticed."""
    ca_file: Path | None = None
    """File with the certificate authorities to trust for the server; `None` for the authorities that the SDK knows."""
    cert_file: Path | None = None
    key_file: Path | None = None
    """Files of a client certificate and its key, instead of user and password."""
    durability: Durability = "majority"
    """Durability for which a write waits. With `none` a failover may lose acknowledged writes."""
    open_s: float = OPEN_S
    """Longest time for opening, in seconds."""
    kv_s: float = 2.5
    """Longest time of a read, or of a write that is not durable, in seconds."""
    durable_s: float = 10.0
    """Longest time of a durable write, in seconds. The SDK raises values below 1.5. Values above 70 overflow the
    server's own limit, which has 16 bits of milliseconds."""

    @property
    def tls(self) -> bool:
        return self.connection.startswith("couchbases://")

    @property
    def where(self) -> str:
        """Return the address for messages, without secrets."""
        return "/".join(part for part in (self.connection, self.bucket, self.scope, self.collection) if part)

    @property
    def by_collection(self) -> bool:
        """Return whether each collection of the toolkit is a Couchbase collection of its own."""
        return self.scope is not None and self.collection is None

    def home(self, collection: str) -> str:
        """Return the name of the Couchbase collection that holds the documents of a collection of the toolkit."""
        return collection if self.by_collection else self.collection or "_default"

    def password_now(self) -> str | None:
        """Return the current password.

        Raises `StoreUnavailable` for any exception of the function, even `SystemExit`, because the function may succeed
        later and must not end the process.
        """
        if self.password is None:
            return None
        try:
            return read_secret(self.password)
        except ValueError as why:
            raise StoreUnavailable(f"the password cannot be read: {why}") from why


class CouchbaseAdapter:
    """Description of Couchbase for `saga.configuration.adapters`: see `saga.store.adapter`."""

    schemes = ("couchbase", "couchbases")
    takes = "couchbase://HOST/BUCKET[/SCOPE[/COLLECTION]], or couchbases:// with TLS"
    example = "couchbase://host/bucket"
    options = Options(
        CouchbaseOptions,
        {
            "SAGA_STORE_DURABILITY": settings.word("majority", "majorityAndPersistActive", "persistToMajority", "none"),
            "SAGA_COUCHBASE_USERNAME": settings.text("a name"),
            "SAGA_COUCHBASE_PASSWORD": settings.secret("a password"),
            "SAGA_COUCHBASE_PASSWORD_FILE": settings.SECRET_FILE,
            "SAGA_COUCHBASE_CA_FILE": settings.FILE,
            "SAGA_COUCHBASE_CERT_FILE": settings.FILE,
            "SAGA_COUCHBASE_KEY_FILE": settings.PLAIN_KEY_FILE,
        },
    )

    def check(self, address: str) -> None:
        couchbase_place(address, "x")

    def servers(self, address: str) -> Sequence[str]:
        scheme, _, hosts = couchbase_place(address, "x").connection.partition("://")
        return [f"{scheme}://{re.sub(':[0-9]+$', '', host)}" for host in hosts.split(",")]

    def keyspaces(self, address: str, service: str, collections: Collection[str]) -> Sequence[Keyspace]:
        place = CouchbaseSettings(**couchbase_place(address, service)._asdict())
        homes = dict.fromkeys(place.home(collection) for collection in collections)
        return [Keyspace(place.bucket, place.scope or "_default", home) for home in homes]

    def problems(self, settings: ChosenSettings) -> Iterator[Problem]:
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

    def create_store(self, settings: ChosenSettings, service: str, clock: Clock, *, readonly: bool = False) -> Store:
        with_couchbase = load_driver("couchbase", "couchbase", "saga.store.couchbase.store")
        chosen = couchbase_settings(settings, service)
        return cast("Store", with_couchbase.CouchbaseStore(chosen, clock=clock, readonly=readonly))

    def store_address(self, settings: ChosenSettings, service: str) -> str:
        return settings.store

    def find_stores(self, address: str) -> Sequence[StoreAddress]:
        self.check(address)
        if "{service}" in address:
            raise ServiceNeeded(
                "there is no store to be read:",
                [
                    f"{address} is one for each service, and neither broker nor manifests list the services: name each "
                    "with --store"
                ],
            )
        return [StoreAddress(address, None)]

    def missing_file(self, settings: ChosenSettings, service: str) -> Path | None:
        return None

    def report_probe(self, settings: ChosenSettings, about: str) -> Finding:
        durability = settings.of(CouchbaseOptions).store_durability
        unasked = "" if scheme_of(settings.store) == "couchbases" else f"; {UNASKED}"
        if durability != "none":
            return Finding("ok", about, f"it writes, reads and removes; durability {durability}{unasked}")
        return Finding(
            "warning",
            about,
            f"it writes, reads and removes; durability none, as SAGA_STORE_DURABILITY asks for{unasked}",
            "a failover may lose what was acknowledged: effects happen twice, or sagas stop",
            "SAGA_STORE_DURABILITY=majority; majorityAndPersistActive for a bucket without replicas",
        )

    def version_time_ms(self, cas: int) -> int | None:
        return cas // CAS_PER_MS


COUCHBASE = CouchbaseAdapter()


def couchbase_settings(settings: ChosenSettings, service: str) -> CouchbaseSettings:
    """Return the settings of a service's store."""
    mine = settings.of(CouchbaseOptions)
    return CouchbaseSettings(
        **couchbase_place(settings.store, service)._asdict(),
        username=mine.couchbase_username or None,
        password=secret_reader(mine.couchbase_password, mine.couchbase_password_file),
        ca_file=path_of(mine.couchbase_ca_file),
        cert_file=path_of(mine.couchbase_cert_file),
        key_file=path_of(mine.couchbase_key_file),
        durability=mine.store_durability,
        open_s=max(1.0, settings.open_s - OPEN_S_LESS),
    )


class CouchbasePlace(NamedTuple):
    """Location of a store's documents in a cluster."""

    connection: str
    bucket: str
    scope: str | None
    collection: str | None


def couchbase_place(url: str, service: str) -> CouchbasePlace:
    """Return the cluster, bucket, and possibly scope and collection in a URL. Raises `ValueError`.

    `{service}` in them is replaced by the service's name.

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
