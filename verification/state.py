"""State of everything that is explored, as a value without history, and functions that read its parts."""

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import msgspec

from saga.messages import Outgoing, Position, Record, texts_of
from saga.messaging.timers import SagaTimer, parse_timer, tiers_of
from saga.progress.document import progress_key
from verification.handlers import ITEM, SAGA, SERVICE
from verification.operations import Answer, Outside, Publish, Put

TOPICS = "ABW"
"""Names of the logs: two of messages, one of wakes."""
WAKES = 2
"""Number of the log of wakes."""
Three: TypeAlias = tuple[int, int, int]
"""A number for each log."""
PROGRESS = ("saga", progress_key(SERVICE, SAGA))
STOCK = ("stock", ITEM)

_WAKES = tiers_of(SERVICE)
History: TypeAlias = tuple[Answer, ...]


class Worker(NamedTuple):
    """One worker."""

    turn: int = -1
    """Number of the turn that it is in; -1: none."""
    history: History = ()
    """Answers that it has got since."""
    at: Three = (0, 0, 0)
    """Next message of each log."""
    cache: int = 0
    """Version of the progress in its cache; 0: none."""
    content: int = 0
    """Progress that it has there: a later release does not write at once what it makes of one that it reads."""
    release: int = 0
    """Release of the service that is deployed."""
    called: tuple[str, ...] = ()
    """Calls that it has made since it began, where a scenario counts them."""


class State(NamedTuple):
    """State of stores, log, outside and workers, and the faults that are left."""

    workers: tuple[Worker, Worker] = (Worker(), Worker())
    progress: int = 0
    """Version of the progress in the store; 0: none."""
    expires: int = 0
    """Value of `passed` at which the progress is gone; 0: never."""
    stock: int = 0
    rest: tuple[tuple[tuple[str, str], int], ...] = ()
    """All other documents: collection and key, with the version; in order."""
    past: tuple[int, ...] = ()
    """Last version of each progress that has expired."""
    owner: Three = (0, 0, 0)
    committed: Three = (0, 0, 0)
    wakes: tuple[SagaTimer, ...] = ()
    """Log of wakes, in the order in which they were published."""
    out: tuple[str, ...] = ()
    """First occurrences of what was published, by id."""
    outside: tuple[Outside, ...] = ()
    """Calls that took effect: same key, same effect."""
    ledger: tuple[str, ...] = ()
    """Document updates that took effect: kind, handler and marker."""
    late: tuple[Put | Publish, ...] = ()
    """Operations whose answer was lost and that may still land."""
    passed: int = 0
    """Times that `AGE_MS` has passed."""
    ticks: int = 0
    """Times that `TICK_MS` has passed."""
    ends: tuple[int, int] = (0, 0)
    """Messages of each log that were published, where logs grow."""
    held: tuple[tuple[int, int], ...] = ()
    """What the logs held at each tick: where they grow, and time passes."""
    ticks_max: int = 0
    """Times that it may pass: what a dead letter holds up waits for ever."""
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
    """Times that topic B may still be deleted and created again."""
    b_begins: int = 0
    """Number of its messages that were in logs of B before this one."""

    def place_of(self, log: int, number: int) -> Position:
        """Position of the message with this number: B, when it is created again, begins at offset 0 in another log."""
        if log == 1 and self.b_begins:
            return Position(TOPICS[log], 0, number - self.b_begins, f"after {self.b_begins}")
        return Position(TOPICS[log], 0, number)

    def version_of(self, collection: str, key: str) -> int:
        """Version of a document; 0 if there is none."""
        if (collection, key) == PROGRESS:
            return self.progress
        if (collection, key) == STOCK:
            return self.stock
        return next((version for where, version in self.rest if where == (collection, key)), 0)

    def keeping(self, collection: str, key: str, version: int) -> "State":
        """State with another version of one of the other documents; 0: it is removed."""
        others = (known for known in self.rest if known[0] != (collection, key))
        new = ((collection, key), version)
        return self._replace(rest=tuple(sorted((*others, new) if version else others)))

    def with_worker(self, w: int, worker: Worker, **changes: Any) -> "State":
        """State with one worker changed, and whatever else."""
        workers = (worker, self.workers[1]) if w == 0 else (self.workers[0], worker)
        if not changes:  # as it is nearly always: `_replace` looks at the name of each field
            return State._make((workers, *self[1:]))
        return self._replace(workers=workers, **changes)

    def saying(self, publish: Publish) -> "State":
        """State with these records in the log. A letter about a compensation that is tried again is in the log, and
        recorded nowhere."""
        published, wakes = find_published(publish)
        new = [i for i in published if i not in self.out]
        if not new and not wakes:
            return self
        return self._replace(out=(*self.out, *dict.fromkeys(new)), wakes=(*self.wakes, *wakes))


Move: TypeAlias = tuple[str, State]


def with_number(numbers: Three, log: int, number: int) -> Three:
    """The numbers with another one for this log."""
    changed = [*numbers[:log], number, *numbers[log + 1 :]]
    return changed[0], changed[1], changed[2]


def is_wake(record: Outgoing) -> bool:
    """True for a record on a topic of wakes."""
    return record.topic in _WAKES


@lru_cache(maxsize=10_000)  # a search publishes the same few records in most of its states
def find_published(publish: Publish) -> tuple[tuple[str, ...], tuple[SagaTimer, ...]]:
    """Ids of what the records tell for good, and the wakes among them."""
    records = [r for r in publish.records if all(name != "dead_undoes" for name, _ in r.headers)]
    wakes = [parse_timer(Record(r.topic, 0, 0, r.key, r.value, r.headers, 0)) for r in records if is_wake(r)]
    return tuple(i for i in map(id_of, records) if not i.startswith("wake-")), tuple(wakes)


@lru_cache(maxsize=10_000)
def names_of(publish: Publish) -> str:
    """Ids of the records, as a trace has them."""
    return ", ".join(map(id_of, publish.records))


def id_of(record: Outgoing) -> str:
    """Id of a record: of the dead letter, or of the event."""
    headers = texts_of(record.headers)
    return headers.get("dead_id", headers["ce_id"])


def applied(content: bytes) -> set[str]:
    """Updates that took effect in a document, as far as its markers tell."""
    if not content:
        return set()
    markers = msgspec.json.decode(content).get("_saga", {}).get("markers", {})
    effective = {key: m for key, m in markers.items() if not m.get("answer") and not m.get("never")}
    return {f"{m['kind']}:{m['handler']}:{key}" for key, m in effective.items()}
