"""Consumers of a contract that changes, printed: `saga contracts diff --manifests`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saga.choreography.consumers import Affected
from saga.cli.printing import tell
from saga.contracts.contract import Version


def tell_consumers(found: Sequence[Affected], folder: Path, new: Version) -> None:
    """Print for each service that hears the contract what the change does to it."""
    if not found:
        tell(f"no manifest in {folder} hears it")
        return
    tell(f"for whom, as the manifests in {folder} say:")
    for each in found:
        version = "unknown versions" if each.version is None else f"v{each.version}"
        fields = "all fields" if isinstance(each.fields, str) else ", ".join(each.fields)
        tell(f"  {each.service} (reads {version}: {fields}){'' if each.concerns else ': not concerned'}")
        for concern in each.concerns:
            when = _when(each, new, concern.direction == "forward")
            tell(f"    {when}: {concern.says}")


def consumers_as_json(found: Sequence[Affected]) -> list[dict[str, Any]]:
    """The same for machines."""
    return [
        {
            "service": each.service,
            "version": each.version,
            "fields": each.fields,
            "concerns": [
                {
                    "direction": concern.direction,
                    "effect": concern.effect,
                    "path": concern.change.path,
                    "says": concern.says,
                }
                for concern in each.concerns
            ],
        }
        for each in found
    ]


def _when(affected: Affected, new: Version, is_forward: bool) -> str:
    if affected.version is not None and affected.version >= new.number:
        return "now"
    return f"until it is released with v{new.number}" if is_forward else f"once it is released with v{new.number}"
