"""Each page of docs/runbooks does what it says, with a service in that very trouble."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from saga.configuration.settings import Settings
from saga.contracts.library import find_library
from saga.messages import Topic
from saga.messaging.names import PROGRESS
from saga.messaging.timers import tiers_of
from saga.ops.sources import open_administration
from saga.progress.document import PLAIN, SagaProgress, encode, progress_key
from saga.store.sqlite.state_file import WriteLock
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from tests.docs.commands import commands_in_prose, commands_in_scripts, refused
from tests.docs.markdown import ROOT
from tests.runbooks.page import PAGES, Place, follow
from tests.runbooks.rights import rights_of_users, run_as_users, users_of_commands
from tests.servers.damage import spoil
from tests.servers.plain_clients import delete_topics, recreate_topic
from tests.servers.rights import Guarded, a_client, guarded_kafka

pytestmark = pytest.mark.timeout(400)  # each page is many commands, and each of them a process
HANDLED = "payment: 1 member, 0 not handled"


@pytest.fixture(scope="module")
def guarded(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A Kafka of these tests, which they may kill, and which asks who one is: who runs the commands has rights."""
    users = {user for user, _ in users_of_commands().values()}
    with guarded_kafka(tmp_path_factory.mktemp("kafka"), sorted(users)) as guarded:
        asyncio.run(guarded.allow(*rights_of_users(Place(tmp_path_factory.mktemp("rights") / "shop"))))
        yield guarded


@pytest.fixture
def place(tmp_path: Path, guarded: Guarded) -> Iterator[Place]:
    """The service's folder, with files for its store. On Kafka each command may what its user is to be allowed."""
    place = Place(tmp_path / "shop")
    try:
        run_as_users(place, guarded)
        place.shows("saga topics apply services.payment", "... orders ...")
        yield place
        place.leave()
    finally:
        place.end()
        asyncio.run(delete_topics(guarded.kafka.address))


def handled(place: Place) -> None:
    """Wait until the service runs, and all that came is handled."""
    place.shows("saga offsets show payment", HANDLED)


def test_every_page_is_run_and_listed() -> None:
    pages = {path.name for path in PAGES.glob("*.md")} - {"README.md"}
    run = {name.removeprefix("test_").replace("_", "-") + ".md" for name in globals() if name.startswith("test_")}
    assert pages <= run
    listed = (PAGES / "README.md").read_text("utf-8")
    assert [page for page in sorted(pages) if f"({page})" not in listed] == []


@pytest.mark.parametrize("page", [*sorted(path.name for path in PAGES.glob("*.md"))])
def test_the_command_line_takes_every_command_of_a_page_as_it_is_typed(page: str) -> None:
    text = (PAGES / page).read_text("utf-8")
    assert refused([*commands_in_scripts(text), *commands_in_prose(text)]) == []


@pytest.mark.slow
def test_quarantine(place: Place) -> None:
    def closed() -> None:
        place.bank("closed")
        place.start()
        handled(place)
        place.publish("order-17")
        place.publish("order-18")

    follow(
        "quarantine.md",
        place,
        {
            "the bank does not know us, and two orders come": closed,
            "the bank knows us": lambda: place.bank("open"),
        },
    )


@pytest.mark.slow
def test_escalation(place: Place) -> None:
    def discarded() -> None:
        place.bank("closed")
        place.start()
        place.publish("order-18")
        place.shows("saga dead list", "... blocks ...")
        status, printed = place.call('saga dead discard payment --saga order-18 --who ada --why "a test order"')
        assert status == 0, printed

    follow(
        "escalation.md",
        place,
        {"the bank was asked for a charge and did not answer well, and a person has discarded the order": discarded},
    )


@pytest.mark.slow
def test_nobody_works(place: Place) -> None:
    def stopped() -> None:
        place.start()
        handled(place)
        place.stop()
        place.publish("order-1")

    follow("nobody-works.md", place, {"the service has stopped, and an order comes": stopped})


@pytest.mark.slow
def test_log_lost(place: Place, guarded: Guarded) -> None:
    def again() -> None:
        place.start()
        handled(place)
        place.publish("order-17")
        place.shows("saga sagas list", "order-17 ...")
        handled(place)
        place.stop()
        asyncio.run(recreate_topic(guarded.kafka.address, "payments", Topic("payments").partitions))
        for topic, tier in tiers_of("payment").items():
            asyncio.run(recreate_topic(guarded.kafka.address, topic, tier.partitions))
        place.start()

    what = "the topics of payments and of timers were deleted and created again while the service was down"
    follow("log-lost.md", place, {what: again})


@pytest.mark.slow
def test_expired(place: Place, guarded: Guarded) -> None:
    async def removed() -> None:
        async with a_client(guarded.kafka.address) as admin:
            partitions = find_library(ROOT / "contracts").topics["orders"].partitions
            everything = {TopicPartition("orders", number): RecordsToDelete(-1) for number in range(partitions)}
            await admin.delete_records(everything)

    def gone() -> None:
        place.start()
        handled(place)
        place.stop()
        place.publish("order-1")
        asyncio.run(removed())
        place.start()

    follow(
        "expired.md",
        place,
        {
            "the service did not run for so long that the log has removed an order": gone,
            "the order is published again": lambda: place.publish("order-1"),
        },
    )


@pytest.mark.slow
def test_hot(place: Place) -> None:
    def one_saga() -> None:
        place.start()
        place.publish(*["order-1"] * 30)

    follow("hot.md", place, {"thirty messages of one saga come": one_saga})


@pytest.mark.slow
def test_retry_storm(place: Place) -> None:
    def away() -> None:
        place.bank("away")
        place.start()
        for order in ("order-1", "order-2", "order-3"):
            place.publish(order)

    follow(
        "retry-storm.md",
        place,
        {"the bank is away, and three orders come": away, "the bank answers": lambda: place.bank("open")},
    )


@pytest.mark.slow
def test_stuck_saga(place: Place) -> None:
    async def written(format_: int) -> None:
        """Have the progress be of a format."""
        key = progress_key("payment", "order-17")
        content = encode(SagaProgress(service="payment", saga="order-17", format=format_))
        async with SqliteStore(place.folder / ".saga" / "payment.db", clock=SystemClock()) as store:
            document = await store.get(PROGRESS, key)
            if document is None:
                await store.insert(PROGRESS, key, content)
            else:
                await store.replace(PROGRESS, key, content, cas=document.cas)

    def newer() -> None:
        asyncio.run(written(99))
        place.start()
        place.publish("order-17")

    follow(
        "stuck-saga.md",
        place,
        {
            "a newer version has written the progress of order-17": newer,
            "the newer version runs again": lambda: asyncio.run(written(PLAIN)),
        },
    )


@pytest.mark.slow
def test_lag(place: Place) -> None:
    place.extra = {**place.extra, "SAGA_INFLIGHT_MAX": "4", "SAGA_INFLIGHT_MIN": "4"}

    def slow() -> None:
        place.bank("slow")
        place.start()
        place.publish(*(f"order-{number}" for number in range(40)))

    follow("lag.md", place, {"forty orders come, and the bank takes a second for each": slow})


@pytest.mark.slow
def test_store_away(place: Place) -> None:
    locks: list[WriteLock] = []

    def away() -> None:
        place.start()
        place.publish("order-1")
        handled(place)
        locks.append(WriteLock(place.folder / ".saga" / "payment.db.lock"))
        assert locks[0].try_acquire()
        place.publish("order-2")

    def back() -> None:
        locks[0].release()
        locks[0].close()

    follow(
        "store-away.md",
        place,
        {"the store takes no writes, and an order comes": away, "the store takes writes again": back},
    )


@pytest.mark.slow
def test_broker_down(place: Place, guarded: Guarded) -> None:
    def dies() -> None:
        place.start()
        place.publish("order-0")
        handled(place)
        guarded.kafka.kill()

    follow("broker-down.md", place, {"the broker dies": dies, "the broker is back": guarded.kafka.restart})


@pytest.mark.slow
def test_damaged_partition(place: Place, guarded: Guarded) -> None:
    async def damaged() -> None:
        settings = Settings(broker=f"kafka://{guarded.kafka.address}")
        async with open_administration(settings, SystemClock()) as broker:
            [record] = [record async for record in broker.scan("orders")]
        spoil(guarded.kafka.data, record, "a value")

    def damage() -> None:
        place.publish("order-1")
        asyncio.run(damaged())
        place.start()

    follow(
        "damaged-partition.md",
        place,
        {
            "the record of order-1 is damaged": damage,
            "there is no copy, and the service is stopped": place.stop,
            "the service is started": place.start,
        },
    )


@pytest.mark.slow
def test_roll_back(place: Place) -> None:
    def bad() -> None:
        place.deploy("payment_service_with_bug.py")
        place.start()
        handled(place)
        place.publish("order-1")
        place.publish("order-2")

    def rolled_back() -> None:
        place.stop()
        place.deploy("payment_service.py")
        place.start()

    follow(
        "roll-back.md",
        place,
        {
            "a release with a bug is deployed, and two orders come": bad,
            "the version from before runs": rolled_back,
        },
    )


@pytest.mark.slow
def test_breaker_open(place: Place) -> None:
    def away() -> None:
        place.deploy("payment_service.py", limits=", breaker=BREAKER")
        place.bank("away")
        place.start()
        handled(place)
        for order in ("order-1", "order-2", "order-3"):
            place.publish(order)

    follow(
        "breaker-open.md",
        place,
        {"the bank is away, and orders come": away, "the bank answers": lambda: place.bank("open")},
    )
