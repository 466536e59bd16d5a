"""Puts the articles of `items.json` into inventory's store: `python -m services.inventory.seed`.

What is there already stays as it is, so it may run again at any time.
"""

import asyncio
from pathlib import Path

import click
import msgspec

from saga import SagaError
from saga.clock import SystemClock
from saga.errors import Exists
from saga.store.port import Store
from saga.store.sqlite import SqliteStore
from services.inventory.items import items
from services.inventory.stock import Stock

SCHEME = "sqlite:///"


async def seed(store: Store) -> int:
    """How many documents are new."""
    new = 0
    for item in items():
        try:
            await store.insert("stock", item.sku, msgspec.json.encode(Stock(left=item.left)))
        except Exists:
            continue
        new += 1
    return new


@click.command()
@click.option("--store", default=f"{SCHEME}.saga/inventory.db", show_default=True, help="The store of inventory.")
def main(store: str) -> None:
    """Put the articles of the shop into the store of inventory; those that are there already stay as they are."""
    if not store.startswith(SCHEME):
        raise click.BadParameter(f"{store!r} is no SQLite store: write {SCHEME}<file>", param_hint="--store")
    try:
        new = asyncio.run(_seed_file(Path(store.removeprefix(SCHEME))))
    except SagaError as why:
        raise click.ClickException(str(why)) from why
    click.echo(f"{new} articles put into {store}, {len(items()) - new} were there")


async def _seed_file(path: Path) -> int:
    async with SqliteStore(path, clock=SystemClock()) as store:
        return await seed(store)


if __name__ == "__main__":
    main()
