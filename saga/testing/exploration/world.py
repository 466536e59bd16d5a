"""The state of everything that is explored, and each way in which it can move on: one operation, one fault at a time.

Two workers of one service, two topics of one partition, one saga. States are values without history: documents and
turns are interned, and a document's number is its version.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec

from saga.messages import Message, Outgoing, Position
from saga.progress.document import Snapshot, decode, encode, progress_key
from saga.runtime.participant import Participant
from saga.runtime.standing import Turn
from saga.runtime.turn import advance, begin
from saga.store.port import Document
from saga.testing.exploration.operations import (
    Answer,
    Done,
    ExploredPorts,
    Failed,
    Found,
    Get,
    Operation,
    Outside,
    Publish,
    Put,
)
from saga.testing.exploration.services import ITEM, SAGA, SERVICE, Explored, participant

TOPICS = "AB"
PROGRESS = ("saga", progress_key(SERVICE, SAGA))
STOCK = ("stock", ITEM)

History: TypeAlias = tuple[Answer, ...]


class Worker(NamedTuple):
    """One worker."""

    turn: int = -1
    """The interned turn it is in; -1: none."""
    history: History = ()
    """The answers it has got since."""
    at: tuple[int, int] = (0, 0)
    """The next message of each topic."""
    cache: int = 0
    """The version of the progress in its cache; 0: none."""


class State(NamedTuple):
    """Everything."""

    workers: tuple[Worker, Worker] = (Worker(), Worker())
    progress: int = 0
    """The version in the store; 0: none."""
    stock: int = 0
    owner: tuple[int, int] = (0, 0)
    committed: tuple[int, int] = (0, 0)
    out: tuple[str, ...] = ()
    """First occurrences of what was published, by id."""
    outside: tuple[Outside, ...] = ()
    """Calls that took effect: same key, same effect."""
    ledger: tuple[str, ...] = ()
    """Document updates that took effect: kind, handler and marker."""
    late: tuple[Put | Publish, ...] = ()
    """Operations whose answer was lost and that may still land."""
    crash: int = 0
    move: int = 0
    fail: int = 0
    lost: int = 0
    evict: int = 0
    prune: int = 0
    other: int = 0


Move: TypeAlias = tuple[str, State]


class World:
    """One scenario's service and logs, and the memory of the search."""

    def __init__(self, explored: Explored, logs: tuple[tuple[Message, ...], tuple[Message, ...]]) -> None:
        self.explored, self.logs = explored, logs
        self.ports = ExploredPorts()
        self.service: Participant = participant(explored, self.ports)
        self._contents: list[bytes] = [b""]
        self._versions: dict[bytes, int] = {}
        self._turns: list[Turn] = []
        self._numbers: dict[Any, int] = {}
        self._next: dict[tuple[int, History], Operation | int] = {}
        self._snapshots: dict[int, Snapshot] = {}

    # ---------------------------------------------------------------- interning

    def version(self, content: bytes) -> int:
        """The number of a document's content, which is its version: no content comes again."""
        number = self._versions.get(content)
        if number is None:
            number = self._versions[content] = len(self._contents)
            self._contents.append(content)
        return number

    def document(self, version: int) -> Document | None:
        return Document(self._contents[version], version) if version else None

    def snapshot(self, version: int) -> Snapshot:
        """The progress of that version."""
        known = self._snapshots.get(version)
        if known is None:
            content = self._contents[version]
            known = decode(content) if version else Snapshot(service=SERVICE, saga=SAGA)
            self._snapshots[version] = known
        return known

    def stock_left(self, version: int) -> int | None:
        """How much the business document says is left; `None` if it is absent."""
        if not version:
            return None
        document = msgspec.json.decode(self._contents[version])
        return None if document.get("_saga", {}).get("absent") else document["left"]

    def _turn(self, turn: Turn) -> int:
        progress = None if turn.progress is None else encode(turn.progress)
        results = msgspec.json.encode(turn.results)
        key = (turn.message.id, turn.position, progress, turn.cas, turn.certain, turn.over, results, turn.attempts)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._turns)
            self._turns.append(turn)
        return number

    # ---------------------------------------------------------------- running the real turn

    def next(self, turn: int, history: History) -> Operation | int:
        """What a turn asks for after these answers; or, at the next write, the turn that it has become."""
        known = self._next.get((turn, history))
        if known is None:
            known = self._next[turn, history] = self._run(turn, history)
        return known

    def _run(self, turn: int, history: History) -> Operation | int:
        self.ports.store.committed = frozenset()
        coroutine = advance(self.service, self._turns[turn])
        try:
            operation = coroutine.send(None)
            for answer in history:
                operation = coroutine.send(answer)
        except StopIteration as stop:
            return self._turn(stop.value)
        coroutine.close()
        asked: Operation = operation
        return asked

    def _settled(self, worker: Worker) -> tuple[Worker, Operation | None]:
        """The worker at its next operation; without one when its turn is over."""
        while True:
            step = self.next(worker.turn, worker.history)
            if not isinstance(step, int):
                return worker, step
            turn = self._turns[step]
            if turn.over:
                return worker._replace(turn=-1, history=(), cache=turn.cas), None
            worker = worker._replace(turn=step, history=())

    # ---------------------------------------------------------------- moves

    def moves(self, s: State) -> Iterator[Move]:
        """Each thing that can happen next, in words, and the state after it."""
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
        yield from self._others(s)

    def _others(self, s: State) -> Iterator[Move]:
        """What other sagas do to the business document."""
        fields: dict[str, Any] = msgspec.json.decode(self._contents[s.stock]) if s.stock else {"left": 0}
        head = fields.setdefault("_saga", {"markers": {}})
        if s.other:
            given = {**fields, "left": fields.get("left", 0) + 1, "_saga": {**head, "absent": False}}
            yield "another saga gives one", self._with_stock(s, given)._replace(other=s.other - 1)
        open_ = {i.cause for i in self.snapshot(s.progress).intents} if s.prune else set()
        for key, marker in head["markers"].items() if s.prune else ():
            if marker["cause"] not in open_:
                left = {k: m for k, m in head["markers"].items() if k != key}
                pruned = {**fields, "_saga": {**head, "markers": left, "pruned": True}}
                yield f"marker {key[:6]} is pruned", self._with_stock(s, pruned)._replace(prune=s.prune - 1)

    def _with_stock(self, s: State, fields: dict[str, Any]) -> State:
        return s._replace(stock=self.version(msgspec.json.encode(fields)))

    def _commits(self, s: State, w: int) -> Iterator[Move]:
        worker = s.workers[w]
        for t in (0, 1):
            upto = worker.at[t]
            if worker.turn >= 0:
                position = self._turns[worker.turn].position
                if TOPICS.index(position.topic) == t:
                    upto = position.offset
            if s.owner[t] == w and s.committed[t] < upto:
                committed = (upto, s.committed[1]) if t == 0 else (s.committed[0], upto)
                yield f"w{w} commits {TOPICS[t]} to {upto}", s._replace(committed=committed)

    def _takes(self, s: State, w: int) -> Iterator[Move]:
        worker = s.workers[w]
        for t in (0, 1):
            offset = worker.at[t]
            if s.owner[t] != w or offset >= len(self.logs[t]):
                continue
            message = self.logs[t][offset]
            at = (offset + 1, worker.at[1]) if t == 0 else (worker.at[0], offset + 1)
            cached = (self.snapshot(worker.cache), worker.cache) if worker.cache else None
            turn = begin(self.service, message, Position(TOPICS[t], 0, offset), cached)
            taken, _ = self._settled(Worker(self._turn(turn), (), at, worker.cache))
            yield f"w{w} takes {TOPICS[t]}[{offset}] {message.type}:{message.id}", _put(s, w, taken)
        if s.evict and worker.cache:
            yield f"w{w} drops its cache", _put(s, w, worker._replace(cache=0), evict=s.evict - 1)

    def _goes_on(self, s: State, w: int) -> Iterator[Move]:
        worker = s.workers[w]
        operation = self.next(worker.turn, worker.history)
        assert not isinstance(operation, int)
        match operation:
            case Get():
                yield f"w{w} reads {operation.collection}", self._answered(s, w, self._read(s, w, operation))
            case Put():
                yield from self._puts(s, w, operation)
            case Publish():
                yield from self._publishes(s, w, operation)
            case Outside():
                yield from self._calls(s, w, operation)

    def _read(self, s: State, w: int, operation: Get) -> Found:
        if (operation.collection, operation.key) == STOCK:
            return Found(self.document(s.stock), frozenset())
        below = {Position(TOPICS[t], 0, o) for t in (0, 1) if s.owner[t] == w for o in range(s.committed[t])}
        return Found(self.document(s.progress), frozenset(below))

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
        """The state after the write; `None` if it is refused."""
        if (put.collection, put.key) == STOCK:
            if put.cas != s.stock:
                return None
            new = applied(put.content) - applied(self._contents[s.stock])
            return s._replace(stock=self.version(put.content), ledger=(*s.ledger, *sorted(new)))
        assert (put.collection, put.key) == PROGRESS, put
        return s._replace(progress=self.version(put.content)) if put.cas == s.progress else None

    def _publishes(self, s: State, w: int, publish: Publish) -> Iterator[Move]:
        what = f"w{w} publishes {', '.join(map(id_of, publish.records))}"
        yield what, self._answered(_out(s, publish), w, Done())
        parts = [Publish(publish.records[:count]) for count in range(1, len(publish.records))]
        for part in parts if s.crash else ():
            yield f"{what}: the first {len(part.records)} only, CRASHES", self._crashed(_out(s, part), w)
        if s.lost:
            s = s._replace(lost=s.lost - 1)
            for part in (*parts, publish):
                landed = f"the first {len(part.records)} landed, ANSWER LOST"
                yield f"{what}: {landed}", self._answered(_out(s, part), w, Failed("unavailable"))
            late = s._replace(late=(*s.late, publish))
            yield f"{what}, ON ITS WAY, ANSWER LOST", self._answered(late, w, Failed("unavailable"))

    def _crashed(self, s: State, w: int) -> State:
        """A worker has died: it begins again at what is committed, or where another one has left it."""
        at = tuple(s.committed[t] if s.owner[t] == w else s.workers[w].at[t] for t in (0, 1))
        return _put(s, w, Worker(at=(at[0], at[1])), crash=s.crash - 1)

    def _calls(self, s: State, w: int, call: Outside) -> Iterator[Move]:
        what = f"w{w} calls {call.what}"
        done = s if call in s.outside else s._replace(outside=(*s.outside, call))
        yield what, self._answered(done, w, Done())
        if s.fail:
            failed = s._replace(fail=s.fail - 1)
            yield f"{what}: FAILS, nothing done", self._answered(failed, w, Failed("broken"))
            yield f"{what}: done, ANSWER LOST", self._answered(done._replace(fail=s.fail - 1), w, Failed("broken"))

    def _answered(self, s: State, w: int, answer: Answer) -> State:
        worker = s.workers[w]
        worker, _ = self._settled(worker._replace(history=(*worker.history, answer)))
        return _put(s, w, worker)

    def _late(self, s: State) -> Iterator[Move]:
        for i, operation in enumerate(s.late):
            rest = s._replace(late=s.late[:i] + s.late[i + 1 :])
            if isinstance(operation, Publish):
                yield "a late publish lands", _out(rest, operation)
            else:
                yield "a late write lands, or is refused", self._landed(rest, operation) or rest

    def _rebalances(self, s: State) -> Iterator[Move]:
        for t in (0, 1):
            if not s.move or s.committed[t] >= len(self.logs[t]):
                continue
            old, new = s.owner[t], 1 - s.owner[t]
            at = s.workers[new].at
            moved = _put(
                s,
                new,
                s.workers[new]._replace(at=(s.committed[0], at[1]) if t == 0 else (at[0], s.committed[1])),
                owner=(new, s.owner[1]) if t == 0 else (s.owner[0], new),
                move=s.move - 1,
            )
            yield f"REBALANCE: {TOPICS[t]} from w{old} to w{new}, w{old} goes on with what it has", moved


def _put(s: State, w: int, worker: Worker, **changes: Any) -> State:
    return s._replace(workers=(worker, s.workers[1]) if w == 0 else (s.workers[0], worker), **changes)


def _out(s: State, publish: Publish) -> State:
    new = [i for i in map(id_of, publish.records) if i not in s.out]
    return s._replace(out=(*s.out, *new)) if new else s


def id_of(record: Outgoing) -> str:
    """The id of a record: of the dead letter, or of the event."""
    headers = dict(record.headers)
    return headers.get("dead_id", headers["ce_id"]).decode()


def applied(content: bytes) -> set[str]:
    """The updates that took effect in a document, as far as its markers tell."""
    if not content:
        return set()
    markers = msgspec.json.decode(content).get("_saga", {}).get("markers", {})
    effective = {key: m for key, m in markers.items() if not m.get("answer") and not m.get("never")}
    return {f"{m['kind']}:{m['handler']}:{key}" for key, m in effective.items()}
