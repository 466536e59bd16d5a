"""Join contracts and manifests into an overview of a choreography: which services emit and consume each event, and what
is compensated."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from saga.choreography.manifest import ConsumedContract, DeclaredReaction, Manifest
from saga.contracts.contract import Contract
from saga.contracts.library import Library


@dataclass(frozen=True, slots=True)
class Emitter:
    """A service that may emit an event."""

    service: str
    version: int
    """Version of the contract with which the service emits the event."""
    reactions: tuple[DeclaredReaction, ...]


@dataclass(frozen=True, slots=True)
class EventConsumer:
    """A service that consumes an event, from the log or from its own progress."""

    service: str
    group: str
    """Consumer group of the service, which keeps the first name of a renamed one."""
    use: ConsumedContract
    reactions: tuple[DeclaredReaction, ...]
    from_log: bool
    """True if the service consumes the event from the log. False if no other service may emit the event, so that the
    service takes it from its own progress."""


@dataclass(frozen=True, slots=True)
class DeclaredCompensation:
    """A compensation, and the handler whose work it undoes."""

    service: str
    compensation: DeclaredReaction
    undone: DeclaredReaction | None
    """The handler whose work is undone; `None` if it is missing in the manifest."""
    failures: tuple[str, ...]
    """Failure outcomes on which the compensation runs."""
    results: tuple[str, ...]
    """Results of the handler that the compensation undoes."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The contracts and the manifests of a choreography, joined."""

    library: Library
    manifests: Mapping[str, Manifest]
    """Manifests by service."""

    @property
    def contracts(self) -> Mapping[str, Contract]:
        """Return the contracts by name."""
        return self.library.contracts

    def emitters(self, contract: str) -> list[Emitter]:
        """Return the services that may emit an event."""
        return [
            Emitter(name, event.version, tuple(r for r in manifest.reactions if contract in r.emits))
            for name, manifest in sorted(self.manifests.items())
            for event in manifest.emits
            if event.contract == contract
        ]

    def consumers(self, contract: str) -> list[EventConsumer]:
        """Return the services that consume an event."""
        return [
            EventConsumer(
                service=name,
                group=manifest.stored,
                use=use,
                reactions=tuple(r for r in manifest.reactions if contract in r.hears),
                from_log=self.is_read(manifest, contract),
            )
            for name, manifest in sorted(self.manifests.items())
            if (use := manifest.find_consumed(contract)) is not None
        ]

    def is_read(self, manifest: Manifest, contract: str) -> bool:
        """Return whether a service reads an event from the log.

        Two things are required. Another participant can emit the event: the service does not own the contract, or the
        event is also produced externally. And a handler or deadline of the service takes the event, or the event is an
        outcome to which one of its compensations reacts."""
        known = self.contracts.get(contract)
        if known is not None and known.owner == manifest.stored and not known.produced_externally:
            return False
        is_outcome = known is None or known.outcome is not None
        return any(contract in r.hears for r in manifest.reactions if r.kind != "compensation" or is_outcome)

    def compensations(self) -> list[DeclaredCompensation]:
        """Return the compensations of all services."""
        return [
            DeclaredCompensation(
                name, each, manifest.reaction(each.undoes), self._failures(each.hears), self._results(each, each.hears)
            )
            for name, manifest in sorted(self.manifests.items())
            for each in manifest.reactions
            if each.undoes is not None
        ]

    def compensated_on(self, outcome: str) -> list[DeclaredCompensation]:
        """Return the compensations that run on an outcome."""
        return [each for each in self.compensations() if outcome in each.failures]

    def compensated_after(self, event: str) -> list[DeclaredCompensation]:
        """Return the compensations that undo a handler which consumed this event, or which returned it as a result."""
        return [
            each
            for each in self.compensations()
            if event in each.results or (each.undone is not None and event in each.undone.hears)
        ]

    def outcomes(self, kind: str) -> list[Contract]:
        """Return the outcome contracts of the kind of saga with this key."""
        return [each for each in self.contracts.values() if each.outcome is not None and each.key == kind]

    def find_loose_ends(self) -> list[str]:
        """Return a sentence for each event that no service emits or that no service consumes, according to these
        manifests, and for each event without a contract."""
        emitted = {event for manifest in self.manifests.values() for event in manifest.emitted}
        consumed = {use.contract for manifest in self.manifests.values() for use in manifest.consumes}
        known = self.contracts
        return [
            *(
                f"{name}: no service emits it"
                for name in known
                if name not in emitted and not known[name].produced_externally
            ),
            *(
                f"{name}: no service consumes it"
                for name in known
                if name not in consumed and not known[name].consumed_externally
            ),
            *(f"{name}: it has no contract here" for name in sorted((emitted | consumed) - known.keys())),
        ]

    def _failures(self, events: Iterable[str]) -> tuple[str, ...]:
        return tuple(n for n in events if (known := self.contracts.get(n)) is not None and known.outcome == "failure")

    def _results(self, compensation: DeclaredReaction, events: Sequence[str]) -> tuple[str, ...]:
        failures = self._failures(events)
        return tuple(name for name in events if name not in failures)
