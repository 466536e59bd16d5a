"""Start services from the settings: load their modules, open broker, stores and keys, check topics, and run the
services until they are stopped."""

import asyncio
import gc
import importlib
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from os import environ, getpid
from pathlib import Path
from socket import gethostname
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple, TypeVar

import msgspec

from saga.broker.port import APPLY, Broker, find_topic_problems
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.contracts.encryption import find_unencryptable
from saga.declarations.migrations import check_chain
from saga.declarations.values import Declared
from saga.encryption.port import KeyRing, Keys
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.errors import find_place
from saga.engine.lifecycle import ServiceOptions, serve, unless_stopped
from saga.engine.ports import CallExternal, ExternalCall
from saga.engine.prepared_service import get_consumed_contracts, get_emitted_contracts, needs_of, prepare, topics_of
from saga.errors import BrokerUnavailable, ConfigurationError, DeclarationError, SagaError
from saga.messages import Topic
from saga.messaging.message_ids import Tracing
from saga.registry.edge import problems_of, with_registry
from saga.registry.port import RegistryOptions
from saga.service import Service
from saga.store.port import Store
from saga.support.clock import LOOK_S, Clock, SystemClock, counted_s, patiently
from saga.telemetry.alert_hook import AlertHook, make_sender, run_hook
from saga.telemetry.events import Opened, Report, StillOpening, StoppedBeforeStart, to_all
from saga.telemetry.health import Watch

T = TypeVar("T")

REPORT_EVERY_S = 5.0
"""Pause between two reports about broker and stores that are still being opened, in seconds."""


def load_services(names: Iterable[str]) -> list[Declared]:
    """Load the services declared in these modules. Raises `ConfigurationError` with all modules that cannot be
    loaded."""
    found: dict[str, Declared] = {}
    problems: list[str] = []
    failures: list[ImportFailure] = []
    for name, module in import_modules(names, failures):
        declared = [value.declared for value in vars(module).values() if isinstance(value, Service)]
        if not declared:
            problems.append(f"{name}: declares no service; it needs a `name = Service(...)`")
        for service in declared:
            if not service.reactions:
                problems.append(f"{name}: the service {service.name!r} has no handler; a service reacts to something")
            elif found.setdefault(service.name, service) is not service:
                problems.append(f"{name}: a second service is called {service.name!r}; rename it, or import the first")
            else:
                problems += [f"{name}: {why}" for why in _chain_of(service)]
    problems = [*(f"{failure.module}: {failure.says}" for failure in failures), *problems]
    if problems:
        raise ConfigurationError("some services cannot be loaded:", problems)
    return list(found.values())


class ImportFailure(NamedTuple):
    """Reason why a module cannot be imported."""

    module: str
    says: str
    file: str | None
    """File that has to be corrected; `None` if the module itself was not found."""
    line: int


def import_modules(names: Iterable[str], failures: list[ImportFailure]) -> Iterator[tuple[str, ModuleType]]:
    """Yield the modules with these names, each with its name, after importing it. Add a failure to `failures` for each
    module that cannot be imported."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # services are packages in the folder in which the command runs
    for name in names:
        try:
            yield name, importlib.import_module(name)
        except Exception as why:  # noqa: BLE001 - a module may raise anything; all problems are reported together
            file, line = find_place(why) or (None, 1)
            failures.append(ImportFailure(name, _describe_failure(name, why, file and f"{file}:{line}"), file, line))


def _describe_failure(name: str, why: Exception, place: str | None) -> str:
    """Describe why a module cannot be imported, and what to do."""
    if isinstance(why, SagaError):
        return str(why)
    if isinstance(why, ImportError):
        return f"cannot be imported: {_unimportable(name, why, place)}"
    what = why.msg if isinstance(why, SyntaxError) else why
    return f"fails while it is imported: {type(why).__name__}: {what} ({place})"


def _chain_of(service: Declared) -> Iterator[str]:
    """Yield a problem if the state migrations of a service do not lead without a gap to the current version."""
    try:
        check_chain(service)
    except DeclarationError as why:
        yield str(why)


def _unimportable(name: str, why: ImportError, place: str | None) -> str:
    """Return why a module cannot be imported, and what to do. Either the module itself is missing, or something that it
    imports."""
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        return "name modules as Python does: services.payment for services/payment.py or services/payment/__init__.py"
    if isinstance(why, ModuleNotFoundError) and why.name is not None and f"{name}.".startswith(f"{why.name}."):
        return f"{why}; is it in the folder {Path.cwd()}, or installed?"
    return f"{why}; it is imported at {place}: install it, or correct the import"


def open_broker(
    address: str | None, clock: Clock, settings: Settings | None = None
) -> AbstractAsyncContextManager[Broker]:
    """Open the broker at `address`, or by default the broker that the setting `SAGA_BROKER` names."""
    settings = settings if settings is not None and not address else Settings.from_environment(broker=address)
    broker = with_registry(adapters.broker_at(settings, clock), settings.of(RegistryOptions), clock)
    return _in_time(broker, f"the broker {settings.broker}", settings.open_s)


def open_store(
    service: str, clock: Clock, settings: Settings | None = None, *, readonly: bool = False
) -> AbstractAsyncContextManager[Store]:
    """Open the store of a service. `readonly`: true for tools, which must not create or change anything."""
    settings = settings or Settings.from_environment()
    store = adapters.store_at(settings, service, clock, readonly=readonly)
    return _in_time(store, f"the store {settings.store}", settings.open_s)


def open_keys(settings: Settings, clock: Clock, services: Sequence[Declared] = ()) -> Keys | None:
    """Return the encryption keys; `None` if no key folder is configured, so nothing is encrypted.

    Raises:
        ConfigurationError: The key folder cannot be used, or a sensitive field of these services cannot be encrypted.
    """
    if not settings.keys:
        return None
    keys = key_ring(Path(settings.keys), clock)
    keys.check()
    contracts = {n: c for declared in services for n, c in prepare(declared).contracts.items()}
    versions = {
        v.path: v for v in (*(c.newest for c in contracts.values()), *(v for _, v in get_emitted_contracts(services)))
    }
    problems = [f"{version.path}: {p}" for version in versions.values() for p in find_unencryptable(version.record)]
    if problems:
        raise ConfigurationError(
            "nothing was started: SAGA_KEYS is set, and not everything can be encrypted:", problems
        )
    return keys


def key_ring(folder: Path, clock: Clock) -> KeyRing:
    """Return the keys in a folder. Raises `ConfigurationError` if the encryption library is not installed."""
    try:
        from saga.encryption.key_folder import KeyFolder
    except ImportError as why:
        problem = f"SAGA_KEYS is set: {why}; pip install 'saga-choreography[encryption]'"
        raise ConfigurationError("nothing was started:", [problem]) from why
    return KeyFolder(folder, clock)


def tune_collector() -> None:
    """Make Python's cyclic garbage collector run less often, for a process that only runs services.

    A message in flight consists of a few hundred objects, none of them in a cycle, and a thousand messages may be in
    flight. With Python's default thresholds, the collector takes a fifth of the processing time and finds nothing. With
    half of the thresholds set here, it still took a twentieth, in pauses of 25 ms. Objects that exist when this is
    called are never scanned again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)


async def run(
    services: Sequence[Declared],
    settings: Settings,
    report: Report,
    stop: asyncio.Event,
    clock: Clock | None = None,
    *,
    modules: Sequence[str] = (),
) -> None:
    """Run services in this process until `stop` is set; then drain them. Raises `SagaError` if the services cannot
    start.

    Args:
        modules: Modules in which the services are declared. Commands in error messages name them.
    """
    # If one service cannot start, or ends, the other services of the process drain, and the process ends.
    clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        watched = _with_health([d.name for d in services], settings, report, stop, clock)
        report, watch = await stack.enter_async_context(watched)  # first: it answers while the others are opened
        report = await stack.enter_async_context(_with_hook(settings, report, clock))
        worker = f"{gethostname()}:{getpid()}"
        report, tracing, through = await stack.enter_async_context(_with_traces(settings, report, worker, clock))
        opening = _Opening(stack, report, settings.open_s)
        names = [d.name for d in services]
        opened = await unless_stopped(stop, opening.broker_and_stores(settings, names, clock))
        if opened is None:
            report_not_started(report, services)
            return
        broker, stores = opened
        await serve_all(
            services,
            broker,
            stores,
            ServiceOptions(
                clock=clock,
                changes_from_beginning=settings.changes_from == "beginning",
                report=report,
                limits=limits_of(settings),
                stop=stop,
                worker=worker,
                tracing=tracing,
                call_external=through,
                open_s=settings.open_s,
                keys=open_keys(settings, clock, services),
                watch=watch,
                transitions_topic=settings.transition_topic,
            ),
            modules=modules,
        )


@asynccontextmanager
async def _with_health(
    services: Sequence[str], settings: Settings, report: Report, stop: asyncio.Event, clock: Clock
) -> AsyncIterator[tuple[Report, Watch | None]]:
    """Yield the report function to use, and the observer of workers. With SAGA_HTTP, the process answers health checks
    while the block runs, and both also inform these answers. Without it they do nothing more, and the observer is
    `None`."""
    if not settings.http:
        yield report, None
        return
    try:
        from saga.telemetry.http import serve_http
    except ImportError as why:
        problem = f"SAGA_HTTP is set: {why}; pip install 'saga-choreography[http]'"
        raise ConfigurationError("nothing was started:", [problem]) from why
    async with serve_http(settings.http, services, stop, clock) as answers:
        yield to_all(report, answers.report), answers.watch


@asynccontextmanager
async def _with_hook(settings: Settings, report: Report, clock: Clock) -> AsyncIterator[Report]:
    """Yield the report function to use. With SAGA_HOOK it also calls the alert hook."""
    if not settings.hook:
        yield report
        return
    secret = _secret_in(settings.hook_secret_file)
    hook = AlertHook(make_sender(settings.hook), clock, report, settings.hook_calls_max, secret)
    async with run_hook(hook):
        yield to_all(report, hook.listen)


@asynccontextmanager
async def _with_traces(
    settings: Settings, report: Report, worker: str, clock: Clock
) -> AsyncIterator[tuple[Report, Tracing | None, CallExternal]]:
    """Yield the report function to use, the tracing settings, and the function that makes the calls of steps. With
    SAGA_TRACES, all three export traces; otherwise the settings are `None`."""
    if not _is_traced(settings):
        yield report, None, ExternalCall.make
        return
    from saga.telemetry.traces import export_spans, use_traceparent

    async def through(step: ExternalCall) -> object:
        with use_traceparent(step.trace):
            return await step.make()

    async with export_spans(worker, clock) as traces:
        yield to_all(report, traces), traces.tracing, through


def current_trace(settings: Settings) -> Callable[[], str | None] | None:
    """Return a function that returns the trace context of the calling application as a `traceparent` header; `None` if
    tracing is off. Raises `ConfigurationError`."""
    if not _is_traced(settings):
        return None
    from saga.telemetry.traces import current_traceparent

    return current_traceparent


def _is_traced(settings: Settings) -> bool:
    """Return whether tracing is on. Raises `ConfigurationError` if it is on and cannot work."""
    if settings.traces == "off":
        return False
    try:
        from saga.telemetry.traces import find_problems, is_disabled
    except ImportError as why:
        problem = f"SAGA_TRACES is on: {why}; pip install 'saga-choreography[traces]'"
        raise ConfigurationError("nothing was started:", [problem]) from why
    if found := list(find_problems(environ)):
        raise ConfigurationError("nothing was started: SAGA_TRACES is on, and cannot work:", found)
    return not is_disabled(environ)


def _secret_in(file: str) -> bytes:
    """Return the key in a file; empty if no file is set. Raises `ConfigurationError` if the file is empty."""
    secret = Path(file).read_bytes().strip() if file else b""
    if file and not secret:
        raise ConfigurationError("nothing was started:", ["SAGA_HOOK_SECRET_FILE is empty: write a key into it"])
    return secret


def limits_of(settings: Settings) -> FlowLimits:
    """Return the limits of messages in flight from the settings."""
    return msgspec.convert(settings, FlowLimits, from_attributes=True)


async def serve_all(
    services: Sequence[Declared],
    broker: Broker,
    stores: Mapping[str, Store],
    options: ServiceOptions,
    *,
    use: Mapping[str, Sequence[object]] = MappingProxyType({}),
    modules: Sequence[str] = (),
) -> None:
    """Run services as `run` does, but with a broker and stores that are already open.

    `use`: fakes that replace resources, by the name of the service.
    """
    topics = with_topics(services, broker, modules, options.clock, options.open_s, options.transitions_topic)
    await unless_stopped(options.stop, topics)
    if options.stop.is_set():
        report_not_started(options.report, services)
        return
    try:
        async with asyncio.TaskGroup() as tasks:
            for declared in services:
                store, fakes = stores[declared.name], use.get(declared.name, ())
                work = serve(prepare(declared), store=store, broker=broker, options=options, use=fakes)
                tasks.create_task(work, name=declared.name)
    except ExceptionGroup as several:
        errors = list(_unwrap_group(several))
        if not all(isinstance(error, SagaError) for error in errors):
            raise  # a defect: keep its traceback
        if len(errors) == 1:
            raise errors[0] from several
        raise ConfigurationError("several services cannot run:", [str(error) for error in errors]) from several


def report_not_started(report: Report, services: Iterable[Declared]) -> None:
    """Report that services were stopped before they had started."""
    for declared in services:
        report(StoppedBeforeStart(service=declared.name))


async def with_topics(
    services: Sequence[Declared],
    broker: Broker,
    modules: Sequence[str],
    clock: Clock,
    open_s: float,
    transitions: Topic | None = None,
) -> None:
    """Check that all topics of these services exist, including their dead-letter topics, that this user may use them,
    and that the schema registry has the schemas of their events. Raises `ConfigurationError` if something is wrong, and
    `BrokerUnavailable`.

    Args:
        transitions: Topic on which the services publish transition events; `None` if they publish none.
    """
    needs, more = needs_of(services, transitions), [transitions] if transitions else []

    async def looked() -> tuple[list[str], Sequence[str]]:
        each = [await find_topic_problems(topics_of(d) + more, broker, needs.reads, needs.writes) for d in services]
        missing = [problem for problems in each for problem in problems]
        return missing, await broker.find_missing_rights(needs.reads, needs.writes, needs.groups)

    try:
        problems, forbidden = await patiently(open_s, looked())
    except TimeoutError as why:
        raise BrokerUnavailable("the broker does not say which topics it has: see whether it runs") from why
    if problems:
        command = f"{APPLY} {' '.join(modules) or 'MODULES'}"
        raise ConfigurationError(
            f"nothing was started: make the topics as the contracts want them: {command}",
            [*dict.fromkeys(problems), *forbidden],
        )
    if forbidden:
        raise ConfigurationError("nothing was started: have this user allowed what its services do:", forbidden)
    if wrong := await problems_of(broker, get_emitted_contracts(services), get_consumed_contracts(services)):
        raise ConfigurationError("nothing was started: the schema registry is not as its events need it:", wrong)


def _unwrap_group(group: ExceptionGroup[Exception]) -> Iterator[Exception]:
    """Yield the single errors inside an exception group, at any depth. Nested groups only show which tasks raised the
    errors."""
    for error in group.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _unwrap_group(error)
        else:
            yield error


@asynccontextmanager
async def _in_time(opened: AbstractAsyncContextManager[T], what: str, open_s: float) -> AsyncIterator[T]:
    async with AsyncExitStack() as stack:
        try:
            inside = await patiently(open_s, stack.enter_async_context(opened))
        except TimeoutError as why:
            raise _not_open([what], open_s) from why
        yield inside


def _not_open(what: Sequence[str], open_s: float) -> ConfigurationError:
    """Return the error about resources that did not open in time. The reason has been reported before, if it is
    known."""
    advice = "see whether it runs and can be reached, or, where it is a file, whether another process holds it"
    return ConfigurationError(
        f"nothing was started: nothing that is opened has come on for {open_s:g} s (SAGA_OPEN_S):",
        [f"{each} is not open: {advice}" for each in what],
    )


class _Opening:
    """Opens the broker and all stores of a process in parallel, because with many services opening one after another
    takes too long.

    It gives up when nothing has been opened for `open_s` seconds. Until then it regularly reports what is not open yet.
    """

    def __init__(self, stack: AsyncExitStack, report: Report, open_s: float) -> None:
        """Prepare the opening. `stack`: exit stack that closes what was opened."""
        self._stack, self._report, self._open_s = stack, report, open_s
        self._began_s = self._reported_s = asyncio.get_running_loop().time()
        self._pending: dict[asyncio.Task[Any], tuple[str, str, AbstractAsyncContextManager[Any]]] = {}

    async def broker_and_stores(
        self, settings: Settings, services: Sequence[str], clock: Clock
    ) -> tuple[Broker, dict[str, Store]]:
        """Open the broker, and a store for each service. Raises `SagaError` for the first one that cannot be opened."""
        broker = self._begin(
            services[0],
            f"the broker {settings.broker}",
            with_registry(adapters.broker_at(settings, clock), settings.of(RegistryOptions), clock),
        )
        stores = {
            name: self._begin(name, f"the store {settings.store}", adapters.store_at(settings, name, clock))
            for name in services
        }
        try:
            await self._wait_opened()
        finally:
            await self._give_up()
        return broker.result(), {name: store.result() for name, store in stores.items()}

    def _begin(self, service: str, what: str, opens: AbstractAsyncContextManager[T]) -> "asyncio.Task[T]":
        task: asyncio.Task[T] = asyncio.get_running_loop().create_task(_enter(opens), name=f"open {what}")
        self._pending[task] = service, what, opens
        return task

    async def _wait_opened(self) -> None:
        loop, waited_s = asyncio.get_running_loop(), 0.0
        while self._pending:
            began_s = loop.time()
            done, _ = await asyncio.wait(self._pending, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            waited_s = 0.0 if done else waited_s + counted_s(began_s, loop.time())
            for task in done:
                self._close_opened(task)
            if waited_s >= self._open_s:
                raise _not_open([what for _, what, _ in self._pending.values()], self._open_s)
            self._tell(waited_s)

    def _close_opened(self, task: asyncio.Task[Any]) -> None:
        """Register an opened resource to be closed at the end. Raises the error of a resource that could not be
        opened."""
        service, what, opens = self._pending.pop(task)
        task.result()
        self._stack.push_async_exit(opens)
        took_s = round(asyncio.get_running_loop().time() - self._began_s, 3)
        self._report(Opened(service=service, what=what, took_s=took_s))

    def _tell(self, waited_s: float) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._pending and now_s - self._reported_s >= REPORT_EVERY_S:
            self._reported_s = now_s
            since_s, left_s = round(now_s - self._began_s, 1), round(self._open_s - waited_s, 1)
            for service, what, _ in self._pending.values():
                self._report(StillOpening(service=service, what=what, since_s=since_s, left_s=left_s))

    async def _give_up(self) -> None:
        """Cancel everything that is still being opened. What was opened in the meantime is registered to be closed."""
        pending, self._pending = self._pending, {}
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        for task, (_, _, opens) in pending.items():
            if not task.cancelled() and task.exception() is None:
                self._stack.push_async_exit(opens)


async def _enter(opens: AbstractAsyncContextManager[T]) -> T:
    return await opens.__aenter__()
