"""Tests of the guarantees in `saga.store.port` and `saga.change`, one for each.

An adapter's test subclasses `StoreConformance` and provides two fixtures:

    class TestSqliteStore(StoreConformance):
        @pytest.fixture
        def opens(self, tmp_path: Path, clock: SettableClock) -> OpenStore: ...
        @pytest.fixture
        def passes(self, clock: SettableClock) -> PassTime: ...

The test of a store that also records document changes subclasses `ChangesConformance`, with the fixture `opens`.

Crashes of the process and faults of the storage medium differ from store to store. The adapter's own tests cover those.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

import pytest

from saga.change import ChangeSource, DocumentChange, RecordedChange
from saga.errors import ConfigurationError, Conflict, Exists, SagaError, StoreError, TooLarge
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.store.port import Document, Store
from saga.support.clock import SystemClock

OpenStore: TypeAlias = Callable[[], Store]
"""Function that creates another store on the same storage, which is empty at first. The store is not open yet."""
PassTime: TypeAlias = Callable[[float], Awaitable[None]]
"""Function that advances the clock used for expiry by a number of seconds; a negative number turns it back."""

DAY_S = 86_400.0


class StoreConformance:
    """Tests of a store. `store` and `other` are open at the same time on the same storage, like the stores of two
    processes.
    """

    expiry_grain_s: float = 1.0
    """Precision of the store's expiry, in seconds."""
    expiries_s: Sequence[float] = (29 * DAY_S, 30 * DAY_S, 31 * DAY_S, 365 * DAY_S, 40 * 365 * DAY_S)
    """Expiry times in seconds that the store must accept: values around 30 days, where a store may encode them
    differently, and a very long one.
    """

    @pytest.fixture
    def opens(self) -> OpenStore:
        raise NotImplementedError("give the fixture `opens`: a function that makes a store on the same place each time")

    @pytest.fixture
    def passes(self) -> PassTime:
        raise NotImplementedError("give the fixture `passes`: a coroutine function that lets seconds pass")

    @pytest.fixture
    async def store(self, opens: OpenStore) -> AsyncIterator[Store]:
        async with opens() as store:
            yield store

    @pytest.fixture
    async def other(self, store: Store, opens: OpenStore) -> AsyncIterator[Store]:
        async with opens() as other:
            yield other

    # ---------------------------------------------------------------- get

    async def test_an_absent_document_reads_as_none(self, store: Store) -> None:
        assert await store.get("saga", "a") is None

    async def test_a_document_reads_as_it_was_written(self, store: Store) -> None:
        content = json.dumps({"text": "Grüße ✓ \0", "many": ["x" * 50_000]}, ensure_ascii=False).encode()
        cas = await store.insert("saga", "payment::order 1/ü", content)
        assert await store.get("saga", "payment::order 1/ü") == Document(content, cas)

    async def test_collections_do_not_mix(self, store: Store) -> None:
        await store.insert("saga", "a", b"1")
        await store.insert("stock", "a", b"2")
        first, second = await store.get("saga", "a"), await store.get("stock", "a")
        assert first is not None
        assert second is not None
        assert (first.content, second.content) == (b"1", b"2")

    async def test_a_read_sees_every_write_that_had_returned(self, store: Store, other: Store) -> None:
        cas = await store.insert("saga", "a", b"0")
        for number in range(1, 20):
            writer, reader = (store, other) if number % 2 else (other, store)
            cas = await writer.replace("saga", "a", b"%d" % number, cas=cas)
            assert await reader.get("saga", "a") == Document(b"%d" % number, cas)

    # ---------------------------------------------------------------- insert

    async def test_of_several_inserts_at_once_one_succeeds(self, store: Store, other: Store) -> None:
        attempts = [(store, other)[number % 2].insert("saga", "a", b"%d" % number) for number in range(10)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        won = [number for number, result in enumerate(results) if isinstance(result, int)]
        assert len(won) == 1
        assert all(isinstance(result, Exists) for result in results if not isinstance(result, int))
        document = await store.get("saga", "a")
        assert document is not None
        assert document.content == b"%d" % won[0]

    async def test_an_insert_on_a_document_that_is_there_changes_nothing(self, store: Store) -> None:
        cas = await store.insert("saga", "a", b"first")
        with pytest.raises(Exists):
            await store.insert("saga", "a", b"second")
        assert await store.get("saga", "a") == Document(b"first", cas)

    # ---------------------------------------------------------------- replace

    async def test_a_replace_gives_the_version_for_the_next_one(self, store: Store) -> None:
        cas = await store.insert("saga", "a", b"0")
        for number in range(1, 5):
            cas = await store.replace("saga", "a", b"%d" % number, cas=cas)
        assert await store.get("saga", "a") == Document(b"4", cas)

    async def test_of_several_replaces_of_one_version_one_succeeds(self, store: Store, other: Store) -> None:
        cas = await store.insert("saga", "a", b"0")
        attempts = [(store, other)[number % 2].replace("saga", "a", b"%d" % number, cas=cas) for number in range(10)]
        results = await asyncio.gather(*attempts, return_exceptions=True)
        won = [number for number, result in enumerate(results) if isinstance(result, int)]
        assert len(won) == 1
        assert all(isinstance(result, Conflict) for result in results if not isinstance(result, int))
        document = await store.get("saga", "a")
        assert document is not None
        assert document.content == b"%d" % won[0]

    async def test_of_a_replace_and_a_remove_of_one_version_one_succeeds(self, store: Store, other: Store) -> None:
        cas = await store.insert("saga", "a", b"0")
        replaced, removed = await asyncio.gather(
            store.replace("saga", "a", b"1", cas=cas), other.remove("saga", "a", cas=cas), return_exceptions=True
        )
        assert isinstance(replaced, Conflict) != isinstance(removed, Conflict)
        document = await store.get("saga", "a")
        assert (document is None) == isinstance(replaced, Conflict)

    async def test_a_replace_of_an_absent_document_is_a_conflict(self, store: Store) -> None:
        with pytest.raises(Conflict):
            await store.replace("saga", "a", b"1", cas=1)
        assert await store.get("saga", "a") is None

    async def test_a_refused_write_does_not_fail_the_others(self, store: Store) -> None:
        cas = await store.insert("saga", "a", b"0")
        results = await asyncio.gather(
            store.insert("saga", "b", b"1"),
            store.replace("saga", "a", b"stale", cas=cas + 100),
            store.replace("saga", "a", b"1", cas=cas),
            store.insert("saga", "a", b"there"),
            store.insert("saga", "c", b"1"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [int, Conflict, int, Exists, int]

    # ---------------------------------------------------------------- remove

    async def test_a_removed_document_is_gone(self, store: Store, other: Store) -> None:
        cas = await store.insert("saga", "a", b"0")
        await store.remove("saga", "a", cas=cas)
        assert await other.get("saga", "a") is None
        with pytest.raises(Conflict):
            await other.remove("saga", "a", cas=cas)

    async def test_a_remove_of_another_version_is_a_conflict(self, store: Store) -> None:
        old = await store.insert("saga", "a", b"0")
        new = await store.replace("saga", "a", b"1", cas=old)
        with pytest.raises(Conflict):
            await store.remove("saga", "a", cas=old)
        assert await store.get("saga", "a") == Document(b"1", new)

    async def test_a_version_never_comes_again_not_even_after_a_removal(self, opens: OpenStore) -> None:
        seen: list[int] = []
        for _ in range(3):
            async with (
                opens() as store
            ):  # a new object each time, because versions must be stored, not kept in the object
                cas = await store.insert("saga", "a", b"0")
                seen.append(cas)
                for _ in range(3):
                    cas = await store.replace("saga", "a", b"0", cas=cas)
                    seen.append(cas)
                await store.remove("saga", "a", cas=cas)
        assert len(set(seen)) == len(seen)

    # ---------------------------------------------------------------- size

    async def test_a_document_that_is_too_large_is_refused_and_its_neighbours_are_written(self, store: Store) -> None:
        large = b'"%s"' % (b"x" * (store.document_bytes_max - 2))
        cas = await store.insert("saga", "a", b"0")
        results = await asyncio.gather(
            store.insert("saga", "b", b"1"),
            store.insert("saga", "large", large + b" "),
            store.replace("saga", "a", large + b" ", cas=cas),
            store.replace("saga", "a", large + b" ", cas=cas, keep_expiry=True),
            store.insert("saga", "c", b"1"),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [int, TooLarge, TooLarge, TooLarge, int]
        assert "bytes" in str(results[1])
        assert await store.get("saga", "a") == Document(b"0", cas)
        assert await store.get("saga", "large") is None

    async def test_a_document_of_the_largest_size_is_taken(self, store: Store) -> None:
        large = b'"%s"' % (b"x" * (store.document_bytes_max - 2))
        cas = await store.insert("saga", "a", b"0")
        cas = await store.replace("saga", "a", large, cas=cas)
        assert await store.get("saga", "a") == Document(large, cas)

    # ---------------------------------------------------------------- expiry

    async def test_a_document_past_its_expiry_is_not_there(self, store: Store, passes: PassTime) -> None:
        cas = await store.insert("saga", "a", b"0", expiry_s=10)
        await store.insert("saga", "b", b"0")
        assert await store.get("saga", "a") is not None
        await passes(10 + self.expiry_grain_s)
        assert await store.get("saga", "a") is None
        assert [key async for key, _ in store.scan("saga")] == ["b"]
        with pytest.raises(Conflict):
            await store.replace("saga", "a", b"1", cas=cas)
        with pytest.raises(Conflict):
            await store.replace("saga", "a", b"1", cas=cas, keep_expiry=True)
        with pytest.raises(Conflict):
            await store.remove("saga", "a", cas=cas)

    async def test_an_expired_document_can_be_inserted_again(self, store: Store, passes: PassTime) -> None:
        old = await store.insert("saga", "a", b"0", expiry_s=5)
        old = await store.replace("saga", "a", b"1", cas=old, expiry_s=5)
        await passes(5 + self.expiry_grain_s)
        new = await store.insert("saga", "a", b"2")
        assert new != old
        assert await store.get("saga", "a") == Document(b"2", new)
        with pytest.raises(Conflict):
            await store.replace("saga", "a", b"late", cas=old)

    async def test_a_replace_sets_a_new_expiry(self, store: Store, passes: PassTime) -> None:
        later = await store.insert("saga", "later", b"0", expiry_s=5)
        never = await store.insert("saga", "never", b"0", expiry_s=5)
        sooner = await store.insert("saga", "sooner", b"0")
        await store.replace("saga", "later", b"1", cas=later, expiry_s=20)
        await store.replace("saga", "never", b"1", cas=never)
        await store.replace("saga", "sooner", b"1", cas=sooner, expiry_s=5)
        await passes(10)
        assert [key async for key, _ in store.scan("saga")] == ["later", "never"]
        await passes(10 + self.expiry_grain_s)
        assert [key async for key, _ in store.scan("saga")] == ["never"]

    async def test_a_replace_can_keep_the_expiry(self, store: Store, passes: PassTime) -> None:
        expiring = await store.insert("saga", "expiring", b"0", expiry_s=5)
        lasting = await store.insert("saga", "lasting", b"0")
        await store.replace("saga", "expiring", b"1", cas=expiring, keep_expiry=True)
        await store.replace("saga", "lasting", b"1", cas=lasting, keep_expiry=True)
        assert await store.get("saga", "expiring") is not None
        await passes(5 + self.expiry_grain_s)
        assert await store.get("saga", "expiring") is None
        assert await store.get("saga", "lasting") is not None

    async def test_an_expiry_of_any_length_ends_neither_early_nor_late(self, store: Store, passes: PassTime) -> None:
        for number, expiry_s in enumerate(self.expiries_s):
            inserted, replaced = f"inserted-{number}", f"replaced-{number}"
            await store.insert("saga", inserted, b"0", expiry_s=expiry_s)
            await store.replace(
                "saga", replaced, b"1", cas=await store.insert("saga", replaced, b"0"), expiry_s=expiry_s
            )
            early_s = expiry_s - self.expiry_grain_s - 5
            try:
                for key in (inserted, replaced):
                    assert await store.get("saga", key) is not None, f"{expiry_s} s: gone as soon as it was written"
                await passes(early_s)
                for key in (inserted, replaced):
                    assert await store.get("saga", key) is not None, f"{expiry_s} s: gone before its time"
                early_s += 2 * self.expiry_grain_s + 10
                await passes(2 * self.expiry_grain_s + 10)
                for key in (inserted, replaced):
                    assert await store.get("saga", key) is None, f"{expiry_s} s: there after its time"
            finally:
                await passes(-early_s)

    async def test_the_longest_expiry_passes_the_check(self, store: Store) -> None:
        await store.check_expiry(["saga", "stock"], max(self.expiries_s))
        assert [key async for key, _ in store.scan("saga")] == []

    @pytest.mark.parametrize("expiry_s", [-1.0, 1e11, 1e300, float("inf"), float("nan")])
    async def test_an_expiry_that_cannot_be_expressed_is_refused_and_nothing_is_written(
        self, store: Store, expiry_s: float
    ) -> None:
        cas = await store.insert("saga", "there", b"0")
        with pytest.raises(StoreError):
            await store.insert("saga", "new", b"0", expiry_s=expiry_s)
        with pytest.raises(StoreError):
            await store.replace("saga", "there", b"1", cas=cas, expiry_s=expiry_s)
        with pytest.raises(ConfigurationError, match="retention="):
            await store.check_expiry(["saga"], expiry_s)
        assert await store.get("saga", "new") is None
        assert await store.get("saga", "there") == Document(b"0", cas)

    # ---------------------------------------------------------------- durability, cancellation

    async def test_written_documents_are_there_when_the_store_is_opened_again(self, opens: OpenStore) -> None:
        async with opens() as store:
            cas = await store.insert("saga", "kept", b"0")
            cas = await store.replace("saga", "kept", b"1", cas=cas)
            gone = await store.insert("saga", "gone", b"0")
            await store.remove("saga", "gone", cas=gone)
        async with opens() as store:
            assert await store.get("saga", "kept") == Document(b"1", cas)
            assert await store.get("saga", "gone") is None

    async def test_closing_waits_for_the_writes_under_way(self, opens: OpenStore) -> None:
        async with opens() as store:
            writes = [asyncio.ensure_future(store.insert("saga", f"{n}", b"0")) for n in range(20)]  # noqa: TID251
            await asyncio.wait(writes, timeout=0)  # let the calls begin
        assert [isinstance(result, int) for result in await asyncio.gather(*writes)] == [True] * 20

    async def test_a_cancelled_write_has_happened_completely_or_not_at_all(self, store: Store) -> None:
        cas = await store.insert("saga", "a", b"0")
        write = asyncio.ensure_future(store.replace("saga", "a", b"1", cas=cas))  # noqa: TID251
        await asyncio.wait([write], timeout=0)
        write.cancel()
        await asyncio.wait([write])
        await store.insert("saga", "b", b"0")  # all earlier writes have ended now
        document = await store.get("saga", "a")
        assert document is not None
        assert document.content in (b"0", b"1")
        assert (document.content == b"0") == (document.cas == cas)

    async def test_operations_on_a_closed_store_raise_an_error_that_names_the_cause(self, opens: OpenStore) -> None:
        store = opens()
        with pytest.raises(SagaError, match="open"):
            await store.get("saga", "a")
        with pytest.raises(SagaError, match="open"):
            await store.insert("saga", "a", b"0")

    # ---------------------------------------------------------------- scan

    async def test_a_scan_gives_all_documents_with_the_prefix_by_key(self, store: Store) -> None:
        keys = [f"order::{number:04}" for number in range(450)]
        await asyncio.gather(*(store.insert("saga", key, key.encode()) for key in reversed(keys)))
        await asyncio.gather(*(store.insert("saga", key, b"0") for key in ("order", "ordes::1", "payment::1", "a")))
        await store.insert("stock", "order::1", b"0")
        found = [(key, document.content) async for key, document in store.scan("saga", "order::")]
        assert found == [(key, key.encode()) for key in keys]

    async def test_a_scan_without_prefix_gives_the_whole_collection(self, store: Store) -> None:
        cas = {key: await store.insert("saga", key, b"0") for key in ("b", "ä", "a", "%", "_")}
        assert [key async for key, _ in store.scan("saga")] == sorted(cas)
        assert [document.cas async for _, document in store.scan("saga")] == [cas[key] for key in sorted(cas)]

    async def test_a_prefix_means_its_characters(self, store: Store) -> None:
        for key in ("a%b", "a_b", "axb"):
            await store.insert("saga", key, b"0")
        assert [key async for key, _ in store.scan("saga", "a_")] == ["a_b"]


# ---------------------------------------------------------------- stores that record changes


BAG, BOX = "bags", "boxes"
CLOCK = SystemClock()
OVER_S = 0.01
"""Pause in seconds that is added to an expiry time, because the store's clock may round differently."""


class ChangeStore(Store, ChangeSource, Protocol):
    """A store that records document changes."""


OpenChangeStore: TypeAlias = Callable[[], ChangeStore]
"""Function that creates another store on the same storage, as `OpenStore` does."""


class ChangesConformance:
    """Tests of a store that records document changes, with the same `store` and `other` as in `StoreConformance`."""

    @pytest.fixture
    def opens(self) -> OpenChangeStore:
        raise NotImplementedError("give the fixture `opens`: a function that makes a store on the same place each time")

    @pytest.fixture
    async def store(self, opens: OpenChangeStore) -> AsyncIterator[ChangeStore]:
        async with opens() as store:
            yield store

    @pytest.fixture
    async def other(self, store: ChangeStore, opens: OpenChangeStore) -> AsyncIterator[ChangeStore]:
        async with opens() as other:
            yield other

    async def test_a_store_that_records_changes_is_a_change_source(self, store: ChangeStore) -> None:
        assert isinstance(store, ChangeSource)

    async def test_each_change_is_noted_in_order_with_what_was_before(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        first = await store.insert(BAG, "a", b'{"n":1}')
        second = await store.replace(BAG, "a", b'{"n":2}', cas=first)
        third = await store.replace(BAG, "a", b'{"n":3}', cas=second, keep_expiry=True)
        await store.remove(BAG, "a", cas=third)
        assert [(c.kind, c.before, c.after) for c in list_changes(store)] == [
            ("insert", None, b'{"n":1}'),
            ("update", b'{"n":1}', b'{"n":2}'),
            ("update", b'{"n":2}', b'{"n":3}'),
            ("delete", b'{"n":3}', None),
        ]
        assert [c.key for c in list_changes(store)] == ["a"] * 4
        assert [c.version for c in list_changes(store)][:3] == [first, second, third]

    async def test_versions_of_a_document_only_grow_after_its_removal_too(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        for _ in range(3):
            cas = await store.insert(BAG, "a", b"{}")
            await store.remove(BAG, "a", cas=cas)
        versions = [(c.version, c.kind != "insert") for c in list_changes(store)]
        assert versions == sorted(versions)
        assert len(set(versions)) == 6

    async def test_a_write_that_is_refused_is_no_change(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        cas = await store.insert(BAG, "a", b"{}")
        with pytest.raises(Exists):
            await store.insert(BAG, "a", b"{}")
        with pytest.raises(Conflict):
            await store.replace(BAG, "a", b"{}", cas=cas + 1)
        with pytest.raises(Conflict):
            await store.remove(BAG, "a", cas=cas + 1)
        assert len(list_changes(store)) == 1

    async def test_many_writers_at_once_have_each_change_noted_once(
        self, store: ChangeStore, other: ChangeStore
    ) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        await asyncio.gather(*(each.insert(BAG, f"{n}", b"{}") for n, each in enumerate([store, other] * 50)))
        assert sorted(int(c.key) for c in list_changes(store)) == list(range(100))

    async def test_noted_changes_stay_until_they_are_forgotten(
        self, store: ChangeStore, opens: OpenChangeStore
    ) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        for n in range(5):
            await store.insert(BAG, f"{n}", b"{}")
        await store.forget("s", store.read_recorded("s", 2)[-1].number)
        async with opens() as again:
            await again.watch("s", [BAG], from_beginning=True)
            assert [c.key for c in list_changes(again)] == ["2", "3", "4"]

    async def test_each_service_forgets_its_own(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        await store.watch("t", [BAG, BOX], from_beginning=False)
        await store.insert(BAG, "a", b"{}")
        await store.insert(BOX, "b", b"{}")
        await store.forget("t", 2**40)
        assert [c.key for c in list_changes(store)] == ["a"]
        assert list_changes(store, "t") == []

    async def test_nothing_else_is_noted(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        for collection in (BOX, PROGRESS, ARCHIVES):
            await store.insert(collection, "a", b"{}")
        assert list_changes(store) == []
        await store.watch("s", [PROGRESS, ARCHIVES], from_beginning=False)
        cas = await store.insert(PROGRESS, "b", b"{}")
        await store.replace(PROGRESS, "b", b"{}", cas=cas)
        assert list_changes(store) == []

    async def test_watching_from_the_beginning_notes_each_existing_document_once_as_an_insertion(
        self, store: ChangeStore
    ) -> None:
        cas = await store.insert(BAG, "a", b'{"n":1}')
        await store.insert(BAG, "gone", b"{}", expiry_s=0)
        await CLOCK.sleep(OVER_S)
        await store.insert(BOX, "b", b"{}")
        await store.watch("s", [BAG], from_beginning=True)
        await store.watch("s", [BAG], from_beginning=True)
        assert [(c.kind, c.key, c.version, c.after) for c in list_changes(store)] == [("insert", "a", cas, b'{"n":1}')]

    async def test_watching_from_now_on_notes_nothing_of_existing_documents(self, store: ChangeStore) -> None:
        cas = await store.insert(BAG, "a", b"{}")
        await store.watch("s", [BAG], from_beginning=False)
        await store.replace(BAG, "a", b"{}", cas=cas)
        assert [c.kind for c in list_changes(store)] == ["update"]

    async def test_a_release_that_watches_less_still_notes_what_another_one_watches(
        self, store: ChangeStore, other: ChangeStore
    ) -> None:
        await store.watch("s", [BAG, BOX], from_beginning=False)
        await store.insert(BOX, "before", b"{}")
        await other.watch("s", [BAG], from_beginning=False)
        await other.watch("s", [], from_beginning=False)
        await store.insert(BOX, "after", b"{}")
        assert [c.key for c in list_changes(store)] == ["before", "after"]
        assert set(store.list_watched("s")) == set(other.list_watched("s")) == {BAG, BOX}

    async def test_an_unwatched_collection_is_noted_no_more_and_its_changes_are_dropped(
        self, store: ChangeStore
    ) -> None:
        await store.watch("s", [BAG, BOX], from_beginning=False)
        await store.watch("t", [BAG], from_beginning=False)
        await store.insert(BAG, "a", b"{}")
        await store.insert(BOX, "b", b"{}")
        await store.unwatch("s", [BAG])
        await store.insert(BAG, "c", b"{}")
        assert [c.key for c in list_changes(store)] == ["b"]
        assert [c.key for c in list_changes(store, "t")] == ["a", "c"]
        assert set(store.list_watched("s")) == {BOX}

    async def test_a_late_forget_drops_nothing_that_came_later(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        await store.insert(BAG, "a", b"{}")
        frozen = store.read_recorded("s", 10)[-1].number
        await store.forget("s", frozen)
        await store.insert(BAG, "b", b"{}")
        await store.forget("s", frozen)
        assert [c.key for c in list_changes(store)] == ["b"]

    async def test_a_document_past_its_expiry_is_noted_as_expired(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        await store.insert(BAG, "a", b'{"n":1}', expiry_s=0)
        await CLOCK.sleep(OVER_S)
        await store.insert(BAG, "a", b'{"n":2}')
        assert [(c.kind, c.before) for c in list_changes(store)] == [
            ("insert", None),
            ("expiry", b'{"n":1}'),
            ("insert", None),
        ]

    async def test_changes_are_read_in_batches_and_only_if_old_enough(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        assert list(store.read_recorded("s", 2, before_ms=2**60)) == []
        for n in range(5):
            await store.insert(BAG, f"{n}", b"{}")
        assert [each.changed.key for each in store.read_recorded("s", 2)] == ["0", "1"]
        first_ms = store.read_recorded("s", 1)[0].changed.time_ms
        assert list(store.read_recorded("s", 2, before_ms=first_ms)) == []
        assert len(store.read_recorded("s", 2, before_ms=first_ms + 1)) == 2

    async def test_of_several_processes_one_leads_until_it_ends(self, opens: OpenChangeStore) -> None:
        async with opens() as one:
            async with opens() as two:
                assert two.leads("s")
                assert two.leads("s")
                assert not one.leads("s")
                assert one.leads("t")
            assert one.leads("s")


def list_changes(store: ChangeStore, service: str = "s") -> list[DocumentChange]:
    """Return the changes that a store has recorded for a service. Their numbers are left out, because a store may
    choose any increasing numbers.
    """
    noted: list[RecordedChange] = list(store.read_recorded(service, 1000))
    assert [each.number for each in noted] == sorted({each.number for each in noted})
    return [each.changed for each in noted]
