"""Convert what the monitor knows about a saga to facts with which it can be explained why the saga is not finished."""

from saga.monitor.views import Timeline
from saga.ops.saga_situation import NO_REPORTS, ReportedTransition, ReportedWait, SagaReports
from saga.support.clock import LATEST_MS, iso


def list_reports(timeline: Timeline | None) -> SagaReports:
    """Return the transitions and waits in a saga's timeline. If `timeline` is `None`, the monitor does not know the
    saga, and there are none."""
    if timeline is None:
        return NO_REPORTS
    return SagaReports(
        transitions=[
            ReportedTransition(
                service=line.service,
                handler=line.handler,
                outcome=line.outcome,
                type=line.type,
                source=line.source,
                time=iso(line.time_ms),
                emitted=line.emitted,
            )
            for line in timeline.lines
        ],
        waits=[
            ReportedWait(
                service=wait.service,
                handler=wait.handler,
                types=wait.for_,
                since=iso(wait.since_ms),
                until=None if wait.until_ms is None else iso(min(wait.until_ms, LATEST_MS)),
                ends=wait.ends,
            )
            for wait in timeline.awaited
        ],
    )
