"""Send one operator command for many dead letters, at a limited rate, until it is stopped.

Just before a command is sent, its dead letter is checked again. If the dead letter no longer blocks a saga, it is left
out. The commands are those of `saga.ops.operator_commands`, so each is recorded with the operator's name and reason in
the history of its saga. If the process that sends the commands dies, the commands already sent are still carried out.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from saga.errors import BadInput, SagaError
from saga.ops.attention import find_blocking
from saga.ops.dead_letters import DeadLetter
from saga.ops.operator_commands import (
    NOT_ENDED,
    REPLAYS_MAX,
    CommandAnswer,
    CommandRequest,
    describe_answer,
    send_commands,
    wait_for_answers,
)
from saga.ops.selection import Deployment, Selection

BATCH_MAX = 100
"""Maximum number of commands in a batch."""
RATE_MIN, RATE_MAX = 0.01, 200.0
"""Limits of the number of commands in a second."""
HALT_AFTER = 10
"""Sending stops after this number of failed commands in a row."""
PROBLEMS_MAX = 50
"""Maximum number of problems that are kept."""
STOP_CHECK_S = 0.1
"""Seconds between two checks for a request to stop, while waiting for the next batch."""

BulkState = Literal["running", "stopping", "finished", "stopped", "failed"]


class LetterKey(NamedTuple):
    """Identity of a dead letter: its service, its id and the saga that it blocks."""

    service: str
    id: str
    saga: str


class CommandPace(NamedTuple):
    """The number of commands in a batch, and the seconds from the start of one batch to the start of the next."""

    size: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkRequest:
    """A command, and the rate at which it is to be sent for many dead letters."""

    command: CommandRequest
    rate_per_s: float
    again: bool = False
    """True to also replay in sagas that have had `REPLAYS_MAX` replays or more."""


@dataclass(slots=True)
class BulkProgress:
    """How far a bulk command has come."""

    total: int
    state: BulkState = "running"
    reason: str = ""
    """Reason why sending stopped before the end; otherwise empty."""
    sent: int = 0
    done: int = 0
    """Number of commands that were carried out, and whose run did not fail again."""
    failed: int = 0
    """Number of commands that were refused, or whose run failed again."""
    unanswered: int = 0
    """Number of commands whose result no service recorded in time. They stay on the topic, and may still be carried
    out."""
    left_out: int = 0
    """Number of dead letters for which no command was sent, because they no longer blocked a saga or had been replayed
    too often."""
    began_ms: int = 0
    ended_ms: int | None = None
    problems: list[str] = field(default_factory=list)
    """Reasons why commands failed or were not sent; only the first `PROBLEMS_MAX`."""

    @property
    def is_over(self) -> bool:
        return self.ended_ms is not None

    @property
    def settled_count(self) -> int:
        """Number of dead letters that are dealt with: done, failed, unanswered or left out."""
        return self.done + self.failed + self.unanswered + self.left_out

    def describe(self) -> str:
        """Describe in one line how many dead letters were dealt with, and how."""
        counts = {"done": self.done, "refused or failed again": self.failed, "not answered": self.unanswered}
        parts = [f"{count} {what}" for what, count in (counts | {"left out": self.left_out}).items() if count]
        rest = self.total - self.settled_count
        text = f"{self.settled_count} of {self.total}: {', '.join(parts) or 'nothing was sent'}"
        return f"{text}; nothing more is sent{f', because {self.reason}' if self.reason else ''}" if rest else text


def parse_rate(text: str) -> float:
    """Parse a number of commands per second. Raises `BadInput` if it is not a number within the limits."""
    try:
        rate_per_s = float(text)
    except ValueError:
        rate_per_s = 0.0
    if not RATE_MIN <= rate_per_s <= RATE_MAX:  # not a number compares as false
        raise BadInput(f"the rate must be a number from {RATE_MIN:g} to {RATE_MAX:g} a second")
    return rate_per_s


def plan_pace(rate_per_s: float) -> CommandPace:
    """Return the size and interval of batches that keep to this rate. There is about one batch a second, if the rate
    allows it.

    >>> plan_pace(5), plan_pace(0.5), plan_pace(200)
    (CommandPace(size=5, seconds=1.0), CommandPace(size=1, seconds=2.0), CommandPace(size=100, seconds=0.5))
    """
    size = max(1, min(BATCH_MAX, int(rate_per_s)))
    return CommandPace(size, size / rate_per_s)


class BulkCommand:
    """A command that is being sent for many dead letters, with its progress."""

    def __init__(
        self,
        keys: Sequence[LetterKey],
        request: BulkRequest,
        deployment: Deployment,
        report: Callable[[CommandAnswer], None] = lambda _: None,
    ) -> None:
        """Prepare the commands. `report`: function that is called with the answer to each command when it arrives."""
        self.request = request
        self.progress = BulkProgress(len(keys), began_ms=deployment.clock.now_ms())
        self._keys, self._deployment, self._report = tuple(keys), deployment, report
        self._failed_in_a_row = 0
        self._is_stopped = False

    def stop(self, reason: str) -> None:
        """Stop sending commands. May be called from another thread."""
        self._is_stopped = True
        if not self.progress.is_over:
            self.progress.state, self.progress.reason = "stopping", reason

    async def run(self) -> None:
        """Send all commands and wait for their results.

        This ends early after `stop`, or after `HALT_AFTER` failures in a row.
        """
        progress, clock = self.progress, self._deployment.clock
        try:
            for batch in self._split():
                await self._send_batch(batch)
                if self._failed_in_a_row >= HALT_AFTER:
                    self.stop(f"the last {HALT_AFTER} had no success: fix the cause first")
        except SagaError as why:
            progress.state, progress.reason = "failed", str(why)
        except asyncio.CancelledError:
            progress.state, progress.reason = "stopped", "it was interrupted"
            raise
        except BaseException:
            progress.state, progress.reason = "failed", "it could not be continued; the log of this process says why"
            raise
        else:
            progress.state = "stopped" if self._is_stopped and progress.settled_count < progress.total else "finished"
        finally:
            progress.ended_ms = clock.now_ms()

    def _split(self) -> Iterator[Sequence[LetterKey]]:
        size = plan_pace(self.request.rate_per_s).size
        for begin in range(0, len(self._keys), size):
            if self._is_stopped:
                return
            yield self._keys[begin : begin + size]

    async def _send_batch(self, batch: Sequence[LetterKey]) -> None:
        """Send a batch of commands, wait for their results, then wait until the next batch is due."""
        clock, pace = self._deployment.clock, plan_pace(self.request.rate_per_s)
        next_s = clock.monotonic_s() + pace.seconds
        letters = await self._select(batch)
        if letters:
            sent = await send_commands(letters, self.request.command, self._deployment)
            self.progress.sent += len(sent)
            async for answer in wait_for_answers(sent, self._deployment, self.request.command.operator.wait_s):
                self._count(answer)
                self._report(answer)
        while self.progress.settled_count < self.progress.total and not self._is_stopped:
            left_s = next_s - clock.monotonic_s()
            if left_s <= 0:
                return
            await clock.sleep(min(left_s, STOP_CHECK_S))

    async def _select(self, batch: Sequence[LetterKey]) -> list[DeadLetter]:
        """Return the dead letters of a batch that still block sagas according to the stores. Leave out those that were
        replayed too often."""
        wanted = {(key.service, key.id) for key in batch}
        sagas = tuple(dict.fromkeys(key.saga for key in batch))
        services = tuple(sorted({key.service for key in batch}))
        selection = Selection(services=services, sagas=sagas, limit=len(sagas), only_dead=True)
        letters: dict[tuple[str, str], DeadLetter] = {}
        is_replay = self.request.command.wanted == "replay" and not self.request.again
        async for letter, replays in find_blocking(selection, self._deployment):
            place = (letter.service, letter.id)
            if place not in wanted or place in letters:
                continue
            if is_replay and replays >= REPLAYS_MAX:
                self._note(letter, f"was replayed {replays} times already: fix the cause, then include such sagas")
            else:
                letters[place] = letter
        self.progress.left_out += len(batch) - len(letters)
        return [*letters.values()]

    def _count(self, answer: CommandAnswer) -> None:
        progress = self.progress
        if answer.is_success(self.request.command.wanted):
            progress.done += 1
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += 1
        if answer.outcome and answer.after != NOT_ENDED:
            progress.failed += 1
        else:
            progress.unanswered += 1
        self._note(answer.sent.dead_letter, f"{describe_answer(answer)} - {answer.reason}")

    def _note(self, letter: DeadLetter, what: str) -> None:
        if len(self.progress.problems) < PROBLEMS_MAX:
            self.progress.problems.append(f"{letter.service}, {letter.saga}: {what}")
