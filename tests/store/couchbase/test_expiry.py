"""Documents on Couchbase stay as long as is asked: what is sent, and what is refused at the start."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.engine.consumer.flow_control import FlowLimits
from saga.engine.lifecycle import ServiceOptions, serve
from saga.engine.prepared_service import prepare
from saga.errors import ConfigurationError, StoreError
from saga.messaging.names import PROBE
from saga.ops.doctor import diagnose
from saga.store.couchbase.adapter import CouchbaseOptions, CouchbaseSettings
from saga.store.couchbase.driver import AT_S_MAX, ServerTime, expiry_s_max
from saga.store.couchbase.store import CouchbaseStore
from services.payment import payment
from tests.store.conftest import SettableClock
from tests.store.couchbase.node import WRITES, Node

DAY_S = 86_400
YEAR_S = 365 * DAY_S
PLACE = ("_default._default", "saga::a")


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with Node().serving() as node:
        yield node


@pytest.fixture
def settings(node: Node) -> CouchbaseSettings:
    return CouchbaseSettings(
        connection=f"couchbase://127.0.0.1:{node.port}",
        bucket="shop",
        username="payment",
        password=lambda: "secret",
        kv_s=1.0,
        durable_s=2.0,
    )


@pytest.fixture
async def store(settings: CouchbaseSettings, clock: SettableClock) -> AsyncIterator[CouchbaseStore]:
    async with CouchbaseStore(settings, clock=clock) as store:
        yield store


# -------------------------------------------------------------------- what is sent


@pytest.mark.parametrize("expiry_s", [DAY_S, 30 * DAY_S, 31 * DAY_S, YEAR_S, 12 * YEAR_S, 40 * YEAR_S, None])
async def test_a_document_is_given_the_expiry_that_was_asked_for(
    node: Node, store: CouchbaseStore, clock: SettableClock, expiry_s: float | None
) -> None:
    expiry_s = expiry_s or expiry_s_max(clock) - 10
    for _ in range(2):  # the second one counts from the server's clock as the first has shown it
        cas = await store.insert("saga", "a", b"0", expiry_s=expiry_s)
        assert abs(node.expiries[PLACE] - node.now_s() - expiry_s) < 5
        cas = await store.replace("saga", "a", b"1", cas=cas, expiry_s=expiry_s)
        assert abs(node.expiries[PLACE] - node.now_s() - expiry_s) < 5
        assert await store.get("saga", "a") is not None
        await store.remove("saga", "a", cas=cas)
    assert max(asked.expiry for asked in node.asked) <= AT_S_MAX


async def test_an_expiry_after_2106_is_refused_before_sending(
    node: Node, store: CouchbaseStore, clock: SettableClock
) -> None:
    with pytest.raises(StoreError, match="February 2106"):
        await store.insert("saga", "a", b"0", expiry_s=expiry_s_max(clock) + 60)
    with pytest.raises(ConfigurationError, match=r"2106. Choose a shorter retention="):
        await store.check_expiry(["saga"], expiry_s_max(clock) + 60)
    assert node.of_documents(*WRITES) == []


async def test_a_machine_whose_clock_is_behind_writes_nothing_that_is_born_expired(
    node: Node, store: CouchbaseStore
) -> None:
    node.ahead_s = 40 * DAY_S
    await store.check_expiry(["saga"], 31 * DAY_S)
    await store.insert("saga", "a", b"0", expiry_s=31 * DAY_S)
    assert abs(node.expiries[PLACE] - node.now_s() - 31 * DAY_S) < 5
    assert await store.get("saga", "a") is not None


async def test_a_server_whose_clock_is_behind_keeps_documents_for_longer_and_never_shorter(
    node: Node, store: CouchbaseStore
) -> None:
    node.ahead_s = -40 * DAY_S
    await store.check_expiry(["saga"], 31 * DAY_S)
    await store.insert("saga", "a", b"0", expiry_s=31 * DAY_S)
    assert node.expiries[PLACE] - node.now_s() > 31 * DAY_S - 5


def test_versions_that_are_no_clock_are_not_taken_for_one() -> None:
    time = ServerTime()
    for cas in (1, 1000, 2**63):
        time.learn(cas)
        assert time.expiry(YEAR_S).total_seconds() == YEAR_S


# -------------------------------------------------------------------- what is refused


async def test_a_max_ttl_that_shortens_what_is_to_stay_is_refused(node: Node, store: CouchbaseStore) -> None:
    node.max_ttl_s = 7 * DAY_S
    with pytest.raises(ConfigurationError) as refused:
        await store.check_expiry(["saga", "saga-archive"], 30 * DAY_S)
    forever, memory = refused.value.problems
    assert "documents that are to stay for ever are given 7 days, by a maxTTL" in forever
    assert "what is to stay for 30 days is given 7 days" in memory
    assert "--max-ttl 0" in memory
    assert not [key for key in node.documents if "probe" in key[1]], "nothing is left of the look"


async def test_a_max_ttl_beyond_the_memory_is_refused_for_what_is_open(node: Node, store: CouchbaseStore) -> None:
    node.max_ttl_s = YEAR_S
    with pytest.raises(ConfigurationError) as refused:
        await store.check_expiry(["saga"], 30 * DAY_S)
    (problem,) = refused.value.problems
    assert "open sagas would vanish" in problem


async def test_each_collection_is_looked_at(node: Node, settings: CouchbaseSettings, clock: SettableClock) -> None:
    node.collections = ["_default._default", "payment.saga", "payment.saga-archive", "payment.stock"]
    node.max_ttl_s = 7 * DAY_S
    async with CouchbaseStore(replace(settings, scope="payment"), clock=clock) as store:
        with pytest.raises(ConfigurationError) as refused:
            await store.check_expiry(["saga", "saga-archive", "stock"], 30 * DAY_S)
    assert [problem.partition(":")[0] for problem in refused.value.problems[::2]] == [
        "shop/saga",
        "shop/saga-archive",
        "shop/stock",
    ]
    # The connector publishes what is written to `stock`. By this prefix a service knows that it is no change.
    assert {asked.key.startswith(PROBE) for asked in node.asked if asked.collection == "payment.stock"} == {True}


async def test_without_tls_the_password_is_not_sent_to_ask_whether_the_bucket_evicts(
    node: Node, store: CouchbaseStore
) -> None:
    node.eviction = "noEviction"
    await store.check_expiry(["saga"], 30 * DAY_S)
    assert not node.asked_of_management, "each request of the SDK has the password, in base64"


async def test_the_doctor_names_documents_that_would_expire(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, tmp_path: Path
) -> None:
    node.max_ttl_s = 7 * DAY_S
    declared = Declared(name="payment", state=None, retention=timedelta(days=30))
    asked = Settings(
        broker=f"embedded:///{tmp_path}/broker.db",
        store=f"{settings.connection}/shop",
        options=(CouchbaseOptions(couchbase_username="payment", couchbase_password="secret"),),
    )
    diagnosis = await diagnose([declared], asked, clock)
    problems = [finding.what for finding in diagnosis.findings if finding.severity == "error"]
    assert ["for ever" in problems[0], "for 31 days" in problems[1]] == [True] * 2
    assert {finding.remedy for finding in diagnosis.findings if finding.severity == "error"} == {
        "correct that, and run saga doctor again"
    }


async def test_a_service_does_not_start_on_a_store_that_forgets(
    node: Node, store: CouchbaseStore, clock: SettableClock, tmp_path: Path
) -> None:
    node.max_ttl_s = 7 * DAY_S
    async with EmbeddedBroker(tmp_path / "broker.db", clock=clock) as broker:
        with pytest.raises(ConfigurationError, match="open sagas would vanish"):
            await serve(
                prepare(payment.declared),
                store=store,
                broker=broker,
                options=ServiceOptions(
                    clock=clock, report=lambda moment: None, limits=FlowLimits(), stop=asyncio.Event()
                ),
            )
