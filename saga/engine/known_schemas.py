"""Schemas that a running service knows: those from its start, and those deployed since."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from saga.contracts.foreign_values import writer_without_registry
from saga.contracts.library import Library
from saga.engine.outage_watch import OutageWatch
from saga.errors import NewerVersion, UnknownSchema
from saga.messages import Writer
from saga.progress.failed_attempts import READ_S_MIN
from saga.telemetry.events import ContractsUnreadable, SchemasDeployed

READ_S_MAX = 10.0
"""Maximum seconds for reloading the contracts; after that they count as unreadable."""

WRITERS_MAX = 1000
"""Maximum number of registry answers that are cached. Beyond it, all are dropped and the registry is asked again."""

AskRegistry: TypeAlias = Callable[[int], Awaitable[Writer]]
"""Function that asks a schema registry for the schema with an id. Raises `RegistryUnavailable`."""
ReloadContracts: TypeAlias = Callable[[Library], Awaitable[Library]]
"""Function that reloads the contracts as currently deployed."""


async def reload_now(library: Library) -> Library:
    """Reload the contracts at once, in the calling thread."""
    return library.reload()


async def reload_in_thread(library: Library) -> Library:
    """Reload the contracts in a thread, so that other sagas are not blocked."""
    return await asyncio.to_thread(library.reload)


@dataclass(slots=True)
class KnownSchemas:
    """The schemas that a running service knows. More may become known while it runs."""

    library: Library
    writers: dict[int, Writer] = field(default_factory=dict)
    """Answers of a schema registry, by schema id, for messages that could not be read when they arrived."""
    _read_s: float = float("-inf")
    """Monotonic time of the last reload."""
    _error: str = ""
    """Error of the last reload, so that it is reported only once."""
    _gate: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, id_: int, registry: AskRegistry | None) -> None:
        """Ask the registry for the schema with an id. Raises `RegistryUnavailable`."""
        if len(self.writers) >= WRITERS_MAX:
            self.writers.clear()
        self.writers[id_] = writer_without_registry(id_) if registry is None else await registry(id_)

    def doubt(self) -> None:
        """Drop the registry's answers, so that it is asked again, because an operator has corrected something."""
        self.writers.clear()

    async def know(self, why: UnknownSchema, read: ReloadContracts, watching: OutageWatch) -> bool:
        """Return whether the schema is known now, after reloading the contracts if necessary.

        Concurrent callers wait for one reload. A version that is too new for this release never becomes known here,
        because only another release can read it.
        """
        if isinstance(why, NewerVersion):
            return False
        async with self._gate:
            now_s = watching.clock.monotonic_s()
            if why.fingerprint not in self.library.by_fingerprint and now_s - self._read_s >= READ_S_MIN:
                await self._reload(read, watching)
                self._read_s = watching.clock.monotonic_s()
        return why.fingerprint in self.library.by_fingerprint

    async def _reload(self, read: ReloadContracts, watching: OutageWatch) -> None:
        """Reload the contracts. If they are invalid, perhaps in the middle of a deployment, the known ones are kept."""
        before, error = self.library, ""
        try:
            self.library = await watching.clock.within(READ_S_MAX, read(before))
        except Exception as why:  # noqa: BLE001 - whatever is wrong with the folder, the known contracts stay
            error = f"{type(why).__name__}: {why}"
        new = tuple(sorted(self.library.by_path.keys() - before.by_path.keys()))
        if new:
            watching.report(SchemasDeployed(service=watching.service, schemas=new))
        if error and error != self._error:
            watching.report(ContractsUnreadable(service=watching.service, folder=str(before.folder), error=error))
        self._error = error
