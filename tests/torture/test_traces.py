"""Traces of accidents: a silence without an expired order, and replays without effect, are differences."""

import msgspec
from msgspec import Raw

from saga.ops.histories import SagaHistory
from saga.progress.document import Outcome, SagaProgress, Transition
from tests.torture.traces import CURES_MANY, Histories, traces


def a_history(service: str, handler: str, outcome: Outcome) -> SagaHistory:
    entry = Transition(
        n=0,
        previous="",
        time="2026-11-22T10:00:00Z",
        outcome=outcome,
        handler=handler,
        message="m-1",
        type="OrderPlaced",
        source="shop",
    )
    return SagaHistory(
        progress=SagaProgress(service=service, saga="order-1"), transitions=(Raw(msgspec.json.encode(entry)),)
    )


def histories(ended_by: str = "expire", payment: Outcome = "replayed") -> Histories:
    return {
        "order": {"order-1": a_history("order", ended_by, "handled")},
        "payment": {"order-1": a_history("payment", "reserve", payment)},
    }


def differences(found: Histories, silences: int, cures: int) -> list[str]:
    return [what for check in traces(found, silences=silences, cures=cures) for what in check.differences]


def test_a_run_whose_accidents_left_their_traces_is_well() -> None:
    assert differences(histories(), silences=1, cures=1) == []
    figures = [check.figures for check in traces(histories(), silences=1, cures=1)]
    assert figures == ["1 orders expired, 1 silences were longer than an order waits", "1 replays, of 1 dead letters"]


def test_a_long_silence_without_an_expired_order_is_reported() -> None:
    assert differences(histories(ended_by="cancel"), silences=1, cures=1) == ["not one order expired"]


def test_a_run_without_one_effective_replay_is_reported() -> None:
    assert differences(histories(payment="handled"), silences=1, cures=CURES_MANY) == ["no replay was executed"]


def test_a_run_without_these_accidents_owes_no_trace() -> None:
    assert differences(histories(ended_by="cancel", payment="handled"), silences=0, cures=0) == []
