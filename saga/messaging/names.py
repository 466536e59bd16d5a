"""Names of the toolkit's own collections, topics and consumer groups. No other module writes them out."""

OURS = "saga"
"""First part of every name that belongs to the toolkit, up to the first `-` or `.`. No service may have this name."""
PROGRESS, ARCHIVES = OURS, f"{OURS}-archive"
"""Collections of the toolkit. The first contains the progress of each saga. The second contains archives, overflow
segments, claim checks, service records and control logs."""
PROBE = f"{OURS}-probe::"
"""Prefix of the keys of documents that are written only to test whether writing works."""
PROBED = f"{OURS}.doctor"
"""Topic to which `saga doctor` writes a record to test whether writing works."""
TRANSITIONS = f"{OURS}.transitions"
"""Topic on which services publish their transition events."""
CLIENTS = "client."
"""Prefix of the names of clients' consumer groups. No service name contains a dot, so no client can take a service's
partitions.
"""

_DEAD, _COMMANDS, _TIMERS, _CHANGES = ".dead", ".commands", ".wake.", ".changes."


def is_reserved_collection(collection: str) -> bool:
    """Return whether only the toolkit may use a collection of this name.

    >>> is_reserved_collection("saga-archive"), is_reserved_collection("sagas")
    (True, False)
    """
    return collection.partition("-")[0] == OURS


def dead_letter_topic(service: str) -> str:
    """Return the topic of a service's dead letters.

    >>> dead_letter_topic("payment")
    'payment.dead'
    """
    return service + _DEAD


def command_topic(service: str) -> str:
    """Return the topic of operator commands for a service.

    >>> command_topic("payment")
    'payment.commands'
    """
    return service + _COMMANDS


def service_of_commands(topic: str) -> str | None:
    """Return the service to which a topic of operator commands belongs; `None` for any other topic. Every service that
    was ever started has one.

    >>> service_of_commands("payment.commands"), service_of_commands("payments")
    ('payment', None)
    """
    return topic.removesuffix(_COMMANDS) if topic.endswith(_COMMANDS) else None


def timer_topic(service: str, tier: str) -> str:
    """Return the topic of a service's timers in one tier.

    >>> timer_topic("payment", "4m")
    'payment.wake.4m'
    """
    return f"{service}{_TIMERS}{tier}"


def is_timer_topic(topic: str) -> bool:
    """Return whether this is a timer topic. Its records do not count as lag, because they wait until they are due.

    >>> is_timer_topic("payment.wake.1m"), is_timer_topic("payment.commands")
    (True, False)
    """
    return _TIMERS in topic


def change_topic(service: str, collection: str) -> str:
    """Return the topic on which a service receives document changes of a collection.

    >>> change_topic("intake", "orders")
    'intake.changes.orders'
    """
    return f"{service}{_CHANGES}{collection}"


def is_change_topic(topic: str) -> bool:
    """Return whether this is a topic of document changes.

    >>> is_change_topic("intake.changes.orders"), is_change_topic("orders")
    (True, False)
    """
    return _CHANGES in topic


def is_without_events(topic: str) -> bool:
    """Return whether this is a topic of one service that holds no events: dead letters, operator commands or timers.

    >>> [is_without_events(topic) for topic in ("payment.dead", "payment.commands", "payment.wake.1m", "payments")]
    [True, True, True, False]
    """
    return topic.endswith((_DEAD, _COMMANDS)) or is_timer_topic(topic)


def is_dead_letter_topic(topic: str) -> bool:
    """Return whether this is the topic of dead letters of any service.

    >>> is_dead_letter_topic("payment.dead"), is_dead_letter_topic("payments")
    (True, False)
    """
    return topic.endswith(_DEAD)
