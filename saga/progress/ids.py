"""Derive ids from causes, never from attempts, workers or transition numbers. So a replay makes the same ids."""

import re
from functools import lru_cache
from hashlib import blake2b

_unreadable = re.compile(r"[^A-Za-z0-9_]").sub


def digest(what: str, saga: str, cause: str) -> str:
    """Return a digest of the arguments: 128 bits as hexadecimal digits.

    No two different ids are made from the same text: the form of `what` shows where it ends, and the saga's length
    precedes the saga.

    >>> digest("payment|reserve|0", "order-17", "m-1")
    '8c69b241c603b6c09313b5993635b204'
    """
    return blake2b(f"{what}|{len(saga)}|{saga}{cause}".encode(), digest_size=16).hexdigest()


def event_id(type_: str, service: str, saga: str, handler: str, cause: str, index: int) -> str:
    """Return the id of an event that `handler` emits in the run with this cause. `index`: the event's place in that
    run."""
    return f"{type_}-{digest(f'event|{service}|{handler}|{index}', saga, cause)}"


def idempotency_key(name: str, service: str, saga: str, handler: str, cause: str) -> str:
    """Return an idempotency key for an external system: at most 80 ASCII letters, digits, `-` and `_`."""
    readable = _unreadable("-", name[:40])
    return f"{readable}-{digest(f'key|{service}|{handler}|{len(name)}|{name}', saga, cause)}"


def update_id(service: str, saga: str, handler: str, cause: str, name: str, number: int) -> str:
    """Return the marker of a handler's `number`-th update with the function `name`. The marker ensures that the update
    is applied once."""
    return digest(f"update|{service}|{handler}|{number}|{name}", saga, cause)


def dead_letter_id(service: str, saga: str, handler: str, message: str, replays: int) -> str:
    """Return the id of a dead letter. It depends on the number of replays, because the same message may fail again."""
    return f"dead-{digest(f'dead|{service}|{handler}|{replays}', saga, message)}"


def parked_id(service: str, saga: str, handler: str, message: str, attempts: int, due_ms: int) -> str:
    """Return the id of a parked run's wait for its next attempt.

    It depends on attempts and due time, because the same run may wait again: after a postponement with the same number
    of attempts, or after another failed attempt with the same due time.
    """
    return f"parked-{digest(f'parked|{service}|{handler}|{attempts}|{due_ms}', saga, message)}"


@lru_cache(maxsize=4096)  # called several times while a message is processed
def inbox_entry(message: str, handler: str) -> str:
    """Return the inbox entry of a message for a handler: 96 bits as hexadecimal digits.

    >>> len(inbox_entry("m-1", "reserve"))
    24
    """
    return blake2b(f"{handler}|{message}".encode(), digest_size=12).hexdigest()


def content_digest(value: bytes) -> str:
    """Return a digest that distinguishes messages of one type by their content."""
    return blake2b(value, digest_size=8).hexdigest()
