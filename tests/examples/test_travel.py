"""The travel example: whatever happens, a traveller pays for a trip that takes place, or for the fees only."""

from decimal import Decimal

from examples.travel.books import Car, CardCompany, Flight, Hotel
from examples.travel.cars import cars
from examples.travel.events import TripBooked, TripCancelled, TripRequested
from examples.travel.flights import flights
from examples.travel.hotels import hotels
from examples.travel.insurance import insurance
from examples.travel.mail import Outbox, mail
from examples.travel.payments import payments
from examples.travel.trips import trips
from saga.testing import World, faults, simulate

SERVICES = (trips, flights, hotels, cars, insurance, payments, mail)
OFFERS = {
    "CPH-VIE": Flight(left=2, price=Decimal(100), fee=Decimal(30)),
    "VIE-FCO": Flight(left=1, price=Decimal(80), fee=Decimal(20)),
    "Roma": Hotel(left=5, price=Decimal(90), fee=Decimal(45)),
    "Sole": Hotel(left=5, price=Decimal(60), overbooked=True),
    "small": Car(left=3, price=Decimal(40)),
}


def a_trip(
    trip_id: str, *, routes: tuple[str, ...] = ("CPH-VIE",), hotel: str = "Roma", card: str = "4242"
) -> TripRequested:
    return TripRequested(trip_id=trip_id, traveller="Ada", routes=routes, hotel=hotel, nights=2, car="small", card=card)


def start(world: World) -> tuple[CardCompany, Outbox]:
    company, outbox = CardCompany(), Outbox()
    world.start(*SERVICES, use=[company, outbox], documents=OFFERS)
    return company, outbox


def left(world: World) -> dict[str, int]:
    kinds = {Flight: flights, Hotel: hotels, Car: cars}
    found = {key: world.read(kinds[type(offer)], type(offer), key) for key, offer in OFFERS.items()}
    return {key: offer.left for key, offer in found.items() if offer is not None}


def test_a_trip_with_two_flights_is_booked_and_paid_with_its_insurance(world: World) -> None:
    company, outbox = start(world)
    world.publish(a_trip("t-1", routes=("CPH-VIE", "VIE-FCO")))
    world.run_until_quiet()
    assert world.outcome("t-1") is TripBooked
    assert company.taken == Decimal("1.04") * (100 + 80 + 2 * 90 + 2 * 40)
    assert left(world) == {"CPH-VIE": 1, "VIE-FCO": 0, "Roma": 4, "Sole": 5, "small": 2}
    assert list(outbox.sent.values()) == ["Ada, your trip is booked"]


def test_of_a_trip_that_is_cancelled_after_payment_the_fees_are_kept(world: World) -> None:
    company, outbox = start(world)
    world.publish(a_trip("t-1", hotel="Sole"))
    world.run_until_quiet()
    assert world.outcome("t-1") is TripCancelled
    assert company.taken - company.returned == Decimal(30), "the fee of the flight"
    assert left(world) == {key: offer.left for key, offer in OFFERS.items()}
    assert list(outbox.sent.values()) == ["No trip: Sole is overbooked"]


@simulate(seeds=15, faults=faults.everything())
def test_the_books_balance_whatever_happens(world: World) -> None:
    company, _ = start(world)
    both = ("CPH-VIE", "VIE-FCO")
    trips_ = [
        a_trip("t-1", routes=both),
        a_trip("t-2", routes=both),
        a_trip("t-3", hotel="Sole"),
        a_trip("t-4", card="declined"),
    ]
    world.publish(*trips_)
    world.run_until_quiet()
    outcomes = [world.outcome(each.trip_id) for each in trips_]
    assert all(outcome in (TripBooked, TripCancelled) for outcome in outcomes)
    assert outcomes[2:] == [TripCancelled, TripCancelled]
    booked = outcomes.count(TripBooked)
    assert booked <= 1, "there is one seat to Rome"
    assert left(world)["VIE-FCO"] == 1 - booked
    assert left(world)["small"] == 3 - booked
    kept = company.taken - company.returned - booked * Decimal("457.60")
    fees = {Decimal(0), Decimal(30)} if booked else {Decimal(0), Decimal(30), Decimal(95), Decimal(125)}
    assert kept in fees, f"{booked} booked, {company.taken} taken, {company.returned} returned"
