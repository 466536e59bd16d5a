"""A clock that a test sets, places for stores, and their lock in other hands."""

import fcntl
import os
from pathlib import Path

import pytest

from saga.support.clock import SystemClock


class SettableClock(SystemClock):
    """The real one, ahead by as much as the test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def now_ms(self) -> int:
        return super().now_ms() + round(self.ahead_s * 1000)

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


class Held:
    """The lock of a store, taken by another process, as by one that was frozen inside a transaction."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(f"{path}.lock", os.O_RDWR)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        os.close(self.descriptor)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stores" / "payment.db"
