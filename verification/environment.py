"""Moves outside of the two workers: another saga uses the business document, time passes, a release is deployed."""

from collections.abc import Iterator
from typing import Any

import msgspec

from saga.engine.execution.document_updates import DocumentUpdate, Marker
from saga.messages import Message
from saga.messaging import controls
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress import ids
from saga.progress.document import Intent, SagaProgress, encode, progress_key
from verification.contents import Contents
from verification.handlers import ITEM, SERVICE, UPDATES, Stock
from verification.services import message, now_ms
from verification.state import WAKES, Move, State, Worker

OTHER, BY, CAUSE = "s-2", "other", "z1"
"""Another saga, with the handler and the cause of its run. The run has begun, and will take one item from the business
document."""
BOOK = (ARCHIVES, controls.control_log_key(SERVICE))
OTHERS = (PROGRESS, progress_key(SERVICE, OTHER))
MARKER = ids.update_id(SERVICE, OTHER, BY, CAUSE, "take", 1)


def others_progress(*, ended: bool) -> bytes:
    """Return the progress of the other saga, whose run has begun or has ended."""
    cause: Message = message(CAUSE, "Z")
    intent = Intent(handler=BY, kind="do", cause=CAUSE, message=cause, parts=(cause,), state={}, time=cause.time)
    return encode(SagaProgress(service=SERVICE, saga=OTHER, n=int(ended), intents=() if ended else (intent,)))


def others_update(contents: Contents) -> DocumentUpdate:
    """Return the update of the other saga, which may go into one replace with an update of the explored saga."""
    return DocumentUpdate(
        declared=contents.service.documents[Stock],
        key=ITEM,
        marker=MARKER,
        saga=OTHER,
        run=("do", BY, CAUSE),
        change=UPDATES["take"],
        args=(),
        kwargs={},
        until_s=float("inf"),
    )


def moves(contents: Contents, s: State) -> Iterator[Move]:
    """Yield each possible move, as readable text, with the state after it."""
    if s.prune or s.other or s.batch:
        yield from _to_the_document(contents, s)
    if contents.books and (number := contents.books.index(s.version_of(*BOOK)) + 1) < len(contents.books):
        yield "a person switches", s.keeping(*BOOK, contents.books[number])
    if s.age and all(worker.turn < 0 for worker in s.workers):
        yield from _ages(contents, s)
    coming = s.wakes[min(worker.at[WAKES] for worker in s.workers) :]
    waits = any(wake.due_ms > now_ms(s.passed, s.ticks) for wake in coming) or (contents.grows and not s.ticks)
    if s.ticks < s.ticks_max and waits:
        yield "time passes", s._replace(ticks=s.ticks + 1, held=(*s.held, s.ends) if contents.grows else ())
    for t, log in enumerate(contents.logs if contents.grows else ()):
        if s.ends[t] < len(log):
            ends = (s.ends[0] + 1, s.ends[1]) if t == 0 else (s.ends[0], s.ends[1] + 1)
            yield f"{'AB'[t]}[{s.ends[t]}] is published", s._replace(ends=ends)
    if len(contents.services) > 1:
        for w, worker in enumerate(s.workers):
            if worker.release == 0:
                yield f"w{w} begins again, as the later release", _released(s, w, 1)
            elif s.move and contents.service.version > 1:
                yield f"w{w} begins again, ROLLED BACK", _released(s, w, 0)._replace(move=s.move - 1)


def _to_the_document(contents: Contents, s: State) -> Iterator[Move]:
    fields: dict[str, Any] = msgspec.json.decode(contents.content(s.stock)) if s.stock else {"left": 0}
    head = fields.setdefault("_saga", {"markers": {}})
    if s.other:
        given = {**fields, "left": fields.get("left", 0) + 1, "_saga": {**head, "absent": False}}
        yield "another saga gives one", _with_stock(contents, s, given)._replace(other=s.other - 1)
    if s.prune:
        for key, marker in head["markers"].items():
            if marker["cause"] not in _open_causes(contents, s, marker["saga"]):
                left = {k: m for k, m in head["markers"].items() if k != key}
                pruned = {**fields, "_saga": {**head, "markers": left, "pruned": True}}
                yield f"marker {key[:6]} is pruned", _with_stock(contents, s, pruned)._replace(prune=s.prune - 1)
    if contents.batched:
        yield from _other_lane(contents, s, fields)


def _other_lane(contents: Contents, s: State, fields: dict[str, Any]) -> Iterator[Move]:
    """Yield the moves of the other saga's current owner, in another process: it makes its update, or ends its run."""
    head, open_ = fields["_saga"], bool(_open_causes(contents, s, OTHER))
    if not open_:
        return
    if MARKER in head["markers"]:
        ended = contents.version(others_progress(ended=True))
        yield "another saga's run ends", s.keeping(*OTHERS, ended)
    elif s.stock and fields["left"] > 0:
        marker = msgspec.to_builtins(Marker(saga=OTHER, handler=BY, kind="do", cause=CAUSE))
        taken = {
            **fields,
            "left": fields["left"] - 1,
            "_saga": {**head, "markers": {**head["markers"], MARKER: marker}},
        }
        after = _with_stock(contents, s, taken)
        yield "another saga takes one", after._replace(ledger=(*s.ledger, f"do:{BY}:{MARKER}"))


def _open_causes(contents: Contents, s: State, saga: str) -> set[str]:
    version = s.version_of(*OTHERS) if saga == OTHER else s.progress
    return {i.cause for i in contents.snapshot(version).intents}


def _with_stock(contents: Contents, s: State, fields: dict[str, Any]) -> State:
    return s._replace(stock=contents.version(msgspec.json.encode(fields)))


def _ages(contents: Contents, s: State) -> Iterator[Move]:
    """Yield the move in which more than half of the retention passes. This is longer than any turn and any delay of a
    lost answer. It is also longer than any outage, so a progress that expires has no unpublished events and no ready
    work."""
    passed = s.passed + 1
    gone = bool(s.expires) and passed >= s.expires
    if gone and not contents.is_settled(s):
        return
    workers = tuple(worker._replace(cache=0, content=0) for worker in s.workers)
    after = s._replace(workers=(workers[0], workers[1]), late=(), age=s.age - 1, passed=passed)
    if gone:
        after = after._replace(progress=0, expires=0, past=(*s.past, s.progress))
    yield f"TIME PASSES{', the progress is gone' if gone else ''}", after


def _released(s: State, w: int, release: int) -> State:
    """Return the state after a worker was stopped or died, and a worker of this release has replaced it."""
    at = [s.committed[t] if s.owner[t] == w else s.workers[w].at[t] for t in (0, 1, WAKES)]
    return s.with_worker(w, Worker(at=(at[0], at[1], at[2]), release=release))
