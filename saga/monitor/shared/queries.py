"""Sums of several parts: what they count, what is usual in all of them, and their answers made one. Pure.

Each saga is in one part, so what is asked of a saga one part answers; but what is stuck depends on what is usual
everywhere. So every part is asked for its sums first, and then again by what these make together.
"""

import asyncio
from collections.abc import Iterable, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Literal

import msgspec
from msgspec import Struct

from saga.messaging.names import TRANSITIONS
from saga.monitor.counters import FailureCounts, MinuteCounts, RecentCounts, TimeHistogram
from saga.monitor.queries import Queries, compute_rates, find_hot_spots, list_errors
from saga.monitor.read_model import ReadModel
from saga.monitor.shared.worker import MonitorWorker
from saga.monitor.views import PAGE_MAX, ErrorClass, HandlerRates, HotSpots, StuckSaga, StuckSagas, Timeline
from saga.support.clock import Clock
from saga.support.printable import counted, shortened


class UsualDurations(Struct, frozen=True):
    """Times that are usual."""

    waits: dict[tuple[str, str], TimeHistogram]
    lives: dict[str, TimeHistogram]


class PartitionSums(Struct, frozen=True, kw_only=True):
    """Counts of one part, or of several together."""

    newest_ms: int
    sagas: int
    in_flight: int
    taken: int
    handlers: dict[tuple[str, str], dict[int, MinuteCounts]]
    failures: dict[tuple[str, str, str], FailureCounts]
    partitions: dict[tuple[str, int], dict[int, int]]
    busy: dict[str, int]
    usual: UsualDurations

    def to_counts(self) -> RecentCounts:
        """Counts as folds have them."""
        counts = RecentCounts()
        counts.newest_ms = self.newest_ms
        counts.handlers, counts.failures, counts.partitions = self.handlers, self.failures, self.partitions
        return counts


class WorkerQuestion(Struct, frozen=True):
    """Question to a worker about what its parts hold."""

    what: Literal["sums", "stuck", "trace"]
    saga: str = ""
    now_ms: int = 0
    usual: UsualDurations | None = None


class WorkerReply(Struct, frozen=True):
    """Answer of a worker: for each part that it holds, by partition."""

    sums: dict[int, PartitionSums] = {}
    stuck: dict[int, StuckSagas] = {}
    trace: dict[int, Timeline | None] = {}


def answer_question(question: WorkerQuestion, parts: dict[int, ReadModel]) -> WorkerReply:
    """Answer to a question, from the parts that are here."""
    match question.what:
        case "sums":
            return WorkerReply(sums={partition: sum_model(folds) for partition, folds in parts.items()})
        case "stuck":
            asked = {number: Queries(folds, question.usual) for number, folds in parts.items()}
            return WorkerReply(stuck={number: answers.stuck(question.now_ms) for number, answers in asked.items()})
        case "trace":
            asked = {number: Queries(folds, question.usual) for number, folds in parts.items()}
            return WorkerReply(
                trace={number: answers.saga(question.saga, question.now_ms) for number, answers in asked.items()}
            )


def sum_model(folds: ReadModel) -> PartitionSums:
    """Sums of one part."""
    return PartitionSums(
        newest_ms=folds.counts.newest_ms,
        sagas=len(folds.sagas),
        in_flight=len(folds.without_outcome),
        taken=folds.taken,
        handlers=folds.counts.handlers,
        failures=folds.counts.failures,
        partitions=folds.counts.partitions,
        busy=folds.busy,
        usual=UsualDurations(folds.waits, folds.lives),
    )


def add_up(several: Iterable[PartitionSums]) -> PartitionSums:
    """Sums of all parts."""
    counts, busy, waits, lives = (
        RecentCounts(),
        dict[str, int](),
        dict[tuple[str, str], TimeHistogram](),
        dict[str, TimeHistogram](),
    )
    sagas = in_flight = taken = 0
    for each in several:
        counts.merge(each.to_counts())
        busy.update(each.busy)
        sagas, in_flight, taken = sagas + each.sagas, in_flight + each.in_flight, taken + each.taken
        for kind, histogram in each.usual.lives.items():
            lives.setdefault(kind, TimeHistogram()).merge(histogram)
        for handler, histogram in each.usual.waits.items():
            waits.setdefault(handler, TimeHistogram()).merge(histogram)
    return PartitionSums(
        newest_ms=counts.newest_ms,
        sagas=sagas,
        in_flight=in_flight,
        taken=taken,
        handlers=counts.handlers,
        failures=counts.failures,
        partitions=counts.partitions,
        busy=busy,
        usual=UsualDurations(waits, lives),
    )


def merge_stuck(several: Iterable[StuckSagas], unanswered: tuple[str, ...]) -> StuckSagas:
    """Sagas that are stuck in any part, longest first."""
    several = [*several]
    found = sorted((stuck for each in several for stuck in each.sagas), key=_sort_key)
    more = any(each.more for each in several) or len(found) > PAGE_MAX
    return StuckSagas(sagas=tuple(found[:PAGE_MAX]), more=more, unanswered=unanswered)


def _sort_key(stuck: StuckSaga) -> tuple[int, tuple[str, ...], str]:
    """Place among all that are stuck, as in one part."""
    waits = stuck.why == "waiting"
    reason = (stuck.why, stuck.awaited.service, stuck.awaited.handler) if waits else (stuck.why,)
    return stuck.since_ms - stuck.measure_ms, reason, stuck.saga


_questions, _replies = msgspec.msgpack.Decoder(WorkerQuestion), msgspec.msgpack.Decoder(WorkerReply)


def decode_question(content: bytes) -> WorkerQuestion:
    """Question out of bytes. Raises `msgspec.DecodeError`."""
    return _questions.decode(content)


def decode_reply(content: bytes) -> WorkerReply:
    """Answer out of bytes. Raises `msgspec.DecodeError`."""
    return _replies.decode(content)


# -------------------------------------------------------------------- answering


ASKS = "/api/part"
"""Path at which workers ask each other."""
TIMEOUT_S = 5.0
REPLY_BYTES_MAX = 256 << 20
SAID_MAX = 200
"""Most characters that are told of why a worker does not answer."""


class TotalSums(Struct, frozen=True):
    """Sums of all parts, and why some are missing."""

    sums: PartitionSums
    unanswered: tuple[str, ...]


class SharedQueries:
    """Any worker, answering for all of them."""

    def __init__(self, worker: MonitorWorker, clock: Clock) -> None:
        self._worker, self._clock = worker, clock

    def reply(self, question: WorkerQuestion) -> WorkerReply:
        """Answer another worker, with what is here."""
        return answer_question(question, self._worker.ready_models())

    async def sums(self) -> TotalSums:
        """Sums of all parts."""
        replies, unanswered = await self._ask(WorkerQuestion("sums"))
        parts = {number: sums for reply in replies for number, sums in reply.sums.items()}
        return TotalSums(add_up(parts.values()), (*unanswered, *self._list_missing(parts, unanswered)))

    async def rates(self) -> HandlerRates:
        """Rates and times of each handler."""
        whole = await self.sums()
        sums = whole.sums
        found = compute_rates(sums.to_counts(), sagas=sums.sagas, in_flight=sums.in_flight, taken=sums.taken)
        return msgspec.structs.replace(found, unanswered=whole.unanswered)

    async def errors(self) -> tuple[tuple[ErrorClass, ...], tuple[str, ...]]:
        """Failures by class, and why some are missing."""
        whole = await self.sums()
        return list_errors(whole.sums.to_counts()), whole.unanswered

    async def hot(self) -> HotSpots:
        """Hot keys and partitions."""
        whole = await self.sums()
        return msgspec.structs.replace(
            find_hot_spots(whole.sums.to_counts(), whole.sums.busy), unanswered=whole.unanswered
        )

    async def stuck(self) -> StuckSagas:
        """Sagas that are stuck now."""
        whole = await self.sums()
        asked = WorkerQuestion("stuck", now_ms=self._clock.now_ms(), usual=whole.sums.usual)
        replies, unanswered = await self._ask(asked)
        parts = {number: stuck for reply in replies for number, stuck in reply.stuck.items()}
        missing = (*unanswered, *self._list_missing(parts, unanswered))
        return merge_stuck(parts.values(), missing or whole.unanswered)

    async def saga(self, saga: str) -> tuple[Timeline | None, tuple[str, ...]]:
        """One saga across all services, and why it may be missing."""
        whole = await self.sums()
        asked = WorkerQuestion("trace", saga=saga, now_ms=self._clock.now_ms(), usual=whole.sums.usual)
        replies, unanswered = await self._ask(asked)
        parts = {number: found for reply in replies for number, found in reply.trace.items()}
        missing = (*unanswered, *self._list_missing(parts, unanswered)) or whole.unanswered
        found = next((each for each in parts.values() if each is not None), None)
        return None if found is None else msgspec.structs.replace(found, unanswered=missing), missing

    # ---------------------------------------------------------------- asking

    async def _ask(self, question: WorkerQuestion) -> tuple[list[WorkerReply], tuple[str, ...]]:
        """Ask each worker; those that do not answer are said, with what they have."""
        owners, content = self._worker.owners(), msgspec.msgpack.encode(question)
        others = sorted(url for url in owners if url != self._worker.url)
        asked = [asyncio.to_thread(_ask_worker, url, content) for url in others]
        found = await asyncio.gather(*asked, return_exceptions=True)
        replies, unanswered = [answer_question(question, self._worker.ready_models())], []
        for url, reply in zip(others, found, strict=True):
            if isinstance(reply, WorkerReply):
                replies.append(reply)
            elif isinstance(reply, (OSError, HTTPException, ValueError)):
                why = shortened(str(reply) or type(reply).__name__, SAID_MAX)
                unanswered.append(f"{_name_partitions(owners[url])} with {url}, which does not answer: {why}")
            else:
                raise reply
        return replies, tuple(unanswered)

    def _list_missing(self, parts: Mapping[int, object], unanswered: tuple[str, ...]) -> list[str]:
        """Partitions that nobody who answered has ready."""
        owned = self._worker.owners() if unanswered else {}
        silent = {
            number for url, numbers in owned.items() for number in numbers if any(url in each for each in unanswered)
        }
        left = set(range(self._worker.partitions)) - set(parts) - silent
        return [f"{_name_partitions(left)}: on the way from one worker to another, ask again"] if left else []


def _ask_worker(url: str, content: bytes) -> WorkerReply:
    """Answer of another worker. Raises `OSError`, `HTTPException`, `ValueError`."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
    try:
        connection.request("POST", ASKS, content, {"Origin": url, "Host": url.removeprefix("http://")})
        response = connection.getresponse()
        answer = response.read(REPLY_BYTES_MAX)
        if response.status != 200:
            raise ValueError(f"it answers {response.status}")
        return decode_reply(answer)
    finally:
        connection.close()


def _name_partitions(numbers: set[int]) -> str:
    which = ", ".join(map(str, sorted(numbers)))
    return f"{counted(len(numbers), 'partition')} of {TRANSITIONS} ({which})"
