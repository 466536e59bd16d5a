"""Pages of many sagas: search with filters, and those that are stuck."""

from collections.abc import Mapping, Sequence
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.monitor.views import PageRequest, SagaFilter, SagaRow
from saga.monitor.web.site import Site, get_site, get_views, link

SAGAS_PER_PAGE = 50
AGES = {"1m": 60, "10m": 600, "1h": 3600, "1d": 86_400, "7d": 604_800}
"""Ages that can be selected, in seconds."""
OUTCOMES: Mapping[str, Literal["none", "success", "failure"]] = {
    "none": "none",
    "success": "success",
    "failure": "failure",
}
STATES = ("open", "dead", "escalated", "stuck")
ROWS_MAX = 200
"""Maximum number of stuck sagas on a page."""


# ---------------------------------------------------------------- all sagas


async def sagas(request: Request) -> Response:
    """Show the sagas that match the filter, last changed first."""
    site, asked = get_site(request), request.query_params
    views, now_ms = get_views(site), site.clock.now_ms()
    chosen = {name: asked.get(name, "") for name in ("text", "service", "outcome", "age", "state")}
    troubles: Sequence[str] = ()
    rows: Sequence[SagaRow]
    if chosen["state"] == "escalated":
        rows, next_, troubles = await _list_escalated(site, parse_filter(chosen, now_ms))
        looked, known = len(rows), None
    else:
        found = views.sagas(
            parse_filter(chosen, now_ms), PageRequest(limit=SAGAS_PER_PAGE, after=asked.get("after", ""))
        )
        rows, next_, looked, known = found.rows, found.next, found.looked, found.known
    return site.render(
        request,
        "sagas.html.j2",
        rows=rows,
        looked=looked,
        known=known,
        chosen=chosen,
        ages=AGES,
        states=STATES,
        services=sorted({rate.service for rate in views.rates().handlers}),
        behind=link("/sagas", **chosen, after=next_) if next_ else None,
        is_first=not asked.get("after"),
        troubles=troubles,
    )


def parse_filter(chosen: dict[str, str], now_ms: int) -> SagaFilter:
    """Parse the filter fields of the page. An invalid value is ignored."""
    age_s = AGES.get(chosen["age"])
    return SagaFilter(
        text=chosen["text"],
        service=chosen["service"],
        outcome=OUTCOMES.get(chosen["outcome"], ""),
        before_ms=None if age_s is None else now_ms - age_s * 1000,
        dead=chosen["state"] == "dead",
        open=chosen["state"] == "open",
        stuck_ms=now_ms if chosen["state"] == "stuck" else None,
    )


async def _list_escalated(site: Site, which: SagaFilter) -> tuple[list[SagaRow], str, Sequence[str]]:
    """List the sagas with an open escalation."""
    found = await site.desk.letters()
    told = found.value.items if found.value is not None else ()
    ids = dict.fromkeys(
        each.letter.saga
        for each in told
        if each.letter.what == "escalation" and each.letter.saga and each.state not in ("resolved", "over")
    )
    now_ms, rows = site.clock.now_ms(), list[SagaRow]()
    for id_ in ids:
        told_of = get_views(site).saga(id_, now_ms) if which.text in id_ else None
        if told_of is not None and _matches_row(told_of.row, which):
            rows.append(told_of.row)
        if len(rows) == SAGAS_PER_PAGE:
            break
    troubles = ["what needs a person is being read: look again"] if found.is_coming else found.troubles
    return rows, "", troubles


def _matches_row(row: SagaRow, which: SagaFilter) -> bool:
    return (
        which.service in ("", *row.services)
        and which.outcome in ("", row.result or "none")
        and (which.before_ms is None or row.began_ms < which.before_ms)
    )


async def stuck(request: Request) -> Response:
    """Show the stuck sagas, those stuck longest first."""
    site = get_site(request)
    found = get_views(site).stuck(site.clock.now_ms())
    more = found.more or len(found.sagas) > ROWS_MAX
    return site.render(request, "stuck.html.j2", sagas=found.sagas[:ROWS_MAX], more=more)


SEARCH_ROUTES = [Route("/sagas", sagas), Route("/stuck", stuck)]
"""Routes of the pages that need the read model."""
