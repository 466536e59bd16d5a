"""Encode the values that a run records as JSON: state, arguments, results and answers of steps. Also migrate older
states."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import blake2b
from itertools import chain
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from saga.declarations.annotations import parameter_type_at, spell
from saga.declarations.resources import check_recorded, find_declared_error
from saga.declarations.values import Migration
from saga.encryption.sensitive_fields import HIDDEN, collect_texts, find_marks, mark, redact_text, unwrap_marked
from saga.engine.prepared_service import PreparedService
from saga.errors import Permanent, SagaError
from saga.progress.document import UNENCODABLE, SagaProgress, StepRecord, compute_format

_encoder = msgspec.json.Encoder(order="deterministic")


def fields_of(state: Any) -> dict[str, Any]:
    """Return all fields of a state in the form in which they are recorded.

    This is necessary because msgspec leaves out fields with their default value in an object that it created itself:
    the object's `__dict__` does not contain them.
    """
    values: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    if len(values) < len(state.__dataclass_fields__):
        for field in fields(state):
            if field.name not in values:
                values[field.name] = msgspec.to_builtins(getattr(state, field.name), str_keys=True)
    return values


def changed_fields(before: Mapping[str, Any], state: Any, read: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return the changed fields of a state in the form in which they are recorded. `read`: converts recorded fields to
    a state.

    Raises `Permanent` for a field that would change when it is recorded and read back.
    """
    changed = {name: value for name, value in fields_of(state).items() if before[name] != value}
    if not changed:
        return {}
    written = {n: msgspec.json.decode(encode_recorded(value, n, "saga.state's")) for n, value in changed.items()}
    try:
        again = read(written)
    except (msgspec.ValidationError, TypeError, ValueError):
        again = None
    for name in changed:
        if again is None or getattr(again, name) != getattr(state, name):
            raise Permanent(
                f"saga.state's {name!r} cannot be recorded: {getattr(state, name)!r} is not the same when it is read "
                "back"
            )
    return written


def encode_recorded(value: object, name: str, what: str, type_: Any = None) -> Raw:
    """Encode a value for the record. The type `type_` determines which parts of it are sensitive.

    Raises `Permanent` if the value cannot be encoded.
    """
    try:
        if type_ is not None and (marks := find_marks(type_)) is not None:
            return Raw(_encoder.encode(marks.change(value, msgspec.json.decode(_encoder.encode(value)), mark)))
        return Raw(_encoder.encode(value))
    except UNENCODABLE as why:
        raise Permanent(f"{what} {name!r} cannot be recorded: {why}; return plain values or dataclasses") from why


def record_answer(asked: StepRecord, why: Exception, answers: tuple[type[Exception], ...]) -> StepRecord:
    """Record a declared exception as the answer to a call. Raises `Permanent` if its arguments cannot be encoded."""
    answer = find_declared_error(why, answers)
    value = encode_recorded(why.args, asked.name, "the answer of")
    check_recorded(answer, why, value, asked.name)
    return replace(asked, answer=answer.__name__, value=value)


def replay_result(handler: str, call: StepRecord, type_: Any, answers: tuple[type[Exception], ...]) -> Any:
    """Return a recorded result, or raise a recorded exception. Raises `Permanent` if this version cannot read it."""
    if call.answer is not None:
        for answer in answers:
            if answer.__name__ == call.answer:
                raise _rebuild_answer(answer, call)
        raise Permanent(
            f"{handler} recorded that {call.name!r} answered {call.answer}, which is in no expected_errors=(...) "
            "any more: put it back until no saga is open"
        )
    if call.by is not None:
        call = replace(call, value=Raw(_encoder.encode(unwrap_marked(msgspec.json.decode(call.value)))))
    try:
        if find_marks(type_) is not None:
            return msgspec.convert(unwrap_marked(msgspec.json.decode(call.value)), type_, strict=False)
        return msgspec.json.decode(call.value, type=type_)
    except (msgspec.ValidationError, TypeError) as why:
        if call.by is not None:
            raise Permanent(
                f"what {call.name!r} gave, as {call.by} says, is no {spell(type_)}: {why}; answer it with one: "
                "saga dead resolve"
            ) from why
        raise Permanent(
            f"the recorded result of {call.name!r} cannot be given back as {type_}: {why}; "
            "annotate what it returns with a type that can be recorded and read back"
        ) from why


def _rebuild_answer(answer: type[Exception], call: StepRecord) -> Exception:
    """Rebuild the recorded exception with which a call answered. Raises `Permanent` if the recorded arguments do not
    fit."""
    try:
        return answer(*msgspec.json.decode(call.value))
    except Exception as why:  # an `__init__` of the service may raise anything
        by = "" if call.by is None else f", as {call.by} says,"
        raise Permanent(
            f"the recorded answer {call.answer} of {call.name!r}{by} cannot be created from its arguments: "
            f"{type(why).__name__}: {why}; give those that it takes: saga dead resolve"
        ) from why


def identify_call(call: StepRecord) -> tuple[str, str, int]:
    """Return the key that identifies a call of a run, independent of its arguments."""
    return call.kind, call.name, call.number


def list_answerable_calls(calls: Iterable[StepRecord]) -> tuple[tuple[str, int], ...]:
    """Return name and number of each call that an operator may answer.

    Updates are left out, because the result of an update is in its document.
    """
    return tuple(dict.fromkeys((call.name, call.number) for call in calls if call.kind != "update"))


OFF = Raw(b"false")
"""Recorded value of a flag that is off."""
_FLAG = "flag "


def flag_named(name: str) -> str:
    """Return the name under which a read of this flag is recorded. No collection has such a name."""
    return _FLAG + name


def is_flag(call: StepRecord) -> bool:
    """Return True if the call reads a flag."""
    return call.kind == "read" and call.name.startswith(_FLAG)


def skip_flags(calls: Sequence[StepRecord], place: int, asked: StepRecord | None) -> int:
    """Return the index of the first call, at `place` or after it, that does not read a flag, or reads the flag that the
    run asks for. Return `len(calls)` if there is none. `asked`: call that the run asks for; `None` if there is none."""
    wanted = None if asked is None else identify_call(asked)
    while place < len(calls) and is_flag(calls[place]) and identify_call(calls[place]) != wanted:
        place += 1
    return place


# -------------------------------------------------------------------- state migration


def migrate_fields(service: PreparedService, fields: dict[str, Any], version: int, saga: str) -> dict[str, Any]:
    """Migrate the recorded fields of a state from an older version of the service to the current one.

    Nothing is written here. The end of the run writes the migrated state with its version, in one compare-and-swap, so
    a migration takes effect once, however often it is computed. Raises `SagaError` if a migration fails. The saga then
    waits, and the error is reported.
    """
    for migration in service.migrations[version - 1 :]:
        try:
            fields = _migrate_once(migration, fields)
        except Exception as why:
            words = redact_text(f"{type(why).__name__}: {why}", _secrets(migration, fields))
            raise SagaError(
                f"the state of saga {saga!r} cannot be migrated from version {migration.version}, by "
                f"{service.name}.{migration.name}: {words}; fix it and deploy, or roll back: nothing of it is written"
            ) from why
    return fields


def _migrate_once(migration: Migration, fields: Mapping[str, Any]) -> dict[str, Any]:
    made = migration.function(msgspec.convert(unwrap_marked(dict(fields)), migration.takes, strict=False))
    if type(made) is not migration.gives:
        raise TypeError(f"it returned {made!r}, and is to return a {migration.gives.__name__}")
    marks = find_marks(migration.gives)
    written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields_of(made)))
    if msgspec.convert(written, migration.gives, strict=False) != made:
        shown = repr(made) if marks is None else f"a {migration.gives.__name__}"
        raise ValueError(f"it returned {shown}, which is not the same when it is read back")
    return written if marks is None else marks.change(made, written, mark)


def _secrets(migration: Migration, fields: Mapping[str, Any]) -> list[str]:
    """Return the sensitive strings of an older state, which the errors of its migration may quote."""
    marks = find_marks(migration.takes)
    with suppress(msgspec.ValidationError):
        return (
            []
            if marks is None
            else marks.texts(msgspec.convert(unwrap_marked(dict(fields)), migration.takes, strict=False))
        )
    return list(collect_texts(unwrap_marked(dict(fields))))


def migrate_progress(
    service: PreparedService,
    p: SagaProgress,
    delta: dict[str, Any],
    older: Mapping[str, Any],
    close: Callable[[Any], Any],
) -> tuple[SagaProgress, dict[str, Any]]:
    """Return the progress with its state in the current version, and the fields that a run has changed.

    If the state was migrated, all fields count as changed. `older` is the previous state, decrypted; `close` encrypts
    the sensitive parts of the new state. Raises `SagaError`.
    """
    if p.version == service.version:
        return p, delta
    state = close(migrate_fields(service, dict(older), p.version, p.saga))
    p = replace(
        p,
        state=state,
        version=service.version,
        format=compute_format(p.segments, p.deadlines, p.suspended_runs, service.version),
    )
    return p, {**state, **delta}


# -------------------------------------------------------------------- arguments of calls


ARGUMENT_BYTES_MAX = 256
"""Maximum number of bytes of a call's arguments that are recorded for display. It is small because the intent is
rewritten before each call and contains the arguments of all calls."""

SCALARS = (str, bool, int, float, bytes, Decimal, UUID, datetime, date, time, timedelta, Enum)
"""Types of values that have no fields."""


def encode_arguments(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> bytes:
    """Encode arguments as JSON; equal arguments give equal bytes. Raises `Permanent` that names an argument which
    cannot be encoded."""
    try:
        return _encoder.encode((args, kwargs))
    except UNENCODABLE as why:
        for where, argument in (*enumerate(args, 1), *kwargs.items()):
            try:
                _encoder.encode(argument)
            except UNENCODABLE as its:
                raise Permanent(
                    f"argument {where} of {name!r} cannot be recorded: {its}; hand over plain values"
                ) from its
        raise Permanent(f"the arguments of {name!r} cannot be recorded: {why}; hand over plain values") from why


def digest_arguments(written: bytes) -> str:
    """Return a digest that shows whether a call is repeated with the same arguments."""
    return blake2b(written, digest_size=12).hexdigest()


def describe_arguments(
    call: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], *, first: int = 0
) -> str:
    """Format arguments as readable text.

    An argument whose annotation marks any part as sensitive is hidden. For an object only the class is named, because
    its fields may be marked or contain marked values. The text is empty if annotations cannot be read. `first`: number
    of the parameter that takes the first of `args`.

    >>> def charge(order: str, cents: int, *, note: str) -> None: ...
    >>> describe_arguments(charge, ("order-17", 4200), {"note": "tea"})
    '"order-17", 4200, note="tea"'
    """
    places = chain(
        ((str(n), "", value) for n, value in enumerate(args, first)), ((n, f"{n}=", v) for n, v in kwargs.items())
    )
    try:
        return ", ".join([lead + _show(value, parameter_type_at(call, place)) for place, lead, value in places])
    except Permanent:  # which arguments are sensitive is unknown
        return ""


def _show(value: object, type_: object) -> str:
    return _encoder.encode(_to_plain(value) if find_marks(type_) is None else HIDDEN).decode()


def _to_plain(value: object) -> object:
    """Return a value in which everything but scalars, lists, tuples, sets and dictionaries is replaced with the name of
    its class.

    An instance of a subclass of list counts as an object, because it may have fields.
    """
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return [_to_plain(part) for part in cast(Iterable[object], value)]
    if kind is dict:
        return {name: _to_plain(part) for name, part in cast(Mapping[object, object], value).items()}
    return value if value is None or isinstance(value, SCALARS) else f"<{kind.__name__}>"
