"""`saga deploy check`: which open sagas a release would strand."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from msgspec.structs import replace

from saga.broker.administration import OffsetBounds
from saga.choreography.manifest import make_manifest
from saga.engine.prepared_service import prepare
from saga.messages import Partition
from saga.ops.deployments import find_abandoned_topics
from saga.ops.offsets import PartitionState, ServiceOffsets
from saga.progress.document import CompensableResult, SuspendedRun, decode_transition, encode
from services.payment import payment
from tests.cli.conftest import Call
from tests.cli.test_showing import edit
from tests.progress.pieces import a_message, kept

MODULES = ("services.order", "services.payment", "services.inventory", "services.shipping")
PLACED, CONFIRMED = a_message("OrderPlaced"), a_message("OrderConfirmed")
JOB = SuspendedRun(handler="reserve", parts=(PLACED,), n=0, turn=1, handler_version=3, first_ms=1, seen_ms=1, due_ms=2)
RESULT = CompensableResult(handler="capture", cause="c", event=a_message("PaymentCaptured"), self_consumed_ids=())


def test_a_release_that_fits_what_is_in_flight_strands_nothing(saga: Call, shop: Path) -> None:
    done = saga("deploy", "check", *MODULES)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(" progress documents read: nothing would be stranded\n")
    assert json.loads(saga("deploy", "check", "--json", *MODULES).stdout)["safe"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"version": 2}, "its state has version 2, which a newer release wrote; this one knows up to 1"),
        ({"queue": (kept("gone", PLACED),)}, "it needs the handler gone, which the release does not declare"),
        (
            {"queue": (replace(kept("gone", PLACED), dead="letter"),)},
            "a dead letter OrderPlaced waits for gone, which the release does not declare",
        ),
        (
            {"waiting": (kept("capture", PLACED),)},
            "a message OrderPlaced waits for capture, which does not take it in the release",
        ),
        ({"suspended_runs": (JOB,)}, "a run of reserve began under version 3, and the release has 1: it would be"),
        ({"results": (RESULT,)}, "it needs the compensation of capture, which the release does not declare"),
    ],
)
def test_a_saga_that_the_release_cannot_continue_is_named_with_the_reason(
    saga: Call, shop: Path, fields: dict[str, Any], reason: str
) -> None:
    edit(shop, "payment", "order-1", **fields)
    done = saga("deploy", "check", *MODULES)
    assert done.exit_code == 1
    assert "saga order-1 in payment:\n" in done.stdout
    assert f"  {reason}" in done.stdout
    assert ": 1 saga and no topics would be stranded\n" in done.stdout


def test_an_event_that_may_not_be_published_has_to_be_known(saga: Call, shop: Path) -> None:
    p = edit(shop, "payment", "order-1")
    last = decode_transition(p.transitions[-1])
    events = tuple(replace(each, type="PaymentForgotten") for each in last.events)
    transitions = (*p.transitions[:-1], Raw(encode(replace(last, events=events))))
    edit(shop, "payment", "order-1", published=p.n - 1, transitions=transitions)
    done = saga("deploy", "check", "services.payment")
    assert done.exit_code == 1
    assert "its event PaymentForgotten may not be published yet, and the release does not know it" in done.stdout
    edit(shop, "payment", "order-1", published=p.n)
    assert saga("deploy", "check", "services.payment").exit_code == 0


def test_a_progress_that_cannot_be_read_is_named(saga: Call, shop: Path) -> None:
    edit(shop, "payment", "order-1", format=99)
    done = saga("deploy", "check", "--json", "services.payment")
    assert done.exit_code == 1
    (stranded,) = json.loads(done.stdout)["sagas"]
    assert stranded["saga"] == "order-1"
    assert "has format 99" in stranded["reasons"][0]


def test_a_store_that_is_not_there_is_an_error(saga: Call, tmp_path: Path) -> None:
    done = saga("deploy", "check", "services.payment", "--store", f"sqlite:///{tmp_path}/none.db")
    assert done.exit_code == 2


# ---------------------------------------------------------------- backlog


def offsets(topic: str, lag: int) -> ServiceOffsets:
    return ServiceOffsets("payment", (), {Partition(topic, 0): PartitionState(OffsetBounds(0, lag), 0)})


def test_records_that_the_release_does_not_read_are_found() -> None:
    release, released = prepare(payment.declared), make_manifest(payment.declared)
    (found,) = find_abandoned_topics(release, offsets("refunds", 3), released)
    assert (found.topic, found.reason) == ("refunds", "3 records not handled, and the release does not read it")
    assert list(find_abandoned_topics(release, offsets("refunds", 0), released)) == []
    assert list(find_abandoned_topics(release, offsets("orders", 3), released)) == []
    assert list(find_abandoned_topics(release, offsets("payment.wake.1m", 3), None)) == [], "timers stay readable"
    for topic in ("payment.refunds", "payment.changes.returns"):
        (found,) = find_abandoned_topics(release, offsets(topic, 3), released)
        assert found.reason == "3 records not handled, and the release does not read it"


def test_records_of_an_event_that_the_release_does_not_take_any_more_are_found() -> None:
    release, released = prepare(payment.declared), make_manifest(payment.declared)
    (use, *_) = released.consumes
    names = {name: getattr(use, name) for name in use.__struct_fields__}
    dropped = type(use)(**{**names, "contract": "OrderNoted", "topic": "orders"})
    before = type(released)(**{
        **{name: getattr(released, name) for name in released.__struct_fields__},
        "consumes": (*released.consumes, dropped),
    })  # fmt: skip
    (found,) = find_abandoned_topics(release, offsets("orders", 1), before)
    assert found.reason == "1 record not handled, and the release does not take OrderNoted any more"
