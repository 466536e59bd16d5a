"""The monitor's page about one saga: why the saga is not finished, its picture, and its timeline."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.errors import NoStore, SagaError
from saga.monitor.reports import list_reports
from saga.monitor.views import Timeline, TimelineRow
from saga.monitor.web.operator_console import StoredSaga
from saga.monitor.web.path_picture import draw_path_picture
from saga.monitor.web.saga_picture import (
    NO_OUTCOME,
    RUNS_MAX,
    PictureOutcome,
    PictureRun,
    PictureWait,
    draw_names,
    draw_saga,
    place_saga,
)
from saga.monitor.web.site import PageNotFound, Site, get_site, parse_time


async def saga(request: Request) -> Response:
    """Show one saga as recorded in the stores. If no store has the saga, show it as transition events reported it."""
    site, id_ = get_site(request), request.query_params.get("id", "")
    if not id_:
        raise PageNotFound("name a saga by its id")
    timeline = site.views.saga(id_, site.clock.now_ms()) if site.views is not None else None
    seen, trouble = await _load_saga(site, id_, timeline)
    if timeline is None and (seen is None or not (seen.shown.histories or seen.shown.unreadable)):
        reasons = [f"no service knows saga {id_}", *([trouble] if trouble else []), *(seen.troubles if seen else ())]
        raise PageNotFound("\n".join(reasons), id_)
    found = await site.desk.letters()
    letters = [each for each in (found.value.items if found.value is not None else ()) if each.letter.saga == id_]
    runs, outcome = list_runs(seen, timeline), find_outcome(seen, timeline)
    picture = place_saga(runs, list_waits(seen, timeline), outcome, site.clock.now_ms()) if runs else None
    return site.render(
        request,
        "saga.html.j2",
        id=id_,
        seen=seen if seen is not None and seen.shown.histories else None,
        timeline=timeline,
        explanation=None if seen is None else seen.explanation,
        expected=None if seen is None else draw_path_picture(seen.explanation.path),
        picture=None if picture is None else draw_names(picture) + draw_saga(picture),
        left_out=max(0, len(runs) - RUNS_MAX),
        outcome=outcome,
        troubles=[*([trouble] if trouble else []), *(seen.troubles if seen is not None else ())],
        letters=letters,
        letters_coming=found.is_coming,
    )


async def _load_saga(site: Site, id_: str, timeline: Timeline | None) -> tuple[StoredSaga | None, str]:
    """Load a saga from the stores. If they cannot be read, return `None` and the reason.

    Raises `SagaError` if the stores cannot be read and no transition event of the saga was reported either.
    """
    try:
        return await site.desk.saga(id_, list_reports(timeline)), ""
    except NoStore as why:
        return None, "" if site.views is not None else str(why)
    except SagaError as why:
        if timeline is None:
            raise
        return None, str(why)


# ---------------------------------------------------------------- what the picture shows


def list_runs(seen: StoredSaga | None, timeline: Timeline | None) -> list[PictureRun]:
    """Return the transitions for the picture. They come from the stores or, if no store has the saga, from the reports.
    Durations come only from the reports."""
    reported: Mapping[tuple[str, int], TimelineRow] = (
        {} if timeline is None else {(line.service, line.number): line for line in timeline.lines}
    )
    if seen is None or not seen.shown.entries:
        return [
            PictureRun(
                service=line.service,
                handler=line.handler,
                outcome=line.outcome,
                type=line.type,
                source=line.source,
                emitted=line.emitted,
                end_ms=line.time_ms,
                run_ms=line.handler_ms,
                queued_ms=line.queued_ms,
                attempt=line.attempt,
            )
            for line in reported.values()
        ]
    found = []
    for entry in seen.shown.entries:
        report = reported.get((entry.service, entry.transition))
        found.append(
            PictureRun(
                service=entry.service,
                handler=entry.handler,
                outcome=entry.outcome,
                type=entry.type,
                source=entry.source,
                emitted=entry.emitted,
                end_ms=parse_time(entry.time) or 0,
                run_ms=None if report is None else report.handler_ms,
                queued_ms=None if report is None else report.queued_ms,
                attempt=entry.attempt,
            )
        )
    return found


def list_waits(seen: StoredSaga | None, timeline: Timeline | None) -> list[PictureWait]:
    """Return what the saga waits for, as services reported it. Without reports, return the events that are missing
    according to the stores."""
    if timeline is not None:
        return [
            PictureWait(each.service, each.handler, each.for_, each.since_ms, not each.for_ and each.until_ms is None)
            for each in timeline.awaited
        ]
    if seen is None:
        return []
    last_ms = max((parse_time(entry.time) or 0 for entry in seen.shown.entries), default=0)
    return [
        PictureWait(event.service, event.handler, event.causes, last_ms, is_person=False)
        for event in seen.explanation.path
        if event.mark == "missing" and event.service
    ]


def find_outcome(seen: StoredSaga | None, timeline: Timeline | None) -> PictureOutcome:
    """Return the outcome of the saga from the stores, or else from the reports."""
    if seen is not None and seen.explanation.outcome:
        return PictureOutcome(seen.explanation.result or "", seen.explanation.outcome)
    if timeline is not None and timeline.row.result:
        return PictureOutcome(timeline.row.result, timeline.row.outcome)
    return NO_OUTCOME


SAGA_ROUTES = [Route("/saga", saga)]
