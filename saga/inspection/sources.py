"""The stores that tools read: found by their addresses, opened for reading only, with the services that are in them."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from glob import escape, glob
from pathlib import Path
from typing import TypeAlias

from saga import adapters
from saga.addresses import scheme_of
from saga.clock import Clock, SystemClock
from saga.config import Settings
from saga.errors import ConfigurationError, NotAStore
from saga.names import PROGRESS
from saga.store.port import Store

SERVICE = "{service}"

Warn: TypeAlias = Callable[[object], None]
"""Told what keeps a part of an answer from being given; the rest is given all the same."""


@dataclass(frozen=True, slots=True)
class Source:
    """One service in one store."""

    service: str
    store: Store
    clock: Clock = field(default_factory=SystemClock)


class NoStore(ConfigurationError):
    """No file is where stores are looked for."""


@asynccontextmanager
async def sources_of(addresses: Sequence[str], clock: Clock) -> AsyncIterator[list[Source]]:
    """Every service in the stores at `addresses`, or at the setting `SAGA_STORE`, by name.

    Nothing is created or changed. Raises `SagaError` if there is no store, or one cannot be read.
    """
    async with AsyncExitStack() as stack:
        sources = []
        for address in [a for a in addresses if a.strip()] or [Settings.from_environment().store]:
            if scheme_of(address).startswith("couchbase"):
                settings = Settings.from_environment(store=address)
                if SERVICE in address:
                    raise NoStore(
                        "there is no store to be read:",
                        [f"{address} is one of several, and nobody says of which services: name each with --store"],
                    )
                remote = await stack.enter_async_context(adapters.store_at(settings, "", clock, readonly=True))
                sources += [Source(name, remote, clock) for name in await _services_in(remote)]
                continue
            for path, service in files_of(address):
                try:
                    store = await stack.enter_async_context(adapters.sqlite_at(path, clock, readonly=True))
                except NotAStore:
                    if service is None:
                        raise
                    continue  # a broker, say, that lies beside the stores
                services = [service] if service else await _services_in(store)
                sources += [Source(name, store, clock) for name in services]
        yield sorted(sources, key=lambda source: source.service)


def files_of(address: str) -> list[tuple[Path, str | None]]:
    """The files that an address means, each with its service; `None` where only the content can tell.

    Raises `NoStore` if it means none.
    """
    template = str(Settings.store_path_of(address))
    parts = template.split(SERVICE)
    if len(parts) == 1:
        return [(Path(template), None)]
    first, *rest = map(re.escape, parts)
    named = re.compile(f"{first}(?P<service>[a-z0-9-]+)" + "(?P=service)".join(rest))
    found = [(Path(path), match["service"]) for path in sorted(glob("*".join(map(escape, parts))))
             if (match := named.fullmatch(path))]  # fmt: skip
    if not found:
        raise NoStore(
            "there is no store to be read:",
            [f"no file matches {template}; run a service first (`saga run`), or name its store with --store"],
        )
    return found


async def _services_in(store: Store) -> list[str]:
    """The services whose progress is in a store, of which the address says nothing."""
    services = dict[str, None]()
    async for key, _ in store.scan(PROGRESS):
        services[key.partition("::")[0]] = None
    return list(services)
