"""`saga monitor`: folds what services tell while they run, and answers with a page and in JSON."""

import asyncio
import signal

import click

from saga import wiring
from saga.cli.options import broker_option, read_stores_option, since_ms
from saga.cli.printing import tell, tell_trouble
from saga.clock import SystemClock
from saga.config import Settings
from saga.errors import ConfigurationError
from saga.monitor.folds import SAGAS_MAX

ADDRESS = "127.0.0.1:8642"
"""Address at which it answers, unless something else is said."""


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
@broker_option
@read_stores_option
def monitor(
    listen: str | None, since: str | None, sagas_max: int, broker: str | None, addresses: tuple[str, ...]
) -> None:
    """Show sagas while they run: a web page, and answers for commands.

    `saga trace`, `saga stuck` and `saga rates` ask it if SAGA_MONITOR names its address.

    It reads what services tell on the topic saga.transitions, from the oldest record on or from --since, and keeps what
    it makes of it in memory: about a kilobyte for each saga. It is a reader and no more. It commits no position, no
    service waits for it or knows of it, and it may be killed and started anew at any time, as often as you like.

    The page reads the stores, too, for single sagas and for what needs a person, and acts only for users in the file of
    SAGA_MONITOR_USERS. docs/monitor.md has all of it. SIGTERM or Ctrl-C ends it.

    \b
    Exit code 0: stopped as told.
    Exit code 2: could not start, or cannot go on; what to do is on standard error.
    """
    settings = Settings.from_environment(broker=broker, monitor=listen)
    clock = SystemClock()
    try:
        from saga.monitor.serving import Serving, serve
    except ImportError as why:
        problem = f"{why}; pip install 'saga-choreography[monitor]'"
        raise ConfigurationError("the monitor was not started:", [problem]) from why
    wanted = Serving(
        address=settings.monitor or ADDRESS,
        stores=addresses,
        since_ms=None if since is None else since_ms("--since", since, clock),
        sagas_max=sagas_max,
    )

    async def until_stopped() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, stop.set)
        await serve(wanted, settings, stop, clock, lambda at: tell(f"the monitor answers at http://{at}"), tell_trouble)

    wiring.tune_collector()
    asyncio.run(until_stopped())
