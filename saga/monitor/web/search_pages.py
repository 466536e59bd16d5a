"""Pages that list sagas: a search with filters, and a list of the stuck sagas."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.monitor.views import PageRequest, SagaFilter, SagaPage, SagaRow, StuckCount, StuckFilter
from saga.monitor.web.renewal import read_renewal
from saga.monitor.web.site import Site, get_site, get_views, link, parse_number, parse_time

SAGAS_PER_PAGE = 50
ESCALATED_LOOK_MAX = 1000
"""Maximum number of escalated sagas that are examined for one page."""
AGES = {"1m": 60, "10m": 600, "1h": 3600, "1d": 86_400, "7d": 604_800}
"""Ages that can be selected, each in seconds."""
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
OUTCOMES: Mapping[str, Literal["none", "success", "failure"]] = {
    "none": "none",
    "success": "success",
    "failure": "failure",
}
STATES = ("open", "dead", "escalated", "stuck")
SAGA_FIELDS = ("text", "service", "kind", "outcome", "age", "state", "since", "until")
"""Names of the search fields."""
STUCK_FIELDS = ("why", "service", "kind", "age")
"""Names of the filter fields for stuck sagas."""
STUCK_PER_PAGE = 100
WHYS: Mapping[str, str] = {
    "dead": "a dead letter blocks it",
    "failing": "the service's own code fails",
    "overdue": "due work has not run",
    "waiting": "it waits longer than usual",
    "silent": "nothing is reported of it",
}
"""Reasons why a saga is stuck, with the labels that the page shows."""


# ---------------------------------------------------------------- all sagas


async def sagas(request: Request) -> Response:
    """Show the sagas that match the filter. Those that changed last come first."""
    site, asked = get_site(request), request.query_params
    views, now_ms = get_views(site), site.clock.now_ms()
    chosen = {name: asked.get(name, "") for name in SAGA_FIELDS}
    which = parse_filter(chosen, now_ms)
    found: SagaPage | EscalatedPage
    if chosen["state"] == "escalated":
        found = await _list_escalated(site, which, parse_number(asked, "after", 1_000_000))
    else:
        found = views.sagas(which, PageRequest(limit=SAGAS_PER_PAGE, after=asked.get("after", "")))
    return site.render(
        request,
        "sagas.html.j2",
        rows=found.rows,
        looked=found.looked,
        known=found.known if isinstance(found, SagaPage) else None,
        untracked=() if isinstance(found, SagaPage) else found.untracked,
        chosen=chosen,
        ages=AGES,
        states=STATES,
        names=views.names(),
        newest_ms=views.rates().newest_ms,
        renewal=read_renewal(request),
        csv=link("/export/sagas.csv", **chosen),
        json=link("/export/sagas.json", **chosen),
        behind=link("/sagas", **chosen, after=found.next) if found.next else None,
        is_first=not asked.get("after"),
        troubles=() if isinstance(found, SagaPage) else found.troubles,
    )


def parse_filter(chosen: Mapping[str, str], now_ms: int) -> SagaFilter:
    """Parse the fields of the search. Invalid values are ignored."""
    age_s, until_ms = AGES.get(chosen.get("age", "")), parse_when(chosen.get("until", ""), now_ms)
    before = [ms for ms in (until_ms, None if age_s is None else now_ms - age_s * 1000) if ms is not None]
    return SagaFilter(
        text=chosen["text"],
        service=chosen["service"],
        kind=chosen.get("kind", ""),
        outcome=OUTCOMES.get(chosen["outcome"], ""),
        since_ms=parse_when(chosen.get("since", ""), now_ms),
        before_ms=min(before, default=None),
        dead=chosen["state"] == "dead",
        open=chosen["state"] == "open",
        stuck_ms=now_ms if chosen["state"] == "stuck" else None,
    )


def parse_when(text: str, now_ms: int) -> int | None:
    """Parse a time as a person writes it: how long ago it was, or a time in UTC. Return `None` for any other text.

    >>> parse_when("2m", 180_000), parse_when("1970-01-01 00:01", 0), parse_when("1970-01-01T00:00:02Z", 0)
    (60000, 60000, 2000)
    >>> parse_when("yesterday", 0), parse_when("", 0)
    (None, None)
    """
    text = text.strip()
    if (ago := re.fullmatch(r"([0-9]{1,6})([smhd])", text)) is not None:
        return now_ms - int(ago[1]) * UNITS_S[ago[2]] * 1000
    return parse_time(text.replace(" ", "T") + {10: "T00:00:00Z", 16: ":00Z", 19: "Z"}.get(len(text), ""))


class EscalatedPage(NamedTuple):
    """A page of sagas with open escalations. The saga with the newest escalation comes first."""

    rows: Sequence[SagaRow]
    untracked: Sequence[str]
    """Ids of sagas that are not in the read model."""
    next: str
    """Position at which the next page begins; empty if there is none."""
    looked: int
    """Number of sagas that were examined."""
    troubles: Sequence[str]


async def _list_escalated(site: Site, which: SagaFilter, at: int) -> EscalatedPage:
    """List the sagas with an open escalation that match the filter, beginning at position `at`."""
    letters = await site.desk.letters()
    items = letters.value.items if letters.value is not None else ()
    ids = [*dict.fromkeys(
        each.letter.saga
        for each in items
        if each.letter.what == "escalation" and each.letter.saga and each.is_open
    )]  # fmt: skip
    now_ms, rows, untracked, end = site.clock.now_ms(), list[SagaRow](), list[str](), at
    for id_ in ids[at : at + ESCALATED_LOOK_MAX]:
        if len(rows) + len(untracked) == SAGAS_PER_PAGE:
            break
        end += 1
        if which.text not in id_:
            continue
        timeline = get_views(site).saga(id_, now_ms)
        if timeline is None:
            untracked.append(id_)
        elif _matches_row(timeline.row, which):
            rows.append(timeline.row)
    troubles = ["what needs a person is being read: look again"] if letters.is_coming else letters.troubles
    return EscalatedPage(rows, untracked, str(end) if end < len(ids) else "", end - at, troubles)


def _matches_row(row: SagaRow, which: SagaFilter) -> bool:
    return (
        which.service in ("", *row.services)
        and which.kind in ("", row.kind)
        and which.outcome in ("", row.result or "none")
        and (which.since_ms is None or row.began_ms >= which.since_ms)
        and (which.before_ms is None or row.began_ms < which.before_ms)
    )


async def stuck(request: Request) -> Response:
    """Show the stuck sagas that match the filter, those stuck longest first, and the numbers of all stuck sagas."""
    site, asked = get_site(request), request.query_params
    views, chosen = get_views(site), {name: asked.get(name, "") for name in STUCK_FIELDS}
    which = parse_stuck_filter(chosen)
    page = PageRequest(limit=STUCK_PER_PAGE, after=asked.get("after", ""))
    found = views.stuck(site.clock.now_ms(), which, page)
    whys = sum_counts(found.counts, "why", which)
    return site.render(
        request,
        "stuck.html.j2",
        sagas=found.sagas,
        chosen=chosen,
        is_narrow=any(chosen.values()),
        total=sum(each.count for each in found.counts),
        count=whys.get(which.why, 0) if which.why else sum(whys.values()),
        whys=[(why, words, whys[why]) for why, words in WHYS.items() if why in whys],
        services=_list_options(sum_counts(found.counts, "service", which), which.service),
        kinds=_list_options(sum_counts(found.counts, "kind", which), which.kind),
        ages=AGES,
        words=WHYS,
        newest_ms=views.rates().newest_ms,
        renewal=read_renewal(request),
        csv=link("/export/stuck.csv", **chosen),
        json=link("/export/stuck.json", **chosen),
        of=lambda **more: link("/stuck", **{**chosen, **more}),
        first=link("/stuck", **chosen) if page.after else None,
        behind=link("/stuck", **chosen, after=found.next) if found.next else None,
    )


def parse_stuck_filter(chosen: Mapping[str, str]) -> StuckFilter:
    """Parse the filter fields of the page of stuck sagas. An invalid age is ignored."""
    return StuckFilter(
        why=chosen.get("why", ""),
        service=chosen.get("service", ""),
        kind=chosen.get("kind", ""),
        age_ms=AGES.get(chosen.get("age", ""), 0) * 1000,
    )


def sum_counts(
    counts: Sequence[StuckCount], field: Literal["why", "service", "kind"], which: StuckFilter
) -> dict[str, int]:
    """Return the numbers of stuck sagas by the values of one field. Only sagas that match the other fields of the
    filter are counted."""
    sums: dict[str, int] = {}
    for each in counts:
        others = [name for name in ("why", "service", "kind") if name != field and getattr(which, name)]
        if all(getattr(which, name) == getattr(each, name) for name in others):
            key = getattr(each, field)
            sums[key] = sums.get(key, 0) + each.count
    return sums


def _list_options(sums: Mapping[str, int], chosen: str) -> list[tuple[str, str]]:
    """Return the options of a selection field. Each label contains the number of sagas."""
    names = sorted({*sums, chosen} - {""})
    return [(name, f"{name} ({sums.get(name, 0):,})") for name in names]


SEARCH_ROUTES = [Route("/sagas", sagas), Route("/stuck", stuck)]
"""Routes of the pages that need the read model."""
