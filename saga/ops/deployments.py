"""Find the sagas that a release would strand if it were deployed now, and why.

A release strands a saga if the saga cannot continue under it. The check reads the progress of every saga in the
services' stores, and the services' offsets on the broker. It changes nothing.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from saga.choreography.manifest import Manifest
from saga.choreography.releases import manifest_folder, read_manifests
from saga.contracts.library import find_library
from saga.declarations.values import Declared
from saga.engine.prepared_service import PreparedService, prepare
from saga.errors import BrokerError, ConfigurationError, DeclarationError, SagaError
from saga.messaging.names import is_without_events
from saga.ops.histories import decode_progress, read_documents
from saga.ops.offsets import ServiceOffsets, read_offsets_of
from saga.ops.selection import Deployment
from saga.ops.sources import missing_broker_file, open_administration
from saga.progress.document import UNREADABLE, PendingMessage, SagaProgress, decode_transition
from saga.progress.takeover import find_undeclared
from saga.support.printable import count_noun


@dataclass(frozen=True, slots=True)
class StrandedSaga:
    """A saga that the release would strand."""

    service: str
    saga: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AbandonedTopic:
    """A topic with records that the service has not handled, and that the release would not handle."""

    service: str
    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeploymentReport:
    """The sagas and topics that a release would strand."""

    sagas: tuple[StrandedSaga, ...]
    topics: tuple[AbandonedTopic, ...]
    checked: int
    """Number of progresses that were read."""

    @property
    def is_safe(self) -> bool:
        """True if nothing would be stranded."""
        return not self.sagas and not self.topics


async def check_release(services: Sequence[Declared], deployment: Deployment) -> DeploymentReport:
    """Compare the releases of these services with their stores and offsets. Raises `SagaError` if a store cannot be
    read.

    If the broker cannot be read, this is reported as a warning, and unhandled records are not checked.
    """
    stranded, checked = list[StrandedSaga](), 0
    prepared = {each.name: prepare(each) for each in services}
    async with deployment.open_stores(list(prepared)) as sources:
        for source in sources:
            async for saga, document in read_documents(source):
                checked += 1
                try:
                    reasons = list(find_reasons(decode_progress(source, saga, document), prepared[source.service]))
                except SagaError as why:
                    reasons = [str(why)]
                except UNREADABLE as why:
                    reasons = [f"a transition cannot be read: {why}"]
                if reasons:
                    stranded.append(StrandedSaga(source.service, saga, tuple(reasons)))
    topics = [each async for each in _find_abandoned_topics(services, prepared, deployment)]
    return DeploymentReport(tuple(stranded), tuple(topics), checked)


# -------------------------------------------------------------------- one saga


def find_reasons(p: SagaProgress, service: PreparedService) -> Iterator[str]:
    """Yield the reasons why a release could not continue a saga, as human-readable sentences. Pure function."""
    if p.version > service.version:
        yield f"its state has version {p.version}, which a newer release wrote; this one knows up to {service.version}"
    for missing in find_undeclared(p, service.roles):
        yield f"it needs the {missing}, which the release does not declare"
    runs = [(each.handler, each.handler_version) for each in p.intents if each.kind == "do"]
    for handler, version in [*runs, *((each.handler, each.handler_version) for each in p.suspended_runs)]:
        reaction = service.handlers.get(handler)
        if reaction is not None and version > reaction.version:
            yield (
                f"a run of {handler} began under version {version}, and the release has {reaction.version}: it would "
                "be parked, and be a dead letter after its last attempt"
            )
    pending = {(each.handler, each.message.type): each for each in (*p.queue, *p.waiting, *p.deadlines)}
    for (handler, type_), each in pending.items():
        yield from _find_refused_message(each, handler, type_, service)
    yield from _find_unknown_events(p, service)


def _find_refused_message(pending: PendingMessage, handler: str, type_: str, service: PreparedService) -> Iterator[str]:
    """Yield the reason why a release would never handle a pending or queued message; nothing if it would."""
    role = service.roles.handlers.get(handler)
    what = "a dead letter" if pending.dead else "a message"
    if role is None:
        yield f"{what} {type_} waits for {handler}, which the release does not declare"
    elif not any(type_ in types for types in (*role.takes, *role.optional)):
        yield f"{what} {type_} waits for {handler}, which does not take it in the release"


def _find_unknown_events(p: SagaProgress, service: PreparedService) -> Iterator[str]:
    """Yield the events of the last transition that may not be published yet, if the release does not know them."""
    last = decode_transition(p.transitions[-1]) if p.transitions else None
    if last is None or p.published >= p.n:
        return
    for type_ in sorted({event.type for event in last.events} - service.contracts.keys()):
        yield f"its event {type_} may not be published yet, and the release does not know it"


# -------------------------------------------------------------------- backlog


async def _find_abandoned_topics(
    services: Sequence[Declared], prepared: dict[str, PreparedService], deployment: Deployment
) -> AsyncIterator[AbandonedTopic]:
    try:
        if missing_broker_file(deployment.broker_settings) is not None:
            return
        async with open_administration(deployment.broker_settings, deployment.clock) as broker:
            found = await read_offsets_of([each.name for each in services], broker)
            offsets = {each.service: each for each in found}
    except (BrokerError, ConfigurationError) as why:
        deployment.warn(f"the backlog is not compared: {why}")
        return
    released: dict[str, Manifest] = {}
    with suppress(DeclarationError):  # without contracts there are no manifests beside them
        released = {each.stored: each for each in read_manifests(manifest_folder(find_library())).values()}
    for name, state in offsets.items():
        for each in find_abandoned_topics(prepared[name], state, released.get(name)):
            yield each


def find_abandoned_topics(
    service: PreparedService, offsets: ServiceOffsets, released: Manifest | None
) -> Iterator[AbandonedTopic]:
    """Yield the topics with unhandled records that the release would not handle. Pure function.

    Either the release does not read the topic at all, or it no longer consumes all event types that the `released`
    manifest consumes from the topic.
    """
    behind: dict[str, int] = {}
    for partition, state in offsets.states.items():
        behind[partition.topic] = behind.get(partition.topic, 0) + state.lag
    for topic, count in sorted(behind.items()):
        if not count or is_without_events(topic):
            continue
        records = count_noun(count, "record")
        taken = {use.contract for use in released.consumes if use.topic == topic} if released is not None else set()
        if topic not in service.topics:
            yield AbandonedTopic(service.name, topic, f"{records} not handled, and the release does not read it")
        elif gone := sorted(taken - service.consumed):
            reason = f"{records} not handled, and the release does not take {' and '.join(gone)} any more"
            yield AbandonedTopic(service.name, topic, reason)
