"""`saga run` and `saga dev`: run services in this process until it is stopped, or all of a folder in processes of their
own that are restarted when something changes."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from saga.cli.monitor import ADDRESS
from saga.cli.options import broker_option, stores_option
from saga.cli.printing import print_lines, print_prefixed
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.development.processes import ServiceProcesses
from saga.support.clock import SystemClock
from saga.telemetry.logs import EventLog

GRACE_S = 5.0
"""Seconds after the drain in which everything that still keeps the process running has to end."""


@click.command()
@click.argument("modules", nargs=-1, required=True)
@broker_option
@stores_option
def run(modules: tuple[str, ...], broker: str | None, store: str | None) -> None:
    """Run the services declared in the given modules, for example `saga run services.payment services.order`.

    Each service takes its topics from the broker (--broker or SAGA_BROKER, by default the file .saga/broker.db), keeps
    its progress in a store of its own (--store or SAGA_STORE, by default .saga/{service}.db), and goes on until SIGTERM
    or Ctrl-C: then nothing new begins, what runs may end within SAGA_DRAIN_S seconds, and nothing is lost. Run it
    again, or more often, at any time: processes of one service share its work. With SAGA_HTTP (as 127.0.0.1:8080) it
    answers there: /health/live, /health/ready and /metrics. On Kafka the topics have to be there: `saga topics apply`
    makes them. docs/settings.md has all settings.

    \b
    Exit code 0: stopped as told.
    Exit code 1: stopped, but a handler would not end: it was left as by a crash.
    Exit code 2: could not start; what to do is on standard error.
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

    def told_to_stop(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        if not last_resort.is_alive():
            last_resort.start()

    # Not the loop's own signal handlers: those need the loop, which a blocking handler function never lets run.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, told_to_stop)
    try:
        with log.of_python():
            await wiring.run(services, settings, log.report, stop, modules=modules)
    finally:
        last_resort.cancel()


def _leave_all() -> None:
    """End the process at once, as a crash would; nothing is lost by that. Called from a thread, because the loop may be
    blocked."""
    print_lines("saga: a handler did not end when it was told to; it is left as by a crash, and repeated", err=True)
    os._exit(1)


# -------------------------------------------------------------------- dev


COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_red")
"""Colours of the services' names on a terminal."""


@click.command()
@click.argument("folder", default="services", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--page",
    metavar="HOST:PORT",
    help=f"Where a page shows what the services do, in the place of SAGA_MONITOR, or {ADDRESS}; port 0: any.",
)
@click.option("--no-page", is_flag=True, help="Show no page.")
@broker_option
@stores_option
def dev(folder: Path, page: str | None, no_page: bool, broker: str | None, store: str | None) -> None:
    """Run all services of a folder and restart them when something changes.

    FOLDER is a package of the current folder, by default services/; each module or package directly in it that says
    `name = Service(...)` is run. Broker and stores are files below .saga/, unless the settings say otherwise. What the
    services say is printed behind their names.

    When code in a service's package is saved, that service is started again; when a contract is, or any other code
    below the current folder (tests left out), all of them. Before that each is loaded: of what cannot be loaded it is
    said why, and the process that runs goes on. A service that has ended by itself waits for the next change.

    A page shows them at the address that it prints: sagas, what is stuck, rates, the graph. It is `saga monitor run`,
    and
    needs `pip install 'saga-choreography[monitor]'`; without it, or if somebody else listens there, that is said, and
    the services run all the same.

    Ctrl-C has all of them drain, and ends them; a second one ends them at once.

    \b
    Exit code 0: ended as told.
    Exit code 2: there is no such folder, or the settings cannot work.
    """
    if page is not None and no_page:
        raise click.UsageError("give --page or --no-page, not both")
    settings = Settings.from_environment(broker=broker, store=store, monitor=page)
    environment = {**os.environ, "SAGA_BROKER": settings.broker, "SAGA_STORE": settings.store}
    environment.setdefault("SAGA_LOG", "text")
    environment.setdefault("PYTHONUNBUFFERED", "1")
    shown = _Shown()
    if environment.pop("SAGA_HTTP", ""):
        shown("", "SAGA_HTTP is left out: one address cannot be that of several processes")
    at = None if no_page else settings.monitor or ADDRESS
    asyncio.run(_watch_until_stopped(folder, environment, shown, at))


async def _watch_until_stopped(
    folder: Path, environment: dict[str, str], show: Callable[[str, str], None], page: str | None
) -> None:
    stop, contracts = asyncio.Event(), environment.get("SAGA_CONTRACTS", "").strip()
    root = Path.cwd()
    crew = ServiceProcesses(
        root / folder, root, environment, SystemClock(), show, Path(contracts) if contracts else None, page
    )

    def told_to_stop() -> None:
        if stop.is_set():
            crew.hurry.set()
        stop.set()

    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(name, told_to_stop)
    await crew.run(stop)


class _Shown:
    """Printer of lines prefixed with the names of services, each name in its own colour."""

    def __init__(self) -> None:
        self._colours: dict[str, str] = {}

    def __call__(self, service: str, line: str) -> None:
        if service and service not in self._colours:
            self._colours[service] = COLOURS[len(self._colours) % len(COLOURS)]
        width = max(map(len, ("saga", *self._colours)))
        print_prefixed((service or "saga").ljust(width), self._colours.get(service), line)
