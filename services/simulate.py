"""Run the order choreography in simulated worlds with faults of every kind: `make simulate SEEDS=10000`.

Each world has four orders for the same goods: two that may succeed, one whose card is declined, and one that cannot be
delivered. There are too few goods to set aside for all four at once. Whatever happens, the books must balance.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import click

from saga.testing import World, faults
from saga.testing.decorators import Seeds
from saga.testing.simulation.reports import report
from saga.testing.simulation.runs import RunOptions, Tally, run_all
from services.inventory import inventory
from services.inventory.stock import Stock
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed, OrderPlaced
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier

FIGURES = Path("build/figures/simulate.jsonl")
LEFT = 5
BATCH = 50
"""Number of seeds that one process takes at a time."""


def an_order(id_: str, card: str = "4242", address: str = "Kiel") -> OrderPlaced:
    return OrderPlaced(
        order_id=id_, customer_id="c-1", sku="tea", quantity=2, total=Decimal("9.80"), card=card, address=address
    )


def books_balance(world: World) -> None:
    """Run four orders to their end. Raises `AssertionError` if the books do not balance."""
    bank, carrier = Bank(), Carrier()
    world.start(order, payment, inventory, shipping, use=[bank, carrier], documents={"tea": Stock(left=LEFT)})
    orders = [an_order("o-1"), an_order("o-2", card="declined-1"), an_order("o-3", address="Atlantis"), an_order("o-4")]
    world.publish(*orders)
    world.run_until_quiet()
    outcomes = [world.outcome(placed.order_id) for placed in orders]
    assert all(outcome in (OrderConfirmed, OrderCancelled) for outcome in outcomes), f"not ended: {outcomes}"
    confirmed = outcomes.count(OrderConfirmed)
    assert outcomes[1:3] == [OrderCancelled, OrderCancelled], f"confirmed in spite of a refusal: {outcomes}"
    stock = world.read(inventory, Stock, "tea")
    assert stock == Stock(left=LEFT - 2 * confirmed), f"{confirmed} confirmed, but {stock}"
    assert not bank.held, f"money stays set aside: {bank.held}"
    assert len(bank.taken) == confirmed, f"{confirmed} confirmed, money taken: {bank.taken}"
    assert not carrier.booked, f"bookings stay: {carrier.booked}"
    assert len(carrier.dispatched) == confirmed, f"{confirmed} confirmed, sent: {carrier.dispatched}"


class Batch(NamedTuple):
    """Results of the runs of some seeds."""

    runs: int
    sagas: int
    faults: Counter[str]
    dead: int
    cpu_s: float
    failure: str
    """Report of the first seed that failed; empty if none failed."""


def simulated(seeds: Sequence[int]) -> Batch:
    """Run these seeds in this process, and return the results."""
    began, tally, mode = process_time(), Tally(), Seeds(1, faults.everything())
    failed = run_all(books_balance, mode, tally, RunOptions(), seeds=seeds)
    failure = "" if failed is None else report(failed, "books_balance")
    return Batch(tally.runs, tally.events, tally.faults, tally.dead.total(), process_time() - began, failure)


@click.command()
@click.option("--seeds", default=1000, show_default=True, help="How many worlds.")
@click.option("--first", default=0, show_default=True, help="The first seed.")
@click.option("--processes", default=os.cpu_count() or 1, show_default=True, help="How many work side by side.")
def main(seeds: int, first: int, processes: int) -> None:
    """Simulate the order choreography under many seeds, with all faults but poison and newer schemas."""
    began, planted = perf_counter(), Counter[str]()
    done: list[Batch] = []
    batches = [range(at, min(at + BATCH, first + seeds)) for at in range(first, first + seeds, BATCH)]
    with ProcessPoolExecutor(processes) as pool:
        for batch in pool.map(simulated, batches):
            done.append(batch)
            planted += batch.faults
            if batch.failure:
                click.echo(batch.failure)
                pool.shutdown(cancel_futures=True)
                sys.exit(1)
    sagas, cpu_s = sum(batch.sagas for batch in done), sum(batch.cpu_s for batch in done)
    figures = {
        "seeds": sum(batch.runs for batch in done),
        "sagas": sagas,
        "sagas_per_second_and_core": round(sagas / cpu_s),
        "seconds": round(perf_counter() - began, 1),
        "processes": processes,
        "dead_letters": sum(batch.dead for batch in done),
        "faults": dict(sorted(planted.items())),
    }
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    with FIGURES.open("a") as file:
        file.write(json.dumps(figures) + "\n")
    click.echo(f"{figures['sagas']:,} sagas in {figures['seeds']:,} worlds, {planted.total():,} faults, no book off")
    for kind, count in sorted(planted.items()):
        click.echo(f"  {kind:<14}{count:>9,}")
    click.echo(f"{figures['sagas_per_second_and_core']} sagas/s on each of {processes} cores, {figures['seconds']} s")


if __name__ == "__main__":
    main()
