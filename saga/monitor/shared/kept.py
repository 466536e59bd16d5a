"""Transition as the table of a shared monitor keeps it: all that folds make use of, without ids and hashes.

Folds know no order and count nothing twice, so a table is folded again by telling it all that was kept.
"""

import msgspec
from msgspec import Struct

from saga.errors import BadInput
from saga.messaging.transition_events import Awaited, Cause, Result, Said, Told
from saga.monitor.folds import TYPES_MAX, bounded, cut, standing_of
from saga.monitor.known import UNSEEN_MS, Goes, Packed, Standing
from saga.support.clock import LATEST_MS, iso


class Names(Struct, frozen=True, array_like=True, gc=False):
    """Names, of many the first."""

    first: tuple[str, ...]
    more: int = 0
    """Number of those that are left out."""


class Waiting(Struct, frozen=True, array_like=True, gc=False):
    """Handler that waits, and for what."""

    handler: str
    types: Names
    until_ms: int = 0
    """Time at which it goes on by itself; 0: it does not."""


class Kept(Struct, frozen=True, array_like=True, gc=False):
    """Transition as it is kept, under its service, saga and number."""

    time_ms: int
    handler: str
    outcome: str
    type: str
    source: str
    topic: str | None
    partition: int | None
    attempt: int
    worker: str
    emitted: Names
    steps: Names
    error: str
    queued_ms: int | None
    handler_ms: int | None
    open: bool
    due_ms: int
    """Time at which the saga goes on by itself here; 0: no time is set."""
    goes: Goes
    """Kind of what happens then."""
    awaits: tuple[Waiting, ...]
    result: Result | None
    anew: str | None
    parked: bool
    """True if an attempt is to come, before or after that time."""
    is_code: bool = False
    """True for a failure of the service's own code."""

    def told(self, key: "Key") -> Told:
        """Tell it again."""
        due = iso(self.due_ms) if self.due_ms else None
        return Told(
            service=key.service,
            saga=key.saga,
            number=key.number,
            time=iso(self.time_ms),
            handler=self.handler,
            outcome=self.outcome,
            error=self.error or None,
            blame="code" if self.is_code else None,
            message=Cause(id="", type=self.type, source=self.source, topic=self.topic, partition=self.partition),
            attempt=self.attempt,
            worker=self.worker,
            emitted=tuple(Said(id="", type=type_) for type_ in _all(self.emitted)),
            steps=_all(self.steps),
            queued_ms=self.queued_ms,
            handler_ms=self.handler_ms,
            open=self.open,
            awaits=tuple(
                Awaited(
                    handler=each.handler,
                    types=_all(each.types),
                    until=iso(each.until_ms) if each.until_ms else None,
                )
                for each in self.awaits
            ),
            parked_until=due if self.goes == "attempt" else iso(LATEST_MS) if self.parked else None,
            due=due if self.goes == "deadline" else None,
            result=self.result,
            anew=self.anew,
            hash="",
            previous="",
        )


class Key(Struct, frozen=True, array_like=True, gc=False):
    """Key of a transition in the table."""

    partition: int
    """Partition of the topic of transitions, and of the table's changes."""
    service: str
    number: int
    saga: str


_key_decoder = msgspec.json.Decoder(Key)
_decoder = msgspec.msgpack.Decoder(Kept)


def encoded_key(key: Key) -> bytes:
    """Key as bytes: text that people can read."""
    return msgspec.json.encode(key)


def encoded(kept: Kept) -> bytes:
    """Transition as bytes."""
    return msgspec.msgpack.encode(kept)


def decoded_key(content: bytes) -> Key:
    """Key out of bytes. Raises `BadInput`: anybody may write to the topic of changes."""
    try:
        return _key_decoder.decode(content)
    except (msgspec.DecodeError, UnicodeError) as why:
        raise BadInput(f"it is no key of a transition: {why}") from why


def decoded(content: bytes) -> Kept:
    """Transition out of bytes. Raises `BadInput`."""
    try:
        return _decoder.decode(content)
    except (msgspec.DecodeError, UnicodeError) as why:
        raise BadInput(f"it is no kept transition: {why}") from why


def kept_of(told: Told, packed: Packed | None, standing: Standing | None, appended_ms: int) -> Kept:
    """Transition as it is kept. `packed`, `standing`: what folds know of it, from all times that it was told: how long
    it took, and the last word of its service; `None` if they have no more than this telling."""
    said = standing_of(told, 0) if standing is None else standing
    queued_ms, handler_ms = told.queued_ms, told.handler_ms
    time_ms = bounded(told.time, appended_ms)
    if packed is not None:
        time_ms, queued_ms, handler_ms = packed.time_ms, _seen(packed.queued_ms), _seen(packed.handler_ms)
    return Kept(
        time_ms=time_ms,
        handler=cut(told.handler),
        outcome=cut(told.outcome),
        type=cut(told.message.type),
        source=cut(told.message.source),
        topic=None if told.message.topic is None else cut(told.message.topic),
        partition=told.message.partition,
        attempt=min(told.attempt, 0xFFFF),
        worker=cut(told.worker),
        emitted=_names(tuple(each.type for each in told.emitted)),
        steps=_names(told.steps),
        error=cut(told.error or ""),
        queued_ms=queued_ms,
        handler_ms=handler_ms,
        open=said.open,
        due_ms=said.due_ms,
        goes=said.goes,
        awaits=_waiting(told, said) if standing is None else _waiting_of(standing),
        result=told.result,
        anew=told.anew,
        parked=told.parked_until is not None,
        is_code=told.blame == "code",
    )


def _waiting(told: Told, said: Standing) -> tuple[Waiting, ...]:
    pairs = zip(told.awaits, said.awaits, strict=False)
    return tuple(Waiting(cut(each.handler), _names(each.types), known.until_ms) for each, known in pairs)


def _waiting_of(standing: Standing) -> tuple[Waiting, ...]:
    """Handlers that wait by the last word: of types that are too many the last name says how many more."""
    waiting = []
    for handler, types, until_ms in standing.awaits:
        more = int(types[-1].split()[1]) if len(types) > TYPES_MAX else 0
        waiting.append(Waiting(handler, Names(types[:TYPES_MAX], more), until_ms))
    return tuple(waiting)


def _names(names: tuple[str, ...]) -> Names:
    return Names(tuple(map(cut, names[:TYPES_MAX])), max(0, len(names) - TYPES_MAX))


def _all(names: Names) -> tuple[str, ...]:
    """Names again, as many as there were: of those that were left out only the number matters."""
    return names.first + ("",) * min(names.more, 1 << 20)


def _seen(ms: int) -> int | None:
    return None if ms == UNSEEN_MS else ms
