"""Names in stored documents, which someone else may have written: they are looked up in what the service declares."""

import json
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from saga import Saga, Service
from saga.errors import Permanent
from saga.messages import Record
from saga.ops.dead_letters import decode_dead_letter
from saga.progress.document import progress_key
from services.order.events import OrderCancelled
from services.payment.events import OrderPlaced, PaymentReserved
from tests.engine.real_worker import SAGA, Workplace, an_order, at_work, workplace

FREED = list[str]()


class Bank:
    """Bank that takes money, and gives it back."""

    token = "the bank's own"

    async def book(self, order: str) -> str:
        return order

    async def free(self, order: str) -> None:
        FREED.append(order)

    async def _burn(self, order: str) -> None:
        FREED.append(f"burnt {order}")


async def give_back(order: str) -> None:
    FREED.append(f"given back {order}")


@dataclass(frozen=True)
class Stock:
    left: int = 5

    def take(self) -> "Stock":
        raise Permanent("nothing is known of it")


def payment_with_documents() -> Service[Any]:
    payment = Service("payment")
    payment.document(Stock, "stock")

    @payment.resource()
    async def bank() -> AsyncIterator[Bank]:
        yield Bank()

    @payment.handler
    async def reserve(order: OrderPlaced, bank: Bank, saga: Saga) -> PaymentReserved:
        await saga.step(bank.book, order.order_id)
        saga.on_abort(bank.free, order.order_id)
        await saga.update(Stock, "tea", Stock.take)
        raise Permanent("and then nothing")

    @payment.compensation(reserve)
    async def release(cancelled: OrderCancelled, reserved: PaymentReserved) -> None: ...

    return payment


async def rewritten(place: Workplace, old: str, new: str) -> None:
    """Overwrite one row of the store by hand."""
    key = progress_key("payment", SAGA)
    there = await place.store.get("saga", key)
    assert there is not None
    content = there.content.decode()
    assert json.dumps(old) in content
    await place.store.replace("saga", key, content.replace(json.dumps(old), json.dumps(new)).encode(), cas=there.cas)


async def undone(place: Workplace, old: str, new: str) -> list[str]:
    """Calls that an operator is asked to put right, when the order is cancelled after a row was overwritten."""
    FREED.clear()
    async with at_work(place, payment_with_documents()):
        await place.publish(an_order())
        await place.at_rest(payment_with_documents())
    await rewritten(place, old, new)
    payment = payment_with_documents()
    async with at_work(place, payment):
        await place.publish(OrderCancelled(order_id=SAGA, reason="no"))
        await place.at_rest(payment)
        records = [decode_dead_letter("payment", Record(*r)) for r, _ in await place.dead(payment)]
    return [call for each in records if each is not None and each.what == "escalation" for call in each.calls]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check that no module is imported that was not imported before, nor its function called."""
    mark = tmp_path / "imported"
    code = f"open({str(mark)!r}, 'a').close()"
    (tmp_path / "never_imported.py").write_text(f"{code}\nasync def run(order: str) -> None:\n    {code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    assert not mark.exists()


@pytest.mark.parametrize(
    "name",
    [
        "never_imported:run",
        "os:system",
        "asyncio.subprocess:create_subprocess_shell",
        "tests.engine.real_worker:leap",
        "saga.engine.execution.abort_actions:found",
        f"{__name__}:Bank.free",
        "bank._burn",
        "bank.__init__",
        "bank.token",
        "bank.nothing",
        "till.free",
    ],
)
@pytest.mark.usefixtures("imported")
async def test_a_stored_name_that_the_service_does_not_declare_is_neither_imported_nor_called(
    tmp_path: Path, name: str
) -> None:
    async with workplace(tmp_path) as place:
        calls = await undone(place, "bank.free", name)
    assert [call for call in calls if "not there any more" in call] == [f"{name} is not there any more"]
    assert FREED == []
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize(("name", "freed"), [("bank.free", [SAGA]), (f"{__name__}:give_back", [f"given back {SAGA}"])])
async def test_what_the_service_declares_is_found_by_its_name(tmp_path: Path, name: str, freed: list[str]) -> None:
    async with workplace(tmp_path) as place:
        await undone(place, "bank.free", name)
    assert freed == FREED


@pytest.mark.parametrize("document", ["saga/other::order-1", "saga-archive/other", "elsewhere/tea"])
async def test_nothing_is_written_to_a_collection_that_only_a_stored_document_names(
    tmp_path: Path, document: str
) -> None:
    async with workplace(tmp_path) as place:
        calls = await undone(place, "stock/tea", document)
        collection, _, key = document.partition("/")
        assert await place.store.get(collection, key) is None
    what = "may have been applied, and this version declares no such collection"
    assert calls == [f"update take on {document} {what}"]
