"""Settings of a Couchbase store: where it is, who we are there, and how safe a write must be."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from saga.errors import StoreUnavailable
from saga.support.adapter_description import asked

Durability: TypeAlias = Literal["majority", "majorityAndPersistActive", "persistToMajority", "none"]


OPEN_S = 12.0
"""Seconds that opening may take by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CouchbaseSettings:
    """Settings of a store. That those which people give go together, `saga.store.couchbase.adapter` has looked."""

    connection: str
    """Servers, as `couchbase://host1,host2`, or `couchbases://` for TLS."""
    bucket: str
    scope: str | None = None
    collection: str | None = None
    """Collection for everything. Without it, but with a scope, each of the toolkit's collections is one of the scope.
    Otherwise all are in this one, or in the bucket's default collection, with the collection's name before the key."""
    username: str | None = None
    password: Callable[[], str] | None = None
    """Function that gives the password: asked at each connect, and again when the server refuses us, so a file's new
    content is used."""
    ca_file: Path | None = None
    """File with the authorities that may have signed the server's certificate; without it those that the SDK knows."""
    cert_file: Path | None = None
    key_file: Path | None = None
    """Files of a client certificate and its key, in the place of user and password."""
    durability: Durability = "majority"
    """Safety that a write waits for. `none`: a failover may lose what was acknowledged."""
    open_s: float = OPEN_S
    """Seconds that opening may take."""
    kv_s: float = 2.5
    """Seconds that a read may take, or a write that is not durable."""
    durable_s: float = 10.0
    """Seconds that a durable write may take. The SDK raises less than 1.5; above 70 the server's own limit, of 16
    bits of milliseconds, overflows."""

    @property
    def tls(self) -> bool:
        return self.connection.startswith("couchbases://")

    @property
    def where(self) -> str:
        """Address for people, without secrets."""
        return "/".join(part for part in (self.connection, self.bucket, self.scope, self.collection) if part)

    @property
    def by_collection(self) -> bool:
        """True if each of the toolkit's collections is a Couchbase collection of its own."""
        return self.scope is not None and self.collection is None

    def home(self, collection: str) -> str:
        """Name of the Couchbase collection that holds this one."""
        return collection if self.by_collection else self.collection or "_default"

    def password_now(self) -> str | None:
        """The password as it is now. Raises `StoreUnavailable` whatever its function raises: it may be had later, and
        to end the process is not for such a function."""
        if self.password is None:
            return None
        try:
            return asked(self.password)
        except ValueError as why:
            raise StoreUnavailable(f"the password cannot be read: {why}") from why
