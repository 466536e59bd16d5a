"""Log of `saga run` on standard error: lines of one form, whichever part writes them."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT
from tests.cli.test_printable import HOSTILE

SERVICE = """
import logging
import sys
import threading
import warnings
from collections.abc import AsyncIterator

from saga import Saga, Service
from services.payment.events import OrderPlaced

payment = Service("payment")

class Bank:
    pass

def ends() -> None:
    raise RuntimeError(HOSTILE)

@payment.resource
async def bank() -> AsyncIterator[Bank]:
    for number in range(1000):
        logging.getLogger("driver").error("%d: %s", number, HOSTILE)
    warnings.warn(HOSTILE)
    thread = threading.Thread(target=ends)
    thread.start()
    thread.join()
    yield Bank()

@payment.handler
async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> None:
    pass
"""


def run_until(event: str, folder: Path, **settings: str) -> None:
    """Run the service until its log has the event, and stop it. Fails if it does not end in good order."""
    (folder / "odd.py").write_text(f"HOSTILE = {HOSTILE!r}\n{SERVICE}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "saga.cli.main", "run", "odd"],
            stderr=log,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), **settings},
        )
        try:
            while f'"{event}"'.encode() not in (folder / "log").read_bytes():
                with pytest.raises(subprocess.TimeoutExpired):  # it is still there
                    process.wait(timeout=0.02)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()
            process.wait()


def test_logs_of_libraries_warnings_and_threads_have_the_common_format(folder: Path) -> None:
    run_until("started", folder, PYTHONWARNINGS="always")
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines()]
    logged = [line for line in lines if line["event"] == "log"]
    assert {line["logger"] for line in logged} >= {"driver", "py.warnings", "python"}
    assert sum(line["logger"] == "driver" for line in logged) == 20
    (held,) = [line for line in lines if line["event"] == "suppressed"]
    assert (held["of"], held["logger"], held["count"]) == ("log", "driver", 980)
    assert (folder / "log").read_text().replace("\n", "").isprintable()


def test_a_process_that_is_stopped_while_its_broker_is_opened_ends_at_once(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = f"kafka://127.0.0.1:{silent.getsockname()[1]}"
        run_until("opened", folder, SAGA_BROKER=broker, SAGA_OPEN_S="45", SAGA_DRAIN_S="2")  # its store is opened
    *_, last = (json.loads(line) for line in (folder / "log").read_text().splitlines())
    assert (last["event"], last["service"]) == ("stopped_before_start", "payment")
