"""A handler that will not end does not keep its process from ending: it is left as by a crash."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from saga.errors import SagaError
from saga.support.clock import SystemClock
from services.demo.fleet import ROOT

STOPPED_S_MAX = 20.0

MODULE = """
import asyncio, pathlib, time
from saga import Service
from services.payment.events import OrderPlaced, PaymentReserved

payment = Service("payment")

@payment.handler
async def reserve(order: OrderPlaced) -> PaymentReserved:
    pathlib.Path("begun").touch()
    while True:
        try:
            {body}
        except asyncio.CancelledError:
            pass
"""

ORDER = (
    '{"order_id": "order-1", "customer_id": "c", "sku": "tea", "quantity": 1, "total": "9.80", "card": "4", '
    '"address": "Kiel"}'
)


@contextmanager
def stuck(folder: Path, body: str) -> Iterator["subprocess.Popen[str]"]:
    """A service whose handler has begun and will not end."""
    clock, pause = SystemClock(), threading.Event()
    (folder / "stubborn.py").write_text(MODULE.format(body=body))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SAGA_CONTRACTS": str(ROOT / "contracts"),
        "SAGA_DRAIN_S": "0.1",
    }
    command = [sys.executable, "-m", "saga.cli.main"]
    with subprocess.Popen(
        [*command, "run", "stubborn"], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            subprocess.run(
                [*command, "publish", "OrderPlaced"], cwd=folder, env=environment, input=ORDER, text=True, check=True
            )
            until_s = clock.monotonic_s() + 60
            while not (folder / "begun").exists():
                if clock.monotonic_s() > until_s:
                    raise SagaError("the handler did not begin")
                pause.wait(0.01)
            yield running
        finally:
            running.kill()


@pytest.mark.parametrize("body", ["await asyncio.sleep(60)", "time.sleep(60)"], ids=["swallows", "blocks"])
def test_a_handler_that_will_not_end_is_left_as_by_a_crash(tmp_path: Path, body: str) -> None:
    with stuck(tmp_path, body) as running:
        running.send_signal(signal.SIGTERM)
        _, output = running.communicate(timeout=STOPPED_S_MAX)
    assert running.returncode == 1
    assert "it ends as by a crash, and a handler that was running will run again" in output


def test_it_is_left_although_standard_error_is_closed(tmp_path: Path) -> None:
    with stuck(tmp_path, "await asyncio.sleep(60)") as running:
        assert running.stderr is not None
        running.stderr.close()
        running.send_signal(signal.SIGTERM)
        assert running.wait(STOPPED_S_MAX) == 1
