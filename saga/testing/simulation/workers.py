"""Workers of a simulated world: processes that run a service, die, freeze and restart. The world restarts them
itself.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from saga.declarations.changes import kind_of
from saga.declarations.values import Declared
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.known_schemas import reload_now
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.persistence.service_record import ServiceRecord
from saga.engine.ports import ExternalCall
from saga.engine.prepared_service import PreparedService, prepare
from saga.errors import StoreUnavailable
from saga.messages import Partition, Topic
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress.document import progress_key
from saga.progress.overflow import parse_saga
from saga.telemetry.events import Assigned, Handled, Revoked, Started, StepDone, Stopped, TelemetryEvent
from saga.testing.code_mistakes import MISTAKES, describe_mistake, find_wrong_return, is_failed_check
from saga.testing.fault_plans import Chance, OperationKind
from saga.testing.invariants.evidence import Evidence, ServiceEvidence, is_completed_run
from saga.testing.simulation.broker import SimulatedBroker
from saga.testing.simulation.cluster import Cluster
from saga.testing.simulation.connector import TAKEN_OVER_S, SimulatedConnector
from saga.testing.simulation.loop import CURRENT, Process, SimulatedClock, SimulatedLoop
from saga.testing.simulation.network import RESTART_S, Backend, Disruptions, Network, TraceNote
from saga.testing.simulation.store import ChangeRecordingStore, Disk, RecordedChanges, SimulatedStore
from saga.testing.world import CheckFailed, DocumentWrite, is_call_of

if TYPE_CHECKING:  # its library is an extra
    from saga.testing.simulation.keys import SimulatedKeys


NOTICED_S = 10.0
"""Maximum time in seconds until a consumer group notices that a member has died."""
PURGED_S = 60.0
"""Maximum time in seconds from the expiry of a document until it is removed, if nothing reads it."""
ROLLOUT_S = 3.0
"""Maximum time in seconds until a worker is restarted with a newly deployed release. Most workers restart much
sooner.
"""
EVERYDAY = (Handled, StepDone, Assigned, Revoked, Started, Stopped)
"""Telemetry events that are too frequent for a timeline."""
LIMITS = FlowLimits(deaths_max=1000)
"""Limits of the workers. Injected faults kill processes often, so `deaths_max` is so high that no message counts as
poison because of them.
"""
OUTSIDE = Backend("outside", ConnectionError, ConnectionError)

Accident: TypeAlias = Literal["crash", "freeze", "rebalance"]
"""Accidents that can happen to a worker at any moment."""


@dataclass(slots=True, eq=False)
class DeployedRelease:
    """One release of a service."""

    number: int
    """Number of the release among the releases of its service in this world, counted from 1."""
    prepared: PreparedService
    """The prepared service. It is prepared once, and all workers use it, even after restarts."""
    fakes: Sequence[object]


@dataclass(eq=False, slots=True)
class WorkerLife:
    """One life of a worker, from its start to its graceful end or death."""

    process: Process
    broker: SimulatedBroker
    stop: asyncio.Event
    release: "DeployedRelease"
    task: "asyncio.Task[None] | None" = None


class Workers(Disruptions):
    """All workers of one world."""

    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        cluster: Cluster,
        chance: Chance,
        failed: Callable[[BaseException], None],
    ) -> None:
        """Create an empty set of workers.

        `failed`: called with the error if a worker ends with one, if a handler returned what its annotation does not
        allow, or if a check in a fake failed. It ends the world.
        """
        self.disks: dict[str, Disk] = {}
        self.uses_connectors = False
        """True if connectors deliver document changes; False if the stores record them."""
        self._notes: dict[str, RecordedChanges] = {}
        """Recorded document changes of each service."""
        self._connectors: dict[str, SimulatedConnector] = {}
        """Connectors, by the name of their process."""
        self._loop, self._network, self._cluster, self._chance = loop, network, cluster, chance
        self._failed = failed
        self.mistakes: dict[str, None] = {}
        """Descriptions of the exceptions that fakes raised by mistake, see `describe_mistake`."""
        self.reached: set[str] = set()
        """Handlers, compensations and deadlines that have completed a run, such as `payment.release`."""
        self.releases: dict[str, list[DeployedRelease]] = {}
        """All releases of each service that were deployed in this world."""
        self.newest: dict[str, DeployedRelease] = {}
        """The release of each service that was deployed last."""
        self.transition_topic: Topic | None = None
        """Topic of the workers' transition events; `None` if they publish none."""
        self._next: dict[str, DeployedRelease] = {}
        """The release that each worker will run after its next start."""
        self.keys: SimulatedKeys | None = None
        """Encryption keys; `None` if nothing is encrypted."""
        self._lives: dict[str, WorkerLife] = {}
        """Current life of each worker, by the name of its process."""

    def add(self, declared: Declared, use: Sequence[object], count: int) -> None:
        """Start `count` workers of a service."""
        first = self.newest[declared.name] = DeployedRelease(1, prepare(declared), use)
        self.releases[declared.name] = [first]
        self.disks[declared.name] = Disk()
        self._cluster.group(declared.name).rotation = int(4 * self._chance.draw(f"{declared.name} begins"))
        for number in range(1, count + 1):
            self._next[f"{declared.name}-{number}"] = first
            self._begin(f"{declared.name}-{number}", declared.name, 1)
        self._deliver_changes(first)

    def deploy(self, declared: Declared, use: Sequence[object]) -> None:
        """Restart the workers of a service one after another with this release. To roll back, deploy an earlier release
        again.
        """
        known = self.releases[declared.name]
        release = next((each for each in known if each.prepared.declared is declared), None)
        if release is None:
            release = DeployedRelease(len(known) + 1, prepare(declared), use)
            known.append(release)
        self.newest[declared.name] = release
        self._deliver_changes(release)
        for name, life in self._lives.items():
            if life.process.service == declared.name:
                after_s = ROLLOUT_S * self._chance.draw(f"{name} becomes {release.number} at {self._loop.time()}") ** 3
                self._network.later(after_s, partial(self._roll_out, name, release))

    def _deliver_changes(self, release: DeployedRelease) -> None:
        """Start to deliver document changes to this release of a service, if it consumes any."""
        service, name = release.prepared.name, f"{release.prepared.name}-connector"
        collections = {kind.collection for event in release.prepared.changes.values() if (kind := kind_of(event))}
        if name in self._connectors:
            self._connectors[name].collections |= collections
        elif collections and self.uses_connectors:
            self._connectors[name] = SimulatedConnector(service, self.disks[service], self._network, self._loop.time)
            self._connectors[name].collections |= collections
            self._next[name] = release
            self._begin(name, name, 1)
        elif collections and service not in self._notes:
            self._notes[service] = RecordedChanges(self.disks[service], self._loop.time)

    async def write_document(self, application: Process, service: str, written: DocumentWrite) -> None:
        """Write or remove a document as an application, retrying until the store has accepted it."""
        disk, where = self.disks[service], f"{written.collection}/{written.key} of {service}"
        backend = Backend(f"{service}'s store", StoreUnavailable, StoreUnavailable)

        def land(*_: object) -> None:
            now_s = self._loop.time()
            disk.write(written.collection, written.key, written.content, written.expires, now_s)
            if written.expires is not None and written.content is not None:
                over_s = written.expires.total_seconds() + PURGED_S * self._chance.draw(f"{where} expires at {now_s}")
                self._network.later(over_s, lambda: disk.find(written.collection, written.key, self._loop.time()))

        while True:
            what: OperationKind = "remove" if written.content is None else "replace"
            try:
                await self._network.ask(application, backend, what, where, (), land)
            except StoreUnavailable:
                continue
            return

    def _roll_out(self, name: str, release: DeployedRelease) -> None:
        if (
            self.newest[self._lives[name].process.service] is release
        ):  # otherwise another release was deployed in the meantime
            self._become(name, release)

    def _become(self, name: str, release: DeployedRelease) -> None:
        """Restart a worker gracefully with this release, unless it already runs this release."""
        self._next[name] = release
        life = self._lives[name]
        if life.process.alive and life.release is not release:
            self._network.note(name, f"is restarted as release {release.number}")
            life.stop.set()

    # ---------------------------------------------------------------- lives

    def _begin(self, name: str, service: str, life: int) -> None:
        process = Process(name, service, life)
        release = self._next[name]
        broker = SimulatedBroker(self._cluster, process, self._network, release.prepared.retention_s)
        context = copy_context()
        context.run(CURRENT.set, process)
        lived = self._lives[name] = WorkerLife(process, broker, context.run(asyncio.Event), release)
        lived.task = self._loop.create_task(self._serve(lived), name=name, context=context)
        lived.task.add_done_callback(lambda task: self._on_end(lived, task), context=self._network.context)

    async def _serve(self, life: WorkerLife) -> None:
        process, release = life.process, life.release
        if (connector := self._connectors.get(process.name)) is not None:
            async with life.broker as broker:
                await connector.run(process, broker, SimulatedClock(process, self._chance), life.stop)
            return
        async with self._store_of(process) as store, life.broker as broker:
            await serve(
                release.prepared,
                store=store,
                broker=broker,
                use=release.fakes,
                options=ServiceOptions(
                    clock=SimulatedClock(process, self._chance),
                    report=lambda moment: self._report(process, moment),
                    limits=LIMITS,
                    stop=life.stop,
                    worker=process.name,
                    transitions_topic=self.transition_topic,
                    call_external=lambda step: self._call_external(process, step),
                    reload_contracts=reload_now,
                    compares_logs=False,  # the simulated broker keeps committed offsets of deleted topics
                    waits_for_schemas=False,  # otherwise a world with an unknown schema would never become quiet
                    keys=self.keys,
                    record=ServiceRecord(service=process.service, store=process.service, starts={}),
                ),
            )

    def _store_of(self, process: Process) -> SimulatedStore:
        disk, notes = self.disks[process.service], self._notes.get(process.service)
        if notes is None:
            return SimulatedStore(disk, process, self._network)
        return ChangeRecordingStore(disk, process, self._network, notes)

    def _on_end(self, life: WorkerLife, task: "asyncio.Task[None]") -> None:
        why = asyncio.CancelledError() if task.cancelled() else task.exception()
        if why is not None:
            self._failed(why)
        else:
            self._begin_again(life, 0.5)

    def _begin_again(self, life: WorkerLife, after_s: float) -> None:
        """Start the worker again after a delay."""
        process = life.process

        def begin() -> None:
            if self._lives[process.name] is not life:
                return  # it ended gracefully and was then killed: its next life has begun already
            self._network.note(process.name, "begins again")
            self._begin(process.name, process.service, process.life + 1)

        self._network.later(after_s, begin)

    def _report(self, process: Process, moment: TelemetryEvent) -> None:
        if isinstance(moment, Handled):
            completed = [name for name, outcome, reason in moment.outcomes if is_completed_run(outcome, reason)]
            self.reached.update(f"{process.service}.{name}" for name in completed)
        if isinstance(moment, EVERYDAY) or self._loop.is_closed():
            return
        self._network.trace.lines.append(TraceNote(self._loop.time(), process.name, "", moment))
        if (wrong := find_wrong_return(moment)) is not None:
            self._failed(CheckFailed(wrong.invariant, wrong.what, wrong.saga))

    def _call_external(self, process: Process, step: ExternalCall) -> Awaitable[Any]:
        """Make the call of a step. The call continues even if the calling process dies."""

        async def made() -> Any:
            try:
                return await step.make()
            except MISTAKES as why:
                self.mistakes[describe_mistake(step, why)] = None
                raise
            except BaseException as why:
                if is_failed_check(why) and is_call_of(step, fakes):
                    self._failed(why)
                raise

        fakes = [fake for release in self.releases[process.service] for fake in release.fakes]
        name = f"{process.service}.{step.handler}"
        return self._network.ask(
            process,
            OUTSIDE,
            "step",
            f"{step.record.name} by {name} of {step.saga}",
            (name,),
            lambda *_: self._loop.create_task(made(), name=step.record.name),
        )

    # ---------------------------------------------------------------- disruptions

    def names(self) -> list[str]:
        """Return the names of all workers, such as `payment-1`, grouped by service."""
        return list(self._lives)

    def cause_accident(self, name: str, accident: Accident) -> None:
        """Make an accident happen to a worker now. Nothing happens to a dead worker, and a frozen one can only
        crash.
        """
        life = self._lives[name]
        process = life.process
        ended = life.task is None or life.task.done()  # ended gracefully and was not restarted yet
        if ended or not process.alive or (process.frozen and accident != "crash"):
            return
        draws = self._chance.draw_four(f"{name} {accident} at {self._loop.time()}")
        match accident:
            case "crash":
                what = f"{name} dies"
                self.crash(process, 0.05 + RESTART_S * draws[3])
            case "freeze":
                time_s = 0.05 + 30 * draws[2] ** 2
                what = f"{name} stands still for {time_s:.1f} s"
                self.freeze(process, time_s)
            case "rebalance":
                what = self.rebalance(process, draws)
        self._network.note(name, f"*** {what} ***")

    def crash(self, process: Process, after_s: float) -> None:
        life = self._lives[process.name]
        if life.process is not process or not process.alive:
            return
        self._loop.kill(process)
        noticed_s = NOTICED_S * self._chance.draw(f"{process.name} {process.life} dies") ** 2
        for member in life.broker.members:
            self._network.later(noticed_s, member.leave_as_dead)
        self._begin_again(life, after_s + (TAKEN_OVER_S if process.name in self._connectors else 0.0))

    def outage(self, service: str, time_s: float) -> None:
        for life in list(self._lives.values()):
            if life.process.service == service:
                spread_s = RESTART_S * self._chance.draw(f"{life.process.name} {life.process.life} comes back")
                self.crash(life.process, time_s + spread_s)

    def freeze(self, process: Process, time_s: float) -> None:
        if process.frozen or not process.alive:
            return
        self._loop.freeze(process)
        for member in self._lives[process.name].broker.members:
            member.stop_heartbeats(time_s)

        def thaw() -> None:
            if process.alive:
                self._network.note(process.name, "goes on")
                self._loop.thaw(process)

        self._network.later(time_s, thaw)

    def restart_all(self) -> None:
        for life in self._lives.values():
            if life.process.alive:
                life.stop.set()

    def silence(self, who: str, time_s: float) -> None:
        for life in self._lives.values():
            if who in (life.process.name, life.process.service) and life.process.alive:
                for member in life.broker.members:
                    member.stop_heartbeats(time_s)

    def rebalance(self, process: Process, draws: tuple[float, float, float, float]) -> str:
        if draws[2] < 0.25 or process.name in self._connectors:
            life = self._lives[process.name]
            self._network.later(0.0, life.stop.set)
            return f"{process.name} is restarted in good order"
        return self.move(process, 1 + int(draws[3] * 4), 2 * draws[2])

    def move(self, process: Process, times: int, every_s: float) -> str:
        group = self._cluster.group(process.service)

        def move() -> None:
            group.rotation += 1
            group.balance()

        for number in range(times):
            self._network.later(number * every_s, move)
        return f"partitions of {process.service} move {times} times"

    def redeploy(self, process: Process, draws: tuple[float, float, float, float]) -> str:
        others = [each for each in self.releases.get(process.service, ()) if each is not self._next[process.name]]
        if not others:
            return f"{process.service} has no other release here"
        other, time_s = others[int(len(others) * draws[2])], 0.5 + 20 * draws[3] ** 2
        self._network.later(0.0, lambda: self._become(process.name, other))
        self._network.later(time_s, lambda: self._become(process.name, self.newest[process.service]))
        return f"{process.name} is restarted as release {other.number}, for {time_s:.1f} s"


def collect_evidence(cluster: Cluster, workers: Workers) -> Evidence:
    """Collect everything that the services of these workers wrote and published."""
    return Evidence(
        services={
            name: replace(
                _collect_service_evidence(
                    newest, workers.releases[name], workers.disks[name], cluster.group(name).committed
                ),
                keys=workers.keys,
            )
            for name, newest in workers.newest.items()
        },
        log=cluster.log,
        ends=cluster.ends(),
        spoiled=frozenset(cluster.spoiled),
    )


def _collect_service_evidence(
    newest: DeployedRelease, releases: Sequence[DeployedRelease], disk: Disk, committed: Mapping[Partition, int]
) -> ServiceEvidence:
    service = newest.prepared
    versions: dict[str, list[bytes]] = {}
    archives: dict[str, list[tuple[str, bytes]]] = {}
    documents: dict[tuple[str, str], list[bytes]] = {}
    given = {
        r.gives: fake
        for release in releases
        for r in release.prepared.declared.resources
        for fake in release.fakes
        if isinstance(fake, r.gives)
    }
    mine = progress_key(service.name, "")
    for (collection, key), contents in disk.versions.items():
        if collection == PROGRESS:
            versions[key.removeprefix(mine)] = contents
        elif collection == ARCHIVES:
            archives.setdefault(parse_saga(key), []).append((key, contents[-1]))
        else:
            documents[collection, key] = contents
    return ServiceEvidence(
        service=service,
        releases=tuple(release.prepared for release in releases),
        resources=given,
        versions=versions,
        archives=archives,
        documents=documents,
        committed=committed,
    )
