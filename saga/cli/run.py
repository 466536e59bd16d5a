"""`saga run`: run services in this process until it is told to stop."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import click

from saga import wiring
from saga.config import Settings
from saga.declarations.values import Declared
from saga.observe.logs import log_to


@click.command()
@click.argument("modules", nargs=-1, required=True)
def run(modules: tuple[str, ...]) -> None:
    """Run the services declared in MODULES, for example `saga run services.payment services.order`.

    Each service takes its topics from the broker (SAGA_BROKER, by default the file .saga/broker.db), keeps its progress
    in a store of its own (SAGA_STORE, by default .saga/{service}.db), and goes on until SIGTERM or Ctrl-C: then nothing
    new begins, what runs may end within SAGA_DRAIN_S seconds, and nothing is lost. Run it again, or more often, at any
    time: processes of one service share its work.

    \b
    Exit code 0: stopped as told.
    Exit code 2: could not start; what to do is on standard error.
    """
    settings = Settings.read(os.environ)
    services = wiring.load_services(modules)
    wiring.tune_collector()
    asyncio.run(_until_stopped(services, settings))


async def _until_stopped(services: Sequence[Declared], settings: Settings) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    await wiring.run(services, settings, log_to(sys.stderr, settings), stop)
