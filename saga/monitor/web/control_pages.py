"""Pages of what people switch in services, and of the book in which all of it stands."""

import math
import re

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.errors import BadInput
from saga.messaging import active_controls
from saga.messaging.controls import KINDS, Switch
from saga.monitor.web.guards import Form
from saga.monitor.web.site import Unknown, link, number_in, portion, seen_after, site_of
from saga.ops.selection import Operator
from saga.support.clock import Clock, from_iso, iso

PER_PAGE = 100
_UNITS_S = {"m": 60, "h": 3600, "d": 86400}


async def controls(request: Request) -> Response:
    """Everything that is switched now, and forms to switch more."""
    site = site_of(request)
    found = await site.desk.controls()
    return site.page(
        request,
        "controls.html.j2",
        found=found,
        books=found.value or (),
        words=active_controls.in_words,
        target=_target,
    )


def _target(switch: Switch) -> list[tuple[str, str]]:
    """Fields of a form that ends what is switched."""
    fields = [("kind", switch.kind), ("off", "yes")]
    if switch.kind == "flag":
        return [("kind", "flag"), ("flag", switch.flag), ("percent", "0"), ("saga", switch.saga or "")]
    return [*fields, *((what, name) for what in ("handler", "event", "resource") if (name := getattr(switch, what)))]


async def switch(request: Request) -> Response:
    """Switch what the form says."""
    site = site_of(request)
    form, session = await site.form(request)
    service, why = form.one("service"), form.one("why")
    known = (await site.desk.controls()).value or ()
    if service not in (book.service for book in known):
        raise BadInput(f"no service {service} has a store here")
    if not why:
        raise BadInput("a reason is missing: it stands in the service's book")
    sentence = await site.desk.switch(service, switch_in(form, site.clock), Operator(session.user, why))
    return seen_after(session, sentence, "/controls")


def switch_in(form: Form, clock: Clock) -> Switch:
    """Switch that a form describes. Raises `BadInput`; what no service can do is found later."""
    kind, until = form.one("kind"), _until(form.one("until"), clock)
    if kind not in KINDS:
        raise BadInput("the form does not say what to switch: a flag, a pause, a limit or a route")
    if kind == "flag":
        saga = form.one("saga") or None
        percent = _number(form.one("percent"), "percent")
        return Switch(flag=form.one("flag"), percent=100.0 if percent is None else percent, saga=saga, until=until)
    at_once = _number(form.one("at_once"), "at once")
    if at_once is not None and at_once != int(at_once):
        raise BadInput("calls or runs at once are a whole number")
    return Switch(
        kind=kind,
        off=form.one("off") == "yes",
        until=until,
        handler=form.one("handler") or None,
        event=form.one("event") or None,
        resource=form.one("resource") or None,
        at_once_max=None if at_once is None else int(at_once),
        rate_per_s=_number(form.one("rate"), "a second"),
    )


def _number(text: str, what: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e9:
        raise BadInput(f"{what}: {text!r} is no number")
    return value


def _until(text: str, clock: Clock) -> str | None:
    """Time at which a switch ends by itself: so long from now, or as RFC 3339."""
    if not text:
        return None
    said = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    try:
        return iso(clock.now_ms() + int(said[1]) * _UNITS_S[said[2]] * 1000) if said else iso(from_iso(text))
    except (ValueError, OverflowError):
        raise BadInput(f"{text!r} is no time: give 30m, 2h, 3d or 2026-11-22T16:00:00Z") from None


async def audit(request: Request) -> Response:
    """Book of one service, newest entry first; or the services, to choose from."""
    site, asked = site_of(request), request.query_params
    found = await site.desk.controls()
    service = asked.get("service", "")
    book = next((each for each in found.value or () if each.service == service), None)
    if service and book is None and not found.is_coming:
        raise Unknown(f"no service {service} has a store here")
    at = number_in(asked, "at", 1_000_000)
    rows, before, behind = portion(() if book is None else book.entries, at, PER_PAGE)
    return site.page(
        request,
        "audit.html.j2",
        found=found,
        book=book,
        rows=rows,
        words=active_controls.in_words,
        before=None if before is None else link("/audit", service=service, at=before),
        behind=None if behind is None else link("/audit", service=service, at=behind),
    )


ROUTES = [
    Route("/controls", controls),
    Route("/controls/switch", switch, methods=["POST"]),
    Route("/audit", audit),
]
