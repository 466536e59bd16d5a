"""Stores that are found: every service in them by name, and what cannot be read told to whoever asked."""

from pathlib import Path

import pytest

from saga.clock import SystemClock
from saga.errors import NoStore
from saga.inspection.listing import Choice, Listed, listed
from saga.inspection.showing import shown
from saga.inspection.sources import sources_of
from saga.names import PROGRESS
from saga.progress.document import Snapshot, encode, progress_key
from saga.store.sqlite import SqliteStore

CLOCK = SystemClock()


async def a_store(folder: Path, *services: str) -> str:
    """A store that knows order-1 in these services; its address."""
    file = folder / f"{'-and-'.join(services)}.db"
    async with SqliteStore(file, clock=CLOCK) as store:
        for service in services:
            content = encode(Snapshot(service=service, saga="order-1", n=0, first=0))
            await store.insert(PROGRESS, progress_key(service, "order-1"), content)
    return f"sqlite:///{file}"


async def damage(address: str, service: str) -> None:
    async with SqliteStore(Path(address.removeprefix("sqlite:///")), clock=CLOCK) as store:
        document = await store.get(PROGRESS, progress_key(service, "order-1"))
        assert document is not None
        await store.replace(PROGRESS, progress_key(service, "order-1"), b"{}", cas=document.cas)


async def test_services_are_given_by_name_however_their_stores_are_given(tmp_path: Path) -> None:
    shared, alone = await a_store(tmp_path, "shipping", "payment"), await a_store(tmp_path, "order")
    for addresses in ([shared, alone], [alone, shared]):
        async with sources_of(addresses, CLOCK) as sources:
            assert [source.service for source in sources] == ["order", "payment", "shipping"]


async def test_where_no_store_is_found_that_is_told(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match="no file matches"):
        async with sources_of([f"sqlite:///{tmp_path}/{{service}}.db"], CLOCK):
            pass


async def test_what_cannot_be_read_is_told_and_the_rest_is_given(tmp_path: Path) -> None:
    address = await a_store(tmp_path, "order", "payment")
    await damage(address, "payment")
    told = list[object]()
    found = [each async for each in listed(Choice(addresses=[address], limit=5), CLOCK, told.append)]
    assert [[s.service for s in each.statuses] for each in found if isinstance(each, Listed)] == [["order"]]
    [what] = told
    assert str(what).startswith("saga order-1 in payment (document payment::order-1): it cannot be read")
    told.clear()
    seen = await shown("order-1", [address], CLOCK, told.append)
    assert [history.service for history in seen.histories] == ["order"]
    [what] = told
    assert "saga order-1 in payment" in str(what)
