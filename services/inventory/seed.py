"""Put the articles of `items.json` into the store of inventory: `python -m services.inventory.seed`.

Articles that are already there are not changed, so the command can be repeated at any time.
"""

import asyncio

import click
import msgspec

from saga import SagaError
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.errors import Exists
from saga.store.port import Store
from saga.support.clock import SystemClock
from services.inventory.items import items
from services.inventory.stock import Stock


async def seed(store: Store) -> int:
    """Put the articles into the store. Return the number of new documents."""
    new = 0
    for item in items():
        try:
            await store.insert("stock", item.sku, msgspec.json.encode(Stock(left=item.left)))
        except Exists:
            continue
        new += 1
    return new


@click.command()
@click.option("--store", metavar="URL", help="The store of inventory. Without it: SAGA_STORE, as for the service.")
def main(store: str | None) -> None:
    """Put the articles of the shop into the store of inventory. Articles that are already there are not changed."""
    try:
        settings = Settings.from_environment(store=store)
        new = asyncio.run(_seed(settings))
    except SagaError as why:
        raise click.UsageError(str(why)) from why
    click.echo(f"{new} articles put into {settings.store}, {len(items()) - new} were there")


async def _seed(settings: Settings) -> int:
    async with wiring.open_store("inventory", SystemClock(), settings) as store:
        return await seed(store)


if __name__ == "__main__":
    main()
