"""Letters as they are found on the topics: what is asked of them, and their originals."""

from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.configuration.settings import Settings
from saga.engine.persistence import dead_letters
from saga.errors import BadInput
from saga.messages import Message, Position, Record, Topic
from saga.ops.dead_letters import DeadLetter, decode_dead_letter, read_originals
from saga.ops.selection import Selection
from saga.support.clock import SystemClock

CLOCK = SystemClock()
LATE = Message(
    id="shop|17",
    type="OrderPlaced",
    schema="orders/OrderPlaced.v1",
    saga="order-17",
    source="shop",
    time="2026-01-01T00:00:00.000Z",
    value=b"v" * 3000,
    started="2026-01-01T00:00:00.000Z",
    foreign=(("x-shop", b"berlin"),),
)


async def test_the_original_of_a_letter_comes_back_unless_it_was_cut(tmp_path: Path) -> None:
    whole = dead_letters.from_forgotten("payment", LATE, Position("orders", 0, 3), None)
    cut = dead_letters.cut(
        whole._replace(headers=tuple((n, b"cut" if n == "dead_id" else v) for n, v in whole.headers)), 2500
    )
    empty = whole._replace(value=None, headers=tuple((n, b"empty" if n == "dead_id" else v) for n, v in whole.headers))
    id_ = dead_letters.forgotten_id("payment", LATE)
    url = f"embedded:///{tmp_path / 'broker.db'}"
    async with EmbeddedBroker(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic("payment.dead", 1, None)])
        await broker.publish([whole, cut, empty])
    settings = Settings.from_environment(broker=url)
    found = await read_originals("payment", {id_, "cut", "empty"}, settings, CLOCK)
    assert found[id_] == LATE
    for name, message in (("cut", "which is at orders/0/3"), ("empty", "the message is empty")):
        why = found[name]
        assert isinstance(why, BadInput)
        assert message in str(why)
    assert await read_originals("payment", {"other"}, settings, CLOCK) == {}
    assert await read_originals("shipping", {id_}, settings, CLOCK) == {}


@pytest.mark.parametrize(
    ("selection", "holds"),
    [
        (Selection(), True),
        (Selection(sagas=("order-17",), type="OrderPlaced", category="data", reason="older", before="2027"), True),
        (Selection(sagas=("order-18",)), False),
        (Selection(type="OrderLost"), False),
        (Selection(category="code"), False),
        (Selection(owner="order"), False),
        (Selection(handler="reserve"), False),
        (Selection(reason="younger"), False),
        (Selection(before="2025"), False),
    ],
)
def test_a_selection_matches_a_dead_letter_if_all_its_fields_do(selection: Selection, *, holds: bool) -> None:
    whole = dead_letters.from_forgotten("payment", LATE, Position("orders", 0, 3), None)
    letter = decode_dead_letter("payment", Record("payment.dead", 0, 0, whole.key, whole.value, whole.headers, 0))
    assert letter is not None
    assert selection.matches(letter) is holds


def test_a_record_of_unknown_time_is_not_selected_by_its_age() -> None:
    unknown = DeadLetter(service="payment", id="d", what="dead letter", time="", reason="not known", remedy="")
    assert not Selection(before="2027").matches(unknown)
    assert Selection().matches(unknown)
