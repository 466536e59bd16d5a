"""One saga in all services: as it is, with the reasons of failures, and as it goes on."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from saga.configuration.settings import Settings
from saga.errors import NoStore, SagaError
from saga.ops.dead_letters import letters_of
from saga.ops.histories import Unreadable, history_of
from saga.ops.sources import Warn, sources_of
from saga.ops.timeline import History, Line, ServiceStatus, status_of, timeline
from saga.support.clock import Clock

FOLLOW_S = 0.5
"""Seconds between two looks of `followed`."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that there is to see of a saga."""

    histories: tuple[History, ...]
    """Histories, one for each service that knows it."""
    lines: tuple[Line, ...]
    statuses: tuple[ServiceStatus, ...]
    failing: Mapping[str, str] = field(default_factory=dict)
    """Last reason for each event that cannot be undone, by id."""

    @property
    def undoing(self) -> frozenset[str]:
        """Services in which a compensation has begun and not come to its end."""
        return frozenset(h.service for h in self.histories if any(i.kind == "undo" for i in h.snapshot.intents))


async def shown(  # which saga, where it is looked for, and what of it is known
    saga: str,
    addresses: Sequence[str],
    clock: Clock,
    warn: Warn,
    service: str | None = None,
    known: Mapping[str, int] | None = None,
    settings: Settings | None = None,
) -> Shown:
    """A saga as the services in these stores, or one of them, have written it down.

    Services whose progress cannot be read are warned about and left out. `known`: for each service how many transitions
    nobody needs to see again. `settings`: see `sources_of`. Raises `NoStore`, and `SagaError` for a transition that
    cannot be read.
    """
    histories = []
    async with sources_of(addresses, clock, () if service is None else (service,), settings) as sources:
        for source in sources:
            try:
                found = await history_of(source, saga, (known or {}).get(source.service, 0))
            except Unreadable as why:
                warn(why)
                continue
            if found is not None:
                histories.append(found)
    try:
        return Shown(tuple(histories), tuple(timeline(histories)), tuple(status_of(h.snapshot) for h in histories))
    except msgspec.DecodeError as why:
        raise SagaError(
            f"a transition of saga {saga} cannot be read: {why}; `saga verify-history {saga}` says where it was changed"
        ) from why


async def followed(
    saga: str, addresses: Sequence[str], clock: Clock, warn: Warn, service: str | None = None
) -> AsyncIterator[list[Line]]:
    """Transitions of a saga that are there, then again and again those that are new. Without end.

    It waits for a saga or a store that is not there yet.
    """
    known: dict[str, int] = {}
    while True:
        try:
            seen = await shown(saga, addresses, clock, warn, service, known)
        except NoStore:
            seen = Shown((), (), ())
        lines = [line for line in seen.lines if line.transition >= known.get(line.service, 0)]
        known |= {h.service: h.snapshot.n for h in seen.histories}
        if lines:
            yield lines
        await clock.sleep(FOLLOW_S)


async def with_reasons(saga: str, seen: Shown, settings: Settings, clock: Clock, warn: Warn) -> Shown:
    """The same with reasons from the log, for compensations that have begun and do not come to their end."""
    found = await letters_of(seen.undoing, settings, clock)
    if found.trouble:
        warn(f"why a compensation does not come to its end is not known: {found.trouble}")
    failing = {each.undoes: each.reason for each in reversed(found.letters) if each.saga == saga and each.undoes}
    return replace(seen, failing=failing)
