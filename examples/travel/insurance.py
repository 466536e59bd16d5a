"""Insurance: insures a trip once its price is known. The handler is a fan-in of three events."""

from decimal import Decimal

from examples.travel.events import (
    CarReserved,
    FlightsReserved,
    HotelReserved,
    PolicyCancelled,
    TripCancelled,
    TripInsured,
)
from saga import Service

RATE = Decimal("0.04")

insurance = Service("insurance")


@insurance.handler
async def insure(flights: FlightsReserved, hotel: HotelReserved, car: CarReserved) -> TripInsured:
    premium = (RATE * (flights.price + hotel.price + car.price)).quantize(Decimal("0.01"))
    return TripInsured(trip_id=flights.trip_id, policy=f"policy-{flights.trip_id}", premium=premium)


@insurance.compensation(insure)
async def cancel(cancelled: TripCancelled, insured: TripInsured) -> PolicyCancelled:
    return PolicyCancelled(trip_id=cancelled.trip_id, policy=insured.policy)
