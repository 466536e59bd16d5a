"""A choreography that has what the orders lack: many results of one handler, state, several steps, chains of own parts,
events of one type with other content, two kinds of failure, a success and a failure at the same time.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Self

from saga import Retry, Saga, Service
from tests.mutants.events import (
    Baked,
    DoorsOpened,
    FlourPutBack,
    GuestInvited,
    HallFreed,
    HallRented,
    HallTaken,
    KitchenClosed,
    Kneaded,
    MealReady,
    MenuChosen,
    NoteLeft,
    PartyCalledOff,
    PartyHeld,
    PartyPlanned,
    PartyWithdrawn,
    Poured,
    Seated,
    Sliced,
    Tasted,
    Unseated,
)
from tests.mutants.fake_rooms import Rooms, Taken

# -------------------------------------------------------------------- the host decides

host = Service("host")


@host.resource(timeout_s=5)
async def desk() -> AsyncIterator[Rooms]:
    yield Rooms()


@host.handler
async def invite(planned: PartyPlanned) -> list[GuestInvited | NoteLeft | MenuChosen]:
    id_ = planned.party_id
    guests = [GuestInvited(party_id=id_, guest=n) for n in range(planned.guests)]
    notes = [NoteLeft(party_id=id_, number=n) for n in range(planned.notes)]
    menu = [MenuChosen(party_id=id_, dish=planned.menu)] if planned.menu else []
    return [*notes[: planned.notes // 2], *guests, *menu, *notes[planned.notes // 2 :]]


@host.handler
async def hold(rented: HallRented, meal: MealReady) -> PartyHeld:
    return PartyHeld(party_id=meal.party_id)


@host.handler
async def call_off(why: HallTaken | KitchenClosed | PartyWithdrawn, desk: Rooms, saga: Saga) -> PartyCalledOff:
    await saga.step(desk.announce, saga.idempotency_key("announce"), why.reason)
    return PartyCalledOff(party_id=why.party_id, reason=why.reason)


# -------------------------------------------------------------------- the hall: steps, state, many results


@dataclass(frozen=True, kw_only=True)
class Book:
    """State of the hall's saga: what it knows of a party."""

    notes: str = ""
    """Their numbers, in the order in which they came."""
    remark: str = ""
    places: str = ""
    """Notes that have a place in the hall: their numbers, in the order in which they came."""
    cards: str = ""
    taken: int = 0
    """Number of chairs that are rented."""
    freed: int = 0
    """Number of chairs that were given back."""
    sign: str = ""
    """For those who come all the same."""


hall = Service("hall", state=Book)


@hall.resource(timeout_s=5, expected_errors=(Taken,))
async def rooms() -> AsyncIterator[Rooms]:
    yield Rooms()


@hall.handler(retry=Retry(attempts_max=12))
async def rent(planned: PartyPlanned, rooms: Rooms, saga: Saga[Book]) -> HallRented | HallTaken:
    price = await saga.step(rooms.price, planned.hall)
    try:
        charge = await saga.step(
            rooms.rent, saga.idempotency_key("rent"), planned.hall, price, f"{saga.state.freed} free"
        )
    except Taken as why:
        return HallTaken(party_id=planned.party_id, reason=str(why))
    saga.state = replace(saga.state, remark=f"rented for {price}")
    return HallRented(party_id=planned.party_id, charge=charge)


@hall.handler(repeats=NoteLeft)
async def note(left: NoteLeft, saga: Saga[Book]) -> None:
    saga.state = replace(saga.state, notes=f"{saga.state.notes} {left.number}".lstrip())


@hall.handler(repeats=GuestInvited, retry=Retry(attempts_max=12))
async def seat(invited: GuestInvited, rooms: Rooms, saga: Saga[Book]) -> tuple[Seated, DoorsOpened]:
    chair = await saga.step(rooms.rent, saga.idempotency_key("chair"), f"chair {invited.guest}", 1, "")
    saga.state = replace(saga.state, taken=saga.state.taken + 1)
    return Seated(party_id=invited.party_id, chair=chair), DoorsOpened(party_id=invited.party_id)


@hall.handler(repeats=NoteLeft)
async def place(left: NoteLeft, rented: HallRented, saga: Saga[Book]) -> None:
    saga.state = replace(saga.state, places=f"{saga.state.places} {left.number}".lstrip())


@hall.handler(retry=Retry(attempts_max=12))
async def print_cards(menu: MenuChosen, rooms: Rooms, saga: Saga[Book]) -> None:
    price = await saga.step(rooms.price, "cards")
    await saga.step(
        rooms.announce, saga.idempotency_key("cards"), f"{menu.dish} for {price}, {saga.state.freed} are free"
    )
    saga.state = replace(saga.state, cards=menu.dish)


@hall.handler
async def put_up_a_sign(why: KitchenClosed | PartyWithdrawn, saga: Saga[Book]) -> None:
    saga.state = replace(saga.state, sign=why.reason)


@hall.compensation(rent)
async def free(called_off: PartyCalledOff, rented: HallRented, rooms: Rooms, saga: Saga[Book]) -> HallFreed:
    await saga.step(rooms.give_back, saga.idempotency_key("free"), rented.charge)
    return HallFreed(party_id=rented.party_id)


@hall.compensation(seat)
async def unseat(called_off: PartyCalledOff, seated: Seated, rooms: Rooms, saga: Saga[Book]) -> Unseated:
    await saga.step(rooms.give_back, saga.idempotency_key("unseat"), seated.chair)
    saga.state = replace(saga.state, taken=saga.state.taken - 1, freed=saga.state.freed + 1)
    return Unseated(party_id=seated.party_id)


# -------------------------------------------------------------------- the kitchen: documents, chains of own parts


class Empty(Exception):
    """Less flour is left than is needed."""


@dataclass(frozen=True, kw_only=True)
class Larder:
    flour: int
    used: int = 0
    drinks: int = 0

    def take(self, flour: int) -> Self:
        if flour > self.flour:
            raise Empty(f"{self.flour} left")
        return replace(self, flour=self.flour - flour, used=self.used + flour)

    def put_back(self, flour: int) -> Self:
        return replace(self, flour=self.flour + flour, used=self.used - flour)

    def pour(self) -> Self:
        return replace(self, drinks=self.drinks + 1)


@dataclass(frozen=True, kw_only=True)
class Pad:
    """Pad on which the cook writes down what the guests want: one for all parties."""

    lines: int = 0

    def write(self) -> Self:
        return replace(self, lines=self.lines + 1)


LARDER, PAD = "larder", "pad"
kitchen = Service("kitchen")
kitchen.document(Larder, "larders", expected_errors=(Empty,))
kitchen.document(Pad, "pads")


@kitchen.resource(timeout_s=5)
async def oven() -> AsyncIterator[Rooms]:
    yield Rooms()


@kitchen.handler
async def knead(planned: PartyPlanned, saga: Saga) -> Kneaded | KitchenClosed:
    try:
        await saga.update(Larder, LARDER, Larder.take, planned.flour)
    except Empty as why:
        return KitchenClosed(party_id=planned.party_id, reason=str(why))
    return Kneaded(party_id=planned.party_id, flour=planned.flour)


@kitchen.handler
async def bake(kneaded: Kneaded, oven: Rooms, saga: Saga) -> Baked:
    await saga.step(oven.announce, saga.idempotency_key("oven"), "hot")
    return Baked(party_id=kneaded.party_id)


@kitchen.handler
async def slice_(baked: Baked) -> Sliced:
    return Sliced(party_id=baked.party_id)


@kitchen.handler
async def taste(kneaded: Kneaded, menu: MenuChosen) -> Tasted:
    return Tasted(party_id=kneaded.party_id, dish=menu.dish)


@kitchen.handler
async def serve(sliced: Sliced, menu: MenuChosen) -> MealReady:
    return MealReady(party_id=sliced.party_id, dish=menu.dish)


@kitchen.handler(repeats=NoteLeft)
async def write_down(left: NoteLeft, saga: Saga) -> None:
    await saga.update(Pad, PAD, Pad.write)


@kitchen.handler
async def pour(doors: DoorsOpened, saga: Saga) -> Poured:
    await saga.update(Larder, LARDER, Larder.pour)
    return Poured(party_id=doors.party_id)


@kitchen.compensation(knead)
async def put_back(called_off: PartyCalledOff, kneaded: Kneaded, saga: Saga) -> FlourPutBack:
    await saga.update(Larder, LARDER, Larder.put_back, kneaded.flour)
    return FlourPutBack(party_id=kneaded.party_id)
