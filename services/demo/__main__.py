"""Run the demonstration (`make demo`): orders are placed, a service is killed and started again, one order gets no
answer, and at the end all books are compared."""

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from saga import Client, SagaError
from saga.broker.port import Broker
from saga.configuration import wiring
from saga.contracts.codec import from_json
from saga.contracts.library import find_library
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import Clock, SystemClock
from saga.support.printable import printable
from services.audit.__main__ import report, table
from services.audit.books import read_books
from services.audit.checks import audit, outcomes
from services.demo.fleet import ROOT, Fallen, Fleet
from services.demo.page import Page
from services.demo.watch import CANCELLED, CONFIRMED, TOPICS, Watch, unsettled
from services.inventory.seed import seed
from services.order.events import OrderPlaced

FOLDER = Path(".saga/demo")
ORDERS = ROOT / "services" / "orders.jsonl"
VICTIM, DECIDER = "payment", "order"
ORDERS_PER_S = 80
"""Number of orders that customers place per second."""
BATCH = 8
UNDER_WAY_MAX = 60
"""Largest number of orders in flight. So on a slow machine, customers order only as fast as the services work."""
KILL_AFTER = 0.3
"""Share of orders that have ended when a service is killed. Customers are still ordering then."""
DEAD_S = 1.0
"""Time until the killed service is started again, in seconds. The other services continue meanwhile."""
PATIENCE_S, STARTS = 5.0, 6
"""Time after which an order expires: at least `PATIENCE_S` seconds, and at least `STARTS` times the time that the
services took to start. 15 minutes would be too long for a demonstration, but an order must survive the restart of a
killed service."""
SILENT_CARD = "silent-4711"
"""Card of the first order. Its issuer does not answer until that order has expired."""
STILL_S_MAX = 90.0
"""Time without any progress after which the demonstration gives up, in seconds. While it waits for the last outcomes,
the time after which an order expires is added."""
TELL_S = 10.0
"""Time without an outcome after which the demonstration prints what it waits for, in seconds."""
LOOK_S = 0.1
ON_TERMINAL = sys.stdout.isatty()


@click.command()
def main() -> None:
    """Run the order saga: four services as four processes, 640 orders, a kill -9 in the middle, an order that nobody
    answers, and an audit; with a page on which all of it can be watched.

    Everything is kept in .saga/demo, which a run empties first. Exits with 1 if the books differ or an order is open.
    """
    clock = SystemClock()
    shutil.rmtree(FOLDER, ignore_errors=True)
    with Fleet(FOLDER, clock) as fleet, Page(fleet) as page:
        try:
            differs = asyncio.run(_run_story_until_signal(fleet, page, clock))
        except (Fallen, SagaError) as why:
            raise click.ClickException(str(why)) from why
        except (KeyboardInterrupt, asyncio.CancelledError):
            click.echo("\nended early; nothing is left running")
            raise SystemExit(130) from None
    raise SystemExit(differs)


async def _run_story_until_signal(fleet: Fleet, page: Page, clock: Clock) -> bool:
    task = asyncio.current_task()
    assert task is not None  # a running coroutine belongs to a task
    for name in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(name, task.cancel)
    return await story(fleet, page, clock)


async def story(fleet: Fleet, page: Page, clock: Clock) -> bool:
    """Run the demonstration. Return whether the books differ."""
    began_s = clock.monotonic_s()
    first, *others = read_orders(ORDERS)
    orders = [replace(first, card=SILENT_CARD), *others]
    fleet.silence.touch()
    async with SqliteStore(FOLDER / "inventory.db", clock=clock) as store:
        articles = await seed(store)
    click.echo(f"{articles} articles are in stock, {len(orders)} orders are to come")
    pids = await _start(fleet, clock)
    click.echo(
        f"{first.order_id} is paid with a card whose issuer does not answer; orders expire after {fleet.patience_s:g} s"
    )
    click.echo(f"four services run: {', '.join(f'{service} ({pid})' for service, pid in pids.items())}")
    page.start()
    async with wiring.open_broker(fleet.broker, clock) as broker:
        watch = await _all_ended(fleet, page, broker, orders, clock)
    await _all_settled(fleet, orders, clock)
    await fleet.stop()
    click.echo(f"all settled after {clock.monotonic_s() - began_s:.0f} s; the services are stopped\n")
    return await _compare(orders, min(watch.ended[CANCELLED], default=orders[0].order_id))


async def _start(fleet: Fleet, clock: Clock) -> dict[str, int]:
    """Start all services and return their process ids. The deciding service starts last, because its deadline depends
    on how long the others took to start."""
    began_s, others = clock.monotonic_s(), [service for service in fleet.services if service != DECIDER]
    pids = {service: fleet.start(service) for service in others}
    while not all(map(fleet.is_at_work, others)):
        fleet.check()
        await clock.sleep(LOOK_S)
    fleet.patience_s = max(PATIENCE_S, round(STARTS * (clock.monotonic_s() - began_s)))
    return {service: pids.get(service) or fleet.start(service) for service in fleet.services}


async def _all_ended(fleet: Fleet, page: Page, broker: Broker, orders: list[OrderPlaced], clock: Clock) -> Watch:
    """Place the orders, and meanwhile kill a service and start it again. Return when every order has its outcome."""
    await broker.ensure_topics([find_library(ROOT).topics[topic] for topic in TOPICS])
    progress, began_s = Progress(len(orders), clock), clock.monotonic_s()
    accident, silence = Accident(fleet, progress, clock), Silence(fleet, progress, orders[0].order_id)
    news: str | None = None
    stillness = Stillness(clock, STILL_S_MAX + (fleet.patience_s or 0))
    async with Watch().on(broker) as watch, Client(fleet.broker) as client:
        while watch.count < len(orders):
            while (
                progress.placed < min(len(orders), ORDERS_PER_S * (clock.monotonic_s() - began_s))
                and progress.placed - watch.count < UNDER_WAY_MAX
            ):
                batch = orders[progress.placed : progress.placed + BATCH]
                await client.publish(*batch)
                progress.placed += len(batch)
            await watch.look(LOOK_S)
            progress.show(watch)
            if news is None and (news := page.news()) is not None:
                progress.print(printable(news))
            accident.happen(watch.count / len(orders))
            silence.end_if_expired(watch)
            fleet.check()
            if stillness.look(watch.count, watch.records):
                progress.print(watch.waits_for(order.order_id for order in orders[: progress.placed]))
    progress.show(watch, last=True)
    return watch


async def _all_settled(fleet: Fleet, orders: list[OrderPlaced], clock: Clock) -> None:
    """Wait until all services have done what the outcomes of all orders require."""
    ids, stillness = [order.order_id for order in orders], Stillness(clock, STILL_S_MAX)
    while left := await unsettled(fleet.folder, ids, clock):
        fleet.check()
        count = sum(map(len, left.values()))
        if stillness.look(-count, -count):
            where = "; ".join(f"{len(of)} in {service}, {of[0]} for one" for service, of in left.items())
            click.echo(f"waiting until all orders are carried out or undone: {where}")
        await clock.sleep(LOOK_S)


async def _compare(orders: list[OrderPlaced], one: str) -> bool:
    """Print the outcomes, the result of the audit, and commands for a closer look. Return whether the books differ."""
    books = await read_books(FOLDER, frozenset(order.order_id for order in orders))
    checks = audit(books)
    click.echo("\n".join(map(printable, [*table(outcomes(books)), "", *report(checks), ""])))
    saga = _shown(Path(sys.executable).with_name("saga"))
    stores = f"SAGA_STORE='sqlite:///{FOLDER}/{{service}}.db'"
    click.echo("To look further:")
    click.echo(f"  {stores} {saga} sagas show {one}")
    click.echo(f"  {stores} {saga} sagas list")
    click.echo(f"  {stores} {saga} sagas verify")
    click.echo("To look at all of them in a browser, until Ctrl-C:")
    click.echo(f"  SAGA_BROKER='embedded:///{FOLDER}/broker.db' {stores} {saga} monitor run")
    return any(check.differences for check in checks)


def read_orders(file: Path) -> Iterator[OrderPlaced]:
    """Yield the orders in a file with one JSON object per line. Raises `SagaError` that names the wrong field."""
    for line in file.read_text("utf-8").splitlines():
        order = from_json(json.loads(line), OrderPlaced)
        assert isinstance(order, OrderPlaced)
        yield order


def _shown(path: Path) -> Path:
    """Return the path for messages: relative to the current folder if it is inside."""
    with suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path


class Stillness:
    """Detector of a wait without progress. It says when to print what the demonstration waits for, and gives up after
    `limit_s`."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock, self._limit_s = clock, limit_s
        self._ended = self._moved = -1 << 60
        self._ended_s = self._moved_s = clock.monotonic_s()

    def look(self, ended: int, moved: int) -> bool:
        """Return whether to print what the demonstration waits for. Raises `Fallen` if there was no progress for too
        long.

        `ended` and `moved`: counts that grow with each order that ends, and with any progress.
        """
        now_s = self._clock.monotonic_s()
        if moved > self._moved:
            self._moved, self._moved_s = moved, now_s
        if ended > self._ended:
            self._ended, self._ended_s = ended, now_s
        if now_s - self._moved_s > self._limit_s:
            raise Fallen(f"nothing has moved for {self._limit_s:.0f} s; the logs of the services say why")
        if now_s - self._ended_s < TELL_S:
            return False
        self._ended_s = now_s
        return True


class Accident:
    """Kills a service once, and later starts it again."""

    def __init__(self, fleet: Fleet, progress: "Progress", clock: Clock) -> None:
        self._fleet, self._progress, self._clock = fleet, progress, clock
        self._killed_s: float | None = None
        self._over = False

    def happen(self, ended: float) -> None:
        """Kill the service, or start it again, if it is time for that. `ended`: share of the orders that have ended."""
        now_s = self._clock.monotonic_s()
        if self._killed_s is None and ended >= KILL_AFTER:
            self._killed_s = now_s
            self._progress.print(f"kill -9 {self._fleet.kill(VICTIM)}: {VICTIM} is dead, customers go on ordering")
        elif self._killed_s is not None and not self._over and now_s >= self._killed_s + DEAD_S:
            self._over = True
            self._progress.print(f"{VICTIM} is started again, as process {self._fleet.start(VICTIM)}")


class Silence:
    """The card issuer that does not answer. It answers again when the order that waits for it has expired."""

    def __init__(self, fleet: Fleet, progress: "Progress", order_id: str) -> None:
        self._fleet, self._progress, self._order_id = fleet, progress, order_id

    def end_if_expired(self, watch: Watch) -> None:
        """Make the issuer answer again once the order has ended without its answer. Payment then undoes what it did."""
        if self._order_id in watch.ended[CANCELLED] and self._fleet.silence.exists():
            self._fleet.silence.unlink()
            self._progress.print(
                f"{self._order_id} has expired: nobody answered in time; from now on the issuer answers, and payment "
                "lets the money go"
            )


class Progress:
    """Progress display: on a terminal one line that is rewritten, elsewhere a new line for each tenth of the orders."""

    def __init__(self, total: int, clock: Clock) -> None:
        self.placed = 0
        self._total, self._clock, self._began_s = total, clock, clock.monotonic_s()
        self._tenths = 0

    def show(self, watch: Watch, *, last: bool = False) -> None:
        """Show how many orders are placed, confirmed, cancelled and in flight."""
        tenths = watch.count * 10 // self._total
        if not ON_TERMINAL and tenths == self._tenths:
            return
        self._tenths = tenths
        confirmed, cancelled = (len(watch.ended[outcome]) for outcome in (CONFIRMED, CANCELLED))
        line = (
            f"{self._seconds()} {self.placed:>4} placed  {confirmed:>4} confirmed  {cancelled:>4} cancelled  "
            f"{self.placed - watch.count:>4} under way"
        )
        click.echo(f"\r\033[K{line}" if ON_TERMINAL else line, nl=last or not ON_TERMINAL)

    def print(self, what: str) -> None:
        """Print a line that the progress line does not overwrite."""
        click.echo(f"{chr(13)}\033[K{self._seconds()} {what}" if ON_TERMINAL else f"{self._seconds()} {what}")

    def _seconds(self) -> str:
        return f"{self._clock.monotonic_s() - self._began_s:5.1f} s"


if __name__ == "__main__":
    main()
