"""Connections to clusters that the stores of a process share: one for each address and identity.

A connection costs threads, sockets to each node, and the time of a handshake with each: sixteen services of a process
would open sixteen, one after another.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from saga.support.adapter_description import UNCLOSED


@dataclass(eq=False, slots=True)
class Shared:
    """Connection to a cluster, and who uses it."""

    key: Hashable
    cluster: Any
    """The SDK's cluster."""
    password: str
    users: int = 0
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock of who opens a store on it: a question that a server does not know may cost all others the connection."""
    keeps_expiry: dict[str, bool] = field(default_factory=dict)
    """Answers of buckets about whether they can keep an expiry: asked for once."""
    evicts: "dict[str, asyncio.Task[bool | None]]" = field(default_factory=dict)
    """Answers of buckets about whether they evict: asked for once."""


_open: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, Shared]]" = WeakKeyDictionary()


def taken(key: Hashable, password: str, make: Callable[[], Any]) -> Shared:
    """Connection for this key, made if there is none on this loop; to be given back by `close`."""
    shares = _open.setdefault(asyncio.get_running_loop(), {})
    shared = shares.get(key)
    if shared is None:
        shared = shares[key] = Shared(key, make(), password)
        UNCLOSED.add(shared)
    shared.users += 1
    return shared


def forget(shared: Shared) -> None:
    """Have the next one who wants such a connection make another: this one did not come about, or is closed."""
    shares = _open.get(asyncio.get_running_loop(), {})
    if shares.get(shared.key) is shared:
        del shares[shared.key]


async def close(shared: Shared) -> None:
    """Give it back; whoever is the last one closes it for good."""
    shared.users -= 1
    if shared.users:
        return
    forget(shared)
    for task in shared.evicts.values():
        task.cancel()
    if shared.evicts:
        await asyncio.wait(shared.evicts.values())
    await shared.cluster.close()
    UNCLOSED.discard(shared)
