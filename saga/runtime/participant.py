"""Service as it runs: prepared declarations with open resources and ports."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from saga.broker.port import value_bytes_max
from saga.contracts import codec
from saga.errors import BadInput, Permanent
from saga.messages import Event, name_of
from saga.runtime.ports import Ports
from saga.runtime.prepared import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Participant(Prepared):
    """A prepared service that runs: with its resources and ports."""

    resources: Mapping[type, object]
    """Each resource that is open, by the type that was declared."""
    timeouts: Mapping[type, float]
    """Seconds that one call may take, by the resource's own type: that of a fake, where one takes its place."""
    ports: Ports

    def encode(self, event: Event, saga: str) -> tuple[str, str, bytes]:
        """Type, schema and bytes of an event to be emitted. Raises `Permanent` for one of another saga."""
        contract = self.contracts[name_of(type(event))]
        said = str(getattr(event, contract.key))
        if said != saga:
            raise Permanent(f"{contract.name} has {contract.key}={said!r}, but this is saga {saga!r}: emit its own id")
        try:
            value = codec.encode(event)
        except BadInput as why:
            raise Permanent(f"{contract.name} cannot be emitted: {why}") from why
        bytes_max = value_bytes_max(self.ports.log.record_bytes_max)
        if len(value) > bytes_max:  # now: once it is in the progress, nothing else of the saga can go out
            raise Permanent(
                f"{contract.name} has {len(value)} bytes, and may have {bytes_max}: emit a reference to what is large, "
                "or raise SAGA_RECORD_BYTES_MAX and what its topic takes"
            )
        return contract.name, event.__contract__, value


def participant_of(prepared: Prepared, resources: Mapping[type, object], ports: Ports) -> Participant:
    """A service with what it runs on. `resources`: those that are open, by the types that were declared."""
    timeouts = {resource.gives: resource.timeout_s for resource in prepared.declared.resources}
    return Participant(
        **{field.name: getattr(prepared, field.name) for field in fields(Prepared)},
        resources=resources,
        timeouts={type(given): timeouts[gives] for gives, given in resources.items()},
        ports=ports,
    )
