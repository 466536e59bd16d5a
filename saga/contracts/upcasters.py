"""Register and call upcasters: plain functions that convert an event of an older version to one of a newer version.

A contract needs an upcaster if Avro's schema resolution cannot read the older version as the newer one. Upcasters are
registered for a class of the newer version, so each release of a service has its own upcasters. `saga.upcast` declares
them (`saga.declarations.migrations`), and `saga.contracts.codec` calls them when it decodes. The result is not stored:
the stored bytes of the message do not change, and are upcast each time they are read.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from saga.contracts.compatibility import promises_forward
from saga.contracts.contract import Version
from saga.contracts.library import binding_of
from saga.contracts.schema import meaning_changes
from saga.contracts.sensitive_fields import collect_secrets
from saga.encryption.sensitive_fields import redact_text
from saga.errors import UpcasterFailed
from saga.messages import Event
from saga.support.printable import shorten

REASON_BYTES_MAX = 500
"""Maximum size, in bytes, of the exception text of an upcaster that `UpcasterFailed` contains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcaster:
    """An upcaster function from one older version."""

    name: str
    version: int
    """Number of the older version."""
    function: Callable[[Any], object]
    takes: type[Event]
    gives: type[Event]
    """Class of the result: the class for which the upcaster is declared, or a class of a version between the two
    versions."""

    def __call__(self, old: Event) -> Event:
        """Convert an event to the newer version.

        Raises `UpcasterFailed` if the function raises, returns an object of another class, or changes the saga id. A
        `MemoryError` is raised unchanged, because it is not the upcaster's fault.
        """
        try:
            made = self.function(old)
        except MemoryError:
            raise
        except (Exception, SystemExit, GeneratorExit) as why:
            raise self.failure(describe_error(why, collect_secrets(old))) from why
        if type(made) is not self.gives:
            raise self.failure(f"it returned a {type(made).__name__}, and is to return a {self.gives.__name__}")
        assert isinstance(made, Event)
        key = binding_of(self.takes).contract.key
        if str(getattr(made, key)) != str(getattr(old, key)):
            raise self.failure(f"it changed {key}, which is the saga id")
        return made

    def failure(self, why: str) -> UpcasterFailed:
        """Make the error that reports a failure of this upcaster."""
        return UpcasterFailed(f"the upcaster {self.name} failed on a {self.takes.__contract__}: {why}")


def describe_error(why: BaseException, secrets: Iterable[str]) -> str:
    """Return the text of an upcaster's exception. It is shortened, and the sensitive values of the event are
    redacted."""
    try:
        return shorten(redact_text(f"{type(why).__name__}: {why}", secrets), REASON_BYTES_MAX)
    except Exception as worse:  # noqa: BLE001 - the exception's `__str__` is user code, too
        return f"{type(why).__name__}: (its text raises {type(worse).__name__})"


_upcasters: dict[tuple[type[Event], int], Upcaster] = {}


def register_upcaster(event: type[Event], upcaster: Upcaster) -> None:
    """Register the upcaster that converts events of an older version to this class."""
    _upcasters[event, upcaster.version] = upcaster


def upcaster_of(event: type[Event], version: int) -> Upcaster | None:
    """Return the upcaster from this version to this class; `None` if there is none."""
    return _upcasters.get((event, version))


def find_missing_upcasters(event: type[Event]) -> Iterator[str]:
    """Report each older version of a consumed event class for which an upcaster is needed and none is registered."""
    version = binding_of(event).version
    for number in sorted(version.upcasts):
        if upcaster_of(event, number) is None:
            yield (
                f"{version.path} reads version {number} by an upcaster, and there is none: declare it where "
                f"{event.__name__} is used, @upcast({event.__name__}, {number}) above a function that takes a "
                f"{version.name}V{number} (saga contracts generate writes that class: {version.name}.v{number})"
            )


def is_closed_to(reader: Version, writer: Version) -> bool:
    """Return whether code that knows the version `reader` must not read messages of the newer version `writer`.

    This is the case if the newer version needs an upcaster for the older one, and one of two conditions holds: its
    compatibility mode does not promise that the older version can read it, or the older version would give the same
    bytes another meaning.
    """
    if reader.number not in writer.upcasts:
        return False
    return not promises_forward(writer, reader) or bool(meaning_changes(reader.record, writer.record))
