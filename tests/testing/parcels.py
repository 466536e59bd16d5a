"""Service that notes each version of a document that it is shown: parcels, which say themselves which version they
are."""

from collections.abc import Sequence
from dataclasses import dataclass

from saga import Change, Saga, Service
from services.order.events import OrderPlaced

GONE = 0
"""Version that stands for a removal."""


@dataclass(frozen=True)
class Parcel:
    """Document that says which of its versions it is."""

    version: int


@dataclass(frozen=True)
class Seen:
    """Versions that a saga was shown, in order, and those that were there before each, as far as they are known."""

    versions: tuple[int, ...] = ()
    before: tuple[int | None, ...] = ()
    kinds: tuple[str, ...] = ()


async def look(change: Change[Parcel], saga: Saga[Seen]) -> OrderPlaced | None:
    version = GONE if change.document is None else change.document.version
    before = None if change.before is None else change.before.version
    saga.state = Seen(
        (*saga.state.versions, version),
        (*saga.state.before, before),
        (*saga.state.kinds, type(change).__name__),
    )
    return None


def watcher(name: str, *, many: bool = True) -> Service[Seen]:
    """Service of that name that notes what it is shown: each change, or what its saga begins with."""
    service = Service(name, state=Seen)
    service.document(Parcel, "parcels")
    service.handler(repeats=Change[Parcel] if many else None)(look)
    return service


watching = watcher("watching")


def wrong_with(seen: Sequence[int], written: Sequence[int], *, merges: bool) -> str | None:
    """Story of what a parcel's saga was shown and must not be; `None` if all is well. `written`: its versions, each
    written once, in order. `merges`: its source may leave out all but the last."""
    if not merges:
        return None if list(seen) == list(written) else f"was shown {tuple(seen)} of {tuple(written)}"
    if len(set(seen)) < len(seen):
        return f"was shown a version twice: {seen}"
    if list(seen[-1:]) != list(written[-1:]):
        return f"was not shown its end: {seen}"
    if [version for version in written if version in seen] != list(seen):
        return f"was shown versions out of order: {seen}"
    return None
