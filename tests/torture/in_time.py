"""Answers that came in time: no order that had one expires, whatever became of the service that decides."""

from collections.abc import Collection, Iterable, Mapping

from saga.broker.kafka.administration import KafkaAdministration
from saga.messages import Record, name_of
from saga.messaging import envelope
from services.audit.checks import Check
from services.demo.watch import TOPICS
from services.order.events import InventoryRejected, PaymentDeclined, ShipmentBooked, ShipmentRefused

ANSWERS = {name_of(each) for each in (ShipmentBooked, PaymentDeclined, InventoryRejected, ShipmentRefused)}
NEAR_MS = 1000
"""Milliseconds before an order expires of which times of records say too little."""


def find_expired_in_time(
    records: Iterable[Record], placed: Mapping[str, int], expired: Collection[str], patience_s: float
) -> list[str]:
    """Name each order that has expired although an answer lay in the log in time.

    `placed` holds the time in ms at which each order was first placed. The log does not say it: it loses the first
    record of an order when its topic is created again, and then begins with a copy that was sent much later.
    """
    answered: dict[str, tuple[int, str]] = {}
    for record in records:
        type_, order = envelope.type_of(record), (record.key or b"").decode("utf-8", "replace")
        if type_ in ANSWERS:
            answered[order] = min((record.time_ms, type_), answered.get(order, (record.time_ms, type_)))
    late_ms = patience_s * 1000 - NEAR_MS
    return [
        f"{order} has expired, and {answered[order][1]} came after {(answered[order][0] - placed[order]) / 1000:.1f} s"
        for order in sorted(expired)
        if order in placed and order in answered and answered[order][0] - placed[order] < late_ms
    ]


async def check_answers_in_time(
    broker: KafkaAdministration, placed: Mapping[str, int], expired: Collection[str], patience_s: float
) -> Check:
    """Compare the orders that have expired with the log."""
    records = [record for topic in TOPICS async for record in broker.scan(topic)]
    return Check(
        name="what came in time counts",
        figures=f"{len(expired)} orders expired, none with an answer in time",
        differences=tuple(find_expired_in_time(records, placed, expired, patience_s)),
    )
