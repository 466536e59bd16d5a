"""Update business documents exactly once for each cause, without a transaction.

The marker in the document records the update. docs/concepts/protocol.md, "Business documents", explains which loss each
read and write here prevents.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

from saga.contracts.schema import is_text
from saga.declarations.annotations import accepts_none, return_type_of, spell, split_union
from saga.declarations.resources import check_recorded, find_declared_error
from saga.declarations.values import DocumentKind
from saga.encryption.sensitive_fields import find_marks
from saga.engine.errors import Superseded, wrap_base_exception
from saga.engine.persistence.outbox import report_refused_write, retry_while_unavailable
from saga.engine.recorded_values import encode_recorded
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, Conflict, Exists, Permanent, SagaError, StoreError, TooLarge
from saga.messages import Position
from saga.messaging.names import PROGRESS
from saga.progress.document import UNENCODABLE, UNREADABLE, IntentKind, RunKey, progress_key
from saga.store.port import Document

T = TypeVar("T")

PRUNE_FROM = 64
"""With more markers than this in a document, an update first drops those that are no longer needed."""
MARKERS_MAX = 1000
"""Maximum number of markers of open runs in a document. Beyond it, a new update fails and is retried."""
PAUSE_S = 0.002
PAUSE_S_MAX = 0.1


class Marker(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of an update that was made or refused, or that will never be made."""

    saga: str
    handler: str
    kind: IntentKind
    cause: str
    value: Raw = Raw(b"null")
    answer: str | None = None
    """Class name of the declared exception with which the function refused; `value` then holds the exception's
    arguments."""
    never: bool = False


class Head(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The field `_saga` of a document, which contains the markers."""

    markers: dict[str, Marker]
    absent: bool = False
    """True if the document consists only of markers: for the service it does not exist."""


class _Headed(Struct):
    head: Head = msgspec.field(name="_saga", default=Head(markers={}))


class _OpenIntent(Struct):
    handler: str
    kind: IntentKind
    cause: str


class _Open(Struct):
    """The part of a progress that shows which runs are open."""

    intents: tuple[_OpenIntent, ...] = ()


_headed = msgspec.json.Decoder(_Headed)
_open = msgspec.json.Decoder(_Open)
_fields = msgspec.json.Decoder(dict[str, Raw])


def _as_it_is(value: Raw) -> Raw:
    return value


class DocumentUpdate(Struct, frozen=True, kw_only=True):
    """An update of a business document by a run."""

    declared: DocumentKind
    key: str
    marker: str
    saga: str
    run: RunKey
    change: Callable[..., Any]
    args: Sequence[object]
    kwargs: Mapping[str, object]
    until_s: float
    """Monotonic time until which the write is retried if others keep changing the document."""
    seen: list[tuple[Any, object]] = []
    """Values with sensitive parts that the run has read or received, each with its type."""
    close: Callable[[Raw], Raw] = _as_it_is
    """Function that encrypts the marked parts of JSON."""


def result_of(change: Callable[..., object], kind: type) -> Any:
    """Return the type of an update's result: the part of the return annotation after the document. `Self` means the
    class of the document."""
    for option in split_union(return_type_of(change)):
        if get_origin(option) is tuple and len(get_args(option)) == 2:
            result = get_args(option)[1]
            return kind if result is Self else result
    return None


def as_kind(content: bytes, kind: type[T]) -> T | None:
    """Return a stored document as the service's class; `None` if it contains only markers. For tools and tests."""
    return None if _headed.decode(content).head.absent else msgspec.json.decode(content, type=kind)


def check_key(kind: type, key: object) -> None:
    """Raise `Permanent` if this cannot be the key of a document. A store would refuse the write each time, and the saga
    would wait for it for ever."""
    if not isinstance(key, str) or not key or not is_text(key):
        raise Permanent(
            f"{key!r} was given as the key of a {kind.__name__}: the keys of documents are strings of at least one "
            "character, which UTF-8 can encode; look for the field of the event that it came from"
        )


async def read(service: ServiceRuntime, position: Position, declared: DocumentKind, key: str) -> Any:
    """Read the current document; `None` if there is none."""
    document = await retry_while_unavailable(
        service, position, "get", service.ports.store.get, declared.collection, key
    )
    return _decode_body(declared, key, document, _decode_head(declared.collection, key, document))


async def apply(service: ServiceRuntime, position: Position, update: DocumentUpdate) -> Marker:
    """Apply an update, unless it was applied before. Return the update's marker in both cases.

    Concurrent updates of one document in this process are combined into one write. Raises the update's own error:
    `Superseded` if the run is no longer open, or `Permanent`, for example if the document does not exist or would
    become too large.
    """
    made = await service.ports.batch(
        f"{update.declared.collection}/{update.key}",
        update,
        lambda updates: apply_together(service, position, updates),
    )
    if isinstance(made, BaseException):
        raise made
    return made


async def apply_together(
    service: ServiceRuntime, position: Position, updates: Sequence[DocumentUpdate]
) -> Sequence[Marker | Exception | Superseded]:
    """Apply these updates of one document. Returns the marker or the exception of each."""
    collection, key = updates[0].declared.collection, updates[0].key
    store, pause_s, refused = service.ports.store, PAUSE_S, False
    while True:
        document = await retry_while_unavailable(service, position, "get", store.get, collection, key)
        head = _decode_head(collection, key, document)
        body = _decode_body(updates[0].declared, key, document, head)
        made: list[Marker | Exception | Superseded] = []
        new: dict[str, Marker] = {}
        written = None if document is None or head.absent else document.content
        is_changed = False
        for update in updates:
            # A function may change a mapping in place and then refuse: the other updates must not see that change.
            before = written if len(updates) > 1 else None
            known = head.markers.get(update.marker)
            # Checked after the document was read: a worker that has lost its intent since must not replace it.
            if refused and known is None and service.ports.clock.monotonic_s() >= update.until_s:
                made.append(_too_hot(update))
            elif known is None and (refusal := await _refusal(service, position, update)) is not None:
                made.append(refusal)
            elif known is not None:
                made.append(Superseded() if known.never else known)
            else:
                try:
                    marker, after = _change(update, body)
                    changed = None if after is None else _encode_body(update, after)
                except Exception as why:  # noqa: BLE001 - the function is the service's own; its failure is this update's
                    made.append(why)
                    body = _restore(update.declared, before, body)
                    continue
                new[update.marker] = marker
                made.append(marker)
                if changed is None:
                    body = _restore(update.declared, before, body)
                else:
                    written, body = changed
                    is_changed = True
        if not new:
            return made
        markers = {**await _drop_old_markers(service, position, head.markers), **new}
        head = Head(markers=markers, absent=head.absent and not is_changed)
        try:
            content = _encode_document(document, written if is_changed else None, head)
            if await _put(service, position, collection, key, document, content):
                return made
        except TooLarge as why:
            if len(updates) == 1:
                return [_cannot_grow(collection, key, why)]
            # One of them may be at fault: the others continue without it.
            return [(await apply_together(service, position, [update]))[0] for update in updates]
        refused = True
        await service.ports.assignment.pause(pause_s * service.ports.clock.chance(), position)
        pause_s = min(pause_s * 2, PAUSE_S_MAX)


def _too_hot(update: DocumentUpdate) -> TimeoutError:
    return TimeoutError(
        f"document {update.key!r} of {update.declared.collection!r} was changed by others, each time it was to be "
        "replaced, until the handler's timeout: it is too hot"
    )


async def withdraw(
    service: ServiceRuntime, position: Position, collection: str, key: str, marker: str, mark: Marker
) -> Marker:
    """Add the marker `mark` to the document: it says that an update will never be made, because the update's intent is
    about to be closed. Return `mark` or, if the update was made already, the marker of the update.

    Raises `Permanent` if the document cannot be read, or has no room for the marker.
    """
    store, pause_s = service.ports.store, PAUSE_S
    while True:
        document = await retry_while_unavailable(service, position, "get", store.get, collection, key)
        head = _decode_head(collection, key, document)
        if marker in head.markers:
            return head.markers[marker]
        absent = document is None or head.absent
        markers = {**head.markers, marker: mark}
        content = _encode_document(document, None, Head(markers=markers, absent=absent))
        try:
            if await _put(service, position, collection, key, document, content):
                return mark
        except TooLarge as why:
            raise _cannot_grow(collection, key, why) from why
        await service.ports.assignment.pause(pause_s * service.ports.clock.chance(), position)
        pause_s = min(pause_s * 2, PAUSE_S_MAX)


def _cannot_grow(collection: str, key: str, why: TooLarge) -> Permanent:
    """Make the error of a write that would make its document larger than the store accepts."""
    return Permanent(
        f"document {key!r} of {collection!r} would be too large: {why}; let it hold less, or split it into several"
    )


def _decode_head(collection: str, key: str, document: Document | None) -> Head:
    if document is None:
        return Head(markers={}, absent=True)
    try:
        return _headed.decode(document.content).head
    except UNREADABLE as why:
        raise Permanent(
            f"document {key!r} of {collection!r} is no JSON object as the toolkit writes it: {why}"
        ) from why


def _decode_body(declared: DocumentKind, key: str, document: Document | None, head: Head) -> Any:
    """Decode the document as the service's class; `None` if there is none. Raises `Permanent` if it does not fit the
    class."""
    if document is None or head.absent:
        return None
    try:
        return msgspec.json.decode(document.content, type=declared.kind)
    except UNREADABLE as why:
        raise Permanent(
            f"document {key!r} of {declared.collection!r} is no {declared.kind.__name__}: {why}; "
            "give new fields a default, or repair the document"
        ) from why


def _change(update: DocumentUpdate, current: Any) -> tuple[Marker, Any]:
    """Call the update's function. Returns the marker and the new document, or `None` as the document if only the
    markers change."""
    kind, name = update.declared.kind, getattr(update.change, "__name__", "the function")
    run_kind, handler, cause = update.run
    marker = Marker(saga=update.saga, handler=handler, kind=run_kind, cause=cause)
    if find_marks(kind) is not None:
        update.seen.append((kind, current))
    if current is None and not accepts_none(update.change):
        raise Permanent(
            f"there is no document {update.key!r} in {update.declared.collection!r}: create it, "
            f"or let the first parameter of {name} be `{kind.__name__} | None`"
        )
    try:
        returned = update.change(current, *update.args, **update.kwargs)
    except update.declared.expected_errors as why:
        answer = find_declared_error(why, update.declared.expected_errors)
        refused = _with_value(marker, name, why.args, answer.__name__)
        check_recorded(answer, why, refused.value, name)
        return refused, None
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as why:  # else it would fail all that wait for this update, too
        raise wrap_base_exception(why, name) from why
    result: object = None
    if isinstance(returned, tuple) and len(returned) == 2:
        returned, result = returned
    if not isinstance(returned, kind):
        update.seen.append((kind, returned))
        raise Permanent(f"{name} returned {returned!r}: it must return a {kind.__name__}, or one and a result")
    type_ = result_of(update.change, kind)
    made = _with_value(marker, name, result, None, type_)
    if result is not type_:  # both are `None` where there is no result
        _check_result(made.value, name, type_)
    return msgspec.structs.replace(made, value=update.close(made.value)), returned


def _check_result(value: Raw, name: str, type_: Any) -> None:
    """Check that a result can be read again. Raises `Permanent` if it cannot: otherwise the document would be changed
    by a run that can never end."""
    try:
        if find_marks(type_) is None:
            msgspec.json.decode(value, type=type_)
    except (*UNREADABLE, TypeError) as why:
        raise Permanent(
            f"what {name!r} gives back is no {spell(type_)}: {why}; the document stays as it was; let the function "
            "give back what its annotation says"
        ) from why


def _encode_body(update: DocumentUpdate, after: Any) -> tuple[bytes, Any]:
    """Return the new document as JSON, and as it is read again.

    Raises `Permanent` if it cannot be written, or not be read again: every other saga would fail on it.
    """
    kind = update.declared.kind
    try:
        written = msgspec.json.encode(after)
        return written, msgspec.json.decode(written, type=kind)
    except UNENCODABLE as why:
        update.seen.append((kind, after))  # the error may quote one of its values
        name = getattr(update.change, "__name__", "the function")
        raise Permanent(
            f"the {kind.__name__} that {name} returned cannot be written and read again: {why}; give plain values of "
            "the types that its fields have"
        ) from why


def _restore(declared: DocumentKind, before: bytes | None, body: Any) -> Any:
    """Return the document as it was `before` an update, because the update's function may have changed it in place.

    `before` is `None` if only one update is made, or if there was no document: then nothing has to be restored.
    """
    return body if before is None else msgspec.json.decode(before, type=declared.kind)


def _with_value(marker: Marker, name: str, value: object, answer: str | None, type_: Any = None) -> Marker:
    if find_marks(type_) is not None:
        return msgspec.structs.replace(
            marker, value=encode_recorded(value, name, "what is given back by", type_), answer=answer
        )
    try:
        return msgspec.structs.replace(marker, value=Raw(msgspec.json.encode(value)), answer=answer)
    except UNENCODABLE as why:
        raise Permanent(f"what {name!r} gives back cannot be recorded: {why}; give plain values") from why


def _encode_document(document: Document | None, body: bytes | None, head: Head) -> bytes:
    """Encode the next version of a document; `body` is `None` if only the markers change.

    Fields that the service's class does not have are kept.
    """
    fields: dict[str, Any] = {} if document is None else dict(_fields.decode(document.content))
    if body is not None:
        fields |= _fields.decode(body)
    return msgspec.json.encode({**fields, "_saga": head})


async def _put(
    service: ServiceRuntime, position: Position, collection: str, key: str, document: Document | None, content: bytes
) -> bool:
    """Insert the document, or replace the version that was read. Returns True if this certainly succeeded.

    The document's expiry is kept, because it belongs to the application.
    """
    store = service.ports.store

    async def once() -> int:
        if document is None:
            return await store.insert(collection, key, content)
        return await store.replace(collection, key, content, cas=document.cas, keep_expiry=True)

    try:
        await retry_while_unavailable(service, position, "update", once)
    except (Conflict, Exists, Ambiguous) as why:
        report_refused_write(service, None, "update", why)
        return False
    return True


async def _refusal(
    service: ServiceRuntime, position: Position, update: DocumentUpdate
) -> StoreError | Superseded | None:
    """Return the error that prevents an update without a marker in the document: `Superseded` if its run is no longer
    open, `StoreError` if that cannot be determined. Return `None` if the update may be applied."""
    try:
        return None if await _is_open(service, position, update.saga, update.run) else Superseded()
    except StoreError as why:
        return why


async def _is_open(service: ServiceRuntime, position: Position, saga: str, run: RunKey) -> bool:
    """Return True if the run's intent is open in the current progress."""
    intents = await _load_intents(service, position, saga)
    if intents is None:
        raise StoreError(f"the progress of saga {saga!r} cannot be read any more: what it has begun is unknown")
    return any((i.kind, i.handler, i.cause) == run for i in intents)


async def _load_intents(service: ServiceRuntime, position: Position, saga: str) -> tuple[_OpenIntent, ...] | None:
    """Load the open intents of a saga; `None` if its progress cannot be read."""
    key = progress_key(service.name, saga)
    document = await retry_while_unavailable(service, position, "get", service.ports.store.get, PROGRESS, key)
    try:
        return () if document is None else _open.decode(document.content).intents
    except UNREADABLE:
        return None


async def _drop_old_markers(
    service: ServiceRuntime, position: Position, markers: Mapping[str, Marker]
) -> dict[str, Marker]:
    """Return the markers without those of closed runs, if there are many. Raises `SagaError` if too many belong to open
    runs.

    The open runs are read after the markers. So a marker of a run that has just begun is not dropped.
    """
    if len(markers) <= PRUNE_FROM:
        return dict(markers)
    open_ = {saga: await _load_intents(service, position, saga) for saga in sorted({m.saga for m in markers.values()})}
    needed = {key: m for key, m in markers.items() if _is_needed(m, open_[m.saga])}
    if len(needed) >= MARKERS_MAX:
        raise SagaError(f"{len(needed)} updates of one document are under way: it is too hot, or its sagas are stuck")
    return needed


def _is_needed(marker: Marker, intents: tuple[_OpenIntent, ...] | None) -> bool:
    """Return True if the marker's run may still be open. If its progress cannot be read, the marker stays."""
    return intents is None or any(i.cause == marker.cause for i in intents)
