"""Errors that the toolkit raises, classed by the reaction they call for.

SagaError                    what happened, where, and what to do next
+- DeclarationError          mend the code: raised while a service is imported, so it never starts
+- ConfigurationError        mend the settings: all problems at once, before anything starts
|  +- NotAStore              a tool asked for a store and found something else
|  +- NoStore                a tool looked for stores and found none
|     +- ServiceNeeded       each service has a store of its own there, and nobody says which services there are
+- ContractError             mend `contracts/`: all problems at once, with file and path
+- BadInput                  a message that can never be handled: dead letter at once
|  +- UnknownSchema          of a schema that is not deployed here yet: parked, and looked at again
|  |  +- NewerVersion        of a version that this release of the service cannot read: the same
|  +- UpcasterFailed         of an older version that our own upcaster could not take: replayed once that is mended
+- SchemaUnasked             a schema registry has to be asked first: asked, and tried again at once
+- Permanent                 a handler that can never succeed on this input: dead letter at once
+- NewerHandler              a run that a newer version of its handler has begun: parked, and tried again
+- KeyMissing                a sealed text of which there is no key here: parked, and tried again
+- BreakerOpen               a call was not made, for those before it failed: asked again later, or go another way
+- StoreError
|  +- Exists, Conflict       somebody else wrote: reload and decide again
|  +- Ambiguous              it may have been written: reload and decide again, never write it again
|  +- StoreUnavailable       certainly not written: wait, nothing is lost
|  |  +- KeysUnavailable     a key of sealed values cannot be had now: wait, too
|  |  +- NoListing           a tool asked for a list, and the server has none: read documents by their keys
|  +- StoreBroken            no waiting mends it: the service ends, a person has to act (a `Broken`)
|  +- TooLarge               certainly not written, and never will be: give up this one document, tell by name
+- BrokerError
   +- Fenced                 the partition belongs to another member by now: let go of it
   +- BrokerBroken           as StoreBroken (a `Broken`)
   +- BrokerUnavailable      may have been published: wait and publish again
      +- RegistryUnavailable certainly not published: the schema registry does not answer, wait
"""

from collections.abc import Sequence


class SagaError(Exception):
    """Root of what the toolkit raises to its users. Its message says what happened, where, and what to do next."""


class DeclarationError(SagaError):
    """Declarations of a service that cannot work: raised while its module is imported, so it never starts."""


class Problems(SagaError):
    """Several problems at once; `problems` lists them, each saying where and what to do."""

    def __init__(self, heading: str, problems: Sequence[str]) -> None:
        self.heading, self.problems = heading, tuple(problems)
        super().__init__("\n".join([heading, *(f"  - {problem}" for problem in problems)]))


class ConfigurationError(Problems):
    """Settings or an environment that cannot work: nothing was started."""


class NotAStore(ConfigurationError):
    """File without a store of ours: tools that look at all files of a folder pass over it."""


class NoStore(ConfigurationError):
    """Place without a store that tools could look at, or with one of which nobody says whose it is."""


class ServiceNeeded(NoStore):
    """Address of a store for each service, where nothing lists which services have one."""


class ContractError(Problems):
    """Schemas in `contracts/` that cannot work."""


class BadInput(SagaError):
    """Message that can never be handled: undecodable, empty, partial or keyless."""


class UnknownSchema(BadInput):
    """Message of a schema that `contracts/` does not have here: it may be deployed yet. `fingerprint` names it."""

    def __init__(self, fingerprint: bytes, said: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(said)


class NewerVersion(UnknownSchema):
    """Message of a newer version than this release of the service can read: the next one may be deployed yet."""


class UpcasterFailed(BadInput):
    """Message of an older version, of which an upcaster of this service could not make a newer one."""


class SchemaUnasked(SagaError):
    """Lack of a schema that a registry may have: nobody has asked it since the message was looked at last. `id` names
    it."""

    def __init__(self, id_: int) -> None:
        self.id = id_
        super().__init__(f"the schema with id {id_} has to be asked for")


class Permanent(SagaError):
    """Failure of a handler that can never succeed on this input, however often it is tried."""


class BreakerOpen(SagaError):
    """Refusal of a call to a resource that failed too often of late: it was not made, and nothing of it may have
    happened. In the `expected_errors=` of its resource it is a result like any other, and the handler may go another
    way."""

    def __init__(self, resource: str) -> None:
        """`resource`: its name."""
        self.resource = resource
        super().__init__(resource)

    def __str__(self) -> str:
        return f"the breaker of {self.resource} is open: calls to it failed"


class Broken(SagaError):
    """Loss of the file under a service: it is damaged, removed, replaced, or older than it was. Waiting mends nothing,
    and going on could lose what was acknowledged: the service ends."""


class StoreError(SagaError):
    """Failure of an operation on a document; see the classes below."""


class Exists(StoreError):
    """Refusal of an insert: there is a document already."""


class Conflict(StoreError):
    """Refusal of a replacement or removal: the document is not the one that was read, or is gone."""


class Ambiguous(StoreError):
    """Loss of an answer: the write may have happened, or may still happen."""


class StoreUnavailable(StoreError):
    """Outage of the store, which cannot be reached, is full or read-only. Nothing was written and nothing will be."""


class KeysUnavailable(StoreUnavailable):
    """Outage of the folder of keys: nothing sealed can be read or written, and nothing is lost meanwhile."""


class NoListing(StoreUnavailable):
    """Server that reads documents by their keys, and cannot list them: tools name each saga."""


class NewerHandler(SagaError):
    """Run that a newer version of its handler has begun than this release has: one that has it goes on with it."""

    def __init__(self, handler: str, began: int, known: int) -> None:
        self.handler, self.began, self.known = handler, began, known
        super().__init__(
            f"{handler} began under its version {began}, and this release of the service has version {known}: it waits "
            "for a release that has the newer one"
        )


class KeyMissing(SagaError):
    """Lack of one key: of a text that says it is sealed with it, and that nobody here can open. It may be forged, or
    the key is where this process does not look: what needs it is tried again later, and nothing else waits for it."""


class TooLarge(StoreError):
    """Refusal of a document larger than the store takes. Nothing was written, and waiting mends nothing."""


class StoreBroken(StoreError, Broken):
    """Damage to the store's file: it is not, or no longer, what was written to it."""


class BrokerError(SagaError):
    """Failure of an operation on the log; see the classes below."""


class Fenced(BrokerError):
    """Refusal of a commit: this member no longer owns the partition, another one has it or will have it."""


class BrokerUnavailable(BrokerError):
    """Outage of the broker, which did not acknowledge: what was to be published may be there or not."""


class RegistryUnavailable(BrokerUnavailable):
    """Outage of the schema registry, without which a message can be neither written nor read: nothing was published."""


class BrokerBroken(BrokerError, Broken):
    """Damage to the broker's file: it is not, or no longer, what was written to it."""
