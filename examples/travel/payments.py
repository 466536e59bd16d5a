"""Payments: takes the price of the whole trip. If the trip is cancelled, the price less the fees is paid back."""

from collections.abc import AsyncIterator

from examples.travel.books import CardCompany, Refused
from examples.travel.events import (
    CarReserved,
    FlightsReserved,
    HotelReserved,
    PaymentRefused,
    TripCancelled,
    TripInsured,
    TripPaid,
    TripRefunded,
    TripRequested,
)
from saga import Saga, Service

payments = Service("payments")


@payments.resource(timeout_s=5, expected_errors=(Refused,))
async def card_company() -> AsyncIterator[CardCompany]:
    yield CardCompany()


@payments.handler
async def charge(
    insured: TripInsured,
    requested: TripRequested,
    flights: FlightsReserved,
    hotel: HotelReserved,
    car: CarReserved,
    card_company: CardCompany,
    saga: Saga,
) -> TripPaid | PaymentRefused:
    amount = flights.price + hotel.price + car.price + insured.premium
    try:
        charged = await saga.step(card_company.charge, saga.idempotency_key("charge"), requested.card, amount)
    except Refused as why:
        return PaymentRefused(trip_id=insured.trip_id, reason=str(why))
    fees = flights.price - flights.refundable + hotel.price - hotel.refundable
    return TripPaid(trip_id=insured.trip_id, charge=charged, amount=amount, refundable=amount - fees)


@payments.compensation(charge)
async def refund(cancelled: TripCancelled, paid: TripPaid, card_company: CardCompany, saga: Saga) -> TripRefunded:
    await saga.step(card_company.refund, saga.idempotency_key("refund"), paid.charge, paid.refundable)
    return TripRefunded(trip_id=cancelled.trip_id, charge=paid.charge, amount=paid.refundable)
