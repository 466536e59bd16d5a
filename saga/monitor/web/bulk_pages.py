"""Pages on which an operator confirms a command about many dead letters, follows its progress, and stops it."""

from dataclasses import replace
from urllib.parse import parse_qsl, urlencode

from markupsafe import escape
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.errors import BadInput
from saga.monitor.web.letter_filters import LetterFilter, parse_letter_filter
from saga.monitor.web.letter_pages import WANTED
from saga.monitor.web.operator_console import ACTING_S, RunningBulk
from saga.monitor.web.renewal import read_renewal
from saga.monitor.web.site import PageNotFound, Site, get_site, link, parse_number, redirect_with_notice
from saga.ops.bulk_commands import HALT_AFTER, RATE_MAX, BulkRequest, parse_rate
from saga.ops.letter_groups import LetterRow, group_letters
from saga.ops.operator_commands import REPLAYS_MAX, CommandRequest
from saga.ops.selection import Operator

RATE_PER_S = 5
"""Default rate in the form, in commands per second."""
REASONS_SHOWN = 5
"""Maximum number of different reasons that are shown to be confirmed."""


async def confirm(request: Request) -> Response:
    """Ask for confirmation: show how many dead letters a bulk action affects, and the form that starts it."""
    site, which = get_site(request), parse_letter_filter(request.query_params)
    found = await site.desk.letters()
    rows = which.select(found.value.rows) if found.value is not None else ()
    blocking = [row for row in rows if row.item.state == "blocks"]
    grouped = group_letters(blocking, "reason")
    return site.render(
        request,
        "bulk_confirm.html.j2",
        found=found,
        title=describe_selection(which, blocking),
        count=len(blocking),
        left_out=len(rows) - len(blocking),
        services=sorted({row.cause.service for row in blocking}),
        reasons=grouped[:REASONS_SHOWN],
        more_reasons=len(grouped[REASONS_SHOWN:]),
        selected=escape(urlencode(which.fields, errors="backslashreplace")),
        back=link("/dead/list", **which.fields),
        rate=RATE_PER_S,
        rate_max=int(RATE_MAX),
        replays_max=REPLAYS_MAX,
        halt_after=HALT_AFTER,
    )


def describe_selection(which: LetterFilter, rows: list[LetterRow]) -> str:
    """Describe in a few words what the dead letters of a bulk action have in common."""
    if not which.group or not rows:
        return "All dead letters that match the filter" if which.is_narrow else "All dead letters"
    cause = rows[0].cause
    place = f"{cause.service}.{cause.handler}" if cause.handler else cause.service
    match which.by:
        case "reason":
            return f"{cause.reason or 'no reason'} in {place}"
        case "exception":
            return f"{cause.exception or 'no exception'} in {place}"
        case "handler":
            return f"Dead letters of {place}"
        case "event":
            return f"{cause.event or 'Unknown events'} in {cause.service}"


async def start(request: Request) -> Response:
    """Start the bulk action that the form describes."""
    site = get_site(request)
    form, session = await site.read_form(request)
    wanted = WANTED.get(form.one("wanted"))
    if wanted not in ("replay", "discard"):
        raise BadInput("the form has no action: replay or discard")
    if not form.one("reason_given"):
        raise BadInput("a reason is missing: it is recorded in the history of each saga")
    which = parse_letter_filter(dict(parse_qsl(form.one("selected"), keep_blank_values=True)))
    found = await site.desk.letters()
    rows = which.select(found.value.rows) if found.value is not None else ()
    blocking = [row for row in rows if row.item.state == "blocks"]
    confirmed = parse_number({"count": form.one("count")}, "count", 1_000_000)
    if len(blocking) > confirmed:
        raise BadInput(f"{len(blocking)} letters match now, {confirmed} were confirmed: go back, and look again")
    operator = Operator(session.user, form.one("reason_given"), ACTING_S)
    request_ = BulkRequest(
        command=CommandRequest(wanted=wanted, operator=operator),
        rate_per_s=parse_rate(form.one("rate")),
        again=form.one("again") == "yes",
    )
    number = site.desk.start_bulk(describe_selection(which, blocking), [row.item for row in blocking], request_)
    return redirect_with_notice(session, "", link("/dead/bulk", number=number))


async def progress(request: Request) -> Response:
    """Show the progress of a bulk action."""
    site = get_site(request)
    bulk = _get_bulk(site, parse_number(request.query_params, "number", 1_000_000))
    now = replace(bulk.command.progress)
    left_s = (now.total - now.settled_count) / bulk.command.request.rate_per_s
    renewal = read_renewal(request)
    return site.render(
        request,
        "bulk.html.j2",
        bulk=bulk,
        asked_for=bulk.command.request,
        progress=now,
        problems=tuple(now.problems),
        left_ms=left_s * 1000,
        renewal=renewal,
    )


def _get_bulk(site: Site, number: int) -> RunningBulk:
    bulk = site.desk.get_bulk(number)
    if bulk is None:
        raise PageNotFound("this bulk action is no longer known here: the histories of its sagas have what it did")
    return bulk


async def stop(request: Request) -> Response:
    """Stop a bulk action, so that no more commands are sent."""
    site = get_site(request)
    form, session = await site.read_form(request)
    bulk = _get_bulk(site, parse_number({"number": form.one("number")}, "number", 1_000_000))
    bulk.command.stop(f"{session.user} stopped it")
    return redirect_with_notice(session, "No more commands are sent.", link("/dead/bulk", number=bulk.number))


BULK_ROUTES = [
    Route("/dead/bulk/new", confirm),
    Route("/dead/bulk/start", start, methods=["POST"]),
    Route("/dead/bulk/stop", stop, methods=["POST"]),
    Route("/dead/bulk", progress),
]
