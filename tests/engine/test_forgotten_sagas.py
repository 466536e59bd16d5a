"""Messages of a saga that the service has forgotten, beside one that an operator had handled as a new one."""

from pathlib import Path

from msgspec.structs import replace

from saga.progress import ids
from saga.support.clock import iso
from services.payment import payment
from services.payment.bank import Bank
from services.payment.events import OrderCancelled
from tests.engine.driven_workers import place
from tests.engine.real_worker import SAGA

DAY_MS = 86_400_000


async def test_after_a_message_is_handled_as_new_the_others_of_its_saga_stay_too_old(tmp_path: Path) -> None:
    async with place(tmp_path) as workers:
        at = await workers.worker(payment, use=[Bank()])
        service, now_ms = at.participant, workers.clock.now_ms()
        began, again = iso(now_ms - 40 * DAY_MS), iso(now_ms - 1)  # the retention is 30 days
        old = at.message(OrderCancelled(order_id=SAGA, reason="late"), started=began)
        p = await at.progress()
        assert service.is_of_forgotten_saga(p, old), "nothing is known of the saga"
        handled_as_new = replace(p, started=again, replays=1, n=1)
        assert service.is_of_forgotten_saga(handled_as_new, old)
        assert not service.is_of_forgotten_saga(replace(handled_as_new, replays=0), old), "a saga with two starts"
        assert not service.is_of_forgotten_saga(replace(handled_as_new, started=began), old), "it is of this life"
        assert not service.is_of_forgotten_saga(handled_as_new, replace(old, started=again))
        known = replace(handled_as_new, inbox={ids.inbox_entry(old.id, "undo reserve"): 1})
        assert not service.is_of_forgotten_saga(known, old), "it is handled already"
