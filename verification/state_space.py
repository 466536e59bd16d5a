"""The state space of a scenario: for each state, the states that can follow by one operation or one fault.

There are two workers of one service, two topics with one partition each, and one saga. States are values without
history. Documents and turns are replaced by numbers, and the number of a document is its version.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from saga.engine.execution.message_processor import MessageProcessor
from saga.engine.isolated_ports import FixedClock
from saga.engine.processing_state import ProcessingState
from saga.errors import SagaError
from saga.messages import Message
from saga.messaging import controls
from saga.messaging.controls import ControlLog
from saga.messaging.operator_commands import TYPES, OperatorCommand
from saga.progress.document import SagaProgress, decode_transition, encode
from saga.progress.failed_attempts import find_parked_runs
from saga.support.clock import LATEST_MS
from verification import environment
from verification.bounds import SHORT, STEADY, TIGHT, bounded
from verification.contents import Contents
from verification.operations import (
    AGES_OF_MEMORY,
    LOOK,
    TICK_MS,
    Answer,
    Batched,
    Done,
    ExploredStore,
    Failed,
    Found,
    Get,
    Operation,
    OtherLane,
    Outside,
    Publish,
    Put,
    Remove,
    Together,
)
from verification.services import Explored, ages_at, explored_ports, ms_after, now_ms, participant
from verification.state import (
    PROGRESS,
    STOCK,
    TOPICS,
    WAKES,
    History,
    Move,
    State,
    Worker,
    applied,
    names_of,
    with_number,
)

FAST = 2
"""Number of ticks by which a clock is ahead, if it is slightly ahead."""


class Under(NamedTuple):
    """The processing of one message, at some point, with the release and the time in which it continues."""

    turn: ProcessingState
    release: int
    passed: int
    """Number of times that `AGE_MS` has passed."""
    fast: int
    """Number of ticks by which the worker's clock is ahead."""
    ticks: int
    """Number of times that `TICK_MS` has passed."""
    handled: int
    """Tick up to which the worker has handled the messages in the logs; -1 if the logs do not grow and all are
    handled."""


class StateSpace(Contents):
    """The state space of one scenario: its service, its logs, the states that can follow each state, and cached
    results."""

    def __init__(  # the options of a scenario
        self,
        explored: Explored,
        logs: tuple[tuple[Message, ...], tuple[Message, ...]],
        *,
        batched: bool = False,
        books: Sequence[ControlLog] = (),
        counts_calls: bool = False,
        stranger: bool = False,
        grows: bool = False,
        steady: bool = False,
    ) -> None:
        """Create the state space.

        `batched`: the worker handles another saga, too, and updates of both may go into one replace. `books`: the
        control logs that operators write, one after the other. `counts_calls`: each worker remembers the steps that
        were answered. `stranger`: the second worker has a store of its own, which is empty. `grows`: messages are
        published one by one. `steady`: a timer comes one tick after it was published, whatever its date, because
        workers hold timers by a clock that is never ahead.
        """
        self.counts_calls, self.stranger = counts_calls, stranger
        self.explored, self.steady = explored, steady
        self.store, self.clock, other = ExploredStore(), FixedClock(ms_after(0)), OtherLane()
        ports = explored_ports(self.store, self.clock, other)
        super().__init__(
            [participant(explored, ports, r, controlled=bool(books)) for r in range(len(explored.releases))],
            batched=batched,
        )
        self.logs, self.grows = logs, grows
        self.books = tuple(self.version(controls.encode(book)) for book in books)
        other.update = environment.others_update(self) if batched else None
        self._turns: list[Under] = []
        self._numbers: dict[Any, int] = {}
        self._next: dict[tuple[int, History], Operation | int] = {}

    def _turn(self, turn: ProcessingState, release: int, passed: int, fast: int, ticks: int, handled: int) -> int:
        progress = None if turn.progress is None else encode(turn.progress)
        results = msgspec.json.encode(turn.results)
        key = (
            (turn.message, turn.position, release, passed, fast, ticks, handled),
            (
                progress,
                turn.cas,
                turn.is_current,
                tuple(entry.n for entry in turn.unpublished),
                _frozen(turn.recalled),
                turn.paged,
                turn.is_complete,
                results,
                turn.attempts,
                turn.unsent_escalation,
                turn.held_back,
                turn.awaited_log,
            ),
        )
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._turns)
            self._turns.append(Under(turn, release, passed, fast, ticks, handled))
        return number

    # ---------------------------------------------------------------- running the real turn

    def next(self, turn: int, history: History) -> Operation | int:
        """Return the next operation that a turn requests after these answers. If the turn has reached its next write,
        return the number of the turn that it has become."""
        known = self._next.get((turn, history))
        if known is None:
            with bounded(TIGHT if self.explored.tight else SHORT if self.books else STEADY if self.steady else {}):
                known = self._next[turn, history] = self._run(self._turns[turn], history)
        return known

    def _run(self, under: Under, history: History) -> Operation | int:
        self.store.committed, self.store.logs = frozenset(), frozenset()
        self.clock.now = now_ms(under.passed, under.fast + under.ticks)
        self.store.handled_ms = LATEST_MS if under.handled < 0 else now_ms(under.passed, under.handled)
        coroutine = MessageProcessor(self.services[under.release]).advance(under.turn)
        try:
            operation = coroutine.send(None)
            for answer in history:
                operation = coroutine.send(answer)
        except StopIteration as stop:
            return self._turn(stop.value, *under[1:])
        except SagaError:  # a later release has written the progress: the saga waits, and reads it again
            return self._turn(under.turn.drop_progress(), *under[1:])
        coroutine.close()
        asked: Operation = operation
        return asked

    def _handled(self, s: State, w: int, worker: Worker) -> int:
        """Return the last tick up to which all messages were taken, as far as this worker knows, by itself or by the
        other worker; -1 if the logs do not grow.

        What counts are the ends of the logs at that tick. With later ends, the worker would wait for longer than
        necessary.
        """
        if not self.grows:
            return -1
        to = [max(worker.at[t] if s.owner[t] == w else 0, s.committed[t]) for t in (0, 1)]
        reached = [
            tick for tick, held in enumerate(s.held, 1) if all(at >= end for at, end in zip(to, held, strict=True))
        ]
        return max(reached, default=0)

    def _settled(self, s: State, w: int, worker: Worker) -> tuple[Worker, Operation | None]:
        """Return the worker at its next operation, and the operation; `None` if its turn is over. The current time
        applies from there on."""
        ticks, handled = s.ticks, self._handled(s, w, worker)
        while True:
            step = self.next(worker.turn, worker.history)
            if not isinstance(step, int):
                return worker, step
            turn, release, passed, fast, *before = self._turns[step]
            if before != [ticks, handled]:
                step = self._turn(turn, release, passed, fast, ticks, handled)
            if turn.awaited_log is not None:  # the timer stays, and is taken again
                worker = worker._replace(at=with_number(worker.at, WAKES, turn.position.offset))
            if turn.is_complete:
                cas = turn.cas if turn.is_cacheable else 0
                content = self.version(encode(turn.progress)) if cas and len(self.services) > 1 else cas
                return worker._replace(turn=-1, history=(), cache=cas, content=content), None
            worker = worker._replace(turn=step, history=())

    # ---------------------------------------------------------------- moves

    def moves(self, s: State) -> Iterator[Move]:
        """Yield each possible move, as readable text, with the state after it."""
        for w in (0, 1):
            yield from self._commits(s, w)
            if s.workers[w].turn < 0:
                yield from self._takes(s, w)
            else:
                yield from self._goes_on(s, w)
                if s.crash:
                    yield f"w{w} CRASHES", self._crashed(s, w)
        yield from self._late(s)
        yield from self._rebalances(s)
        yield from self._created_again(s)
        yield from environment.moves(self, s)

    def is_to_come(self, s: State) -> bool:
        """Return whether a worker will look at the saga again, because a message is not committed, or because a lost
        operation may still take effect.

        Messages that no worker can take yet do not count, because the command in front of them may never come.
        """
        return any(s.committed[t] < len(messages) for t, messages in enumerate(self.takeable(s))) or bool(s.late)

    def takeable(self, s: State) -> tuple[Sequence[Message], Sequence[Message]]:
        """Return the messages of both logs without those that no worker can take yet: a command that no operator can
        give now, and all that is behind it."""
        p = self.snapshot(s.progress)
        first, second = (
            log[: next((n for n, m in enumerate(log) if isinstance(m, OperatorCommand) and not is_due(s, p, m)), None)]
            for log in self.logs
        )
        return first, second

    def _commits(self, s: State, w: int) -> Iterator[Move]:
        worker = s.workers[w]
        for t in (0, 1, WAKES):
            if s.owner[t] != w:
                continue
            upto = worker.at[t]
            if worker.turn >= 0:
                position = self._turns[worker.turn].turn.position
                if position.topic == TOPICS[t]:
                    upto = position.offset + (s.b_begins if t == 1 else 0)
            if s.committed[t] < upto:
                committed = with_number(s.committed, t, upto)
                yield f"w{w} commits {TOPICS[t]} to {upto}", s._replace(committed=committed)

    def _takes(self, s: State, w: int) -> Iterator[Move]:
        worker = s.workers[w]
        for t in (0, 1):
            offset = worker.at[t]
            if s.owner[t] != w or offset >= s.ends[t]:
                continue
            message = self.logs[t][offset]
            if s.age and ages_at(message.time) > s.passed:
                continue  # it has not been emitted yet
            if isinstance(message, OperatorCommand) and not is_due(s, self.snapshot(s.progress), message):
                continue
            at = with_number(worker.at, t, offset + 1)
            what = f"w{w} takes {TOPICS[t]}[{offset}] {message.type}:{message.id}"
            if message.type not in TYPES and message.type not in self.services[worker.release].consumed:
                yield f"{what}, which nobody there names", s.with_worker(w, worker._replace(at=at))
                continue
            worker = worker._replace(at=at)
            yield what, s.with_worker(w, self._begun(s, worker, t, offset, s.passed))
            if s.ahead:
                begun = self._begun(s, worker, t, offset, s.passed + AGES_OF_MEMORY)
                yield f"{what}, ITS CLOCK FAR AHEAD", s.with_worker(w, begun, ahead=s.ahead - 1)
            if s.fast:
                begun = self._begun(s, worker, t, offset, s.passed, FAST)
                yield f"{what}, ITS CLOCK AHEAD", s.with_worker(w, begun, fast=s.fast - 1)
            worker = s.workers[w]
        yield from self._wakes(s, w)
        if s.evict and worker.cache:
            yield f"w{w} drops its cache", s.with_worker(w, worker._replace(cache=0, content=0), evict=s.evict - 1)

    def _wakes(self, s: State, w: int) -> Iterator[Move]:
        """Yield the moves of a worker that owns the log of timers: it takes the next timer at its time or too early."""
        worker, offset = s.workers[w], s.workers[w].at[WAKES]
        if s.owner[WAKES] != w or offset >= len(s.wakes):
            return
        wake = s.wakes[offset]
        left_ms = wake.due_ms - now_ms(s.passed, s.ticks)
        held = self.steady and left_ms > TICK_MS
        early = left_ms > 0 and not held
        if early and not s.early:
            return
        taken = worker._replace(at=with_number(worker.at, WAKES, offset + 1))
        begun = self._begun(s, taken, WAKES, offset, s.passed)
        what = f"w{w} takes {TOPICS[WAKES]}[{offset}] {wake.id}{', TOO EARLY' if early else ''}"
        yield what, s.with_worker(w, begun, early=s.early - early)
        if s.fast:
            begun = self._begun(s, taken, WAKES, offset, s.passed, FAST)
            yield f"{what}, ITS CLOCK AHEAD", s.with_worker(w, begun, early=s.early - early, fast=s.fast - 1)

    def _begun(self, s: State, worker: Worker, log: int, number: int, passed: int, fast: int = 0) -> Worker:
        """Return the worker at the first operation for the message with this number."""
        message, position = s.wakes[number] if log == WAKES else self.logs[log][number], s.place_of(log, number)
        cached = (self.snapshot(worker.content), worker.cache) if worker.cache else None
        self.clock.now = now_ms(passed, fast + s.ticks)
        turn = MessageProcessor(self.services[worker.release]).begin(message, position, cached)
        w = s.owner[log]
        begins = self._turn(turn, worker.release, passed, fast, s.ticks, self._handled(s, w, worker))
        begun, _ = self._settled(s, w, worker._replace(turn=begins))
        return begun

    def _goes_on(self, s: State, w: int) -> Iterator[Move]:
        worker = s.workers[w]
        operation = self.next(worker.turn, worker.history)
        assert not isinstance(operation, int)
        match operation:
            case Get():
                yield f"w{w} reads {operation.collection}", self._answered(s, w, self._read(s, w, operation))
            case Put():
                yield from self._puts(s, w, operation)
            case Remove():
                there = s.version_of(operation.collection, operation.key) == operation.cas
                removed = s.keeping(operation.collection, operation.key, 0) if there else s
                answer = Done() if there else Failed("conflict")
                yield f"w{w} removes from {operation.collection}", self._answered(removed, w, answer)
            case Publish():
                yield from self._publishes(s, w, operation)
            case Outside():
                yield from self._calls(s, w, operation)
            case Together():
                yield from self._goes_together(s, w)

    def _read(self, s: State, w: int, operation: Get) -> Found:
        version = 0 if self.stranger and w == 1 else s.version_of(operation.collection, operation.key)
        if (operation.collection, operation.key) != PROGRESS:
            return Found(self.document(version), frozenset(), frozenset())
        begins = (0, s.b_begins, 0)
        ours = [t for t in (0, 1, WAKES) if s.owner[t] == w]
        below = {s.place_of(t, number) for t in ours for number in range(begins[t], s.committed[t])}
        logs = {(at.topic, at.log_id) for t in (0, 1) for at in [s.place_of(t, begins[t])]}
        return Found(self.document(version), frozenset(below), frozenset(logs))

    def _puts(self, s: State, w: int, put: Put) -> Iterator[Move]:
        what = f"w{w} writes {put.collection}"
        landed = self._landed(s, put)
        if landed is None:
            yield f"{what}: REFUSED", self._answered(s, w, Failed("conflict"))
            return
        yield what, self._answered(landed, w, Done(self.version(put.content)))
        if s.lost:
            s, landed = s._replace(lost=s.lost - 1), landed._replace(lost=s.lost - 1)
            yield f"{what}, ANSWER LOST", self._answered(landed, w, Failed("ambiguous"))
            late = s._replace(late=(*s.late, put))
            yield f"{what}, ON ITS WAY, ANSWER LOST", self._answered(late, w, Failed("ambiguous"))

    def _landed(self, s: State, put: Put) -> State | None:
        """Return the state after a write; `None` if the write is refused."""
        if (put.collection, put.key) == STOCK:
            if put.cas != s.stock:
                return None
            new = applied(put.content) - applied(self._contents[s.stock])
            return s._replace(stock=self.version(put.content), ledger=(*s.ledger, *sorted(new)))
        if put.cas != s.version_of(put.collection, put.key):
            return None
        version = self.version(put.content)
        if (put.collection, put.key) == PROGRESS:
            return s._replace(progress=version, expires=s.passed + AGES_OF_MEMORY if put.expires else 0)
        return s.keeping(put.collection, put.key, version)

    def _goes_together(self, s: State, w: int) -> Iterator[Move]:
        """Yield the moves of an update, made alone or in one replace with the update of another saga, whose worker may
        be a zombie."""
        yield f"w{w} updates alone", self._answered(s, w, Batched(("mine",)))
        if s.batch:
            s = s._replace(batch=s.batch - 1)
            yield f"w{w} updates, then another lane", self._answered(s, w, Batched(("mine", "theirs")))
            yield f"w{w} updates after another lane", self._answered(s, w, Batched(("theirs", "mine")))

    def _publishes(self, s: State, w: int, publish: Publish) -> Iterator[Move]:
        what = f"w{w} publishes {names_of(publish)}"
        yield what, self._answered(s.saying(publish), w, Done())
        parts = [Publish(publish.records[:count]) for count in range(1, len(publish.records))]
        for part in parts if s.crash else ():
            yield f"{what}: the first {len(part.records)} only, CRASHES", self._crashed(s.saying(part), w)
        if s.lost:
            s = s._replace(lost=s.lost - 1)
            for part in (*parts, publish):
                landed = f"the first {len(part.records)} landed, ANSWER LOST"
                yield f"{what}: {landed}", self._answered(s.saying(part), w, Failed("unavailable"))
            late = s._replace(late=(*s.late, publish))
            yield f"{what}, ON ITS WAY, ANSWER LOST", self._answered(late, w, Failed("unavailable"))

    def _crashed(self, s: State, w: int) -> State:
        """Return the state after a worker has crashed. It restarts at its committed positions, for the logs that it
        owns."""
        at = [s.committed[t] if s.owner[t] == w else s.workers[w].at[t] for t in (0, 1, WAKES)]
        return s.with_worker(w, Worker(at=(at[0], at[1], at[2]), release=s.workers[w].release), crash=s.crash - 1)

    def _calls(self, s: State, w: int, call: Outside) -> Iterator[Move]:
        what = f"w{w} calls {call.what}"
        done = s if call in s.outside else s._replace(outside=(*s.outside, call))
        counted = done
        if self.counts_calls and not call.what.startswith(LOOK):
            worker = s.workers[w]
            counted = done.with_worker(w, worker._replace(called=(*worker.called, call.what)))
        yield what, self._answered(counted, w, Done())
        if s.fail:
            failed = s._replace(fail=s.fail - 1)
            yield f"{what}: FAILS, nothing done", self._answered(failed, w, Failed("broken"))
            yield f"{what}: done, ANSWER LOST", self._answered(done._replace(fail=s.fail - 1), w, Failed("broken"))

    def _answered(self, s: State, w: int, answer: Answer) -> State:
        worker = s.workers[w]
        worker, _ = self._settled(s, w, worker._replace(history=(*worker.history, answer)))
        return s.with_worker(w, worker)

    def _late(self, s: State) -> Iterator[Move]:
        for i, operation in enumerate(s.late):
            rest = s._replace(late=s.late[:i] + s.late[i + 1 :])
            if isinstance(operation, Publish):
                yield "a late publish lands", rest.saying(operation)
            else:
                yield "a late write lands, or is refused", self._landed(rest, operation) or rest

    def _rebalances(self, s: State) -> Iterator[Move]:
        for t in (WAKES,) if self.stranger else (0, 1, WAKES):
            if not s.move or s.committed[t] >= len(s.wakes if t == WAKES else self.logs[t]):
                continue
            old, new = s.owner[t], 1 - s.owner[t]
            at = s.workers[new].at
            moved = s.with_worker(
                new,
                s.workers[new]._replace(at=with_number(at, t, s.committed[t])),
                owner=with_number(s.owner, t, new),
                move=s.move - 1,
            )
            yield f"REBALANCE: {TOPICS[t]} from w{old} to w{new}, w{old} goes on with what it has", moved

    def _created_again(self, s: State) -> Iterator[Move]:
        """Yield the move in which topic B is deleted and created again.

        The messages that a transition records are lost; the others are published again, from offset 0 on. Lost messages
        are not redelivered. So this may only happen while another message is left that makes a worker look at the saga.
        """
        if (
            not s.again
            or any(worker.at[0] for worker in s.workers)
            or any(
                worker.turn >= 0 and self._turns[worker.turn].turn.position.topic == TOPICS[1] for worker in s.workers
            )
        ):
            return
        recorded = {decode_transition(raw).message for raw in self.snapshot(s.progress).transitions}
        begins = next((n for n, each in enumerate(self.logs[1]) if each.id not in recorded), len(self.logs[1]))
        if begins > s.b_begins:
            one, other = (worker._replace(at=with_number(worker.at, 1, begins)) for worker in s.workers)
            committed = with_number(s.committed, 1, begins)
            new = s._replace(workers=(one, other), committed=committed, again=s.again - 1, b_begins=begins)
            yield f"{TOPICS[1]} IS CREATED AGAIN, without its first {begins}", new


def _frozen(recalled: dict[str, int] | None) -> tuple[str, ...] | None:
    return None if recalled is None else tuple(sorted(recalled))


def is_due(s: State, p: SagaProgress, command: OperatorCommand) -> bool:
    """Return whether an operator can give this command now: the dead letter or the parked run has been visible, and if
    the command records a result, that call has been made."""
    if command.wanted == "release":  # once its timer is in the log, an operator may have seen the parked run
        return bool(s.wakes) or any(run.id == command.dead for run in find_parked_runs(p))
    if command.dead not in s.out:
        return False
    answered = command.answered
    return answered is None or any(call.what.endswith(f":{answered.number - 1}") for call in s.outside)
