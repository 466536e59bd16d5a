"""Servers of which a world knows only the addresses, so it cannot cause faults in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from saga.testing.processes.servers import ServerAddresses, ServerFault


@dataclass(frozen=True, slots=True)
class FaultlessServers:
    """Servers that workers and the world reach at the same addresses."""

    place: ServerAddresses
    troubles: Mapping[str, Sequence[ServerFault]] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def aside(self) -> ServerAddresses:
        """Addresses that the world itself uses. They are the same as those of the workers."""
        return self.place
