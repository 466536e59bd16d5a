"""Run the example with `python -m examples.travel`: four trips. One can be booked; for the others a flight is full, a
hotel is overbooked, or the card is refused."""

import asyncio
from datetime import timedelta
from decimal import Decimal

from examples.running import insert_documents, run_services, use_folder
from examples.travel.books import Car, Flight, Hotel
from examples.travel.events import TripBooked, TripCancelled, TripRequested
from saga import Client

MODULES = [
    f"examples.travel.{name}" for name in ("trips", "flights", "hotels", "cars", "insurance", "payments", "mail")
]
PATIENCE = timedelta(seconds=60)


def a_trip(
    trip_id: str, *, routes: tuple[str, ...] = ("CPH-VIE",), hotel: str = "Roma", card: str = "4242"
) -> TripRequested:
    """Return a trip for two nights with a small car."""
    return TripRequested(trip_id=trip_id, traveller="Ada", routes=routes, hotel=hotel, nights=2, car="small", card=card)


TRIPS = (
    a_trip("trip-1", routes=("CPH-VIE", "VIE-FCO")),
    a_trip("trip-2", routes=("CPH-VIE", "VIE-OSL")),
    a_trip("trip-3", hotel="Sole"),
    a_trip("trip-4", card="declined"),
)


async def main() -> None:
    """Run the services, publish the trips, and print how each trip ended."""
    folder = use_folder("travel")
    flights = {
        "CPH-VIE": Flight(left=9, price=Decimal(100), fee=Decimal(30)),
        "VIE-FCO": Flight(left=1, price=Decimal(80), fee=Decimal(20)),
        "VIE-OSL": Flight(left=0, price=Decimal(120)),
    }
    hotels = {
        "Roma": Hotel(left=5, price=Decimal(90), fee=Decimal(45)),
        "Sole": Hotel(left=5, price=Decimal(60), overbooked=True),
    }
    await insert_documents("flights", "flights", flights)
    await insert_documents("hotels", "hotels", hotels)
    await insert_documents("cars", "cars", {"small": Car(left=9, price=Decimal(40))})
    with run_services(folder, MODULES):
        async with Client() as client:
            await client.publish(*TRIPS)
            for trip in TRIPS:
                match await client.outcome(trip.trip_id, TripBooked, TripCancelled, within=PATIENCE):
                    case TripBooked():
                        print(f"{trip.trip_id}: booked")
                    case TripCancelled(reason=reason):
                        print(f"{trip.trip_id}: cancelled, {reason}")
                    case None:
                        raise SystemExit(f"{trip.trip_id} has not ended: see {folder / 'services.log'}")


if __name__ == "__main__":
    asyncio.run(main())
