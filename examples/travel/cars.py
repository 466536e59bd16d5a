"""Cars: reserves a car. Cancelling it costs nothing."""

from examples.travel.books import Car, SoldOut
from examples.travel.events import CarReserved, CarReturned, CarUnavailable, TripCancelled, TripRequested
from saga import Saga, Service

cars = Service("cars")
cars.document(Car, "cars", expected_errors=(SoldOut,))


@cars.handler
async def reserve(requested: TripRequested, saga: Saga) -> CarReserved | CarUnavailable:
    try:
        car = await saga.update(Car, requested.car, Car.reserve)
    except SoldOut as why:
        return CarUnavailable(trip_id=requested.trip_id, reason=f"{requested.car}: {why}")
    return CarReserved(trip_id=requested.trip_id, car=requested.car, price=requested.nights * car.price)


@cars.compensation(reserve)
async def give_back(cancelled: TripCancelled, reserved: CarReserved, saga: Saga) -> CarReturned:
    await saga.update(Car, reserved.car, Car.release)
    return CarReturned(trip_id=cancelled.trip_id)
