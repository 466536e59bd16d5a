"""Guard against poison messages, which crash the process: count in the store how often each message was being handled
at a crash.

Only the first messages of a partition whose previous owner crashed are counted, before they are handled. So the guard
costs nothing unless a process died. Messages that turn out to be handled already do not use up this number: if an
unfinished message kept their offsets from being committed, thousands of them may be delivered again before the one that
crashes the process. They get a count in the store like the others, because reading a progress may crash the process.

If a message has a count already, it was being handled at a crash, perhaps alongside the message that caused the crash.
Such a message is handled alone: if the process crashes again, this message is certainly the cause. It is alone for at
most `ALONE_S_MAX`, because a slow handler must not block the others.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec
from msgspec import Struct

from saga.engine.consumer.keyed_executor import WorkItem
from saga.engine.errors import Draining
from saga.engine.execution import value_codec
from saga.engine.persistence import dead_letters, outbox
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, Conflict, Exists, StoreError
from saga.messaging.names import ARCHIVES
from saga.telemetry.events import DeadLettered

EXPIRY_S = 7 * 86_400
"""Expiry of a count in the store. A crashing message is delivered again much sooner."""
LOOK_S = 0.02
"""Polling interval, in seconds, of messages that wait to be alone, or wait for one that is alone."""
ALONE_S_MAX = 10.0
"""Maximum seconds for which a message is alone, and for which it waits until the others have ended."""
MORE = 2
"""Number of crashes beyond `deaths_max` after which not even the progress is read, because reading it may cause the
crash."""
Deliver = Callable[[WorkItem], Awaitable[bool]]
"""Callback that processes one message."""


class DeathCount(Struct, frozen=True, gc=False):
    """Stored document: how often the handling of a message has begun and not ended."""

    deaths: int


@dataclass(slots=True)
class PoisonGuard:
    """Counts and isolates messages that may crash the process."""

    service: ServiceRuntime
    deaths_max: int
    """Number of crashes while a message was handled, after which the message becomes a dead letter."""
    deliver: Deliver
    _beside: int = 0
    """Number of messages without an earlier count that are being handled and may still crash the process."""
    _alone: WorkItem | None = None
    """Message that is handled alone, or waits until the others have ended."""
    _alone_until_s: float = 0.0

    async def deliver_guarded(self, item: WorkItem) -> bool:
        """Process a message that may crash the process, and count it. Returns what `deliver` returns."""
        item.tracker.guarded -= 1
        try:
            async with self._run_beside_others(item):
                cas = await self._count_first_delivery(item)
                if cas is not None:
                    return await self._deliver_counted(item, 0, cas)
            async with self._run_alone(item):
                deaths, cas = await self._count_delivery(item)
                if deaths >= self.deaths_max + MORE:
                    await self._give_up(item, deaths)
                    return True
                return await self._deliver_counted(item, deaths if deaths >= self.deaths_max else 0, cas)
        except Draining:
            return False

    async def _deliver_counted(self, item: WorkItem, deaths: int, cas: int) -> bool:
        """Process the message, then delete its count, because it did not crash the process."""
        item.deaths = deaths
        finished = await self.deliver(item)
        tracker = item.tracker
        if item.is_repeat and tracker.repeats_max:
            tracker.guarded += 1
            tracker.repeats_max -= 1
        if cas:
            with suppress(StoreError):
                await self.service.ports.store.remove(ARCHIVES, self._key(item), cas=cas)
        return finished

    # ---------------------------------------------------------------- counts

    def _key(self, item: WorkItem) -> str:
        position = item.position
        return f"guard::{self.service.name}::{position.place}{f'@{position.log_id}' if position.log_id else ''}"

    async def _count_first_delivery(self, item: WorkItem) -> int | None:
        """Insert the count of a message. Returns the count's version, 0 if the version is not known, or `None` if the
        message has a count already."""
        insert, key = self.service.ports.store.insert, self._key(item)
        content = msgspec.json.encode(DeathCount(1))
        try:
            return await outbox.retry_while_unavailable(
                self.service, item.position, "guard", insert, ARCHIVES, key, content, expiry_s=EXPIRY_S
            )
        except Exists:
            return None
        except Ambiguous:
            return 0

    async def _count_delivery(self, item: WorkItem) -> tuple[int, int]:
        """Increment the count. Returns the number of crashes so far and the version of the count."""
        store, key = self.service.ports.store, self._key(item)
        there = await outbox.retry_while_unavailable(self.service, item.position, "get", store.get, ARCHIVES, key)
        if there is None:
            return 0, 0
        deaths = _decode_deaths(there.content)
        content = msgspec.json.encode(DeathCount(deaths + 1))
        try:
            cas = await outbox.retry_while_unavailable(
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
        except (Conflict, Ambiguous):  # a zombie counted it, too, or the answer is lost: it is counted
            cas = 0
        return deaths, cas

    async def _give_up(self, item: WorkItem, deaths: int) -> None:
        """Publish the dead letter, and do not touch the progress."""
        service, message = self.service, item.message
        contract = service.contracts.get(message.type)
        encrypted = await value_codec.encrypt_message(service, message, item.position)
        letter = dead_letters.from_poisonous(service.name, encrypted, item.position, deaths, contract)
        await outbox.send_dead_letter(service, item.position, letter)
        service.ports.outage_watch.report(
            DeadLettered(
                service=service.name,
                saga=message.saga,
                message=message.id,
                type=message.type,
                reason=dead_letters.describe_deaths(deaths),
                remedy=dead_letters.DEADLY,
                blame="code",
            )
        )

    # ---------------------------------------------------------------- isolation

    @asynccontextmanager
    async def _run_beside_others(self, item: WorkItem) -> AsyncIterator[None]:
        while self._is_one_alone():
            await self.service.ports.assignment.pause(LOOK_S, item.position)
        self._beside += 1

        def survived() -> None:
            if item.on_survived is not None:
                item.on_survived = None
                self._beside -= 1

        item.on_survived = survived
        try:
            yield
        finally:
            survived()

    @asynccontextmanager
    async def _run_alone(self, item: WorkItem) -> AsyncIterator[None]:
        ports = self.service.ports
        while self._is_one_alone():
            await ports.assignment.pause(LOOK_S, item.position)
        self._start_alone(item)

        def survived() -> None:
            item.on_survived = None
            if self._alone is item:
                self._alone = None

        item.on_survived = survived
        try:
            while self._beside and self._alone is item and self._is_one_alone():
                await ports.assignment.pause(LOOK_S, item.position)
            if self._alone is item:
                self._start_alone(item)  # its time alone starts now
            yield
        finally:
            survived()

    def _start_alone(self, item: WorkItem) -> None:
        self._alone, self._alone_until_s = item, self.service.ports.clock.monotonic_s() + ALONE_S_MAX

    def _is_one_alone(self) -> bool:
        return self._alone is not None and self.service.ports.clock.monotonic_s() < self._alone_until_s


def _decode_deaths(content: bytes) -> int:
    try:
        return msgspec.json.decode(content, type=DeathCount).deaths
    except msgspec.MsgspecError:  # not written by this guard
        return 0
