"""Ids derive from causes, never from attempts, workers or transition numbers: a replay makes the same ids."""

import re
from functools import lru_cache
from hashlib import blake2b

_unreadable = re.compile(r"[^A-Za-z0-9_]").sub


def digest(what: str, saga: str, cause: str) -> str:
    """128 bits as hex. `what` never holds a `|`, and the saga's length is in front of it: so no two inputs collide.

    >>> digest("payment|reserve|0", "order-17", "m-1")
    '8c69b241c603b6c09313b5993635b204'
    """
    return blake2b(f"{what}|{len(saga)}|{saga}{cause}".encode(), digest_size=16).hexdigest()


def event_id(type_: str, service: str, saga: str, handler: str, cause: str, index: int) -> str:
    """Return the id of the event that `handler` emits at `index`, because of `cause`."""
    return f"{type_}-{digest(f'event|{service}|{handler}|{index}', saga, cause)}"


def idempotency_key(name: str, service: str, saga: str, handler: str, cause: str) -> str:
    """Return an idempotency key for an external system: at most 80 ASCII letters, digits, `-` and `_`."""
    readable = _unreadable("-", name[:40])
    return f"{readable}-{digest(f'key|{service}|{handler}|{len(name)}|{name}', saga, cause)}"


def update_id(service: str, saga: str, handler: str, cause: str, name: str, number: int) -> str:
    """Return the marker of a handler's `number`-th update by the function `name`: it makes the update happen once."""
    return digest(f"update|{service}|{handler}|{number}|{name}", saga, cause)


def dead_letter_id(service: str, saga: str, handler: str, message: str, replays: int) -> str:
    """Return the id of a dead letter. It contains the number of replays, for the same message may fail again."""
    return f"dead-{digest(f'dead|{service}|{handler}|{replays}', saga, message)}"


def parked_id(service: str, saga: str, handler: str, message: str, attempts: int, due_ms: int) -> str:
    """Return the name of a wait for the next attempt.

    It contains attempts and time, for the same run may wait again: postponed with as many attempts, or with one more at
    the same time.
    """
    return f"parked-{digest(f'parked|{service}|{handler}|{attempts}|{due_ms}', saga, message)}"


@lru_cache(maxsize=4096)  # asked for several times while a message is in hand
def inbox_entry(message: str, handler: str) -> str:
    """The inbox entry of (message, handler): 96 bits as hex.

    >>> len(inbox_entry("m-1", "reserve"))
    24
    """
    return blake2b(f"{handler}|{message}".encode(), digest_size=12).hexdigest()


def content_digest(value: bytes) -> str:
    """Return the digest that tells two messages of one type apart."""
    return blake2b(value, digest_size=8).hexdigest()
