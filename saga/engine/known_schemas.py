"""Schemas that a running service knows: those of its start, and those that were deployed since."""

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
"""Longest time that a reading takes: then the contracts count as unreadable."""

WRITERS_MAX = 1000
"""Answers of a registry that are remembered, at most: then all are forgotten, and asked for again."""

AskRegistry: TypeAlias = Callable[[int], Awaitable[Writer]]
"""Way to a schema registry: what it says of an id now. Raises `RegistryUnavailable`."""
ReloadContracts: TypeAlias = Callable[[Library], Awaitable[Library]]
"""Way to the contracts as they are deployed by now."""


async def reload_now(library: Library) -> Library:
    """Reload the contracts at once, where there are no threads."""
    return library.reload()


async def reload_in_thread(library: Library) -> Library:
    """Reload the contracts in a thread, so that other sagas go on."""
    return await asyncio.to_thread(library.reload)


@dataclass(slots=True)
class KnownSchemas:
    """The contracts of a running service; they grow while it runs."""

    library: Library
    writers: dict[int, Writer] = field(default_factory=dict)
    """What a schema registry says of ids that messages had which could not be read when they came."""
    _read_s: float = float("-inf")
    """Monotonic time of the last reading."""
    _error: str = ""
    """Error of the last reading, reported once."""
    _gate: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, id_: int, registry: AskRegistry | None) -> None:
        """Ask the registry for the schema with an id. Raises `RegistryUnavailable`."""
        if len(self.writers) >= WRITERS_MAX:
            self.writers.clear()
        self.writers[id_] = writer_without_registry(id_) if registry is None else await registry(id_)

    def doubt(self) -> None:
        """Forget what the registry answered: an operator has corrected something, so it is asked again."""
        self.writers.clear()

    async def know(self, why: UnknownSchema, read: ReloadContracts, watching: OutageWatch) -> bool:
        """Return whether the schema is known by now. Concurrent callers wait for one reload.

        A version that is too new for this release can only be read by another release.
        """
        if isinstance(why, NewerVersion):
            return False
        async with self._gate:
            now_s = watching.clock.monotonic_s()
            if why.fingerprint not in self.library.by_fingerprint and now_s - self._read_s >= READ_S_MIN:
                await self._read_anew(read, watching)
                self._read_s = watching.clock.monotonic_s()
        return why.fingerprint in self.library.by_fingerprint

    async def _read_anew(self, read: ReloadContracts, watching: OutageWatch) -> None:
        """Reload the contracts. Invalid ones, perhaps in the middle of a deployment, change nothing."""
        before, error = self.library, ""
        try:
            self.library = await watching.clock.within(READ_S_MAX, read(before))
        except Exception as why:  # noqa: BLE001 - whatever is wrong with the folder: what is known stays known
            error = f"{type(why).__name__}: {why}"
        new = tuple(sorted(self.library.by_path.keys() - before.by_path.keys()))
        if new:
            watching.report(SchemasDeployed(service=watching.service, schemas=new))
        if error and error != self._error:
            watching.report(ContractsUnreadable(service=watching.service, folder=str(before.folder), error=error))
        self._error = error
