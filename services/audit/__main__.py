"""Print the audit of a run, and exit with 1 if the books differ: `python -m services.audit --dir .saga/demo`.

If the services have other stores, give them with `--store couchbase://host/bucket/{service}`, and with `--dir` the
folder of the ledgers of bank and carrier.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click
import msgspec

from saga import SagaError
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.store.port import Store
from saga.support.clock import SystemClock
from saga.support.printable import printable
from services.audit.books import read_books, read_books_at
from services.audit.checks import Books, Check, audit, outcomes

SHOWN_MAX = 20
"""Largest number of differences that are printed for one check. `--json` prints all."""


@click.command()
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=Path(".saga/demo"), show_default=True,
              help="Where the stores of the four services and the two ledgers are.")  # fmt: skip
@click.option("--store", metavar="URL", help="Where the stores are instead; {service} in it stands for each service.")
@click.option("--by-key", is_flag=True, help="The stores cannot list what they have: look at the --orders alone.")
@click.option("--orders", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Lines of JSON: each `order_id` in there must be in the books.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with all differences.")
def main(folder: Path, store: str | None, by_key: bool, orders: Path | None, as_json: bool) -> None:
    """Compare the books of all services, the bank and the carrier, order by order.

    Exits with 0 if they agree, with 1 if they differ, with 2 if they cannot be read.
    """
    if by_key and not (orders and store):
        raise click.UsageError("--by-key needs --store, and --orders that say which keys there are")
    expected = frozenset(_order_ids(orders) if orders else ())
    try:
        books = asyncio.run(_books_at(store, folder, expected, by_key) if store else read_books(folder, expected))
    except (SagaError, FileNotFoundError) as why:
        raise click.UsageError(str(why)) from why
    checks, ended = audit(books), outcomes(books)
    if as_json:
        balanced = not any(check.differences for check in checks)
        click.echo(json.dumps({"balanced": balanced, "outcomes": ended, "checks": [asdict(c) for c in checks]}))
    else:
        click.echo("\n".join(map(printable, [*table(ended), "", *report(checks)])))
    if any(check.differences for check in checks):
        raise SystemExit(1)


async def _books_at(address: str, ledgers: Path, expected: frozenset[str], by_key: bool) -> Books:
    clock = SystemClock()

    def store_of(service: str) -> Store:
        settings = Settings.from_environment(store=address.replace("{service}", service))
        return adapters.store_at(settings, service, clock, readonly=True)

    return await read_books_at(store_of, ledgers, expected, by_key=by_key)


def table(ended: dict[str, int]) -> list[str]:
    """Return the table of outcomes as lines."""
    width = max(map(len, ended), default=0)
    return [f"{outcome:<{width}}  {count:>6}" for outcome, count in ended.items()]


def report(checks: Sequence[Check]) -> list[str]:
    """Return the report of the checks: one line for each check, followed by its differences."""
    width = max(len(check.name) for check in checks)
    lines: list[str] = []
    for check in checks:
        lines.append(f"{'DIFFERS' if check.differences else 'ok':<7}  {check.name:<{width}}  {check.figures}")
        lines += [f"         - {difference}" for difference in check.differences[:SHOWN_MAX]]
        if len(check.differences) > SHOWN_MAX:
            lines.append(f"         - and {len(check.differences) - SHOWN_MAX} more: --json shows all")
    return lines


def _order_ids(file: Path) -> Iterator[str]:
    for number, line in enumerate(file.read_text("utf-8").splitlines(), start=1):
        try:
            yield msgspec.json.decode(line, type=_Placed).order_id
        except msgspec.DecodeError as why:
            raise click.BadParameter(f"{file}, line {number}: {why}", param_hint="--orders") from why


class _Placed(msgspec.Struct):
    order_id: str


if __name__ == "__main__":
    main()
