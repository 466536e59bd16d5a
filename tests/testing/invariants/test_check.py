"""The invariants hold for the results of the shipped runtime, and a planted violation breaks each."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from msgspec import Raw
from msgspec.structs import replace as with_

from saga.messages import Message, Outgoing, Partition, Record
from saga.messaging import envelope, timers
from saga.progress import ids
from saga.progress.document import (
    CurrentTimer,
    DeadLetterRecord,
    EmittedEvent,
    PendingMessage,
    SagaProgress,
    Transition,
    decode_progress,
    decode_transition,
    encode,
)
from saga.support.clock import from_iso
from saga.testing.invariants.checks import find_progress_problem, find_violations
from saga.testing.invariants.evidence import Evidence, Violation
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.inventory import inventory
from services.inventory.stock import Stock
from services.payment import payment
from services.payment.bank import Bank
from services.shipping import shipping
from services.shipping.carrier import Carrier, Refused
from tests.services.waiting_order import order
from tests.testing.invariants.order_runs import (
    BrokenCarrier,
    Shop,
    a_run,
    an_order,
    at_the_end,
    entries_of,
    rewritten,
    with_last,
    with_service,
    with_snapshot,
    with_transitions,
    with_versions,
    without_records,
)

MONTH_MS = 31 * 86_400_000


class UnwillingCarrier(Carrier):
    """Refuses every booking."""

    async def book(self, key: str, address: str, parcels: int) -> str:
        raise Refused("nobody delivers there")


async def confirmed() -> Evidence:
    return await a_run(an_order())


async def cancelled() -> Evidence:
    return await a_run(an_order(card="declined"))


async def dead() -> Evidence:
    return await a_run(an_order(), carrier=BrokenCarrier())


async def refused() -> Evidence:
    return await a_run(an_order(), carrier=UnwillingCarrier())


async def out_of_stock() -> Evidence:
    return await a_run(an_order(quantity=6))


async def several() -> Evidence:
    return await a_run(*(an_order(f"o-{i}", card=("visa", "declined")[i % 2]) for i in range(6)))


async def repeat_every_event() -> Evidence:
    """Every event so far comes once more, half-way and at the end."""
    shop = Shop()
    shop.publish(an_order())
    for _ in range(2):
        await shop.run()
        for i, record in enumerate(tuple(shop.log)):
            if not record.topic.endswith(".dead"):
                shop.again(i)
    await shop.run()
    return shop.evidence()


async def other_contents() -> Evidence:
    """So many transitions that the older ones are archived: each repetition with another content is a dead letter."""
    shop = Shop()
    for i in range(80):
        shop.publish(an_order(address=f"Kiel {i}"))
    await shop.run()
    return shop.evidence()


async def unreadable() -> Evidence:
    """A record that cannot be read at all."""
    shop = Shop()
    shop.append(Outgoing("orders", b"", b"?", ()))
    shop.publish(an_order())
    await shop.run()
    return shop.evidence()


async def poisoned() -> Evidence:
    """Unreadable records are published in the name of services, before and after the true ones."""
    shop = Shop()

    def poison() -> None:
        for record in tuple(shop.log):
            if record.key and not record.topic.endswith(".dead"):
                bad = with_header("ce_id", b"bad-" + (dict(record.headers)["ce_id"] or b""))(record)
                shop.append(Outgoing(record.topic, record.key, b"?", bad.headers))
                shop.append(
                    Outgoing(record.topic, record.key, record.value, with_header("ce_time", b"?")(record).headers)
                )

    shop.publish(an_order())
    poison()
    await shop.run()
    poison()
    await shop.run()
    return shop.evidence(frozenset(["o-1"]))


async def again_after(ms: int) -> Evidence:
    """The saga comes once more, and no service knows it."""
    first, second = Shop(), Shop()
    first.publish(an_order())
    await first.run()
    second.clock.now += ms
    second.ends.update(first.ends)
    second.publish(an_order())
    await second.run()
    one, two = first.evidence(), second.evidence(frozenset(["o-1"]))
    for name, witnessed in one.services.items():
        two = with_versions(two, name, "o-1", [*witnessed.versions["o-1"], *two.services[name].versions["o-1"]])
        documents = two.services[name].documents
        both = {where: (*witnessed.documents[where], *contents) for where, contents in documents.items()}
        two = with_service(two, name, documents=both)
    return replace(two, log=(*one.log, *two.log))


async def forgotten() -> Evidence:
    return await again_after(MONTH_MS)


RUNS = (
    confirmed,
    cancelled,
    dead,
    refused,
    out_of_stock,
    several,
    repeat_every_event,
    other_contents,
    unreadable,
    poisoned,
    forgotten,
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.__name__)
async def test_no_violation_is_found_in_the_shipped_runtime(run: Callable[[], object]) -> None:
    evidence = await run()  # type: ignore[misc] # each of them gives evidence, as a coroutine
    assert [str(violation) for violation in find_violations(evidence)] == []
    if run is not forgotten:  # who checks at the end cannot know that it began again
        assert [str(violation) for violation in find_violations(at_the_end(evidence))] == []
    for witnessed in evidence.services.values():
        for contents in witnessed.versions.values():
            assert [find_progress_problem(witnessed.service, contents[:i]) for i in range(1, len(contents) + 1)] == [
                None for _ in contents
            ]


def found(
    evidence: Evidence, invariant: str, *words: str, service: str | None = None, unseen: bool = False
) -> Violation:
    """The first violation of that invariant, with these words. `unseen`: not for those who come when all is over."""

    def fitting(everything: list[Violation]) -> list[Violation]:
        same = [v for v in everything if v.invariant == invariant and v.service == service]
        return [v for v in same if all(word in v.what for word in words)]

    everything = find_violations(evidence)
    assert fitting(everything), [str(violation) for violation in everything]
    left = find_violations(at_the_end(evidence))
    assert bool(fitting(left)) is not unseen, [str(violation) for violation in left]
    return fitting(everything)[0]


def kinds(evidence: Evidence) -> set[str]:
    return {violation.invariant for violation in find_violations(evidence)}


def with_record(evidence: Evidence, type_: str, change: Callable[[Record], Record]) -> Evidence:
    """With one more record: a changed one of that type, at the end of its partition."""
    record = change(next(r for r in evidence.log if envelope.type_of(r) == type_))
    partition = Partition(record.topic, record.partition)
    return replace(evidence, log=(*evidence.log, record._replace(offset=evidence.ends[partition])))


def with_header(name: str, value: bytes) -> Callable[[Record], Record]:
    return lambda record: record._replace(headers=tuple((n, value if n == name else v) for n, v in record.headers))


# -------------------------------------------------------------------- one outcome


async def test_a_saga_that_has_begun_and_not_ended_is_found() -> None:
    evidence = without_records(await confirmed(), "OrderConfirmed")
    assert found(evidence, "one outcome", "has no outcome").saga == "o-1"


async def test_a_second_outcome_is_found() -> None:
    evidence = with_record(await confirmed(), "OrderConfirmed", with_header("ce_id", b"another"))
    found(evidence, "one outcome", "2 outcomes", "another")


async def test_the_same_outcome_published_again_is_no_second_one() -> None:
    evidence = with_record(await confirmed(), "OrderConfirmed", lambda record: record)
    assert "one outcome" not in kinds(evidence)


async def test_a_saga_may_stand_still_only_because_of_a_dead_letter() -> None:
    evidence = await dead()
    without = replace(evidence, log=tuple(r for r in evidence.log if r.topic != "shipping.dead"))
    found(without, "one outcome", "no dead letter")
    found(without, "published as recorded", "LOST DEAD LETTER", service="shipping")


async def test_services_of_which_none_decides_are_asked_for_no_outcome() -> None:
    shop = Shop(services=(payment, inventory, shipping))
    shop.publish(an_order())
    await shop.run()
    assert find_violations(shop.evidence()) == []


async def test_a_saga_may_wait_for_an_external_sender() -> None:
    shop = Shop(services=(order, inventory, shipping))
    shop.publish(an_order())
    await shop.run()
    evidence = shop.evidence()
    found(evidence, "one outcome")
    for name, witnessed in evidence.services.items():
        contracts = dict(witnessed.service.contracts)
        if "PaymentReserved" in contracts:
            contracts["PaymentReserved"] = replace(contracts["PaymentReserved"], produced_externally=True)
        evidence = with_service(evidence, name, service=replace(witnessed.service, contracts=contracts))
    assert find_violations(evidence) == []


# -------------------------------------------------------------------- undone


def unless(outcome: str) -> Callable[[Transition], Transition | None]:
    """Without the transitions of that outcome."""
    return lambda entry: None if entry.outcome == outcome else entry


def as_it_is(entry: Transition) -> Transition:
    return entry


async def test_a_result_that_stands_after_a_failure_is_found() -> None:
    evidence = with_transitions(await cancelled(), "inventory", unless("compensated"))
    found(evidence, "compensated", "InventoryReserved", "never compensated", service="inventory")


async def test_an_escalated_compensation_may_be_missing() -> None:
    letter = DeadLetterRecord(
        id="d", kind="escalation", handler="set_aside", reason="r", remedy="r", message=a_message(await cancelled())
    )
    entry = entries_of(await cancelled(), "inventory")[0]
    evidence = with_transitions(
        await cancelled(),
        "inventory",
        unless("compensated"),
        with_(entry, outcome="ignored", events=(), letters=(letter,)),
    )
    assert "compensated" not in kinds(evidence)


async def test_a_handler_that_may_still_run_after_a_failure_is_found() -> None:
    evidence = with_snapshot(await cancelled(), "shipping", lambda p: with_(p, closed=()))
    found(evidence, "compensated", "book is not closed", service="shipping")


async def test_a_result_that_is_kept_after_a_failure_is_found() -> None:
    run = await cancelled()
    results = next(p.results for p in map(decode_progress, run.services["inventory"].versions["o-1"]) if p.results)
    evidence = with_snapshot(run, "inventory", lambda p: with_(p, results=results))
    found(evidence, "compensated", "set_aside still has a result", service="inventory")


async def test_a_compensation_after_a_success_is_found() -> None:
    (undone,) = [e for e in entries_of(await cancelled(), "inventory") if e.outcome == "compensated"]
    evidence = with_transitions(await confirmed(), "inventory", as_it_is, undone)
    found(evidence, "compensated", "OrderConfirmed", "put_back", service="inventory")


@pytest.mark.parametrize(
    ("again", "what"),
    [(lambda e: e.outcome == "compensated", "UNDONE TWICE"), (lambda e: e.outcome == "handled", "RAN WHEN CLOSED")],
)
async def test_a_repeated_run_or_compensation_is_found(again: Callable[[Transition], bool], what: str) -> None:
    run = await cancelled()
    (more,) = [e for e in entries_of(run, "inventory") if again(e)]
    found(with_transitions(run, "inventory", as_it_is, more), "compensated", what, service="inventory")


async def test_a_compensation_of_what_never_was_is_found() -> None:
    evidence = with_transitions(await cancelled(), "inventory", unless("handled"))
    found(evidence, "compensated", "UNDONE WHAT NEVER WAS", service="inventory")


# -------------------------------------------------------------------- not early


async def test_an_irreversible_run_before_the_success_is_found() -> None:
    evidence = without_records(await confirmed(), "OrderConfirmed")
    for service, handler in (("payment", "capture"), ("inventory", "hand_out"), ("shipping", "dispatch")):
        found(evidence, "not early", handler, "no success was published", service=service)


async def test_a_begun_irreversible_run_without_a_success_is_found() -> None:
    run = await confirmed()
    versions = run.services["payment"].versions["o-1"]
    begun = next(
        i for i, p in enumerate(map(decode_progress, versions)) if any(i.handler == "capture" for i in p.intents)
    )
    evidence = with_versions(without_records(run, "OrderConfirmed"), "payment", "o-1", versions[: begun + 1])
    found(evidence, "not early", "capture has begun", service="payment")


async def test_a_compensation_without_a_failure_is_found() -> None:
    evidence = without_records(await cancelled(), "OrderCancelled")
    found(evidence, "not early", "put_back", "OrderCancelled", service="inventory")


# -------------------------------------------------------------------- history


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda p: with_(p, transitions=(Raw(bytes(p.transitions[0]).replace(b"confirm", b"confirn")),)), "changed"),
        (lambda p: with_(p, transitions=()), "1 transitions were written, 0 are there"),
        (lambda p: with_(p, state={"a": 1}), "the state is not"),
        (lambda p: with_(p, hash="0"), "was changed"),
    ],
)
async def test_a_history_that_was_tampered_with_is_found(
    change: Callable[[SagaProgress], SagaProgress], what: str
) -> None:
    evidence = with_last(await confirmed(), "order", change)
    found(evidence, "history", what, service="order")
    assert what in str(
        find_progress_problem(evidence.services["order"].service, evidence.services["order"].versions["o-1"])
    )


async def test_a_progress_that_cannot_be_read_is_found() -> None:
    evidence = with_versions(await confirmed(), "order", "o-1", [b'{"service":1}'])
    found(evidence, "history", "cannot be read", service="order")
    assert find_progress_problem(evidence.services["order"].service, [b'{"service":1}']) is not None


async def test_a_progress_that_was_written_over_is_found() -> None:
    found(await again_after(1000), "history", "WRITTEN OVER", service="order", unseen=True)


async def test_a_version_that_is_no_part_of_what_followed_is_found() -> None:
    run = await confirmed()
    versions = run.services["shipping"].versions["o-1"]
    p = rewritten(decode_progress(versions[0]), lambda entry: with_(entry, attempt=7))
    found(
        with_versions(run, "shipping", "o-1", [encode(p), *versions[1:]]),
        "history",
        "REWRITTEN",
        service="shipping",
        unseen=True,
    )


async def test_an_archive_that_is_gone_or_changed_is_found() -> None:
    run = await other_contents()
    archives = run.services["payment"].archives
    assert archives["o-1"]
    found(with_service(run, "payment", archives={}), "history", service="payment")
    changed = [(key, content.replace(b"Kiel", b"Bonn").replace(b'"n":3', b'"n":4')) for key, content in archives["o-1"]]
    found(with_service(run, "payment", archives={"o-1": changed}), "history", service="payment")


# -------------------------------------------------------------------- nothing waits


async def test_a_partition_that_is_not_committed_is_found() -> None:
    run = await confirmed()
    committed = dict(run.services["payment"].committed)
    committed[Partition("orders", 0)] -= 1
    found(with_service(run, "payment", committed=committed), "nothing waits", "committed up to", service="payment")
    del committed[Partition("orders", 0)]
    found(with_service(run, "payment", committed=committed), "nothing waits", "committed up to 0", service="payment")


async def test_an_uncommitted_timer_is_a_fault_only_while_its_saga_waits_for_it() -> None:
    run = await confirmed()
    outgoing = timers.timer_to_record("payment", "o-1", "wake-3", due_ms=400_000, now_ms=0)
    place = Partition(outgoing.topic, 0)
    lies = Record(*place, 0, outgoing.key, outgoing.value, outgoing.headers, 0)
    run = replace(run, ends={**run.ends, place: 1}, log=(*run.log, lies))
    assert place.topic in run.services["payment"].service.topics
    assert "nothing waits" not in kinds(run)
    waits = with_snapshot(run, "payment", lambda p: with_(p, timer=CurrentTimer(id="wake-3", due_ms=400_000)))
    found(waits, "nothing waits", "payment.wake.4m/0 is committed up to 0", service="payment")
    other = with_snapshot(run, "payment", lambda p: with_(p, timer=CurrentTimer(id="wake-4", due_ms=400_000)))
    assert "nothing waits" not in kinds(other)


async def test_a_message_that_no_progress_knows_is_found() -> None:
    evidence = with_service(await confirmed(), "order", versions={})
    found(evidence, "nothing waits", "LOST MESSAGE ShipmentBooked", service="order")


def last_second(p: SagaProgress) -> int:
    return from_iso(decode_transition(p.transitions[-1]).time) // 1000


async def test_a_message_that_its_handler_has_no_word_of_is_found() -> None:
    run = with_transitions(await cancelled(), "shipping", unless("waiting"))
    entry = ids.inbox_entry(a_message(run, "OrderCancelled").id, "undo book")
    evidence = with_snapshot(run, "shipping", lambda p: with_(p, inbox={entry: last_second(p)}))
    found(evidence, "nothing waits", "LOST MESSAGE OrderPlaced", "for book", service="shipping")


async def test_open_work_at_the_end_is_found() -> None:
    run = await confirmed()
    kept = PendingMessage(handler="confirm", message=a_message(run), n=0)
    found(with_snapshot(run, "order", lambda p: with_(p, queue=(kept,))), "nothing waits", "STRANDED", service="order")


async def test_a_ready_run_that_did_not_run_is_found() -> None:
    run = await confirmed()
    versions = run.services["shipping"].versions["o-1"]
    two = next(v for v in versions if len(decode_progress(v).waiting) == 2)
    held = {k.message.type for k in decode_progress(two).waiting}
    (third,) = {"OrderPlaced", "PaymentReserved", "InventoryReserved"} - held
    message = a_message(run, third)
    ready = with_versions(run, "shipping", "o-1", [two])
    kept = PendingMessage(handler="book", message=message, n=2)
    found(
        with_snapshot(ready, "shipping", lambda p: with_(p, waiting=(*p.waiting, kept))),
        "nothing waits",
        "READY AND NOT DONE",
        service="shipping",
    )
    lost = with_snapshot(
        ready, "shipping", lambda p: with_(p, inbox={ids.inbox_entry(message.id, "book"): last_second(p)})
    )
    found(lost, "nothing waits", "waits for book, and all", service="shipping")


async def test_an_unreadable_record_that_is_no_dead_letter_is_found() -> None:
    run = await unreadable()
    evidence = replace(run, log=tuple(r for r in run.log if r.topic != "payment.dead"))
    found(evidence, "nothing waits", "orders/0/0 cannot be read", service="payment")


# -------------------------------------------------------------------- published as recorded


async def test_an_event_that_was_recorded_and_never_published_is_found() -> None:
    evidence = without_records(await confirmed(), "PaymentCaptured")
    found(evidence, "published as recorded", "LOST EVENT PaymentCaptured", service="payment")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (with_header("ce_id", b"another"), "in no transition"),
        (lambda record: record._replace(value=record.value + b" "), "other bytes than in its transition"),
        (with_header("ce_time", b"2027-01-15T09:00:00.000Z"), "twice, with different bytes or headers"),
    ],
)
async def test_an_event_that_was_published_and_not_recorded_is_found(
    change: Callable[[Record], Record], what: str
) -> None:
    evidence = with_record(await confirmed(), "PaymentReserved", change)
    found(evidence, "published as recorded", "PaymentReserved", what, service="payment")


async def test_a_dead_letter_that_is_not_recorded_is_found() -> None:
    run = await dead()
    (letter,) = [r for r in run.log if r.topic == "shipping.dead"]
    evidence = replace(run, log=(*run.log, with_header("dead_id", b"another")(letter)))
    found(evidence, "published as recorded", "another", "in no transition", service="shipping")


# -------------------------------------------------------------------- in order


async def test_events_published_in_another_order_than_recorded_are_found() -> None:
    run = await confirmed()
    log = list(run.log)
    reserved, captured = (
        next(i for i, r in enumerate(log) if envelope.type_of(r) == t) for t in ("PaymentReserved", "PaymentCaptured")
    )
    log[reserved], log[captured] = log[captured], log[reserved]
    found(replace(run, log=tuple(log)), "in order", "ORDER", service="payment")


async def test_messages_handled_in_another_order_than_published_are_found() -> None:
    run = await refused()
    (cancel,) = entries_of(run, "order")
    refusal = next(r for r in run.log if envelope.type_of(r) == "ShipmentRefused")
    later = with_record(run, "ShipmentRefused", lambda record: with_header("ce_id", b"later")(refusal))
    evidence = with_transitions(later, "order", lambda e: with_(e, message="shipping|later"), cancel)
    found(evidence, "in order", "OUT OF LOG ORDER", service="order")


# -------------------------------------------------------------------- once


async def test_a_handler_that_ran_twice_is_found() -> None:
    run = await confirmed()
    (entry,) = entries_of(run, "order")
    other = with_(entry, message="another", events=())
    found(with_transitions(run, "order", as_it_is, other), "once", "HANDLER TWICE confirm", service="order")
    found(with_transitions(run, "order", as_it_is, entry), "once", "ONE ID TWICE", service="order")


async def test_two_outcomes_of_one_service_are_found() -> None:
    run = await confirmed()
    (entry,) = entries_of(run, "order")
    event = EmittedEvent(id="another", type="OrderCancelled", schema="orders/OrderCancelled.v1", value=b"")
    evidence = with_transitions(run, "order", as_it_is, with_(entry, handler="cancel", events=(event,)))
    found(evidence, "once", "TWO OUTCOMES", service="order")


# -------------------------------------------------------------------- documents


def with_stock(evidence: Evidence, *more: bytes, of: slice = slice(None)) -> Evidence:
    documents = evidence.services["inventory"].documents
    return with_service(
        evidence, "inventory", documents={where: (*contents[of], *more) for where, contents in documents.items()}
    )


@pytest.mark.parametrize("expires", [None, timedelta(minutes=5)])
def test_a_document_that_an_application_removed_and_wrote_again_has_lost_no_marker(expires: timedelta | None) -> None:
    with SimulatedWorld() as world:
        world.start(order, payment, inventory, shipping, use=[Bank(), Carrier()])
        world.write(inventory, "tea", Stock(left=5), expires=expires)
        world.run_for(timedelta(seconds=1))
        world.publish(an_order("o-1"))
        world.run_until_quiet()
        if expires is None:
            world.remove(inventory, Stock, "tea")
        else:
            world.run_for(2 * expires)
        world.write(inventory, "tea", Stock(left=7))
        world.publish(an_order("o-2"))
        world.run_until_quiet()
        assert world.read(inventory, Stock, "tea") == Stock(left=6)
        world.verify()
        partial = at_the_end(world.evidence())
    assert {v.invariant for v in find_violations(partial)} == {"documents"}, "it cannot know that"
    assert find_violations(with_service(partial, "inventory", removed=frozenset({"stock/tea"}))) == []


async def test_an_update_that_took_effect_twice_is_found() -> None:
    run = await confirmed()
    (versions,) = run.services["inventory"].documents.values()
    found_ = find_violations(with_stock(run, versions[0], versions[1]))
    assert {(v.invariant, v.saga, v.service) for v in found_} == {("documents", "o-1", "inventory")}
    assert any("UPDATE TWICE" in v.what for v in found_)


async def test_a_marker_that_was_changed_is_found() -> None:
    run = await confirmed()
    (versions,) = run.services["inventory"].documents.values()
    changed = versions[-1].replace(b'"handler":"set_aside"', b'"handler":"hand_out"')
    violation = next(v for v in find_violations(with_stock(run, changed)) if v.invariant == "documents")
    assert "was changed" in violation.what


async def test_an_update_that_is_recorded_and_never_took_effect_is_found() -> None:
    evidence = with_stock(await confirmed(), of=slice(0, 1))
    found(evidence, "documents", "no document has its marker", service="inventory")


async def test_a_refusal_that_is_recorded_as_an_update_is_found() -> None:
    def taken(entry: Transition) -> Transition:
        return with_(entry, calls=tuple(with_(c, answer=None) for c in entry.calls))

    evidence = with_transitions(await out_of_stock(), "inventory", taken)
    found(evidence, "documents", "recorded applied", "the document says OutOfStock", service="inventory")


async def test_an_update_that_took_effect_and_is_not_recorded_is_found() -> None:
    evidence = with_transitions(await confirmed(), "inventory", lambda e: None if e.handler == "hand_out" else e)
    found(evidence, "documents", "hand_out", "is not recorded", service="inventory")
    found(
        with_service(evidence, "inventory", versions={}),
        "documents",
        "set_aside",
        "is not recorded",
        service="inventory",
    )


async def test_a_document_that_cannot_be_read_is_found() -> None:
    evidence = with_stock(await confirmed(), b"no JSON")
    violation = next(v for v in find_violations(evidence) if v.invariant == "documents")
    assert "stock/tea is no document" in violation.what


# -------------------------------------------------------------------- what is found


def test_a_violation_names_its_place_and_what_is_wrong() -> None:
    assert str(Violation("once", "o-1", "order", "it ran twice")) == "once: saga 'o-1' in 'order': it ran twice"
    assert str(Violation("nothing waits", None, None, "it waits")) == "nothing waits: it waits"


def a_message(evidence: Evidence, type_: str = "OrderPlaced") -> Message:
    record = next(r for r in evidence.log if envelope.type_of(r) == type_)
    return envelope.to_message(record, type_=type_, schema="", contract=None)
