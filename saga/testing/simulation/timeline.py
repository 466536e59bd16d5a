"""Timeline of a saga, across services and with the faults marked, as lines that a person reads."""

from collections.abc import Collection, Iterator

from saga.messaging.names import PROGRESS
from saga.progress.document import Intent, SagaProgress, decode_progress, decode_transition
from saga.telemetry.events import (
    BreakerTurned,
    ControlTurned,
    DeadLettered,
    Escalated,
    Moment,
    PutOff,
    ReplayEnded,
    Retrying,
    Stuck,
    Unavailable,
)
from saga.testing.simulation.plan import APPLICATION
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.simulation.trace import Asked, Injected, Noted

LINES_MAX = 200


def timeline(world: SimulatedWorld, sagas: Collection[str] = ()) -> list[str]:
    """Lines of these sagas, of all of them by default; every fault is told."""
    lines = list(_lines(world, sagas))
    if len(lines) > LINES_MAX:
        half = LINES_MAX // 2
        lines[half:-half] = [f"   ... {len(lines) - LINES_MAX} more lines ..."]
    return lines


def _lines(world: SimulatedWorld, sagas: Collection[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for line in world.trace.lines:
        at = f"{line.time_s:12.4f} s  "
        match line:
            case Injected():
                details = f": {line.details}" if line.details else ""
                about = f"{line.operation.what} {line.operation.where}"
                yield f"{at}*** {line.planned} *** ({about}){details}"
            case Noted():
                told = line.what or _moment(line.moment, sagas)
                if told:
                    yield f"{at}{line.process:<14} {told}"
            case Asked():
                for told in _asked(world, line, sagas, seen):
                    yield f"{at}{line.operation.process:<14} {told}"


def _asked(world: SimulatedWorld, line: Asked, sagas: Collection[str], seen: dict[str, int]) -> Iterator[str]:
    """Meaning of an operation for people; most mean nothing."""
    operation = line.operation
    if operation.what == "publish" and operation.process == APPLICATION and line.said == "done":
        if not sagas or any(operation.where.endswith(f" of {saga}") for saga in sagas):
            yield f"publishes {operation.where}"
    elif operation.what in ("replace", "remove") and operation.process == APPLICATION and line.said == "done":
        document, _, service = operation.where.rpartition(" of ")
        if not sagas or document.partition("/")[2] in sagas or _has_sagas_of_fields(world, service, document):
            yield f"{'writes' if operation.what == 'replace' else 'removes'} {operation.where}"
    elif operation.what == "step":
        if not sagas or any(operation.where.endswith(f" of {saga}") for saga in sagas):
            yield f"calls {operation.where}" if line.said == "done" else f"{operation.where}: {line.said}"
    elif operation.what in ("insert", "replace") and operation.where.startswith(f"{PROGRESS}/"):
        yield from _written(world, line, sagas, seen)


def _has_sagas_of_fields(world: SimulatedWorld, service: str, document: str) -> bool:
    """True if a document may be of any saga: its key does not tell."""
    collection = document.partition("/")[0]
    return any(kind.collection == collection and kind.saga for kind in world.declared[service].documents)


def _written(world: SimulatedWorld, line: Asked, sagas: Collection[str], seen: dict[str, int]) -> Iterator[str]:
    """Meaning of a write of a progress."""
    key = line.operation.where.removeprefix(f"{PROGRESS}/")
    service, _, saga = key.partition("::")
    if sagas and saga not in sagas:
        return
    if line.said != "done":
        yield f"finds that {key} {'is there already' if line.said == 'Exists' else 'is another one by now'}"
        return
    number = seen[key] = seen.get(key, -1) + 1
    versions = world.workers.disks[service].versions[PROGRESS, key]
    before = decode_progress(versions[number - 1]) if number else SagaProgress(service=service, saga=saga)
    after = decode_progress(versions[number])
    if after.n < before.n:  # forgotten, and begun anew
        before = SagaProgress(service=service, saga=saga)
    for raw in after.transitions[max(0, before.n - after.first) :]:
        entry = decode_transition(raw)
        emits = f", emits {', '.join(event.type for event in entry.events)}" if entry.events else ""
        reason = f" ({entry.reason})" if entry.reason else ""
        yield f"{saga}: {entry.handler}({entry.type}) {entry.outcome}{reason}{emits}"
    if after.n == before.n:
        for intent in after.intents:
            if intent not in before.intents and intent.kind == "lieu":
                yield f"{saga}: {intent.handler} is dead: what it did is put right, or shown to a person"
            elif intent not in before.intents and intent.begins is not None:
                yield f"{saga}: {_name(world, service, intent)} begins {intent.begins.kind} {intent.begins.name}"


def _name(world: SimulatedWorld, service: str, intent: Intent) -> str:
    """Name of the handler that runs: a compensation is a handler of its own."""
    undoing = world.declared[service].compensations if intent.kind == "undo" else ()
    return next((handler.name for handler in undoing if handler.undoes == intent.handler), intent.handler)


def _moment(moment: Moment | None, sagas: Collection[str]) -> str:
    """Moment in words; nothing for one of another saga."""
    if sagas and getattr(moment, "saga", None) not in (None, *sagas):
        return ""
    match moment:
        case Retrying():
            return f"{moment.saga}: {moment.handler} failed, attempt {moment.attempt}: {moment.error}"
        case PutOff():
            return f"{moment.saga}: {moment.handler} is put off: {moment.error}"
        case BreakerTurned():
            return f"the breaker of {moment.resource} is {moment.state}"
        case ControlTurned():
            return f"{moment.control} of {moment.name} is {'on' if moment.is_on else 'off'}"
        case DeadLettered():
            return f"{moment.saga}: DEAD LETTER {moment.type}: {moment.reason}"
        case Escalated():
            return f"{moment.saga}: ESCALATED {moment.handler}: {moment.reason}"
        case ReplayEnded():
            return f"{moment.saga}: what was replayed of {moment.handler} {moment.result}"
        case Stuck():
            return f"{moment.saga}: STUCK: {moment.error}"
        case Unavailable():
            return f"{moment.what} unavailable: {moment.error}"
        case _:
            return ""
