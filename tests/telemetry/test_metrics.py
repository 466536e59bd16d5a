"""Telemetry events become counters, workers become gauges, and Prometheus can read both."""

import asyncio
import re
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import asdict, replace
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from saga.messages import StalledPartition
from saga.telemetry import events
from saga.telemetry.events import (
    Assigned,
    BreakerTurned,
    CallWaited,
    ContractsUnreadable,
    ControlTurned,
    ControlUnknown,
    DeadLettered,
    DeadlineBehindLog,
    DeadlinePassedLog,
    Escalated,
    Expired,
    Failed,
    FellBack,
    GoesOn,
    Handled,
    LogReplaced,
    Lost,
    Misfit,
    Opened,
    OtherPartitioner,
    Parked,
    PartitionsRaised,
    PassedOver,
    PublishedLost,
    PutOff,
    Recovered,
    ReplayEnded,
    Retrying,
    Revoked,
    SchemasDeployed,
    StandsStill,
    Started,
    StartInFuture,
    StepDone,
    StillOpening,
    Stopped,
    StoppedBeforeStart,
    StrangersMet,
    Stuck,
    TelemetryEvent,
    TimerKept,
    TimersLost,
    Traced,
    TransitionsDropped,
    Unavailable,
    UnknownType,
    WriteRefused,
)
from saga.telemetry.metrics import BOUNDS_S, PAGES_MAX, SERIES_MAX, Metrics, MetricsPage
from tests.telemetry.workers import P0, P1, SetClock, WatchedWorker

METRICS_PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
SECRET = "order-4711"
"""Stands wherever an id or a free text can stand."""
HANDLED = Handled(
    service="payment",
    saga=SECRET,
    message=SECRET,
    type="OrderPlaced",
    topic="orders",
    partition=3,
    offset=12,
    outcomes=(("reserve", "handled", None), ("note", "ignored", SECRET)),
    queued_ms=0.4,
    handler_ms=3.0,
    persisted_ms=20.0,
    published_ms=300.0,
    total_ms=120_000.0,
    attempts=1,
)
RETRYING = Retrying(
    service="payment",
    saga=SECRET,
    handler="reserve",
    message=SECRET,
    attempt=1,
    attempts_max=5,
    delay_s=0.5,
    error=SECRET,
    where=SECRET,
)
FAILED = Failed(service="payment", saga=SECRET, handler="reserve", kind="BankDown", blame="outside")
PUT_OFF = PutOff(
    service="payment", saga=SECRET, handler="reserve", message=SECRET, delay_s=20.0, is_parked=True, error=SECRET
)
WAITED = CallWaited(service="payment", resource="bank", ms=40.0)
FELL_BACK = FellBack(service="payment", saga=SECRET, handler="reserve", step="score", instead="remembered")
PARKED = Parked(**asdict(RETRYING))
TURNED = BreakerTurned(service="payment", resource="bank", state="open", open_s=0)
ROUTED = ControlTurned(
    service="payment", control="route", what="event", name="OrderPlaced", is_on=True, who=SECRET, why=SECRET, until=None
)
DEAD = DeadLettered(service="payment", reason=SECRET, remedy=SECRET, saga=SECRET, message=SECRET, type="OrderPlaced")
UNREADABLE = DeadLettered(service="payment", reason=SECRET, remedy=SECRET)
ESCALATED = Escalated(service="payment", saga=SECRET, handler="release", reason=SECRET, steps=(SECRET,))
REPLAYED = ReplayEnded(service="payment", saga=SECRET, handler="reserve", message=SECRET, result="succeeded")
STEP = StepDone(service="payment", saga=SECRET, handler="reserve", step="charge", ms=40.0)
STUCK = Stuck(service="payment", saga=SECRET, message=SECRET, error=SECRET, retry_s=0.5)
STRANGERS = StrangersMet(service="payment", members=(SECRET,))
EXPIRED = Expired(service="payment", topic="orders", partition=1, first=7, last=7, count=1)
TIMERS_LOST = TimersLost(service="payment", topics=("payment.wake.1m",), sent=3)
PUBLISHED_LOST = PublishedLost(service="payment", topic="payments")
REPLACED = LogReplaced(service="payment", topic="orders", partition=1, first=7)
PASSED_OVER = PassedOver(service="payment", topic="orders", partition=1, offset=7, why="tombstone")
CONFLICT = WriteRefused(service="payment", saga=SECRET, operation="write", why="conflict")
AMBIGUOUS = WriteRefused(service="payment", saga=None, operation="update", why="ambiguous")
SEEN_ELSEWHERE = {
    Opened,
    StillOpening,
    StoppedBeforeStart,
    Started,
    Unavailable,
    Recovered,
    StandsStill,
    GoesOn,
    SchemasDeployed,
    ContractsUnreadable,
    Misfit,
    PartitionsRaised,
}
SEEN_ELSEWHERE |= {ControlUnknown, Traced, TransitionsDropped, TimerKept, UnknownType, OtherPartitioner}
SEEN_ELSEWHERE |= {DeadlineBehindLog, DeadlinePassedLog, StartInFuture}
"""A worker that begins, and what a worker cannot reach, are looked at: no moment is needed."""

Series = tuple[str, frozenset[tuple[str, str]]]


def series(name: str, /, **labels: str) -> Series:
    return name, frozenset(labels.items())


def page_of(metrics: Metrics, accept: str = "") -> tuple[bytes, str]:
    return asyncio.run(MetricsPage(metrics, SetClock()).text(accept))


def read_samples(metrics: Metrics) -> dict[Series, float]:
    """Every sample of the page, as Prometheus reads it."""
    text = page_of(metrics)[0].decode()
    return {
        series(sample.name, **sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(*workers: WatchedWorker, clock: SetClock | None = None) -> Metrics:
    """Metrics of workers that have begun."""
    metrics = Metrics({worker.name: worker for worker in workers}, clock or SetClock())
    for worker in workers:
        metrics.begins(worker)
    return metrics


@pytest.mark.parametrize(
    ("moment", "grows"),
    [
        (HANDLED, series("saga_handled_total", service="payment", type="OrderPlaced", outcome="handled")),
        (HANDLED, series("saga_handled_total", service="payment", type="OrderPlaced", outcome="ignored")),
        (HANDLED, series("saga_stage_seconds_count", service="payment", type="OrderPlaced", stage="total")),
        (
            replace(HANDLED, outcomes=()),
            series("saga_redelivered_total", service="payment", type="OrderPlaced"),
        ),
        (HANDLED, series("saga_partition_messages_total", service="payment", topic="orders", partition="3")),
        (
            FAILED,
            series(
                "saga_failures_total", service="payment", handler="reserve", error="BankDown", **{"class": "outside"}
            ),
        ),
        (RETRYING, series("saga_retries_total", service="payment", handler="reserve")),
        (PARKED, series("saga_retries_total", service="payment", handler="reserve")),
        (PARKED, series("saga_parked_total", service="payment", handler="reserve")),
        (PUT_OFF, series("saga_put_off_total", service="payment", handler="reserve")),
        (FELL_BACK, series("saga_fallbacks_total", service="payment", step="score", instead="remembered")),
        (WAITED, series("saga_call_wait_seconds_count", service="payment", resource="bank")),
        (DEAD, series("saga_dead_letters_total", service="payment", type="OrderPlaced")),
        (UNREADABLE, series("saga_dead_letters_total", service="payment", type="")),
        (REPLAYED, series("saga_replays_total", service="payment", handler="reserve", result="succeeded")),
        (ESCALATED, series("saga_escalations_total", service="payment", handler="release")),
        (STEP, series("saga_step_seconds_count", service="payment", handler="reserve", step="charge")),
        (STRANGERS, series("saga_strangers_met_total", service="payment")),
        (STUCK, series("saga_stuck_total", service="payment")),
        (EXPIRED, series("saga_expired_records_total", service="payment", topic="orders", partition="1")),
        (REPLACED, series("saga_replaced_logs_total", service="payment", topic="orders", partition="1")),
        (PASSED_OVER, series("saga_passed_over_records_total", service="payment", topic="orders", why="tombstone")),
        (TIMERS_LOST, series("saga_timers_lost_total", service="payment")),
        (PUBLISHED_LOST, series("saga_published_lost_total", service="payment")),
        (CONFLICT, series("saga_conflicts_total", service="payment", operation="write")),
        (AMBIGUOUS, series("saga_ambiguous_writes_total", service="payment", operation="update")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, TelemetryEvent) else value[0],
)
def test_each_moment_adds_one(moment: TelemetryEvent, grows: Series) -> None:
    metrics = of(WatchedWorker())
    before = read_samples(metrics).get(grows, 0)
    metrics(moment)
    metrics(moment)
    assert read_samples(metrics)[grows] == before + 2


def test_a_breaker_is_shown_as_it_last_turned() -> None:
    metrics, shown = of(WatchedWorker()), series("saga_breaker_state", service="payment", resource="bank")
    assert shown not in read_samples(metrics)
    for state, value in (("open", 2), ("half-open", 1), ("closed", 0)):
        metrics(BreakerTurned(service="payment", resource="bank", state=state, open_s=0))  # type: ignore[arg-type] # three
        assert read_samples(metrics)[shown] == value


def test_partitions_are_counted_as_they_come_and_go() -> None:
    metrics = of(WatchedWorker())
    metrics(Assigned(service="payment", partitions=(P0, P1)))
    metrics(Revoked(service="payment", partitions=(P0,)))
    metrics(Lost(service="payment", partitions=(P1,)))
    moved = {
        how: read_samples(metrics)["saga_partitions_moved_total", labels(how)]
        for how in ("assigned", "revoked", "lost")
    }
    assert moved == {"assigned": 2, "revoked": 1, "lost": 1}


def test_records_that_expired_are_counted_from_zero_for_each_partition_that_came() -> None:
    metrics = of(WatchedWorker())
    metrics(Assigned(service="payment", partitions=(P0, P1)))
    metrics(replace(EXPIRED, first=3, last=6, count=4))
    counted = {
        number: read_samples(metrics)[
            series("saga_expired_records_total", service="payment", topic="orders", partition=number)
        ]
        for number in ("0", "1")
    }
    assert counted == {"0": 0, "1": 4}


def labels(how: str) -> frozenset[tuple[str, str]]:
    return frozenset({"service": "payment", "how": how}.items())


def test_messages_are_counted_by_partition_for_as_long_as_it_is_ours() -> None:
    metrics = of(WatchedWorker())
    metrics(Assigned(service="payment", partitions=(P0, P1)))
    metrics(replace(HANDLED, partition=1))
    shown = {
        number: series("saga_partition_messages_total", service="payment", topic="orders", partition=number)
        for number in ("0", "1")
    }
    page = read_samples(metrics)
    assert [page[shown["0"]], page[shown["1"]]] == [0, 1]
    for gone in (Revoked(service="payment", partitions=(P0,)), Lost(service="payment", partitions=(P1,))):
        metrics(gone)
    assert not [name for name, _ in read_samples(metrics) if name == "saga_partition_messages_total"]


def test_an_error_class_with_an_endless_name_is_shortened() -> None:
    metrics = of(WatchedWorker())
    metrics(replace(FAILED, kind="Bank" * 1000))
    [name] = [dict(labels)["error"] for family, labels in read_samples(metrics) if family == "saga_failures_total"]
    assert (len(name), name[-4:]) == (100, " ...")


def test_a_message_that_was_handled_is_no_redelivery() -> None:
    metrics = of(WatchedWorker())
    metrics(HANDLED)
    assert read_samples(metrics)[series("saga_redelivered_total", service="payment", type="OrderPlaced")] == 0


def test_each_kind_of_moment_is_counted_or_seen_elsewhere() -> None:
    kinds = {
        kind
        for kind in vars(events).values()
        if isinstance(kind, type) and issubclass(kind, TelemetryEvent) and kind is not TelemetryEvent
    }
    assert of()._listens.keys() | SEEN_ELSEWHERE == kinds


@pytest.mark.parametrize(
    ("stage", "seconds"),
    [("queued", 0.0004), ("handler", 0.003), ("persisted", 0.02), ("published", 0.3), ("total", 120.0)],
)
def test_each_stage_has_its_histogram_in_seconds(stage: str, seconds: float) -> None:
    metrics = of(WatchedWorker())
    metrics(HANDLED)
    of_stage = {"service": "payment", "type": "OrderPlaced", "stage": stage}
    page = read_samples(metrics)
    assert page[series("saga_stage_seconds_sum", **of_stage)] == pytest.approx(seconds)
    below = {bound: page[series("saga_stage_seconds_bucket", **of_stage, le=str(bound))] for bound in BOUNDS_S}
    assert below == {bound: float(seconds <= bound) for bound in BOUNDS_S}
    assert page[series("saga_stage_seconds_bucket", **of_stage, le="+Inf")] == 1


def test_series_begin_at_zero_so_that_the_first_one_is_seen_to_grow() -> None:
    page = read_samples(of(WatchedWorker()))
    for first in (
        series("saga_dead_letters_total", service="payment", type="OrderPlaced"),
        series("saga_dead_letters_total", service="payment", type=""),
        series("saga_escalations_total", service="payment", handler="release"),
        series("saga_retries_total", service="payment", handler="reserve"),
        series("saga_parked_total", service="payment", handler="reserve"),
        series("saga_put_off_total", service="payment", handler="reserve"),
        series("saga_stuck_total", service="payment"),
        series("saga_partitions_moved_total", service="payment", how="lost"),
        series("saga_ambiguous_writes_total", service="payment", operation="update"),
    ):
        assert page[first] == 0


def test_no_id_and_no_text_becomes_a_label() -> None:
    metrics = of(WatchedWorker())
    for moment in (
        HANDLED,
        FAILED,
        RETRYING,
        PARKED,
        PUT_OFF,
        DEAD,
        UNREADABLE,
        ESCALATED,
        REPLAYED,
        STEP,
        STUCK,
        CONFLICT,
        AMBIGUOUS,
    ):
        metrics(moment)
    assert SECRET not in page_of(metrics)[0].decode()


def test_names_without_end_are_counted_together() -> None:
    metrics = of(WatchedWorker())
    for number in range(3 * SERIES_MAX):
        metrics(replace(STEP, step=f"step {number}"))
        metrics(replace(RETRYING, handler=f"handler {number}"))
    page = read_samples(metrics)
    steps = {labels: value for (name, labels), value in page.items() if name == "saga_step_seconds_count"}
    assert (len(steps), sum(steps.values())) == (SERIES_MAX + 1, 3 * SERIES_MAX)
    retries = {labels: value for (name, labels), value in page.items() if name == "saga_retries_total"}
    assert (len(retries), sum(retries.values())) == (SERIES_MAX + 1, 3 * SERIES_MAX)
    assert page[series("saga_retries_total", service="payment", handler="other")] == 2 * SERIES_MAX + 2


def test_messages_in_flight_are_measured_when_metrics_are_read() -> None:
    worker = WatchedWorker()
    metrics = of(worker)
    worker.inflight, worker.behind, worker.gone = 7, {P0: 3, P1: 0}, {"store": 12.5}
    page = read_samples(metrics)
    assert page[series("saga_in_flight_messages", service="payment")] == 7
    assert page[series("saga_in_flight_messages_limit", service="payment")] == 1000
    assert page[series("saga_partitions", service="payment")] == 2
    assert page[series("saga_lag_messages", service="payment", topic="orders", partition="0")] == 3
    assert page[series("saga_lag_messages", service="payment", topic="orders", partition="1")] == 0
    assert page[series("saga_unavailable_seconds", service="payment", what="store")] == 12.5
    assert page[series("saga_unavailable_seconds", service="payment", what="broker")] == 0


def test_a_stalled_partition_is_a_series_while_it_is_stalled() -> None:
    worker = WatchedWorker(
        stands=[StalledPartition("orders", 3, 7, "why"), StalledPartition("refunds", None, None, "why")]
    )
    metrics = of(worker)
    page = read_samples(metrics)
    for topic, partition in (("orders", "3"), ("refunds", "-1")):
        assert page[series("saga_standing", service="payment", topic=topic, partition=partition)] == 1
    worker.stands = ()
    assert not [name for name, _ in read_samples(metrics) if name == "saga_standing"]


def test_the_recovery_ends_when_all_has_been_read_for_the_first_time() -> None:
    worker, clock = WatchedWorker(), SetClock()
    metrics, recovery = of(worker, clock=clock), series("saga_recovery_seconds", service="payment")
    for behind, given in [(None, None), ({}, None), ({P0: 3, P1: 0}, None), ({P0: 0}, 2)]:
        clock.at_s += 1
        worker.behind, worker.given = behind, given
        metrics.look()
        assert recovery not in read_samples(metrics), f"lag {behind} of {given} partitions"
    for behind in ({P0: 0, P1: 0}, {P0: 5, P1: 0}, {P0: 0, P1: 0}):
        clock.at_s += 1
        worker.behind, worker.given = behind, None
        metrics.look()
        assert read_samples(metrics)[recovery] == 5


def test_the_recovery_ends_under_load_too_where_there_is_always_something_that_is_not_read_yet() -> None:
    worker, clock = WatchedWorker(behind={P0: 30, P1: 4}), SetClock()
    metrics, recovery = of(worker, clock=clock), series("saga_recovery_seconds", service="payment")
    for handled in (100, 110, 129):
        clock.at_s += 1
        worker.handled, worker.behind = handled, {P0: 30, P1: 4}
        metrics.look()
        assert recovery not in read_samples(metrics)
    clock.at_s += 1
    worker.handled = 130
    metrics.look()
    assert read_samples(metrics)[recovery] == 4


def test_a_partition_that_comes_while_a_worker_recovers_is_part_of_it_and_one_that_goes_is_not() -> None:
    worker, clock = WatchedWorker(behind={P0: 30}), SetClock()
    metrics, recovery = of(worker, clock=clock), series("saga_recovery_seconds", service="payment")
    metrics.look()
    worker.behind, worker.handled = {P1: 5}, 140
    metrics.look()
    assert recovery not in read_samples(metrics)
    worker.behind = {P1: 0}
    metrics.look()
    assert recovery in read_samples(metrics)


def test_the_drain_is_reported_once_it_is_over() -> None:
    metrics = of(WatchedWorker())
    assert series("saga_drained_seconds", service="payment") not in read_samples(metrics)
    metrics(Stopped(service="payment", drained_s=1.5))
    assert read_samples(metrics)[series("saga_drained_seconds", service="payment")] == 1.5


STOPPED = Stopped(service="payment", drained_s=1.5)


def everything() -> Metrics:
    """With a sample of every metric."""
    metrics = of(WatchedWorker(behind={P0: 0}, stands=[StalledPartition("orders", 3, 7, "why")]))
    for moment in (HANDLED, STEP, EXPIRED, PASSED_OVER, FAILED, WAITED, FELL_BACK, TURNED, ROUTED, STOPPED, REPLACED):
        metrics(moment)
    metrics.look()
    return metrics


def test_everything_is_every_metric() -> None:
    assert [family.name for family in everything().collect() if not family.samples] == []


def test_a_request_for_open_metrics_gets_them() -> None:
    text, content_type = page_of(everything(), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    families = open_metrics(text.decode())  # type: ignore[no-untyped-call]  # theirs
    assert "saga_handled" in {family.name for family in families}


@pytest.mark.parametrize(
    "accept", ["text/plain; version=x", "application/openmetrics-text; version=abc", "text/plain; version=1.0.x"]
)
def test_a_request_for_a_version_that_is_no_number_gets_plain_text(accept: str) -> None:
    assert page_of(everything(), accept)[1] == page_of(everything())[1]


async def test_a_client_that_asks_for_ever_new_versions_does_not_fill_the_memory_with_pages() -> None:
    page = MetricsPage(everything(), SetClock())
    for number in range(PAGES_MAX + 1):
        await page.text(f"application/openmetrics-text; version=1.0.{number}")
    newest = f"version=1.0.{PAGES_MAX}"
    assert len(page._written) == PAGES_MAX
    assert [newest in content_type for content_type in page._written] == [False] * (PAGES_MAX - 1) + [True]


def test_promtool_has_nothing_to_say_against_the_page(promtool: Path) -> None:
    done = subprocess.run([promtool, "check", "metrics"], input=page_of(everything())[0], capture_output=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_the_page_for_operators_has_every_metric_and_no_other() -> None:
    documented = re.findall(r"^\| `(saga_[a-z_]+)`", METRICS_PAGE.read_text("utf-8"), re.MULTILINE)
    families = {family.name: family for family in of(WatchedWorker()).collect()}
    names = {f"{name}_total" if family.type == "counter" else name for name, family in families.items()}
    assert sorted(documented) == sorted(names)
