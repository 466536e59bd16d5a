"""Upcasters wherever a message of an older version is decoded: live, waiting, queued, own, undone, dead, archived."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from saga import Retry, Saga, Service
from saga.contracts import codec
from saga.contracts import upcasters as upcasting
from saga.contracts.foreign_values import frame, to_registered_schema
from saga.contracts.library import contract_of
from saga.engine.consumer.record_router import route_record
from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.prepared_service import prepare
from saga.messages import Message, Position, Record, Writer
from saga.messaging import operator_commands
from saga.progress import history
from saga.progress.document import decode_transition
from saga.progress.history import fold_state
from saga.telemetry.events import Escalated
from saga.testing import check_idempotent, trial
from tests.contracts.test_upcast import failing as failing  # the fixture
from tests.contracts.test_upcast import no
from tests.engine.driven_workers import At, Workers, place
from tests.engine.test_parking import only, process_when_due, published_timers
from tests.testing.baskets.events import (
    BasketDone,
    BasketDoneV1,
    BasketDropped,
    BasketFilled,
    BasketFilledV1,
    BasketHandedOver,
    BasketPaid,
    BasketPaidV1,
    BasketRefused,
    Tender,
)
from tests.testing.baskets.releases import Drawer, shop, till

ID = "order-1"
FILLED, PAID = BasketFilledV1(basket_id=ID, amount=980), BasketPaidV1(basket_id=ID, amount=980, receipt="r")
DONE, DROPPED = BasketDone(basket_id=ID), BasketDropped(basket_id=ID, reason="-")


@asynccontextmanager
async def worker_of(
    folder: Path, service: Service[Any], drawer: Drawer | None = None
) -> AsyncIterator[tuple[Workers, At]]:
    async with place(folder) as at:
        yield at, await at.worker(service, use=() if drawer is None else [drawer])


async def replies(worker: At) -> list[str]:
    """Schemas of all that it has emitted."""
    return [event.schema for entry in await worker.history() for event in entry.events]


# -------------------------------------------------------------------- read


async def test_a_live_message_is_upcast(tmp_path: Path) -> None:
    drawer = Drawer()
    async with worker_of(tmp_path, till(3), drawer) as (_, worker):
        await worker.takes(FILLED)
        assert list(drawer.taken.values()) == [980]
        assert await replies(worker) == ["tills/BasketPaid.v2"]


@pytest.mark.parametrize("messages", [(FILLED, PAID), (PAID, FILLED)], ids=["filled", "paid"])
async def test_a_message_that_waits_for_others_is_upcast_when_they_are_there(tmp_path: Path, messages: Any) -> None:
    async with worker_of(tmp_path, shop(3)) as (_, worker):
        await worker.takes(messages[0])
        assert await replies(worker) == []
        await worker.takes(messages[1])
        assert (await worker.outcomes())[-1] == ("finish", "handled")
        assert (await replies(worker)) == ["baskets/BasketDone.v2"]


async def test_a_message_that_waited_at_an_older_release_is_upcast_by_the_newer_one(tmp_path: Path) -> None:
    async with worker_of(tmp_path, shop(1)) as (at, older):
        await older.takes(PAID)
        newer = await at.worker(shop(3))
        await newer.takes(BasketFilled(basket_id=ID, amount=9800))
        assert (await newer.outcomes())[-1] == ("finish", "handled")
        assert await replies(newer) == ["baskets/BasketDone.v2"]


async def test_a_queued_message_is_upcast_when_it_is_its_turn(tmp_path: Path) -> None:
    """It comes behind one that is parked."""
    away, service = [True], Service("till", retry=Retry(attempts_max=40))

    @service.handler
    async def close(refused: BasketRefused) -> None:
        if away[0]:
            raise ConnectionError("away")

    @service.handler(repeats=BasketFilled)
    async def pay(filled: BasketFilled) -> BasketPaid:
        return BasketPaid(basket_id=ID, tender=Tender(amount=filled.amount), receipt="r")

    async with worker_of(tmp_path, service) as (at, worker):
        await worker.takes(BasketRefused(basket_id=ID, reason="-"))
        await worker.takes(FILLED)
        assert [kept.message.schema for kept in (await worker.progress()).queue][1:] == ["baskets/BasketFilled.v1"]
        away[0] = False
        await process_when_due(at, worker, published_timers(worker)[-1])
        last = (await worker.history())[-1]
        assert (last.handler, last.outcome) == ("pay", "handled")
        (paid,) = last.events
        assert codec.decode(paid.value, BasketPaid, worker.participant.schemas.library) == BasketPaid(
            basket_id=ID, tender=Tender(amount=9800), receipt="r"
        )


async def test_an_own_event_of_an_older_release_is_upcast_as_a_part_and_to_be_undone(tmp_path: Path) -> None:
    for number, outcome in enumerate((DONE, DROPPED)):
        drawer = Drawer()
        async with worker_of(tmp_path / str(number), till(1), drawer) as (at, older):
            await older.takes(FILLED)
            assert await replies(older) == ["tills/BasketPaid.v1"]
            newer = await at.worker(till(3), use=[drawer])
            await newer.takes(outcome)
            book = drawer.handed_over if outcome is DONE else drawer.given_back
            assert list(book.values()) == [980]


async def test_a_self_consumed_event_in_an_archive_is_upcast_for_a_release_that_handles_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "TRANSITIONS_MAX", 3)
    monkeypatch.setattr(history, "TRANSITIONS_KEPT", 1)
    older, drawer = Service("till"), Drawer()

    @older.handler
    async def pay(filled: BasketFilledV1) -> BasketPaidV1:
        drawer.add("take", "r", filled.amount)
        return PAID

    @older.handler(repeats=BasketRefused)
    async def note(refused: BasketRefused) -> None: ...

    newer = till(3)
    newer.handler(repeats=BasketRefused)(note)
    async with worker_of(tmp_path, older) as (at, first):
        await first.takes(FILLED)
        for number in range(6):
            await first.takes(BasketRefused(basket_id=ID, reason=str(number)))
        assert (await first.progress()).first > 0, "what it emitted is in an archive"
        second = await at.worker(newer, use=[drawer])
        await second.takes(DONE)
        assert list(drawer.handed_over.values()) == [980]


async def test_a_run_that_has_begun_is_given_the_same_values_again_by_the_worker_that_resumes_it(
    tmp_path: Path,
) -> None:
    away = Drawer(fails=99)
    async with worker_of(tmp_path, till(3), away) as (at, worker):
        await worker.takes(FILLED)
        (intent,) = (await worker.progress()).intents
        assert (intent.message.schema, intent.message.value) == ("baskets/BasketFilled.v1", codec.encode(FILLED))
        away.fails = 0
        other = await at.worker(till(3), use=[away])
        await process_when_due(at, other, published_timers(worker)[-1])
        assert (await other.outcomes())[-1] == ("pay", "handled")
        assert list(away.taken.values()) == [980], "one key, and what it was asked with"


async def test_the_books_show_what_came_and_not_what_was_made_of_it(tmp_path: Path) -> None:
    async with worker_of(tmp_path, till(3), Drawer()) as (_, worker):
        await worker.takes(FILLED)
        (entry,) = await worker.history()
        p = await worker.progress()
        assert fold_state([decode_transition(raw) for raw in p.transitions]) == p.state
        assert entry.message == worker.message(FILLED).id


def foreign(value: bytes, content_type: str, writer: Writer | None = None) -> Record:
    """Record of a sender that calls it version 1."""
    attributes = {
        "id": "1",
        "source": "/shops",
        "type": "BasketFilled",
        "dataschema": "urn:saga:baskets/BasketFilled.v1",
    }
    headers = [(f"ce_{name}", text.encode()) for name, text in {**attributes, "specversion": "1.0"}.items()]
    return Record("baskets", 0, 0, ID.encode(), value, (*headers, ("content-type", content_type.encode())), 0, writer)


def registered_v1() -> Writer:
    """What a registry says of version 1."""
    version = contract_of(BasketFilled).versions[0]
    return Writer(id=7, schema=json.dumps(to_registered_schema(version.schema)), registry="http://registry")


@pytest.mark.parametrize(
    "record",
    [
        foreign(json.dumps(codec.to_json(FILLED)).encode(), "application/json"),
        foreign(frame(7, codec.encode(FILLED)), "application/avro", registered_v1()),
    ],
    ids=["JSON", "registry"],
)
def test_an_older_version_in_another_form_is_upcast(record: Record) -> None:
    service = prepare(till(3).declared)
    message = route_record(record, service)
    assert isinstance(message, Message)
    assert service.decode("pay", message) == BasketFilled(basket_id=ID, amount=9800)


# -------------------------------------------------------------------- an upcaster that fails


async def test_a_message_whose_upcaster_fails_is_a_dead_letter_that_a_replay_cures(
    tmp_path: Path, failing: Callable[[Any], None]
) -> None:
    mended = upcasting._upcasters[BasketFilled, 1].function
    failing(no)
    drawer = Drawer()
    async with worker_of(tmp_path, till(3), drawer) as (at, worker):
        await worker.takes(FILLED)
        (dead,) = worker.dead
        assert dead["dead_reason"] == (
            "UpcasterFailed: the upcaster tests.testing.baskets.upcasters.filled_from_v1 failed on a "
            "baskets/BasketFilled.v1: ValueError: no such basket"
        )
        assert dead["dead_remedy"] == "fix the upcaster and deploy it, then retry it: saga dead replay"
        assert dead["dead_attempts"] == "1"
        assert dead["dead_class"] == "code"
        failing(mended)
        await replayed(at, worker, dead["dead_id"])
        assert list(drawer.taken.values()) == [980]
        assert (await worker.outcomes())[-2:] == [("pay", "replayed"), ("pay", "handled")]


async def test_a_part_whose_upcaster_fails_is_dead_at_once_and_waits_for_nothing(
    tmp_path: Path, failing: Callable[[Any], None]
) -> None:
    mended = upcasting._upcasters[BasketFilled, 1].function
    failing(no)
    async with worker_of(tmp_path, shop(3)) as (at, worker):
        await worker.takes(FILLED)
        (dead,) = worker.dead
        assert (dead["dead_handler"], dead["dead_remedy"][:17]) == ("finish", "fix the upcaster ")
        await worker.takes(PAID)
        failing(mended)
        await replayed(at, worker, dead["dead_id"])
        assert await replies(worker) == ["baskets/BasketDone.v2"]


async def replayed(at: Workers, worker: At, dead: str) -> None:
    """A person has a dead letter tried again."""
    out = operator_commands.command_to_record(
        worker.participant.name,
        ID,
        "replay",
        operator_commands.CommandValue(dead=dead, who="anna", why="mended"),
        at.clock.now_ms(),
    )
    command = operator_commands.parse_command(
        Record(out.topic, 0, 0, out.key, out.value, out.headers, at.clock.now_ms())
    )
    await MessageProcessor(worker.participant).process(
        MessageProcessor(worker.participant).begin(command, Position(out.topic, 0, 0), None)
    )


# -------------------------------------------------------------------- a release that is too old


async def test_an_event_of_a_newer_version_waits_for_the_release_that_reads_it(tmp_path: Path) -> None:
    drawer = Drawer()
    async with worker_of(tmp_path, till(1), drawer) as (at, older):
        await older.takes(BasketFilled(basket_id=ID, amount=9800))
        kept = only((await older.progress()).queue)
        assert (kept.handler, kept.attempts, kept.dead) == ("pay", 1, None)
        assert older.dead == []
        newer = await at.worker(till(3), use=[drawer])
        await process_when_due(at, newer, published_timers(older)[-1])
        assert list(drawer.taken.values()) == [980]
        assert (await newer.progress()).queue == ()


async def test_without_that_release_it_waits_on_and_never_is_a_dead_letter(tmp_path: Path) -> None:
    service = Service("till", retry=Retry(attempts_max=1))

    @service.handler
    async def see(filled: BasketFilledV1) -> None: ...

    async with worker_of(tmp_path, service) as (at, worker):
        await worker.takes(BasketFilled(basket_id=ID, amount=9800))
        end_ms = at.clock.now_ms() + 3_600_000
        while published_timers(worker)[-1].due_ms < end_ms:
            await process_when_due(at, worker, published_timers(worker)[-1])
        reasons = [m.reason for m in worker.moments if isinstance(m, Escalated)]
        assert "NewerVersion: it is of baskets/BasketFilled.v2, and this release of" in reasons[0]
        assert (worker.dead, only((await worker.progress()).queue).dead) == ([], None)


# -------------------------------------------------------------------- trials


async def test_a_trial_takes_any_version(tmp_path: Path) -> None:
    for order in (FILLED, BasketFilled(basket_id=ID, amount=9800)):
        drawer = Drawer()
        result = await trial(till(3), order, BasketDoneV1(basket_id=ID), use=[drawer])
        assert [type(event) for event in result.emitted] == [BasketPaid, BasketHandedOver]
        assert list(drawer.handed_over.values()) == [980]
        result = await trial(till(2), order, use=[Drawer()])
        assert [type(event) for event in result.emitted] == [BasketPaidV1], "each as the class that was returned"


async def test_a_handler_is_checked_to_do_the_same_with_what_an_upcaster_makes(
    failing: Callable[[Any], None],
) -> None:
    await check_idempotent(till(3), FILLED, DONE, use=[Drawer()])
    numbers = count(1)
    failing(lambda old: BasketFilled(basket_id=old.basket_id, amount=next(numbers)))
    service = Service("till")

    async def take(amount: int) -> str:
        return str(amount)

    @service.handler
    async def pay(filled: BasketFilled, saga: Saga[None]) -> None:
        await saga.step(take, filled.amount)

    for given in ([FILLED], []):  # of older versions, too, examples are made
        with pytest.raises(AssertionError, match=r"till\.pay did something else after its process died"):
            await check_idempotent(service, *given)
