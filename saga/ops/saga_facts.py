"""Read the facts with which `saga.ops.explanation` explains a saga: progresses, manifests, dead letters, controls and
offsets.

Only documents of this saga are read. Topics are not scanned, with one exception: if a compensation has begun in a
service, `<service>.dead` is read, because it contains the reason why the compensation fails. If something cannot be
read, a note says so, and the rest is explained nevertheless.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from saga.choreography.overview import Overview
from saga.choreography.releases import manifest_folder, read_manifests
from saga.contracts.library import find_library
from saga.errors import NoStore, SagaError
from saga.messaging.controls import ActiveControls, read_controls
from saga.ops.attention import find_blocking
from saga.ops.offsets import ServiceOffsets, read_offsets_of
from saga.ops.operator_commands import find_control_log
from saga.ops.saga_situation import NO_REPORTS, SagaFacts, SagaReports
from saga.ops.sagas import SagaDetails, add_reasons, read_saga
from saga.ops.selection import Deployment, Selection
from saga.ops.sources import missing_broker_file, open_administration

BROKER_S_MAX = 15.0
"""Maximum time in seconds to wait for the offsets of all services. It is short because a person at a terminal waits for
them."""


def read_overview() -> Overview:
    """Read the choreography: the contracts of the current folder and the manifests next to them. Raises
    `ConfigurationError` if there are none, or if they are invalid."""
    library = find_library()
    return Overview(library, read_manifests(manifest_folder(library)))


async def read_facts(
    saga: str, deployment: Deployment, overview: Overview, reports: SagaReports = NO_REPORTS
) -> SagaFacts:
    """Read the facts about one saga.

    Args:
        reports: What the monitor knows about the saga.
    """
    notes: list[str] = []
    noting = replace(deployment, warn=lambda why: notes.append(str(why)))
    readings = await read_offsets_of_all(overview, noting)
    try:
        seen = await read_saga(saga, noting)
    except NoStore as why:
        notes.append(str(why))
        seen = SagaDetails((), (), ())
    facts = await complete_facts(saga, seen, readings, noting)
    return replace(facts, reports=reports, notes=tuple(notes))


class OffsetReadings(NamedTuple):
    """The offsets of all services of a choreography, and the time at which they were read."""

    overview: Overview
    now_ms: int
    offsets: Mapping[str, ServiceOffsets]


async def complete_facts(saga: str, seen: SagaDetails, readings: OffsetReadings, deployment: Deployment) -> SagaFacts:
    """Add to the histories of a saga what else is known about it: dead letters, controls and offsets.

    Args:
        readings: Offsets that were read before the histories. So if an event existed at that time, and its consumer had
            no unhandled records, the consumer's history must contain the event.
    """
    letters = []
    if any(history.progress.is_quarantined for history in seen.histories):
        letters = [each.letter async for each in find_blocking(Selection(sagas=(saga,)), deployment)]
    if seen.undoing and not seen.failing:
        seen = await add_reasons(saga, seen, deployment)
    return SagaFacts(
        saga=saga,
        now_ms=readings.now_ms,
        overview=readings.overview,
        histories=seen.histories,
        services_read=seen.services_read,
        unreadable=seen.unreadable,
        letters=letters,
        failing=seen.failing,
        controls=await _read_controls(seen.services_read, deployment),
        offsets=readings.offsets,
    )


async def _read_controls(services: Collection[str], deployment: Deployment) -> Mapping[str, ActiveControls]:
    """Read the active controls of these services. A control log that cannot be read is reported to
    `deployment.warn`."""
    found = dict[str, ActiveControls]()
    if not services:
        return found
    async with deployment.open_stores(services) as sources:
        for service in sorted(services):
            try:
                log = await find_control_log(service, sources)
            except SagaError as why:
                deployment.warn(f"whether {service} is paused or limited is not known: {why}")
                continue
            if log is not None:
                found[service] = read_controls(log)
    return found


async def read_offsets_of_all(
    overview: Overview, deployment: Deployment, *, seconds_max: float = BROKER_S_MAX
) -> OffsetReadings:
    """Read the offsets and members of all services that have a manifest. The result has none if the broker does not
    answer within `seconds_max`."""
    now_ms, offsets = deployment.clock.now_ms(), dict[str, ServiceOffsets]()
    services = {manifest.stored for manifest in overview.manifests.values()}
    try:
        settings = deployment.broker_settings
        if (file := missing_broker_file(settings)) is not None:
            deployment.warn(f"whether the services run is not known: there is no file {file}")
        else:
            offsets = await deployment.clock.within(seconds_max, _read_each_offset(services, deployment))
    except (SagaError, TimeoutError) as why:
        reason = str(why) or f"the broker did not answer within {seconds_max:g} s"
        deployment.warn(f"whether the services run is not known: {reason}")
    return OffsetReadings(overview, now_ms, offsets)


async def _read_each_offset(services: Collection[str], deployment: Deployment) -> dict[str, ServiceOffsets]:
    async with open_administration(deployment.broker_settings, deployment.clock) as broker:
        return {each.service: each for each in await read_offsets_of(sorted(services), broker)}
