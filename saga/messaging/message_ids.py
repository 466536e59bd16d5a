"""Ids by which the toolkit tells messages apart: source and id together, for two senders may use one id.

What a contract's owner says under its own name has an id that nobody else makes (`saga.progress.ids.event_id`), and
keeps it. Every other message goes by `source|id`, in which `%`, `|`, `+` and all that is not visible ASCII is
percent-encoded. One that names no source goes by its content, too; one whose id is where its contract says, by topic
and type with that id; one that has no id by its place, `|topic/partition/offset@log`: a topic that is created
again has other records at the same offsets. So no two senders share one, the ids of a
fan-in's parts, joined with `+`, say which parts they are, and each can be printed. The headers of whatever is published
hold source and id as their sender wrote them.
"""

import re
from hashlib import blake2b
from urllib.parse import quote, unquote

_GONE = "-gone"
CLIENT = "client"
"""Source of what a `Client` publishes."""
_DIGITS = frozenset("0123456789abcdef")
_is_plain = re.compile(r"[A-Za-z_-][A-Za-z0-9_-]*").fullmatch
_SAFE = "".join(c for c in map(chr, range(33, 127)) if c not in "%|+")


def identity(source: str, id_: str, type_: str, owner: str) -> str:
    """Name in the toolkit of the message with this `id_` from this `source`. `owner`: of its contract.

    >>> identity("payment", "PaymentReserved-0a1b", "PaymentReserved", "payment")
    'PaymentReserved-0a1b'
    >>> identity("client", "OrderPlaced-0a1b", "OrderPlaced", "order")
    'client|OrderPlaced-0a1b'
    >>> identity("https://shop.example/a+b", "17|3", "OrderPlaced", "order")
    'https://shop.example/a%2Bb|17%7C3'
    """
    if _is_plain(id_):  # nothing to encode, which takes longer than all the rest
        if source == owner and id_.startswith(f"{type_}-"):
            return id_
        if source.isascii() and source.isalnum():
            return f"{source}|{id_}"
    return f"{quote(source, _SAFE)}|{quote(id_, _SAFE)}"


def identity_without_source(id_: str, value: bytes) -> str:
    """Name of a message with this `id_` from nobody knows whom: two senders may use one id for two things, and one who
    repeats something repeats its bytes.

    >>> identity_without_source("17", b"...")
    'unknown/ed8afa03a2db846a|17'
    """
    return f"unknown/{blake2b(value, digest_size=8).hexdigest()}|{quote(id_, _SAFE)}"


def identity_of_declared(topic: str, type_: str, id_: str) -> str:
    """Name of a message that names no source, and has its id where its contract says: no source is empty.

    >>> identity_of_declared("accounts", "Topped", "uuid-17")
    '|accounts/Topped#uuid-17'
    """
    return f"|{topic}/{type_}#{quote(id_, _SAFE)}"


def has_no_id(identity_: str) -> bool:
    """True if a message goes by its place, for it has no id.

    >>> has_no_id("|orders/3/17"), has_no_id("|accounts/Topped#uuid-17"), has_no_id("shop|17")
    (True, False, False)
    """
    return identity_.startswith("|") and "#" not in identity_


def identity_of_own(service: str, id_: str, owner: str) -> str:
    """Name of an event that this service emits: an id that the toolkit makes needs no look at each of its characters.

    >>> identity_of_own("payment", "PaymentReserved-0a1b", "payment")
    'PaymentReserved-0a1b'
    >>> identity_of_own("payment", "CardBlocked-0a1b", "cards")
    'payment|CardBlocked-0a1b'
    """
    return id_ if service == owner else f"{quote(service, _SAFE)}|{id_}"


def could_be_own(identity_: str, type_: str) -> bool:
    """True if services make such names for events of this type, as far as can be seen without the progress.

    >>> could_be_own("PaymentReserved-8c69b241c603b6c09313b5993635b204", "PaymentReserved")
    True
    >>> could_be_own("PaymentReserved-17", "PaymentReserved"), could_be_own("payment|17", "PaymentReserved")
    (False, False)
    """
    made = identity_.rpartition("|")[2]
    return len(made) == len(type_) + 33 and made.startswith(f"{type_}-") and _DIGITS.issuperset(made[-32:])


def identity_of_place(topic: str, partition: int, offset: int, log_id: str = "") -> str:
    """Name of a message without an id: no source is empty. `log_id`: id of the topic's log, where the broker tells it.

    >>> identity_of_place("orders", 3, 17)
    '|orders/3/17'
    >>> identity_of_place("orders", 3, 17, "yEZ0Vx2vQSGf3cGn1bY4Kw")
    '|orders/3/17@yEZ0Vx2vQSGf3cGn1bY4Kw'
    """
    return f"|{quote(topic, _SAFE)}/{partition}/{offset}{f'@{log_id}' if log_id else ''}"


def id_of_change(key: str, version: int, *, is_gone: bool) -> str:
    """Id of a change of a document. SQLite tells a removal with the version that was removed, which the write before it
    has had.

    >>> id_of_change("order-17", 4, is_gone=False), id_of_change("order-17", 4, is_gone=True)
    ('order-17@4', 'order-17@4-gone')
    """
    return f"{key}@{version}{_GONE if is_gone else ''}"


def is_removal(identity_: str) -> bool:
    """True if a change of this name is the removal, or the expiry, of its document.

    >>> is_removal("documents/orders|order-17@4-gone"), is_removal("documents/orders|order-gone@4")
    (True, False)
    """
    return identity_.endswith(_GONE)


def id_in(identity: str) -> str:
    """The id as its sender wrote it.

    >>> id_in("https://shop.example/a%2Bb|17%7C3")
    '17|3'
    >>> id_in("PaymentReserved-0a1b")
    'PaymentReserved-0a1b'
    """
    return unquote(identity.partition("|")[2]) if "|" in identity else identity
