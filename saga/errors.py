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
    """Declarations of a service that cannot work. It is raised while the module is imported, so the service never
    starts.
    """


class Problems(SagaError):
    """Several problems in one error; `problems` lists them, each with its place and what to do."""

    def __init__(self, heading: str, problems: Sequence[str]) -> None:
        self.heading, self.problems = heading, tuple(problems)
        super().__init__("\n".join([heading, *(f"  - {problem}" for problem in problems)]))


class ConfigurationError(Problems):
    """Settings or an environment that cannot work. Nothing was started."""


class NotAStore(ConfigurationError):
    """A file that is not a store of the toolkit. Tools that look at all files of a folder skip it."""


class NoStore(ConfigurationError):
    """A place where tools find no store, or one whose service is not known."""


class ServiceNeeded(NoStore):
    """A store address that needs a service name, at a place where nothing lists the services that have a store."""


class ContractError(Problems):
    """Schemas in `contracts/` that cannot work."""


class BadInput(SagaError):
    """A message that can never be handled: it cannot be decoded, is empty or incomplete, or has no key."""


class UnknownSchema(BadInput):
    """A message whose schema is not in `contracts/` here. It may still be deployed. `fingerprint` identifies the
    schema.
    """

    def __init__(self, fingerprint: bytes, problem: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(problem)


class NewerVersion(UnknownSchema):
    """A message of a newer version than this release of the service can read. The next release may still be
    deployed.
    """


class UpcasterFailed(BadInput):
    """A message of an older version that an upcaster of this service failed to convert."""


class SchemaUnasked(SagaError):
    """A schema that must first be fetched from a registry; it was not asked since the last attempt. `id` identifies
    it.
    """

    def __init__(self, id_: int) -> None:
        self.id = id_
        super().__init__(f"the schema with id {id_} has to be asked for")


class Permanent(SagaError):
    """A failure of a handler that can never succeed on this input, however often it is retried."""


class BreakerOpen(SagaError):
    """A call that was not made, because too many recent calls to its resource failed. Nothing can have happened
    outside.

    If it is in the `expected_errors=` of the resource, the handler gets it like any other answer, and may react to it.
    """

    def __init__(self, resource: str) -> None:
        """Create the error for the resource of this name."""
        self.resource = resource
        super().__init__(resource)

    def __str__(self) -> str:
        return f"the breaker of {self.resource} is open: calls to it failed"


class Broken(SagaError):
    """A file under the service that is damaged, removed, replaced, or older than it was.

    Waiting does not help, and continuing could lose what was acknowledged. So the service ends.
    """


class StoreError(SagaError):
    """A failed operation on a document; see the subclasses."""


class Exists(StoreError):
    """An insert that was refused because the document exists."""


class Conflict(StoreError):
    """A replacement or removal that was refused because the document has changed since it was read, or is gone."""


class Ambiguous(StoreError):
    """A write whose answer was lost: it may have happened, or may still happen."""


class StoreUnavailable(StoreError):
    """A store that cannot be reached, is full or read-only. Nothing was written and nothing will be."""


class KeysUnavailable(StoreUnavailable):
    """A key folder that cannot be read: no encrypted value can be read or written until it is back. Nothing is lost."""


class NoListing(StoreUnavailable):
    """A server that reads documents by key but cannot list them. Tools need the id of each saga there."""


class NewerHandler(SagaError):
    """A run that began under a newer version of its handler than this release has. A release that has it will continue
    it.
    """

    def __init__(self, handler: str, began: int, known: int) -> None:
        self.handler, self.began, self.known = handler, began, known
        super().__init__(
            f"{handler} began under its version {began}, and this release of the service has version {known}: it waits "
            "for a release that has the newer one"
        )


class KeyMissing(SagaError):
    """A text that says it is encrypted with a key that this process does not have.

    The text may be forged, or the key may be in a place where this process does not look. What needs it is retried
    later, and nothing else waits for it.
    """


class TooLarge(StoreError):
    """A document larger than the store accepts. Nothing was written, and waiting does not help."""


class StoreBroken(StoreError, Broken):
    """A store file whose content is not, or no longer, what was written to it."""


class BrokerError(SagaError):
    """A failed operation on the log; see the subclasses."""


class Fenced(BrokerError):
    """A commit that was refused because this member no longer owns the partition."""


class BrokerUnavailable(BrokerError):
    """A broker that did not acknowledge. The records may have been published or not."""


class RegistryUnavailable(BrokerUnavailable):
    """A schema registry that does not answer. No message can be written or read without it; nothing was published."""


class BrokerBroken(BrokerError, Broken):
    """A broker file whose content is not, or no longer, what was written to it."""
