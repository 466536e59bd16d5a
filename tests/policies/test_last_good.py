"""Cache of last good results: which settings are refused."""

import math
from typing import Any

import pytest

from saga.errors import DeclarationError
from saga.policies.breaker import LastGood, LastGoodCache


@pytest.mark.parametrize(
    "wrong",
    [
        {"for_s": 0},
        {"for_s": math.inf},
        {"for_s": True},
        {"for_s": 1, "results_max": 0},
        {"for_s": 1, "results_max": 1.5},
    ],
)
def test_rules_that_are_none_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(DeclarationError, match=r"LastGood\((for_s|results_max)="):
        LastGood(**wrong)


def test_the_least_recently_used_result_is_evicted_first() -> None:
    memory = LastGoodCache[int](LastGood(for_s=9, results_max=2))
    memory.learn("a", 1, 0)
    memory.learn("b", 2, 0)
    assert memory.recall("a", 1) == 1
    memory.learn("c", 3, 1)
    assert [memory.recall(key, 2) for key in "abc"] == [1, None, 3]
