"""Batches: one lane does for several what they want done to one thing, while the others wait."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")
T = TypeVar("T")

BATCH_MAX = 100
"""Items that are acted on together, at most."""


@dataclass(slots=True)
class Batches:
    """Lanes that wait, for each thing that is acted on. Nothing is kept of a thing at rest."""

    _waiting: dict[str, list[tuple[Any, asyncio.Future[Any]]]] = field(default_factory=dict)
    """Lanes behind the one that acts, for each thing that is acted on now."""

    async def together(self, what: str, item: Item, act: Callable[[Sequence[Item]], Awaitable[Sequence[T]]]) -> T:
        """Return what `act` gives for `item`; with it go the items that came up while the batch before was under way.

        Raises what `act` raises to the one who called it; the others of its batch then act by themselves.
        """
        if what in self._waiting:
            answer: asyncio.Future[list[T] | None] = asyncio.get_running_loop().create_future()
            self._waiting[what].append((item, answer))
            try:
                found = await answer
            except asyncio.CancelledError:
                if answer.done() and not answer.cancelled() and answer.result() is None:
                    self._hand_over(what)  # it was this one's turn
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
        """Have the next one act; without one the thing is at rest."""
        waiting = self._waiting[what]
        while waiting:
            _, answer = waiting.pop(0)
            if not answer.done():
                answer.set_result(None)
                return
        del self._waiting[what]
