"""Parts of ports for single turns: a clock that stands still, an assignment that nobody takes away, a log to read."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from saga.broker.port import RECORD_BYTES_MAX
from saga.messages import Outgoing, Position

T = TypeVar("T")


@dataclass(slots=True)
class SetClock:
    """Clock on which no time passes, but where `now` is set: what is recorded does not depend on when it runs."""

    now: int = 0

    def now_ms(self) -> int:
        return self.now

    def monotonic_s(self) -> float:
        return 0.0

    def chance(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        return None

    async def within(self, seconds: float, what: Awaitable[T]) -> T:
        return await what


async def at_once(seconds: float, position: Position) -> None:
    """A pause that takes no time."""


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """See `saga.runtime.ports.Assignment` for the promises. No worker stops, and no partition goes."""

    pause: Callable[[float, Position], Awaitable[None]] = at_once
    is_committed: Callable[[Position], bool] = lambda position: False
    is_of_current_log: Callable[[Position], bool] = lambda position: True

    handled: Callable[[int], int] = lambda due_ms: due_ms
    """Time up to which the log has been handled, given the due time of a deadline."""

    def check_running(self, position: Position) -> None:
        return None

    async def handled_ms(self, saga: str, due_ms: int) -> int:
        return self.handled(due_ms)

    def is_at_home(self, saga: str, position: Position) -> bool:
        return True


@dataclass
class Published:
    """See `saga.runtime.ports.Log` for the promises. It keeps what is published, in order."""

    messages: list[Outgoing] = field(default_factory=list)
    record_bytes_max: int = RECORD_BYTES_MAX

    async def publish(self, messages: Sequence[Outgoing]) -> None:
        self.messages.extend(messages)
