"""Report of a failing run: seed, invariant, faults, timeline, and how to have it again."""

from collections.abc import Collection

from saga.testing.simulation.all_runs import Failed, Tally
from saga.testing.simulation.run import Run
from saga.testing.simulation.simulated_world import Broken
from saga.testing.simulation.timeline import timeline
from saga.testing.world import Written

DEAD_MAX, REASON_MAX = 3, 160
"""Reasons of dead letters that are told at most, and characters of each."""
SAGAS_MAX = 3
"""Most sagas for one timeline: of more it shows those that the failure names."""


def report(failed: Failed, name: str) -> str:
    """Report for a person, complete: nothing has to be run again to understand it."""
    small, first = failed.shrunk.run, failed.first
    lines = [f"seed {first.schedule.seed} of {name} fails: {_said(small.failure)}"]
    counts = [
        f"from {counted(len(old), what)} to {len(new)}"
        for what, old, new in (
            ("fault", first.schedule.planted, small.schedule.planted),
            (_kind_of_said(first), _published(first), _published(small)),
        )
        if len(old) != len(new)
    ]
    if counts:
        lines.append(f"shrunk {' and '.join(counts)} in {counted(failed.shrunk.runs, 'run')}")
    sagas = _sagas(small)
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
    """One line about all runs."""
    parts = [counted(tally.runs, "run")]
    if tally.events or not tally.documents:
        parts.append(f"{counted(tally.events, 'event')} published")
    if tally.documents:
        parts.append(f"{counted(tally.documents, 'document')} written or removed")
    if tally.points:
        parts.append(f"a crash at each of {counted(tally.points, 'point')}")
    if tally.pairs:
        parts.append(f"two crashes at {tally.pairs:,} of {counted(tally.pairs_in_all, 'pair')} of points")
    if tally.faults and not tally.points:
        told = ", ".join(f"{count:,} {kind}" for kind, count in sorted(tally.faults.items()))
        parts.append(f"{counted(tally.faults.total(), 'fault')} ({told})")
    if tally.dead:
        told = "; ".join(f"{count:,} {reason[:REASON_MAX]}" for reason, count in tally.dead.most_common(DEAD_MAX))
        parts.append(f"{counted(tally.dead.total(), 'dead letter')} ({told})")
    return "; ".join(parts)


def counted(count: int, what: str) -> str:
    """
    >>> counted(1, "run"), counted(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _said(failure: BaseException | None) -> str:
    text = f"{type(failure).__name__}: {failure}" if not isinstance(failure, Broken) else str(failure)
    return text.split("\n")[0]


def _published(run: Run) -> list[int]:
    return [n for n in range(len(run.world.published)) if n not in run.schedule.without]


def _kind_of_said(run: Run) -> str:
    """Word for one of all that the test has said."""
    written = [isinstance(each, Written) for each in run.world.published]
    return "document" if written and all(written) else "event or document" if any(written) else "event"


def _sagas(run: Run) -> Collection[str]:
    """Sagas that the timeline is to be about; none: all."""
    if isinstance(run.failure, Broken) and run.failure.saga:
        return [run.failure.saga]
    sagas = run.world.sagas()
    if len(sagas) <= SAGAS_MAX:
        return []
    return [saga for saga in sagas if saga in str(run.failure)]
