"""Calls that fail leave nothing behind: the SDK's exceptions would hold their requests for ever."""

import gc
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest
from couchbase.exceptions import CouchbaseException  # type: ignore[import-untyped]  # the SDK has no types for checkers

from saga.errors import Conflict, Exists, StoreError
from saga.store.couchbase.store import CouchbaseStore
from tests.store.couchbase.conftest import Stores

CALLS = 20
Fails: TypeAlias = Callable[[CouchbaseStore, int], Awaitable[object]]


def left() -> list[CouchbaseException]:
    """Exceptions of the SDK that are still in memory though nothing uses them."""
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, CouchbaseException)]


async def miss(store: CouchbaseStore, cas: int) -> None:
    assert await store.get("saga", "nowhere") is None


async def insert_again(store: CouchbaseStore, cas: int) -> None:
    with pytest.raises(Exists):
        await store.insert("saga", "there", b"{}")


async def replace_another_version(store: CouchbaseStore, cas: int) -> None:
    with pytest.raises(Conflict):
        await store.replace("saga", "there", b"{}", cas=cas + 1)


async def remove_what_is_gone(store: CouchbaseStore, cas: int) -> None:
    with pytest.raises(StoreError):
        await store.remove("saga", "nowhere", cas=cas)


async def look_at_the_expiry(store: CouchbaseStore, cas: int) -> None:
    assert store._cluster is not None
    for key in ("nowhere", "there"):
        await store._calls.begin(store._cluster.collection("_default", "none", 4).expires_at_s(key))


async def open_again(store: CouchbaseStore, cas: int) -> None:
    async with CouchbaseStore(store.settings, clock=store._clock):
        pass


FAILS: tuple[Fails, ...] = (
    *(miss, insert_again, replace_another_version),
    *(remove_what_is_gone, look_at_the_expiry, open_again),
)


@pytest.mark.parametrize("fails", FAILS)
async def test_a_call_that_fails_leaves_nothing_behind(stores: Stores, fails: Fails) -> None:
    async with stores() as store:
        cas = await store.insert("saga", "there", b"{}")
        before = len(left())
        for _ in range(CALLS):
            await fails(store, cas)
        assert len(left()) <= before + 1, "the SDK may have the last one in its hands yet"
