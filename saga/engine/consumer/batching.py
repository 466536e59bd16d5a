"""Batching: one task acts for all that want the same thing done to one document, while the others wait."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")
T = TypeVar("T")

BATCH_MAX = 100
"""Maximum number of items in one batch."""


@dataclass(slots=True)
class Batcher:
    """Collects the items that arrive while a batch for the same target is under way."""

    _waiting: dict[str, list[tuple[Any, asyncio.Future[Any]]]] = field(default_factory=dict)
    """Waiting items by target. A target without a batch under way has no entry."""

    async def submit(self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]) -> T:
        """Return the result of `act` for `item`, batched with the items that arrived during the previous batch.

        If `act` raises, its caller gets the exception, and the other items of the batch are tried again without it.
        """
        if what in self._waiting:
            answer: asyncio.Future[list[T] | None] = asyncio.get_running_loop().create_future()
            self._waiting[what].append((item, answer))
            try:
                found = await answer
            except asyncio.CancelledError:
                if answer.done() and not answer.cancelled() and answer.result() is None:
                    self._hand_over(what)  # it was chosen to run the next batch
                raise
            if found is not None:
                return found[0]
        else:
            self._waiting[what] = []
        batch, self._waiting[what] = self._waiting[what][: BATCH_MAX - 1], self._waiting[what][BATCH_MAX - 1 :]
        try:
            mine, *others = await act([item, *(i for i, _ in batch)])
            for (_, answer), made in zip(batch, others, strict=True):
                if not answer.done():
                    answer.set_result([made])
            batch = []
            return mine
        finally:
            self._waiting[what] = [*batch, *self._waiting[what]]
            self._hand_over(what)

    def _hand_over(self, what: str) -> None:
        """Let the next waiting task run a batch, or forget the target if there is none."""
        waiting = self._waiting[what]
        while waiting:
            _, answer = waiting.pop(0)
            if not answer.done():
                answer.set_result(None)
                return
        del self._waiting[what]
