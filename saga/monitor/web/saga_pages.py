"""Pages of sagas: all of them with search and filters, one saga as a timeline, those that are stuck, and rates."""

from collections.abc import Mapping, Sequence
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.errors import NoStore
from saga.monitor.views import Filter, Page, Row, Timeline, Views
from saga.monitor.web import graph, plots
from saga.monitor.web.desk import SagaSeen
from saga.monitor.web.site import Site, Unknown, link, site_of

PER_PAGE = 50
AGES = {"1m": 60, "10m": 600, "1h": 3600, "1d": 86_400, "7d": 604_800}
"""Ages that can be chosen, in seconds."""
OUTCOMES: Mapping[str, Literal["none", "success", "failure"]] = {
    "none": "none",
    "success": "success",
    "failure": "failure",
}
STATES = ("open", "dead", "escalated", "stuck")
ROWS_MAX = 200
"""Handlers, or stuck sagas, on a page, at most: a thousand take longer than the page may. `saga monitor rates` and
`saga monitor stuck` have more."""


def views_of(site: Site) -> Views:
    """Folds of what services told."""
    assert site.views is not None, "its routes are there only with it"
    return site.views


# ---------------------------------------------------------------- all sagas


async def sagas(request: Request) -> Response:
    """Sagas that the filters mean, last changed first."""
    site, asked = site_of(request), request.query_params
    views, now_ms = views_of(site), site.clock.now_ms()
    chosen = {name: asked.get(name, "") for name in ("text", "service", "outcome", "age", "state")}
    troubles: Sequence[str] = ()
    rows: Sequence[Row]
    if chosen["state"] == "escalated":
        rows, next_, troubles = await _escalated(site, filter_of(chosen, now_ms))
        looked, known = len(rows), None
    else:
        found = views.sagas(filter_of(chosen, now_ms), Page(limit=PER_PAGE, after=asked.get("after", "")))
        rows, next_, looked, known = found.rows, found.next, found.looked, found.known
    return site.page(
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


def filter_of(chosen: dict[str, str], now_ms: int) -> Filter:
    """Filter that the fields of the page mean; what is none of what can be chosen is left out."""
    age_s = AGES.get(chosen["age"])
    return Filter(
        text=chosen["text"],
        service=chosen["service"],
        outcome=OUTCOMES.get(chosen["outcome"], ""),
        before_ms=None if age_s is None else now_ms - age_s * 1000,
        dead=chosen["state"] == "dead",
        open=chosen["state"] == "open",
        stuck_ms=now_ms if chosen["state"] == "stuck" else None,
    )


async def _escalated(site: Site, which: Filter) -> tuple[list[Row], str, Sequence[str]]:
    """Sagas of which people were told that something cannot be undone, and is not put right yet."""
    found = await site.desk.letters()
    told = found.value.items if found.value is not None else ()
    ids = dict.fromkeys(
        each.letter.saga
        for each in told
        if each.letter.what == "escalation" and each.letter.saga and each.state not in ("resolved", "over")
    )
    now_ms, rows = site.clock.now_ms(), list[Row]()
    for id_ in ids:
        told_of = views_of(site).saga(id_, now_ms) if which.text in id_ else None
        if told_of is not None and _fits(told_of.row, which):
            rows.append(told_of.row)
        if len(rows) == PER_PAGE:
            break
    troubles = ["what needs a person is being read: look again"] if found.is_coming else found.troubles
    return rows, "", troubles


def _fits(row: Row, which: Filter) -> bool:
    return (
        which.service in ("", *row.services)
        and which.outcome in ("", row.result or "none")
        and (which.before_ms is None or row.began_ms < which.before_ms)
    )


# ---------------------------------------------------------------- one saga


async def saga(request: Request) -> Response:
    """One saga: as the services have written it down; where no store has it, as they told of it."""
    site, id_ = site_of(request), request.query_params.get("id", "")
    if not id_:
        raise Unknown("name a saga by its id")
    told = site.views.saga(id_, site.clock.now_ms()) if site.views is not None else None
    seen, trouble = await _seen(site, id_)
    if told is None and (seen is None or not seen.shown.histories):
        raise Unknown(
            "\n".join(
                [f"no service knows saga {id_}", *([trouble] if trouble else []), *(seen.troubles if seen else ())]
            )
        )
    found = await site.desk.letters()
    letters = [each for each in (found.value.items if found.value is not None else ()) if each.letter.saga == id_]
    return site.page(
        request,
        "saga.html.j2",
        id=id_,
        seen=seen if seen is not None and seen.shown.histories else None,
        told=told,
        outcome=_outcome(seen, told),
        troubles=[*([trouble] if trouble else []), *(seen.troubles if seen is not None else ())],
        letters=letters,
        letters_coming=found.is_coming,
    )


async def _seen(site: Site, id_: str) -> tuple[SagaSeen | None, str]:
    """The saga as the stores have it, or the reason that they cannot be asked."""
    try:
        return await site.desk.saga(id_), ""
    except NoStore as why:
        return None, "" if site.views is not None else str(why)


def _outcome(seen: SagaSeen | None, told: Timeline | None) -> str:
    of_stores = next((s.outcome for s in seen.shown.statuses if s.outcome), None) if seen is not None else None
    return of_stores or (told.row.outcome if told is not None else "")


# ---------------------------------------------------------------- rates and what is stuck


async def stuck(request: Request) -> Response:
    """Sagas that do not go on by themselves, longest first."""
    site = site_of(request)
    found = views_of(site).stuck(site.clock.now_ms())
    more = found.more or len(found.sagas) > ROWS_MAX
    return site.page(request, "stuck.html.j2", sagas=found.sagas[:ROWS_MAX], more=more)


async def rates(request: Request) -> Response:
    """Rates, times and errors of each handler, with small plots; hot keys and partitions."""
    site = site_of(request)
    views = views_of(site)
    found = views.rates()
    return site.page(
        request,
        "rates.html.j2",
        rates=found,
        handlers=found.handlers[:ROWS_MAX],
        left_out=len(found.handlers[ROWS_MAX:]),
        plot=lambda rate: plots.bars(rate.slices, found.newest_ms, found.minutes),
        errors=views.errors(),
        hot=views.hot(),
    )


async def choreography(request: Request) -> Response:
    """Graph of who says what to whom, from contracts and manifests; with rates where they are known."""
    site = site_of(request)
    found = await site.desk.overview()
    overview = found.value
    rates: dict[str, float] = {}
    trouble: dict[str, str] = {}
    for rate in site.views.rates().handlers if site.views is not None else ():
        rates[rate.service] = rates.get(rate.service, 0.0) + rate.per_s
        if rate.storm:
            trouble[rate.service] = "retries more than it gets done"
        elif rate.dead:
            trouble.setdefault(rate.service, "has had dead letters")
    services = [] if overview is None else sorted(overview.manifests)
    return site.page(
        request,
        "graph.html.j2",
        found=found,
        overview=overview,
        picture=graph.drawn(services, graph.events_of(overview) if overview is not None else ()),
        rates=rates,
        trouble=trouble,
        head=graph.HEAD_Y,
    )


FOLDED = [Route("/sagas", sagas), Route("/stuck", stuck), Route("/rates", rates)]
"""Pages that only the folds can give."""
ROUTES = [Route("/saga", saga), Route("/graph", choreography)]
