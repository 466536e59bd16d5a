"""A lost progress is rebuilt from topics in the wire format of a schema registry."""

from pathlib import Path

from saga.configuration.settings import Settings
from saga.contracts.library import binding_of
from saga.messaging.names import PROGRESS
from saga.ops.repair import rebuild
from saga.ops.schema_registration import find_registrable, register
from saga.progress.document import progress_key
from saga.registry.http import HttpRegistry
from saga.registry.port import RegistryOptions
from tests.engine.real_worker import Workplace, at_work
from tests.registry.shop import Edge, Shop
from tests.servers.registry import RegistryServer


async def test_a_lost_progress_is_rebuilt_and_its_events_are_published_in_the_wire_format(
    tmp_path: Path, schema_registry: RegistryServer
) -> None:
    mark = "".join(each for each in tmp_path.parent.name if each.isalnum())
    shop = Shop(tmp_path / "shop", sales=f"sales-anew-{mark}", money=f"money-anew-{mark}")
    sales, money = shop.topics
    library, settings = binding_of(shop.placed).library, {"SAGA_REGISTRY": schema_registry.url}
    await register(find_registrable(library), Settings.read(settings), shop.clock)
    place = Workplace(tmp_path)
    registry = HttpRegistry(RegistryOptions(registry=schema_registry.url))
    place.broker = Edge(place.broker, registry, place.clock)  # type: ignore[assignment]
    async with place.broker, place.store:
        await place.broker.ensure_topics([library.topics[sales], library.topics[money]])
        async with at_work(place, shop.service):
            await place.publish(shop.an_order())
            await place.at_rest(shop.service)
        before = await place.history(shop.service, "order-1")
        key = progress_key("cash", "order-1")
        document = await place.store.get(PROGRESS, key)
        assert document is not None
        await place.store.remove(PROGRESS, key, cas=document.cas)
    settings |= {
        "SAGA_BROKER": f"embedded:///{tmp_path / 'broker.db'}",
        "SAGA_STORE": f"sqlite:///{tmp_path / 'store.db'}",
    }
    made = [one async for one in rebuild([shop.service.declared], Settings.read(settings), shop.clock, apply=True)]
    assert [(one.saga, one.did, one.unsaid, one.problem) for one in made] == [
        ("order-1", (("take", "handled"),), (), None)
    ]
    place = Workplace(tmp_path)
    async with place.broker, place.store:
        after = await place.history(shop.service, "order-1")
        assert [(e.message, e.events) for e in after] == [(e.message, e.events) for e in before]
