"""Answers of a shared monitor: each asks all its workers, and says what of it is missing."""

import asyncio
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException

import msgspec
from msgspec import Struct

from saga.messaging.names import TRANSITIONS
from saga.monitor.answers import errors_of, hot_of, rates_of
from saga.monitor.shared.sums import Question, Reply, Sums, all_stuck, replied, reply_in, together
from saga.monitor.shared.worker import Worker
from saga.monitor.views import AllStuck, ErrorClass, Hot, Rates, Timeline
from saga.support.clock import Clock
from saga.support.printable import counted, shortened

ASKS = "/api/part"
"""Path at which workers ask each other."""
TIMEOUT_S = 5.0
REPLY_BYTES_MAX = 256 << 20
SAID_MAX = 200
"""Most characters that are told of why a worker does not answer."""


class Whole(Struct, frozen=True):
    """Sums of all parts, and why some are missing."""

    sums: Sums
    unanswered: tuple[str, ...]


class Answering:
    """Any worker, answering for all of them."""

    def __init__(self, worker: Worker, clock: Clock) -> None:
        self._worker, self._clock = worker, clock

    def reply(self, question: Question) -> Reply:
        """Answer another worker, with what is here."""
        return replied(question, self._worker.folds())

    async def sums(self) -> Whole:
        """Sums of all parts."""
        replies, unanswered = await self._ask(Question("sums"))
        parts = {number: sums for reply in replies for number, sums in reply.sums.items()}
        return Whole(together(parts.values()), (*unanswered, *self._left(parts, unanswered)))

    async def rates(self) -> Rates:
        """Rates and times of each handler."""
        whole = await self.sums()
        sums = whole.sums
        found = rates_of(sums.counts(), sagas=sums.sagas, in_flight=sums.in_flight, taken=sums.taken)
        return msgspec.structs.replace(found, unanswered=whole.unanswered)

    async def errors(self) -> tuple[tuple[ErrorClass, ...], tuple[str, ...]]:
        """Failures by class, and why some are missing."""
        whole = await self.sums()
        return errors_of(whole.sums.counts()), whole.unanswered

    async def hot(self) -> Hot:
        """Hot keys and partitions."""
        whole = await self.sums()
        return msgspec.structs.replace(hot_of(whole.sums.counts(), whole.sums.busy), unanswered=whole.unanswered)

    async def stuck(self) -> AllStuck:
        """Sagas that are stuck now."""
        whole = await self.sums()
        asked = Question("stuck", now_ms=self._clock.now_ms(), usual=whole.sums.usual)
        replies, unanswered = await self._ask(asked)
        parts = {number: stuck for reply in replies for number, stuck in reply.stuck.items()}
        missing = (*unanswered, *self._left(parts, unanswered))
        return all_stuck(parts.values(), missing or whole.unanswered)

    async def saga(self, saga: str) -> tuple[Timeline | None, tuple[str, ...]]:
        """One saga across all services, and why it may be missing."""
        whole = await self.sums()
        asked = Question("trace", saga=saga, now_ms=self._clock.now_ms(), usual=whole.sums.usual)
        replies, unanswered = await self._ask(asked)
        parts = {number: found for reply in replies for number, found in reply.trace.items()}
        missing = (*unanswered, *self._left(parts, unanswered)) or whole.unanswered
        found = next((each for each in parts.values() if each is not None), None)
        return None if found is None else msgspec.structs.replace(found, unanswered=missing), missing

    # ---------------------------------------------------------------- asking

    async def _ask(self, question: Question) -> tuple[list[Reply], tuple[str, ...]]:
        """Ask each worker; those that do not answer are said, with what they have."""
        owners, content = self._worker.owners(), msgspec.msgpack.encode(question)
        others = sorted(url for url in owners if url != self._worker.url)
        asked = [asyncio.to_thread(_asked, url, content) for url in others]
        found = await asyncio.gather(*asked, return_exceptions=True)
        replies, unanswered = [replied(question, self._worker.folds())], []
        for url, reply in zip(others, found, strict=True):
            if isinstance(reply, Reply):
                replies.append(reply)
            elif isinstance(reply, (OSError, HTTPException, ValueError)):
                why = shortened(str(reply) or type(reply).__name__, SAID_MAX)
                unanswered.append(f"{_partitions(owners[url])} with {url}, which does not answer: {why}")
            else:
                raise reply
        return replies, tuple(unanswered)

    def _left(self, parts: Mapping[int, object], unanswered: tuple[str, ...]) -> list[str]:
        """Partitions that nobody who answered has ready."""
        owned = self._worker.owners() if unanswered else {}
        silent = {
            number for url, numbers in owned.items() for number in numbers if any(url in each for each in unanswered)
        }
        left = set(range(self._worker.partitions)) - set(parts) - silent
        return [f"{_partitions(left)}: on the way from one worker to another, ask again"] if left else []


def _asked(url: str, content: bytes) -> Reply:
    """Answer of another worker. Raises `OSError`, `HTTPException`, `ValueError`."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("POST", ASKS, content, {"Origin": url, "Host": url.removeprefix("http://")})
        response = connection.getresponse()
        answer = response.read(REPLY_BYTES_MAX)
        if response.status != 200:
            raise ValueError(f"it answers {response.status}")
        return reply_in(answer)
    finally:
        connection.close()


def _partitions(numbers: set[int]) -> str:
    which = ", ".join(map(str, sorted(numbers)))
    return f"{counted(len(numbers), 'partition')} of {TRANSITIONS} ({which})"
