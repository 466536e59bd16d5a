"""Hotels: reserves a room, and asks the hotel to confirm it once the trip is paid. The hotel may be overbooked and
refuse."""

from examples.travel.books import Hotel, SoldOut
from examples.travel.events import (
    HotelConfirmed,
    HotelFull,
    HotelOverbooked,
    HotelReleased,
    HotelReserved,
    TripCancelled,
    TripPaid,
    TripRequested,
)
from saga import Saga, Service

hotels = Service("hotels")
hotels.document(Hotel, "hotels", expected_errors=(SoldOut,))


@hotels.handler
async def reserve(requested: TripRequested, saga: Saga) -> HotelReserved | HotelFull:
    try:
        hotel = await saga.update(Hotel, requested.hotel, Hotel.reserve)
    except SoldOut as why:
        return HotelFull(trip_id=requested.trip_id, reason=f"{requested.hotel}: {why}")
    price = requested.nights * hotel.price
    return HotelReserved(trip_id=requested.trip_id, hotel=requested.hotel, price=price, refundable=price - hotel.fee)


@hotels.handler
async def confirm(paid: TripPaid, reserved: HotelReserved, saga: Saga) -> HotelConfirmed | HotelOverbooked:
    hotel = await saga.read(Hotel, reserved.hotel)
    if hotel is None or hotel.overbooked:
        return HotelOverbooked(trip_id=paid.trip_id, reason=f"{reserved.hotel} is overbooked")
    return HotelConfirmed(trip_id=paid.trip_id)


@hotels.compensation(reserve)
async def release(cancelled: TripCancelled, reserved: HotelReserved, saga: Saga) -> HotelReleased:
    await saga.update(Hotel, reserved.hotel, Hotel.release)
    return HotelReleased(trip_id=cancelled.trip_id, kept=reserved.price - reserved.refundable)
