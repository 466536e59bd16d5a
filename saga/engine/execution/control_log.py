"""Read the control log of a service periodically, and append the controls that operators set."""

from contextlib import AbstractAsyncContextManager

from saga.engine.persistence import dead_letters, outbox
from saga.engine.service_runtime import READ_S, ServiceRuntime
from saga.errors import Ambiguous, BadInput, Conflict, Exists
from saga.messages import Outgoing, Position
from saga.messaging import controls
from saga.messaging.controls import Control
from saga.messaging.names import ARCHIVES
from saga.progress import ids
from saga.progress.document import DeadLetterRecord
from saga.store.port import Document
from saga.telemetry.events import ControlTurned, ControlUnknown


async def is_on(service: ServiceRuntime, at: Position, flag: str, saga: str) -> bool:
    """Return whether a flag is on for a saga, according to a recent copy of the control log."""
    if service.ports.clock.monotonic_s() >= service.controls.until_s:
        await refresh(service, at)
    return controls.is_on(service.controls.in_force.flags, flag, saga, service.ports.clock.now_ms())


async def refresh(service: ServiceRuntime, at: Position) -> None:
    """Read the control log, unless another task has just read it.

    Raises `SagaError` if it cannot be read, because then it is unknown what is paused.
    """
    known, clock, key = service.controls, service.ports.clock, controls.control_log_key(service.name)
    async with _gate(service):
        now_s = clock.monotonic_s()
        if now_s >= known.until_s:
            there = await outbox.retry_while_unavailable(service, at, "get", service.ports.store.get, ARCHIVES, key)
            _apply(service, there, now_s)


def _gate(service: ServiceRuntime) -> AbstractAsyncContextManager[object]:
    """Return the lock that lets one task at a time read the control log and replace the cached copy."""
    if service.controls.gate is None:
        service.controls.gate = service.ports.make_run_scope().gate
    return service.controls.gate


def _apply(service: ServiceRuntime, there: Document | None, now_s: float) -> None:
    """Replace the cached copy of the control log, and report the changes."""
    known, clock = service.controls, service.ports.clock
    cas = 0 if there is None else there.cas
    if known.cas != cas:
        log = controls.decode_control_log(service.name, None if there is None else there.content)
        before, known.in_force, known.cas = known.in_force, controls.read_controls(log), cas
        for kind in known.in_force.unknown:
            if kind not in before.unknown:
                service.ports.outage_watch.report(ControlUnknown(service=service.name, kind=kind))
    known.until_s = now_s + READ_S
    active = controls.active_entries(known.in_force, clock.now_ms())
    if active == known.reported:
        return
    for target, entry in known.reported.items():
        if target not in active:
            _report_change(service, entry, is_on=False)
    for target, entry in active.items():
        if known.reported.get(target) != entry:
            _report_change(service, entry, is_on=True)
    known.reported, known.stops = active, bool(active)
    service.limits(active)


def _report_change(service: ServiceRuntime, entry: controls.ControlEntry, *, is_on: bool) -> None:
    kind, what, name = controls.target_of(service.name, entry.switch)
    service.ports.outage_watch.report(
        ControlTurned(
            service=service.name,
            control=kind,
            what=what,
            name=name,
            is_on=is_on,
            who=entry.who,
            why=entry.why,
            until=entry.switch.until,
        )
    )


async def write_control(service: ServiceRuntime, at: Position, control: Control) -> None:
    """Append a control, or its refusal, to the control log once. Return when it is durable.

    If the log has no room for the control, the control becomes a dead letter.
    """
    try:
        while not await _append(service, at, control):
            pass  # another process wrote, or the answer was lost: read it again
    except BadInput as why:
        await outbox.send_dead_letter(service, at, _dead_letter(service.name, control, str(why)))


async def _append(service: ServiceRuntime, at: Position, control: Control) -> bool:
    """Try once to append a control. Returns False if it has to be tried again.

    Raises `BadInput` if the log has no room for it. The gate is held meanwhile. Otherwise a task that has read the log
    earlier could replace the new copy with its older one.
    """
    store, key = service.ports.store, controls.control_log_key(service.name)
    async with _gate(service):
        there = await outbox.retry_while_unavailable(service, at, "get", store.get, ARCHIVES, key)
        log = controls.decode_control_log(service.name, None if there is None else there.content)
        refused = controls.why_refused(service.name, control.switch, service.names, controls.read_controls(log))
        more = controls.append_control(log, control, refused)
        if more is None:
            return True
        content = controls.encode(more)
        try:
            if there is None:
                cas = await outbox.retry_while_unavailable(service, at, "write", store.insert, ARCHIVES, key, content)
            else:
                cas = await outbox.retry_while_unavailable(
                    service, at, "write", store.replace, ARCHIVES, key, content, cas=there.cas
                )
        except (Conflict, Exists, Ambiguous):
            return False
        _apply(service, Document(content, cas), service.ports.clock.monotonic_s())
        return True


def _dead_letter(service: str, control: Control, reason: str) -> Outgoing:
    dead = DeadLetterRecord(
        id=ids.dead_letter_id(service, control.saga, "a control", control.id, 0),
        kind="dead letter",
        handler="a control",
        reason=reason,
        remedy="give up controls: nothing can be switched any more",
        message=control,
        blame="code",
    )
    return dead_letters.to_outgoing(service, dead, control.time, f"{service}.commands", None)
