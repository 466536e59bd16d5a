"""`python -m tests.torture --minutes 30 --seed 7`, or `make torture MINUTES=30`."""

import asyncio
import shutil
import signal
from pathlib import Path

import click

from saga.errors import SagaError
from saga.testing.servers.missing import ServersMissing
from saga.testing.servers.server import ServerFailed
from services.demo.fleet import Fallen
from tests.torture.customers import NotRecovered
from tests.torture.story import Plan, Torture

FOLDER = Path(__file__).parents[2] / "build" / "torture"


@click.command()
@click.option("--minutes", type=click.FloatRange(0.05), default=30.0, show_default=True, help="How long faults begin.")
@click.option("--seed", type=int, default=1, show_default=True, help="What gives the faults their order and times.")
@click.option("--per-second", type=click.FloatRange(1, 200), default=20.0, show_default=True, help="Orders.")
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=FOLDER,
    show_default=True,
    help="Where logs, ledgers and the data of Kafka are; created again for each run.",
)
def main(minutes: float, seed: int, per_second: float, folder: Path) -> None:
    """Torture the order saga on a real Kafka and CouchbaseMock, and compare all books.

    Three workers of payment and four of the others run under constant load. Workers are killed, added, and frozen for
    so long that the group takes them for dead; the broker is killed; the store is frozen and refuses operations;
    transactions are aborted, odd records are written, partitions damaged, orders put into other partitions than their
    keys say, the topic of the orders deleted and created again. How long it takes to recover is printed for
    each. CouchbaseMock forgets everything when it is killed, so it is frozen.

    Exits with 1 if the books differ, an order does not end, or a worker ends by itself; with 2 without Java or Maven.
    """
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.default_int_handler)
    shutil.rmtree(folder, ignore_errors=True)
    plan = Plan(seed=seed, faults_s=minutes * 60, least=0, per_s=per_second)
    raise SystemExit(_run(Torture(folder, plan, click.echo)))


def _run(torture: Torture) -> int:
    """The exit code."""
    try:
        return 0 if asyncio.run(torture.run()) else 1
    except ServersMissing as why:
        click.echo(f"Error: {why}", err=True)
        return 2
    except (SagaError, Fallen, NotRecovered, ServerFailed) as why:
        click.echo(f"Error: {why}", err=True)
        return 1
    except KeyboardInterrupt:
        click.echo("\nended early; nothing is left running", err=True)
        return 130


if __name__ == "__main__":
    main()
