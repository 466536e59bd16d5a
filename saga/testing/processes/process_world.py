"""A world of real processes: two workers of each service on one broker. The test observes it from outside."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from math import inf
from pathlib import Path
from random import Random  # noqa: TID251 - used as a type; nothing is drawn from the module
from tempfile import TemporaryDirectory
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import msgspec

from saga.clients.events import to_record
from saga.contracts.library import binding_of, contract_of
from saga.declarations.values import Declared
from saga.engine.execution.document_updates import as_kind
from saga.engine.prepared_service import topics_of
from saga.errors import SagaError
from saga.messages import Event, Outgoing, Record, Topic, name_of
from saga.messaging.envelope import type_of
from saga.messaging.names import PROGRESS, dead_letter_topic
from saga.ops.dead_letters import DeadLetter, decode_dead_letter
from saga.progress.document import SagaProgress, decode_progress, progress_key
from saga.service import Service
from saga.support.clock import SystemClock
from saga.testing.fault_plans import APPLICATION
from saga.testing.invariants.checks import UNSEEN_IN_PARTIAL, find_violations
from saga.testing.processes.faults import (
    FROZEN_S_MAX,
    FROZEN_S_MAX_SERVERS,
    LEFT_OUT,
    LEFT_OUT_ON_SERVERS,
    ProcessFaults,
    describe_left_out,
)
from saga.testing.processes.remote_fakes import FakeServer
from saga.testing.processes.servers import ServerAddresses, ServerFault, ServerProvider, SharedServers
from saga.testing.processes.shared_files import GroupState, ServiceWrite, SharedFiles
from saga.testing.processes.worker_processes import (
    WORKERS,
    WorkerPool,
    WorkerProcess,
    WorkerSetup,
    declarations_of,
    module_and_name,
    remote_fakes_of,
)
from saga.testing.world import NO_DOCUMENTS, NOTHING_STARTED, DocumentWrite, World, check_fakes, check_sent, check_time

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_D = TypeVar("_D", bound="DataclassInstance")

NO_FAULTS: Mapping[str, float] = MappingProxyType({})
DEADLINE_S, DEADLINE_S_SERVERS = 60.0, 120.0
"""Maximum time of `run_until_quiet` in seconds, on the embedded broker and on servers. Servers need longer to notice
that a worker is dead.
"""
STARTS_MAX = 5
"""Maximum number of attempts to start a worker whose start fails because a server does not answer."""
QUIET_LOOKS = 3
"""The world counts as quiet after this many consecutive checks have found nothing in progress."""
UNNAMED = "documents that no progress names"
"""Name, in reports, for the documents that are not checked on servers. A document is found there only if a progress
names it, because not every server can list its keys.
"""
RUN_FOR_MAX = timedelta(seconds=10)
"""Maximum time for `run_for`. Use the simulation for longer times."""


class StartedService(NamedTuple):
    """A service that runs in this world."""

    declared: Declared
    setup: WorkerSetup


class ProcessWorld(World):
    """A world whose services run as real processes with the real clock: on an embedded broker and SQLite stores, or on
    servers.

    Args:
        seed: selects the faults.
        faults: rate of each kind of fault, as in the simulation. Each time the test has published something, each kind
            with a rate above 0 happens `round(rate * 100)` times, but at least once. At most 20 faults happen in all.
            The method `left_out` tells which kinds do not exist in this world, and why.
        servers: function that provides servers, see `saga.testing.processes.servers`.

    Guarantees:
    - The services are really killed with `kill -9`.
    - Leaving the `with` block ends all processes and removes all files.
    - The fakes that `start` gets as `use` stay in the test's process. Services call their async methods from other
      processes, one call at a time.

    The same seed does not always hit the same operations.
    """

    def __init__(
        self,
        seed: int = 0,
        faults: Mapping[str, float] = NO_FAULTS,
        *,
        deadline_s: float | None = None,
        servers: ServerProvider | None = None,
    ) -> None:
        describe_left_out(faults)
        self._seed, self._faults, self._giver = seed, faults, servers
        self._deadline_s = deadline_s or (DEADLINE_S_SERVERS if servers else DEADLINE_S)
        self._place: ServerAddresses | None = None
        self._troubles: Mapping[str, Sequence[ServerFault]] = {}
        self._clock = SystemClock()
        self._employed: dict[str, StartedService] = {}
        self._topics: dict[str, Topic] = {}
        """All topics to which something was published."""
        self._pending: list[Outgoing | ServiceWrite] = []
        self._published: list[Outgoing] = []
        self._changed: list[ServiceWrite] = []
        self._always: list[tuple[str, Callable[[], bool]]] = []

    def __enter__(self) -> Self:
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise SagaError("a test in a world is a plain function: write `def`, not `async def`")
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="saga-world-")))
            self._shared = stack.enter_context(self._make_shared(folder, stack))
            self._outside = stack.enter_context(FakeServer(folder / "outside.sock"))
            self._crew = stack.enter_context(
                WorkerPool(folder, self._clock, starts_max=STARTS_MAX if self._place else 1)
            )
            self._stack = stack.pop_all()
        self._accidents = ProcessFaults(
            seed=self._seed,
            rates=self._faults,
            crew=self._crew,
            clock=self._clock,
            hire=self._hire,
            publish_again=self._publish_again,
            troubles=self._troubles,
            frozen_s_max=FROZEN_S_MAX_SERVERS if self._place else FROZEN_S_MAX,
        )
        return self

    def _make_shared(self, folder: Path, stack: ExitStack) -> SharedFiles:
        if self._giver is None:
            return SharedFiles(folder, self._clock)
        servers = stack.enter_context(self._giver(folder / "servers"))
        self._place, self._troubles = servers.place, servers.troubles
        return SharedServers(folder, self._clock, servers)

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def left_out(self, kinds: Iterable[str]) -> list[str]:
        """Return a sentence with the reason for each of `kinds` that does not exist in this world."""
        why = LEFT_OUT if self._giver is None else LEFT_OUT_ON_SERVERS
        return describe_left_out(kinds, {kind: of for kind, of in why.items() if kind not in self._troubles})

    @property
    def happened(self) -> Sequence[str]:
        """Descriptions of the faults that have happened."""
        return self._accidents.happened

    @property
    def mistakes(self) -> Sequence[str]:
        """Descriptions of the exceptions that fakes raised by mistake, see `describe_mistake`."""
        return [mistake.text for mistake in list(self._outside.mistakes) if not mistake.is_failure]

    @property
    def fault_targets(self) -> set[str]:
        """Names that the target of a fault can have: services, topics, and handlers as `service.handler`."""
        declared = [each.declared for each in self._employed.values()]
        handlers = {f"{each.name}.{reaction.name}" for each in declared for reaction in each.reactions}
        topics = {topic.name for each in declared for topic in topics_of(each)}
        return {APPLICATION, *(each.name for each in declared), *handlers, *topics, *self._topics}

    @property
    def pids(self) -> Sequence[int]:
        """Process ids of the workers."""
        return [member.process.pid for member in self._crew.members]

    # ---------------------------------------------------------------- the world

    def start(
        self,
        *services: "Service[DataclassInstance | None]",
        use: Sequence[object] = (),
        real: Sequence[type] = (),
        documents: "Mapping[str, DataclassInstance]" = NO_DOCUMENTS,
    ) -> None:
        """Start services as described in `World.start`. Also raises `SagaError` for a service that another process
        cannot import.
        """
        all_ = [service.declared for service in services]
        check_fakes(all_, use, real)
        _check_declared(all_, documents)
        employed = [self._set_up(service, use) for service in services]
        self._outside.fakes += use
        for each in employed:
            self._shared.prepare(each.declared, documents)
            self._employed[each.declared.name] = each
        for each in employed * WORKERS:
            self._hire(each.declared.name)

    def read(self, service: "Service[DataclassInstance | None]", kind: type[_D], key: str, /) -> _D | None:
        """Read a document as described in `World.read`. Raises `SagaError` if the service was not started, or does not
        declare the kind.
        """
        name = service.declared.name
        collection = next((d.collection for d in service.declared.documents if d.kind is kind), None)
        if name not in self._employed or collection is None:
            raise SagaError(f"no service {name!r} of this world declares a document {kind.__name__}")
        content = self._shared.get(name, collection, key)
        return None if content is None else as_kind(content, kind)

    def publish(self, *events: Event, principal: str | None = None) -> None:
        self._pending += [to_record(event, self._clock.now_ms(), principal=principal) for event in events]
        for binding in map(binding_of, map(type, events)):
            self._topics[binding.contract.topic] = binding.library.topics[binding.contract.topic]

    def _write_document(self, service: "Service[DataclassInstance | None]", written: DocumentWrite) -> None:
        name = service.declared.name
        if name not in self._employed:
            raise SagaError(f"{name!r} was not started in this world")
        if self._place is not None:
            raise SagaError(
                f"no connector tells of documents here: write them on files, or in the simulated world: {name}"
            )
        if written.expires is not None:
            raise SagaError("what expires does so up to an hour after its time: let it in the simulated world")
        self._pending.append(ServiceWrite(name, written))

    def _find_progress(self, service: "Service[DataclassInstance | None]", saga: str) -> SagaProgress | None:
        name = service.declared.name
        content = self._shared.get(name, PROGRESS, progress_key(name, saga)) if name in self._employed else None
        return None if content is None else decode_progress(content)

    def _send_record(self, record: Outgoing) -> None:
        self._pending.append(record)

    def _time_ms(self) -> int:
        return self._clock.now_ms()

    def run_until_quiet(self) -> None:
        """Run the world as described in `World.run_until_quiet`. This takes real time: at most 60 s (120 s on servers),
        unless `deadline_s` was passed to the world.
        """
        self._check_started()
        until_s = self._clock.monotonic_s() + self._deadline_s
        self._run(self._is_whole, until_s)
        self._publish_pending()
        self._run(self._is_quiet, until_s)

    def run_for(self, time: timedelta, /) -> None:
        """Let real time pass. Raises `SagaError` for more than ten seconds, and for a negative time."""
        check_time(time)
        if time > RUN_FOR_MAX:
            raise SagaError(
                f"run_for({time}): this world has the real clock, and waits for {RUN_FOR_MAX} at most: let the "
                "simulation pass more time"
            )
        self._check_started()
        until_s = self._clock.monotonic_s() + time.total_seconds()
        self._publish_pending()
        while self._clock.monotonic_s() < until_s:
            self._look()

    def outcome(self, saga_id: str) -> type[Event] | None:
        for name, (declared, _) in self._employed.items():
            content = self._shared.get(name, PROGRESS, progress_key(name, saga_id))
            result = None if content is None else decode_progress(content).outcome
            if result is not None:
                return list_outcomes(declared)[result]
        return None

    def always(self, what: str, holds: Callable[[], bool]) -> None:
        """Add an invariant of your own. It can only be checked from outside, so it is checked every 20 ms (on servers
        every 200 ms), and at the end.
        """
        self._always.append((what, holds))

    def save_schedule(self) -> Path:
        """Raise `SagaError`, because a run of real processes has no schedule."""
        raise SagaError(
            "a run of real processes cannot be replayed, so it has no schedule: find a seed of the simulation that "
            "fails in the same way"
        )

    def verify(self) -> None:
        """Check the kit's invariants against everything that the services have written and published. Call this method
        when nothing is in progress; it does not wait. `unseen` lists the parts that cannot be checked in this world.

        Raises `AssertionError` for violations, with the saga and service of each, and for invariants added with
        `always` that do not hold. Raises `SagaError` if the world has not run since the test published something.
        """
        self._check_started()
        check_sent([each.written if isinstance(each, ServiceWrite) else each for each in self._pending])
        self._check_returns()
        self._check_always()
        found = find_violations(self._shared.evidence([each.declared for each in self._employed.values()]))
        if found:
            lines = [*map(str, found), f"what went wrong before: {self._describe_faults()}"]
            raise AssertionError("\n".join(lines))

    @property
    def unseen(self) -> Sequence[str]:
        """What `verify` cannot check in this world."""
        return UNSEEN_IN_PARTIAL if self._giver is None else (*UNSEEN_IN_PARTIAL, UNNAMED)

    def dead_letters(self) -> Sequence[DeadLetter]:
        """Return the dead letters of all services. Escalations of compensations that are still retried are left out."""
        topics = {dead_letter_topic(name): name for name in self._employed}
        found = (decode_dead_letter(topics[each.topic], each) for each in self._read_log() if each.topic in topics)
        return [letter for letter in found if letter is not None and letter.undoes is None]

    @property
    def has_ended(self) -> bool:
        """True if some saga has reached an outcome, or if no service emits outcomes."""
        outcomes = {name for each in self._employed.values() for name in list_outcomes(each.declared)}
        return not outcomes or any(type_of(record) in outcomes for record in self._read_log())

    def _read_log(self) -> Sequence[Record]:
        return self._shared.evidence([each.declared for each in self._employed.values()]).log

    # ---------------------------------------------------------------- starting

    def _check_started(self) -> None:
        if not self._employed:
            raise SagaError(NOTHING_STARTED)

    def _set_up(self, service: "Service[DataclassInstance | None]", use: Sequence[object]) -> StartedService:
        declared = service.declared
        if declared.name in self._employed:
            raise SagaError(f"service {declared.name!r} runs in this world already: start each once")
        modules, attribute = module_and_name(service)
        before = len(self._outside.fakes)
        fakes = [
            msgspec.structs.replace(remote_fake, number=before + remote_fake.number)
            for remote_fake in remote_fakes_of(declared, use)
        ]
        setup = WorkerSetup(
            modules=modules,
            attribute=attribute,
            declarations=declarations_of(declared),
            broker="" if self._place else str(self._shared.broker_file),
            store="" if self._place else str(self._shared.store_file(declared.name)),
            place=self._place,
            outside=str(self._outside.socket),
            fakes=tuple(fakes),
        )
        return StartedService(declared, setup)

    def _hire(self, service: str) -> WorkerProcess:
        return self._crew.hire(service, self._employed[service].setup)

    # ---------------------------------------------------------------- running

    def _publish_pending(self) -> None:
        if self._pending:
            batch, self._pending = self._pending, []
            self._shared.publish(batch, tuple(self._topics.values()))
            self._published += [each for each in batch if isinstance(each, Outgoing)]
            self._changed += [each for each in batch if isinstance(each, ServiceWrite)]
            self._accidents.begin()

    def _publish_again(self, chance: Random) -> None:
        if self._published:
            self._shared.publish([chance.choice(self._published)])

    def _run(self, is_over: Callable[[], bool], until_s: float) -> None:
        """Run the world until the condition holds in `QUIET_LOOKS` consecutive checks."""
        seen = 0
        while seen < QUIET_LOOKS:
            if self._clock.monotonic_s() > until_s:
                raise SagaError(self._describe_progress())
            self._look()
            seen = seen + 1 if is_over() else 0

    def _look(self) -> None:
        self._shared.wait(self._shared.look_s)
        self._crew.check()
        self._accidents.happen(self._is_whole_of)
        self._check_returns()
        self._check_always()

    def _check_returns(self) -> None:
        """Raise `AssertionError` if a handler has returned what its annotation does not allow, or a check in a fake
        failed.
        """
        found = [mistake.text for mistake in list(self._outside.mistakes) if mistake.is_failure]
        if found:
            raise AssertionError("\n".join([*found, f"what went wrong before: {self._describe_faults()}"]))

    def _check_always(self) -> None:
        if not self._always:
            return
        with self._outside.pause():
            broken = [what for what, holds in self._always if not holds()]
        if broken:
            raise AssertionError(f"not always: {'; '.join(broken)} (before: {self._describe_faults()})")

    def _is_whole(self, *, lag_max: float = inf) -> bool:
        """Return True if every worker is a member of its service's group and has its share of the partitions, and no
        group's lag exceeds `lag_max`.
        """
        groups = self._shared.groups()  # read once, so that the states of all groups are from one moment
        return all(
            (group := groups.get(service, GroupState())).is_whole(size) and group.lag <= lag_max
            for service, size in self._crew.sizes.items()
        )

    def _is_whole_of(self, service: str) -> bool:
        return self._shared.groups().get(service, GroupState()).is_whole(self._crew.sizes[service])

    def _is_quiet(self) -> bool:
        """Return True if no fault is scheduled or active, every record is handled and committed, and no saga waits for
        a timer.
        """
        if not self._accidents.are_over or self._shared.is_publishing:
            return False
        if any(map(self._shared.is_relaying, {changed.service for changed in self._changed})):
            return False  # checked before the groups, so that changes that have reached the log are counted in the lag
        if not self._is_whole(lag_max=0):
            return False
        groups = self._shared.groups()
        return not any(groups.get(name, GroupState()).wakes and self._has_waiting_saga(name) for name in self._employed)

    def _has_waiting_saga(self, service: str) -> bool:
        """Return True if a saga that was started in this world waits for a timer. Timers of closed deadlines do not
        count, although they stay in the log until they are due.
        """
        keys = {changed.written.key for changed in self._changed}
        sagas = keys | {record.key.decode() for record in self._published}
        contents = (self._shared.get(service, PROGRESS, progress_key(service, saga)) for saga in sorted(sagas))
        return any(content is not None and decode_progress(content).timer is not None for content in contents)

    def _describe_faults(self) -> str:
        return "; ".join(self._accidents.happened) or "no fault"

    def _describe_progress(self) -> str:
        groups = self._shared.groups()
        lines = [f"the world has not become quiet within {self._deadline_s:g} s (faults: {self._describe_faults()}):"]
        for service in self._employed:
            group = groups.get(service, GroupState())
            lines.append(
                f"  {service}: {group.lag} records and {group.wakes} wakes not committed, "
                f"{group.members} members in its group"
            )
        lines += [f"  {member}; {self._crew.last_words(member)}" for member in self._crew.members]
        return "\n".join(lines)


def _check_declared(services: Sequence[Declared], documents: "Mapping[str, DataclassInstance]") -> None:
    """Raise `SagaError` for a document that no service declares."""
    kinds = {document.kind for declared in services for document in declared.documents}
    for key, document in documents.items():
        if type(document) not in kinds:
            raise SagaError(f"no service of this world declares a document {type(document).__name__} (key {key!r})")


def list_outcomes(declared: Declared) -> dict[str, type[Event]]:
    """Return the classes of the outcomes that a service can emit, by name."""
    emitted = {event for handler in declared.reactions for event in handler.emits}
    return {name_of(event): event for event in emitted if contract_of(event).outcome is not None}
