"""Record that a service keeps of itself: made once, though others make it too, whatever the store does meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from saga import Service
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence.service_record import (
    REACTIONS_KEY,
    ServiceRecord,
    begun_topics,
    ensure_record,
    read_record,
    record_key,
    start_ms,
    starts_of,
)
from saga.errors import Ambiguous, ConfigurationError, StoreError, StoreUnavailable
from saga.messaging.names import ARCHIVES
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from saga.telemetry.events import TelemetryEvent, Unavailable
from services.payment.events import OrderPlaced, PaymentReserved

CLOCK = SystemClock()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    async with SqliteStore(tmp_path / "payment.db", clock=CLOCK) as store:
        yield store


def a_service(*, start: Any = None, wider: bool = False, name: str = "mailer", was: str = "") -> Service[Any]:
    service: Service[Any] = Service(name, start=start, was=was)

    @service.handler
    async def placed(placed: OrderPlaced) -> None: ...

    if wider:

        @service.handler
        async def reserved(reserved: PaymentReserved) -> None: ...

    return service


class Failing:
    """The store, whose writes and reads fail as scripted; `after` if what fails has happened."""

    def __init__(self, store: SqliteStore, errors: list[tuple[str, Exception, bool]]) -> None:
        self.store, self.errors = store, errors

    async def _do(self, what: str, *args: Any, **options: Any) -> Any:
        if self.errors and self.errors[0][0] == what:
            _, error, after = self.errors.pop(0)
            if after:
                await getattr(self.store, what)(*args, **options)
            raise error
        return await getattr(self.store, what)(*args, **options)

    async def get(self, *args: Any) -> Any:
        return await self._do("get", *args)

    async def insert(self, *args: Any, **options: Any) -> Any:
        return await self._do("insert", *args, **options)

    async def replace(self, *args: Any, **options: Any) -> Any:
        return await self._do("replace", *args, **options)


async def made(service: Service[Any], store: Any, moments: list[TelemetryEvent] | None = None) -> ServiceRecord:
    report = (moments if moments is not None else []).append
    return await ensure_record(service.declared, store, CLOCK, OutageWatch("mailer", CLOCK, report))


async def test_a_service_record_is_created_once_in_each_store(store: SqliteStore, tmp_path: Path) -> None:
    several = await asyncio.gather(*(made(a_service(), store) for _ in range(8)))
    assert len({each.store for each in several}) == 1
    assert await made(a_service(), store) == several[0] == await read_record(store, "mailer")
    assert several[0].starts == {"orders": 0}
    assert starts_of(several[0]) == {}
    async with SqliteStore(tmp_path / "other.db", clock=CLOCK) as other:
        assert await read_record(other, "mailer") is None
        assert (await made(a_service(), other)).store != several[0].store


async def test_the_first_offset_of_a_topic_is_kept_for_later_releases(store: SqliteStore) -> None:
    before_ms = CLOCK.now_ms()
    first = await made(a_service(start="now"), store)
    assert before_ms <= first.starts["orders"] <= CLOCK.now_ms()
    later = await made(a_service(start="beginning", wider=True), store)
    assert later == replace(first, starts={"orders": first.starts["orders"], "payments": 0})
    assert starts_of(later) == {"orders": first.starts["orders"]}
    assert await made(a_service(start="now"), store) == later, "one that reads less forgets nothing"


async def test_a_service_with_all_handlers_of_another_one_of_its_store_has_to_declare_whether_it_was_renamed(
    store: SqliteStore,
) -> None:
    await made(a_service(), store)
    for renamed in (a_service(name="post"), a_service(name="post", wider=True)):
        with pytest.raises(
            ConfigurationError,
            match=r'\'mailer\', which has one, has no other handlers.*Service\("post", was="mailer"\)',
        ):
            await made(renamed, store)
    assert await read_record(store, "post") is None
    assert (await made(a_service(name="post", was="mailer"), store)).service == "mailer"
    assert (await made(a_service(name="post", start="now"), store)).service == "post"
    assert await made(a_service(name="post"), store) == await read_record(store, "post"), "it is known by now"


async def test_a_service_that_does_less_than_another_one_is_a_new_one(store: SqliteStore) -> None:
    await made(a_service(wider=True), store)
    assert (await made(a_service(name="post"), store)).service == "post"
    assert (await made(a_service(wider=True), store)).service == "mailer"


async def test_consumed_events_are_recorded_by_concurrent_starts_and_when_they_change(store: SqliteStore) -> None:
    names = [f"mailer-{number}" for number in range(6)]
    await asyncio.gather(*(made(a_service(name=name, start="now"), store) for name in names))
    await made(a_service(name=names[0], wider=True), store)
    document = await store.get(ARCHIVES, REACTIONS_KEY)
    assert document is not None
    known = json.loads(document.content)["services"]
    placed = ["placed(orders/OrderPlaced)"]
    assert known == dict.fromkeys(names, placed) | {names[0]: [*placed, "reserved(payments/PaymentReserved)"]}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("wider", [False, True])
async def test_a_write_whose_answer_is_lost_is_read_and_never_made_blindly(
    store: SqliteStore, wider: bool, after: bool
) -> None:
    if wider:
        await made(a_service(), store)
    failing = Failing(store, [("replace" if wider else "insert", Ambiguous("lost"), after)])
    record = await made(a_service(wider=wider), failing)
    assert not failing.errors
    assert record == await read_record(store, "mailer")


async def test_while_the_store_is_away_it_waits_and_reports_that(store: SqliteStore) -> None:
    failing = Failing(store, [("get", StoreUnavailable("gone"), False), ("insert", StoreUnavailable("gone"), False)])
    moments: list[TelemetryEvent] = []
    record = await made(a_service(), failing, moments)
    assert record == await read_record(store, "mailer")
    assert [type(each) for each in moments] == [Unavailable]


async def test_an_unreadable_service_record_is_not_replaced(store: SqliteStore) -> None:
    await store.insert(ARCHIVES, record_key("mailer"), b'{"store": 7}')
    with pytest.raises(StoreError, match=r"'mailer\|identity::saga::record' in 'saga-archive'.*restore it"):
        await made(a_service(), store)


async def test_reactions_that_cannot_be_read_are_reported_with_their_place(store: SqliteStore) -> None:
    await store.insert(ARCHIVES, REACTIONS_KEY, b'{"services": 7}')
    with pytest.raises(StoreError, match=r"'\|reactions::saga::record' in 'saga-archive'.*remove it"):
        await made(a_service(), store)


def test_the_start_counts_for_topics_of_events_alone() -> None:
    assert begun_topics(a_service(wider=True).declared) == {"orders", "payments"}


def test_a_start_is_a_time() -> None:
    when = datetime(2026, 11, 21, 14, 6, 40, tzinfo=UTC)
    assert [start_ms(a_service(start=start).declared, 7) for start in (None, "beginning", "now", when)] == [
        *(0, 0, 7, 1_795_270_000_000)
    ]
