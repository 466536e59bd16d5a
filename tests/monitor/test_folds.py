"""Folds of transitions: whatever the order, and twice as once; bounded; and each answer out of them."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.messaging.transition_events import TransitionEvent
from saga.monitor import queries, read_model, saga_index
from saga.monitor.views import PageRequest, SagaFilter
from saga.support.clock import iso
from tests.monitor.transition_events import BEGIN_MS, MINUTE, Monitor, S, make_transition

OUTCOMES = ("handled", "waiting", "retrying", "dead", "ignored", "queued", "compensated", "later", "replayed")

LATER = ("book", ("Paid",), 12 * MINUTE)


@st.composite
def histories(draw: st.DrawFn) -> list[TransitionEvent]:
    """Transitions of a few sagas in a few services, each as its service would number them."""
    found = []
    for saga in ("a", "b", "c"):
        for service in sorted(draw(st.sets(st.sampled_from(("order", "payment", "stock"))))):
            ms = draw(st.integers(0, 100 * MINUTE))
            for number in range(draw(st.integers(0, 6))):
                ms += draw(st.integers(0, 20 * S))
                outcome = draw(st.sampled_from(OUTCOMES))
                awaits = ((draw(st.sampled_from(("reserve", "book"))), ("Paid",)),) if draw(st.booleans()) else ()
                found.append(
                    make_transition(
                        service,
                        number,
                        ms,
                        outcome,
                        saga=saga,
                        handler=draw(st.sampled_from(("reserve", "book"))),
                        awaits=awaits,
                        later=draw(st.sampled_from(((), (LATER,), (LATER, (*LATER[:2], 99 * MINUTE))))),
                        open_=draw(st.booleans()),
                        due_ms=draw(st.none() | st.integers(0, 200 * MINUTE)),
                        parked_ms=draw(st.none() | st.integers(0, 200 * MINUTE)),
                        result=draw(st.sampled_from((None, None, "success", "failure"))),
                        error=draw(st.sampled_from((None, "Declined", "TimeoutError"))),
                        handler_ms=draw(st.integers(0, 10_000)),
                        partition=draw(st.integers(0, 3)),
                    )
                )
    return found


def everything(monitor: Monitor) -> bytes:
    """All that a monitor answers, as bytes."""
    views, now_ms = monitor.answers, BEGIN_MS + 90 * MINUTE
    return msgspec.json.encode(
        [
            [views.sagas(which, PageRequest(limit=limit)) for which in FILTERS for limit in (2, 100)],
            [views.saga(saga, now_ms) for saga in "abc"],
            views.rates(),
            views.stuck(now_ms),
            views.stuck(now_ms + 200 * MINUTE),
            views.errors(),
            views.hot(),
        ]
    )


def usual(monitor: Monitor) -> object:
    """Times that are usual, by which is measured what is stuck."""
    waits = {key: times.bins for key, times in monitor.folds.waits.items()}
    lives = {kind: (times.bins, times.count) for kind, times in monitor.folds.lives.items() if times.count}
    return waits, lives


FILTERS = (
    SagaFilter(),
    SagaFilter(outcome="none"),
    SagaFilter(outcome="success"),
    SagaFilter(open=True, service="payment"),
    SagaFilter(dead=True),
    SagaFilter(before_ms=BEGIN_MS + 50 * MINUTE, text="a"),
    SagaFilter(stuck_ms=BEGIN_MS + 150 * MINUTE),
)


@settings(max_examples=30)
@given(histories(), st.data())
def test_what_is_folded_is_the_same_in_any_order_and_twice_as_once(
    history: list[TransitionEvent], data: st.DataObject
) -> None:
    again = [each for each in history if data.draw(st.booleans())]
    unseen = [replace(each, handler_ms=None, queued_ms=None) for each in again]  # by a worker that did not see it
    once, often = Monitor().take(*history), Monitor().take(*data.draw(st.permutations([*history, *again, *unseen])))
    assert once.folds.taken == often.folds.taken == len(history)
    assert everything(once) == everything(often)
    assert usual(once) == usual(often)


@settings(max_examples=30)
@given(histories(), st.data())
def test_of_two_words_by_one_number_the_same_counts_in_any_order(
    history: list[TransitionEvent], data: st.DataObject
) -> None:
    later = [replace(each, open=not each.open, due=None) for each in history]  # as it was when it was published again
    both = [*history, *later]
    assert everything(Monitor().take(*both)) == everything(Monitor().take(*data.draw(st.permutations(both))))


def test_a_saga_with_very_many_transitions_keeps_the_newest_and_counts_each_once() -> None:
    count = saga_index.LINES_MAX + 2 * saga_index.SPARE
    history = [make_transition("order", number, number * S) for number in range(count)]
    forwards, backwards = Monitor().take(*history, *history), Monitor().take(*reversed(history), *history)
    for monitor in (forwards, backwards):
        timeline = monitor.answers.saga("order-1", BEGIN_MS)
        assert timeline is not None
        assert [line.number for line in timeline.lines] == list(range(count - saga_index.LINES_MAX, count))
        assert (timeline.row.transitions, timeline.left_out, timeline.missing) == (count, 2 * saga_index.SPARE, 0)
        assert [(hot.saga, hot.transitions) for hot in monitor.answers.hot().sagas] == [("order-1", count)]
        assert monitor.folds.taken == count


def test_a_gap_is_counted_until_what_is_missing_is_published() -> None:
    monitor = Monitor().take(
        make_transition("order", 0, 0), make_transition("order", 3, 3 * S), make_transition("payment", 1, S)
    )
    timeline = monitor.answers.saga("order-1", BEGIN_MS)
    assert timeline is not None
    assert timeline.missing == 3
    filled = monitor.take(make_transition("order", 2, 2 * S), make_transition("order", 1, S)).answers.saga(
        "order-1", BEGIN_MS
    )
    assert filled is not None
    assert filled.missing == 1


def test_of_a_rebuilt_history_only_transitions_since_then_count() -> None:
    parked = make_transition("payment", 3, 3 * S, "retrying", parked_ms=MINUTE, open_=True, error="TimeoutError")
    monitor = Monitor().take(
        make_transition("order", 0, 0), make_transition("payment", 0, S), make_transition("payment", 1, 2 * S), parked
    )
    rebuilt = replace(make_transition("payment", 0, S), rebuilt_at=iso(BEGIN_MS + 10 * MINUTE))
    monitor.take(rebuilt, make_transition("payment", 1, 2 * S, result="success"))
    assert monitor.stuck(100 * MINUTE) == []
    timeline = monitor.answers.saga("order-1", BEGIN_MS)
    assert timeline is not None
    assert [(line.service, line.number) for line in timeline.lines] == [("order", 0), ("payment", 0), ("payment", 1)]
    assert (timeline.row.transitions, timeline.missing) == (3, 0)
    alone = Monitor().take(make_transition("payment", 0, S), rebuilt, make_transition("order", 0, 0))
    assert len(alone.answers.sagas(SagaFilter(), PageRequest()).rows) == 1


def test_of_a_long_rebuilt_history_the_others_stay() -> None:
    count = saga_index.LINES_MAX + 2 * saga_index.SPARE
    long = (make_transition("order", number, number * S) for number in range(count))
    rebuilt = replace(make_transition("order", 0, 0), rebuilt_at=iso(BEGIN_MS))
    timeline = (
        Monitor().take(make_transition("payment", 0, count * S), *long, rebuilt).answers.saga("order-1", BEGIN_MS)
    )
    assert timeline is not None
    assert [(line.service, line.number) for line in timeline.lines] == [("order", 0), ("payment", 0)]
    assert (timeline.row.transitions, timeline.missing) == (2, 0)


def test_of_too_many_sagas_the_ended_one_goes_that_was_not_heard_of_for_the_longest_time() -> None:
    monitor = Monitor(read_model.ReadModel(sagas_max=3))
    monitor.take(make_transition("order", 0, 0, saga="runs"))
    for ms, saga in enumerate(("first", "second", "third", "fourth"), start=1):
        monitor.take(make_transition("order", 0, ms * S, saga=saga, result="success", emitted=("OrderConfirmed",)))
    assert [row.saga for row in monitor.answers.sagas(SagaFilter(), PageRequest()).rows] == ["fourth", "third", "runs"]
    assert monitor.folds.forgotten == 2
    assert [row.saga for row in monitor.answers.sagas(SagaFilter(outcome="none"), PageRequest()).rows] == ["runs"]


def test_a_saga_that_is_forgotten_is_hot_no_more_and_one_that_is_quiet_takes_no_more_room_than_it_needs() -> None:
    monitor = Monitor(read_model.ReadModel(sagas_max=1)).take(
        *(make_transition("order", n, n) for n in range(read_model.BUSY_LEAST))
    )
    assert len(monitor.answers.hot().sagas) == 1
    monitor.take(make_transition("order", 0, S, saga="next"))
    assert monitor.answers.hot().sagas == ()
    assert monitor.folds.sagas["next"].service_states == ()


def test_where_no_saga_has_ended_the_one_longest_unheard_of_goes() -> None:
    monitor = Monitor(read_model.ReadModel(sagas_max=2))
    monitor.take(*(make_transition("order", 0, ms * S, "waiting", saga=saga) for ms, saga in enumerate("abc")))
    assert [row.saga for row in monitor.answers.sagas(SagaFilter(), PageRequest()).rows] == ["c", "b"]
    assert [saga for saga, _, _ in monitor.stuck(60 * MINUTE)] == ["b", "c"]


FILTERED: tuple[tuple[SagaFilter, str], ...] = (
    (SagaFilter(), "dead done failed old open"),
    (SagaFilter(text="d"), "dead done failed old"),
    (SagaFilter(outcome="none"), "dead old open"),
    (SagaFilter(outcome="success"), "done"),
    (SagaFilter(outcome="failure"), "failed"),
    (SagaFilter(before_ms=BEGIN_MS), "old"),
    (SagaFilter(open=True), "dead failed open"),
    (SagaFilter(service="payment"), "dead failed"),
    (SagaFilter(service="stock"), ""),
    (SagaFilter(text="d", service="order"), "done old"),
    (SagaFilter(dead=True), "dead failed"),
    (SagaFilter(dead=True, outcome="none"), "dead"),
    (SagaFilter(dead=True, text="fail"), "failed"),
    (SagaFilter(stuck_ms=BEGIN_MS + 1000 * MINUTE), "dead failed old open"),
    (SagaFilter(stuck_ms=BEGIN_MS + 1000 * MINUTE, open=True, service="order"), "open"),
)


@pytest.mark.parametrize(("which", "names"), FILTERED)
def test_a_page_shows_the_sagas_for_which_all_holds_that_is_asked_and_no_others(which: SagaFilter, names: str) -> None:
    views = (
        Monitor()
        .take(
            make_transition("order", 0, 0, saga="done", result="success"),
            make_transition("order", 0, -S, saga="old"),
            make_transition("order", 0, 0, "retrying", saga="open", open_=True, parked_ms=S),
            make_transition("payment", 0, 0, "dead", saga="dead", open_=True),
            make_transition("payment", 0, 0, saga="failed", result="failure"),
            make_transition("payment", 1, S, "dead", saga="failed", open_=True),
        )
        .answers
    )
    whole = [row.saga for row in views.sagas(which, PageRequest()).rows]
    assert sorted(whole) == names.split()
    found, after = list[str](), ""
    for _ in whole:
        page = views.sagas(which, PageRequest(limit=1, after=after))
        found += [row.saga for row in page.rows]
        after = page.next
    assert found == whole, "one after another"


def test_with_more_stuck_sagas_than_fit_it_is_shown_that_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "PAGE_MAX", 2)
    monitor = Monitor().take(*(make_transition("order", 0, 0, "dead", saga=f"s{n}", open_=True) for n in range(2)))
    assert (len(monitor.stuck(S)), monitor.answers.stuck(BEGIN_MS + S).more) == (2, False)
    monitor.take(make_transition("order", 0, 0, "dead", saga="s2", open_=True))
    assert (len(monitor.stuck(S)), monitor.answers.stuck(BEGIN_MS + S).more) == (2, True)


def test_pages_follow_one_another_and_miss_nothing() -> None:
    monitor = Monitor().take(*(make_transition("order", 0, ms * 700, saga=f"s{ms}") for ms in range(25)))
    for which, first in ((SagaFilter(), "s24"), (SagaFilter(outcome="none"), "s0")):
        seen, after = list[str](), ""
        while True:
            page = monitor.answers.sagas(which, PageRequest(limit=4, after=after))
            seen += [row.saga for row in page.rows]
            if not (after := page.next):
                break
        assert seen[0] == first
        assert sorted(seen) == sorted({f"s{n}" for n in range(25)})


def test_a_page_ends_after_so_many_sagas_and_the_next_begins_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "LOOK_MAX", 10)
    monitor = Monitor().take(
        *(make_transition("order", 0, n // 5 * saga_index.BUCKET_MS, saga=f"s{n:02}") for n in range(30))
    )
    views, which = monitor.answers, SagaFilter(text="s03")
    first = views.sagas(which, PageRequest())
    second = views.sagas(which, PageRequest(after=first.next))
    third = views.sagas(which, PageRequest(after=second.next))
    assert [(page.rows, page.looked) for page in (first, second)] == [((), 10), ((), 10)]
    assert ([row.saga for row in third.rows], third.looked, third.next) == (["s03"], 10, "")
    oldest = views.sagas(replace(which, outcome="none"), PageRequest())
    assert ([row.saga for row in oldest.rows], oldest.looked) == (["s03"], 10)
    behind = views.sagas(replace(which, outcome="none"), PageRequest(after=oldest.next))
    assert (behind.rows, behind.looked) == ((), 10)


def test_sagas_are_found_by_the_services_that_reported_them_though_their_lines_are_kept_no_more() -> None:
    long = (make_transition("payment", n, n) for n in range(saga_index.LINES_MAX + 2 * saga_index.SPARE))
    monitor = Monitor().take(make_transition("order", 0, 0), *long, make_transition("order", 0, 0, saga="other"))

    def found(service: str) -> list[str]:
        return sorted(row.saga for row in monitor.answers.sagas(SagaFilter(service=service), PageRequest()).rows)

    assert [found(service) for service in ("order", "payment", "stock")] == [["order-1", "other"], ["order-1"], []]


@pytest.mark.parametrize("after", ["", "x", "1", "x:y", f"{'9' * 30}:a", "-1:a"])
def test_a_cursor_that_is_none_begins_at_the_first_page(after: str) -> None:
    monitor = Monitor().take(make_transition("order", 0, 0))
    assert len(monitor.answers.sagas(SagaFilter(), PageRequest(after=after)).rows) == 1


def test_rates_tell_runs_times_retries_and_storms() -> None:
    runs = [make_transition("payment", n, n * S, saga=f"s{n}", handler_ms=n) for n in range(100)]
    fails = [make_transition("stock", n, n * S, "retrying", saga=f"s{n}", error="TimeoutError") for n in range(30)]
    rates = Monitor().take(*runs, *fails).answers.rates()
    payment, stock = rates.handlers
    assert (payment.service, payment.transitions, payment.runs, payment.storm) == ("payment", 100, 100, False)
    assert 49 <= payment.p50_ms <= 55
    assert 98 <= payment.p99_ms <= 103
    assert payment.queued_p95_ms == 2
    assert (stock.service, stock.retries, stock.runs, stock.storm) == ("stock", 30, 0, True)
    assert sum(each.failures for each in stock.slices) == 30
    assert (rates.sagas, rates.in_flight, rates.taken) == (100, 100, 130)


def test_a_handler_that_comes_to_an_end_more_often_than_it_fails_is_no_storm() -> None:
    fails = [make_transition("stock", 0, n * S, "retrying", saga=f"s{n}", error="TimeoutError") for n in range(30)]
    runs = [make_transition("stock", 1, n * S, saga=f"s{n}") for n in range(30)]
    assert not Monitor().take(*fails, *runs).answers.rates().handlers[0].storm
    assert Monitor().take(*fails, *runs[1:]).answers.rates().handlers[0].storm


def test_the_rate_a_second_is_that_of_five_whole_minutes() -> None:
    begin = -BEGIN_MS % MINUTE  # of a whole minute
    monitor = Monitor().take(*(make_transition("order", n, begin + n * S) for n in range(30)))
    assert monitor.answers.rates().handlers[0].per_s == 0, "the minute is not over"
    (rate,) = monitor.take(make_transition("order", 30, begin + 5 * MINUTE)).answers.rates().handlers
    assert rate.per_s == 0.1
    (rate,) = monitor.take(make_transition("order", 31, begin + 6 * MINUTE)).answers.rates().handlers
    assert rate.per_s == round(1 / 300, 3)


def test_what_is_older_than_the_window_is_counted_no_more() -> None:
    monitor = Monitor().take(
        make_transition("payment", 0, 0, error="Declined"), make_transition("payment", 1, 61 * MINUTE)
    )
    (rate,) = monitor.answers.rates().handlers
    assert rate.transitions == 1
    assert monitor.answers.errors() == ()


def test_errors_are_listed_by_class_with_the_saga_of_the_last_one() -> None:
    monitor = Monitor().take(
        make_transition("payment", 0, 0, "retrying", saga="a", error="Declined"),
        make_transition("payment", 0, 2 * S, "retrying", saga="b", error="Declined"),
        make_transition("payment", 1, 1 * S, "dead", saga="a", error="KeyError"),
    )
    errors = [(each.error, each.count, each.saga) for each in monitor.answers.errors()]
    assert errors == [("Declined", 2, "b"), ("KeyError", 1, "a")]


def test_a_partition_that_gets_more_than_its_share_is_hot() -> None:
    few = [make_transition("payment", 0, n, saga=f"few{n}", partition=n % 8) for n in range(80)]
    many = [make_transition("payment", 0, n, saga=f"many{n}", partition=3) for n in range(200)]
    (hot,) = Monitor().take(*few, *many).answers.hot().partitions
    assert (hot.topic, hot.partition, hot.transitions, hot.share) == ("orders", 3, 210, 6.0)


def test_a_clock_far_ahead_does_not_push_the_others_out_of_the_window() -> None:
    monitor = Monitor()
    monitor.folds.apply(make_transition("payment", 0, 0), BEGIN_MS)
    monitor.folds.apply(make_transition("payment", 0, 10_000 * MINUTE, saga="ahead"), BEGIN_MS)
    (rate,) = monitor.answers.rates().handlers
    assert rate.transitions == 2


def test_what_is_beyond_all_bounds_is_not_taken() -> None:
    monitor = Monitor().take(
        make_transition("order", read_model.NUMBER_MAX + 1, 0), make_transition("order", 0, 0, saga="x" * 1001)
    )
    assert monitor.folds.sagas == {}


def test_long_names_and_very_many_types_are_cut() -> None:
    monitor = Monitor().take(
        make_transition("order", 0, 0, handler="h" * 5000, emitted=tuple(f"E{n}" for n in range(50)))
    )
    timeline = monitor.answers.saga("order-1", BEGIN_MS)
    assert timeline is not None
    (line,) = timeline.lines
    assert len(line.handler) < 210
    assert line.emitted == (*(f"E{n}" for n in range(8)), "and 42 more")


def test_the_names_of_very_many_workers_leave_room_for_those_of_services(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saga_index, "WORDS_MAX", 20)
    monkeypatch.setattr(saga_index, "WORKERS_MAX", 10)
    started = [replace(make_transition("order", 0, n, saga=f"order-{n}"), worker=f"order-{n}:1") for n in range(40)]
    monitor = Monitor().take(*started, make_transition("payment", 0, 50), make_transition("ledger", 0, 51))
    found = monitor.answers.saga("order-1", BEGIN_MS + MINUTE)
    assert found is not None
    assert [line.service for line in found.lines] == ["order", "payment", "ledger"]
    assert found.lines[0].worker == "order-1:1"
    assert monitor.folds.services == {"order", "payment", "ledger"}
