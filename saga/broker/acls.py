"""Kafka ACLs that services and operators need, and the commands that grant them.

This module loads no driver and makes no request. A service that lacks a right reports it with the same words
(`saga.broker.kafka.broker`).
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from saga.messaging.names import PROBED, TRANSITIONS, command_topic, dead_letter_topic

Role: TypeAlias = Literal["service", "client", "operator", "administrator", "doctor"]
"""Kind of Kafka user, by what the user may do. `service`: run a service. `client`: publish and subscribe. `operator`:
inspect sagas and resolve dead letters. `administrator`: create topics and move positions. `doctor`: run `saga doctor`
as the user of a service."""

COMMAND = "kafka-acls.sh"
SOMEBODY = "User:..."
"""Placeholder for the user in commands that errors show."""
ANY = "*"
"""Wildcard that stands for every group."""
CLUSTER = "kafka-cluster"
"""Kafka's name of the cluster resource."""


class AclRight(NamedTuple):
    """A permission in Kafka's own words. `Read` and `Write` include `Describe`."""

    operation: str
    kind: Literal["topic", "group", "cluster"]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUse:
    """The topics and groups that some services, or a client, use."""

    reads: frozenset[str] = frozenset()
    """Topics that are read."""
    writes: frozenset[str] = frozenset()
    """Topics that are written."""
    groups: frozenset[str] = frozenset()
    """Consumer groups, which are the names of the services."""
    topics: frozenset[str] = frozenset()
    """All topics that are used, including those that are only checked for existence."""


def required_rights(needs: BrokerUse, role: Role = "service") -> Sequence[AclRight]:
    """Return exactly the permissions that a user with this role needs.

    >>> needs = BrokerUse(reads=frozenset({"orders"}), writes=frozenset({"payments"}), groups=frozenset({"payment"}))
    >>> [" ".join(right) for right in required_rights(needs)]
    ['Read topic orders', 'Read group payment', 'Write topic payments']
    """
    rights = frozenset(_RIGHTS[role](needs))
    needed = [right for right in rights if not _is_included(right, rights)]
    return sorted(needed, key=lambda right: (right.operation, right.kind != "topic", right.name))


def _of_service(needs: BrokerUse) -> Iterable[AclRight]:
    yield from (AclRight("Read", "topic", topic) for topic in needs.reads)
    yield from (AclRight("Read", "group", group) for group in needs.groups)
    yield from (AclRight("Write", "topic", topic) for topic in needs.writes)
    yield from (AclRight("Describe", "topic", topic) for topic in needs.topics)


def _of_client(needs: BrokerUse) -> Iterable[AclRight]:
    """Yield the permissions of a service, and the permission to open a producer.

    Each client opens a producer, which Kafka refuses to a user without any write permission.
    """
    yield from _of_service(needs)
    if not needs.writes:
        yield AclRight("IdempotentWrite", "cluster", CLUSTER)


def _of_operator(needs: BrokerUse) -> Iterable[AclRight]:
    """Yield an operator's permissions.

    An operator reads dead letters and transitions, and writes operator commands. `saga audit` reads these commands
    again. `saga offsets show` describes groups and topics.
    """
    for service in needs.groups:
        yield AclRight("Read", "topic", dead_letter_topic(service))
        yield from (AclRight(operation, "topic", command_topic(service)) for operation in ("Read", "Write"))
        yield AclRight("Describe", "group", service)
    yield from (AclRight("Describe", "topic", topic) for topic in needs.reads)
    if TRANSITIONS in needs.writes:
        yield AclRight("Read", "topic", TRANSITIONS)


def _of_administrator(needs: BrokerUse) -> Iterable[AclRight]:
    """Yield an administrator's permissions.

    The right to describe every group is needed to check that no group uses a topic before the topic is changed. Moving
    positions needs an empty group, and writes a record to the service's dead-letter topic. The search for unreadable
    records reads the topics.
    """
    for topic in needs.topics:
        yield from (AclRight(operation, "topic", topic) for operation in ("Create", "Alter", "AlterConfigs"))
    yield AclRight("Describe", "group", ANY)
    for service in needs.groups:
        yield AclRight("Read", "group", service)
        yield AclRight("Write", "topic", dead_letter_topic(service))
    yield from (AclRight("Read", "topic", topic) for topic in needs.reads)


def _of_doctor(needs: BrokerUse) -> Iterable[AclRight]:
    """Yield the permissions to run `saga doctor`.

    It compares an empty store with the offsets of the group. Those that an operator has set are recorded in the topic
    of dead letters.
    """
    yield from _of_service(needs)
    yield from (AclRight("Read", "topic", dead_letter_topic(service)) for service in needs.groups)
    yield from (AclRight("DescribeConfigs", "topic", topic) for topic in needs.topics)
    yield AclRight("DescribeConfigs", "cluster", CLUSTER)
    yield from (AclRight(operation, "topic", PROBED) for operation in ("Create", "Read", "Write"))


_RIGHTS: Mapping[Role, Callable[[BrokerUse], Iterable[AclRight]]] = {
    "service": _of_service,
    "client": _of_client,
    "operator": _of_operator,
    "administrator": _of_administrator,
    "doctor": _of_doctor,
}


def _is_included(right: AclRight, rights: Collection[AclRight]) -> bool:
    """Return whether another of these permissions includes this one."""
    return right.operation == "Describe" and any(
        right._replace(operation=more) in rights for more in ("Read", "Write", "Alter")
    )


def grant_commands(rights: Sequence[AclRight], principal: str, server: str) -> list[str]:
    """Return the commands that grant these permissions to a principal, one for each operation.

    >>> rights = [AclRight("Read", "topic", "orders"), AclRight("Read", "group", "payment")]
    >>> for command in grant_commands(rights, "User:p", "k:1"):
    ...     print(command)
    kafka-acls.sh --bootstrap-server k:1 --add --allow-principal User:p --operation Read --topic orders --group payment
    """
    by_operation: dict[str, list[AclRight]] = {}
    for right in rights:
        by_operation.setdefault(right.operation, []).append(right)
    begins = ("--bootstrap-server", server)
    return [_command(begins, principal, operation, each) for operation, each in by_operation.items()]


def grant_command(right: AclRight) -> str:
    """Return the command that grants a permission, without user and server, for error messages.

    >>> grant_command(AclRight("Read", "topic", "orders"))
    'kafka-acls.sh --add --allow-principal User:... --operation Read --topic orders'
    """
    return _command((), SOMEBODY, right.operation, [right])


def _command(begins: Sequence[str], principal: str, operation: str, rights: Iterable[AclRight]) -> str:
    words = [COMMAND, *begins, "--add", "--allow-principal", principal, "--operation", operation]
    for right in rights:
        words += ["--cluster"] if right.kind == "cluster" else [f"--{right.kind}", right.name]
    return shlex.join(words)
