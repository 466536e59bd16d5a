"""`python -m tests.fuzz --records 20000 --seed 7`, or `make fuzz`."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import click

from saga.testing.servers.jars import jars
from saga.testing.servers.missing import ServersMissing
from tests.fuzz.logs import BehindRegistry, FuzzedLog, InMemory, embedded, kafka
from tests.fuzz.records import records
from tests.fuzz.run import Figures, run


@asynccontextmanager
async def _in_memory(folder: Path) -> AsyncIterator[InMemory]:
    yield InMemory()


@asynccontextmanager
async def _behind_registry(folder: Path) -> AsyncIterator[InMemory]:
    yield BehindRegistry()


GROUNDS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[FuzzedLog]]] = {
    "memory": _in_memory,
    "registry": _behind_registry,
    "embedded": embedded,
    "kafka": kafka,
}


@click.command()
@click.option("--records", "count", type=click.IntRange(1), default=20_000, show_default=True, help="For each log.")
@click.option("--seed", type=int, default=1, show_default=True, help="What the records are made of.")
@click.option("--log", "logs", type=click.Choice([*GROUNDS]), multiple=True, help="Which; without it, each.")
def main(count: int, seed: int, logs: tuple[str, ...]) -> None:
    """Put records as anybody may write them into a log, and see what a service makes of them.

    Exits with 1 if a worker ended, a partition stands, a record is lost, or a dead letter does not say why; with 2
    without Java or Maven.
    """
    clean = True
    for log in logs or GROUNDS:
        if log == "kafka":
            try:
                jars()
            except ServersMissing as why:
                click.echo(f"Error: {why}", err=True)
                raise SystemExit(2) from why
        figures = asyncio.run(_run(log, count, seed))
        clean = clean and figures.is_clean
        click.echo(f"{log}, seed {seed}: {figures}")
        for wrong in (*figures.stops, *figures.losses, *figures.unclear):
            click.echo(f"  {wrong!r}")
    raise SystemExit(0 if clean else 1)


async def _run(log: str, count: int, seed: int) -> Figures:
    with tempfile.TemporaryDirectory(prefix="saga-fuzz-") as folder:
        async with GROUNDS[log](Path(folder)) as ground:
            return await run(ground, list(records(seed, count, bytes_max=ground.bytes_max)), Path(folder))


if __name__ == "__main__":
    main()
