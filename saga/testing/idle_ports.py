"""Ports of a turn at which nothing happens by itself: for whatever drives single turns, and says only what differs."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from saga.broker.port import RECORD_BYTES_MAX
from saga.errors import SagaError
from saga.messages import Position
from saga.progress.document import Call
from saga.runtime.pages import KnownPages

T = TypeVar("T")
Item = TypeVar("Item")


class IdlePorts:
    """See `saga.runtime.participant.Ports` for the promises. No worker stops, no partition goes, nothing is committed
    or away, items go one by one, and a call to the outside is made. Store, clock and broker are the subclass's own."""

    outages: int = 0
    pages: KnownPages = KnownPages(bytes_max=0)
    """None is remembered: each read is a choice of whoever drives."""
    record_bytes_max: int = RECORD_BYTES_MAX

    def outside(
        self,
        saga: str,
        handler: str,
        asked: Call,
        call: Callable[..., Awaitable[Any]],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Awaitable[Any]:
        return call(*args, **kwargs)

    def is_committed(self, position: Position) -> bool:
        return False

    async def pause(self, seconds: float, position: Position) -> None:
        return None

    def check_running(self, position: Position) -> None:
        return None

    def unavailable(self, operation: str, why: SagaError) -> None:
        return None

    def recovered(self, why: SagaError) -> None:
        return None

    def took(self, seconds: float, now_s: float) -> None:
        return None

    def answer_lost(self) -> None:
        return None

    def is_news(self, id_: str) -> bool:
        return True

    async def together(self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]) -> T:
        (made,) = await act([item])
        return made
