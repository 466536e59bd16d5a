"""Program of a worker process, `python -m saga.testing.processes.worker FILE`: run one worker of one service until
SIGTERM.

The process ends at once when its standard input is closed. Then the test's process has ended, and nothing else would
stop the worker.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.port import Broker
from saga.configuration.settings import Settings
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.ports import ExternalCall
from saga.engine.prepared_service import prepare
from saga.errors import SagaError
from saga.store.port import Store
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import Clock, SystemClock
from saga.telemetry.events import TelemetryEvent
from saga.telemetry.logs import EventLog
from saga.testing.code_mistakes import MISTAKES, describe_mistake, find_wrong_return
from saga.testing.processes.remote_fakes import CodeMistake, make_remote_fake, report_mistake
from saga.testing.processes.shared_files import TIMING
from saga.testing.processes.worker_processes import COULD_NOT_START, WorkerSetup

DRAIN_S = 2.0
"""Maximum time in seconds for draining when the worker is stopped."""


def main(file: Path) -> int:
    """Run the worker that the file describes. Return the exit code."""
    threading.Thread(target=_end_with_test, name="end with the test", daemon=True).start()
    setup = WorkerSetup.read(file)
    code = 0
    try:
        asyncio.run(_run(setup))
    except* SagaError as several:  # in an exception group if a task of the service raised it
        code = COULD_NOT_START
        for line in _list_messages(several):
            sys.stderr.write(f"saga: {line}\n")
    return code


def _list_messages(several: BaseExceptionGroup[SagaError]) -> Iterator[str]:
    for why in several.exceptions:
        if isinstance(why, BaseExceptionGroup):
            yield from _list_messages(why)
        else:
            yield str(why)


async def _run(setup: WorkerSetup) -> None:
    declared, clock, stop = setup.service(), SystemClock(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    gives = {resource.name: resource.gives for resource in declared.resources}
    outside, log = Path(setup.outside), EventLog(sys.stderr, Settings(log="json"))
    use = [make_remote_fake(gives[remote.resource], remote, outside) for remote in setup.fakes]
    async with _broker(setup, clock) as broker, _store(setup, clock) as store:
        await serve(
            prepare(declared),
            store=store,
            broker=broker,
            use=use,
            options=ServiceOptions(
                clock=clock,
                report=lambda moment: _report(moment, log, outside),
                limits=FlowLimits(drain_s=DRAIN_S, deaths_max=1000),
                stop=stop,
                worker=f"{declared.name}:{os.getpid()}",
                call_external=lambda step: _call_external(step, outside),
            ),
        )


def _report(moment: TelemetryEvent, log: EventLog, outside: Path) -> None:
    """Log a telemetry event, and report a handler that returned what its annotation does not allow."""
    log.report(moment)
    if (wrong := find_wrong_return(moment)) is not None:
        report_mistake(outside, CodeMistake(str(wrong), is_failure=True))


async def _call_external(step: ExternalCall, outside: Path) -> object:
    """Make the call of a step, and report a mistake of the fake."""
    try:
        return await step.make()
    except MISTAKES as why:
        report_mistake(outside, CodeMistake(describe_mistake(step, why), is_failure=False))
        raise


def _broker(setup: WorkerSetup, clock: Clock) -> Broker:
    if setup.place is not None:
        return setup.place.broker(clock)
    return EmbeddedBroker(Path(setup.broker), clock=clock, timing=TIMING)


def _store(setup: WorkerSetup, clock: Clock) -> Store:
    if setup.place is not None:
        return setup.place.store(clock)
    return SqliteStore(Path(setup.store), clock=clock)


def _end_with_test() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    ended = main(Path(sys.argv[1]))
    sys.stderr.flush()
    # Not `sys.exit`: threads of the Couchbase SDK that still run would abort the interpreter while it ends.
    os._exit(ended)
