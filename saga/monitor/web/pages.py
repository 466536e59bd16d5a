"""The monitor's pages: rates, controls and the audit trail."""

import math
import re
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.errors import BadInput
from saga.messaging.controls import KINDS, Switch, describe_switch
from saga.monitor.web import plots
from saga.monitor.web.guards import FormFields
from saga.monitor.web.site import (
    PageNotFound,
    get_site,
    get_views,
    link,
    parse_number,
    quote_for_form,
    redirect_with_notice,
    slice_page,
)
from saga.ops.selection import Operator
from saga.support.clock import Clock, from_iso, iso

ROWS_MAX = 200
"""Maximum number of handlers on the page of rates, because rendering a thousand of them takes too long. `saga monitor
rates` shows all."""


# ---------------------------------------------------------------- rates


async def rates(request: Request) -> Response:
    """Show rates, durations and errors of each handler with small plots. Also show hot sagas and partitions."""
    site = get_site(request)
    views = get_views(site)
    found = views.rates()
    return site.render(
        request,
        "rates.html.j2",
        rates=found,
        handlers=found.handlers[:ROWS_MAX],
        left_out=len(found.handlers[ROWS_MAX:]),
        plot=lambda rate: plots.draw_bars(rate.slices, found.newest_ms, found.minutes),
        errors=views.errors(),
        hot=views.hot(),
    )


READ_MODEL_ROUTES = [Route("/rates", rates)]
"""Routes of the pages that need the read model."""


# -------------------------------------------------------------------- control pages


ENTRIES_PER_PAGE = 100
QUOTED = "quoted"
"""Field of a form whose names and ids are quoted as in an address."""
_UNITS_S = {"m": 60, "h": 3600, "d": 86400}


async def controls(request: Request) -> Response:
    """Show all active controls, and forms with which more can be set."""
    site = get_site(request)
    found = await site.desk.controls()
    return site.render(
        request,
        "controls.html.j2",
        found=found,
        control_logs=found.value or (),
        words=describe_switch,
        target=_list_fields_to_end,
    )


def _list_fields_to_end(switch: Switch) -> list[tuple[str, str]]:
    """Return the fields of a form that ends a control. Names and ids are quoted, so that the page does not change
    them."""
    fields = [("kind", switch.kind), (QUOTED, "yes")]
    if switch.kind == "flag":
        return [
            *fields,
            ("flag", quote_for_form(switch.flag)),
            ("percent", "0"),
            ("saga", quote_for_form(switch.saga or "")),
        ]
    named = (what for what in ("handler", "event", "resource") if getattr(switch, what))
    return [*fields, ("off", "yes"), *((what, quote_for_form(getattr(switch, what))) for what in named)]


async def switch(request: Request) -> Response:
    """Set or end the control that the form describes."""
    site = get_site(request)
    form, session = await site.read_form(request)
    service, why = form.one("service"), form.one("why")
    known = (await site.desk.controls()).value or ()
    if service not in (log.service for log in known):
        raise BadInput(f"no service {service} has a store here")
    if not why:
        raise BadInput("a reason is missing: it is recorded in the control log")
    sentence = await site.desk.switch(service, parse_switch(form, site.clock), Operator(session.user, why))
    return redirect_with_notice(session, sentence, "/controls")


def parse_switch(form: FormFields, clock: Clock) -> Switch:
    """Parse the control that a form describes. Raises `BadInput` if the form is invalid.

    Only the form is checked here. A control that is not possible is refused by the service itself.
    """
    kind, until = form.one("kind"), _parse_until(form.one("until"), clock)
    is_quoted = form.one(QUOTED) == "yes"
    named = {name: form.one(name) for name in ("flag", "saga", "handler", "event", "resource")}
    named = {name: unquote(text) if is_quoted else text for name, text in named.items()}
    if kind not in KINDS:
        raise BadInput("the form has no control: a flag, a pause, a limit or a route")
    if kind == "flag":
        saga = named["saga"] or None
        percent = _parse_decimal(form.one("percent"), "percent")
        if percent is None and saga is None:
            raise BadInput("give a percentage, or one saga: a flag for all sagas needs 100 percent")
        return Switch(flag=named["flag"], percent=100.0 if percent is None else percent, saga=saga, until=until)
    at_once = _parse_decimal(form.one("at_once"), "at once")
    if at_once is not None and at_once != int(at_once):
        raise BadInput("the number of calls or runs at once must be a whole number")
    return Switch(
        kind=kind,
        off=form.one("off") == "yes",
        until=until,
        handler=named["handler"] or None,
        event=named["event"] or None,
        resource=named["resource"] or None,
        at_once_max=None if at_once is None else int(at_once),
        rate_per_s=_parse_decimal(form.one("rate"), "a second"),
    )


def _parse_decimal(text: str, what: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e9:
        raise BadInput(f"{what}: {text!r} is no number")
    return value


def _parse_until(text: str, clock: Clock) -> str | None:
    """Parse the time at which a control ends by itself: a duration from now, or RFC 3339. Return `None` for an empty
    text. Raises `BadInput` for any other text."""
    if not text:
        return None
    match = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    try:
        return iso(clock.now_ms() + int(match[1]) * _UNITS_S[match[2]] * 1000) if match else iso(from_iso(text))
    except (ValueError, OverflowError):
        raise BadInput(f"{text!r} is no time: give 30m, 2h, 3d or 2026-11-22T16:00:00Z") from None


async def audit(request: Request) -> Response:
    """Show the audit trail of one service, newest entry first. If no service is selected, show a list of services."""
    site, asked = get_site(request), request.query_params
    found = await site.desk.controls()
    service = asked.get("service", "")
    log = next((each for each in found.value or () if each.service == service), None)
    if service and log is None and not found.is_coming:
        raise PageNotFound(f"no service {service} has a store here")
    at = parse_number(asked, "at", 1_000_000)
    rows, before, behind = slice_page(() if log is None else log.entries, at, ENTRIES_PER_PAGE)
    return site.render(
        request,
        "audit.html.j2",
        found=found,
        control_log=log,
        rows=rows,
        words=describe_switch,
        before=None if before is None else link("/audit", service=service, at=before),
        behind=None if behind is None else link("/audit", service=service, at=behind),
    )


CONTROL_ROUTES = [
    Route("/controls", controls),
    Route("/controls/switch", switch, methods=["POST"]),
    Route("/audit", audit),
]
