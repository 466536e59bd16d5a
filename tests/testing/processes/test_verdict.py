"""What a quiet world must not have written down."""

from msgspec import Raw
from msgspec.structs import replace

from saga.messages import Message, Position
from saga.progress import record
from saga.progress.document import Snapshot
from saga.progress.record import Hand
from saga.progress.timeline import History
from saga.testing.processes.verdict import outcomes_of, problems
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment import payment
from tests.progress.pieces import NOW_MS, a_hand, a_message, a_role, an_intent, blank, kept, roles_of

ROLE = a_role("confirm", "A", many=True, decides=True)
ROLES = roles_of(ROLE, outcomes="OrderConfirmed OrderCancelled", emitted="OrderConfirmed OrderCancelled")
OUTCOMES = ["OrderConfirmed", "OrderCancelled"]


def handled(p: Snapshot, *events: Message) -> Snapshot:
    message = a_message("A", id=f"m-{p.n}")
    hand = Hand(
        message=message, position=Position("things", 0, p.n), roles=roles_of(), heard=(), now_ms=NOW_MS, memory_s=1000
    )
    return record.handled(
        p, hand, ROLES, ROLE, cause=message.id, message=message, parts=(message,), delta={"x": p.n}, events=events,
        calls=(), attempt=1,
    ).snapshot  # fmt: skip


def in_another(saga: str = "s") -> Snapshot:
    return replace(blank(), service="other", saga=saga)


def found(*progresses: Snapshot) -> list[str]:
    return list(problems([History(p, p.transitions) for p in progresses], OUTCOMES))


def test_a_saga_that_ended_is_as_it_must_be() -> None:
    assert found(handled(blank(), a_message("OrderConfirmed"))) == []


def test_a_changed_history_is_found() -> None:
    p = handled(handled(blank()))
    changed = Raw(bytes(p.transitions[0]).replace(b'"x":0', b'"x":7'))
    assert changed != p.transitions[0]
    assert found(replace(p, transitions=(changed, p.transitions[1]))) == [
        "saga s in svc: its history is not what was written: transition 1 does not follow what is before it: "
        "something there was changed"
    ]


def test_what_is_still_open_is_told_with_saga_and_service() -> None:
    begun = replace(handled(blank()), intents=(an_intent("confirm", a_message()),))
    assert found(begun) == ["saga s in svc: still open when nothing goes on any more: 1 begun"]
    queued = replace(handled(blank()), queue=(kept("confirm", a_message()),), compensating=(kept("undo", a_message()),))
    assert found(queued) == ["saga s in svc: still open when nothing goes on any more: 1 queued, 1 to be undone"]


def test_what_waits_in_a_saga_that_went_another_way_is_not_open() -> None:
    assert found(replace(handled(blank()), waiting=(kept("both", a_message()),))) == []


def test_what_is_open_behind_a_dead_letter_waits_for_a_person() -> None:
    message = a_message("A", id="m-9")
    dead = record.dead(
        blank(), a_hand(message), ROLE, message, undo=False, reason="why", remedy="mend", attempts=2, intent=None
    ).snapshot
    queued = replace(dead, queue=(kept("confirm", a_message()),))
    assert queued.is_open
    assert found(queued) == []
    elsewhere = replace(handled(in_another()), queue=(kept("confirm", a_message()),))
    assert found(queued, elsewhere) == []
    assert found(queued, replace(elsewhere, saga="t")) != []


def test_two_outcomes_of_a_saga_are_found_wherever_they_were_said() -> None:
    both = handled(handled(blank(), a_message("OrderConfirmed")), a_message("OrderCancelled"))
    assert found(both) == ["saga s has several outcomes: OrderCancelled by svc; OrderConfirmed by svc"]
    one, other = handled(blank(), a_message("OrderConfirmed")), handled(in_another(), a_message("OrderCancelled"))
    assert found(one, other) == ["saga s has several outcomes: OrderCancelled by other; OrderConfirmed by svc"]
    assert found(one, handled(in_another(), a_message("OrderConfirmed"))) == []
    assert found(one, handled(in_another("t"), a_message("OrderCancelled"))) == []


def test_only_events_that_end_a_saga_are_outcomes() -> None:
    assert outcomes_of(order.declared) == {"OrderConfirmed": OrderConfirmed, "OrderCancelled": OrderCancelled}
    assert outcomes_of(payment.declared) == {}
