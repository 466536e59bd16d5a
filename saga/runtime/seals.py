"""Seals of one run: what it is handed is opened before, and what it records or says is sealed, each with the key of its
subject. Without keys nothing is sealed, and what others have sealed fails the attempt: it is tried again later."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from saga.contracts import sealing
from saga.contracts.codec import MARKER
from saga.contracts.library import Library, binding_of
from saga.errors import BadInput, KeyMissing, Permanent
from saga.marks import MARK, replaced, unmarked
from saga.messages import Event, Message
from saga.progress.document import Call, Intent
from saga.progress.taking_back import TakeBack
from saga.runtime.foreign import WriterOf, single_object
from saga.runtime.participant import Participant
from saga.runtime.persistence import patiently
from saga.runtime.turn_state import TurnState
from saga.sealing.text import ERASED, OtherSecret, Unopened, is_sealed, name_in, names_in

if TYPE_CHECKING:
    from saga.sealing.keys import SubjectKey

_KEYED = "k"
"""Beginning of a digest that was made with a key: no other one has it."""
_encoder = msgspec.json.Encoder(order="deterministic")


class Seals:
    """Keys of one run."""

    own: "SubjectKey | None" = None
    """Key of whom the run is about; `None` without keys, and if that one was forgotten."""
    trouble: KeyMissing | Permanent | None = None
    """Reason that something which the run is handed cannot be opened."""

    def __init__(self, service: Participant, turn: TurnState) -> None:
        self._service, self._turn = service, turn
        self._known: dict[str, SubjectKey | None] = {}

    async def begin(self, handler: str, intent: Intent) -> None:
        """Get the keys for a run that is handed this. Raises `KeyMissing`, before a key is made for its subject: that
        would take the place of one that is missing."""
        library = self._service.schemas.library
        recorded = [msgspec.json.decode(call.value) for call in intent.calls if names_in(bytes(call.value))]
        await self._unlock(
            *({name_in(found[1])} for part in intent.parts if (found := sealing.parted(part.value)) is not None),
            _sealed_in([intent.state, *recorded]),
        )
        parts = [self._whole(part) for part in intent.parts]  # its sender may have sealed fields in it
        writer_of = self._service.schemas.writers.get
        await self._unlock(*(sealing.names_in(_readable(part, library, writer_of), library) for part in parts))
        if (keys := self._service.ports.keys) is not None:
            subject = self._subject_of(handler, parts)
            self.own = await self._patiently(keys.of_subject, subject)

    def _whole(self, part: Message) -> Message:
        """A message that was sealed as a whole as it came; one that was not, or is not to be opened here, as it is."""
        with suppress(BadInput):  # who is handed it says so
            value = sealing.opened_whole(part.value, part.type, part.saga, self._known.__getitem__)
            return part if value is part.value else replace(part, value=value)
        return part

    def _subject_of(self, handler: str, parts: Sequence[Message]) -> str:
        """Subject of the first message that has sensitive fields; else the saga."""
        for part in parts:
            if part.type in self._service.sensitive:
                try:
                    return sealing.subject_of(self._service.decode(handler, part))
                except (BadInput, KeyError, KeyMissing):  # the run will say so, or it takes the place of another one
                    break
        return self._turn.message.saga

    async def _unlock(self, *names: set[str]) -> None:
        """Get the keys of these names. Raises `KeyMissing`."""
        for name in sorted(set[str]().union(*names) - self._known.keys()):
            if (keys := self._service.ports.keys) is None:
                raise KeyMissing(sealing.NO_KEYS)
            self._known[name] = await self._patiently(keys.named, name)

    async def _patiently(self, ask: Any, what: str) -> "SubjectKey | None":
        found: SubjectKey | None = await patiently(self._service, self._turn.position, "get a key", ask, what)
        return found

    # ------------------------------------------------------------ messages

    def opened_parts(self, parts: Sequence[Message]) -> Sequence[Message]:
        """Messages with their sealed fields opened. Raises `BadInput`, and why there is a key missing for the run."""
        if self.trouble is not None:
            raise self.trouble
        return [self._opened(part) for part in parts] if self._known else parts

    def _opened(self, part: Message) -> Message:
        if not names_in(part.value):
            return part
        library, keys = self._service.schemas.library, self._known.__getitem__
        part = replace(part, value=sealing.opened_whole(part.value, part.type, part.saga, keys))
        value = _readable(part, library, self._service.schemas.writers.get)
        if value[:2] == MARKER:
            value = sealing.opened(value, library, part.saga, keys)
        return replace(part, value=value)

    async def sealed(self, event: Event, type_: str, schema: str, value: bytes) -> tuple[str, str, bytes]:
        """Event as it goes out. Raises `Permanent` for one that is too large by that."""
        keys = self._service.ports.keys
        if keys is not None and type_ in self._service.sensitive:
            key = await self._patiently(keys.of_subject, sealing.subject_of(event))
            value = sealing.sealed(value, binding_of(type(event)).version, self._turn.message.saga, key)
            self._service.check_size(type_, value)
        return type_, schema, value

    # ------------------------------------------------------------ digests

    def digest(self, plain: str) -> str:
        """Digest of arguments as it is recorded: with keys nobody can find out by trying what was digested."""
        if self.own is None:
            return plain
        return _KEYED + blake2b(plain.encode(), key=self.own.digest, digest_size=12).hexdigest()

    def may_be_same(self, plain: str, expected: str) -> bool:
        """Return whether a digest that was recorded with other keys, or without, may be of these arguments. One of
        which the key is gone may be of any."""
        return self.own is None if expected.startswith(_KEYED) else plain == expected

    # ------------------------------------------------------------ what is recorded

    @property
    def _place(self) -> str:
        return f"{self._service.name}|{self._turn.message.saga}"

    def close(self, recorded: Any) -> Any:
        """Recorded value in which what is marked is sealed."""
        if self._service.ports.keys is None:
            return recorded
        return replaced(recorded, self._closed)

    def _closed(self, value: Any) -> Any:
        if is_sealed(value) or self.own is None:
            return {MARK: value if is_sealed(value) else ERASED}
        return {MARK: self.own.seal(_encoder.encode(value), self._place)}

    def reveal(self, recorded: Any) -> Any:
        """Recorded value with its marks, in which what is sealed is opened; what was erased reads `erased`. `_unlock`
        goes before."""
        return replaced(recorded, self._revealed)

    def _revealed(self, value: Any) -> Any:
        if not is_sealed(value):
            return {MARK: value}
        key = self._known[name_in(value)]
        if key is None:
            return {MARK: ERASED}
        try:
            return {MARK: msgspec.json.decode(key.open(value, self._place))}
        except OtherSecret:
            raise KeyMissing(f"a recorded value: {sealing.OTHER_SECRET}") from None
        except Unopened:
            raise Permanent("a recorded value was sealed for another service or saga, or changed since") from None

    def closed_raw(self, value: Raw) -> Raw:
        """The same of JSON."""
        if self._service.ports.keys is None or f'"{MARK}"'.encode() not in bytes(value):
            return value
        return Raw(_encoder.encode(self.close(msgspec.json.decode(value))))

    async def revealed_raw(self, value: Raw) -> Raw:
        """The same of JSON, with its keys."""
        if not names_in(bytes(value)):
            return value
        recorded = msgspec.json.decode(value)
        await self._unlock(_sealed_in(recorded))
        return Raw(_encoder.encode(self.reveal(recorded)))

    def closed_taking_back(self, said: TakeBack) -> TakeBack:
        """A call that takes a run back, with its marked arguments sealed."""
        named = {name: self.closed_raw(value) for name, value in said.named.items()}
        return replace(said, args=tuple(map(self.closed_raw, said.args)), named=named)

    async def revealed_call(self, call: Call) -> Call:
        """A call with its answer opened."""
        value = await self.revealed_raw(call.value)
        return call if value is call.value else replace(call, value=value)

    async def revealed_taking_back(self, said: TakeBack) -> TakeBack:
        """A call that takes a run back, with its arguments opened."""
        args = tuple([await self.revealed_raw(value) for value in said.args])
        named = {name: await self.revealed_raw(value) for name, value in said.named.items()}
        return replace(said, args=args, named=named)

    async def revealed_state(self, fields: Mapping[str, Any], version: int) -> dict[str, Any]:
        """Fields of a state of that version, opened. A field that cannot read `erased` has its default."""
        await self._unlock(_sealed_in(fields))  # of a state that is migrated nobody has asked before
        if not self._known:
            return dict(fields)
        older = self._service.migrations[version - 1 : version]
        kind = older[0].takes if older else self._service.state
        shown = {name: self.reveal(value) for name, value in fields.items()}
        return {name: value for name, value in shown.items() if _fits(name, value, kind)}


def _readable(part: Message, library: Library, writer_of: WriterOf) -> bytes:
    """Value of a message as a single object: by now there may be a version as which it can be read. As it is, if there
    is none."""
    try:
        return single_object(part, library, writer_of)
    except BadInput:
        return part.value


def _sealed_in(recorded: Any) -> set[str]:
    """Names of the keys of what is sealed in a recorded value. What is not marked is nobody's to open, whatever it
    looks like."""
    names = set[str]()
    replaced(recorded, lambda value: names.add(name_in(value)) if is_sealed(value) else None)
    return names


def _fits(name: str, value: Any, kind: Any) -> bool:
    """Return whether a state, in which all others have their default, can have this field."""
    try:
        msgspec.convert({name: unmarked(value)}, kind, strict=False)
    except msgspec.ValidationError:
        return False
    return True
