"""The overview: the monitor's first page, which says whether everything is all right."""

from collections import Counter
from collections.abc import Mapping, Sequence

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.monitor.counters import MINUTES
from saga.monitor.web import plots
from saga.monitor.web.letter_filters import is_open_escalation
from saga.monitor.web.overview import ServiceCard, ServiceFacts, build_overview
from saga.monitor.web.renewal import read_renewal
from saga.monitor.web.site import Site, get_site, get_views
from saga.support.documentation import link_page

SHOWN_FIRST = 3
"""Number of kinds of problems that the overview shows at once. Further kinds are collapsed."""
EACH_MAX = 5
"""Maximum number of services that the overview names for each kind of problem."""
SERVICES_MAX = 100
"""Maximum number of services in the table."""


async def overview(request: Request) -> Response:
    """Show whether everything is all right, what needs attention most, and the state of each service."""
    site = get_site(request)
    facts, troubles = await _read_facts(site)
    found = build_overview(facts)
    newest_ms = max(site.clock.now_ms(), facts.activity.newest_ms)
    return site.render(
        request,
        "overview.html.j2",
        found=found,
        activity=facts.activity,
        troubles=troubles,
        first=found.groups[:SHOWN_FIRST],
        others=found.groups[SHOWN_FIRST:],
        each_max=EACH_MAX,
        cards=found.cards[:SERVICES_MAX],
        left_out=len(found.cards[SERVICES_MAX:]),
        plot_transitions=lambda card: _plot_transitions(card, newest_ms),
        plot_durations=lambda card: _plot_durations(card, newest_ms),
        plot_lag=lambda card: _plot_lag(card, newest_ms),
        docs=site.docs,
        link_page=link_page,
        renewal=read_renewal(request),
    )


async def _read_facts(site: Site) -> tuple[ServiceFacts, Sequence[str]]:
    """Read the facts about all services. Also return the reasons why some are not known."""
    running, controls, letters = await site.watch.get(), await site.desk.controls(), await site.desk.letters()
    offsets = {each.service: each for each in running.value or ()}
    items = letters.value.items if letters.value is not None else ()
    blocked = {(each.letter.service, each.letter.saga) for each in items if each.state == "blocks"}
    facts = ServiceFacts(
        activity=get_views(site).activity(site.clock.now_ms()),
        offsets=offsets,
        is_broker_known=running.value is not None and not running.troubles,
        are_letters_known=letters.value is not None and not letters.troubles,
        lags={service: site.watch.list_lags(service) for service in offsets},
        controls={each.service: [*each.active.values()] for each in controls.value or ()},
        flags={each.service: len(each.switches) for each in controls.value or ()},
        escalations=Counter(each.letter.service for each in items if is_open_escalation(each)),
        blocked=Counter(service for service, _ in blocked),
    )
    return facts, [*running.troubles, *(each for each in letters.troubles if each not in running.troubles)]


def _plot_transitions(card: ServiceCard, newest_ms: int) -> Markup:
    return plots.draw_bars(card.activity.minutes if card.activity is not None else (), newest_ms, MINUTES)


def _plot_durations(card: ServiceCard, newest_ms: int) -> Markup:
    minutes = card.activity.minutes if card.activity is not None else ()
    values: Mapping[int, float] = {each.minute_ms: each.p95_ms for each in minutes if each.p95_ms}
    return plots.draw_line(values, newest_ms, MINUTES, "p95 of the duration in milliseconds")


def _plot_lag(card: ServiceCard, newest_ms: int) -> Markup:
    return plots.draw_line({each.minute_ms: each.lag for each in card.lags}, newest_ms, MINUTES, "lag in messages")


OVERVIEW_ROUTES = [Route("/overview", overview)]
