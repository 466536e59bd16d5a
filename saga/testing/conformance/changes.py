"""Tests of the promises of `saga.change`, one each, for every store that notes changes.

An adapter's test subclasses `ChangesConformance` and gives the fixture `opens`, as for the store's own suite.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeAlias

import pytest

from saga.change import ChangeSource, DocumentChange, RecordedChange
from saga.errors import Conflict, Exists
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.store.port import Store
from saga.support.clock import SystemClock

BAG, BOX = "bags", "boxes"
CLOCK = SystemClock()
OVER_S = 0.01
"""Pause after which a time that is over now is over by the clock of the store, too: it may round another way."""


class ChangeStore(Store, ChangeSource, Protocol):
    """Store that notes changes."""


OpenChangeStore: TypeAlias = Callable[[], ChangeStore]
"""Function that gives another store object, not yet entered, on the same empty place."""


class ChangesConformance:
    """Tests of the promises. `store` and `other` are two open stores on one place, as two processes would have them."""

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

    async def test_a_store_that_notes_changes_says_so(self, store: ChangeStore) -> None:
        assert isinstance(store, ChangeSource)

    async def test_each_change_is_noted_in_order_with_what_was_before(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        first = await store.insert(BAG, "a", b'{"n":1}')
        second = await store.replace(BAG, "a", b'{"n":2}', cas=first)
        third = await store.replace(BAG, "a", b'{"n":3}', cas=second, keep_expiry=True)
        await store.remove(BAG, "a", cas=third)
        assert [(c.kind, c.before, c.after) for c in changes(store)] == [
            ("insert", None, b'{"n":1}'),
            ("update", b'{"n":1}', b'{"n":2}'),
            ("update", b'{"n":2}', b'{"n":3}'),
            ("delete", b'{"n":3}', None),
        ]
        assert [c.key for c in changes(store)] == ["a"] * 4
        assert [c.version for c in changes(store)][:3] == [first, second, third]

    async def test_versions_of_a_document_only_grow_after_its_removal_too(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        for _ in range(3):
            cas = await store.insert(BAG, "a", b"{}")
            await store.remove(BAG, "a", cas=cas)
        versions = [(c.version, c.kind != "insert") for c in changes(store)]
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
        assert len(changes(store)) == 1

    async def test_many_writers_at_once_have_each_change_noted_once(
        self, store: ChangeStore, other: ChangeStore
    ) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        await asyncio.gather(*(each.insert(BAG, f"{n}", b"{}") for n, each in enumerate([store, other] * 50)))
        assert sorted(int(c.key) for c in changes(store)) == list(range(100))

    async def test_what_was_noted_stays_until_it_is_forgotten(self, store: ChangeStore, opens: OpenChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        for n in range(5):
            await store.insert(BAG, f"{n}", b"{}")
        await store.forget("s", store.read_recorded("s", 2)[-1].number)
        async with opens() as again:
            await again.watch("s", [BAG], from_beginning=True)
            assert [c.key for c in changes(again)] == ["2", "3", "4"]

    async def test_each_service_forgets_its_own(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        await store.watch("t", [BAG, BOX], from_beginning=False)
        await store.insert(BAG, "a", b"{}")
        await store.insert(BOX, "b", b"{}")
        await store.forget("t", 2**40)
        assert [c.key for c in changes(store)] == ["a"]
        assert changes(store, "t") == []

    async def test_nothing_else_is_noted(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        for collection in (BOX, PROGRESS, ARCHIVES):
            await store.insert(collection, "a", b"{}")
        assert changes(store) == []
        await store.watch("s", [PROGRESS, ARCHIVES], from_beginning=False)
        cas = await store.insert(PROGRESS, "b", b"{}")
        await store.replace(PROGRESS, "b", b"{}", cas=cas)
        assert changes(store) == []

    async def test_from_the_beginning_each_document_that_is_there_is_an_insertion_once(
        self, store: ChangeStore
    ) -> None:
        cas = await store.insert(BAG, "a", b'{"n":1}')
        await store.insert(BAG, "gone", b"{}", expiry_s=0)
        await CLOCK.sleep(OVER_S)
        await store.insert(BOX, "b", b"{}")
        await store.watch("s", [BAG], from_beginning=True)
        await store.watch("s", [BAG], from_beginning=True)
        assert [(c.kind, c.key, c.version, c.after) for c in changes(store)] == [("insert", "a", cas, b'{"n":1}')]

    async def test_from_now_on_what_is_there_is_not_told(self, store: ChangeStore) -> None:
        cas = await store.insert(BAG, "a", b"{}")
        await store.watch("s", [BAG], from_beginning=False)
        await store.replace(BAG, "a", b"{}", cas=cas)
        assert [c.kind for c in changes(store)] == ["update"]

    async def test_a_release_that_knows_less_goes_on_noting_what_another_one_watches(
        self, store: ChangeStore, other: ChangeStore
    ) -> None:
        await store.watch("s", [BAG, BOX], from_beginning=False)
        await store.insert(BOX, "before", b"{}")
        await other.watch("s", [BAG], from_beginning=False)
        await other.watch("s", [], from_beginning=False)
        await store.insert(BOX, "after", b"{}")
        assert [c.key for c in changes(store)] == ["before", "after"]
        assert set(store.list_watched("s")) == set(other.list_watched("s")) == {BAG, BOX}

    async def test_what_a_person_has_unwatched_is_noted_no_more_and_dropped(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG, BOX], from_beginning=False)
        await store.watch("t", [BAG], from_beginning=False)
        await store.insert(BAG, "a", b"{}")
        await store.insert(BOX, "b", b"{}")
        await store.unwatch("s", [BAG])
        await store.insert(BAG, "c", b"{}")
        assert [c.key for c in changes(store)] == ["b"]
        assert [c.key for c in changes(store, "t")] == ["a", "c"]
        assert set(store.list_watched("s")) == {BOX}

    async def test_whoever_forgets_late_forgets_nothing_that_came_later(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        await store.insert(BAG, "a", b"{}")
        frozen = store.read_recorded("s", 10)[-1].number
        await store.forget("s", frozen)
        await store.insert(BAG, "b", b"{}")
        await store.forget("s", frozen)
        assert [c.key for c in changes(store)] == ["b"]

    async def test_a_document_whose_time_is_over_has_expired(self, store: ChangeStore) -> None:
        await store.watch("s", [BAG], from_beginning=False)
        await store.insert(BAG, "a", b'{"n":1}', expiry_s=0)
        await CLOCK.sleep(OVER_S)
        await store.insert(BAG, "a", b'{"n":2}')
        assert [(c.kind, c.before) for c in changes(store)] == [
            ("insert", None),
            ("expiry", b'{"n":1}'),
            ("insert", None),
        ]

    async def test_a_few_at_a_time_and_only_what_is_old_enough_are_read(self, store: ChangeStore) -> None:
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


def changes(store: ChangeStore, service: str = "s") -> list[DocumentChange]:
    """Changes that a store has noted, without their numbers, which only have to grow."""
    noted: list[RecordedChange] = list(store.read_recorded(service, 1000))
    assert [each.number for each in noted] == sorted({each.number for each in noted})
    return [each.changed for each in noted]
