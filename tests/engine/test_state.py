"""The state: only what changed is written back, however it was changed, and only what can be read back."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from saga import Saga, Service
from saga.telemetry.events import Stuck
from saga.testing.trials import trial
from services.order.events import OrderConfirmed
from services.payment.events import OrderPlaced
from tests.engine.real_worker import SAGA, an_order, at_work, workplace


@dataclass(frozen=True)
class Memory:
    seen: int = 0
    last: str = ""
    weight: float = 0.0
    skus: list[str] = field(default_factory=list)
    by_number: dict[int, str] = field(default_factory=dict)


async def test_only_the_fields_that_changed_are_in_the_transition(tmp_path: Path) -> None:
    payment = Service("payment", state=Memory)

    @payment.handler
    async def first(order: OrderPlaced, saga: Saga[Memory]) -> None:
        saga.state = replace(saga.state, last="first", by_number={7: "seven"})

    @payment.handler
    async def second(confirmed: OrderConfirmed, saga: Saga[Memory]) -> None:
        saga.state = replace(saga.state, last="first", seen=saga.state.seen + 1)

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order(), OrderConfirmed(order_id=SAGA))
        await place.at_rest(payment)
        first_entry, second_entry = await place.history(payment)
        assert first_entry.delta == {"last": "first", "by_number": {"7": "seven"}}
        assert second_entry.delta == {"seen": 1}


async def test_a_change_inside_a_mutable_field_is_seen() -> None:
    payment = Service("payment", state=Memory)

    @payment.handler
    async def first(order: OrderPlaced, saga: Saga[Memory]) -> None:
        saga.state.skus.append(order.sku)

    @payment.handler
    async def second(confirmed: OrderConfirmed, saga: Saga[Memory]) -> None:
        saga.state.skus.append("second")

    done = await trial(payment, an_order(), OrderConfirmed(order_id=SAGA))
    assert done.state == Memory(skus=["tea", "second"])


@dataclass(frozen=True)
class Line:
    sku: str
    amount: Decimal


@dataclass(frozen=True)
class Basket:
    skus: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    due: datetime | None = None
    size: tuple[int, str] | None = None


async def test_a_tuple_in_the_state_is_one_when_it_is_read_back() -> None:
    payment = Service("payment", state=Basket)
    filled = Basket(("tea",), (Line("tea", Decimal("9.80")),), datetime(2026, 1, 2, tzinfo=UTC), (2, "kg"))

    @payment.handler
    async def first(order: OrderPlaced, saga: Saga[Basket]) -> None:
        saga.state = filled

    @payment.handler
    async def second(confirmed: OrderConfirmed, saga: Saga[Basket]) -> None:
        assert saga.state == filled
        saga.state = replace(saga.state, skus=(*saga.state.skus, "milk"))

    done = await trial(payment, an_order(), OrderConfirmed(order_id=SAGA))
    assert [transition.outcome for transition in done.progress.transitions] == ["handled", "handled"]
    assert done.state == replace(filled, skus=("tea", "milk"))


async def test_state_changes_of_a_failed_attempt_are_dropped() -> None:
    payment, attempts = Service("payment", state=Memory), list[int]()

    @payment.handler
    async def first(order: OrderPlaced, saga: Saga[Memory]) -> None:
        attempts.append(1)
        saga.state = replace(saga.state, seen=saga.state.seen + 1)
        saga.state.skus.append(order.sku)
        if len(attempts) < 4:
            raise OSError("away")

    done = await trial(payment, an_order())
    assert done.state == Memory(seen=1, skus=["tea"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"weight": float("nan")}, "Permanent: saga.state's 'weight' cannot be recorded: nan is not the same when"),
        ({"last": "\udcff"}, "Permanent: saga.state's 'last' cannot be recorded: "),
        ({"skus": [object()]}, "TypeError: "),
    ],
)
async def test_a_state_that_cannot_be_read_back_is_a_dead_letter(
    tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    payment = Service("payment", state=Memory)

    @payment.handler
    async def first(order: OrderPlaced, saga: Saga[Memory]) -> None:
        saga.state = replace(saga.state, **change)  # type: ignore[arg-type] # no checker has seen it

    async with workplace(tmp_path) as place, at_work(place, payment):
        place.clock.faster = 5000
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"].startswith(reason)
        assert not place.reported(Stuck)


async def test_a_state_of_another_class_is_a_dead_letter(tmp_path: Path) -> None:
    payment = Service("payment", state=Memory)

    @payment.handler
    async def first(order: OrderPlaced, saga: Saga[Memory]) -> None:
        saga.state = {"seen": 1}  # type: ignore[assignment] # no checker has seen it

    async with workplace(tmp_path) as place, at_work(place, payment):
        await place.publish(an_order())
        await place.at_rest(payment)
        ((_, headers),) = await place.dead(payment)
        assert headers["dead_reason"] == (
            "Permanent: first assigned {'seen': 1} to saga.state: it must be an instance of Memory"
        )
