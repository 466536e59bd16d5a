"""Consumers of a contract, as manifests know them, and what a change to it does to each."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from saga.choreography.manifest import ALL, Consumed, Fields, Manifest
from saga.contracts.compatibility import Concern, Consumer, SchemaChange, find_concerns
from saga.contracts.contract import Version

OUTSIDE = "consumers outside"


@dataclass(frozen=True, slots=True)
class Affected:
    """Service that hears a contract, and what becomes of it when a version follows another."""

    service: str
    """Name of the service, or `OUTSIDE`."""
    version: int | None
    """Version as which it reads the contract now; `None` if nobody knows."""
    fields: Fields
    """Fields that its code may read."""
    concerns: tuple[Concern, ...]


def affected(
    changes: Sequence[SchemaChange], old: Version, new: Version, manifests: Iterable[Manifest]
) -> list[Affected]:
    """Services that hear this contract, with what the changes from `old` to `new` do to each, if anything. Those that
    read it as `new` already have no `old` code any more, and what their upcasters read is not read by resolution."""
    found = [
        Affected(manifest.service, use.version, use.fields, _concerns(changes, old, new, manifest.service, use))
        for manifest in manifests
        if (use := manifest.consumed(new.name)) is not None
    ]
    if new.schema.get("consumed_by") == "external":
        consumer = Consumer(service=OUTSIDE, fields=None)
        found.append(Affected(OUTSIDE, None, ALL, tuple(find_concerns(changes, [consumer]))))
    return found


def _concerns(
    changes: Sequence[SchemaChange], old: Version, new: Version, service: str, use: Consumed
) -> tuple[Concern, ...]:
    fields = None if isinstance(use.fields, str) else frozenset(use.fields)
    is_newer = use.version >= new.number
    return tuple(
        concern
        for concern in find_concerns(changes, [Consumer(service=service, fields=fields)])
        if not (is_newer and (concern.direction == "forward" or concern.effect == "gone"))
        if not (old.number in new.upcasts and concern.direction == "backward" and concern.effect != "gone")
    )
