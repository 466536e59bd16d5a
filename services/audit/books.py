"""Read the books of a run: what each service stores about each order, the stock, and the ledgers of the bank and the
carrier."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from saga import Event
from saga.configuration import adapters
from saga.configuration.settings import Settings
from saga.contracts.codec import decode as decode_event
from saga.contracts.library import Library, find_library
from saga.messages import name_of
from saga.ops.histories import SagaHistory, read_histories, read_history
from saga.ops.sources import ServiceStore
from saga.progress.document import Transition
from saga.store.port import Store
from saga.support.clock import SystemClock
from services import ledger
from services.audit.checks import Booking, Books, Charge, Ending, Goods, Order, Shelf
from services.inventory.events import InventoryHandedOut, InventoryPutBack, InventoryReserved
from services.inventory.items import items
from services.inventory.stock import Stock
from services.order import expire
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment.events import PaymentReserved
from services.shipping.events import ShipmentBooked

E = TypeVar("E", bound=Event)

SERVICES = ("order", "payment", "inventory", "shipping")

StoreOf: TypeAlias = Callable[[str], AbstractAsyncContextManager[Store]]
"""Function that takes the name of a service and returns its store, not yet opened."""


@dataclass(frozen=True, kw_only=True)
class Sources:
    """All data of a run, as read from the stores and ledgers. `assemble` arranges them by order."""

    kept: Mapping[str, Mapping[str, SagaHistory]]
    """Progress and journal of each order, by service and order."""
    stock: Mapping[str, Stock]
    bank: Iterable[ledger.Row]
    carrier: Iterable[ledger.Row]
    seeded: Mapping[str, int]
    """Initial stock of each article."""


async def read_books(folder: Path, expected: frozenset[str] = frozenset()) -> Books:
    """Read all books of a run from one folder: `<service>.db` for each service, `bank.db` and `carrier.db`.

    `expected`: orders that must be in the books. Raises `SagaError` or `FileNotFoundError` if something cannot be read.
    """

    def store_of(service: str) -> Store:
        path = folder / f"{service}.db"
        if not path.is_file():
            raise FileNotFoundError(f"there is no store {path}: run the services first, or name another folder")
        return adapters.store_at(Settings(store=f"sqlite:///{path}"), service, SystemClock(), readonly=True)

    return await read_books_at(store_of, folder, expected)


async def read_books_at(
    store_of: StoreOf, ledgers: Path, expected: frozenset[str] = frozenset(), *, by_key: bool = False
) -> Books:
    """Read all books of a run whose stores are not in one folder. `ledgers` is the folder of `bank.db` and
    `carrier.db`.

    `by_key`: true if the stores cannot list their documents. Then only the `expected` orders are read.
    """
    kept: dict[str, Mapping[str, SagaHistory]] = {}
    stock: dict[str, Stock] = {}
    for service in SERVICES:
        async with store_of(service) as store:
            source = ServiceStore(service, store)
            kept[service] = await (orders_of(source, expected) if by_key else all_orders(source))
            if service == "inventory":
                stock = await _stock_by_key(store) if by_key else await _stock(store)
    sources = Sources(
        kept=kept,
        stock=stock,
        bank=ledger.read(ledgers / "bank.db"),
        carrier=ledger.read(ledgers / "carrier.db"),
        seeded={item.sku: item.left for item in items()},
    )
    return assemble(sources, find_library(Path(__file__).parent), expected)


async def all_orders(source: ServiceStore) -> dict[str, SagaHistory]:
    """Return all orders that a service stores, by order id."""
    return {history.progress.saga: history async for history in read_histories(source)}


async def orders_of(source: ServiceStore, orders: Iterable[str]) -> dict[str, SagaHistory]:
    """Return those of the given orders that a service stores, by order id. Each is read by its key."""
    found = {id_: await read_history(source, id_) for id_ in orders}
    return {id_: history for id_, history in found.items() if history is not None}


def assemble(sources: Sources, library: Library, expected: frozenset[str] = frozenset()) -> Books:
    """Arrange the data by order: each order gets the charges, bookings and goods that its events name. Charges and
    bookings that no event names become `strays`."""
    charges, bookings = _charges(sources.bank), _bookings(sources.carrier)
    orders = {
        id_: _order(id_, {s: sources.kept[s][id_] for s in SERVICES if id_ in sources.kept[s]}, library)
        for id_ in sorted({id_ for kept in sources.kept.values() for id_ in kept})
    }
    strays = [f"charge {id_}: no order knows it" for id_ in charges.keys() - _ids(o.charges for o in orders.values())]
    strays += [
        f"booking {id_}: no order knows it" for id_ in bookings.keys() - _ids(o.bookings for o in orders.values())
    ]
    return Books(
        orders={
            id_: replace(
                order,
                charges=tuple(charges[charge.id] for charge in order.charges if charge.id in charges),
                bookings=tuple(bookings[booking.id] for booking in order.bookings if booking.id in bookings),
            )
            for id_, order in orders.items()
        },
        shelves=[_shelf(sku, sources) for sku in sorted(sources.seeded.keys() | sources.stock.keys())],
        strays=sorted(strays),
        expected=expected,
    )


def _order(id_: str, kept: Mapping[str, SagaHistory], library: Library) -> Order:
    """Return one order, reconstructed from its events.

    Its charges and bookings have only the fields that occur in events. `assemble` replaces them with those of the
    ledgers.
    """

    entries = {service: history.entries for service, history in kept.items()}

    def find_emitted(service: str, event: type[E]) -> list[tuple[Transition, E]]:
        return [
            (entry, _event(emitted.value, event, library))
            for entry in entries.get(service, ())
            for emitted in entry.events
            if emitted.type == name_of(event)
        ]

    def goods(event: type[InventoryReserved] | type[InventoryHandedOut] | type[InventoryPutBack]) -> tuple[Goods, ...]:
        return tuple(
            Goods(sku=e.sku, quantity=e.quantity, time=entry.time) for entry, e in find_emitted("inventory", event)
        )

    reserved = [event for _, event in find_emitted("payment", PaymentReserved)]
    endings = [
        Ending(confirmed=isinstance(event, OrderConfirmed), because=_because(entry), time=entry.time)
        for entry, event in [*find_emitted("order", OrderConfirmed), *find_emitted("order", OrderCancelled)]
    ]
    return Order(
        id=id_,
        endings=tuple(endings),
        reserved=tuple(event.amount for event in reserved),
        charges=tuple(Charge(id=event.charge_id, amount=event.amount) for event in reserved),
        bookings=tuple(Booking(id=event.booking_id) for _, event in find_emitted("shipping", ShipmentBooked)),
        set_aside=goods(InventoryReserved),
        handed_out=goods(InventoryHandedOut),
        put_back=goods(InventoryPutBack),
        open_in=tuple(service for service in kept if kept[service].progress.is_open),
    )


def _because(entry: Transition) -> str:
    """Return why an order ended: the type of the event that decided, or `expired`."""
    return "expired" if entry.handler == expire.__name__ else entry.type


def _event(value: bytes, event: type[E], library: Library) -> E:
    decoded = decode_event(value, event, library)
    assert isinstance(decoded, event)
    return decoded


def _charges(rows: Iterable[ledger.Row]) -> dict[str, Charge]:
    charges: dict[str, Charge] = {}
    for row in rows:
        if row.answer.refused:
            continue
        operation, id_, arguments = row.call
        if operation == "reserve":
            charges[id_] = Charge(id=id_, amount=Decimal(arguments[1]))
        elif operation == "capture":
            charges[id_] = replace(charges[id_], captured=(*charges[id_].captured, row.time))
        else:
            charges[id_] = replace(charges[id_], released=(*charges[id_].released, row.time))
    return charges


def _bookings(rows: Iterable[ledger.Row]) -> dict[str, Booking]:
    bookings: dict[str, Booking] = {}
    for row in rows:
        if row.answer.refused:
            continue
        operation, id_, _ = row.call
        if operation == "book":
            bookings[id_] = Booking(id=id_)
        elif operation == "dispatch":
            bookings[id_] = replace(bookings[id_], dispatched=(*bookings[id_].dispatched, row.time))
        else:
            bookings[id_] = replace(bookings[id_], unbooked=(*bookings[id_].unbooked, row.time))
    return bookings


def _ids(several: Iterable[Iterable[Charge | Booking]]) -> set[str]:
    return {each.id for some in several for each in some}


def _shelf(sku: str, sources: Sources) -> Shelf:
    there = sources.stock.get(sku, Stock(left=0))
    return Shelf(sku=sku, seeded=sources.seeded.get(sku, 0), left=there.left, aside=there.aside)


async def _stock(store: Store) -> dict[str, Stock]:
    return {key: _decoded(document.content) async for key, document in store.scan("stock")}


async def _stock_by_key(store: Store) -> dict[str, Stock]:
    """Return the current stock of the articles that existed at the start."""
    found = {item.sku: await store.get("stock", item.sku) for item in items()}
    return {sku: _decoded(document.content) for sku, document in found.items() if document is not None}


def _decoded(content: bytes) -> Stock:
    return msgspec.json.decode(content, type=Stock)
