"""The last good result of a call, as the page for operators shows it: given while the breaker is open, and recorded."""

from pathlib import Path
from typing import Any

from saga.observe.moments import BreakerTurned
from tests.docs.markdown import ROOT, blocks
from tests.runtime.driven_workers import place
from tests.runtime.real_worker import an_order

PAGE = (ROOT / "docs" / "operating.md").read_text("utf-8")
SAFE = 80


def shown() -> dict[str, Any]:
    """The names of the module that the page shows."""
    [body] = [block.body for block in blocks(PAGE) if block.title == "last_good_result.py"]
    names: dict[str, Any] = {"__name__": "shown"}
    exec(compile(body, "last_good_result.py", "exec"), names)
    return names


async def test_while_the_breaker_is_open_the_last_result_is_given_and_recorded(tmp_path: Path) -> None:
    names = shown()
    bureau_class = names["Bureau"]

    class Bureau(bureau_class):  # type: ignore[misc, valid-type] # of the page
        fails = False

        async def ask(self, customer_id: str) -> int:
            if self.fails:
                raise ConnectionError("away")
            return SAFE

    bureau = Bureau()
    async with place(tmp_path) as at:
        worker = await at.worker(names["payment"], use=[bureau])
        await worker.takes(an_order("order-01"))
        bureau.fails = True
        for number in range(2, 6):
            await worker.takes(an_order(f"order-0{number}"))
        assert [m.state for m in worker.moments if isinstance(m, BreakerTurned)] == ["open"]
        await worker.takes(an_order())
        [entry] = await worker.history()
        assert [(call.name, call.answer) for call in entry.calls] == [("score", "BreakerOpen"), ("last_score", None)]
        assert bytes(entry.calls[1].value) == str(SAFE).encode()
        assert [event.type for event in entry.events] == ["PaymentReserved"]


async def test_a_result_that_is_too_old_is_none(tmp_path: Path) -> None:
    names = shown()
    last_score, kept = names["last_score"], names["kept"]
    assert await last_score("c-1") is None
    kept["c-1"] = names["monotonic"](), SAFE
    assert await last_score("c-1") == SAFE
    kept["c-1"] = names["monotonic"]() - names["GOOD_S"] - 1, SAFE
    assert await last_score("c-1") is None
