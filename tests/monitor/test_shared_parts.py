"""Parts of a shared monitor: together they answer as one monitor that reads everything, also after their tables were
read again, whatever of them was written before a worker died; nothing is counted twice."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.messages import Record
from saga.messaging.names import TRANSITIONS
from saga.messaging.transition_events import TransitionEvent
from saga.monitor.queries import compute_rates, find_hot_spots, list_errors
from saga.monitor.shared import server as sums_module
from saga.monitor.shared.partitions import (
    PartitionModel,
    RateEntry,
    TableChange,
    TransitionKey,
    encode_key,
    parse_partition,
)
from saga.monitor.shared.server import (
    PartitionSums,
    WorkerQuestion,
    add_up,
    answer_question,
    decode_question,
    decode_reply,
    merge_stuck,
)
from saga.monitor.views import HandlerRates, StuckSagas
from tests.monitor.test_folds import histories
from tests.monitor.transition_events import BEGIN_MS, MINUTE, Monitor, S, make_transition, record_of

AFTER_MS = BEGIN_MS + 1000 * MINUTE
PARTITIONS = 2


def record(each: TransitionEvent, partition: int = 0) -> Record:
    """Transition as it comes from a log."""
    sent = record_of(each)
    return Record(TRANSITIONS, partition, 0, sent.key, sent.value, (), AFTER_MS)


def test_a_handler_that_a_transition_has_closed_is_kept_in_the_table() -> None:
    part, read_again = PartitionModel(0), PartitionModel(0)
    dead = make_transition("payment", 0, 0, "dead", open_=True)
    closes = make_transition("payment", 1, S, "compensated", handler="release", closed=("reserve",), open_=True)
    for change in (*part.apply(record(dead)), *part.apply(record(closes))):
        read_again.restore(*change)
    for each in (part, read_again):
        assert Monitor(each.read_model).stuck(MINUTE) == []


class Shared:
    """Parts, and their tables as a log would keep them."""

    def __init__(self) -> None:
        self.parts = {number: PartitionModel(number) for number in range(PARTITIONS)}
        self.kept: list[TableChange] = []
        self.rates: dict[tuple[str, int], RateEntry] = {}

    def take(self, history: Sequence[TransitionEvent], rates: bool = True) -> "Shared":
        """Fold a batch, and keep what comes of it. `rates`: false if the worker dies before these are written."""
        for each in history:
            number = ord(each.saga[-1]) % PARTITIONS
            self.kept += self.parts[number].apply(record(each, number))
        if rates:
            self.write_rates()
        return self

    def write_rates(self) -> None:
        for part in self.parts.values():
            self.rates |= {(rate.name, rate.minute): rate for rate in part.take_changed_rates()}

    def restarted(self, kept: Sequence[TableChange] | None = None) -> "Shared":
        """The same out of its tables alone."""
        again = Shared()
        again.kept, again.rates = list(self.kept), dict(self.rates)
        for change in self.kept if kept is None else kept:
            key = msgspec.json.decode(change.key, type=TransitionKey)
            again.parts[key.partition].restore(*change)
        for rate in self.rates.values():
            number = parse_partition(rate.name)
            assert number is not None
            again.parts[number].restore_rate(rate.name, rate.minute, rate.value)
        return again

    def sums(self) -> PartitionSums:
        reply = self.reply(WorkerQuestion("sums"))
        return add_up(reply.sums.values())

    def reply(self, question: WorkerQuestion) -> sums_module.WorkerReply:
        """Answer, by the way that it goes between two workers."""
        asked = decode_question(msgspec.msgpack.encode(question))
        answer = answer_question(asked, {number: part.read_model for number, part in self.parts.items()})
        return decode_reply(msgspec.msgpack.encode(answer))

    def stuck(self, now_ms: int) -> StuckSagas:
        asked = WorkerQuestion("stuck", now_ms=now_ms, usual=self.sums().usual)
        return merge_stuck(self.reply(asked).stuck.values(), ())


def answers(shared: Shared) -> list[object]:
    """All that a shared monitor answers."""
    sums, now_ms = shared.sums(), BEGIN_MS + 90 * MINUTE
    traces = [
        next((each for each in shared.reply(question).trace.values() if each is not None), None)
        for question in [WorkerQuestion("trace", saga, now_ms, sums.usual) for saga in "abc"]
    ]
    return [
        compute_rates(sums.to_counts(), sagas=sums.sagas, in_flight=sums.in_flight, taken=sums.taken),
        list_errors(sums.to_counts()),
        find_hot_spots(sums.to_counts(), sums.busy),
        shared.stuck(now_ms),
        shared.stuck(now_ms + 200 * MINUTE),
        *traces,
    ]


def answers_of_one(monitor: Monitor) -> list[object]:
    """The same, of one monitor that reads everything."""
    views, now_ms = monitor.answers, BEGIN_MS + 90 * MINUTE
    traces = [views.saga(saga, now_ms) for saga in "abc"]
    return [
        views.rates(),
        views.errors(),
        views.hot(),
        views.stuck(now_ms),
        views.stuck(now_ms + 200 * MINUTE),
        *traces,
    ]


@settings(max_examples=30)
@given(histories(), st.data())
def test_parts_answer_together_as_one_monitor_also_out_of_their_tables(
    history: list[TransitionEvent], data: st.DataObject
) -> None:
    again = data.draw(st.lists(st.sampled_from(history), max_size=5)) if history else []
    again = [replace(each, handler_ms=None, queued_ms=None) for each in again]
    shuffled = data.draw(st.permutations([*history, *again]))
    one = answers_of_one(Monitor().take(*shuffled))
    shared = Shared().take(shuffled[::2]).take(shuffled[1::2], rates=data.draw(st.booleans()))
    assert answers(shared) == one
    assert answers(shared.restarted()) == one
    assert answers(shared.restarted().take(shuffled)) == one  # read again, since its position was not committed


@settings(max_examples=30)
@given(histories(), st.data())
def test_a_worker_that_dies_in_the_midst_of_writing_loses_nothing_and_counts_nothing_twice(
    history: list[TransitionEvent], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(history)))
    shared = Shared().take(history[:at])
    before = len(shared.kept)
    shared.take(history[at:], rates=False)
    written = data.draw(st.sets(st.integers(before, max(before, len(shared.kept) - 1))))
    kept = [change for place, change in enumerate(shared.kept) if place < before or place in written]
    assert answers(shared.restarted(kept).take(history[at:])) == answers_of_one(Monitor().take(*history))


@settings(max_examples=30)
@given(histories(), st.data())
def test_tables_are_read_in_any_order_with_entries_of_two_owners(
    history: list[TransitionEvent], data: st.DataObject
) -> None:
    one, other = Shared().take(history), Shared().take(data.draw(st.permutations(history)))
    entries = data.draw(st.permutations([*one.kept, *other.kept]))
    assert answers(one.restarted(entries)) == answers(one)


def test_a_transition_that_is_published_again_is_kept_again_only_if_it_has_more() -> None:
    part = PartitionModel(0)
    unseen = make_transition("order", 0, 0, "waiting", handler_ms=None, queued_ms=None, open_=True)
    assert len([*part.apply(record(unseen))]) == 1
    assert [*part.apply(record(unseen))] == []
    (seen,) = part.apply(record(replace(unseen, handler_ms=7, queued_ms=3)))
    (open_,) = part.apply(record(replace(unseen, due=unseen.time)))
    assert [*part.apply(record(unseen))] == []
    again = PartitionModel(0)
    for change in (seen, open_):
        again.restore(*change)
    assert again.read_model.sagas["order-1"].service_states == part.read_model.sagas["order-1"].service_states
    assert [*again.read_model.sagas["order-1"]] == [*part.read_model.sagas["order-1"]]


def test_the_rates_of_a_saga_that_was_forgotten_are_in_their_table() -> None:
    shared = Shared().take([make_transition("order", n, n * S, error="Late", saga="a") for n in range(3)])
    before = answers(shared)[:2]
    removed = shared.parts[ord("a") % PARTITIONS].forget_one()
    assert [change.value for change in removed] == [None, None, None]
    shared.kept = [each for each in shared.kept if each.key not in {change.key for change in removed}]
    assert shared.kept == []
    rates, errors = answers(shared.restarted())[:2]
    assert errors == before[1]
    assert isinstance(rates, HandlerRates)
    assert isinstance(before[0], HandlerRates)
    assert rates == replace(before[0], sagas=0, in_flight=0, taken=0, newest_ms=rates.newest_ms)


def test_entries_that_are_removed_take_their_saga_along() -> None:
    shared = Shared().take(
        [
            make_transition("order", 0, 0, saga="a"),
            make_transition("payment", 0, S, saga="a"),
            make_transition("order", 0, 2 * S, saga="c"),
        ]
    )
    removed = shared.parts[1].forget_one()
    again = shared.restarted(
        [*shared.kept, *removed, TableChange(encode_key(TransitionKey(1, "order", 0, "who")), None)]
    )
    assert [*again.parts[1].read_model.sagas] == [*shared.parts[1].read_model.sagas] == ["c"]


def test_of_a_saga_with_very_many_transitions_all_entries_are_removed() -> None:
    part = PartitionModel(0)
    kept = {change.key for n in range(700) for change in part.apply(record(make_transition("order", n, n * S)))}
    assert {change.key for change in part.forget_one()} == kept
    assert len(kept) == 700


def test_long_names_and_very_many_types_are_kept_as_they_are_shown() -> None:
    names = tuple(f"E{n}" for n in range(30))
    long = make_transition(
        "s" * 500, 0, 0, "waiting", saga="a", handler="h" * 500, emitted=names, awaits=(("w", names),), open_=True
    )
    shared = Shared().take([long])
    assert answers(shared.restarted()) == answers(shared) == answers_of_one(Monitor().take(long))
    shared.take([replace(long, due=long.time)])
    assert answers(shared.restarted()) == answers(shared)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\xff", b""),
        (b"[0,1,2,3]", None),
        (encode_key(TransitionKey(0, "order", 0, "a")), b""),
        (encode_key(TransitionKey(0, "order", 0, "a")), b"\x93\x01\x02\x03"),
    ],
)
def test_an_entry_that_is_none_is_passed_over_and_counted(key: bytes, value: bytes | None) -> None:
    part = PartitionModel(0)
    part.restore(key, value)
    assert (part.refused, part.read_model.sagas) == (1, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ('[0,"rate","order","reserve"]', b"\xc1"),
        ('[0,"failures","order","reserve","Late"]', b"\x01"),
        ('[0,"failures","order","reserve","Late"]', b"\x93\x01\x02\xa1\xff"),
        ('[0,"messages","orders",3]', b"\xa1a"),
        ('[0,"other"]', b"\x01"),
        ("{", b"\x01"),
    ],
)
def test_a_rate_that_is_none_is_passed_over_and_counted(name: str, value: bytes) -> None:
    part = PartitionModel(0)
    part.restore_rate(name, 1, value)
    assert part.refused == 1
    assert (part.counts.failures, part.counts.partitions) == ({}, {})


@pytest.mark.parametrize("name", ["", "[]", "7", "{", '["a"]', "null"])
def test_a_name_without_a_partition_is_none_of_ours(name: str) -> None:
    assert parse_partition(name) is None


def test_a_record_that_is_no_transition_is_passed_over_and_counted() -> None:
    part = PartitionModel(0)
    assert [*part.apply(Record(TRANSITIONS, 0, 0, b"1", b"{}", (), AFTER_MS))] == []
    assert part.refused == 1


def test_rates_are_written_for_the_minutes_in_which_something_was_counted_and_that_are_not_over() -> None:
    part = PartitionModel(0)
    list(part.apply(record(make_transition("order", 0, 0, error="Late"))))
    assert len(part.take_changed_rates()) == 3
    assert part.take_changed_rates() == []
    list(part.apply(record(make_transition("order", 1, S))))
    assert [parse_partition(rate.name) for rate in part.take_changed_rates()] == [0, 0]
    list(part.apply(record(make_transition("order", 2, 2 * S))))
    list(part.apply(record(make_transition("order", 3, 100 * MINUTE))))
    assert {rate.minute for rate in part.take_changed_rates()} == {(BEGIN_MS + 100 * MINUTE) // MINUTE}


def test_of_stuck_sagas_in_all_partitions_the_longest_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared().take([make_transition("order", 0, n * S, "dead", saga=f"s{n}", open_=True) for n in range(9)])
    everything = shared.stuck(AFTER_MS)
    assert [each.saga for each in everything.sagas] == [f"s{n}" for n in range(9)]
    assert not everything.more
    monkeypatch.setattr(sums_module, "PAGE_MAX", 4)
    some = shared.stuck(AFTER_MS)
    assert ([each.saga for each in some.sagas], some.more) == ([f"s{n}" for n in range(4)], True)


def test_a_history_that_was_rebuilt_is_the_new_one_after_a_restart_too() -> None:
    old = [make_transition("order", n, n * S, "dead" if n else "handled", saga="a", open_=True) for n in range(4)]
    new = [
        replace(make_transition("order", 0, 9 * S, saga="a"), rebuilt_at=old[3].time),
        make_transition("order", 1, 10 * S, saga="a"),
    ]
    shared, one = Shared().take(old).take(new), Monitor().take(*old, *new)
    assert answers(shared)[5] == answers(shared.restarted())[5] == answers_of_one(one)[5]
    assert shared.parts[1].read_model.sagas["a"].count == 2
