"""The promises of every store, shown by the one on Couchbase."""

from dataclasses import replace

import pytest

from saga.errors import ConfigurationError, Conflict
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.store import CouchbaseStore
from saga.store.port import Document
from saga.testing.conformance.store import DAY_S, OpenStore, PassTime, StoreConformance
from saga.testing.servers.couchbase import CouchbaseMock
from tests.store.couchbase.conftest import Stores


@pytest.fixture
def settings(settings: CouchbaseSettings) -> CouchbaseSettings:
    """With time for the largest document on a busy machine: nothing here waits until it is over."""
    return replace(settings, kv_s=30.0)


class TestCouchbaseStore(StoreConformance):
    expiry_grain_s = 2.0  # whole seconds, rounded up here, and cut by the server
    # CouchbaseMock's times have 31 bits, a real server's 32; `test_expiry` has those that end after 2038.
    expiries_s = (29 * DAY_S, 30 * DAY_S, 31 * DAY_S, 365 * DAY_S, 11 * 365 * DAY_S)

    @pytest.fixture
    def opens(self, stores: Stores) -> OpenStore:
        return stores

    @pytest.fixture
    def passes(self, mock: CouchbaseMock) -> PassTime:
        async def passes(seconds: float) -> None:
            mock.time_travel(round(seconds))

        return passes

    @pytest.mark.skip(reason="CouchbaseMock has no way to keep an expiry: it closes the connection")
    async def test_a_replace_can_keep_the_expiry(self) -> None:  # type: ignore[override]  # takes no store
        """Left out."""

    async def test_a_replace_that_cannot_keep_the_expiry_clears_it(
        self, store: CouchbaseStore, passes: PassTime
    ) -> None:
        cas = await store.insert("saga", "a", b"0", expiry_s=5)
        cas = await store.replace("saga", "a", b"1", cas=cas, keep_expiry=True)
        await passes(5 + self.expiry_grain_s)
        assert await store.get("saga", "a") == Document(b"1", cas)
        with pytest.raises(Conflict):
            await store.replace("saga", "a", b"2", cas=cas + 1, keep_expiry=True)

    async def test_a_long_expiry_that_is_gone_at_once_is_refused(self, store: CouchbaseStore) -> None:
        """A time after 2038 is one before 1970 here."""
        with pytest.raises(ConfigurationError, match="is gone as it is written: choose a shorter retention="):
            await store.check_expiry(["saga"], 20 * 365 * DAY_S)
        assert [key async for key, _ in store.scan("saga")] == []
