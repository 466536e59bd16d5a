"""Names of the toolkit's own collections, topics and groups: nobody else writes them down."""

OURS = "saga"
"""Beginning of every name that is the toolkit's, up to the first `-` or `.`: services take no such name."""
PROGRESS, ARCHIVES = OURS, f"{OURS}-archive"
"""Collections of the toolkit: the progress of each saga; what it outgrew, transitions and pages of messages."""
PROBE = f"{OURS}-probe::"
"""Beginning of the keys of documents that are written only to see whether that can be done."""
PROBED = f"{OURS}.doctor"
"""Topic to which `saga doctor` writes a record to see whether that can be done."""
TRANSITIONS = f"{OURS}.transitions"
"""Topic on which services tell their transitions to whoever watches."""
CLIENTS = "client."
"""Beginning of the names of clients' groups: no service is called so, so that none of them takes a service's share."""

_DEAD, _COMMANDS, _WAKE, _CHANGES = ".dead", ".commands", ".wake.", ".changes."


def is_reserved_collection(collection: str) -> bool:
    """True for the name of a collection that only the toolkit may have.

    >>> is_ours("saga-archive"), is_ours("sagas")
    (True, False)
    """
    return collection.partition("-")[0] == OURS


def dead_letter_topic(service: str) -> str:
    """Topic where a service leaves what people have to see.

    >>> dead_letters_of("payment")
    'payment.dead'
    """
    return service + _DEAD


def command_topic(service: str) -> str:
    """Topic on which people tell a service what to do with its dead letters.

    >>> commands_of("payment")
    'payment.commands'
    """
    return service + _COMMANDS


def service_of_commands(topic: str) -> str | None:
    """Service whose topic of commands this is: each that ever began has one. `None` for any other topic.

    >>> service_of_commands("payment.commands"), service_of_commands("payments")
    ('payment', None)
    """
    return topic.removesuffix(_COMMANDS) if topic.endswith(_COMMANDS) else None


def timer_topic(service: str, tier: str) -> str:
    """Topic of the wakes of a service that lie there for the time of one tier.

    >>> wakes_of("payment", "4m")
    'payment.wake.4m'
    """
    return f"{service}{_WAKE}{tier}"


def is_timer_topic(topic: str) -> bool:
    """True for a topic of wakes: what lies there is not behind, but waits for its time.

    >>> is_wakes("payment.wake.1m"), is_wakes("payment.commands")
    (True, False)
    """
    return _WAKE in topic


def change_topic(service: str, collection: str) -> str:
    """Topic on which a service hears of changes of documents.

    >>> changes_of("intake", "orders")
    'intake.changes.orders'
    """
    return f"{service}{_CHANGES}{collection}"


def is_change_topic(topic: str) -> bool:
    """True for a topic of changes of documents.

    >>> is_changes("intake.changes.orders"), is_changes("orders")
    (True, False)
    """
    return _CHANGES in topic


def is_without_events(topic: str) -> bool:
    """True for a topic of one service in which no events are: its dead letters, commands for it, its wakes.

    >>> [is_without_events(topic) for topic in ("payment.dead", "payment.commands", "payment.wake.1m", "payments")]
    [True, True, True, False]
    """
    return topic.endswith((_DEAD, _COMMANDS)) or is_timer_topic(topic)


def is_dead_letter_topic(topic: str) -> bool:
    """True for a topic of dead letters, of whichever service.

    >>> is_dead_letters("payment.dead"), is_dead_letters("payments")
    (True, False)
    """
    return topic.endswith(_DEAD)
