"""Partial evidence of a run, by those who come at its end: no violation is found in one that went well, and many in one
that did not."""

from dataclasses import replace

from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress.document import progress_key
from saga.testing.fault_plans import EVERYTHING_RATES, FaultKind, Faults, faults
from saga.testing.invariants.checks import find_violations
from saga.testing.invariants.evidence import Evidence
from saga.testing.processes.process_world import list_outcomes
from saga.testing.processes.shared_files import StoredDocuments, make_service_evidence
from saga.testing.simulation.simulated_world import SimulatedWorld
from services.order import order
from services.order.events import OrderCancelled, OrderConfirmed
from services.payment import payment
from tests.testing.invariants.order_runs import at_the_end
from tests.testing.simulation.orders import drawn, ran

SEEDS = 15
FOREIGN: tuple[FaultKind, ...] = ("expiry",)
"""Real processes forget no saga while a test looks on."""


def left_in(world: SimulatedWorld) -> Evidence:
    """Documents as read from files in which each has its last content alone."""
    whole = world.evidence()
    services = {}
    for name, declared in world.declared.items():
        left: StoredDocuments = {at: contents[-1] for at, contents in world.workers.disks[name].versions.items()}
        services[name] = make_service_evidence(declared, left, whole.services[name].committed)
    return Evidence(services=services, log=whole.log, ends=whole.ends, spoiled=whole.spoiled, partial=True)


def test_no_violation_is_found_in_what_survives_everything() -> None:
    asked = Faults(tuple(rule for rule in faults.everything().rules if rule.kind not in FOREIGN))
    assert len(asked.rules) == len(EVERYTHING_RATES) - 1
    for seed in range(SEEDS):
        world, outcomes = ran(seed, drawn(seed, asked))
        evidence = left_in(world)
        assert [str(violation) for violation in find_violations(evidence)] == [], seed
        assert len(outcomes) == len(evidence.services["order"].versions)


def test_all_that_a_service_leaves_is_in_the_evidence() -> None:
    world, _ = ran(1)
    evidence = left_in(world)
    whole = at_the_end(world.evidence())
    for name, witnessed in whole.services.items():
        left = evidence.services[name]
        assert {saga: tuple(contents) for saga, contents in witnessed.versions.items()} == left.versions
        assert {at: tuple(contents) for at, contents in witnessed.documents.items()} == left.documents
        assert witnessed.archives == left.archives


def test_archives_are_of_their_sagas_and_progresses_have_their_names() -> None:
    left = {
        (PROGRESS, progress_key("order", "a::b")): b"{}",
        (ARCHIVES, "order::a::b::000000000"): b"1",
        (ARCHIVES, "order::c::000000000"): b"2",
        ("stock", "tea"): b"3",
    }
    witnessed = make_service_evidence(order.declared, left, {})
    assert dict(witnessed.versions) == {"a::b": (b"{}",)}
    assert dict(witnessed.archives) == {
        "a::b": [("order::a::b::000000000", b"1")],
        "c": [("order::c::000000000", b"2")],
    }
    assert dict(witnessed.documents) == {("stock", "tea"): (b"3",)}


def test_a_lost_event_is_seen() -> None:
    evidence = left_in(ran(3)[0])
    lost = next(record for record in evidence.log if record.topic == "payments")
    log = [record for record in evidence.log if (record.key, record.value) != (lost.key, lost.value)]
    [why] = {v.what.partition(" of ")[0] for v in find_violations(replace(evidence, log=log)) if "LOST EVENT" in v.what}
    assert why.startswith("LOST EVENT Payment")


def test_records_that_were_never_committed_are_found() -> None:
    evidence = left_in(ran(3)[0])
    behind = replace(evidence.services["payment"], committed={})
    found = find_violations(replace(evidence, services={**evidence.services, "payment": behind}))
    assert {(violation.invariant, violation.service) for violation in found} == {("nothing waits", "payment")}


def test_only_events_that_end_a_saga_are_outcomes() -> None:
    assert list_outcomes(order.declared) == {"OrderConfirmed": OrderConfirmed, "OrderCancelled": OrderCancelled}
    assert list_outcomes(payment.declared) == {}
