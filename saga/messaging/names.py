"""Names of the toolkit's own collections, topics and consumer groups. No other module writes them out."""

OURS = "saga"
"""First part of every name that belongs to the toolkit, up to the first `-` or `.`. No service may have this name."""
PROGRESS, ARCHIVES = OURS, f"{OURS}-archive"
"""Collections of the toolkit. The first contains the progress of each saga. The second contains archives, overflow
segments, claim checks, service records and control logs."""
PROBE = f"{OURS}-probe::"
"""Prefix of the keys of documents that are written only to test whether the store accepts writes."""
PROBED = f"{OURS}.doctor"
"""Topic to which `saga doctor` writes a record to test whether the broker accepts writes."""
TRANSITIONS = f"{OURS}.transitions"
"""Topic on which services publish their transition events."""
CLIENTS = "client."
"""Prefix of the names of clients' consumer groups. Service names contain no dot, so no client can join the group of a
service and take its partitions."""

_DEAD, _COMMANDS, _TIMERS, _CHANGES = ".dead", ".commands", ".wake.", ".changes."


def is_reserved_collection(collection: str) -> bool:
    """Return whether this is the name of a collection that only the toolkit may use.

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
    """Return the topic on which a service receives operator commands.

    >>> command_topic("payment")
    'payment.commands'
    """
    return service + _COMMANDS


def service_of_commands(topic: str) -> str | None:
    """Return the service that receives operator commands on this topic; `None` for a topic of another kind. Every
    service that was ever started has such a topic.

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
    """Return whether this is a timer topic. Records of timer topics do not count as lag, because they wait until they
    are due.

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
    """Return whether this topic belongs to one service and holds no events, but dead letters, operator commands or
    timers.

    >>> [is_without_events(topic) for topic in ("payment.dead", "payment.commands", "payment.wake.1m", "payments")]
    [True, True, True, False]
    """
    return topic.endswith((_DEAD, _COMMANDS)) or is_timer_topic(topic)


def is_dead_letter_topic(topic: str) -> bool:
    """Return whether this is the dead letter topic of a service.

    >>> is_dead_letter_topic("payment.dead"), is_dead_letter_topic("payments")
    (True, False)
    """
    return topic.endswith(_DEAD)
