"""Couchbase roles that services and operators need, and the commands that grant them. Makes no request."""

import shlex
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

Form: TypeAlias = Literal["cli", "sql"]
"""Form of the commands: `couchbase-cli`, or statements of SQL++, which need the query service."""


class Keyspace(NamedTuple):
    """Collection of Couchbase."""

    bucket: str
    scope: str = "_default"
    collection: str = "_default"


class CouchbaseRole(NamedTuple):
    """Role on one collection: to read documents, or to write them; who writes cannot read by that."""

    name: Literal["data_reader", "data_writer"]
    on: Keyspace


def required_roles(keyspaces: Iterable[Keyspace], *, readonly: bool = False) -> Sequence[CouchbaseRole]:
    """Roles of who reads and writes these collections; `readonly`: of who reads them.

    >>> [f"{role.name} {role.on.collection}" for role in required_roles([Keyspace("shop", "payment", "saga")])]
    ['data_reader saga', 'data_writer saga']
    """
    places = list(dict.fromkeys(keyspaces))
    readers = [CouchbaseRole("data_reader", place) for place in places]
    return readers if readonly else [*readers, *(CouchbaseRole("data_writer", place) for place in places)]


def grant_role_commands(roles: Sequence[CouchbaseRole], user: str, server: str, form: Form) -> list[str]:
    """Commands that give a user these roles.

    With `couchbase-cli` they are all that the user has afterwards. As whom one asks, its own variables say
    (CB_REST_USERNAME, CB_REST_PASSWORD); the user's password is to be in the variable PASSWORD.

    >>> read = required_roles([Keyspace("shop", "payment", "saga")], readonly=True)
    >>> grant_role_commands(read, "payment", "couchbase://db1", "sql")
    ['GRANT data_reader ON `shop`.`payment`.`saga` TO `payment`;']
    """
    if form == "sql":
        by_name: dict[str, list[str]] = {}
        for role in roles:
            by_name.setdefault(role.name, []).append(_quoted(role.on))
        return [f"GRANT {name} ON {', '.join(places)} TO {_quoted([user])};" for name, places in by_name.items()]
    told = ",".join(f"{role.name}[{':'.join(role.on)}]" for role in roles)
    words = ["couchbase-cli", "user-manage", "--cluster", server, "--set"]
    words += ["--auth-domain", "local", "--rbac-username", user]
    return [f'{shlex.join(words)} --rbac-password "$PASSWORD" --roles {shlex.quote(told)}']


def _quoted(parts: Sequence[str]) -> str:
    return ".".join("`{}`".format(part.replace("`", "``")) for part in parts)
