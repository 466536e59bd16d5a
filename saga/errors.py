"""Errors that the toolkit raises, classified by the reaction they call for.

SagaError                    what happened, where, and what to do next
+- DeclarationError          fix the code: raised while a service is imported, so it never starts
+- ConfigurationError        fix the settings: lists all problems, before anything starts
|  +- NotAStore              a tool asked for a store and found something else
|  +- NoStore                a tool looked for stores and found none
|     +- ServiceNeeded       each service has its own store there, and nothing lists the services
+- ContractError             fix `contracts/`: lists all problems, with file and path
+- BadInput                  a message that can never be handled: dead letter at once
|  +- UnknownSchema          its schema is not deployed here yet: parked and retried
|  |  +- NewerVersion        this release of the service cannot read its version: parked and retried
|  +- UpcasterFailed         an upcaster of this service failed on it: replay it once that is fixed
+- SchemaUnasked             a schema registry has to be asked first; the message is retried after that
+- Permanent                 a handler that can never succeed on this input: dead letter at once
|  +- ReturnNotAllowed       it returned what its annotation does not allow: fix the code, then replay
+- NewerHandler              the run began under a newer version of its handler: parked and retried
+- KeyMissing                the key of an encrypted text is not available here: parked and retried
+- BreakerOpen               a call was not made because earlier ones failed: retry later, or handle it otherwise
+- StoreError
|  +- Exists, Conflict       another writer was first: reload and decide again
|  +- Ambiguous              the write may have happened: reload and decide again, never repeat the write
|  +- StoreUnavailable       certainly not written: wait, nothing is lost
|  |  +- KeysUnavailable     an encryption key cannot be read now: wait
|  |  +- NoListing           the server cannot list documents: read documents by their keys
|  +- StoreBroken            waiting does not help: the service ends, a person has to act (a `Broken`)
|  +- TooLarge               certainly not written, and never will be: give up this one document, and report it
+- BrokerError
   +- Fenced                 the partition belongs to another member now: stop working on it
   +- BrokerBroken           as StoreBroken (a `Broken`)
   +- BrokerUnavailable      may have been published: wait and publish again
      +- RegistryUnavailable certainly not published: the schema registry does not answer, wait
"""

from collections.abc import Sequence


class SagaError(Exception):
    """Base class of all errors that the toolkit raises. The message says what happened, where, and what to do next."""


class DeclarationError(SagaError):
    """Error for a service declaration that cannot work. It is raised while the module is imported, so the service never
    starts."""


class Problems(SagaError):
    """Base class of errors that report several problems at once. `problems` lists them, each with its place and what to
    do."""

    def __init__(self, heading: str, problems: Sequence[str]) -> None:
        self.heading, self.problems = heading, tuple(problems)
        super().__init__("\n".join([heading, *(f"  - {problem}" for problem in problems)]))


class ConfigurationError(Problems):
    """Error for settings or an environment that cannot work. Nothing was started."""


class NotAStore(ConfigurationError):
    """Error for a file that is not a store of the toolkit. Tools that examine all files of a folder skip the file."""


class NoStore(ConfigurationError):
    """Error for an address at which a tool finds no store, or for which it has to be given a service
    (`ServiceNeeded`)."""


class ServiceNeeded(NoStore):
    """Error for a store address that needs a service name. Each service has its own store there, and nothing lists the
    services."""


class ContractError(Problems):
    """Error for schemas in `contracts/` that cannot work."""


class BadInput(SagaError):
    """Error for a message that can never be handled: it cannot be decoded, is empty or incomplete, or has no key."""


class UnknownSchema(BadInput):
    """Error for a message whose schema is not in `contracts/` here. The schema may still be deployed. `fingerprint`
    identifies it."""

    def __init__(self, fingerprint: bytes, problem: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(problem)


class NewerVersion(UnknownSchema):
    """Error for a message of a version that is too new for this release of the service. The next release may still be
    deployed."""


class UpcasterFailed(BadInput):
    """Error for a message of an older version that an upcaster of this service failed to convert."""


class SchemaUnasked(SagaError):
    """Raised when a message needs a schema that is not cached yet. The engine fetches the schema from the registry,
    then processes the message again. `id` is the schema's id in the registry."""

    def __init__(self, id_: int) -> None:
        self.id = id_
        super().__init__(f"the schema with id {id_} has to be asked for")


class Permanent(SagaError):
    """Failure of a handler that can never succeed on this input, however often it is retried. The message becomes a
    dead letter at once. (A compensation is retried nevertheless, and escalated.)"""


class ReturnNotAllowed(Permanent):
    """A handler, compensation or deadline returned something that its return annotation does not allow. None of it is
    emitted.

    A test world reports this as a violation. A type checker finds the mistake earlier.
    """


class BreakerOpen(SagaError):
    """A call that was not made, because too many recent calls to its resource failed. The call had no
    effect in the external system.

    If this class is in the `expected_errors=` of the resource, the handler gets the error like any other answer, and
    may react to it.
    """

    def __init__(self, resource: str) -> None:
        """Create the error for the resource of this name."""
        self.resource = resource
        super().__init__(resource)

    def __str__(self) -> str:
        return f"the breaker of {self.resource} is open: calls to it failed"


class Broken(SagaError):
    """Error for a file of the store or broker that is damaged, removed, replaced, or older than it was.

    Waiting does not help, and continuing could lose acknowledged data. So the service ends.
    """


class StoreError(SagaError):
    """Error for a failed operation on a document; the subclasses say how to react."""


class Exists(StoreError):
    """Error for an insert that was refused because the document exists."""


class Conflict(StoreError):
    """Error for a replacement or removal that was refused because the document has changed since it was read, or no
    longer exists."""


class Ambiguous(StoreError):
    """Error for a write whose answer was lost: it may have happened, or may still happen."""


class StoreUnavailable(StoreError):
    """Error for a store that cannot be reached, is full or read-only. Nothing was written, and nothing will be written
    later."""


class KeysUnavailable(StoreUnavailable):
    """Error for a key folder that cannot be read. Until it is available again, no encrypted value can be read or
    written. Nothing is lost."""


class NoListing(StoreUnavailable):
    """Error for a server that reads documents by key but cannot list them. Tools need the id of each saga there."""


class NewerHandler(SagaError):
    """Error for a run that began under a newer version of its handler than this release has. A release that has the
    version will continue the run."""

    def __init__(self, handler: str, began: int, known: int) -> None:
        self.handler, self.began, self.known = handler, began, known
        super().__init__(
            f"{handler} began under its version {began}, and this release of the service has version {known}: it waits "
            "for a release that has the newer one"
        )


class KeyMissing(SagaError):
    """Error for an encrypted string whose key this process does not have.

    The string may be forged, or the key may be stored where this process does not search. The message that needs the
    key is retried later, and does not delay any other message.
    """


class TooLarge(StoreError):
    """Error for a document larger than the store accepts. Nothing was written, and waiting does not help."""


class StoreBroken(StoreError, Broken):
    """Error for a store file whose content is not, or no longer, what was written to it."""


class BrokerError(SagaError):
    """Error for a failed operation on the log; the subclasses say how to react."""


class Fenced(BrokerError):
    """Error for a commit that was refused because this member no longer owns the partition."""


class BrokerUnavailable(BrokerError):
    """Error for a broker that cannot be reached or does not answer. A record that was being published may or may not
    have been written."""


class RegistryUnavailable(BrokerUnavailable):
    """Error for a schema registry that does not answer. Without it no message can be encoded or decoded; nothing was
    published."""


class BrokerBroken(BrokerError, Broken):
    """Error for a broker file whose content is not, or no longer, what was written to it."""
