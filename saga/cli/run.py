"""`saga run`: run services in this process until it is told to stop."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence

import click

from saga.cli.options import broker_option, stores_option
from saga.cli.printing import tell
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.telemetry.logs import Log

GRACE_S = 5.0
"""Seconds after the drain that anything has to let go which still holds the process up."""


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
    stop, log = asyncio.Event(), Log(sys.stderr, settings)
    loop = asyncio.get_running_loop()
    last_resort = threading.Timer(settings.drain_s + GRACE_S, _leave_all)
    last_resort.daemon = True

    def told_to_stop(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        if not last_resort.is_alive():
            last_resort.start()

    # Not the loop's own handlers: those wait for the loop, which a handler that blocks it never lets run again.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, told_to_stop)
    try:
        with log.of_python():
            await wiring.run(services, settings, log.report, stop, modules=modules)
    finally:
        last_resort.cancel()


def _leave_all() -> None:
    """End the process, as a crash would: nothing is lost by it. From a thread, for the loop may never run again."""
    tell("saga: a handler did not end when it was told to; it is left as by a crash, and repeated", err=True)
    os._exit(1)
