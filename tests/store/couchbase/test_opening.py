"""Stores on Couchbase that cannot be opened: the setting or the command that mends it is named, within 15 s."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from saga.errors import ConfigurationError, SagaError, StoreUnavailable
from saga.store.couchbase import driver
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.store import CouchbaseStore
from saga.support.settings import UNCLOSED
from saga.testing.servers.couchbase import CouchbaseMock
from tests.store.conftest import SettableClock
from tests.store.couchbase.conftest import Stores

REFUSED_WITHIN_S = 15.0


async def refusal(settings: CouchbaseSettings, clock: SettableClock) -> SagaError:
    """Error of opening, in time."""
    began_s = time.monotonic()
    with pytest.raises(SagaError) as refused:
        await CouchbaseStore(settings, clock=clock).__aenter__()
    assert time.monotonic() - began_s < REFUSED_WITHIN_S
    assert "secret" not in str(refused.value)
    return refused.value


@pytest.fixture
def closed_port() -> Iterator[int]:
    with closing(socket.socket()) as holder:  # bound and not listening: no other process takes it
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


async def test_a_missing_server_is_reported(
    settings: CouchbaseSettings, clock: SettableClock, closed_port: int
) -> None:
    error = await refusal(replace(settings, connection=f"couchbase://127.0.0.1:{closed_port}"), clock)
    assert isinstance(error, StoreUnavailable)
    assert "See whether host and port are right" in str(error)


async def test_a_frozen_server_is_reported(
    mock: CouchbaseMock, settings: CouchbaseSettings, clock: SettableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "BOOTSTRAP_S", 1.5)
    mock.pause()
    try:
        error = await refusal(settings, clock)
    finally:
        mock.resume()
    assert isinstance(error, StoreUnavailable)


async def test_an_unknown_bucket_is_reported(settings: CouchbaseSettings, clock: SettableClock) -> None:
    error = await refusal(replace(settings, bucket="stranger"), clock)
    assert isinstance(error, ConfigurationError)
    assert "bucket 'stranger' does not open" in str(error)
    assert "SAGA_STORE" in str(error)


async def test_durability_that_the_server_does_not_have_is_reported_with_the_name_of_the_setting(
    settings: CouchbaseSettings, clock: SettableClock
) -> None:
    error = await refusal(replace(settings, durability="majority"), clock)
    assert isinstance(error, ConfigurationError)
    assert "'majority' fail here, and plain ones do not" in str(error)
    assert "SAGA_STORE_DURABILITY=none" in str(error)


async def test_a_server_without_collections_is_reported(settings: CouchbaseSettings, clock: SettableClock) -> None:
    error = await refusal(replace(settings, scope="payment"), clock)
    assert isinstance(error, ConfigurationError)
    assert "leave scope and collection out of SAGA_STORE" in str(error)


async def test_nothing_is_left_of_what_opening_wrote(stores: Stores) -> None:
    async with stores() as store:
        assert [key async for key, _ in store.scan("saga")] == []


async def test_a_store_for_tools_reads_and_does_not_write(
    settings: CouchbaseSettings, stores: Stores, clock: SettableClock
) -> None:
    async with stores() as store, CouchbaseStore(settings, clock=clock, readonly=True) as tool:
        cas = await store.insert("saga", "a", b"1")
        assert await tool.get("saga", "a") == (b"1", cas)
        with pytest.raises(StoreUnavailable, match="reading only"):
            await tool.replace("saga", "a", b"2", cas=cas)
        with pytest.raises(StoreUnavailable, match="reading only"):
            await tool.remove("saga", "a", cas=cas)


async def test_a_scan_on_a_server_without_range_scans_fails_with_that_reason(
    settings: CouchbaseSettings, clock: SettableClock
) -> None:
    async with CouchbaseStore(settings, clock=clock) as store:
        with pytest.raises(StoreUnavailable, match=r"cannot do this \(FeatureUnavailableException"):
            _ = [key async for key, _ in store.scan("saga")]


async def test_stores_of_one_address_share_a_connection_and_the_last_one_closes_it(stores: Stores) -> None:
    first, second = stores(), stores()
    async with first:
        async with second:
            assert first._cluster is not None
            assert second._cluster is not None
            assert first._cluster._shared is second._cluster._shared
            assert first._cluster._shared in UNCLOSED
            cas = await second.insert("saga", "shared", b"{}")
        document = await first.get("saga", "shared")
        assert document is not None
        assert document.cas == cas
        shared = first._cluster._shared
    assert shared not in UNCLOSED
    async with stores() as third:
        assert third._cluster is not None
        assert third._cluster._shared is not shared


async def test_what_an_error_reporter_shows_of_a_connection_has_no_password(settings: CouchbaseSettings) -> None:
    settings = replace(settings, password=partial(str, "bare-secret"))
    assert "bare-secret" not in repr(settings)
    cluster = driver.CouchbaseCluster(settings)
    try:
        assert "bare-secret" not in repr(cluster._shared)
        await cluster.connect()
    finally:
        await cluster.close()


async def test_a_connection_that_failed_is_not_kept(closed_port: int) -> None:
    """Each attempt to open a store makes another, with a thread of its own."""
    before = set(UNCLOSED)
    cluster = driver.CouchbaseCluster(
        CouchbaseSettings(
            connection=f"couchbase://127.0.0.1:{closed_port}",
            bucket="saga",
            username="payment",
            password=lambda: "secret",
            open_s=0.5,
        )
    )
    with pytest.raises(driver.FAILURES):
        await cluster.connect()
    with pytest.raises(driver.FAILURES):
        await cluster.close()
    assert before >= UNCLOSED


def test_a_process_that_ends_while_the_driver_connects_has_its_exit_code(mock: CouchbaseMock) -> None:
    code = """
import asyncio, sys
import saga.cli.run  # all that takes time is loaded before
from saga.cli.main import main
from saga.store.couchbase.driver import CouchbaseCluster
from saga.store.couchbase.adapter import CouchbaseSettings

async def connects():
    CouchbaseCluster(CouchbaseSettings(connection=sys.argv[1], bucket="saga", username="x", password=lambda: "y"))

asyncio.run(connects())
main(["run", "no.such.module"])
"""
    ended = subprocess.run([sys.executable, "-c", code, mock.address], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, "no.such.module" in ended.stderr) == (2, True), ended.stderr
