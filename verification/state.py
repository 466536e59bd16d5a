"""The state of everything that is explored, as a value without history, and functions that read it."""

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from saga.messages import Outgoing, Position, Record, texts_of
from saga.messaging.timers import SagaTimer, parse_timer, tiers_of
from saga.progress.document import progress_key
from verification.handlers import ITEM, SAGA, SERVICE
from verification.operations import Answer, Outside, Publish, Put

TOPICS = "ABW"
"""Names of the logs: two topics with messages, and one with timers (wakes)."""
WAKES = 2
"""Number of the log of timers."""
Three: TypeAlias = tuple[int, int, int]
"""One number for each log."""
PROGRESS = ("saga", progress_key(SERVICE, SAGA))
STOCK = ("stock", ITEM)

_WAKES = tiers_of(SERVICE)
History: TypeAlias = tuple[Answer, ...]


class Worker(NamedTuple):
    """The state of one worker."""

    turn: int = -1
    """Number of the current turn, which is the processing of a message; -1 if the worker is idle."""
    history: History = ()
    """Answers that the worker got since the turn's last write."""
    at: Three = (0, 0, 0)
    """Number of the next message to read, for each log."""
    cache: int = 0
    """Version of the progress in its cache; 0 if it has none."""
    content: int = 0
    """Version of the progress as the worker holds it. A later release may convert a progress that it reads without
    writing it at once."""
    release: int = 0
    """Number of the release that the worker runs."""
    called: tuple[str, ...] = ()
    """Steps that were answered to the worker since it started; only in scenarios that count calls."""


class State(NamedTuple):
    """The state of stores, logs, external systems and workers, and the faults that may still happen."""

    workers: tuple[Worker, Worker] = (Worker(), Worker())
    progress: int = 0
    """Version of the progress in the store; 0 if there is none."""
    expires: int = 0
    """Value of `passed` at which the progress expires; 0 if it does not."""
    stock: int = 0
    rest: tuple[tuple[tuple[str, str], int], ...] = ()
    """All other documents: collection and key, with the version; sorted."""
    past: tuple[int, ...] = ()
    """Last version of each progress that has expired."""
    owner: Three = (0, 0, 0)
    committed: Three = (0, 0, 0)
    wakes: tuple[SagaTimer, ...] = ()
    """The timers that were published, in order."""
    out: tuple[str, ...] = ()
    """Ids of the published records, in the order of their first publication."""
    outside: tuple[Outside, ...] = ()
    """Calls that took effect. Calls with the same key have one effect."""
    ledger: tuple[str, ...] = ()
    """Document updates that took effect: kind, handler and marker."""
    late: tuple[Put | Publish, ...] = ()
    """Operations whose answer was lost and that may still take effect."""
    passed: int = 0
    """Number of times that `AGE_MS` has passed."""
    ticks: int = 0
    """Number of times that `TICK_MS` has passed."""
    ends: tuple[int, int] = (0, 0)
    """Number of published messages in each log, if logs grow."""
    held: tuple[tuple[int, int], ...] = ()
    """Number of messages in each log at each tick, if logs grow."""
    ticks_max: int = 0
    """Largest number of ticks. Without it, work that is blocked by a dead letter would wait for ever."""
    crash: int = 0
    move: int = 0
    fail: int = 0
    lost: int = 0
    evict: int = 0
    prune: int = 0
    other: int = 0
    batch: int = 0
    age: int = 0
    ahead: int = 0
    early: int = 0
    fast: int = 0
    again: int = 0
    """Number of times that topic B may still be deleted and created again."""
    b_begins: int = 0
    """Number of messages that were lost with earlier logs of topic B."""

    def place_of(self, log: int, number: int) -> Position:
        """Return the position of the message with this number. If topic B was created again, offsets begin at 0 in a
        log with another id."""
        if log == 1 and self.b_begins:
            return Position(TOPICS[log], 0, number - self.b_begins, f"after {self.b_begins}")
        return Position(TOPICS[log], 0, number)

    def version_of(self, collection: str, key: str) -> int:
        """Return the version of a document; 0 if there is none."""
        if (collection, key) == PROGRESS:
            return self.progress
        if (collection, key) == STOCK:
            return self.stock
        return next((version for where, version in self.rest if where == (collection, key)), 0)

    def keeping(self, collection: str, key: str, version: int) -> "State":
        """Return the state in which a document other than the progress and the stock has this version; 0 removes it."""
        others = (known for known in self.rest if known[0] != (collection, key))
        new = ((collection, key), version)
        return self._replace(rest=tuple(sorted((*others, new) if version else others)))

    def with_worker(self, w: int, worker: Worker, **changes: Any) -> "State":
        """Return the state with another state of one worker, and with these other changes."""
        workers = (worker, self.workers[1]) if w == 0 else (self.workers[0], worker)
        if not changes:  # the usual case; `_replace` is slower, because it checks the name of each field
            return State._make((workers, *self[1:]))
        return self._replace(workers=workers, **changes)

    def saying(self, publish: Publish) -> "State":
        """Return the state after these records were published.

        Reports about a compensation that is retried are left out, because no transition records them.
        """
        published, wakes = find_published(publish)
        new = [i for i in published if i not in self.out]
        if not new and not wakes:
            return self
        return self._replace(out=(*self.out, *dict.fromkeys(new)), wakes=(*self.wakes, *wakes))


Move: TypeAlias = tuple[str, State]


def with_number(numbers: Three, log: int, number: int) -> Three:
    """Return the numbers with a different one for this log."""
    changed = [*numbers[:log], number, *numbers[log + 1 :]]
    return changed[0], changed[1], changed[2]


def is_wake(record: Outgoing) -> bool:
    """Return whether a record is a timer."""
    return record.topic in _WAKES


@lru_cache(maxsize=10_000)  # a search publishes the same few records in most of its states
def find_published(publish: Publish) -> tuple[tuple[str, ...], tuple[SagaTimer, ...]]:
    """Return the ids of published events and dead letters, and the timers among the records."""
    records = [r for r in publish.records if all(name != "dead_undoes" for name, _ in r.headers)]
    wakes = [parse_timer(Record(r.topic, 0, 0, r.key, r.value, r.headers, 0)) for r in records if is_wake(r)]
    return tuple(i for i in map(id_of, records) if not i.startswith("wake-")), tuple(wakes)


@lru_cache(maxsize=10_000)
def names_of(publish: Publish) -> str:
    """Return the ids of the records, as a trace shows them."""
    return ", ".join(map(id_of, publish.records))


def id_of(record: Outgoing) -> str:
    """Return the id of a record: the id of its dead letter, or of its event."""
    headers = texts_of(record.headers)
    return headers.get("dead_id", headers["ce_id"])


def applied(content: bytes) -> set[str]:
    """Return the updates that took effect in a document, according to the markers in it."""
    if not content:
        return set()
    markers = msgspec.json.decode(content).get("_saga", {}).get("markers", {})
    effective = {key: m for key, m in markers.items() if not m.get("answer") and not m.get("never")}
    return {f"{m['kind']}:{m['handler']}:{key}" for key, m in effective.items()}
