"""Every error the toolkit raises, classed by the reaction it calls for.

SagaError                    what happened, where, and what to do next
+- DeclarationError          mend the code: raised while a service is imported, so it never starts
+- ConfigurationError        mend the settings: all problems at once, before anything starts
|  +- NotAStore              a tool asked for a store and found something else
|  +- NoStore                a tool looked for stores and found none
+- ContractError             mend `contracts/`: all problems at once, with file and path
+- BadInput                  a message that can never be handled: dead letter at once
+- Permanent                 a handler that can never succeed on this input: dead letter at once
+- StoreError
|  +- Exists, Conflict       somebody else wrote: reload and decide again
|  +- Ambiguous              it may have been written: reload and decide again, never write it again
|  +- StoreUnavailable       certainly not written: wait, nothing is lost
|  +- StoreBroken            no waiting mends it: the service ends, a person has to act (a `Broken`)
|  +- TooLarge               certainly not written, and never will be: give up this one document, tell by name
+- BrokerError
   +- Fenced                 the partition belongs to another member by now: let go of it
   +- BrokerBroken           as StoreBroken (a `Broken`)
   +- BrokerUnavailable      may have been published: wait and publish again
"""

from collections.abc import Sequence


class SagaError(Exception):
    """Root of what the toolkit raises to its users. Its message says what happened, where, and what to do next."""


class DeclarationError(SagaError):
    """The declarations of a service cannot work: raised while its module is imported, so it never starts."""


class Problems(SagaError):
    """Several things are wrong at once; `problems` lists them, each saying where and what to do."""

    def __init__(self, heading: str, problems: Sequence[str]) -> None:
        self.heading, self.problems = heading, tuple(problems)
        super().__init__("\n".join([heading, *(f"  - {problem}" for problem in problems)]))


class ConfigurationError(Problems):
    """The settings or the environment cannot work: nothing was started."""


class NotAStore(ConfigurationError):
    """No store of ours is in the file: tools that look at all files of a folder pass over it."""


class NoStore(ConfigurationError):
    """No store is where tools look for them, or nobody says whose it is."""


class ContractError(Problems):
    """The schemas in `contracts/` cannot work."""


class BadInput(SagaError):
    """A message that can never be handled: undecodable, empty, partial, keyless, or of an unknown schema."""


class Permanent(SagaError):
    """A handler that can never succeed on this input, however often it is tried."""


class Broken(SagaError):
    """The ground under a service is gone: a file is damaged, removed, replaced, or older than it was. Waiting mends
    nothing, and going on could lose what was acknowledged: the service ends."""


class StoreError(SagaError):
    """Something about a document; see the classes below."""


class Exists(StoreError):
    """Insert: there is a document already."""


class Conflict(StoreError):
    """Replace or remove: the document is not the one that was read, or is gone."""


class Ambiguous(StoreError):
    """The answer was lost: the write may have happened, or may still happen."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, is full or read-only. Nothing was written and nothing will be."""


class TooLarge(StoreError):
    """The document is larger than the store takes. Nothing was written, and waiting mends nothing."""


class StoreBroken(StoreError, Broken):
    """The store's file is not, or no longer, what was written to it."""


class BrokerError(SagaError):
    """Something about the log; see the classes below."""


class Fenced(BrokerError):
    """This member no longer owns the partition: another one has it or will have it."""


class BrokerUnavailable(BrokerError):
    """The broker did not acknowledge: what was to be published may be there or not."""


class BrokerBroken(BrokerError, Broken):
    """The broker's file is not, or no longer, what was written to it."""
