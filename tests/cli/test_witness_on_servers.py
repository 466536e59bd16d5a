"""The witness of histories on Kafka, and histories on CouchbaseMock: what was put back or removed there is found."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from uuid import uuid4  # noqa: TID251 - all tests share one topic of transitions

import pytest

from saga import Client
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.ops.history_verifier import BrokenHistory, VerificationReport, read_published_histories, verify_stores
from saga.ops.sources import ServiceStore
from saga.progress.document import decode_progress, progress_key
from saga.store.port import Document, Store
from saga.testing.servers.couchbase import CouchbaseMock
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_each_boundary import on_couchbase, the_store

LIFE_S_MAX = 60.0
"""Bound of each wait: nothing is measured here."""


async def progress_in(store: Store, key: str) -> Document:
    document = await store.get("saga", key)
    assert document is not None
    return document


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIFE_S_MAX):
        while not await holds():
            await CLOCK.sleep(0.05)


async def found_in(store: Store, service: str, cup: str) -> VerificationReport:
    witness = await read_published_histories(Settings.from_environment(), CLOCK, cup)
    return await verify_stores([ServiceStore(service, store, CLOCK)], CLOCK, cup, witness)


async def broken_in(store: Store, service: str, cup: str) -> BrokenHistory:
    (broken,) = (await found_in(store, service, cup)).broken
    return broken


def test_an_earlier_version_put_back_and_a_removed_document_are_found_on_servers(
    kafka_pottery: Pottery, couchbase_mock: CouchbaseMock, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_TRANSITIONS", "on")
    on_couchbase(kafka_pottery, couchbase_mock, monkeypatch)
    applied = saga("topics", "apply", kafka_pottery.module)
    assert applied.exit_code == 0, applied.output
    asyncio.run(_put_back_and_removed(kafka_pottery, f"cup-{uuid4()}"))


async def _put_back_and_removed(pottery: Pottery, cup: str) -> None:
    services, stop, key = wiring.load_services([pottery.module]), asyncio.Event(), progress_key(pottery.service, cup)
    made = sys.modules[pottery.module]
    async with the_store(pottery.service) as store, Client() as client:

        async def handled(count: int) -> bool:
            document = await store.get("saga", key)
            return document is not None and decode_progress(document.content).n == count

        async with asyncio.TaskGroup() as tasks:
            settings = Settings.from_environment()
            tasks.create_task(wiring.run(services, settings, lambda _: None, stop, CLOCK, modules=[pottery.module]))
            await client.publish(made.CupOrdered(cup_id=cup))
            await until(lambda: handled(1))
            earlier = await progress_in(store, key)
            await client.publish(made.CupSold(cup_id=cup))
            await until(lambda: handled(2))
            stop.set()
        whole = await found_in(store, pottery.service, cup)
        assert (whole.histories, whole.witnessed, whole.broken) == (1, 1, [])

        now = await progress_in(store, key)
        cas = await store.replace("saga", key, earlier.content, cas=now.cas)
        broken = await broken_in(store, pottery.service, cup)
        assert (broken.saga, broken.service, broken.transition) == (cup, pottery.service, 1)
        assert "the document was replaced by an earlier version" in broken.what

        await store.remove("saga", key, cas=cas)
        broken = await broken_in(store, pottery.service, cup)
        assert "the store has no document, and transition 1 was published" in broken.what
