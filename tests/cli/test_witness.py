"""`saga sagas verify` with published transitions: it finds damage in files that are consistent in themselves, and
reports no false damage."""

import asyncio
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from saga.messages import Outgoing
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import TOPIC
from saga.progress.document import SagaProgress, encode
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from services.payment.events import OrderConfirmed
from tests.cli.conftest import Call
from tests.engine.real_worker import Workplace, an_order, at_work, workplace
from tests.engine.test_published_transitions import payment

ADDRESSES = ("--store", "sqlite:///store.db", "--broker", "embedded:///broker.db")
KEY = "payment::order-1"
AGAIN = "restore it from a backup that has it, or rebuild it from the messages: saga sagas rebuild"


@dataclass(frozen=True)
class PublishedFiles:
    """A service's files after two orders, one of which was confirmed."""

    folder: Path
    earlier: bytes
    """Progress of order-1 before it was confirmed."""
    others: bytes
    """Progress of order-1 as another service of the same name has it, elsewhere: as long, and never published."""


@pytest.fixture(scope="session")
def published_once(tmp_path_factory: pytest.TempPathFactory) -> PublishedFiles:
    async def made() -> PublishedFiles:
        folder, elsewhere = tmp_path_factory.mktemp("published"), tmp_path_factory.mktemp("elsewhere")
        found = []
        for where, tells in ((folder, TOPIC), (elsewhere, None)):
            async with workplace(where) as place:
                await place.broker.ensure_topics([TOPIC])
                async with at_work(place, payment, tells=tells):
                    await place.publish(an_order(), an_order("order-2"))
                    await place.at_rest(payment)
                    found.append(await content_of(place))
                    await place.publish(OrderConfirmed(order_id="order-1"))
                    await place.at_rest(payment)
                    found.append(await content_of(place))
        return PublishedFiles(folder, found[0], found[3])

    return asyncio.run(made())


async def content_of(place: Workplace) -> bytes:
    document = await place.store.get("saga", KEY)
    assert document is not None
    return document.content


@pytest.fixture
def published(published_once: PublishedFiles, folder: Path) -> PublishedFiles:
    """The files in the current folder, for a test of its own."""
    shutil.copytree(published_once.folder, folder, dirs_exist_ok=True)
    return published_once


def at_store(act: Callable[[SqliteStore], Any]) -> None:
    """Do something to the store, as a person with access to the file can do."""

    async def done() -> None:
        async with SqliteStore(Path("store.db"), clock=SystemClock()) as store:
            await act(store)

    asyncio.run(done())


def put(content: bytes, key: str = KEY) -> None:
    async def replaced(store: SqliteStore) -> None:
        document = await store.get("saga", key)
        assert document is not None
        await store.replace("saga", key, content, cas=document.cas)

    at_store(replaced)


def remove(key: str = KEY) -> None:
    async def removed(store: SqliteStore) -> None:
        document = await store.get("saga", key)
        assert document is not None
        await store.remove("saga", key, cas=document.cas)

    at_store(removed)


def verified(saga: Call, *args: str, exit_code: int = 1) -> dict[str, Any]:
    result = saga("sagas", "verify", "--json", *ADDRESSES, *args)
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def put_on_topic(*records: Outgoing) -> None:
    async def done() -> None:
        async with workplace(Path.cwd()) as place:
            await place.broker.publish(list(records))

    asyncio.run(done())


def test_stores_that_match_the_published_transitions_are_sound(published: PublishedFiles, saga: Call) -> None:
    found = verified(saga, exit_code=0)
    assert (found["histories"], found["witnessed"], found["in_part"], found["strange"]) == (2, 2, 0, 0)
    assert (found["broken"], found["alone"]) == ([], None)
    lines = saga("sagas", "verify", *ADDRESSES).stdout.splitlines()
    assert lines[1:] == [
        "compared with saga.transitions: 2 to their last transition, 0 in part, 0 not at all: not published, or no "
        "longer kept"
    ]


def test_an_earlier_version_in_the_place_of_a_later_one_is_found(published: PublishedFiles, saga: Call) -> None:
    put(published.earlier)
    (broken,) = verified(saga)["broken"]
    assert (broken["saga"], broken["service"], broken["transition"]) == ("order-1", "payment", 1)
    assert broken["what"].startswith("transition 1 was published, of 20")
    assert broken["what"].endswith("and the store has only 1: the document was replaced by an earlier version")
    assert broken["todo"] == AGAIN
    assert verified(saga, "order-1")["broken"] == [broken]
    assert verified(saga, "order-2", exit_code=0)["witnessed"] == 1
    shown = saga("sagas", "verify", *ADDRESSES).stdout
    assert f"\n  to do: {AGAIN}\n" in shown


def test_another_history_in_the_place_of_one_is_found_though_it_agrees_with_itself(
    published: PublishedFiles, saga: Call
) -> None:
    put(published.others)
    (broken,) = verified(saga)["broken"]
    assert broken["transition"] == 0
    assert "transition 0 is not the published one: this history was replaced" in broken["what"]


def test_a_document_that_was_removed_is_found_before_it_can_have_expired(published: PublishedFiles, saga: Call) -> None:
    remove()
    (broken,) = verified(saga)["broken"]
    assert (broken["saga"], broken["transition"]) == ("order-1", 1)
    assert broken["what"].startswith("the store has no document, and transition 1 was published, of 20")
    assert "it is kept until 20" in broken["what"]
    assert verified(saga, "order-1")["broken"] == [broken]


def test_a_service_whose_store_is_gone_is_named(published: PublishedFiles, saga: Call) -> None:
    """What is not read cannot be compared; without a word it would pass as unchanged."""
    Path("store.db").rename("payment.db.lost")
    at_store(
        lambda store: store.insert("saga", "order::order-9", encode(SagaProgress(service="order", saga="order-9")))
    )
    result = saga("sagas", "verify", "--json", *ADDRESSES)
    assert (result.exit_code, json.loads(result.stdout)["without_store"]) == (0, {"payment": 2})
    assert result.stderr.startswith(
        "saga: no store of payment was read, and 2 published sagas of it cannot have expired"
    )
    one = saga("sagas", "verify", "order-1", *ADDRESSES)
    assert one.exit_code == 1
    assert "no store of payment was read, and 1 published saga of it" in one.stderr


def test_two_transitions_with_one_number_are_found(published: PublishedFiles, saga: Call) -> None:
    async def overwrite_with_earlier_version() -> None:
        """An earlier version is put back while the service runs, and it continues from there."""
        async with workplace(Path.cwd()) as place:
            document = await place.store.get("saga", KEY)
            assert document is not None
            await place.store.replace("saga", KEY, published.earlier, cas=document.cas)
            place.clock.ahead_ms += 5000
            async with at_work(place, payment, tells=TOPIC):
                await place.publish(OrderConfirmed(order_id="order-1"), id="confirmed-again")
                await place.at_rest(payment)

    asyncio.run(overwrite_with_earlier_version())
    (broken,) = verified(saga)["broken"]
    assert broken["transition"] == 1
    assert broken["what"].startswith("two different transitions 1 were written")
    assert broken["todo"].startswith("compare both")


def test_a_history_that_was_published_in_part_or_not_at_all_is_no_damage_and_counted(
    published: PublishedFiles, saga: Call
) -> None:
    async def handle_without_publishing() -> None:
        async with workplace(Path.cwd()) as place, at_work(place, payment):
            await place.publish(an_order("order-3"), OrderConfirmed(order_id="order-2"))
            await place.at_rest(payment)

    asyncio.run(handle_without_publishing())
    found = verified(saga, exit_code=0)
    assert (found["histories"], found["witnessed"], found["in_part"]) == (3, 1, 1)
    assert "1 to their last transition, 1 in part, 1 not at all" in saga("sagas", "verify", *ADDRESSES).stdout


def test_foreign_records_in_the_topic_are_counted_and_break_no_history(published: PublishedFiles, saga: Call) -> None:
    put_on_topic(
        Outgoing(TRANSITIONS, b"order-1", b"\x00\xff", ()),
        Outgoing(TRANSITIONS, b"order-1", None, ()),
        Outgoing(TRANSITIONS, b"order-1", b'{"v":1}', ()),
    )
    found = verified(saga, exit_code=0)
    assert (found["strange"], found["broken"]) == (3, [])
    shown = saga("sagas", "verify", *ADDRESSES).stdout
    assert "3 records on saga.transitions are not transitions: another program writes there" in shown


def test_without_transition_events_the_output_names_what_cannot_be_found(
    published: PublishedFiles, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(published.earlier)
    monkeypatch.setenv("SAGA_TRANSITIONS", "off")
    assert verified(saga, exit_code=0)["alone"] == "SAGA_TRANSITIONS is off"
    monkeypatch.delenv("SAGA_TRANSITIONS")
    Path("broker.db").unlink()
    shown = saga("sagas", "verify", *ADDRESSES)
    assert shown.exit_code == 0
    assert "without a witness (no file broker.db: say with SAGA_BROKER where the log is)" in shown.stdout
