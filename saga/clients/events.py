"""Events that an application publishes from outside any service, as records of the log."""

from collections.abc import Callable
from typing import TypeAlias

from saga.broker.port import RECORD_BYTES_MAX, value_bytes_max
from saga.contracts import codec
from saga.contracts.encryption import encrypt_fields, find_unencryptable, subject_of_event
from saga.contracts.library import Contract, binding_of
from saga.contracts.sensitive_fields import has_sensitive
from saga.encryption.port import Keys
from saga.errors import BadInput, SagaError
from saga.messages import Event, Message, Outgoing
from saga.messaging import envelope
from saga.messaging.message_ids import CLIENT
from saga.progress import ids
from saga.support.clock import iso
from saga.support.printable import quoted

Seal: TypeAlias = Callable[[str, bytes], bytes]
"""Function from a saga id and an encoded event to the event with its sensitive fields sealed."""


async def seal_of(event: Event, keys: Keys | None) -> Seal | None:
    """Seal for an event that is published; `None` if it needs none. Raises `SagaError`: it is about somebody who was
    forgotten, a field cannot be sealed, or the keys cannot be had."""
    version = binding_of(type(event)).version
    if keys is None or not has_sensitive(version.record):
        return None
    if problems := list(find_unencryptable(version.record)):
        raise SagaError(f"{version.name} was not published: {'; '.join(problems)}")
    key = await keys.get_or_create_key(subject_of_event(event))
    if key is None:
        raise SagaError(
            f"{version.name} was not published: its {version.subject} was forgotten (saga keys forget), which is for "
            "good: "
            "give somebody who comes back another one"
        )
    return lambda saga, value: encrypt_fields(value, version, saga, key)


def to_record(
    event: Event,
    now_ms: int,
    record_bytes_max: int = RECORD_BYTES_MAX,
    principal: str | None = None,
    seal: Seal | None = None,
    trace: str | None = None,
) -> Outgoing:
    """Record of an event as a Client publishes it. `principal`: who begins the saga, if the event begins one. `trace`:
    header `traceparent` of what the application does. Raises
    `SagaError` for one that a Client may not publish, or that is too large for a log that takes `record_bytes_max`
    (`Broker.record_bytes_max`)."""
    contract = binding_of(type(event)).contract
    if not contract.produced_externally:
        raise SagaError(
            f'only {contract.owner!r} may say {contract.name}; its contract has no "produced_by": "external", with '
            "which clients could"
        )
    saga, value = to_value(event, contract, record_bytes_max, seal)
    time = iso(now_ms)
    message = Message(
        id=f"{contract.name}-{ids.digest(f'client|{contract.name}', saga, codec.content(type(event), value).hex())}",
        type=contract.name,
        schema=type(event).__contract__,
        saga=saga,
        source=CLIENT,
        time=time,
        value=value,
        started=time if contract.starts else None,
        principal=principal if contract.starts else None,
        trace=trace,
    )
    return envelope.to_record(message, contract)


def check_principal(principal: str | None) -> None:
    """Check who is to be named as the one who begins sagas. Raises `SagaError`."""
    if principal is None:
        return
    size = len(principal.encode("utf-8", "surrogatepass"))
    if not principal.strip() or size > envelope.PRINCIPAL_BYTES_MAX or not principal.isprintable():
        raise SagaError(
            f"nothing was published: the principal {quoted(principal)} has to be text that can be printed, of at most "
            f"{envelope.PRINCIPAL_BYTES_MAX} bytes; it has {size}. Leave it out if nobody is to be named"
        )


def to_value(event: Event, contract: Contract, record_bytes_max: int, seal: Seal | None = None) -> tuple[str, bytes]:
    """Saga id and bytes of an event that may be published. Raises `SagaError` as `to_record`, for what is wrong with
    this one event."""
    try:
        value = codec.encode(event)
    except BadInput as why:
        raise SagaError(f"{contract.name} was not published: {why}") from why
    saga = str(getattr(event, contract.key))
    if not saga:
        raise SagaError(f"{contract.name} was not published: its {contract.key} is empty, and it is the saga id")
    if len(saga.encode()) > envelope.SAGA_BYTES_MAX:
        raise SagaError(
            f"{contract.name} was not published: its {contract.key} has {len(saga.encode())} bytes, and a saga id has "
            f"at most {envelope.SAGA_BYTES_MAX}"
        )
    if seal is not None:
        value = seal(saga, value)
    bytes_max = value_bytes_max(record_bytes_max)
    if len(value) > bytes_max:
        raise SagaError(
            f"{contract.name} was not published: it has {len(value)} bytes, and may have {bytes_max}: publish a "
            "reference to what is large, or raise SAGA_RECORD_BYTES_MAX and what its topic takes"
        )
    return saga, value
