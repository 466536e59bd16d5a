"""States of older versions of a service, as this version has them.

Nothing is written here. A run is shown the state migrated, and its end is written with all of the migrated state and
its version, in one compare-and-swap: so a migration is made once, however often it was computed.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from saga.declarations.values import Migration
from saga.encryption.sensitive_fields import collect_texts, find_marks, mark, redact_text, unwrap_marked
from saga.engine.prepared_service import PreparedService
from saga.engine.recorded_values import fields_of
from saga.errors import SagaError
from saga.progress.document import SagaProgress, compute_format


def shown(service: PreparedService, state: dict[str, Any], version: int, saga: str) -> dict[str, Any]:
    """Fields of the state that a run is shown: that on which it began, opened, as it is recorded now. Raises
    `SagaError`."""
    return fields_now(service, state, version, saga)


def fields_now(service: PreparedService, fields: dict[str, Any], version: int, saga: str) -> dict[str, Any]:
    """Fields of a state that was recorded in this version, as they are recorded now. Raises `SagaError`: the lane
    waits, and people are told."""
    for migration in service.migrations[version - 1 :]:
        try:
            fields = _moved(migration, fields)
        except Exception as why:
            words = redact_text(f"{type(why).__name__}: {why}", _secrets(migration, fields))
            raise SagaError(
                f"the state of saga {saga!r} cannot be migrated from version {migration.version}, by "
                f"{service.name}.{migration.name}: {words}; mend it and deploy, or roll back: nothing of it is written"
            ) from why
    return fields


def _moved(migration: Migration, fields: Mapping[str, Any]) -> dict[str, Any]:
    made = migration.function(msgspec.convert(unwrap_marked(dict(fields)), migration.takes, strict=False))
    if type(made) is not migration.gives:
        raise TypeError(f"it returned {made!r}, and is to return a {migration.gives.__name__}")
    marks = find_marks(migration.gives)
    written: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields_of(made)))
    if msgspec.convert(written, migration.gives, strict=False) != made:
        shown = repr(made) if marks is None else f"a {migration.gives.__name__}"
        raise ValueError(f"it returned {shown}, which is not the same when it is read back")
    return written if marks is None else marks.changed(made, written, mark)


def _secrets(migration: Migration, fields: Mapping[str, Any]) -> list[str]:
    """Texts of a state of before that its migration may quote."""
    marks = find_marks(migration.takes)
    with suppress(msgspec.ValidationError):
        return (
            []
            if marks is None
            else marks.texts(msgspec.convert(unwrap_marked(dict(fields)), migration.takes, strict=False))
        )
    return list(collect_texts(unwrap_marked(dict(fields))))


def migrated(
    service: PreparedService,
    p: SagaProgress,
    delta: dict[str, Any],
    older: Mapping[str, Any],
    close: Callable[[Any], Any],
) -> tuple[SagaProgress, dict[str, Any]]:
    """Progress with its state in the version of now, and what a run changed of that: of a state of before all of it.
    `older`: that state, opened; `close`: seals what is sensitive of the new one. Raises `SagaError`."""
    if p.version == service.version:
        return p, delta
    state = close(fields_now(service, dict(older), p.version, p.saga))
    p = replace(
        p, state=state, version=service.version, format=compute_format(p.pages, p.deadlines, p.later, service.version)
    )
    return p, {**state, **delta}
