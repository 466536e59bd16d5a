"""Check that all books agree. The functions are pure: they take plain records, and return the differences, order by
order."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal


@dataclass(frozen=True, kw_only=True)
class Ending:
    """An outcome that the order service published."""

    confirmed: bool
    because: str
    """Type of the event that decided; `expired` if no event decided in time."""
    time: str
    """Time of the outcome. All times in this module are RFC 3339 in UTC, in milliseconds, so they can be compared as
    text."""


@dataclass(frozen=True, kw_only=True)
class Charge:
    """An amount that the bank set aside, and what happened to it."""

    id: str
    amount: Decimal
    captured: tuple[str, ...] = ()
    """Times at which the amount was captured. There should be at most one."""
    released: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Booking:
    """A booking at the carrier, and what happened to it."""

    id: str
    dispatched: tuple[str, ...] = ()
    unbooked: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Goods:
    """Goods that inventory set aside, handed out or put back, according to one of its events."""

    sku: str
    quantity: int
    time: str


@dataclass(frozen=True, kw_only=True)
class Order:
    """Everything that the books contain about one order."""

    id: str
    endings: tuple[Ending, ...] = ()
    reserved: tuple[Decimal, ...] = ()
    """Amounts that payment reported as set aside."""
    charges: tuple[Charge, ...] = ()
    bookings: tuple[Booking, ...] = ()
    set_aside: tuple[Goods, ...] = ()
    handed_out: tuple[Goods, ...] = ()
    put_back: tuple[Goods, ...] = ()
    open_in: tuple[str, ...] = ()
    """Services in which the order has open work or waits for an operator."""

    @property
    def confirmed(self) -> bool | None:
        """True if the order was confirmed, false if it was cancelled; `None` if it has no outcome, or both."""
        outcomes = {ending.confirmed for ending in self.endings}
        return outcomes.pop() if len(outcomes) == 1 else None


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """An article: its initial and its current stock."""

    sku: str
    seeded: int
    left: int
    aside: int


@dataclass(frozen=True, kw_only=True)
class Books:
    """The data of all services, the bank and the carrier, arranged by order."""

    orders: Mapping[str, Order]
    shelves: Sequence[Shelf] = ()
    strays: Sequence[str] = ()
    """Charges and bookings that no order names, each described in a sentence."""
    expected: frozenset[str] = field(default_factory=frozenset)
    """Orders that must be in the books."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Result of one check: its figures and all differences."""

    name: str
    figures: str
    differences: tuple[str, ...]
    """Differences, one sentence each. Each begins with the id of the order or of the article."""


def audit(books: Books) -> list[Check]:
    """Return the results of all checks, the most important ones first."""
    checks = (ends, money, stock, carried_out, undone, order_of_events, once, rest)
    return [check(books) for check in checks]


def outcomes(books: Books) -> dict[str, int]:
    """Return the number of orders for each outcome, most frequent first."""
    names = Counter(_ending_in_words(order) for order in books.orders.values())
    return dict(names.most_common())


def ends(books: Books) -> Check:
    """Check that every order ended exactly once."""
    differences = [f"{id_}: no service knows it" for id_ in sorted(books.expected - books.orders.keys())]
    for order in _sorted(books):
        if len(order.endings) != 1:
            outcomes = ", ".join("confirmed" if e.confirmed else "cancelled" for e in order.endings) or "not at all"
            differences.append(f"{order.id}: ended {len(order.endings)} times: {outcomes}")
    confirmed = sum(order.confirmed is True for order in books.orders.values())
    cancelled = sum(order.confirmed is False for order in books.orders.values())
    figures = f"{len(books.orders)} orders = {confirmed} confirmed + {cancelled} cancelled"
    return Check(name="every order ended once", figures=figures, differences=tuple(differences))


def money(books: Books) -> Check:
    """Check that all money that was set aside was either captured or released, once, and that its amount is the one
    that payment reported."""
    aside = captured = released = Decimal("0.00")
    differences: list[str] = []
    for order in _sorted(books):
        for charge in order.charges:
            aside += charge.amount
            captured += charge.amount * len(charge.captured)
            released += charge.amount * len(charge.released)
            if not charge.captured and not charge.released:
                differences.append(f"{order.id}: {charge.amount} is still set aside (charge {charge.id})")
            elif len(charge.captured) + len(charge.released) > 1:
                differences.append(
                    f"{order.id}: charge {charge.id} was captured {len(charge.captured)} times "
                    f"and released {len(charge.released)} times"
                )
        reserved, held = sum(order.reserved, Decimal()), sum((c.amount for c in order.charges), Decimal())
        if reserved != held:
            differences.append(f"{order.id}: payment says {reserved} was set aside, the bank says {held}")
    figures = f"{aside} set aside = {captured} captured + {released} released"
    return Check(name="the money balances", figures=figures, differences=tuple(differences))


def stock(books: Books) -> Check:
    """Check that all goods were handed out or are still in stock, and that none are set aside any more."""
    out: Counter[str] = Counter()
    for order in books.orders.values():
        for goods in order.handed_out:
            out[goods.sku] += goods.quantity
    shelves = sorted(books.shelves, key=lambda shelf: shelf.sku)
    differences = [
        f"{s.sku}: {s.seeded} at first, {out[s.sku]} handed out, {s.left} left, {s.aside} set aside"
        for s in shelves
        if s.seeded != s.left + out[s.sku] or s.aside
    ]
    known = {shelf.sku for shelf in shelves}
    differences += [f"{sku}: handed out, and on no shelf" for sku in sorted(out.keys() - known)]
    seeded, left = sum(shelf.seeded for shelf in books.shelves), sum(shelf.left for shelf in books.shelves)
    figures = f"{seeded} articles = {out.total()} handed out + {left} left"
    return Check(name="the stock balances", figures=figures, differences=tuple(differences))


def carried_out(books: Books) -> Check:
    """Check that every confirmed order was paid, handed out and dispatched."""
    differences: list[str] = []
    count = 0
    for order in _sorted(books):
        if order.confirmed is not True:
            continue
        count += 1
        missing = [
            what
            for what, done in (
                ("paid", any(charge.captured for charge in order.charges)),
                ("handed out", _amounts(order.handed_out) == _amounts(order.set_aside) != Counter()),
                ("dispatched", any(booking.dispatched for booking in order.bookings)),
            )
            if not done
        ]
        if missing:
            differences.append(f"{order.id}: confirmed, and not {' and not '.join(missing)}")
    figures = f"{count} orders paid, handed out and dispatched"
    return Check(name="confirmed orders are carried out", figures=figures, differences=tuple(differences))


def undone(books: Books) -> Check:
    """Check that cancelled orders have left no charge, no booking, and no goods set aside."""
    differences: list[str] = []
    count = effects = 0
    for order in _sorted(books):
        if order.confirmed is not False:
            continue
        count += 1
        effects += len(order.charges) + len(order.bookings) + len(order.set_aside)
        standing = [f"charge {c.id}" for c in order.charges if c.captured or not c.released]
        standing += [f"booking {b.id}" for b in order.bookings if b.dispatched or not b.unbooked]
        if _amounts(order.put_back) != _amounts(order.set_aside) or order.handed_out:
            standing.append(f"goods: {_in_words(order)}")
        if standing:
            differences.append(f"{order.id}: cancelled, and there stands {'; '.join(standing)}")
    figures = f"{count} orders, {effects} effects taken back"
    return Check(name="cancelled orders are undone", figures=figures, differences=tuple(differences))


def order_of_events(books: Books) -> Check:
    """Check that nothing irreversible happened before its order was confirmed."""
    differences: list[str] = []
    count = 0
    for order in _sorted(books):
        confirmed = min((ending.time for ending in order.endings if ending.confirmed), default=None)
        for what, time in _irreversible(order):
            count += 1
            if confirmed is None:
                differences.append(f"{order.id}: {what} at {time}, and never confirmed")
            elif time < confirmed:
                differences.append(f"{order.id}: {what} at {time}, confirmed only at {confirmed}")
    figures = f"{count} captures, hand-outs and dispatches, each after its confirmation"
    return Check(name="nothing irreversible came early", figures=figures, differences=tuple(differences))


def once(books: Books) -> Check:
    """Check that each effect happened once, and that every charge and booking belongs to an order."""
    differences, count = list(books.strays), 0
    for order in _sorted(books):
        effects = (
            ("charged", len(order.charges)),
            ("captured", sum(len(charge.captured) for charge in order.charges)),
            ("released", sum(len(charge.released) for charge in order.charges)),
            ("booked", len(order.bookings)),
            ("dispatched", sum(len(booking.dispatched) for booking in order.bookings)),
            ("unbooked", sum(len(booking.unbooked) for booking in order.bookings)),
            ("set aside", len(order.set_aside)),
            ("handed out", len(order.handed_out)),
            ("put back", len(order.put_back)),
        )
        count += sum(times for _, times in effects)
        differences += [f"{order.id}: {what} {times} times" for what, times in effects if times > 1]
    return Check(name="every effect happened once", figures=f"{count} effects", differences=tuple(differences))


def rest(books: Books) -> Check:
    """Check that no order has open work or waits for an operator."""
    differences = [f"{o.id}: not at rest in {', '.join(o.open_in)}" for o in _sorted(books) if o.open_in]
    figures = f"{len(books.orders) - len(differences)} of {len(books.orders)} orders at rest in all services"
    return Check(name="nothing is left to do", figures=figures, differences=tuple(differences))


def _sorted(books: Books) -> list[Order]:
    return [books.orders[id_] for id_ in sorted(books.orders)]


def _irreversible(order: Order) -> Iterator[tuple[str, str]]:
    for charge in order.charges:
        yield from (("captured", time) for time in charge.captured)
    for booking in order.bookings:
        yield from (("dispatched", time) for time in booking.dispatched)
    yield from (("handed out", goods.time) for goods in order.handed_out)


def _amounts(several: Sequence[Goods]) -> Counter[str]:
    amounts: Counter[str] = Counter()
    for goods in several:
        amounts[goods.sku] += goods.quantity
    return amounts


def _in_words(order: Order) -> str:
    of = {"set aside": order.set_aside, "put back": order.put_back, "handed out": order.handed_out}
    return ", ".join(f"{_amounts(goods).total()} {what}" for what, goods in of.items())


def _ending_in_words(order: Order) -> str:
    if order.confirmed is None:
        return "not ended" if not order.endings else "ended in two ways"
    return "confirmed" if order.confirmed else f"cancelled: {order.endings[0].because}"
