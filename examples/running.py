"""Run the services of an example in a process of their own, with all files in one folder."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.support.clock import SystemClock

ROOT = Path(__file__).parents[1]
STOP_S_MAX = 60.0


def use_folder(name: str) -> Path:
    """Empty the folder `.saga/examples/NAME`, and return it. From now on this process and its child processes keep all
    their files there."""
    folder = Path(".saga/examples", name).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ |= {
        "SAGA_BROKER": f"embedded:///{folder}/broker.db",
        "SAGA_STORE": f"sqlite:///{folder}/{{service}}.db",
        "SAGA_CONTRACTS": str(ROOT / "examples" / name / "contracts"),
    }
    return folder


async def insert_documents(service: str, collection: str, documents: Mapping[str, object]) -> None:
    """Insert documents into the store of a service."""
    async with wiring.open_store(service, SystemClock(), Settings.from_environment()) as store:
        for key, document in documents.items():
            await store.insert(collection, key, msgspec.json.encode(document))


@contextmanager
def run_services(folder: Path, modules: Sequence[str]) -> Generator[None]:
    """Run services in a process of their own until the block ends. Their log is `services.log` in the folder."""
    with (folder / "services.log").open("ab") as log:
        command = [sys.executable, "-m", "saga.cli.main", "run", *modules]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S_MAX)
