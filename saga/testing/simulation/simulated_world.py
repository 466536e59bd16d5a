"""The simulated world: it carries out the actions of a test, runs the services on a virtual clock, and checks the
invariants once it is quiet.
"""

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import msgspec

from saga.clients.events import encryptor_of, to_record
from saga.contracts.library import contract_of
from saga.declarations.values import Declared
from saga.engine.execution.document_updates import as_kind
from saga.engine.prepared_service import check_has_handler, topics_of
from saga.errors import BrokerUnavailable, SagaError
from saga.messages import Event, Outgoing, Topic, name_of
from saga.messaging.names import PROGRESS
from saga.messaging.transition_events import TOPIC
from saga.progress.document import SagaProgress, decode_progress, progress_key
from saga.service import Service
from saga.testing.fault_plans import APPLICATION, Chance, FaultPlan, Schedule
from saga.testing.invariants.checks import find_violations
from saga.testing.invariants.evidence import Evidence
from saga.testing.invariants.rerun import find_rerun_differences
from saga.testing.simulation.broker import SimulatedBroker
from saga.testing.simulation.cluster import Cluster
from saga.testing.simulation.guard import Guard
from saga.testing.simulation.loop import BEGINNING_MS, CURRENT, NotQuiet, Process, SimulatedLoop
from saga.testing.simulation.network import Network, Trace
from saga.testing.simulation.workers import Accident, Workers, collect_evidence
from saga.testing.world import (
    NO_DOCUMENTS,
    NOTHING_STARTED,
    CheckFailed,
    DocumentWrite,
    World,
    check_fakes,
    check_sent,
    check_time,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_D = TypeVar("_D", bound="DataclassInstance")

PARTITIONS = 4
"""Maximum number of partitions of a topic, even if its contracts declare more. It is small, so that several sagas share
a partition.
"""
WORKERS = 2


@dataclass(frozen=True, slots=True)
class AlwaysCheck:
    """An invariant added by the test with `World.always`."""

    what: str
    holds: Callable[[], bool]


class _PublishedEvent(NamedTuple):
    """An event that the test publishes, with the principal on whose behalf it may start a saga."""

    event: Event
    principal: str | None


class _ApplicationWrite(NamedTuple):
    """A document that the test writes to, or removes from, a service's store, as an application would."""

    service: str
    written: DocumentWrite


class SimulatedWorld(World):
    """The simulated world: see `World` for the guarantees."""

    def __init__(
        self, seed: int = 0, plan: FaultPlan | None = None, *, guarded: bool = True, publishes_transitions: bool = False
    ) -> None:
        """Create a world in which no service runs yet.

        `guarded`: True to detect accidental use of real time, randomness, threads or the network, which makes runs
        slower. `publishes_transitions`: True if services publish their transition events, as under `saga run`.
        """
        self.seed = seed
        self.trace = Trace()
        self.declared: dict[str, Declared] = {}
        chance = Chance(seed)
        self._loop = SimulatedLoop(seed)
        self.network = Network(chance, plan, self.trace)
        self.cluster = Cluster(self.network)
        self.workers = Workers(self._loop, self.network, self.cluster, chance, self._fail)
        self.network.disruptions = self.workers
        if publishes_transitions:
            self.workers.transition_topic = TOPIC._replace(partitions=PARTITIONS)
            self.cluster.ensure_topics([self.workers.transition_topic])
        self.published: list[Event | DocumentWrite] = []
        """All events that the test has published, and all documents that it has written into stores, in order."""
        self.left_out: frozenset[int] = frozenset()
        """Indices in `published` of the events and documents that are left out to shrink a run."""
        self._pending: list[_PublishedEvent | _ApplicationWrite | Outgoing] = []
        self._sending: deque[_PublishedEvent | _ApplicationWrite | Outgoing] = deque()
        """What the application has yet to publish or write, in order. Something is left if the test let too little time
        pass.
        """
        self._deployed: list[str] = []
        """Services to which the test has deployed a release since the world last ran."""
        self._publishing: asyncio.Task[None] | None = None
        """Task in which the application publishes. Each new task first waits for the one before, so events stay in
        order even if the test lets little time pass between them.
        """
        self._application = Process(APPLICATION, APPLICATION)
        self._guard = Guard() if guarded else None
        self._always: list[AlwaysCheck] = []
        self._use: tuple[object, ...] = ()
        self._real: tuple[type, ...] = ()
        self.saving: Callable[[], Path] | None = None
        """Writes the schedule of this run as a test, and returns the file. The fixture `world` sets this function,
        because the fixture knows the test.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.end()

    # ---------------------------------------------------------------- actions of a test

    def start(
        self,
        *services: "Service[DataclassInstance | None]",
        use: Sequence[object] = (),
        real: Sequence[type] = (),
        documents: "Mapping[str, DataclassInstance]" = NO_DOCUMENTS,
    ) -> None:
        check_fakes([service.declared for service in services], use, real)
        kinds = {kind.kind for service in services for kind in service.declared.documents}
        for key, document in documents.items():
            if type(document) not in kinds:
                raise SagaError(f"no service declares a document {type(document).__name__}, which {key!r} is")
        self._use, self._real = (*self._use, *use), (*self._real, *real)
        for service in services:
            declared = service.declared
            if declared.name in self.declared:
                raise SagaError(f"{declared.name!r} has been started in this world already")
            check_has_handler(declared)
            fakes = [fake for fake in use if any(isinstance(fake, r.gives) for r in declared.resources)]
            self._start(declared, fakes, documents)

    def _start(self, declared: Declared, fakes: Sequence[object], documents: "Mapping[str, DataclassInstance]") -> None:
        self.declared[declared.name] = declared
        self.cluster.ensure_topics(_topics(declared))
        self._loop.run_inside(lambda: self.workers.add(declared, fakes, WORKERS))
        disk = self.workers.disks[declared.name]
        collections = {kind.kind: kind.collection for kind in declared.documents}
        for key, document in documents.items():
            if type(document) in collections:
                disk.put(collections[type(document)], key, msgspec.json.encode(document), None)

    def seal(self) -> None:
        if self.declared:
            raise SagaError("services have begun without keys: world.seal() comes before world.start(...)")
        from saga.testing.simulation.keys import SimulatedKeys  # imported here because its library is optional

        self.workers.keys = SimulatedKeys()

    def forget(self, subject: str, /) -> None:
        if self.workers.keys is None:
            super().forget(subject)
        else:
            self.workers.keys.forget(subject)

    def deploy(self, service: "Service[DataclassInstance | None]", /, *, use: Sequence[object] = ()) -> None:
        declared, before = service.declared, self._find_declared(service)
        given = (*use, *self._use)
        fakes = [fake for fake in given if any(isinstance(fake, r.gives) for r in declared.resources)]
        real = [kind for kind in self._real if any(kind is r.gives for r in declared.resources)]
        check_fakes([declared], [*use, *(fake for fake in fakes if fake not in use)], real)
        check_has_handler(declared)
        self.declared[before.name] = declared
        self.cluster.ensure_topics(_topics(declared))
        self._loop.run_inside(lambda: self.workers.deploy(declared, fakes))
        self._deployed.append(declared.name)

    def read(self, service: "Service[DataclassInstance | None]", kind: type[_D], key: str, /) -> _D | None:
        declared = self._find_declared(service)
        collection = next((k.collection for k in declared.documents if k.kind is kind), None)
        if collection is None:
            raise SagaError(f"{declared.name!r} declares no document {kind.__name__}")
        entry = self.workers.disks[declared.name].find(collection, key, self._loop.time())
        return None if entry is None else as_kind(entry.content, kind)

    def publish(self, *events: Event, principal: str | None = None) -> None:
        for event in events:
            to_record(event, BEGINNING_MS)  # raises on the line of the test if the event cannot be published
            if len(self.published) not in self.left_out:
                self._pending.append(_PublishedEvent(event, principal))
            self.published.append(event)

    def use_connector(self) -> None:
        if self.declared:
            raise SagaError("services have begun without it: world.use_connector() comes before world.start(...)")
        self.workers.uses_connectors = True

    def _write_document(self, service: "Service[DataclassInstance | None]", written: DocumentWrite) -> None:
        changed = _ApplicationWrite(self._find_declared(service).name, written)
        if len(self.published) not in self.left_out:
            self._pending.append(changed)
        self.published.append(written)

    def _find_progress(self, service: "Service[DataclassInstance | None]", saga: str) -> SagaProgress | None:
        return self.progress(self._find_declared(service).name, saga)

    def _send_record(self, record: Outgoing) -> None:
        self._pending.append(record)

    def run_until_quiet(self) -> None:
        self._run(None)

    def run_for(self, time: timedelta, /) -> None:
        check_time(time)
        self._run(self._loop.time() + time.total_seconds())

    def outcome(self, saga_id: str) -> type[Event] | None:
        for declared in self.declared.values():
            emits = {name_of(e): e for h in declared.reactions for e in h.emits}
            progress = self.progress(declared.name, saga_id)
            if progress is not None and progress.outcome is not None:
                return emits.get(progress.outcome)
        return None

    def disturb(self, worker: str, accident: Accident) -> None:
        """Make an accident happen to a worker now, such as `payment-1`. Raises `SagaError` for an unknown worker.

        The accident is not part of a schedule, because the test itself decides when it happens.
        """
        if worker not in self.workers.names():
            raise SagaError(f"there is no worker {worker!r}: {', '.join(self.workers.names()) or 'none has started'}")
        self._loop.run_inside(lambda: self.workers.cause_accident(worker, accident))

    def always(self, what: str, holds: Callable[[], bool]) -> None:
        self._always.append(AlwaysCheck(what, holds))
        self._loop.after = self._check_always

    def save_schedule(self) -> Path:
        if self.saving is None:
            raise SagaError("this world was made by hand: the fixture `world` knows which test a schedule belongs to")
        return self.saving()

    # ---------------------------------------------------------------- evidence

    def progress(self, service: str, saga: str) -> SagaProgress | None:
        """Return the last progress of a saga that a service wrote, even if it has expired since; `None` if there was
        none.
        """
        versions = self.workers.disks[service].versions.get((PROGRESS, progress_key(service, saga)))
        return decode_progress(versions[-1]) if versions else None

    def evidence(self) -> Evidence:
        """Collect everything that the services of this world wrote and published."""
        return replace(collect_evidence(self.cluster, self.workers), wrong_ms=self.network.wrong_ms)

    def verify(self, *, rerun: bool = False) -> None:
        """Check the invariants of the kit and those added with `always`. The world must be quiet.

        `rerun`: True to also repeat each transition. Transitions are not repeated if a subject's key was erased,
        because a rerun would see other values.

        Raises `CheckFailed` for the first invariant that does not hold, and `SagaError` if the world has not run since
        the test published or deployed something.
        """
        self._check_started()
        check_sent([_content_of(each) for each in (*self._sending, *self._pending)], self._deployed)
        self._check_always()
        evidence = self.evidence()
        found = find_violations(evidence)
        keys = self.workers.keys
        if rerun and not found and not (keys and keys.has_forgotten):
            for witnessed in evidence.services.values():
                found += SimulatedLoop().run_until_complete(find_rerun_differences(witnessed, evidence.log))[1]
        if found:
            first, others = found[0], len(found) - 1
            more = f" (and {others} more)" if others else ""
            where = f" in {first.service}" if first.service else ""
            of_saga = f" of {first.saga}" if first.saga else ""
            raise CheckFailed(first.invariant, f"{first.what}{of_saga}{where}{more}", first.saga)

    def schedule(self) -> Schedule:
        """Return a schedule that repeats this run."""
        planted = tuple(fault.planned for fault in self.trace.faults)
        return Schedule(seed=self.seed, planted=planted, without=self.left_out)

    def fingerprint(self) -> str:
        """Return a digest of the run. It is equal for two runs in which the same things happened at the same times,
        with the same bytes in every document and in the log.
        """
        whole = blake2b(self.trace.fingerprint().encode(), digest_size=16)
        for record in self.cluster.log:
            whole.update(repr(record).encode())
        for service, disk in self.workers.disks.items():
            for where, contents in disk.versions.items():
                whole.update(repr((service, where, contents)).encode())
        return whole.hexdigest()

    def sagas(self) -> list[str]:
        """Return the ids of all sagas with a record in the log, in the order of their first records."""
        return list(dict.fromkeys(record.key.decode() for record in self.cluster.log if record.key))

    @property
    def emits_outcomes(self) -> bool:
        """True if a service of this world emits outcomes."""
        handlers = [h for d in self.declared.values() for h in d.reactions]
        return any(contract_of(event).outcome for handler in handlers for event in handler.emits)

    @property
    def now_s(self) -> float:
        return self._loop.time()

    # ---------------------------------------------------------------- running

    def _run(self, until_s: float | None) -> None:
        self._check_started()
        self._deployed = []
        if self._pending:
            pending, self._pending = self._pending, []
            self._sending += pending
            context = copy_context()
            context.run(CURRENT.set, self._application)
            publishing = self._publish_all(pending, self._publishing)
            self._publishing = self._loop.create_task(publishing, name=APPLICATION, context=context)
            self._publishing.add_done_callback(self._check_published)
        try:
            if self._guard is None:
                self._loop.run(until_s)
            else:
                with self._guard:
                    self._loop.run(until_s)
        except NotQuiet as why:
            going_on = ", ".join(self._loop.pending()[:20])
            raise SagaError(f"{why}; still going on: {going_on}") from None
        finally:
            # Not instead of an interrupt (Ctrl-C), or of the end of the test by `pytest.fail` or `pytest.skip`.
            if self._guard is not None and isinstance(sys.exception(), Exception | None):
                self._guard.check()
        self._check_always()

    async def _publish_all(
        self, events: Sequence[_PublishedEvent | _ApplicationWrite | Outgoing], before: "asyncio.Task[None] | None"
    ) -> None:
        if before is not None:
            await before
        broker = SimulatedBroker(self.cluster, self._application, self.network, self._retention_s())
        async with broker:
            for each in events:
                if isinstance(each, _ApplicationWrite):
                    await self.workers.write_document(self._application, each.service, each.written)
                else:
                    record = each if isinstance(each, Outgoing) else await self._encode(*each)
                    if record.topic not in self.cluster.topics:  # its service does not run in this world
                        self.cluster.ensure_topics([Topic(record.topic, PARTITIONS, None)])
                    await _publish_until_acknowledged(broker, record)
                self._sending.popleft()

    def _check_published(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (why := task.exception()) is not None:
            self._fail(why)

    async def _encode(self, event: Event, principal: str | None) -> Outgoing:
        seal = await encryptor_of(event, self.workers.keys)
        return to_record(event, self._time_ms(), principal=principal, encrypt=seal)

    def _time_ms(self) -> int:
        return BEGINNING_MS + int(self._loop.time() * 1000)

    def _retention_s(self) -> float:
        return max((d.retention.total_seconds() for d in self.declared.values()), default=0.0)

    def _fail(self, why: BaseException) -> None:
        self._loop.failure = why

    def _check_always(self) -> None:
        for always in self._always:
            if not always.holds():
                raise CheckFailed("your own invariant", f"{always.what} - does not hold at {self._loop.time():.3f} s")

    def _check_started(self) -> None:
        if not self.declared:
            raise SagaError(NOTHING_STARTED)

    def _find_declared(self, service: "Service[DataclassInstance | None]") -> Declared:
        if service.declared.name not in self.declared:
            raise SagaError(f"{service.declared.name!r} was not started in this world")
        return service.declared


def _content_of(pending: _PublishedEvent | _ApplicationWrite | Outgoing) -> Event | DocumentWrite | Outgoing:
    match pending:
        case _PublishedEvent(event):
            return event
        case _ApplicationWrite(_, written):
            return written
        case _:
            return pending


def _topics(declared: Declared) -> list[Topic]:
    return [Topic(t.name, min(t.partitions, PARTITIONS), None) for t in topics_of(declared)]


async def _publish_until_acknowledged(broker: SimulatedBroker, record: Outgoing) -> None:
    """Publish the record again and again until the broker acknowledges it, as an application does."""
    while True:
        try:
            await broker.publish([record])
        except BrokerUnavailable:
            continue
        return
