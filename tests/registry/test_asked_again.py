"""A message does not store answers of the schema registry: each replay asks it again."""

import json
from pathlib import Path

from saga import Service
from saga.contracts.foreign_values import frame
from saga.messages import Outgoing
from saga.messaging import operator_commands
from saga.progress.document import SagaProgress
from saga.support.clock import Clock
from saga.telemetry.events import Stuck
from tests.engine.real_worker import Workplace, at_work, workplace
from tests.registry.shop import PLACED, Shop, open_at

LATE = 99


def a_frame(place: Workplace, shop: Shop, id_: int = LATE) -> Outgoing:
    sent = place.record_of(shop.an_order())
    return sent._replace(value=frame(id_, sent.value or b""), subject="")


def dead_of(p: SagaProgress | None) -> list[str]:
    assert p is not None
    return [kept.dead for kept in p.queue if kept.dead]


async def replay(place: Workplace, shop: Shop, clock: Clock) -> list[str]:
    """Have the dead letter of the saga tried again; returns the outcomes of all its transitions."""
    (dead,) = dead_of(await place.progress(shop.service, "order-1"))
    wish = operator_commands.command_to_record(
        shop.service.declared.name,
        "order-1",
        "replay",
        operator_commands.CommandValue(dead=dead, who="ada", why="mended"),
        clock.now_ms(),
    )
    await place.broker.publish([wish])
    await place.at_rest(shop.service)
    return [entry.outcome for entry in await place.history(shop.service, "order-1")]


async def test_a_replay_finds_a_schema_id_registered_since(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.register()
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        await place.broker.publish([a_frame(place, shop)])
        await place.at_rest(shop.service)
        assert await replay(place, shop, shop.clock) == ["dead", "replayed", "dead"], "it is asked, and has none still"
        asked = shop.registry.asked.count(f"schema {LATE}")
        shop.registry.by_id[LATE] = json.dumps(PLACED)
        assert (await replay(place, shop, shop.clock))[3:] == ["replayed", "handled"]
        assert shop.registry.asked.count(f"schema {LATE}") == asked + 1


async def test_a_registry_configured_after_a_restart_is_asked_on_replay(tmp_path: Path) -> None:
    shop = Shop(tmp_path, "single-object")
    shop.register()
    async with workplace(tmp_path) as place, at_work(place, shop.service):
        await place.broker.publish([a_frame(place, shop, 2)])
        await place.at_rest(shop.service)
        ((_, headers),) = await place.dead(shop.service)
        assert headers["dead_reason"].startswith("BadInput: the value is in the wire format of a schema registry, and")
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        assert (await replay(place, shop, shop.clock))[-1] == "handled"


async def test_a_replay_waits_during_an_outage_of_the_registry(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.register()
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        await place.broker.publish([a_frame(place, shop)])
        await place.at_rest(shop.service)
        shop.registry.is_away = True
        shop.registry.by_id[LATE] = json.dumps(PLACED)
        (dead,) = dead_of(await place.progress(shop.service, "order-1"))
        wish = operator_commands.command_to_record(
            "cash",
            "order-1",
            "replay",
            operator_commands.CommandValue(dead=dead, who="a", why="b"),
            place.clock.now_ms(),
        )
        await place.broker.publish([wish])
        await place.until(lambda: bool(place.reported(Stuck)))
        shop.registry.is_away = False
        await place.at_rest(shop.service)
        assert [entry.outcome for entry in await place.history(shop.service, "order-1")][-1] == "handled"


async def test_a_replayed_fan_in_part_is_decoded_with_the_schema_registered_since(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.register()
    shop.service = Service("audit")

    async def join(placed, paid) -> None:  # type: ignore[no-untyped-def]  # its classes are made while the test runs
        """Take both."""

    join.__annotations__ = {"placed": shop.placed, "paid": shop.paid, "return": None}
    shop.service.handler(join)
    async with open_at(shop, tmp_path) as place, at_work(place, shop.service):
        await place.broker.publish([a_frame(place, shop)])
        await place.at_rest(shop.service)
        assert [e.outcome for e in await place.history(shop.service, "order-1")] == ["dead"], "it waits for nothing"
        shop.registry.by_id[LATE] = json.dumps(PLACED)
        assert (await replay(place, shop, shop.clock))[-1] == "waiting"
