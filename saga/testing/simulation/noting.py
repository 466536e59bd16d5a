"""Changes of documents as a simulated store notes them: in the moment in which they are made, as the SQLite store does.
The relay of the shipped runtime moves them to the log."""

import asyncio
from asyncio import Future
from collections.abc import Callable, Collection, Sequence

from saga.changes.port import RecordedChange
from saga.changes.records import DocumentChange
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.testing.simulation.clock import BEGINNING_MS
from saga.testing.simulation.network import Network
from saga.testing.simulation.processes import Process
from saga.testing.simulation.store import Disk, Mutation, SimulatedStore


class Notes:
    """Changes that one disk has noted, for each service that watches some of its collections."""

    def __init__(self, disk: Disk, now_s: Callable[[], float]) -> None:
        self._disk, self._now_s, self._number = disk, now_s, 0
        self.watched: dict[str, set[str]] = {}
        self.noted: dict[str, list[RecordedChange]] = {}
        self.leaders: dict[str, NotingStore] = {}
        """Store of the process that takes the changes on, for each service."""
        self.waiting: list[Future[None]] = []
        """Futures of those that wait until something is noted."""
        disk.told.append(self._note)

    def watch(self, service: str, collections: Collection[str], from_beginning: bool) -> None:
        before = self.watched.setdefault(service, set())
        self.noted.setdefault(service, [])
        for collection in sorted(set(collections) - before) if from_beginning else ():
            for there, key in list(self._disk.documents):
                kept = self._disk.there(there, key, self._now_s()) if there == collection else None
                if kept is not None:
                    self._add(service, Mutation("insert", collection, key, kept.cas, None, kept.content))
        self.watched[service] = before | set(collections)

    def unwatch(self, service: str, collections: Collection[str]) -> None:
        self.watched[service] = self.watched.get(service, set()) - set(collections)
        self.noted[service] = [each for each in self.noted.get(service, []) if each.collection not in collections]

    def _note(self, mutation: Mutation) -> None:
        if mutation.collection not in (PROGRESS, ARCHIVES):
            for service, collections in self.watched.items():
                if mutation.collection in collections:
                    self._add(service, mutation)

    def _add(self, service: str, made: Mutation) -> None:
        self._number += 1
        time_ms = BEGINNING_MS + int(self._now_s() * 1000)
        changed = DocumentChange(
            kind=made.kind, key=made.key, version=made.cas, time_ms=time_ms, before=made.before, after=made.after
        )
        self.noted[service].append(RecordedChange(self._number, made.collection, changed))
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            wake(each)


class NotingStore(SimulatedStore):
    """See `saga.changes.port.ChangeSource` for the promises. One for each process; all of a service have one disk."""

    def __init__(self, disk: Disk, process: Process, network: Network, notes: Notes) -> None:
        super().__init__(disk, process, network)
        self._notes = notes

    async def __aexit__(self, *exc: object) -> None:
        await super().__aexit__(*exc)
        for service in [service for service, leader in self._notes.leaders.items() if leader is self]:
            del self._notes.leaders[service]

    async def watch(self, service: str, collections: Collection[str], *, from_beginning: bool) -> None:
        self._notes.watch(service, collections, from_beginning)

    def watched(self, service: str) -> Collection[str]:
        return self._notes.watched.get(service, set())

    async def unwatch(self, service: str, collections: Collection[str]) -> None:
        self._notes.unwatch(service, collections)

    def noted(self, service: str, count_max: int, *, before_ms: int | None = None) -> Sequence[RecordedChange]:
        noted = self._notes.noted.get(service, [])
        if before_ms is not None and (not noted or noted[0].changed.time_ms >= before_ms):
            return ()
        return tuple(noted[:count_max])

    async def forget(self, service: str, number: int) -> None:
        def land(*_: object) -> None:
            self._notes.noted[service] = [each for each in self._notes.noted[service] if each.number > number]

        await self._ask("remove", "changes", service, land)

    async def pause(self, seconds: float) -> None:
        """Wait until something is noted; no longer than `seconds` where something lies there already. That keeps the
        world going only if it is for this process to take it on."""
        waiting: Future[None] = asyncio.get_running_loop().create_future()
        self._notes.waiting.append(waiting)
        lying = [service for service, noted in self._notes.noted.items() if noted]
        if any(self._notes.leaders.get(service) is self for service in lying):
            asyncio.get_running_loop().call_later(seconds, wake, waiting)
        elif lying:
            self._network.idle_later(seconds, lambda: wake(waiting))
        await waiting

    def leads(self, service: str) -> bool:
        leader = self._notes.leaders.get(service)
        if leader is None or not leader._process.alive:
            self._notes.leaders[service] = self
        return self._notes.leaders[service] is self


def wake(waiting: "Future[None]") -> None:
    """Let whoever waits for something to be noted go on."""
    if not waiting.done():
        waiting.set_result(None)
