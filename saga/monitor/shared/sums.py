"""Sums of several parts: what they count, what is usual in all of them, and their answers made one. Pure.

Each saga is in one part, so what is asked of a saga one part answers; but what is stuck depends on what is usual
everywhere. So every part is asked for its sums first, and then again by what these make together.
"""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from saga.monitor.answers import Answers
from saga.monitor.counting import Counts, Failures, Histogram, Minute
from saga.monitor.folds import Folds
from saga.monitor.views import PAGE_MAX, AllStuck, Stuck, Timeline


class Usual(Struct, frozen=True):
    """Times that are usual."""

    waits: dict[tuple[str, str], Histogram]
    lives: dict[str, Histogram]


class Sums(Struct, frozen=True, kw_only=True):
    """Counts of one part, or of several together."""

    newest_ms: int
    sagas: int
    in_flight: int
    taken: int
    handlers: dict[tuple[str, str], dict[int, Minute]]
    failures: dict[tuple[str, str, str], Failures]
    partitions: dict[tuple[str, int], dict[int, int]]
    busy: dict[str, int]
    usual: Usual

    def counts(self) -> Counts:
        """Counts as folds have them."""
        counts = Counts()
        counts.newest_ms = self.newest_ms
        counts.handlers, counts.failures, counts.partitions = self.handlers, self.failures, self.partitions
        return counts


class Question(Struct, frozen=True):
    """Question to a worker about what its parts hold."""

    what: Literal["sums", "stuck", "trace"]
    saga: str = ""
    now_ms: int = 0
    usual: Usual | None = None


class Reply(Struct, frozen=True):
    """Answer of a worker: for each part that it holds, by partition."""

    sums: dict[int, Sums] = {}
    stuck: dict[int, AllStuck] = {}
    trace: dict[int, Timeline | None] = {}


def replied(question: Question, parts: dict[int, Folds]) -> Reply:
    """Answer to a question, from the parts that are here."""
    match question.what:
        case "sums":
            return Reply(sums={partition: sums_of(folds) for partition, folds in parts.items()})
        case "stuck":
            asked = {number: Answers(folds, question.usual) for number, folds in parts.items()}
            return Reply(stuck={number: answers.stuck(question.now_ms) for number, answers in asked.items()})
        case "trace":
            asked = {number: Answers(folds, question.usual) for number, folds in parts.items()}
            return Reply(
                trace={number: answers.saga(question.saga, question.now_ms) for number, answers in asked.items()}
            )


def sums_of(folds: Folds) -> Sums:
    """Sums of one part."""
    return Sums(
        newest_ms=folds.counts.newest_ms,
        sagas=len(folds.known),
        in_flight=len(folds.unended),
        taken=folds.taken,
        handlers=folds.counts.handlers,
        failures=folds.counts.failures,
        partitions=folds.counts.partitions,
        busy=folds.busy,
        usual=Usual(folds.waits, folds.lives),
    )


def together(several: Iterable[Sums]) -> Sums:
    """Sums of all parts."""
    counts, busy, waits, lives = Counts(), dict[str, int](), dict[tuple[str, str], Histogram](), dict[str, Histogram]()
    sagas = in_flight = taken = 0
    for each in several:
        counts.merge(each.counts())
        busy.update(each.busy)
        sagas, in_flight, taken = sagas + each.sagas, in_flight + each.in_flight, taken + each.taken
        for kind, histogram in each.usual.lives.items():
            lives.setdefault(kind, Histogram()).merge(histogram)
        for handler, histogram in each.usual.waits.items():
            waits.setdefault(handler, Histogram()).merge(histogram)
    return Sums(
        newest_ms=counts.newest_ms,
        sagas=sagas,
        in_flight=in_flight,
        taken=taken,
        handlers=counts.handlers,
        failures=counts.failures,
        partitions=counts.partitions,
        busy=busy,
        usual=Usual(waits, lives),
    )


def all_stuck(several: Iterable[AllStuck], unanswered: tuple[str, ...]) -> AllStuck:
    """Sagas that are stuck in any part, longest first."""
    several = [*several]
    found = sorted((stuck for each in several for stuck in each.sagas), key=_place)
    more = any(each.more for each in several) or len(found) > PAGE_MAX
    return AllStuck(sagas=tuple(found[:PAGE_MAX]), more=more, unanswered=unanswered)


def _place(stuck: Stuck) -> tuple[int, tuple[str, ...], str]:
    """Place among all that are stuck, as in one part."""
    waits = stuck.why == "waiting"
    reason = (stuck.why, stuck.awaited.service, stuck.awaited.handler) if waits else (stuck.why,)
    return stuck.since_ms - stuck.measure_ms, reason, stuck.saga


_questions, _replies = msgspec.msgpack.Decoder(Question), msgspec.msgpack.Decoder(Reply)


def question_in(content: bytes) -> Question:
    """Question out of bytes. Raises `msgspec.DecodeError`."""
    return _questions.decode(content)


def reply_in(content: bytes) -> Reply:
    """Answer out of bytes. Raises `msgspec.DecodeError`."""
    return _replies.decode(content)
