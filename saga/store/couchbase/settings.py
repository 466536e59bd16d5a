"""Settings of a Couchbase store: where it is, who we are there, and how safe a write must be, checked as a whole."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from saga.errors import ConfigurationError, StoreUnavailable
from saga.printable import printable, shortened
from saga.store.couchbase.adapter import NAME

Durability: TypeAlias = Literal["majority", "majorityAndPersistActive", "persistToMajority", "none"]

SAID_MAX = 200
"""Bytes that are told of an exception that is not ours."""
SCHEMES = ("couchbase://", "couchbases://")
DURABLE_S_MIN, DURABLE_S_MAX = 1.5, 70.0
"""Bounds of a durable write's time: the SDK raises less to the first; the server's own limit, of 16 bits of
milliseconds, overflows above the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CouchbaseSettings:
    """Settings of a store. Raises `ConfigurationError` with all that cannot work."""

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
    kv_s: float = 2.5
    """Seconds that a read may take, or a write that is not durable."""
    durable_s: float = 10.0
    """Seconds that a durable write may take."""

    def __post_init__(self) -> None:
        if problems := [*self._place_problems(), *self._identity_problems(), *self._limit_problems()]:
            raise ConfigurationError(f"The Couchbase store {self.where} cannot work", problems)

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

    def password_now(self) -> str | None:
        """The password as it is now. Raises `StoreUnavailable` whatever its function raises: it may be had later, and
        to end the process is not for such a function."""
        if self.password is None:
            return None
        try:
            given: object = self.password()
            if not isinstance(given, str):
                raise TypeError(f"it gave {type(given).__name__}, and no str")
        except (Exception, SystemExit) as why:
            said = shortened(printable(f"{type(why).__name__}: {why}"), SAID_MAX)
            raise StoreUnavailable(f"the password cannot be read: {said}") from why
        return given

    def _place_problems(self) -> Iterator[str]:
        if not self.connection.startswith(SCHEMES) or not self.connection.partition("://")[2].strip(","):
            yield f"the connection {self.connection!r} must be couchbase://host1,host2 or couchbases://host1,host2"
        if not self.bucket:
            yield "the bucket is missing, as in couchbase://host/bucket"
        for what, name in (("scope", self.scope), ("collection", self.collection)):
            if name is not None and not NAME.fullmatch(name):
                yield f"the {what} {name!r} is no name that Couchbase takes: letters, digits, `-`, `_` and `%`"

    def _identity_problems(self) -> Iterator[str]:
        if (self.cert_file is None) != (self.key_file is None):
            yield "a client certificate needs both its file and the file of its key"
        if self.cert_file is None and self.key_file is None and not (self.username and self.password):
            yield "user and password are missing, or a client certificate with its key"
        if not self.tls and (self.ca_file or self.cert_file or self.key_file):
            yield "certificates need TLS: write couchbases:// in the place of couchbase://"
        for file in (self.ca_file, self.cert_file, self.key_file):
            if file is not None and not file.is_file():
                yield f"there is no file {file}"

    def _limit_problems(self) -> Iterator[str]:
        if not 0 < self.kv_s <= DURABLE_S_MAX:
            yield f"an operation may take from 0 to {DURABLE_S_MAX} seconds, not {self.kv_s}"
        if not DURABLE_S_MIN <= self.durable_s <= DURABLE_S_MAX:
            yield f"a durable write may take from {DURABLE_S_MIN} to {DURABLE_S_MAX} seconds, not {self.durable_s}"
