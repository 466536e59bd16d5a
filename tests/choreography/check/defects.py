"""Choreographies with one planted defect each, and the finding that has to come of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from saga.choreography.manifest import Manifest
from tests.choreography.check.building import KIND, START, Choreo, compensation, deadline, handler


@dataclass(frozen=True)
class Defect:
    """A choreography with a defect."""

    code: str
    subject: str
    manifests: list[Manifest]


def shop(**changes: object) -> Choreo:
    """The order saga in small; `changes` replaces or removes (`None`) reactions by `service_name`."""
    reactions = {
        "payment_reserve": handler("reserve", START, "Reserved | Declined", effects=True),
        "payment_release": compensation("release", "reserve", "Cancelled + Reserved"),
        "payment_capture": handler("capture", "Confirmed + Reserved", "Captured", effects=True),
        "shipping_book": handler("book", f"{START} + Reserved", "Booked | Refused", effects=True),
        "shipping_unbook": compensation("unbook", "book", "Cancelled + Booked"),
        "order_confirm": handler("confirm", "Booked", "Confirmed"),
        "order_cancel": handler("cancel", "Declined / Refused", "Cancelled"),
        "order_expire": deadline("expire", START, "Cancelled"),
        **changes,
    }
    options = {name: reactions.pop(name) for name in ("success", "failure", "starts", "external") if name in reactions}
    made = Choreo(to_outside=["Captured"], **options)  # type: ignore[arg-type] # as given
    for service in dict.fromkeys(name.partition("_")[0] for name in reactions):
        mine = [each for name, each in reactions.items() if name.startswith(f"{service}_") and each is not None]
        if mine:
            made.service(service, *mine)  # type: ignore[arg-type] # reactions
    return made


def defect(code: str, subject: str, **changes: object) -> Callable[[], Defect]:
    return lambda: Defect(code, subject, shop(**changes).manifests)


DEFECTS: Mapping[str, Callable[[], Defect]] = {
    "a decline that nobody acts on, and no deadline": defect(
        "no-outcome", KIND, order_expire=None, order_cancel=handler("cancel", "Refused", "Cancelled"),
        audit_note=handler("note", "Declined"),
    ),
    "a deadline that an event closes which decides nothing": defect(
        "no-outcome", KIND, order_expire=deadline("expire", START, "Cancelled", unless="Reserved"),
        order_cancel=handler("cancel", "Declined / Refused", "Cancelled | -"),
    ),
    "a deadline that counts from an event that may not come": defect(
        "no-outcome", KIND, order_expire=deadline("expire", "Booked", "Cancelled"),
        order_cancel=handler("cancel", "Refused", "Cancelled"), audit_note=handler("note", "Declined"),
    ),
    "a decider that may decide nothing, and no deadline": defect(
        "no-outcome", KIND, order_expire=None, order_confirm=handler("confirm", "Booked", "Confirmed | -")
    ),
    "two services that decide": defect(
        "two-outcomes", "Cancelled and Confirmed", audit_panic=handler("panic", START, "Cancelled | -")
    ),
    "two services that own outcomes": defect(
        "two-deciders", KIND, failure=("Cancelled", "Lost"), shipping_lose=handler("lose", "Confirmed", "Lost")
    ),
    "one run that emits two outcomes": defect(
        "two-outcomes", "order.confirm", order_confirm=handler("confirm", "Booked", "Confirmed Cancelled | Confirmed")
    ),
    "success waits for events that exclude each other": defect(
        "no-success", "Confirmed", order_confirm=handler("confirm", "Reserved + Declined", "Confirmed"),
        audit_note=handler("note", "Booked"),
    ),
    "an effect without compensation": defect("no-compensation", "shipping.book", shipping_unbook=None),
    "a compensation on one of two failure outcomes": defect(
        "not-undone", "payment.reserve", failure=("Cancelled", "Expired"),
        order_expire=deadline("expire", START, "Expired"),
        shipping_unbook=compensation("unbook", "book", "Cancelled / Expired + Booked"),
    ),
    "a failure outcome from outside that no compensation takes": defect(
        "not-undone", "payment.reserve", external=["Withdrawn"], failure=("Cancelled", "Withdrawn"),
        audit_note=handler("note", "Withdrawn"),
    ),
    "an effect without compensation, and a failure outcome from outside": defect(
        "no-compensation", "payment.reserve", external=["Withdrawn"], failure=("Withdrawn",),
        payment_release=None, shipping_book=None, shipping_unbook=None, order_cancel=None, order_expire=None,
        order_confirm=handler("confirm", "Reserved", "Confirmed"), audit_note=handler("note", "Withdrawn / Declined"),
    ),
    "a service that decides beside an outcome from outside": defect(
        "two-deciders", KIND, external=["Withdrawn"], failure=("Cancelled", "Withdrawn"),
        payment_release=compensation("release", "reserve", "Cancelled / Withdrawn + Reserved"),
        shipping_unbook=compensation("unbook", "book", "Cancelled / Withdrawn + Booked"),
    ),
    "an irreversible effect at once": defect(
        "irreversible-early", "shipping.book", shipping_unbook=None,
        shipping_book=handler("book", f"{START} + Reserved", "Booked | Refused", irreversible=True),
    ),
    "an irreversible effect on an answer instead of the outcome": defect(
        "irreversible-early", "mail.send", mail_send=handler("send", "Booked", irreversible=True)
    ),
    "what follows success waits for an event that success does not imply": defect(
        "waits-for-ever", "payment.capture",
        order_confirm=handler("confirm", START, "Confirmed"), audit_note=handler("note", "Booked"),
    ),
    "what follows failure waits for an event that failure does not imply": defect(
        "waits-for-ever", "mail.apologise", mail_apologise=handler("apologise", "Cancelled + Reserved")
    ),
    "an event that no service emits": defect(
        "no-producer", "Bookd",
        order_confirm=handler("confirm", "Bookd", "Confirmed"), audit_note=handler("note", "Booked"),
    ),
    "an event that no service consumes": defect(
        "no-consumer", "Refused", order_cancel=handler("cancel", "Declined", "Cancelled")
    ),
    "a fan-in of events that exclude each other": defect(
        "never-runs", "audit.compare", audit_compare=handler("compare", "Reserved + Declined")
    ),
    "a handler of an event that only it would cause": defect(
        "never-runs", "audit.ping",
        audit_ping=handler("ping", "Pong", "Ping"), audit_pong=handler("pong", "Ping", "Pong"),
    ),
    "an endless loop": defect(
        "endless-loop", "chat.again",
        chat_begin=handler("begin", START, "Ping"),
        chat_ping=handler("ping", "Ping", "Pong", repeats="Ping"),
        talk_pong=handler("pong", "Pong", "Ping2", repeats="Pong"),
        chat_again=handler("again", "Ping2", "Ping", repeats="Ping2"),
    ),
    "a service that undoes on a neighbour's failure": defect(
        "neighbours-failure", "shipping.forget", shipping_unbook=None,
        shipping_forget=handler("forget", "Declined", effects=True),
    ),
    "no event that starts a saga": defect("no-start", KIND, starts=()),
}  # fmt: skip
