"""Timers as records: the topic of each, and which records are no timers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga.errors import BadInput
from saga.messages import Headers, Record, texts_of
from saga.messaging.names import is_without_events
from saga.messaging.timers import LAST_S, TIERS, TYPE, SagaTimer, choose_tier, parse_timer, tiers_of, timer_to_record
from saga.support.clock import LATEST_MS, iso

NOW_MS = 1_795_270_000_000


def appended(**changes: Any) -> Record:
    """A wake due in five minutes, as it lies in the log."""
    out = timer_to_record("payment", "order-1", "wake-7", NOW_MS + 300_000, NOW_MS)
    return Record(out.topic, 3, 17, out.key, out.value, out.headers, NOW_MS)._replace(**changes)


def with_header(name: str, value: bytes | None) -> Headers:
    others = tuple((known, given) for known, given in appended().headers if known != name)
    return others if value is None else (*others, (name, value))


def test_a_timer_is_decoded_as_it_was_encoded() -> None:
    assert parse_timer(appended()) == SagaTimer(
        id="wake-7",
        type=TYPE,
        schema="",
        saga="order-1",
        source="payment",
        time=iso(NOW_MS),
        value=b"",
        due_ms=NOW_MS + 300_000,
    )


@pytest.mark.parametrize("time_ms", [-1, 0, NOW_MS * 1000, (1 << 63) - 1, -(1 << 63)])
def test_a_timer_keeps_its_own_time_if_the_log_has_none_that_is_valid(time_ms: int) -> None:
    assert parse_timer(appended(time_ms=time_ms)) == parse_timer(appended())


def test_a_timer_beyond_the_latest_time_is_set_to_the_latest_time() -> None:
    """Check that a worker can read it: else it would be a dead letter, and its saga would have no timer."""
    out = timer_to_record("payment", "order-1", "wake-7", LATEST_MS + 1, NOW_MS)
    assert parse_timer(Record(out.topic, 0, 0, out.key, out.value, out.headers, NOW_MS)).due_ms == LATEST_MS


def test_the_record_of_a_timer_has_the_key_of_its_saga_and_a_readable_value() -> None:
    record = appended()
    assert (record.topic, record.key) == ("payment.wake.4m", b"order-1")
    assert record.value == b'{"due_ms":1795270300000}'
    assert texts_of(record.headers) == {
        "ce_type": "saga.wake",
        "ce_id": "wake-7",
        "ce_source": "payment",
        "ce_time": iso(NOW_MS),
        "ce_subject": "order-1",
        "ce_specversion": "1.0",
        "content-type": "application/json",
    }


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"value": None}, "it has no value"),
        ({"value": b""}, "it has no value"),
        ({"value": b"{"}, "not JSON with a time `due_ms`"),
        ({"value": b"\xff"}, "not JSON with a time `due_ms`"),
        ({"value": b"{}"}, "not JSON with a time `due_ms`"),
        ({"value": b'{"due_ms":"soon"}'}, "not JSON with a time `due_ms`"),
        ({"value": b'{"due_ms":1.5}'}, "not JSON with a time `due_ms`"),
        ({"value": b'{"due_ms":' + b"9" * 400 + b"}"}, "not JSON with a time `due_ms`"),
        ({"value": b'{"due_ms":-1}'}, "not JSON with a time `due_ms`"),
        ({"value": b'{"due_ms":253402300800000}'}, "not JSON with a time `due_ms`"),
        ({"value": b'{"due_ms":null}'}, "not JSON with a time `due_ms`"),
        ({"value": b"[" * 100_000}, "not JSON with a time `due_ms`"),
        ({"key": None}, "the message has no key"),
        ({"key": b"order-2"}, "is not its subject"),
        ({"headers": with_header("ce_type", b"OrderPlaced")}, "its ce_type is not saga.wake"),
        ({"headers": with_header("ce_type", None)}, "its ce_type is not saga.wake"),
        ({"headers": with_header("ce_time", b"yesterday")}, "ce_time"),
        ({"headers": with_header("ce_id", b"\xff")}, "ce_id"),
        ({"headers": ()}, "its ce_type is not saga.wake"),
    ],
)
def test_an_invalid_timer_record_is_refused_with_the_reason(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_timer(appended(**changes))


@given(st.binary(max_size=40) | st.none(), st.binary(max_size=40) | st.none())
def test_every_record_in_a_timer_topic_is_a_timer_or_bad_input(value: bytes | None, id_: bytes | None) -> None:
    try:
        wake = parse_timer(appended(value=value, headers=with_header("ce_id", id_)))
    except BadInput:
        return
    assert isinstance(wake.due_ms, int)


# ---------------------------------------------------------------- tiers


@given(st.integers(-(10**9), 10**12))
def test_a_timer_is_in_the_longest_tier_that_does_not_delay_it(left_ms: int) -> None:
    tier = choose_tier(left_ms)
    assert tier.seconds * 1000 <= max(left_ms, 0)
    assert not [longer for longer in TIERS if tier.seconds < longer.seconds <= left_ms / 1000]


@given(st.integers(0, 30 * 86_400_000))
def test_a_timer_passes_few_tiers_until_a_worker_buffers_it(left_ms: int) -> None:
    hops, days = 0, left_ms // 86_400_000
    while left_ms >= LAST_S * 1000:
        left_ms -= choose_tier(left_ms).seconds * 1000
        hops += 1
    assert hops <= days + 3 + 5 + 3 + 3 + 3, "a day at a time, and less than the next longer of each that is shorter"


def test_the_first_tier_has_no_delay_and_the_second_has_the_last_minute() -> None:
    assert [tier.name for tier in TIERS] == ["now", "1m", "4m", "16m", "1h", "6h", "1d"]
    assert (TIERS[0].seconds, TIERS[1].seconds) == (0, LAST_S)
    assert [choose_tier(ms).name for ms in (LAST_S * 1000 - 1, LAST_S * 1000)] == ["now", "1m"]


def test_each_tier_is_a_topic_of_the_service_without_events() -> None:
    topics = tiers_of("payment")
    assert list(topics) == [f"payment.wake.{tier.name}" for tier in TIERS]
    assert all(map(is_without_events, topics))
    assert topics["payment.wake.1h"].seconds == 3600
