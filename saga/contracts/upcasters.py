"""Upcasters: plain functions that turn an event of an older version into one of a newer version.

A contract needs them where Avro's resolution cannot bridge two versions. They belong to a class of the newer version,
so each release of a service has its own. `saga.upcast` declares them (`saga.declarations.migrations`), and
`saga.contracts.codec` calls them when it decodes. Their results never replace a message: its bytes stay as they came,
and are upcast again at every reading.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from saga.contracts.contract import Version
from saga.contracts.library import binding_of
from saga.contracts.schema import meaning_changes
from saga.contracts.sensitive_fields import collect_secrets
from saga.encryption.sensitive_fields import redact_text
from saga.errors import UpcasterFailed
from saga.messages import Event
from saga.support.printable import shorten

REASON_BYTES_MAX = 500
"""Bytes of what an upcaster raised that its failure tells."""
_FORWARD = ("forward", "full")
"""Beginnings of the modes in which older versions read newer ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upcaster:
    """Upcaster of one older version."""

    name: str
    version: int
    """Version that it takes."""
    function: Callable[[Any], object]
    takes: type[Event]
    gives: type[Event]
    """Class of a newer version: the one for which it is declared, or one between."""

    def __call__(self, old: Event) -> Event:
        """Make an event of the newer version. Raises `UpcasterFailed`, and `MemoryError`, which says nothing of it."""
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
        """Make the failure of this upcaster."""
        return UpcasterFailed(f"the upcaster {self.name} failed on a {self.takes.__contract__}: {why}")


def describe_error(why: BaseException, secrets: Iterable[str]) -> str:
    """Words of what an upcaster raised, bounded, without the sensitive values that it was handed."""
    try:
        return shorten(redact_text(f"{type(why).__name__}: {why}", secrets), REASON_BYTES_MAX)
    except Exception as worse:  # noqa: BLE001 - its text is code of theirs, too
        return f"{type(why).__name__}: (its text raises {type(worse).__name__})"


_upcasters: dict[tuple[type[Event], int], Upcaster] = {}


def register_upcaster(event: type[Event], upcaster: Upcaster) -> None:
    """Have an upcaster make events of this class of those of an older version."""
    _upcasters[event, upcaster.version] = upcaster


def upcaster_of(event: type[Event], version: int) -> Upcaster | None:
    """Upcaster by which events of this version are read as this class; `None`: there is none."""
    return _upcasters.get((event, version))


def find_missing_upcasters(event: type[Event]) -> Iterator[str]:
    """Problems of a class that is consumed: each older version for which it needs an upcaster and has none."""
    version = binding_of(event).version
    for number in sorted(version.upcasts):
        if upcaster_of(event, number) is None:
            yield (
                f"{version.path} reads version {number} by an upcaster, and there is none: declare it where "
                f"{event.__name__} is used, @upcast({event.__name__}, {number}) above a function that takes a "
                f"{version.name}V{number} (saga contracts generate writes that class: {version.name}.v{number})"
            )


def is_closed_to(reader: Version, writer: Version) -> bool:
    """Return whether code of an older version must not read what this newer one wrote: there is a step between them,
    and the newer one promises older code nothing, or the same bytes would mean something else to it."""
    if reader.number not in writer.upcasts:
        return False
    mode = writer.compatible
    is_promised = mode.startswith(_FORWARD) and (mode.endswith("_transitive") or writer.number == reader.number + 1)
    return not is_promised or bool(meaning_changes(reader.record, writer.record))
