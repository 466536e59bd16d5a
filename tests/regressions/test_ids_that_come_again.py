"""A saga id that comes again after the memory: a new saga, whose archives are not those of the old one."""

from datetime import timedelta
from pathlib import Path

from saga import Service
from saga.ops.histories import read_history
from saga.ops.sources import ServiceStore
from saga.progress import history
from saga.progress.document import progress_key
from saga.telemetry.events import Stuck
from services.payment.events import OrderPlaced
from tests.engine.real_worker import SAGA, an_order, at_work, workplace


async def test_a_long_saga_that_reuses_a_forgotten_id_is_archived_and_verified(tmp_path: Path) -> None:
    inventory = Service("inventory", retention=timedelta(days=1))

    @inventory.handler(repeats=OrderPlaced)
    async def note(order: OrderPlaced) -> None:
        return None

    async with workplace(tmp_path) as place:
        for life, messages in (("first", 190), ("second", 130)):
            async with at_work(place, inventory):
                await place.broker.publish([place.record_of(an_order(), id=f"{life}-{n}") for n in range(messages)])
                await place.at_rest(inventory)
            assert not place.reported(Stuck)
            whole = await read_history(ServiceStore("inventory", place.store), SAGA)
            assert whole is not None
            assert len(whole.transitions) == messages
            assert history.verify_history(whole.transitions, whole.progress) is None
            document = await place.store.get("saga", progress_key("inventory", SAGA))
            assert document is not None
            await place.store.remove("saga", progress_key("inventory", SAGA), cas=document.cas)  # as expiry does
