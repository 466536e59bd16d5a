"""What happens now in each service, as transition events tell it."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from saga.messaging.transition_events import TransitionEvent
from saga.monitor import counters, saga_index
from saga.monitor.counters import MINUTES, MinuteCounts
from saga.monitor.saga_index import TimeIndex, TrackedSaga
from saga.monitor.shared.partitions import TransitionKey, decode_transition, encode_transition, to_stored
from saga.monitor.views import MonitorActivity, ServiceActivity
from saga.support.clock import LATEST_MS
from tests.monitor.transition_events import BEGIN_MS, MINUTE, Monitor, S, make_transition

NEVER_MS = LATEST_MS - BEGIN_MS


def of_service(activity: MonitorActivity, service: str) -> ServiceActivity:
    return next(each for each in activity.services if each.service == service)


def test_a_service_has_its_rate_durations_and_failures_of_the_last_minutes_and_a_series_of_the_last_hour() -> None:
    monitor = Monitor()
    for number in range(600):
        monitor.take(make_transition("payment", number, number * S, saga=f"order-{number}", handler_ms=10))
    monitor.take(make_transition("payment", 0, 590 * S, "retrying", saga="late", error="BankDown", handler_ms=9000))
    payment = of_service(monitor.answers.activity(BEGIN_MS + 600 * S), "payment")
    assert 0.9 <= payment.per_s <= 1.0
    assert payment.p95_ms == 10
    assert payment.failures == 1
    assert sum(each.transitions for each in payment.minutes) == 601
    assert [each.minute_ms for each in payment.minutes] == sorted(each.minute_ms for each in payment.minutes)
    assert max(each.p95_ms for each in payment.minutes) == 10
    assert (payment.parked, payment.behind_breaker, payment.stuck, payment.oldest) == (0, 0, {}, ())
    quiet = of_service(monitor.answers.activity(BEGIN_MS + 630 * S + 30 * MINUTE), "payment")
    assert (quiet.per_s, quiet.p95_ms, quiet.failures) == (0, 0, 0), "rates are those of now, not of the newest report"
    assert sum(each.transitions for each in quiet.minutes) == 601
    assert of_service(monitor.answers.activity(BEGIN_MS + 80 * MINUTE), "payment").minutes == (), "it was an hour ago"


def test_parked_runs_are_counted_until_they_continue_with_those_behind_a_breaker() -> None:
    monitor = Monitor()

    def parked(saga: str, number: int, by: str | None) -> None:
        event = make_transition("payment", number, number * S, "retrying", saga=saga, open_=True, parked_ms=NEVER_MS)
        monitor.take(event if by is None else _postponed(event, by))

    def counts() -> tuple[int, int]:
        payment = of_service(monitor.answers.activity(BEGIN_MS + 100 * S), "payment")
        return payment.parked, payment.behind_breaker

    parked("order-1", 0, "BreakerOpen")
    parked("order-2", 0, "TooManyCalls")
    parked("order-3", 0, None)
    assert counts() == (3, 1)
    parked("order-1", 1, None)
    assert counts() == (3, 0)
    monitor.take(make_transition("payment", 2, 3 * S, saga="order-1"))
    assert counts() == (2, 0)
    monitor.folds.forget(monitor.folds.sagas["order-2"])
    assert counts() == (1, 0)
    monitor.take(make_transition("payment", 1, 4 * S, saga="order-3"))
    assert counts() == (0, 0)
    assert monitor.folds.parked == {}


def _postponed(event: TransitionEvent, by: str) -> TransitionEvent:
    return replace(event, postponed_by=by)


def test_what_postpones_a_run_survives_a_restart_of_a_shared_monitor() -> None:
    event = _postponed(make_transition("payment", 0, 0, "retrying", open_=True, parked_ms=NEVER_MS), "BreakerOpen")
    stored = decode_transition(encode_transition(to_stored(event, None, None, BEGIN_MS)))
    restored = Monitor().take(stored.to_event(TransitionKey(0, "payment", 0, "order-1")))
    assert of_service(restored.answers.activity(BEGIN_MS), "payment").behind_breaker == 1


def test_stuck_sagas_are_counted_by_service_and_reason_with_the_oldest_one() -> None:
    monitor = Monitor().take(
        make_transition("payment", 0, 0, "dead", saga="order-1", open_=True, error="Declined"),
        make_transition("payment", 0, 2 * S, "dead", saga="order-2", open_=True, error="Declined"),
        make_transition(
            "payment",
            0,
            1 * S,
            "retrying",
            saga="order-3",
            open_=True,
            parked_ms=MINUTE,
            blame="code",
            error="KeyError",
        ),
        make_transition("shipping", 0, 5 * S, "dead", saga="order-1", open_=True, error="Refused"),
        make_transition("order", 0, 3 * S, saga="order-4", emitted=("OrderPlaced",)),
    )
    activity = monitor.answers.activity(BEGIN_MS + 20 * S)
    payment, shipping = of_service(activity, "payment"), of_service(activity, "shipping")
    assert payment.stuck == {"dead": 2, "failing": 1}
    assert [(each.saga, each.why) for each in payment.oldest] == [("order-1", "dead"), ("order-3", "failing")]
    assert {each.awaited.service for each in payment.oldest} == {"payment"}
    assert shipping.stuck == {"dead": 1}, "a saga that dead letters block in two services is stuck in both"
    assert [each.awaited.service for each in shipping.oldest] == ["shipping"]
    assert (activity.silent, activity.oldest_silent) == (0, None)
    later = monitor.answers.activity(BEGIN_MS + 10 * MINUTE)
    assert later.silent == 1
    assert later.oldest_silent is not None
    assert later.oldest_silent.saga == "order-4"
    assert [each.service for each in later.services] == ["order", "payment", "shipping"]


def test_members_up_to_a_time_are_counted() -> None:
    index: TimeIndex[TrackedSaga] = TimeIndex()
    for ms in (0, 3999, 4000, 4001, 9000):
        index.add(TrackedSaga(f"at {ms}"), ms)
    assert [index.count_until(ms) for ms in (-1, 0, 3999, 4000, 8999, 9000, 90_000)] == [0, 1, 2, 3, 4, 5, 5]


class CountedSagas:
    """Counts how many members of an index are examined, and how many minutes are added up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members = self.minutes = 0
        oldest, merge = TimeIndex.iterate_oldest, MinuteCounts.merge

        def iterate_oldest(
            index: TimeIndex[TrackedSaga], until_ms: int | None = None
        ) -> Iterator[tuple[int, TrackedSaga]]:
            for each in oldest(index, until_ms):
                self.members += 1
                yield each

        def add_minute(whole: MinuteCounts, other: MinuteCounts) -> None:
            self.minutes += 1
            merge(whole, other)

        monkeypatch.setattr(saga_index.TimeIndex, "iterate_oldest", iterate_oldest)
        monkeypatch.setattr(counters.MinuteCounts, "merge", add_minute)


def test_its_cost_depends_on_services_and_handlers_and_not_on_the_number_of_sagas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monitor = Monitor()
    for number in range(2000):
        service = f"service-{number % 25}"
        monitor.take(
            make_transition(service, 0, number * S, "dead", saga=f"order-{number}", open_=True, error="Declined")
        )
    counted = CountedSagas(monkeypatch)
    activity = monitor.answers.activity(BEGIN_MS + 2000 * S)
    assert len(activity.services) == 25
    assert sum(each.stuck["dead"] for each in activity.services) == 2000
    assert counted.members == 25, "one for each reason"
    assert 0 < counted.minutes <= 25 * (MINUTES + 6)
