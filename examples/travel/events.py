"""Events of a trip. `saga contracts write` makes their contracts from these classes."""

from decimal import Decimal
from typing import Annotated, TypeAlias

from saga import Avro, Event, event, sensitive

Money: TypeAlias = Annotated[Decimal, Avro("decimal(12,2)")]


@event(topic="trips", key="trip_id", owner="trips", starts=True, produced_by="external")
class TripRequested(Event):
    """A traveller wants flights, a hotel and a car, all or nothing."""

    trip_id: str
    traveller: str
    routes: tuple[str, ...]
    hotel: str
    nights: int
    car: str
    card: Annotated[str, sensitive]


@event(topic="trips", key="trip_id", owner="trips")
class LegRequested(Event):
    """One flight of a trip is needed."""

    trip_id: str
    number: int
    route: str


@event(topic="trips", key="trip_id", owner="trips")
class FlightsReserved(Event):
    """All flights of the trip have a seat."""

    trip_id: str
    price: Money
    refundable: Money


@event(topic="trips", key="trip_id", owner="trips", outcome="success")
class TripBooked(Event):
    """The trip takes place."""

    trip_id: str
    traveller: str


@event(topic="trips", key="trip_id", owner="trips", outcome="failure")
class TripCancelled(Event):
    """The trip does not take place."""

    trip_id: str
    reason: str


@event(topic="flights", key="trip_id", owner="flights")
class LegReserved(Event):
    """A seat is reserved."""

    trip_id: str
    number: int
    route: str
    price: Money
    refundable: Money


@event(topic="flights", key="trip_id", owner="flights")
class LegUnavailable(Event):
    """The flight is full."""

    trip_id: str
    number: int
    route: str
    reason: str


@event(topic="flights", key="trip_id", owner="flights", consumed_by="external")
class LegReleased(Event):
    """The seat is free again."""

    trip_id: str
    number: int
    kept: Money


@event(topic="hotels", key="trip_id", owner="hotels")
class HotelReserved(Event):
    """A room is reserved."""

    trip_id: str
    hotel: str
    price: Money
    refundable: Money


@event(topic="hotels", key="trip_id", owner="hotels")
class HotelFull(Event):
    """The hotel has no room."""

    trip_id: str
    reason: str


@event(topic="hotels", key="trip_id", owner="hotels")
class HotelConfirmed(Event):
    """The hotel confirmed the paid reservation."""

    trip_id: str


@event(topic="hotels", key="trip_id", owner="hotels")
class HotelOverbooked(Event):
    """The hotel gave the room to another guest."""

    trip_id: str
    reason: str


@event(topic="hotels", key="trip_id", owner="hotels", consumed_by="external")
class HotelReleased(Event):
    """The room is free again."""

    trip_id: str
    kept: Money


@event(topic="cars", key="trip_id", owner="cars")
class CarReserved(Event):
    """A car is reserved."""

    trip_id: str
    car: str
    price: Money


@event(topic="cars", key="trip_id", owner="cars")
class CarUnavailable(Event):
    """There is no such car."""

    trip_id: str
    reason: str


@event(topic="cars", key="trip_id", owner="cars", consumed_by="external")
class CarReturned(Event):
    """The car is free again."""

    trip_id: str


@event(topic="insurance", key="trip_id", owner="insurance")
class TripInsured(Event):
    """The trip is insured."""

    trip_id: str
    policy: str
    premium: Money


@event(topic="insurance", key="trip_id", owner="insurance", consumed_by="external")
class PolicyCancelled(Event):
    """The policy ends; the premium is given back."""

    trip_id: str
    policy: str


@event(topic="payments", key="trip_id", owner="payments")
class TripPaid(Event):
    """The whole price was taken from the card."""

    trip_id: str
    charge: str
    amount: Money
    refundable: Money


@event(topic="payments", key="trip_id", owner="payments")
class PaymentRefused(Event):
    """The card was refused."""

    trip_id: str
    reason: str


@event(topic="payments", key="trip_id", owner="payments", consumed_by="external")
class TripRefunded(Event):
    """What can be given back was given back."""

    trip_id: str
    charge: str
    amount: Money


@event(topic="mails", key="trip_id", owner="mail", consumed_by="external")
class MailSent(Event):
    """The traveller was informed."""

    trip_id: str
    subject: str
