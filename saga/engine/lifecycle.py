"""Run a service: open and close everything in order.

The opening order is: resources, worker, consumer groups. If `stop` is set while resources are opened, what is open is
closed. Once it is set later, polling ends, messages in flight finish within the time limit, offsets are committed,
groups are left, and resources are closed. Store and broker belong to the caller, who closes them last.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from saga.broker.port import Broker, Subscription
from saga.change import ChangeSource
from saga.declarations.annotations import spell
from saga.declarations.changes import kind_of
from saga.declarations.values import Declared, Resource
from saga.encryption.port import Keys
from saga.engine.consumer.change_relay import ChangeRelay
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.consumer.sources import EventTopics, WorkerSources
from saga.engine.consumer.worker_ports import WorkerAssignment, make_worker_ports
from saga.engine.known_schemas import ReloadContracts, reload_in_thread
from saga.engine.limits import CallGates
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence.overflow_store import EXPIRY_S_MORE
from saga.engine.persistence.service_record import (
    ServiceRecord,
    WorkTimes,
    ensure_record,
    known_logs,
    replaced_logs,
    starts_of,
)
from saga.engine.persistence.transition_publisher import TransitionPublisher
from saga.engine.ports import CallExternal, ExternalCall
from saga.engine.prepared_service import PreparedService, find_conflicting_times, relayed_by
from saga.engine.service_runtime import ServiceRuntime, make_service_runtime
from saga.engine.worker import Worker
from saga.errors import ConfigurationError, DeclarationError
from saga.messages import Topic
from saga.messaging.message_ids import Tracing
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.store.port import Store
from saga.support.clock import Clock, is_cancelled
from saga.support.settings import OPEN_S_MAX
from saga.telemetry.events import Misfit, Report, Started, Stopped, StoppedBeforeStart
from saga.telemetry.health import Watch

T = TypeVar("T")

HAND_ON_S_MAX = 1.0
"""Maximum seconds for which a worker that stops keeps its partitions while runs finish. Most runs finish in this time,
so the next owner of the partitions need not start them again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options for running any service."""

    clock: Clock
    report: Report
    limits: FlowLimits
    stop: asyncio.Event
    """Event that stops the service after its runs in progress are drained."""
    changes_from_beginning: bool = True
    """True if documents that already exist when a service first consumes their changes count as new."""
    open_s: float = OPEN_S_MAX
    """Maximum seconds for opening each resource."""
    call_external: CallExternal = ExternalCall.make
    """Function that makes the calls of steps to external systems."""
    compares_logs: bool = True
    """True if the topics' log ids are compared with those in the store, to notice topics that were deleted and created
    again. False if the broker never forgets a committed offset, because then the offsets reveal such a topic."""
    worker: str = ""
    """Name of the worker, which is shown with failed attempts."""
    reload_contracts: ReloadContracts = reload_in_thread
    """Function that reloads the contracts as currently deployed."""
    waits_for_schemas: bool = True
    """False if a schema that is missing after all attempts will never be deployed. Then a message that waits for it is
    given up."""
    gates: CallGates = field(default_factory=CallGates)
    """Counters of limited calls, shared by all services that run with these options in one process."""
    keys: Keys | None = None
    """Keys of encrypted values; `None` if nothing is encrypted."""
    tracing: Tracing | None = None
    """Decides what is traced; `None` if nothing is."""
    watch: Watch | None = None
    """Function that gets the worker, to observe it while it runs."""
    record: ServiceRecord | None = None
    """Record of the service, if it is known; `None` to read it from the store."""
    transitions_topic: Topic | None = None
    """Topic on which the transitions are published; `None` if they are not published."""


async def serve(
    prepared: PreparedService, *, store: Store, broker: Broker, options: ServiceOptions, use: Sequence[object] = ()
) -> None:
    """Run one worker of a service until `options.stop` is set, then drain it. If that is set before all is open, close
    what is open and return. `use`: fakes that replace resources.

    Raises `ConfigurationError` if a resource does not open, if the store expires documents too early, or if the log of
    a file broker was replaced (see `check_log`). Nothing has been consumed from the log at that point.
    """
    clock, report, declared = options.clock, options.report, prepared.declared
    watching = OutageWatch(declared.name, clock, report, tracing=options.tracing)
    async with AsyncExitStack() as stack:

        async def open_all() -> tuple[Mapping[type, object], ServiceRecord]:
            resources = await open_resources(declared, stack, clock, options.open_s, use, options.stop)
            await store.check_expiry(collections_of(declared), declared.retention.total_seconds() + EXPIRY_S_MORE)
            if options.compares_logs:
                await check_log(declared, store, broker)
            return resources, options.record or await ensure_record(declared, store, clock, watching)

        opened = await unless_stopped(options.stop, open_all())
        if opened is None:
            report(StoppedBeforeStart(service=declared.name))
            return
        resources, record = opened
        assignment = WorkerAssignment(watching)
        through, worker_name, contracts = options.call_external, options.worker, options.reload_contracts
        telling = TransitionPublisher(prepared, broker, watching, worker_name) if options.transitions_topic else None
        ports = make_worker_ports(store, broker, assignment, through, worker_name, contracts)
        times = None if options.record else WorkTimes(record, prepared.retention_s, store, clock)
        ports = replace(
            ports,
            waits_for_schemas=options.waits_for_schemas,
            keys=options.keys,
            transition_listener=telling,
            heartbeat=times,
            has_run_tasks=True,
        )
        service = make_service_runtime(prepared, resources, ports, options.gates)
        async with asyncio.TaskGroup() as tasks:
            relay = await _relay(service, store, broker, options)
            identity, starts = record.identity(worker_name), starts_of(record)
            events = EventTopics(broker, Subscription(declared.name, sorted(service.topics), identity, starts))
            sources = WorkerSources([events])
            log_ids = broker.fetch_log_ids if options.compares_logs else None
            worker = Worker(service, assignment, options.limits, tasks, sources, telling, log_ids)
            for what in find_conflicting_times(declared):
                report(Misfit(service=declared.name, what=what))
            report(Started(service=declared.name, topics=tuple(sorted(service.topics))))
            relaying = None if relay is None else tasks.create_task(relay.run(options.stop), name="relay")
            with nullcontext() if options.watch is None else options.watch(worker):
                drained_s = await run_worker(worker, options.stop)
            if relaying is not None:
                relaying.cancel()
            report(Stopped(service=declared.name, drained_s=drained_s))


async def unless_stopped(stop: asyncio.Event, opening: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of a coroutine. If `stop` is set before it ends, cancel it and return `None`.

    It runs in the task of the caller, because some clients must be closed in the task that opened them.
    """
    limit = asyncio.timeout(None)

    async def end() -> None:
        await stop.wait()
        limit.reschedule(0)  # at once

    ending = asyncio.get_running_loop().create_task(end(), name="stop")
    try:
        async with limit:
            return await opening
    except Exception:  # also an error that a client raises because it is cancelled
        if limit.expired():
            return None
        raise
    finally:
        ending.cancel()


async def check_log(declared: Declared, store: Store, broker: Broker) -> None:
    """Check that the log of a file broker is the one to which the service has published, according to its store. Other
    brokers are not checked.

    Raises `ConfigurationError` if the whole log was replaced, and another `SagaError` if the store or the broker cannot
    be read.
    """
    if not broker.creates_topics:  # in a real broker topics are deleted one by one: the others continue
        return
    known = await known_logs(store, declared.name)
    now = await broker.fetch_log_ids(known)
    if now and replaced_logs(known, now) == sorted(now):
        raise ConfigurationError(
            f"service {declared.name!r} cannot start:",
            [
                "its log is new, and its store is not: what the store has as published lies in another log, so other "
                "services would never hear of it. Look whether SAGA_BROKER names the right file, or put the file back; "
                f"if it is lost, `saga sagas repair` with the module of {declared.name} publishes all of it again, "
                "into this "
                "one; then start the service"
            ],
        )


async def _relay(service: ServiceRuntime, store: Store, broker: Broker, options: ServiceOptions) -> ChangeRelay | None:
    """Return the relay that publishes document changes, if the service's store records them. Return `None` if the
    service consumes no changes, or if the store does not record them: then a connector publishes them.

    Changes that were recorded for another release of the service continue to be recorded. Raises `ConfigurationError`
    if the relay may not write to their topics.
    """
    if not isinstance(store, ChangeSource):
        return None
    topics = relayed_by(service.declared)
    if topics and (forbidden := await broker.find_missing_rights((), topics)):
        raise ConfigurationError("nothing was started: have this user allowed to relay changes:", forbidden)
    kinds = [kind.collection for event in service.changes.values() if (kind := kind_of(event)) is not None]
    await store.watch(service.name, kinds, from_beginning=options.changes_from_beginning)
    return ChangeRelay(service.name, store, broker, options.clock, service.ports.outage_watch) if kinds else None


async def run_worker(worker: Worker, stop: asyncio.Event) -> float:
    """Let a worker consume from its sources until `stop` is set, then drain it. Return the seconds that draining took.

    While the worker drains, nothing new begins. The following are ended, in this order: polls, runs that end soon, dead
    letters, commits, membership in the groups, longer runs. So a slow handler does not hold back a partition: the next
    owner runs the partition's unfinished messages again. If two runs of one message overlap, the one that ends first
    counts.
    """
    clock, tasks, drain_s = worker.service.ports.clock, worker.tasks, worker.limits.drain_s
    async with worker.executor, AsyncExitStack() as groups:
        first, *others = [
            await worker.sources.join(source, worker.listener, groups) for source in worker.sources.sources
        ]
        commits = tasks.create_task(worker.committer.run(), name=f"{worker.name} commits")
        releasing = [tasks.create_task(worker.timers.run(), name=f"{worker.name} wakes")]
        if worker.service.roles.deadlines:
            releasing.append(tasks.create_task(worker.timers.run_waiting_for_log(), name=f"{worker.name} deadlines"))
        if worker.transition_publisher is not None:
            releasing.append(tasks.create_task(worker.transition_publisher.run(), name=f"{worker.name} telling"))
        if worker.low_priority is not None:
            releasing.append(tasks.create_task(worker.low_priority.run(), name=f"{worker.name} yielding"))
        ending = tasks.create_task(_nothing_new_after(stop, worker), name=f"{worker.name} stop")
        try:
            async with asyncio.TaskGroup() as beside:
                for membership in others:
                    beside.create_task(worker.poll_loop.run(membership, stop), name=f"{worker.name} poll")
                await worker.poll_loop.run(first, stop)
        finally:
            began = clock.monotonic_s()
            worker.assignment.stop()
            for each in releasing:
                each.cancel()
            worker.listener.cancel_timer_tasks()
            await worker.executor.wait_until_idle(min(HAND_ON_S_MAX, drain_s))
            await worker.poll_loop.unreadable.drain(min(HAND_ON_S_MAX, drain_s))
            commits.cancel()
            ending.cancel()
            await asyncio.wait([commits, *releasing, ending])
            await worker.committer.commit()
            await groups.aclose()
            await worker.executor.drain(max(0, began + drain_s - clock.monotonic_s()))
            await worker.committer.commit()  # also publishes the transitions written since
        return clock.monotonic_s() - began


async def _nothing_new_after(stop: asyncio.Event, worker: Worker) -> None:
    """Prevent new work as soon as `stop` is set, because a poll loop in the middle of a poll would notice it later."""
    await stop.wait()
    worker.assignment.stop()
    worker.listener.wake_polls()


def collections_of(declared: Declared) -> Sequence[str]:
    """Return the collections that the service uses: progress, archives, and business documents."""
    return (PROGRESS, ARCHIVES, *dict.fromkeys(kind.collection for kind in declared.documents))


async def open_resources(
    declared: Declared,
    stack: AsyncExitStack,
    clock: Clock,
    open_s: float,
    use: Sequence[object] = (),
    stop: asyncio.Event | None = None,
) -> Mapping[type, object]:
    """Open the resources of a service. Return them by declared type: the fake from `use` that replaces a resource, or
    the value that the resource's opener yields. If a resource does not open and `stop` is set, open no further ones.

    Raises `ConfigurationError` with all resources that do not open, and `DeclarationError` if a fake in `use` fits no
    resource.
    """
    fakes = {resource.gives: _fake(resource, use) for resource in declared.resources}
    unused = [fake for fake in use if not any(fake is given for given in fakes.values())]
    if unused:
        raise DeclarationError(
            f"{declared.name!r} has no resource for {', '.join(type(fake).__name__ for fake in unused)}: "
            "a fake is an instance of a subclass of what the resource gives"
        )
    given: dict[type, object] = {}
    problems = []
    for resource in declared.resources:
        fake = fakes[resource.gives]
        if fake is not None:
            given[resource.gives] = fake
            continue
        try:
            client = await clock.within(open_s, stack.enter_async_context(_open_resource(resource)))
        except (Exception, asyncio.CancelledError) as why:  # all problems are reported at once
            if isinstance(why, asyncio.CancelledError) and is_cancelled():
                raise
            if isinstance(why, TimeoutError) and not str(why):  # the clock's; a driver's own says more
                problem = f"did not open within {open_s:g} s: is what it connects to there?"
            else:
                problem = f"does not open: {type(why).__name__}: {why}"
            problems.append(f"resource {resource.name} {problem}")
            if stop is not None and stop.is_set():
                break
        else:
            given[resource.gives] = client
            if client is None:
                problems.append(f"resource {resource.name} yields None: yield a {spell(resource.gives)}")
    if problems:
        raise ConfigurationError(f"service {declared.name!r} cannot start:", problems)
    return given


def _fake(resource: Resource, use: Sequence[object]) -> object | None:
    return next((fake for fake in use if isinstance(fake, resource.gives)), None)


@asynccontextmanager
async def _open_resource(resource: Resource) -> AsyncIterator[object]:
    """Open a resource with its generator function, as pytest does with a fixture.

    The error with which a service ends is raised in this function, too. It goes on even if the function catches it.
    """
    opener, error = asynccontextmanager(resource.opener), None
    async with opener() as given:
        try:
            yield given
        except BaseException as why:
            error = why
            raise
    if error is not None:
        raise error
