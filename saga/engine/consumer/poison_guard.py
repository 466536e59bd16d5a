"""Guard against messages that end the process: how often each was in hand when it died is counted in the store.

Counted is only what is taken first from a partition that was not left in good order, before it is in hand: so it costs
nothing where nobody died. A message that is counted already was in hand at a death, perhaps beside the culprit: it goes
alone, so that the next death is its own. But not for longer than it may take to die of it: one whose lane cannot
decide, or whose handler takes its time, keeps the others waiting no longer.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from saga.engine.consumer.keyed_executor import Item
from saga.engine.errors import Draining
from saga.engine.execution import value_codec
from saga.engine.persistence import dead_letters, progress_repository
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, Conflict, Exists, StoreError
from saga.messaging.names import ARCHIVES
from saga.telemetry.events import DeadLettered

EXPIRY_S = 7 * 86_400
"""Seconds for which a count is kept: whoever dies of a message comes back to it sooner."""
LOOK_S = 0.02
"""Pause before a message that has to go alone, or that waits for one, looks again."""
ALONE_S_MAX = 10.0
"""Time for which a message goes alone, at most, and for which it waits for those that are in hand before."""
MORE = 2
"""Deaths more than the bound after which the progress is not even looked at: to read it may be what kills."""
Deliver = Callable[[Item], Awaitable[bool]]
"""Way of a message to its end."""


class Count(Struct, frozen=True, gc=False):
    """Document that counts how often a message was taken in hand and not brought to its end."""

    deaths: int


@dataclass(slots=True)
class Guard:
    """Messages in hand that are counted."""

    service: ServiceRuntime
    deaths_max: int
    """Deaths with a message in hand after which it is a dead letter."""
    deliver: Deliver
    _beside: int = 0
    """Counted messages in hand that may be beside each other, and of which somebody may die yet."""
    _alone: Item | None = None
    """Message that goes alone, or waits for the others to end."""
    _alone_until_s: float = 0.0

    async def delivered(self, item: Item) -> bool:
        """Return whether the message is finished, as `Delivery.deliver` does."""
        item.prefix.guarded -= 1
        try:
            async with self._with_others(item):
                cas = await self._first(item)
                if cas is not None:
                    return await self._handed(item, 0, cas)
            async with self._by_itself(item):
                deaths, cas = await self._again(item)
                if deaths >= self.deaths_max + MORE:
                    await self._give_up(item, deaths)
                    return True
                return await self._handed(item, deaths if deaths >= self.deaths_max else 0, cas)
        except Draining:
            return False

    async def _handed(self, item: Item, deaths: int, cas: int) -> bool:
        """Bring it to its end: whatever it comes to, nobody died of it."""
        item.deaths = deaths
        finished = await self.deliver(item)
        if cas:
            with suppress(StoreError):
                await self.service.ports.store.remove(ARCHIVES, self._key(item), cas=cas)
        return finished

    # ---------------------------------------------------------------- counts

    def _key(self, item: Item) -> str:
        position = item.position
        return f"guard::{self.service.name}::{position.place}{f'@{position.log_id}' if position.log_id else ''}"

    async def _first(self, item: Item) -> int | None:
        """Count a message that is in hand for the first time; the version of its count, 0 if nobody knows it. `None` if
        it is counted already."""
        insert, key = self.service.ports.store.insert, self._key(item)
        content = msgspec.json.encode(Count(1))
        try:
            return await progress_repository.retry_while_unavailable(
                self.service, item.position, "guard", insert, ARCHIVES, key, content, expiry_s=EXPIRY_S
            )
        except Exists:
            return None
        except Ambiguous:
            return 0

    async def _again(self, item: Item) -> tuple[int, int]:
        """Count it once more: the number of deaths up to now, and the version of the count."""
        store, key = self.service.ports.store, self._key(item)
        there = await progress_repository.retry_while_unavailable(
            self.service, item.position, "get", store.get, ARCHIVES, key
        )
        if there is None:
            return 0, 0
        deaths = _deaths_in(there.content)
        content = msgspec.json.encode(Count(deaths + 1))
        try:
            cas = await progress_repository.retry_while_unavailable(
                self.service,
                item.position,
                "guard",
                store.replace,
                ARCHIVES,
                key,
                content,
                cas=there.cas,
                expiry_s=EXPIRY_S,
            )
        except (Conflict, Ambiguous):  # a zombie has it in hand, too, or the answer is lost: it is counted
            cas = 0
        return deaths, cas

    async def _give_up(self, item: Item, deaths: int) -> None:
        """Say it on `<service>.dead` alone: the progress is not touched any more."""
        service, message = self.service, item.message
        contract = service.contracts.get(message.type)
        kept = await value_codec.encrypt_message(service, message, item.position)
        letter = dead_letters.deadly(service.name, kept, item.position, deaths, contract)
        await progress_repository.send_dead_letter(service, item.position, letter)
        service.ports.outage_watch.report(
            DeadLettered(
                service=service.name,
                saga=message.saga,
                message=message.id,
                type=message.type,
                reason=dead_letters.of_deaths(deaths),
                remedy=dead_letters.DEADLY,
                blame="code",
            )
        )

    # ---------------------------------------------------------------- who goes beside whom

    @asynccontextmanager
    async def _with_others(self, item: Item) -> AsyncIterator[None]:
        while self._is_one_alone():
            await self.service.ports.assignment.pause(LOOK_S, item.position)
        self._beside += 1

        def survived() -> None:
            if item.survived is not None:
                item.survived = None
                self._beside -= 1

        item.survived = survived
        try:
            yield
        finally:
            survived()

    @asynccontextmanager
    async def _by_itself(self, item: Item) -> AsyncIterator[None]:
        ports = self.service.ports
        while self._is_one_alone():
            await ports.assignment.pause(LOOK_S, item.position)
        self._goes_alone(item)

        def survived() -> None:
            item.survived = None
            if self._alone is item:
                self._alone = None

        item.survived = survived
        try:
            while self._beside and self._alone is item and self._is_one_alone():
                await ports.assignment.pause(LOOK_S, item.position)
            if self._alone is item:
                self._goes_alone(item)  # its time begins
            yield
        finally:
            survived()

    def _goes_alone(self, item: Item) -> None:
        self._alone, self._alone_until_s = item, self.service.ports.clock.monotonic_s() + ALONE_S_MAX

    def _is_one_alone(self) -> bool:
        return self._alone is not None and self.service.ports.clock.monotonic_s() < self._alone_until_s


def _deaths_in(content: bytes) -> int:
    try:
        return msgspec.json.decode(content, type=Count).deaths
    except msgspec.MsgspecError:  # somebody else's
        return 0
