"""Discovery of stores: every service in them by name, and unreadable stores are reported."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedAdministration
from saga.engine.outage_watch import OutageWatch
from saga.engine.persistence.service_record import REACTIONS_KEY, ensure_record
from saga.errors import ConfigurationError, NoStore, SagaError
from saga.messages import Topic
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.ops.operator_commands import read_control_log
from saga.ops.sagas import ListedSaga, list_sagas, read_saga
from saga.ops.selection import Deployment, Selection
from saga.ops.sources import open_stores
from saga.progress.document import SagaProgress, encode, progress_key
from saga.store.port import Document
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from services.payment import payment

CLOCK = SystemClock()


async def a_store(folder: Path, *services: str) -> str:
    """A store that knows order-1 in these services; its address."""
    file = folder / f"{'-and-'.join(services)}.db"
    async with SqliteStore(file, clock=CLOCK) as store:
        for service in services:
            content = encode(SagaProgress(service=service, saga="order-1", n=0, first=0))
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
        async with open_stores(addresses, CLOCK) as sources:
            assert [source.service for source in sources] == ["order", "payment", "shipping"]


async def test_a_pattern_without_a_matching_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(NoStore, match="no file matches"):
        async with open_stores([f"sqlite:///{tmp_path}/{{service}}.db"], CLOCK):
            pass


async def test_an_unreadable_store_is_reported_and_the_others_are_opened(tmp_path: Path) -> None:
    address = await a_store(tmp_path, "order", "payment")
    await damage(address, "payment")
    warnings = list[object]()
    deployment = Deployment(stores=[address], clock=CLOCK, warn=warnings.append)
    found = [each async for each in list_sagas(Selection(limit=5), deployment)]
    assert [[s.service for s in each.statuses] for each in found if isinstance(each, ListedSaga)] == [["order"]]
    [what] = warnings
    assert str(what).startswith("saga order-1 in payment (document payment::order-1): it cannot be read")
    warnings.clear()
    seen = await read_saga("order-1", deployment)
    assert [history.service for history in seen.histories] == ["order"]
    [what] = warnings
    assert "saga order-1 in payment" in str(what)


class Counted(SqliteStore):
    """Store that counts its reads of sagas."""

    scans = 0

    async def scan(self, collection: str, prefix: str = "") -> AsyncIterator[tuple[str, Document]]:
        Counted.scans += 1
        async for each in super().scan(collection, prefix):
            yield each


async def test_services_of_one_file_are_found_without_a_look_at_their_sagas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = await a_store(tmp_path, "payment", "payment-eu", "pay", "order")
    monkeypatch.setattr("saga.store.sqlite.store.SqliteStore", Counted)
    async with open_stores([address], CLOCK) as sources:
        assert [source.service for source in sources] == ["order", "pay", "payment", "payment-eu"]
    assert Counted.scans == 0


async def test_a_service_of_one_file_is_found_before_it_has_a_saga(tmp_path: Path) -> None:
    """An operator may pause it before the first event, and what was paused has to be shown."""
    address = await a_store(tmp_path, "order")
    async with SqliteStore(Path(address.removeprefix("sqlite:///")), clock=CLOCK) as store:
        await ensure_record(payment.declared, store, CLOCK, OutageWatch("payment", CLOCK, lambda _: None))
        deployment = Deployment(stores=[address], clock=CLOCK, warn=print)
        assert (await read_control_log("payment", deployment)).entries == ()
        for named in ((), ("order", "payment")):
            async with open_stores([address], CLOCK, named) as sources:
                assert [source.service for source in sources] == ["order", "payment"]
        listed = await store.get(ARCHIVES, REACTIONS_KEY)
        assert listed is not None
        await store.replace(ARCHIVES, REACTIONS_KEY, b"damaged", cas=listed.cas)
        async with open_stores([address], CLOCK) as sources:
            assert [source.service for source in sources] == ["order"]


async def test_a_store_on_which_a_service_only_ran_does_not_hide_the_one_with_its_sagas(tmp_path: Path) -> None:
    """It may have been started once with the address of the others."""
    shared, own, empty = [
        await a_store(tmp_path, *names) for names in (("order", "shipping"), ("payment",), ("tally",))
    ]
    for address in (shared, empty):
        async with SqliteStore(Path(address.removeprefix("sqlite:///")), clock=CLOCK) as store:
            await ensure_record(payment.declared, store, CLOCK, OutageWatch("payment", CLOCK, lambda _: None))
    for addresses in ([shared, own, empty], [empty, own, shared]):
        async with open_stores(addresses, CLOCK) as sources:
            assert [source.service for source in sources] == ["order", "payment", "shipping", "tally"]
            assert await sources[1].store.get(PROGRESS, progress_key("payment", "order-1")) is not None
    with pytest.raises(ConfigurationError, match="have payment: name only the one that it uses"):
        async with open_stores([shared, empty], CLOCK):
            pass


async def test_a_service_has_one_store_however_often_it_is_named(tmp_path: Path) -> None:
    one, pattern = await a_store(tmp_path, "payment"), f"sqlite:///{tmp_path}/{{service}}.db"
    await a_store(tmp_path, "order")
    for addresses in ([one, one], [one, pattern], [pattern, one]):
        async with open_stores(addresses, CLOCK) as sources:
            assert [source.service for source in sources] == ["order", "payment"][-len(sources) :]
            assert ("order" in {source.service for source in sources}) == (pattern in addresses)
    both = await a_store(tmp_path, "payment", "order")
    with pytest.raises(ConfigurationError, match=r"payment\.db and .*payment-and-order\.db have payment: name only"):
        async with open_stores([one, both], CLOCK):
            pass
    async with open_stores([one, both], CLOCK, ["order"]) as sources:
        assert [source.service for source in sources] == ["order"]


async def test_one_file_has_two_spellings_and_is_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await a_store(tmp_path, "payment")
    (tmp_path / "linked").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    for spelling in ("sqlite:///payment.db", "sqlite:///{service}.db", f"sqlite:///{tmp_path}/linked/payment.db"):
        for addresses in ([one, spelling], [spelling, one]):
            async with open_stores(addresses, CLOCK) as sources:
                assert [source.service for source in sources] == ["payment"]


async def test_a_store_that_cannot_list_its_services_is_read_once_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = await a_store(tmp_path, "payment"), await a_store(tmp_path, "order", "payment")
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path}/broker.db")
    monkeypatch.setattr("saga.ops.sources.KeysInOrder", type("Nothing", (), {}))
    for services in ((), ("payment",)):
        async with open_stores([one, one], CLOCK, services) as sources:
            assert [source.service for source in sources].count("payment") == 1
    async with open_stores([one, other], CLOCK, ["payment"]) as sources:  # either may have its sagas
        assert [source.service for source in sources] == ["payment"] * 2


async def test_only_the_stores_of_services_that_are_named_are_opened(tmp_path: Path) -> None:
    for service in ("order", "payment"):
        await a_store(tmp_path, service)
    (tmp_path / "order.db").write_bytes(b"damaged" * 1000)
    async with open_stores([f"sqlite:///{tmp_path}/{{service}}.db"], CLOCK, ["payment"]) as sources:
        assert [source.service for source in sources] == ["payment"]


@pytest.mark.parametrize("one_file", [True, False])
async def test_an_unknown_service_is_reported_with_the_known_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, one_file: bool
) -> None:
    monkeypatch.setenv("SAGA_BROKER", f"embedded:///{tmp_path}/broker.db")
    address = await a_store(tmp_path, "order", "payment") if one_file else f"sqlite:///{tmp_path}/{{service}}.db"
    if not one_file:
        await a_store(tmp_path, "order")
        await a_store(tmp_path, "payment")
    for _ in range(2):
        with pytest.raises(SagaError, match=r"no service paymnet is known here, there are: .*order, payment"):
            async with open_stores([address], CLOCK, ["paymnet", "order"]):
                pass
        async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
            await broker.ensure_topics([Topic("shipping.commands", 1), Topic("orders", 1)])
    async with open_stores([address], CLOCK, ["shipping"]) as sources:
        assert [source.service for source in sources] == [], "it has published nothing yet"


async def test_without_a_known_broker_missing_services_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_BROKER", "redis://here")
    async with open_stores([await a_store(tmp_path, "order")], CLOCK, ["payment"]) as sources:
        assert sources == []


async def test_a_saga_that_is_named_is_read_and_others_are_not_looked_at(tmp_path: Path) -> None:
    address = await a_store(tmp_path, "order", "payment")
    selection = Selection(sagas=["order-1", "order-2", "order-1"], limit=5)
    found = [each async for each in list_sagas(selection, Deployment(stores=[address], clock=CLOCK, warn=print))]
    assert [(each.saga, len(each.statuses)) for each in found if each is not None] == [("order-1", 2)]
