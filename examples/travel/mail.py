"""Mail: writes to the traveller when the trip is booked or cancelled. A mail cannot be undone."""

from collections.abc import AsyncIterator

from examples.travel.events import MailSent, TripBooked, TripCancelled
from saga import Saga, Service

mail = Service("mail")


class Outbox:
    """Sender of mails. If it is called again with the same key, it sends nothing."""

    def __init__(self) -> None:
        self.sent: dict[str, str] = {}

    async def send(self, key: str, subject: str) -> None:
        self.sent.setdefault(key, subject)


@mail.resource(timeout_s=5)
async def outbox() -> AsyncIterator[Outbox]:
    yield Outbox()


@mail.handler(irreversible=True)
async def inform(outcome: TripBooked | TripCancelled, outbox: Outbox, saga: Saga) -> MailSent:
    match outcome:
        case TripBooked():
            subject = f"{outcome.traveller}, your trip is booked"
        case TripCancelled():
            subject = f"No trip: {outcome.reason}"
    await saga.step(outbox.send, saga.idempotency_key("mail"), subject)
    return MailSent(trip_id=outcome.trip_id, subject=subject)
