"""Rights on a Kafka that asks who one is: those that services and people need, and the commands that give them.

Loads no driver, and asks nobody. Who runs a service is told by the same names when something is missing
(`saga.broker.kafka.connecting`), so that what is printed here is what is checked there.
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


class Right(NamedTuple):
    """Right of a user, as Kafka calls it. `Read` and `Write` on something include `Describe`."""

    operation: str
    kind: Literal["topic", "group", "cluster"]
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Use that services, or a client, make of a broker, all together."""

    reads: frozenset[str] = frozenset()
    """Topics."""
    writes: frozenset[str] = frozenset()
    """Topics."""
    groups: frozenset[str] = frozenset()
    """Groups, which are the services' names."""
    topics: frozenset[str] = frozenset()
    """All their topics: of some they only look whether they are there."""


def rights_of(needs: Needs, role: Role = "service") -> Sequence[Right]:
    """Rights that a user needs who does this with these services: none is missing, and none is to spare.

    >>> needs = Needs(reads=frozenset({"orders"}), writes=frozenset({"payments"}), groups=frozenset({"payment"}))
    >>> [" ".join(right) for right in rights_of(needs)]
    ['Read topic orders', 'Read group payment', 'Write topic payments']
    """
    rights = frozenset(_RIGHTS[role](needs))
    told = [right for right in rights if not _is_included(right, rights)]
    return sorted(told, key=lambda right: (right.operation, right.kind != "topic", right.name))


def _of_service(needs: Needs) -> Iterable[Right]:
    yield from (Right("Read", "topic", topic) for topic in needs.reads)
    yield from (Right("Read", "group", group) for group in needs.groups)
    yield from (Right("Write", "topic", topic) for topic in needs.writes)
    yield from (Right("Describe", "topic", topic) for topic in needs.topics)


def _of_client(needs: Needs) -> Iterable[Right]:
    """Rights as a service's, and one to have a producer: each connection of ours has one, and Kafka gives none to those
    who may write nowhere."""
    yield from _of_service(needs)
    if not needs.writes:
        yield Right("IdempotentWrite", "cluster", CLUSTER)


def _of_operator(needs: Needs) -> Iterable[Right]:
    """Dead letters and transitions are read, commands are written, and read by `saga audit`; `saga positions show` asks
    groups and topics how far they are."""
    for service in needs.groups:
        yield Right("Read", "topic", dead_letters_of(service))
        yield from (Right(operation, "topic", commands_of(service)) for operation in ("Read", "Write"))
        yield Right("Describe", "group", service)
    yield from (Right("Describe", "topic", topic) for topic in needs.reads)
    if TRANSITIONS in needs.writes:
        yield Right("Read", "topic", TRANSITIONS)


def _of_administrator(needs: Needs) -> Iterable[Right]:
    """Topics are made and changed while no group is at work on them, whosever it is; positions move for a group that is
    empty, on record among its dead letters, and over what cannot be read."""
    for topic in needs.topics:
        yield from (Right(operation, "topic", topic) for operation in ("Create", "Alter", "AlterConfigs"))
    yield Right("Describe", "group", ANY)
    for service in needs.groups:
        yield Right("Read", "group", service)
        yield Right("Write", "topic", dead_letters_of(service))
    yield from (Right("Read", "topic", topic) for topic in needs.reads)


def _of_doctor(needs: Needs) -> Iterable[Right]:
    yield from _of_service(needs)
    yield from (Right("DescribeConfigs", "topic", topic) for topic in needs.topics)
    yield Right("DescribeConfigs", "cluster", CLUSTER)
    yield from (Right(operation, "topic", PROBED) for operation in ("Create", "Read", "Write"))


_RIGHTS: Mapping[Role, Callable[[Needs], Iterable[Right]]] = {
    "service": _of_service,
    "client": _of_client,
    "operator": _of_operator,
    "administrator": _of_administrator,
    "doctor": _of_doctor,
}


def _is_included(right: Right, rights: Collection[Right]) -> bool:
    """True if another of these rights includes this one."""
    return right.operation == "Describe" and any(
        right._replace(operation=more) in rights for more in ("Read", "Write", "Alter")
    )


def granting(rights: Sequence[Right], principal: str, server: str) -> list[str]:
    """Commands that give these rights to a principal, one for each operation.

    >>> for command in granting([Right("Read", "topic", "orders"), Right("Read", "group", "payment")], "User:p", "k:1"):
    ...     print(command)
    kafka-acls.sh --bootstrap-server k:1 --add --allow-principal User:p --operation Read --topic orders --group payment
    """
    by_operation: dict[str, list[Right]] = {}
    for right in rights:
        by_operation.setdefault(right.operation, []).append(right)
    begins = ("--bootstrap-server", server)
    return [_command(begins, principal, operation, each) for operation, each in by_operation.items()]


def allow(right: Right) -> str:
    """Command for whoever knows the user and the server, as errors name it.

    >>> allow(Right("Read", "topic", "orders"))
    'kafka-acls.sh --add --allow-principal User:... --operation Read --topic orders'
    """
    return _command((), SOMEBODY, right.operation, [right])


def _command(begins: Sequence[str], principal: str, operation: str, rights: Iterable[Right]) -> str:
    words = [COMMAND, *begins, "--add", "--allow-principal", principal, "--operation", operation]
    for right in rights:
        words += ["--cluster"] if right.kind == "cluster" else [f"--{right.kind}", right.name]
    return shlex.join(words)
