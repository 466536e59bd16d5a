"""Description of a store adapter: its addresses and settings, and functions that create the store."""

import shlex
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from saga.store.port import Store
from saga.support.clock import Clock
from saga.support.settings import Adapter, ChosenSettings, Finding


class Keyspace(NamedTuple):
    """A collection of Couchbase."""

    bucket: str
    scope: str = "_default"
    collection: str = "_default"


class StoreAddress(NamedTuple):
    """One of the stores to which an address refers."""

    address: str
    service: str | None
    """The only service in the store; `None` if only the content of the store shows which services are in it."""
    file: Path | None = None
    """File of the store; `None` if it is on a server."""

    @property
    def place(self) -> str:
        """The same text for each spelling of the address of one file, such as a relative and an absolute one."""
        return self.address if self.file is None else str(self.file.resolve())


class StoreAdapter(Adapter, Protocol):
    """Description of a kind of store. Nothing here connects; only `create_store` loads a driver."""

    def create_store(self, settings: ChosenSettings, service: str, clock: Clock, *, readonly: bool = False) -> Store:
        """Create the store of a service, without opening it. Raises `ConfigurationError` if the driver is not
        installed.

        `readonly`: true for tools, which must not create or change anything.
        """

    def store_address(self, settings: ChosenSettings, service: str) -> str:
        """Return the address of a service's store. Services with the same address share one store."""

    def find_stores(self, address: str) -> Sequence[StoreAddress]:
        """Return the stores that match an address; `{service}` in it stands for any service. Raises `NoStore` if there
        are none, `ServiceNeeded` if the services cannot be listed there, and `ValueError` as `check` does."""

    def missing_file(self, settings: ChosenSettings, service: str) -> Path | None:
        """Return the path of the store's file if it is missing, else `None`. The service creates the file when it
        starts."""

    def report_probe(self, settings: ChosenSettings, about: str) -> Finding:
        """Return the finding to report about a store after a document was successfully written, read and removed."""

    def version_time_ms(self, cas: int) -> int | None:
        """Return the time at which the server created a document version, in milliseconds since 1970; `None` if this
        store's versions do not contain a time."""


@runtime_checkable
class HasStoreUsers(Protocol):
    """Part of the description of a store that authenticates users and checks their roles: what tools need to grant
    roles."""

    def servers(self, address: str) -> Sequence[str]:
        """Return the servers in the form that the commands for granting roles expect. Raises `ValueError`, as `check`
        does."""

    def keyspaces(self, address: str, service: str, collections: Collection[str]) -> Sequence[Keyspace]:
        """Return the keyspaces of these collections of a service. Raises `ValueError`, as `check` does."""


# ---------------------------------------------------------------- roles on Couchbase
#
# The roles that services and operators need, and the commands that grant them. Nothing here makes a request.


Form: TypeAlias = Literal["cli", "sql"]
"""Form of the commands that grant roles: `couchbase-cli`, or statements of SQL++, which need the query service."""


class CouchbaseRole(NamedTuple):
    """A role of a user on one collection: to read documents, or to write them. Writing does not include reading."""

    name: Literal["data_reader", "data_writer"]
    on: Keyspace


def required_roles(keyspaces: Iterable[Keyspace], *, readonly: bool = False) -> Sequence[CouchbaseRole]:
    """Return the roles that are needed to read and write these collections, or with `readonly` only to read them.

    >>> [f"{role.name} {role.on.collection}" for role in required_roles([Keyspace("shop", "payment", "saga")])]
    ['data_reader saga', 'data_writer saga']
    """
    places = list(dict.fromkeys(keyspaces))
    readers = [CouchbaseRole("data_reader", place) for place in places]
    return readers if readonly else [*readers, *(CouchbaseRole("data_writer", place) for place in places)]


def grant_role_commands(roles: Sequence[CouchbaseRole], user: str, server: str, form: Form) -> list[str]:
    """Return the commands that grant these roles to a user.

    `couchbase-cli` replaces all roles that the user has. It reads the administrator's name and password from the
    environment variables CB_REST_USERNAME and CB_REST_PASSWORD, and the user's password from PASSWORD.

    >>> read = required_roles([Keyspace("shop", "payment", "saga")], readonly=True)
    >>> grant_role_commands(read, "payment", "couchbase://db1", "sql")
    ['GRANT data_reader ON `shop`.`payment`.`saga` TO `payment`;']
    """
    if form == "sql":
        by_name: dict[str, list[str]] = {}
        for role in roles:
            by_name.setdefault(role.name, []).append(_quoted(role.on))
        return [f"GRANT {name} ON {', '.join(places)} TO {_quoted([user])};" for name, places in by_name.items()]
    granted = ",".join(f"{role.name}[{':'.join(role.on)}]" for role in roles)
    words = ["couchbase-cli", "user-manage", "--cluster", server, "--set"]
    words += ["--auth-domain", "local", "--rbac-username", user]
    return [f'{shlex.join(words)} --rbac-password "$PASSWORD" --roles {shlex.quote(granted)}']


def _quoted(parts: Sequence[str]) -> str:
    return ".".join("`{}`".format(part.replace("`", "``")) for part in parts)
