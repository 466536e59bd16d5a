"""States as an older release of a service has left them: to try its migrations, and to begin a trial with."""

from typing import TYPE_CHECKING, Any

import msgspec
from typing_extensions import TypeVar

from saga.engine import recorded_values
from saga.engine.prepared_service import PreparedService, prepare
from saga.engine.recorded_values import fields_of
from saga.errors import SagaError
from saga.progress.document import SagaProgress, compute_format
from saga.service import Service
from saga.support.clock import iso

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_S = TypeVar("_S", bound="DataclassInstance | None", default=None)


def migrated(service: Service[_S], old: "DataclassInstance") -> _S:
    """Return the state that becomes of an old one: `assert migrated(order, OrderStateV1(9.8)) == OrderState(980)`.

    As in a running service: by all migrations from that version on, each result written and read back. Raises
    `SagaError` for a state that no migration takes, one that fails, or gives another result the second time.
    """
    prepared = prepare(service.declared)
    version, fields = recorded(prepared, old)
    once, again = (recorded_values.migrate_fields(prepared, fields, version, "a test") for _ in range(2))
    if once != again:
        raise SagaError(
            f"the migrations of {prepared.name!r} make {once} of {old}, and {again} the second time: a migration runs "
            "again for each run of a handler until one of them ends, so let it give the same for the same"
        )
    state: _S = prepared.state_of(once)
    return state


def recorded(prepared: PreparedService, state: object) -> tuple[int, dict[str, Any]]:
    """Version and fields of a state, as a release that had it has recorded them. Raises `SagaError` for none of its."""
    kinds = [*(migration.takes for migration in prepared.migrations), prepared.state]
    if type(state) not in kinds:
        known = " or ".join(kind.__name__ for kind in kinds if kind is not None) or "none"
        raise SagaError(f"{state!r} is no state that {prepared.name!r} has had: give {known}")
    fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(fields_of(state)))
    return kinds.index(type(state)) + 1, fields


def progress_with(prepared: PreparedService, saga: str, state: object, now_ms: int) -> SagaProgress:
    """Progress in which nothing but this state is left of all that was. Raises `SagaError` as `recorded`."""
    version, fields = recorded(prepared, state)
    return SagaProgress(
        service=prepared.name,
        saga=saga,
        started=iso(now_ms),
        state=fields,
        version=version,
        format=compute_format((), (), (), version),
        heard=prepared.roles.heard,
    )
