"""A clock that a test sets, and places for stores."""

from pathlib import Path

import pytest

from saga.clock import SystemClock


class SettableClock(SystemClock):
    """The real one, ahead by as much as the test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.ahead_s * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stores" / "payment.db"
