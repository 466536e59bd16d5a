"""One saga in all services: as it is, with the reasons of failures, and as it goes on."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from saga.errors import NoStore, SagaError
from saga.ops.dead_letters import read_dead_letters
from saga.ops.histories import UnreadableHistory, read_history
from saga.ops.selection import Deployment
from saga.ops.timeline import (
    ParkedRun,
    SagaHistory,
    ServiceStatus,
    TimelineEntry,
    build_timeline,
    can_never_run,
    compute_status,
)
from saga.progress.document import Intent, PendingMessage, SagaProgress, SuspendedRun
from saga.support.clock import LATEST_MS, iso
from saga.support.printable import counted

FOLLOW_S = 0.5
"""Seconds between two looks of `followed`."""


@dataclass(frozen=True, slots=True)
class SagaDetails:
    """Everything that there is to see of a saga."""

    histories: tuple[SagaHistory, ...]
    """Histories, one for each service that knows it."""
    entries: tuple[TimelineEntry, ...]
    statuses: tuple[ServiceStatus, ...]
    failing: Mapping[str, str] = field(default_factory=dict)
    """Last reason for each event that cannot be undone, by id."""

    @property
    def undoing(self) -> frozenset[str]:
        """Services in which a compensation has begun and not come to its end."""
        return frozenset(h.service for h in self.histories if any(i.kind == "undo" for i in h.progress.intents))


async def read_saga(
    saga: str, deployment: Deployment, service: str | None = None, known: Mapping[str, int] | None = None
) -> SagaDetails:
    """Read a saga in all services, or in one.

    A service whose progress cannot be read is reported to `deployment.warn` and left out.

    Args:
        known: For each service the number of transitions that the caller has already.

    Raises:
        NoStore: There is no store.
        SagaError: A transition cannot be decoded.
    """
    histories = []
    async with deployment.open_stores(() if service is None else (service,)) as sources:
        for source in sources:
            try:
                found = await read_history(source, saga, (known or {}).get(source.service, 0))
            except UnreadableHistory as why:
                deployment.warn(why)
                continue
            if found is not None:
                histories.append(found)
    try:
        return SagaDetails(
            tuple(histories), tuple(build_timeline(histories)), tuple(compute_status(h.progress) for h in histories)
        )
    except msgspec.DecodeError as why:
        raise SagaError(
            f"a transition of saga {saga} cannot be read: {why}; `saga sagas verify {saga}` says where it was changed"
        ) from why


async def follow_saga(
    saga: str, deployment: Deployment, service: str | None = None
) -> AsyncIterator[list[TimelineEntry]]:
    """Transitions of a saga that are there, then again and again those that are new. Without end.

    It waits for a saga or a store that is not there yet.
    """
    known: dict[str, int] = {}
    while True:
        try:
            seen = await read_saga(saga, deployment, service, known)
        except NoStore:
            seen = SagaDetails((), (), ())
        lines = [line for line in seen.entries if line.transition >= known.get(line.service, 0)]
        known |= {h.service: h.progress.n for h in seen.histories}
        if lines:
            yield lines
        await deployment.clock.sleep(FOLLOW_S)


async def add_reasons(saga: str, seen: SagaDetails, deployment: Deployment) -> SagaDetails:
    """The same with reasons from the log, for compensations that have begun and do not come to their end."""
    found = await read_dead_letters(seen.undoing, deployment.broker_settings, deployment.clock)
    if found.problem:
        deployment.warn(f"why a compensation does not come to its end is not known: {found.problem}")
    failing = {each.undoes: each.reason for each in reversed(found.letters) if each.saga == saga and each.undoes}
    return replace(seen, failing=failing)


# -------------------------------------------------------------------- open work


UNSTARTED = "for a message that tells when the saga began; without one for ever, for its service may have forgotten it"
"""Words for what waits of a saga without a start."""


def describe_open_work(p: SagaProgress, status: ServiceStatus, failing: Mapping[str, str]) -> list[str]:
    """Everything that is still open in one service. `failing`: reasons of compensations that fail, by event."""
    found = [_describe_intent(i, failing) for i in p.intents]
    found += [_describe_parked(each, status.queue) for each in status.retries]
    dead = [k for k in (*p.queue, *p.compensating) if k.dead]
    found += [f"{k.message.type} for {k.handler} is a dead letter and blocks the saga: {k.dead}" for k in dead]
    found += [_describe_compensation(p, k) for k in p.compensating if _is_due(k)]
    found += [_describe_deadline(k) for k in p.deadlines]
    found += [_describe_suspended(c) for c in p.later]
    found += [f"{k.message.type} for {k.handler} is queued" for k in p.queue if _is_due(k)]
    waits = "is waiting" if p.started else f"waits {UNSTARTED}"
    found += [f"{k.message.type} for {k.handler} {waits}" for k in p.waiting if not can_never_run(p, k)]
    return found + [
        f"{k.message.type} for {k.handler} is left over: it can never run" for k in p.waiting if can_never_run(p, k)
    ]


def _describe_compensation(p: SagaProgress, kept: PendingMessage) -> str:
    """A handler that is to be undone, in words."""
    if p.started is None:
        return f"{kept.message.type} waits {UNSTARTED}: whether {kept.handler} did something to be undone is not known"
    return f"{kept.handler} is to be undone because of {kept.message.type}"


def _is_due(kept: PendingMessage) -> bool:
    """True if it waits for neither a person nor a time."""
    return not kept.dead and not kept.due_ms


def _describe_deadline(kept: PendingMessage) -> str:
    """A deadline that is open, in words."""
    when = f"at {iso(min(kept.due_ms, LATEST_MS))}, {kept.message.type} having opened it"
    if kept.attempts:
        return f"{kept.handler} runs again {when}: {counted(kept.attempts, 'attempt')} failed"
    return f"{kept.handler} runs {when}, unless the saga ends before"


def _describe_suspended(c: SuspendedRun) -> str:
    """A run that goes on later, in words."""
    until = f", or with {' or '.join(c.until)}" if c.until else ""
    told = f"{c.handler} goes on with {c.parts[0].type} at {iso(min(c.due_ms, LATEST_MS))}{until}"
    told += _version_note(c)
    return f"{told}: {counted(c.attempts, 'attempt')} failed" if c.attempts else told


def _version_note(begun: Intent | SuspendedRun) -> str:
    """Version of the handler under which a run began, where that is not the first."""
    return f" (under version {begun.handler_version})" if begun.handler_version > 1 else ""


def _describe_parked(each: ParkedRun, behind: int) -> str:
    """A run that waits for its next attempt, in words. `behind`: messages in the queue."""
    what = each.handler if each.undoes is None else f"{each.handler}, which undoes what {each.undoes} did,"
    told = f"{what} is held up, and looked at each minute" if each.put_off else f"{what} is tried again at {each.next}"
    if each.attempts:
        told += f": {counted(each.attempts, 'attempt')} failed"
        told += f" since {each.since}" if each.since else ""
    if behind and each.undoes is None:
        told += f", {counted(behind, 'message')} wait{'s' if behind == 1 else ''} behind it"
    return told + (f"; the last said: {each.error}" if each.error else "")


def _describe_intent(intent: Intent, failing: Mapping[str, str]) -> str:
    """A run that has begun, in words, with the call of which nobody knows what became."""
    told = _describe_run(intent, failing)
    return told if (call := intent.open_call) is None else f"{told}; {call.in_words} has no answer"


def _describe_run(intent: Intent, failing: Mapping[str, str]) -> str:
    """The run alone; for a compensation with the reason that it does not come to its end."""
    if intent.kind == "do":
        return f"{intent.handler} has begun on {intent.message.type}{_version_note(intent)}"
    if intent.kind == "lieu":
        return f"what {intent.handler} began is put right because of {intent.message.type}: it can never finish"
    name = intent.name or f"the compensation of {intent.handler}"
    begun = f"{name} undoes what {intent.handler} did, because of {intent.message.type}{_version_note(intent)}"
    return f"{begun}, and fails: {failing[intent.cause]}" if intent.cause in failing else begun
