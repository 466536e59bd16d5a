"""`saga run` and `saga dev`. The first runs services in this process until it is stopped. The second runs all services
of a folder in processes of their own, which are restarted when something changes."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from saga.cli.monitor import ADDRESS
from saga.cli.options import broker_option, stores_option
from saga.cli.printing import print_lines, print_prefixed
from saga.configuration import wiring
from saga.configuration.settings import Settings, environment_without
from saga.contracts.examples import example_saga_id
from saga.contracts.library import find_library
from saga.declarations.values import Declared
from saga.development.processes import ServiceProcesses
from saga.errors import SagaError
from saga.support.clock import SystemClock
from saga.telemetry.logs import EventLog

GRACE_S = 5.0
"""Seconds that the process has after the time for the drain to end by itself. After them it is ended."""


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
def run(modules: tuple[str, ...], broker: str | None, store: str | None) -> None:
    """Run the services declared in the given modules, for example `saga run services.payment services.order`.

    Each service reads its topics from the broker (--broker or SAGA_BROKER, by default the file .saga/broker.db) and
    keeps its progress in a store of its own (--store or SAGA_STORE, by default .saga/{service}.db). It runs until
    SIGTERM or Ctrl-C: then it starts nothing new, gives running handlers SAGA_DRAIN_S seconds to finish, and loses
    nothing. Start it again, or start more processes, at any time: processes of one service share its work. With
    SAGA_HTTP set (for example 127.0.0.1:8080) it serves /health/live, /health/ready and /metrics there. On Kafka the
    topics must exist: `saga topics apply` creates them. docs/reference/settings.md lists all settings.

    \b
    Exit code 0: stopped by a signal.
    Exit code 1: did not end in time after the signal: a handler that was running was cut off, and will run again.
    Exit code 2: could not start; standard error says what to do.
    """
    settings = Settings.from_environment(broker=broker, store=store)
    services = wiring.load_services(modules)
    wiring.tune_collector()
    asyncio.run(_until_stopped(services, settings, modules))


async def _until_stopped(services: Sequence[Declared], settings: Settings, modules: Sequence[str]) -> None:
    stop, log = asyncio.Event(), EventLog(sys.stderr, settings)
    loop = asyncio.get_running_loop()
    last_resort = threading.Timer(settings.drain_s + GRACE_S, _leave_all)
    last_resort.daemon = True

    def stop_on_signal(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        if not last_resort.is_alive():
            last_resort.start()

    # The loop's own signal handlers are not used, because they need the loop, which a handler function may block.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop_on_signal)
    try:
        with log.of_python():
            await wiring.run(services, settings, log.report, stop, modules=modules)
    finally:
        last_resort.cancel()


def _leave_all() -> None:
    """End the process at once, as in a crash. Nothing is lost by this. It is called from a thread, because the event
    loop may be blocked."""
    try:
        print_lines(
            "saga: the process did not end in time after the stop signal; it ends as by a crash, and a handler that "
            "was running will run again",
            err=True,
        )
    finally:  # writing fails if standard error was closed
        os._exit(1)


# -------------------------------------------------------------------- dev


COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red")
"""Colours for the names of services on a terminal."""


@click.command()
@click.argument("folder", default="services", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--page",
    metavar="HOST:PORT",
    help=f"Address of the monitor's page, instead of SAGA_MONITOR or {ADDRESS}; port 0: any free port.",
)
@click.option("--no-page", is_flag=True, help="Start no monitor.")
@broker_option
@stores_option
def dev(folder: Path, page: str | None, no_page: bool, broker: str | None, store: str | None) -> None:
    """Run all services of a folder and restart them when something changes.

    FOLDER is a package in the current folder, by default services/. Every module or package directly in it that has
    `name = Service(...)` is run. Broker and stores are files below .saga/, unless the settings name others. Each line
    of output begins with the name of its service.

    When code in a service's package is saved, that service restarts. When a contract is saved, or any other code below
    the current folder (except tests), all services restart. New code is loaded before the restart: if it cannot be
    loaded, the reason is printed and the old process keeps running. A service that ended by itself waits for the next
    change.

    The address of the monitor's page is printed: it shows sagas, what is stuck, rates and the graph. It is `saga
    monitor run`, and needs `pip install 'saga-choreography[monitor]'`. If that is missing, or another process uses the
    address, a message says so, and the services run without it.

    Ctrl-C lets all services drain, and ends them; a second one ends them at once.

    \b
    Exit code 0: ended by a signal.
    Exit code 2: the folder does not exist, or the settings are invalid.
    """
    if page is not None and no_page:
        raise click.UsageError("give --page or --no-page, not both")
    settings = Settings.from_environment(broker=broker, store=store, monitor=page)
    environment = {**environment_without("SAGA_HTTP"), "SAGA_BROKER": settings.broker, "SAGA_STORE": settings.store}
    environment.setdefault("SAGA_LOG", "text")
    environment.setdefault("PYTHONUNBUFFERED", "1")
    shown = _Shown()
    if settings.http:
        shown("", "SAGA_HTTP is ignored: several processes cannot listen on one address")
    for line in _suggest_commands(folder) if folder.is_dir() else ():
        shown("", line)
    at = None if no_page else settings.monitor or ADDRESS
    asyncio.run(_watch_until_stopped(folder, environment, shown, at))


def _suggest_commands(folder: Path) -> Iterator[str]:
    """Yield lines with the commands that a newcomer may type next: to publish an event that starts a saga, and to show
    the saga."""
    try:
        contracts = find_library(folder).contracts.values()
    except SagaError:
        return  # each service says what is wrong with the contracts
    for contract in contracts:
        if contract.starts and contract.produced_externally:
            name, saga = contract.name, example_saga_id(contract)
            yield "in another terminal, publish an event and look at its saga:"
            yield f"  saga publish {name} --example | saga publish {name}"
            yield f"  saga sagas show {saga} --wait 10s"
            return


async def _watch_until_stopped(
    folder: Path, environment: dict[str, str], show: Callable[[str, str], None], page: str | None
) -> None:
    stop, contracts = asyncio.Event(), environment.get("SAGA_CONTRACTS", "").strip()
    root = Path.cwd()
    crew = ServiceProcesses(
        root / folder, root, environment, SystemClock(), show, Path(contracts) if contracts else None, page
    )

    def stop_on_signal() -> None:
        if stop.is_set():
            crew.hurry.set()
        stop.set()

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(name, stop_on_signal)
    await crew.run(stop)


class _Shown:
    """Prints lines with the name of a service as a prefix. Each name has its own colour."""

    def __init__(self) -> None:
        self._colours: dict[str, str] = {}

    def __call__(self, service: str, line: str) -> None:
        if service and service not in self._colours:
            self._colours[service] = COLOURS[len(self._colours) % len(COLOURS)]
        width = max(map(len, ("saga", *self._colours)))
        print_prefixed((service or "saga").ljust(width), self._colours.get(service), line)
