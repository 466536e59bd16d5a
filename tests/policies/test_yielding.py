"""Saturation of a worker, and how many messages yield then."""

from saga.policies.concurrency import HELD_PART, is_saturated, postponed_max


def test_a_worker_is_saturated_from_half_of_either_bound_on() -> None:
    assert not is_saturated(busy=31, limit=64, inflight=499, most=1000, is_behind=False)
    assert is_saturated(busy=32, limit=64, inflight=32, most=1000, is_behind=False)
    assert is_saturated(busy=0, limit=64, inflight=500, most=1000, is_behind=False)
    assert is_saturated(busy=0, limit=64, inflight=0, most=1000, is_behind=True)
    assert [postponed_max(most) for most in (1, 9, 10, 1000)] == [1, 1, 1, 1000 // HELD_PART]
