"""Report a failing run: seed, invariant, faults, timeline, and how to repeat it."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import blake2b
from pathlib import Path

from saga.errors import SagaError
from saga.messaging.names import PROGRESS
from saga.progress.document import ABORT, Intent, SagaProgress, decode_progress, decode_transition
from saga.support.printable import count_noun
from saga.telemetry.events import (
    BreakerTurned,
    ControlTurned,
    DeadLettered,
    Escalated,
    PutOff,
    ReplayEnded,
    Retrying,
    Stuck,
    TelemetryEvent,
    Unavailable,
)
from saga.testing.fault_plans import APPLICATION, Schedule
from saga.testing.simulation.network import InjectedFault, OperationRecord, TraceNote
from saga.testing.simulation.runs import FailedScenario, Run, Tally
from saga.testing.simulation.simulated_world import SimulatedWorld
from saga.testing.world import CheckFailed, DocumentWrite

DEAD_MAX, REASON_MAX = 3, 160
"""Maximum number of dead letter reasons in a summary, and maximum length of each in characters."""
UNREACHED_MAX = 10
"""Maximum number of handlers without a run that a summary lists."""
SAGAS_MAX = 3
"""If a run has more sagas than this, the timeline shows only those that the failure's message names, or all if it names
none. If an invariant is broken in one saga, the timeline shows only that saga.
"""


def report(failed: FailedScenario, name: str) -> str:
    """Return the report of a failure as readable text. It contains everything needed to understand the failure without
    running the test again.
    """
    small, first = failed.shrunk.run, failed.first
    lines = [f"seed {first.schedule.seed} of {name} fails: {_describe_failure(small.failure)}"]
    counts = [
        f"from {count_noun(len(old), what)} to {len(new)}"
        for what, old, new in (
            ("fault", first.schedule.planted, small.schedule.planted),
            (_name_published(first), _list_published(first), _list_published(small)),
        )
        if len(old) != len(new)
    ]
    if counts:
        lines.append(f"shrunk {' and '.join(counts)} in {count_noun(failed.shrunk.runs, 'run')}")
    sagas = _find_sagas(small)
    lines += small.world.workers.mistakes
    lines += [
        *(["faults:"] if small.schedule.planted else ["no fault is needed"]),
        *(f"    {planted}" for planted in small.schedule.planted),
        f"timeline{' of ' + ', '.join(sagas) if sagas else ''}:",
        *timeline(small.world, sagas),
        f"again: --saga-seed={first.schedule.seed} runs this seed alone; --saga-save (or world.save_schedule()) writes "
        "the small run as a test",
    ]
    return "\n".join(lines)


def summary(tally: Tally) -> str:
    """Summarise all runs in one line."""
    parts = [*tally.mistakes, count_noun(tally.runs, "run")]
    if tally.events or not tally.documents:
        parts.append(f"{count_noun(tally.events, 'event')} published")
    if tally.documents:
        parts.append(f"{count_noun(tally.documents, 'document')} written or removed")
    if tally.points:
        parts.append(f"a crash at each of {count_noun(tally.points, 'point')}")
    if tally.pairs:
        parts.append(f"two crashes at {tally.pairs:,} of {count_noun(tally.pairs_in_all, 'pair')} of points")
    if tally.faults and not tally.points:
        text = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.faults.items()))
        parts.append(f"{count_noun(tally.faults.total(), 'fault')} ({text})")
    if tally.dead:
        parts.append(describe_dead_letters(tally.dead))
    if tally.runs > 1 and (missed := tally.list_unreached()):
        more = f", and {len(missed) - UNREACHED_MAX} more" if len(missed) > UNREACHED_MAX else ""
        parts.append(f"NEVER RAN: {', '.join(missed[:UNREACHED_MAX])}{more}")
    return "; ".join(parts)


def describe_dead_letters(dead: Counter[str]) -> str:
    """Return the number of dead letters with their most common reasons."""
    text = "; ".join(f"{count:,} {reason[:REASON_MAX]}" for reason, count in dead.most_common(DEAD_MAX))
    return f"{count_noun(dead.total(), 'dead letter')} ({text})"


def _describe_failure(failure: BaseException | None) -> str:
    text = f"{type(failure).__name__}: {failure}" if not isinstance(failure, CheckFailed) else str(failure)
    return text.split("\n")[0]


def _list_published(run: Run) -> list[int]:
    return [n for n in range(len(run.world.published)) if n not in run.schedule.without]


def _name_published(run: Run) -> str:
    """Return the noun for what the test has published or written: events, documents, or both."""
    written = [isinstance(each, DocumentWrite) for each in run.world.published]
    return "document" if written and all(written) else "event or document" if any(written) else "event"


def _find_sagas(run: Run) -> Collection[str]:
    """Return the ids of the sagas that the timeline shows; an empty collection means all sagas."""
    if isinstance(run.failure, CheckFailed) and run.failure.saga:
        return [run.failure.saga]
    sagas = run.world.sagas()
    if len(sagas) <= SAGAS_MAX:
        return []
    return [saga for saga in sagas if saga in str(run.failure)]


LINES_MAX = 200
_FOUND_INSTEAD = {"Exists": "is there already", "Conflict": "is another one by now"}
"""What a worker finds out when its write of a progress is rejected for another version of it. Every other result is a
refusal by a fault.
"""


def timeline(world: SimulatedWorld, sagas: Collection[str] = ()) -> list[str]:
    """Return the lines of the timeline of these sagas, or of all sagas by default. Faults are shown whichever saga they
    hit. If there are more than `LINES_MAX` lines, the middle ones are left out.
    """
    lines = list(_describe_lines(world, sagas))
    if len(lines) > LINES_MAX:
        half = LINES_MAX // 2
        lines[half:-half] = [f"   ... {len(lines) - LINES_MAX} more lines ..."]
    return lines


def _describe_lines(world: SimulatedWorld, sagas: Collection[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for line in world.trace.lines:
        at = f"{line.time_s:12.4f} s  "
        match line:
            case InjectedFault():
                details = f": {line.details}" if line.details else ""
                about = f"{line.operation.what} {line.operation.where}"
                yield f"{at}*** {line.planned} *** ({about}){details}"
            case TraceNote():
                text = line.what or _describe_moment(line.moment, sagas)
                if text:
                    yield f"{at}{line.process:<14} {text}"
            case OperationRecord():
                for text in _describe_operation(world, line, sagas, seen):
                    yield f"{at}{line.operation.process:<14} {text}"


def _describe_operation(
    world: SimulatedWorld, line: OperationRecord, sagas: Collection[str], seen: dict[str, int]
) -> Iterator[str]:
    """Yield the lines of the timeline that describe an operation: none for most operations."""
    operation = line.operation
    if operation.what == "publish" and operation.process == APPLICATION and line.result == "done":
        if not sagas or any(operation.where.endswith(f" of {saga}") for saga in sagas):
            yield f"publishes {operation.where}"
    elif operation.what in ("replace", "remove") and operation.process == APPLICATION and line.result == "done":
        document, _, service = operation.where.rpartition(" of ")
        if not sagas or document.partition("/")[2] in sagas or _has_sagas_of_fields(world, service, document):
            yield f"{'writes' if operation.what == 'replace' else 'removes'} {operation.where}"
    elif operation.what == "step":
        if not sagas or any(operation.where.endswith(f" of {saga}") for saga in sagas):
            yield f"calls {operation.where}" if line.result == "done" else f"{operation.where}: {line.result}"
    elif operation.what in ("insert", "replace") and operation.where.startswith(f"{PROGRESS}/"):
        yield from _describe_write(world, line, sagas, seen)


def _has_sagas_of_fields(world: SimulatedWorld, service: str, document: str) -> bool:
    """Return True if documents of this kind name their saga in a field. A document's key then does not show which saga
    the document belongs to.
    """
    collection = document.partition("/")[0]
    return any(kind.collection == collection and kind.saga for kind in world.declared[service].documents)


def _describe_write(
    world: SimulatedWorld, line: OperationRecord, sagas: Collection[str], seen: dict[str, int]
) -> Iterator[str]:
    """Yield the lines of the timeline that describe a write of a progress."""
    key = line.operation.where.removeprefix(f"{PROGRESS}/")
    service, _, saga = key.partition("::")
    if sagas and saga not in sagas:
        return
    if line.result != "done":
        found = _FOUND_INSTEAD.get(line.result)
        yield f"finds that {key} {found}" if found else f"cannot write {key}: {line.result}"
        return
    number = seen[key] = seen.get(key, -1) + 1
    versions = world.workers.disks[service].versions[PROGRESS, key]
    before = decode_progress(versions[number - 1]) if number else SagaProgress(service=service, saga=saga)
    after = decode_progress(versions[number])
    if after.n < before.n:  # the saga was forgotten, and started again
        before = SagaProgress(service=service, saga=saga)
    for raw in after.transitions[max(0, before.n - after.first) :]:
        entry = decode_transition(raw)
        emits = f", emits {', '.join(event.type for event in entry.events)}" if entry.events else ""
        reason = f" ({entry.reason})" if entry.reason else ""
        yield f"{saga}: {entry.handler}({entry.type}) {entry.outcome}{reason}{emits}"
    if after.n == before.n:
        for intent in after.intents:
            if intent not in before.intents and intent.kind == ABORT:
                yield f"{saga}: {intent.handler} is dead: its effects are corrected, or reported to a person"
            elif intent not in before.intents and intent.begins is not None:
                yield f"{saga}: {_name_of_run(world, service, intent)} begins {intent.begins.kind} {intent.begins.name}"


def _name_of_run(world: SimulatedWorld, service: str, intent: Intent) -> str:
    """Return the name of the function that the intent's run executes: the handler, or its compensation."""
    undoing = world.declared[service].compensations if intent.kind == "undo" else ()
    return next((handler.name for handler in undoing if handler.undoes == intent.handler), intent.handler)


def _describe_moment(moment: TelemetryEvent | None, sagas: Collection[str]) -> str:
    """Describe a telemetry event in one line. Return an empty string for an event that is not worth a line.

    If `sagas` are given, events of all other sagas are left out. Events without a saga are never left out for that
    reason.
    """
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


WHY_MAX = 110
"""Maximum length of a failure's description in characters, so that it fits on one line."""
_TEST = '''"""A run of {name} that failed once, kept.

{why}
"""

from saga.testing import World, replay

from {module} import {name} as scenario


@replay(
    seed={seed},
    faults={faults},
    without={without},
)
def test_{stem}(world: World) -> None:
    scenario(world)
'''


def save_schedule(scenario: Callable[..., object], schedule: Schedule, why: str) -> Path:
    """Write the schedule as a test, and return the file's path. The same schedule always has the same file name.

    Raises `SagaError` for a test in a class, or a test with parameters other than `world`, because the written test
    could not call it.
    """
    name = scenario.__qualname__
    if not name.isidentifier():
        raise SagaError(f"{name} cannot be imported by another test: write the scenario as a function of its module")
    others = [p.name for p in inspect.signature(scenario).parameters.values() if p.default is p.empty]
    if others != ["world"]:
        raise SagaError(f"{name} takes {', '.join(others)}: a test that was saved gives nothing but a world")
    planted = [str(fault) for fault in schedule.planted]
    text = repr((schedule.seed, planted, sorted(schedule.without)))
    stem = f"{name.removeprefix('test_')}_{blake2b(text.encode(), digest_size=3).hexdigest()}"
    path = Path(inspect.unwrap(scenario).__code__.co_filename).parent / f"test_schedule_{stem}.py"
    text = _TEST.format(
        name=name,
        why=re.sub(r'[\\"]', "'", why.split("\n")[0])[:WHY_MAX].strip(),
        module=scenario.__module__,
        seed=schedule.seed,
        faults=_as_list(f'"{fault}"' for fault in planted),
        without=_as_list(map(str, sorted(schedule.without))),
        stem=stem,
    )
    path.write_text(text)
    return path


def _as_list(literals: Iterable[str]) -> str:
    """Format these literals as the Python source of a list, like the code formatter does."""
    lines = "".join(f"        {literal},\n" for literal in literals)
    return f"[\n{lines}    ]" if lines else "[]"
