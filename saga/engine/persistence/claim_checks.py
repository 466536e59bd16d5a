"""Claims: large results of steps and reads, each stored once in a document of its own, and referred to.

A claim is named by saga and content. So it is written before anything refers to it, never changes, is never written in
vain twice, and is no other saga's: whoever removes all that begins with a saga's key breaks no other one.
"""

from msgspec import Raw
from msgspec.structs import replace

from saga.engine.persistence import progress_repository
from saga.engine.processing_state import ProcessingState
from saga.engine.service_runtime import ServiceRuntime
from saga.errors import Ambiguous, Exists, StoreError
from saga.messaging.names import ARCHIVES
from saga.progress.document import StepRecord
from saga.progress.spill import claim_key, digest_of


async def light(service: ServiceRuntime, turn: ProcessingState, call: StepRecord) -> StepRecord:
    """The answer without its value, which is durable in a document of its own by then."""
    content = bytes(call.value)
    claim, saga, at = digest_of(content), turn.message.saga, turn.position
    key, ports = claim_key(service.name, saga, claim), service.ports
    while True:
        try:
            # Without expiry, as archives: transitions refer to it, and these are archived.
            await progress_repository.patiently(service, at, "claim", ports.store.insert, ARCHIVES, key, content)
        except Exists:  # its name says that it holds the same
            break
        except Ambiguous as why:  # it may be there: the same again does no harm
            progress_repository.tell_refused(service, saga, "archive", why)
            await ports.assignment.pause(progress_repository.WAIT_S_FIRST, at)
        else:
            break
    return replace(call, value=Raw(b"null"), claim=claim)


async def whole(service: ServiceRuntime, turn: ProcessingState, call: StepRecord) -> StepRecord:
    """The answer with its value, read from its claim. Raises `StoreError` for a claim that is gone or was changed."""
    key = claim_key(service.name, turn.message.saga, call.claim)
    document = await progress_repository.patiently(
        service, turn.position, "get", service.ports.store.get, ARCHIVES, key
    )
    if document is None:
        raise StoreError(
            f"{call.name} gave what lies in {key!r}, which is not in {ARCHIVES!r}: somebody removes documents by hand; "
            "put it back"
        )
    if digest_of(document.content) != call.claim:
        raise StoreError(
            f"{call.name} gave what lies in {key!r} in {ARCHIVES!r}, which was changed since it was written; restore it"
        )
    return replace(call, value=Raw(document.content))
