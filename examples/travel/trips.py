"""Trips: asks for a seat on each flight, and decides once whether the trip takes place."""

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

from examples.travel.events import (
    CarUnavailable,
    FlightsReserved,
    HotelConfirmed,
    HotelFull,
    HotelOverbooked,
    LegRequested,
    LegReserved,
    LegUnavailable,
    PaymentRefused,
    TripBooked,
    TripCancelled,
    TripRequested,
)
from saga import Saga, Service


@dataclass(frozen=True, kw_only=True)
class Seats:
    """State of the saga: the seats that are reserved so far, and their prices."""

    reserved: int = 0
    price: Decimal = Decimal(0)
    refundable: Decimal = Decimal(0)


trips = Service("trips", state=Seats)


@trips.handler
async def plan(requested: TripRequested) -> list[LegRequested]:
    return [
        LegRequested(trip_id=requested.trip_id, number=number, route=route)
        for number, route in enumerate(requested.routes, 1)
    ]


@trips.handler(repeats=LegReserved)
async def collect(leg: LegReserved, requested: TripRequested, saga: Saga[Seats]) -> FlightsReserved | None:
    seats = saga.state = Seats(
        reserved=saga.state.reserved + 1,
        price=saga.state.price + leg.price,
        refundable=saga.state.refundable + leg.refundable,
    )
    if seats.reserved < len(requested.routes):
        return None
    return FlightsReserved(trip_id=leg.trip_id, price=seats.price, refundable=seats.refundable)


@trips.handler
async def confirm(confirmed: HotelConfirmed, requested: TripRequested) -> TripBooked:
    return TripBooked(trip_id=confirmed.trip_id, traveller=requested.traveller)


@trips.handler(repeats=LegUnavailable)
async def cancel_flights(leg: LegUnavailable) -> TripCancelled:
    return TripCancelled(trip_id=leg.trip_id, reason=f"{leg.route}: {leg.reason}")


@trips.handler
async def cancel(why: HotelFull | CarUnavailable | PaymentRefused | HotelOverbooked) -> TripCancelled:
    return TripCancelled(trip_id=why.trip_id, reason=why.reason)


@trips.deadline(within=timedelta(minutes=30))
async def expire(requested: TripRequested) -> TripCancelled:
    return TripCancelled(trip_id=requested.trip_id, reason="no answer within half an hour")
