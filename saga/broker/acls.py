"""Kafka ACLs that services and operators need, and the commands that grant them.

Loads no driver and makes no request. A service that lacks a right reports it in the same words
(`saga.broker.kafka.broker`).
"""

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from saga.messaging.names import PROBED, TRANSITIONS, commands_of, dead_letters_of

Role: TypeAlias = Literal["service", "client", "operator", "administrator", "doctor"]
"""Way to use a Kafka: to run a service; to publish, ask and listen outside; to look at sagas and cure dead letters; to
make topics and move positions; to look whether all is as a service needs it, as the user of that service."""

COMMAND = "kafka-acls.sh"
SOMEBODY = "User:..."
"""User of a command that is told to people who know which it is."""
ANY = "*"
"""Name that stands for every group."""
CLUSTER = "kafka-cluster"
"""Name by which Kafka calls the cluster itself."""


class AclRight(NamedTuple):
    """Right of a user, as Kafka calls it. `Read` and `Write` on something include `Describe`."""

    operation: str
    kind: Literal["topic", "group", "cluster"]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUse:
    """Use that services, or a client, make of a broker, all together."""

    reads: frozenset[str] = frozenset()
    """Topics."""
    writes: frozenset[str] = frozenset()
    """Topics."""
    groups: frozenset[str] = frozenset()
    """Groups, which are the services' names."""
    topics: frozenset[str] = frozenset()
    """All their topics: of some they only look whether they are there."""


def required_rights(needs: BrokerUse, role: Role = "service") -> Sequence[AclRight]:
    """Rights that a user needs who does this with these services: none is missing, and none is to spare.

    >>> needs = BrokerUse(reads=frozenset({"orders"}), writes=frozenset({"payments"}), groups=frozenset({"payment"}))
    >>> [" ".join(right) for right in required_rights(needs)]
    ['Read topic orders', 'Read group payment', 'Write topic payments']
    """
    rights = frozenset(_RIGHTS[role](needs))
    told = [right for right in rights if not _is_included(right, rights)]
    return sorted(told, key=lambda right: (right.operation, right.kind != "topic", right.name))


def _of_service(needs: BrokerUse) -> Iterable[AclRight]:
    yield from (AclRight("Read", "topic", topic) for topic in needs.reads)
    yield from (AclRight("Read", "group", group) for group in needs.groups)
    yield from (AclRight("Write", "topic", topic) for topic in needs.writes)
    yield from (AclRight("Describe", "topic", topic) for topic in needs.topics)


def _of_client(needs: BrokerUse) -> Iterable[AclRight]:
    """Rights as a service's, and one to have a producer: each connection of ours has one, and Kafka gives none to those
    who may write nowhere."""
    yield from _of_service(needs)
    if not needs.writes:
        yield AclRight("IdempotentWrite", "cluster", CLUSTER)


def _of_operator(needs: BrokerUse) -> Iterable[AclRight]:
    """Dead letters and transitions are read, commands are written, and read by `saga audit`; `saga offsets show` asks
    groups and topics how far they are."""
    for service in needs.groups:
        yield AclRight("Read", "topic", dead_letters_of(service))
        yield from (AclRight(operation, "topic", commands_of(service)) for operation in ("Read", "Write"))
        yield AclRight("Describe", "group", service)
    yield from (AclRight("Describe", "topic", topic) for topic in needs.reads)
    if TRANSITIONS in needs.writes:
        yield AclRight("Read", "topic", TRANSITIONS)


def _of_administrator(needs: BrokerUse) -> Iterable[AclRight]:
    """Topics are made and changed while no group is at work on them, whosever it is; positions move for a group that is
    empty, on record among its dead letters, and over what cannot be read."""
    for topic in needs.topics:
        yield from (AclRight(operation, "topic", topic) for operation in ("Create", "Alter", "AlterConfigs"))
    yield AclRight("Describe", "group", ANY)
    for service in needs.groups:
        yield AclRight("Read", "group", service)
        yield AclRight("Write", "topic", dead_letters_of(service))
    yield from (AclRight("Read", "topic", topic) for topic in needs.reads)


def _of_doctor(needs: BrokerUse) -> Iterable[AclRight]:
    yield from _of_service(needs)
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
    """True if another of these rights includes this one."""
    return right.operation == "Describe" and any(
        right._replace(operation=more) in rights for more in ("Read", "Write", "Alter")
    )


def grant_commands(rights: Sequence[AclRight], principal: str, server: str) -> list[str]:
    """Commands that give these rights to a principal, one for each operation.

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
    """Command for whoever knows the user and the server, as errors name it.

    >>> grant_command(AclRight("Read", "topic", "orders"))
    'kafka-acls.sh --add --allow-principal User:... --operation Read --topic orders'
    """
    return _command((), SOMEBODY, right.operation, [right])


def _command(begins: Sequence[str], principal: str, operation: str, rights: Iterable[AclRight]) -> str:
    words = [COMMAND, *begins, "--add", "--allow-principal", principal, "--operation", operation]
    for right in rights:
        words += ["--cluster"] if right.kind == "cluster" else [f"--{right.kind}", right.name]
    return shlex.join(words)
