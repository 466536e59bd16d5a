"""Ids come from causes: what is on record at the outside must be made again by every later version."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from saga.progress import ids

NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
TEXTS = st.text(alphabet="ab|+:0123456789", max_size=6)


def test_generated_ids_have_not_changed() -> None:
    """A change here makes every rerun of what is open at the time ask the outside under another key."""
    cause = "OrderPlaced-1"
    assert ids.event_id("PaymentReserved", "payment", "order-1", "reserve", cause, 0) == (
        "PaymentReserved-51d68aea3eccd7aeeea3e21b7af88813"
    )
    assert (
        ids.idempotency_key("charge", "payment", "order-1", "reserve", cause)
        == "charge-5c56006277138a66bebac78185d6c508"
    )
    assert (
        ids.update_id("inventory", "order-1", "set_aside", cause, "set_aside", 1) == "d39b269454046d9a9f77bbc2f72aa408"
    )
    assert ids.dead_letter_id("payment", "order-1", "reserve", cause, 0) == "dead-aa1f479126dc76c5e48777589664499a"
    assert ids.inbox_entry(cause, "reserve") == "93fc3f5ba3f2a21a8a0646f3"
    assert ids.content_digest(b"abc") == "d8bb14d833d59559"


@given(st.lists(st.tuples(NAMES, TEXTS, NAMES, TEXTS, st.integers(0, 20)), min_size=2, max_size=2, unique=True))
def test_no_two_events_have_one_id(causes: list[tuple[str, str, str, str, int]]) -> None:
    one, other = (ids.event_id("A", service, saga, handler, cause, n) for service, saga, handler, cause, n in causes)
    assert one != other


@given(st.lists(st.tuples(TEXTS, NAMES, TEXTS, NAMES, TEXTS), min_size=2, max_size=2, unique=True))
def test_no_two_keys_are_one(causes: list[tuple[str, str, str, str, str]]) -> None:
    one, other = (ids.idempotency_key(*cause) for cause in causes)
    assert one != other


@given(st.lists(st.tuples(NAMES, TEXTS, NAMES, TEXTS, NAMES, st.integers(0, 20)), min_size=2, max_size=2, unique=True))
def test_no_two_updates_have_one_marker(causes: list[tuple[str, str, str, str, str, int]]) -> None:
    one, other = (ids.update_id(*cause) for cause in causes)
    assert one != other


@given(st.lists(st.tuples(TEXTS, NAMES), min_size=2, max_size=2, unique=True))
def test_no_two_inbox_entries_are_one(pairs: list[tuple[str, str]]) -> None:
    one, other = (ids.inbox_entry(message, handler) for message, handler in pairs)
    assert one != other


@given(st.text(max_size=200))
@example("x" * 200)
def test_an_idempotency_key_is_accepted_by_any_external_system(name: str) -> None:
    key = ids.idempotency_key(name, "payment", "order-1", "reserve", "m")
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,80}", key)


def test_a_dead_letter_that_fails_again_after_a_replay_has_another_id() -> None:
    assert ids.dead_letter_id("payment", "s", "reserve", "m", 0) != ids.dead_letter_id(
        "payment", "s", "reserve", "m", 1
    )
