"""Flights: reserves a seat for each leg of a trip. If the trip is cancelled, the price of the seat less a fee is paid
back."""

from examples.travel.books import Flight, SoldOut
from examples.travel.events import LegReleased, LegRequested, LegReserved, LegUnavailable, TripCancelled
from saga import Saga, Service

flights = Service("flights")
flights.document(Flight, "flights", expected_errors=(SoldOut,))


@flights.handler(repeats=LegRequested)
async def reserve(leg: LegRequested, saga: Saga) -> LegReserved | LegUnavailable:
    try:
        flight = await saga.update(Flight, leg.route, Flight.reserve)
    except SoldOut as why:
        return LegUnavailable(trip_id=leg.trip_id, number=leg.number, route=leg.route, reason=str(why))
    return LegReserved(
        trip_id=leg.trip_id,
        number=leg.number,
        route=leg.route,
        price=flight.price,
        refundable=flight.price - flight.fee,
    )


@flights.compensation(reserve)
async def release(cancelled: TripCancelled, leg: LegReserved, saga: Saga) -> LegReleased:
    await saga.update(Flight, leg.route, Flight.release)
    return LegReleased(trip_id=cancelled.trip_id, number=leg.number, kept=leg.price - leg.refundable)
