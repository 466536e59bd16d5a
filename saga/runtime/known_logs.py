"""Logs that a service knows: the ids of the topics that it has published to, in a document beside its progresses.

Topics and stores are lost one without the other. What a progress records as published, a timer among it, lies in a
topic; if that is deleted, and created again, nobody would ever publish it again. So the store says which topics these
were.
"""

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from saga.errors import Ambiguous, Conflict, Exists, StoreError
from saga.names import ARCHIVES
from saga.store.port import Store

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class KnownLogs(Struct, frozen=True, gc=False):
    """Topics, each with the id of its log."""

    log_ids: dict[str, str] = {}


def logs_key(service: str) -> str:
    """Key of the document of a service.

    >>> logs_key("payment")
    'logs::payment'
    """
    return f"logs::{service}"


def replaced_in(known: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Topics that have another log than the one that is known. What is not known, or not there, is none of them.

    >>> replaced_in({"orders": "a", "payments": "b", "gone": "c"}, {"orders": "a", "payments": "x", "new": "y"})
    ['payments']
    """
    return sorted(topic for topic, id_ in now.items() if known.get(topic, id_) != id_)


async def known_logs(store: Store, service: str) -> dict[str, str]:
    """Read which logs the service knows; empty for one that has never run. Raises `StoreError`."""
    return (await _read(store, service))[0]


async def note_logs(store: Store, service: str, log_ids: Mapping[str, str], but: Collection[str] = ()) -> None:
    """Note that the service knows these logs from now on, but those of the topics `but`. Raises `StoreError`."""
    new = {topic: id_ for topic, id_ in log_ids.items() if topic not in but}
    while True:
        known, cas = await _read(store, service)
        if cas and all(known.get(topic) == id_ for topic, id_ in new.items()):
            return
        content = msgspec.json.encode(KnownLogs({**known, **new}))
        try:
            if cas:
                await store.replace(ARCHIVES, logs_key(service), content, cas=cas)
            else:
                await store.insert(ARCHIVES, logs_key(service), content)
        except (Conflict, Exists, Ambiguous):  # another process of the service; or it has landed
            continue


async def _read(store: Store, service: str) -> tuple[dict[str, str], int]:
    key = logs_key(service)
    document = await store.get(ARCHIVES, key)
    if document is None:
        return {}, 0
    try:
        return msgspec.json.decode(document.content, type=KnownLogs).log_ids, document.cas
    except UNREADABLE as why:
        raise StoreError(f"the document {key!r} in {ARCHIVES!r} cannot be read: {why}; remove it") from why
