"""Obstacles of a saga, found in handwritten progresses and offsets: cases that are rare at real workers."""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

from msgspec import Raw
from msgspec.structs import replace

from saga import Service
from saga.broker.administration import OffsetBounds
from saga.broker.port import partition_of
from saga.choreography.manifest import make_manifest
from saga.choreography.overview import Overview
from saga.contracts.library import find_library
from saga.messages import Message, Partition
from saga.messaging.controls import ActiveControls, ControlEntry, Switch
from saga.ops.explanation import SagaExplanation, explain
from saga.ops.histories import SagaHistory
from saga.ops.offsets import PartitionState, ServiceOffsets
from saga.ops.saga_situation import ReportedTransition, ReportedWait, SagaFacts, SagaReports, SagaSituation
from saga.progress.document import (
    CompensableResult,
    EmittedEvent,
    FailedAttempt,
    Intent,
    PendingMessage,
    SagaProgress,
    StepRecord,
    SuspendedRun,
    Transition,
    encode,
)
from saga.support.clock import from_iso, iso
from services.order.events import PaymentDeclined
from services.payment.events import OrderConfirmed, OrderPlaced, PaymentCaptured, PaymentReserved
from tests.ops.troubled_shop import SAGA, a_payment, a_shipping, an_inventory, an_order_service

START = "2026-11-21T14:00:00.000Z"
START_MS = from_iso(START)
NOW_MS = START_MS + 60_000
PARTITIONS = 12
ALL = frozenset(("order", "payment", "inventory", "shipping"))


def a_message(type_: str = "OrderPlaced", source: str = "client") -> Message:
    return Message(
        id=f"{type_}-1", type=type_, schema="", saga=SAGA, source=source, time=START, value=b"", started=START
    )


PLACED = a_message()


def a_progress(service: str = "payment") -> SagaProgress:
    return SagaProgress(service=service, saga=SAGA, started=START)


def an_entry(
    n: int, outcome: str, handler: str, *emits: str, type_: str = "OrderPlaced", reason: str = ""
) -> Transition:
    failed = (FailedAttempt(time=START, ms=1, reason=reason),) if reason else ()
    return Transition(
        n=n, previous="", time=iso(START_MS + n), outcome=outcome, handler=handler, message=f"{type_}-1",  # type: ignore[arg-type] # any outcome
        type=type_, source="client", reason=reason or None, failures=failed,
        events=tuple(EmittedEvent(id=f"{type_}-1", type=type_, schema="", value=b"") for type_ in emits),
    )  # fmt: skip


def offsets_of(
    service: str, lag: int = 0, *, members: tuple[str, ...] = ("a",), topic: str = "orders"
) -> ServiceOffsets:
    at = partition_of(SAGA.encode(), PARTITIONS)
    states = {
        Partition(topic, n): PartitionState(OffsetBounds(0, 9 + (lag if n == at else 5)), 9) for n in range(PARTITIONS)
    }
    return ServiceOffsets(service, members, states)


def explained(
    *progresses: tuple[SagaProgress, tuple[Transition, ...]], services: tuple[Service, ...] = (), **facts: object
) -> SagaExplanation:
    return explain(facts_of(*progresses, services=services, **facts))


def facts_of(
    *progresses: tuple[SagaProgress, tuple[Transition, ...]], services: tuple[Service, ...] = (), **facts: object
) -> SagaFacts:
    histories = []
    for p, entries in progresses:
        transitions = tuple(Raw(encode(entry)) for entry in entries)
        histories.append(SagaHistory(replace(p, transitions=transitions, n=len(transitions)), transitions))
    manifests = {each.declared.name: make_manifest(each.declared) for each in services or (a_payment(),)}
    known: Mapping[str, object] = {"services_read": frozenset(h.service for h in histories)} | facts
    return SagaFacts(
        saga=SAGA, now_ms=NOW_MS, overview=Overview(find_library(), manifests), histories=histories, **known  # type: ignore[arg-type] # fields by name
    )  # fmt: skip


def parked(due_ms: int, **fields: object) -> PendingMessage:
    return PendingMessage(handler="reserve", message=PLACED, n=0, attempts=1, due_ms=due_ms, **fields)  # type: ignore[arg-type] # fields by name


FAILED = an_entry(0, "retrying", "reserve", reason="OSError: shut")
RUNS = {"payment": offsets_of("payment")}


def test_a_parked_run_whose_time_has_passed_has_lost_its_timer() -> None:
    p = replace(a_progress(), queue=(parked(NOW_MS - 20_000),))
    found = explained((p, (FAILED,)), offsets=RUNS)
    assert found.obstacles[0].kind == "overdue"
    assert found.ends_with.startswith(
        "It was due at 2026-11-21T14:00:40.000Z, so its timer is lost, or payment does not"
    )
    assert "`saga sagas repair MODULE --saga order-1`" in found.ends_with
    assert explained((p, (FAILED,)), offsets={"payment": offsets_of("payment", 3)}).obstacles[0].kind == "retrying"
    soon = replace(a_progress(), queue=(parked(NOW_MS - 5_000),))
    assert explained((soon, (FAILED,)), offsets=RUNS).obstacles[0].kind == "retrying"


def test_only_records_of_its_partition_hold_a_saga_up() -> None:
    situation = SagaSituation(facts_of(offsets={"payment": offsets_of("payment", 3)}))
    assert (situation.count_behind("payment"), situation.count_behind("payment", "orders")) == (3, 3)
    assert situation.count_behind("payment", "payments") == 0
    timers = offsets_of("payment", 3, topic="payment.wake.1m")
    assert SagaSituation(facts_of(offsets={"payment": timers})).count_behind("payment") == 0


def test_a_run_of_a_newer_release_waits_for_that_release() -> None:
    entry = an_entry(0, "retrying", "reserve", reason="NewerHandler: it began under version 2")
    found = explained((replace(a_progress(), queue=(parked(NOW_MS + 9),)), (entry,)), offsets=RUNS)
    assert found.obstacles[0].kind == "missing_release"
    assert found.ends_with.startswith("Deploy the newer release of payment again; then `saga dead release payment")


def test_a_limit_of_an_operator_is_named() -> None:
    limit = Switch(kind="limit", handler="reserve", at_once_max=1)
    entry = ControlEntry(id="c", time=START, who="ada", why="slowly", switch=limit, previous="")
    controls = {"payment": ActiveControls(others={("limit", "handler", "reserve"): entry})}
    postponed = an_entry(0, "retrying", "reserve", reason="TooManyCalls: 3 wait")
    p = replace(a_progress(), queue=(parked(NOW_MS - 30_000, put_off=True),))
    found = explained((p, (postponed,)), offsets=RUNS, controls=controls)
    assert (found.obstacles[0].kind, found.obstacles[0].until) == ("limited", None)
    assert found.ends_with.startswith("It continues when the limit admits it; ")
    assert (
        "limit of handler reserve to 1 at once by ada: slowly. `saga control limit payment ... --none"
        in found.ends_with
    )


def an_intent(**fields: object) -> Intent:
    given: dict[str, object] = {
        "handler": "reserve", "kind": "do", "cause": PLACED.id, "message": PLACED, "parts": (PLACED,), "state": {},
        "time": START,
    }  # fmt: skip
    return Intent(**given | fields)  # type: ignore[arg-type] # fields by name


def test_a_run_that_has_begun_is_shown_with_the_call_that_has_no_answer() -> None:
    call = StepRecord(kind="step", name="charge", number=1, input="d")
    found = explained((replace(a_progress(), intents=(an_intent(begins=call),)), ()), offsets=RUNS)
    assert found.obstacles[0].kind == "working"
    assert "reserve has begun, and step charge has no answer (since 2026-11-21T14:00:00.000Z)" in found.held_up_by
    assert found.ends_with.startswith("It continues by itself while payment runs. If it does not: `saga sagas repair")
    down = explained(
        (replace(a_progress(), intents=(an_intent(),)), ()), offsets={"payment": offsets_of("payment", members=())}
    )
    assert down.obstacles[0].kind == "down"
    assert "no worker of payment runs; reserve has begun" in down.held_up_by


RESERVED = a_message("PaymentReserved", "payment")
CANCELLED = a_message("OrderCancelled", "order")
RESULT = CompensableResult(handler="reserve", cause=PLACED.id, event=RESERVED, self_consumed_ids=())
DONE = an_entry(0, "handled", "reserve", "PaymentReserved")


def test_a_compensation_that_has_begun_and_fails_is_shown_with_its_reason() -> None:
    undoing = an_intent(kind="undo", name="release", cause=RESERVED.id, message=CANCELLED, parts=(CANCELLED,))
    p = replace(a_progress(), intents=(undoing,), results=(RESULT,))
    found = explained((p, (DONE,)), offsets=RUNS, failing={RESERVED.id: "OSError: shut"})
    assert (found.obstacles[0].kind, found.obstacles[0].handler) == ("compensation_failing", "release")
    assert "release has begun, and fails: OSError: shut" in found.held_up_by
    assert found.ends_with == "It is retried without limit: repair what release calls."


def test_a_message_that_is_ready_is_work() -> None:
    p = replace(
        a_progress(), compensating=(PendingMessage(handler="reserve", message=CANCELLED, n=1),), results=(RESULT,)
    )
    found = explained((p, (DONE,)), offsets=RUNS)
    assert (found.obstacles[0].kind, found.obstacles[0].awaited) == ("working", ("PaymentReleased",))
    assert "the compensation of reserve is ready to run" in found.held_up_by


def test_a_compensation_whose_outcome_was_not_received_is_undelivered() -> None:
    order = (a_progress("order"), (an_entry(1, "handled", "cancel", "OrderCancelled"),))
    payment = (replace(a_progress(), results=(RESULT,)), (DONE,))
    services = (a_payment(), an_order_service())
    behind = {"payment": offsets_of("payment", 2), "order": offsets_of("order")}
    found = explained(order, payment, services=services, offsets=behind)
    assert [(each.kind, each.handler, each.type) for each in found.obstacles] == [
        ("lagging", "release", "OrderCancelled")
    ]
    assert found.waits_for.endswith(", and still waits for PaymentReleased.")
    assert ", and payment is 2 records behind in the partition of this saga in orders" in found.held_up_by
    unsent = {"payment": offsets_of("payment"), "order": offsets_of("order", members=())}
    found = explained(order, payment, services=services, offsets=unsent)
    assert "order recorded OrderCancelled and no worker of it runs, so it may not be published" in found.held_up_by
    assert found.ends_with == "Start order: `saga run` with its module; it publishes what it recorded."


def test_an_event_that_was_just_emitted_is_on_its_way() -> None:
    just = replace(an_entry(0, "handled", "reserve", "PaymentReserved"), time=iso(NOW_MS - 5_000))
    offsets = {name: offsets_of(name, topic="payments") for name in ("payment", "inventory", "shipping")}
    goods = (a_progress("inventory"), (an_entry(0, "handled", "set_aside", "InventoryReserved"),))
    services = (a_payment(), an_inventory(), a_shipping())
    found = explained((a_progress(), (just,)), goods, services=services, offsets=offsets)
    assert {each.kind for each in found.obstacles if each.service == "shipping"} == {"lagging"}


def test_a_progress_that_has_expired_since_the_end_holds_nothing_up() -> None:
    order = (a_progress("order"), (an_entry(1, "handled", "confirm", "OrderConfirmed", type_="ShipmentBooked"),))
    payment = Service("payment", retention=timedelta(seconds=30))

    @payment.handler
    async def capture(confirmed: OrderConfirmed) -> PaymentCaptured:
        return PaymentCaptured(order_id=confirmed.order_id, amount=Decimal(1))

    services, offsets = (an_order_service(), payment), {"payment": offsets_of("payment"), "order": offsets_of("order")}
    assert explained(order, services=services, offsets=offsets).state == "finished"
    longer = Service("payment", retention=timedelta(days=1))
    longer.handler(capture)
    found = explained(order, services=(an_order_service(), longer), offsets=offsets)
    assert [(each.kind, each.handler) for each in found.obstacles] == [("not_seen", "capture")]


def test_the_cause_of_a_failed_paused_or_timerless_deadline_is_named() -> None:
    order = an_order_service(timedelta(seconds=10))
    offsets = {"order": offsets_of("order")}

    def one(**fields: object) -> SagaExplanation:
        given: dict[str, object] = {"handler": "expire", "message": PLACED, "n": 0, "due_ms": START_MS + 10_000}
        deadline = PendingMessage(**given | fields)  # type: ignore[arg-type] # fields by name
        p = replace(a_progress("order"), deadlines=(deadline,))
        pause = ControlEntry(
            id="c", time=START, who="ada", why="wait", switch=Switch(kind="pause", handler="expire"), previous=""
        )
        controls = {"order": ActiveControls(others={("pause", "handler", "expire"): pause})}
        return explained((p, ()), services=(order,), offsets=offsets, controls=controls)

    assert one().obstacles[0].kind == "overdue"
    assert "its timer is lost" in one().ends_with
    assert one(attempts=2).obstacles[0].kind == "retrying"
    assert "deadline expire has failed 2 times" in one(attempts=2).held_up_by
    paused = one(put_off=True)
    assert (paused.obstacles[0].kind, "expire is paused by ada: wait" in paused.held_up_by) == ("paused", True)
    assert paused.ends_with == "`saga control resume order --handler expire --who NAME --why REASON`."


def test_a_suspended_run_whose_time_has_passed_has_lost_its_timer() -> None:
    c = SuspendedRun(
        handler="reserve", parts=(PLACED,), n=0, turn=1, first_ms=START_MS, seen_ms=START_MS, due_ms=START_MS + 9
    )
    p = replace(a_progress(), suspended_runs=(c,))
    assert explained((p, ()), offsets=RUNS).obstacles[0].kind == "overdue"
    down = explained((p, ()), offsets={"payment": offsets_of("payment", members=())})
    assert down.obstacles[0].kind == "down"
    assert "no worker of payment runs; reserve has suspended its run" in down.held_up_by


def test_without_manifests_what_a_service_has_begun_is_explained() -> None:
    facts = facts_of((replace(a_progress(), queue=(parked(NOW_MS + 9),)), (FAILED,)))
    found = explain(SagaFacts(
        saga=SAGA, now_ms=NOW_MS, overview=Overview(find_library(), {}), histories=facts.histories,
        services_read=facts.services_read,
    ))  # fmt: skip
    assert found.waits_for == "Saga order-1 waits for reserve in payment to handle OrderPlaced."
    assert [(each.type, each.mark, each.handler) for each in found.path] == [
        ("OrderPlaced", "done", ""), ("", "missing", "reserve")
    ]  # fmt: skip


def test_a_wait_that_only_the_monitor_knows_is_for_a_person_or_an_event() -> None:
    def reported(types: tuple[str, ...]) -> SagaExplanation:
        wait = ReportedWait(service="payment", handler="reserve", types=types, since=START, until=None, ends="a person")
        return explained((a_progress("order"), ()), reports=SagaReports(waits=[wait]))

    assert (reported(()).obstacles[0].kind, reported(()).ends_with) == ("dead_letter", "It ends with: a person.")
    assert reported(("OrderConfirmed",)).obstacles[0].kind == "missing_event"
    assert reported(("OrderConfirmed",)).waits_for == "Saga order-1 waits for OrderConfirmed."


def test_a_service_of_which_nothing_is_known_is_the_last_reason() -> None:
    found = explained(
        (a_progress("inventory"), (an_entry(0, "handled", "set_aside", "InventoryReserved"),)),
        services=(a_payment(), an_inventory(), a_shipping(), an_order_service()),
    )
    assert [(each.kind, each.service) for each in found.obstacles] == [("not_known", "payment")]
    assert found.ends_with.startswith("Name its store with --store, or its monitor with --monitor,")


def test_a_choreography_without_an_outcome_ends_when_everything_has_run() -> None:
    found = explained((a_progress(), (an_entry(0, "handled", "reserve", "PaymentDeclined"),)))
    assert found.obstacles[0].kind == "missing_event", "the contracts have outcomes, and no service emits one"
    assert found.waits_for == "Saga order-1 waits for OrderConfirmed."


def test_a_dead_letter_of_a_compensation_holds_up_what_the_compensation_emits() -> None:
    dead = PendingMessage(handler="reserve", message=CANCELLED, n=1, dead="dead-1")
    p = replace(a_progress(), compensating=(dead,), results=(RESULT,))
    found = explained((p, (DONE,)), offsets=RUNS)
    assert [(each.kind, each.awaited) for each in found.obstacles] == [("dead_letter", ("PaymentReleased",))]


def test_a_handler_that_ends_sagas_is_not_missed_after_the_end() -> None:
    inventory = (a_progress("inventory"), (an_entry(0, "handled", "set_aside", "InventoryRejected"),))
    order = (a_progress("order"), (an_entry(1, "handled", "expire", "OrderCancelled"),))
    services = (an_inventory(), an_order_service(timedelta(minutes=1)))
    offsets = {name: offsets_of(name) for name in ("inventory", "order")}
    assert explained(inventory, order, services=services, offsets=offsets).state == "finished"


def test_a_deadline_that_is_not_due_waits_for_its_time_and_not_for_the_log() -> None:
    deadline = PendingMessage(handler="expire", message=PLACED, n=0, due_ms=NOW_MS + 9)
    p = replace(a_progress("order"), deadlines=(deadline,))
    services = (an_order_service(timedelta(minutes=1)), a_payment(), an_inventory(), a_shipping())
    found = explained((p, ()), services=services, offsets={"order": offsets_of("order", 3)}, services_read=ALL)
    assert "deadline" in {each.kind for each in found.obstacles}
    assert "deadline_behind_log" not in {each.kind for each in found.obstacles}


def test_the_event_of_a_deadline_comes_from_the_deadline() -> None:
    deadline = PendingMessage(handler="expire", message=PLACED, n=0, due_ms=START_MS)
    p = replace(a_progress("order"), deadlines=(deadline,))
    found = explained(
        (p, ()), services=(an_order_service(timedelta(minutes=1)),), offsets={"order": offsets_of("order")}
    )
    assert found.obstacles[0].kind == "overdue"
    [missing] = [each for each in found.path if each.mark == "missing"]
    assert (missing.type, missing.handler, missing.causes) == ("OrderCancelled", "expire", ("OrderPlaced",))


def test_the_path_prefers_handlers_to_deadlines_and_events_that_exist() -> None:
    order = Service("order")

    @order.deadline(within=timedelta(minutes=1))
    async def approve(placed: OrderPlaced) -> OrderConfirmed:
        return OrderConfirmed(order_id=placed.order_id)

    @order.handler
    async def confirm(why: PaymentDeclined | PaymentReserved) -> OrderConfirmed:
        return OrderConfirmed(order_id=why.order_id)

    services = (a_payment(), order, an_inventory())
    offsets = {"order": offsets_of("order", 1), "inventory": offsets_of("inventory", 1, members=())}
    found = explained((a_progress(), (DONE,)), services=services, offsets=offsets)
    assert found.obstacles[0].service == "inventory"
    [last] = [each for each in found.path if each.type == "OrderConfirmed"]
    assert (last.type, last.handler, last.causes) == ("OrderConfirmed", "confirm", ("PaymentReserved",))


def test_an_event_stands_after_its_causes_even_if_the_clocks_differ() -> None:
    late = an_entry(900, "handled", "reserve", "PaymentReserved")
    early = replace(an_entry(1, "handled", "book", "ShipmentBooked", type_="PaymentReserved"), source="payment")
    services = (a_payment(), a_shipping())
    found = explained((a_progress(), (late,)), (a_progress("shipping"), (early,)), services=services)
    assert [each.type for each in found.path[:3]] == ["OrderPlaced", "PaymentReserved", "ShipmentBooked"]
    assert found.path[0].time == START, "the saga began before its first transition"


def test_the_first_of_several_outcomes_counts_and_timers_are_no_events() -> None:
    later = an_entry(5, "handled", "expire", "OrderCancelled")
    first = an_entry(2, "handled", "confirm", "OrderCancelled", type_="saga.wake")
    for entries in ((later, first), (first, later)):
        found = explained((a_progress("order"), entries), services=(an_order_service(timedelta(minutes=1)),))
        assert (found.outcome, found.ended) == ("OrderCancelled", iso(START_MS + 2))
        assert [each.type for each in found.path] == ["OrderPlaced", "OrderCancelled"]


def test_messages_of_a_handler_that_can_never_run_wait_for_no_start() -> None:
    kept = PendingMessage(handler="book", message=RESERVED, n=0)
    p = replace(a_progress("shipping"), started=None, waiting=(kept,))
    assert explained((p, ()), services=(a_shipping(),)).obstacles[0].kind == "no_start"
    closed = explained((replace(p, closed=("book",)), ()), services=(a_shipping(),))
    assert "no_start" not in {each.kind for each in closed.obstacles}


def test_a_store_is_believed_before_the_monitor() -> None:
    p = replace(a_progress(), queue=(parked(NOW_MS + 9),))
    reported = ReportedTransition(
        service="payment", handler="reserve", outcome="handled", type="OrderPlaced", source="client", time=START,
        emitted=("PaymentReserved",),
    )  # fmt: skip
    wait = ReportedWait(
        service="payment", handler="other", types=("OrderConfirmed",), since=START, until=None, ends="a person"
    )
    found = explained((p, (FAILED,)), offsets=RUNS, reports=SagaReports(transitions=[reported], waits=[wait]))
    assert {each.handler for each in found.obstacles if each.service == "payment"} == {"reserve"}
    assert "PaymentReserved" not in {each.type for each in found.path if each.mark == "done"}


def test_a_handler_without_an_event_is_named_beside_a_failing_one() -> None:
    p = replace(a_progress(), queue=(parked(NOW_MS + 9),))
    goods = (a_progress("inventory"), (an_entry(0, "handled", "set_aside"),))
    services = (a_payment(), an_inventory(), a_shipping(), an_order_service())
    offsets = {name: offsets_of(name) for name in ALL}
    found = explained((p, (FAILED,)), goods, services=services, offsets=offsets)
    assert [(each.kind, each.service) for each in found.obstacles] == [
        ("retrying", "payment"),
        ("no_event", "inventory"),
    ]
