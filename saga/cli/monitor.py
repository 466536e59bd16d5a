"""`saga monitor run`: folds what services tell while they run, and answers with a page and in JSON."""

import asyncio
import re
import signal
from collections.abc import Callable, Coroutine
from typing import TypeAlias

import click

from saga.cli.groups import Commands, LazyGroup
from saga.cli.options import broker_option, read_stores_option, since_ms
from saga.cli.printing import tell, tell_trouble
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.monitor.read_model import SAGAS_MAX
from saga.support.clock import SystemClock

ADDRESS = "127.0.0.1:8642"
"""Address at which it answers, unless something else is said."""

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""Form of the name of a shared monitor: the names of its topics and of its group begin with it."""
Serve: TypeAlias = Callable[[asyncio.Event], Coroutine[None, None, None]]
"""Function that serves until the event is set."""


def _named(context: click.Context, parameter: click.Parameter, name: str | None) -> str | None:
    if name is not None and not NAME.fullmatch(name):
        raise click.BadParameter("it must be letters, digits, '.', '_' and '-', at most 200, as in shop-monitor")
    return name


MONITOR: Commands = {
    "run": ("saga.cli.monitor:run", "Run the monitor: a web page, and answers for these commands."),
    "stuck": ("saga.cli.monitor_answers:stuck", "List sagas that are stuck, and services that are down."),
    "rates": ("saga.cli.monitor_answers:rates", "Show throughput, latency and failures of each handler."),
    "trace": ("saga.cli.monitor_answers:trace", "Show the published transitions of one saga."),
    "password": ("saga.cli.password:password", "Print a line for the file of users who may act on the page."),
}


@click.group(cls=LazyGroup, commands=MONITOR)
def monitor() -> None:
    """Run the monitor and its web page; ask it what is stuck and how fast it goes.

    `stuck`, `rates` and `trace` ask the monitor at SAGA_MONITOR. Without one they read the topic saga.transitions.

    \b
    Exit code 0: done, or nothing is stuck.
    Exit code 1: something is stuck, or nothing is known of the saga.
    Exit code 2: wrong usage, or neither monitor nor broker can be read; standard error says what to do.
    """


@click.command()
@click.option("--listen", metavar="HOST:PORT", help=f"Where it answers, in the place of SAGA_MONITOR, or {ADDRESS}.")
@click.option("--since", metavar="TIME", help="Read what was told since then: 90s, 2h, 3d ago or 2026-11-22T16:00:00Z.")
@click.option(
    "--sagas-max",
    type=click.IntRange(100, 10_000_000),
    default=SAGAS_MAX,
    show_default=True,
    help="Sagas that it knows at once: of more it forgets those that ended, oldest first.",
)
@click.option(
    "--shared",
    metavar="NAME",
    callback=_named,
    help="Share the work with all others of this name, on Kafka: answers in JSON, and tables that outlive a process.",
)
@broker_option
@read_stores_option
def run(  # a parameter for each option
    listen: str | None,
    since: str | None,
    sagas_max: int,
    shared: str | None,
    broker: str | None,
    addresses: tuple[str, ...],
) -> None:
    """Run the monitor: a web page, and answers for these commands.

    `saga monitor trace`, `saga monitor stuck` and `saga monitor rates` ask it if SAGA_MONITOR names its address.

    It reads what services tell on the topic saga.transitions, from the oldest record on or from --since, and keeps what
    it makes of it in memory: about a kilobyte for each saga. It is a reader and no more. It commits no position, no
    service waits for it or knows of it, and it may be killed and started anew at any time, as often as you like.

    The page reads the stores, too, for single sagas and for what needs a person, and acts only for users in the file of
    SAGA_MONITOR_USERS.

    With --shared NAME several processes, on as many machines, have the work between them: each folds some partitions of
    the topic, keeps what it has folded in tables on Kafka, and answers for all. A worker that dies hands its partitions
    to the others. They have no page, and read no stores.

    docs/monitor.md has all of it. SIGTERM or Ctrl-C ends it.

    \b
    Exit code 0: stopped as told.
    Exit code 2: could not start, or cannot go on; what to do is on standard error.
    """
    settings = Settings.from_environment(broker=broker, monitor=listen)
    clock = SystemClock()
    if shared is not None:
        if since is not None or addresses:
            raise click.UsageError("--shared reads all that the topic has and no store: leave out --since and --store")
        _run(_sharing(shared, sagas_max, settings, clock))
        return
    try:
        from saga.monitor.server import ServerOptions, serve
    except ImportError as why:
        problem = f"{why}; pip install 'saga-choreography[monitor]'"
        raise ConfigurationError("the monitor was not started:", [problem]) from why
    wanted = ServerOptions(
        address=settings.monitor or ADDRESS,
        stores=addresses,
        since_ms=None if since is None else since_ms("--since", since, clock),
        sagas_max=sagas_max,
    )

    _run(lambda stop: serve(wanted, settings, stop, clock, _begun, tell_trouble))


def _sharing(name: str, sagas_max: int, settings: Settings, clock: SystemClock) -> Serve:
    """Worker of a shared monitor, to be run."""
    try:
        from saga.monitor.shared.server import SharedOptions, serve_shared
    except ImportError as why:
        problem = f"{why}; pip install 'saga-choreography[faust,kafka,monitor]'"
        raise ConfigurationError("the shared monitor was not started:", [problem]) from why
    wanted = SharedOptions(name, settings.monitor or ADDRESS, sagas_max)
    return lambda stop: serve_shared(wanted, settings, stop, clock, _begun, tell_trouble)


def _begun(address: str) -> None:
    tell(f"the monitor answers at http://{address}")


def _run(serve: Serve) -> None:
    """Run it until somebody has it stop."""

    async def until_stopped() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, stop.set)
        await serve(stop)

    wiring.tune_collector()
    asyncio.run(until_stopped())
