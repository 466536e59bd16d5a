"""Unreadable records in the topic of the orders: odd headers, keys and values, and large records.

Each of these records is a dead letter of every service that would have to take it, and blocks no other saga.
"""

import asyncio
from collections.abc import Iterator, Mapping
from functools import cache

from saga.broker.port import Broker
from saga.engine.consumer.record_router import BadRecord, route_record
from saga.engine.prepared_service import PreparedService, prepare
from saga.errors import BrokerUnavailable
from saga.messages import Outgoing, Record, texts_of
from saga.messaging import envelope
from saga.messaging.names import dead_letter_topic
from saga.support.clock import Clock
from services.audit.checks import Check
from tests.fuzz.records import NOW_MS, TOPIC, records
from tests.torture.books import READ

EVERY_S = 0.3
ENOUGH = 100_000


class Strangers:
    """`write` runs beside the customers."""

    def __init__(self, broker: Broker, seed: int, clock: Clock, writing: asyncio.Lock) -> None:
        self.written = 0
        self._broker, self._clock, self._writing = broker, clock, writing
        self._records = _unreadable(seed, broker.record_bytes_max)
        self._expected: dict[str, set[str]] = {name: set() for name in READ}
        """Places of dead letters that there have to be, by service."""

    async def write(self, over: asyncio.Event) -> None:
        """Until it is over."""
        while not over.is_set():
            record = next(self._records)
            try:
                async with self._writing:
                    await self._broker.publish([record])
                self.written += 1
            except BrokerUnavailable:
                pass
            await self._clock.sleep(EVERY_S)

    async def note(self) -> None:
        """Note what the topic has, as long as it is there."""
        async for record in self._broker.scan(TOPIC):
            for name in READ:
                if _is_unreadable(record, name):
                    self._expected[name].add("/".join(map(str, record[:3])))

    async def check_dead_letters(self) -> Check:
        """Check that each of them is a dead letter of every service that reads its type, and nothing else is one, but
        what handlers failed for."""
        await self.note()
        differences = []
        for name, expected in self._expected.items():
            headers = [texts_of(letter.headers) async for letter in self._broker.scan(dead_letter_topic(name))]
            places = {each.get("dead_position", "of a saga") for each in headers if "dead_handler" not in each}
            differences += [f"{name}: {place} was not reported" for place in sorted(expected - places)[:5]]
            differences += [f"{name}: a dead letter {place}" for place in sorted(places - expected)[:5]]
        return Check(
            name="unreadable records are reported, and nothing else is",
            figures=f"{sum(map(len, self._expected.values()))} dead letters of all services",
            differences=tuple(differences),
        )


def _unreadable(seed: int, bytes_max: int) -> Iterator[Outgoing]:
    for written in records(seed, ENOUGH, bytes_max=bytes_max - 1000):
        record = Record(TOPIC, 0, 0, written.key or b"", written.value, written.headers, NOW_MS)  # the log's own
        type_ = envelope.type_of(record)
        if type_ in (None, "OrderPlaced") and _is_unreadable(record, "order"):  # customers count outcomes by their type
            yield Outgoing(TOPIC, record.key or b"", record.value, record.headers)


def _is_unreadable(record: Record, service: str) -> bool:
    return isinstance(route_record(record, _prepared()[service]), BadRecord)


@cache
def _prepared() -> Mapping[str, PreparedService]:
    return {name: prepare(declared) for name, declared in READ.items()}
