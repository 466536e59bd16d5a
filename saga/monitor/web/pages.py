"""The monitor's pages: sagas with search and filters, the timeline of one saga, stuck sagas, rates, dead letters,
controls and the audit trail.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.choreography.graph import list_sections, make_graph
from saga.choreography.sequence_drawing import STYLE
from saga.errors import BadInput, NoStore, SagaError
from saga.messaging.controls import KINDS, Switch, describe_switch
from saga.messaging.operator_commands import StepAnswer, Wanted
from saga.monitor.reports import list_reports
from saga.monitor.views import PageRequest, SagaFilter, SagaRow, Timeline, Views
from saga.monitor.web import plots
from saga.monitor.web.guards import FormFields
from saga.monitor.web.live_graph import draw_live_graph, list_troubles
from saga.monitor.web.operator_console import LETTERS_MAX, StoredSaga
from saga.monitor.web.path_picture import draw_path_picture
from saga.monitor.web.site import (
    PageNotFound,
    Site,
    format_letter_key,
    get_site,
    link,
    parse_letter_key,
    parse_number,
    redirect_with_notice,
    slice_page,
)
from saga.ops.attention import AttentionItem
from saga.ops.dead_letters import DeadLetter
from saga.ops.operator_commands import REPLAYS_MAX, CommandRequest
from saga.ops.selection import Operator
from saga.policies.retry import BLAMES
from saga.support.clock import Clock, from_iso, iso

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
"""Maximum number of handlers, or of stuck sagas, on a page, because rendering a thousand takes too long. `saga monitor
rates` and `saga monitor stuck` show all.
"""


def get_views(site: Site) -> Views:
    """Return the site's views of the read model."""
    assert site.views is not None, "its routes are there only with it"
    return site.views


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


# ---------------------------------------------------------------- one saga


async def saga(request: Request) -> Response:
    """Show one saga as recorded in the stores. If no store has it, show it as reported by transition events."""
    site, id_ = get_site(request), request.query_params.get("id", "")
    if not id_:
        raise PageNotFound("name a saga by its id")
    told = site.views.saga(id_, site.clock.now_ms()) if site.views is not None else None
    seen, trouble = await _load_saga(site, id_, told)
    if told is None and (seen is None or not seen.shown.histories):
        raise PageNotFound(
            "\n".join(
                [f"no service knows saga {id_}", *([trouble] if trouble else []), *(seen.troubles if seen else ())]
            )
        )
    found = await site.desk.letters()
    letters = [each for each in (found.value.items if found.value is not None else ()) if each.letter.saga == id_]
    return site.render(
        request,
        "saga.html.j2",
        id=id_,
        seen=seen if seen is not None and seen.shown.histories else None,
        told=told,
        explanation=None if seen is None else seen.explanation,
        picture=None if seen is None else draw_path_picture(seen.explanation.path),
        outcome=_find_outcome(seen, told),
        troubles=[*([trouble] if trouble else []), *(seen.troubles if seen is not None else ())],
        letters=letters,
        letters_coming=found.is_coming,
    )


async def _load_saga(site: Site, id_: str, told: Timeline | None) -> tuple[StoredSaga | None, str]:
    """Load the saga from the stores, or return the reason why they cannot be read. Raises `SagaError` if they cannot,
    and no transition event tells of the saga either.
    """
    try:
        return await site.desk.saga(id_, list_reports(told)), ""
    except NoStore as why:
        return None, "" if site.views is not None else str(why)
    except SagaError as why:
        if told is None:
            raise
        return None, str(why)


def _find_outcome(seen: StoredSaga | None, told: Timeline | None) -> str:
    of_stores = next((s.outcome for s in seen.shown.statuses if s.outcome), None) if seen is not None else None
    return of_stores or (told.row.outcome if told is not None else "")


# ---------------------------------------------------------------- rates and stuck sagas


async def stuck(request: Request) -> Response:
    """Show the stuck sagas, those stuck longest first."""
    site = get_site(request)
    found = get_views(site).stuck(site.clock.now_ms())
    more = found.more or len(found.sagas) > ROWS_MAX
    return site.render(request, "stuck.html.j2", sagas=found.sagas[:ROWS_MAX], more=more)


async def rates(request: Request) -> Response:
    """Show rates, durations and errors of each handler with small plots, and hot sagas and partitions."""
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


async def choreography(request: Request) -> Response:
    """Show a graph of the events between services, built from manifests, with rates, errors and stuck sagas where they
    are known.
    """
    site = get_site(request)
    found = await site.desk.overview()
    graph = make_graph(found.value.manifests.values() if found.value is not None else ())
    return site.render(
        request,
        "graph.html.j2",
        found=found,
        overview=found.value,
        graph=graph,
        events=[name for section in list_sections(graph) for name in section.events],
        picture=draw_live_graph(graph, "Choreography", site.views, site.clock.now_ms()),
        trouble=list_troubles(site.views.rates()) if site.views is not None else {},
    )


async def picture_style(request: Request) -> Response:
    """Return the style sheet of the graph."""
    return Response(STYLE, media_type="text/css")


READ_MODEL_ROUTES = [Route("/sagas", sagas), Route("/stuck", stuck), Route("/rates", rates)]
"""Routes of the pages that need the read model."""
SAGA_ROUTES = [Route("/saga", saga), Route("/graph", choreography), Route("/assets/graph.css", picture_style)]


# -------------------------------------------------------------------- letter pages


LETTERS_PER_PAGE = 50
NOTICE_LINES_MAX = 12
_WANTED: Mapping[str, Wanted] = {"replay": "replay", "discard": "discard", "resolve": "resolve"}


async def letters(request: Request) -> Response:
    """Show everything that may need a person, with filters."""
    site, asked = get_site(request), request.query_params
    found = await site.desk.letters()
    told = found.value.items if found.value is not None else ()
    chosen = {name: asked.get(name, "") for name in ("text", "service", "class", "what", "now")}
    if "now" not in asked:
        chosen["now"] = "open"
    meant = [each for each in told if _matches_letter(each, chosen)]
    at = parse_number(asked, "at", 1_000_000)
    rows, before, behind = slice_page(meant, at, LETTERS_PER_PAGE)
    return site.render(
        request,
        "letters.html.j2",
        found=found,
        rows=rows,
        count=len(meant),
        more=found.value is not None and found.value.more,
        letters_max=LETTERS_MAX,
        chosen=chosen,
        services=sorted({each.letter.service for each in told}),
        kinds=sorted({each.letter.what for each in told}),
        blames=BLAMES,
        before=None if before is None else link("/dead", **chosen, at=before),
        behind=None if behind is None else link("/dead", **chosen, at=behind),
        may_act=list_possible_commands,
    )


def _matches_letter(each: AttentionItem, chosen: dict[str, str]) -> bool:
    letter = each.letter
    text = chosen["text"]
    return (
        (not text or any(text in (said or "") for said in (letter.saga, letter.reason, letter.type, letter.id)))
        and chosen["service"] in ("", letter.service)
        and chosen["class"] in ("", letter.blame)
        and chosen["what"] in ("", letter.what)
        and (chosen["now"] != "open" or each.is_open)
    )


def list_possible_commands(each: AttentionItem) -> tuple[Wanted, ...]:
    """Return the commands that an operator may give for this item."""
    if not each.letter.saga:
        return ()
    if each.letter.what == "escalation":
        return ("resolve",) if each.is_open and each.letter.undoes is None else ()
    return tuple(_WANTED.values()) if each.state == "blocks" else ()


async def letter(request: Request) -> Response:
    """Show one dead letter or escalation in full."""
    site, key = get_site(request), request.query_params.get("letter", "")
    try:
        service, id_ = parse_letter_key(key)
    except BadInput as why:
        raise PageNotFound("the address names no dead letter") from why
    told, found = await site.desk.letter(service, id_)
    if told is None and not found.is_coming:
        raise PageNotFound(
            "\n".join([f"no dead letter {id_} of {service} is among the newest: saga dead list", *found.troubles])
        )
    return site.render(
        request,
        "letter.html.j2",
        found=found,
        told=told,
        blames=BLAMES,
        wanted=() if told is None else list_possible_commands(told),
        facts=() if told is None else _list_facts(told.letter),
        replays_max=REPLAYS_MAX,
    )


def _list_facts(said: DeadLetter) -> Sequence[tuple[str, str]]:
    facts = {
        "written": said.time,
        "service": said.service,
        "handler": said.handler,
        "event": said.type,
        "message": said.message,
        "owner of the event": said.owner,
        "attempts": None if said.attempts is None else str(said.attempts),
        "class": next((words for blame, words in BLAMES.items() if blame == said.blame), said.blame),
        "where": said.where,
        "state before the run": said.state,
        "the original lies at": said.whole,
    }
    return [(name, text) for name, text in facts.items() if text]


async def act(request: Request) -> Response:
    """Send the commands of the form to the services, for the selected items."""
    site = get_site(request)
    form, session = await site.read_form(request)
    keys = [parse_letter_key(key) for key in dict.fromkeys(form.every("letter"))]
    wanted = _WANTED.get(form.one("wanted"))
    if not keys:
        raise BadInput("no dead letter is chosen: mark at least one")
    if wanted is None:
        raise BadInput("the form has no action: replay, discard or resolve")
    if not form.one("why"):
        raise BadInput("a reason is missing: it is recorded in the history of the saga")
    answered = _parse_answer(form) if wanted == "resolve" else None
    if answered is not None and len(keys) > 1:
        raise BadInput("a result is for one dead letter: choose one")
    wish = CommandRequest(wanted=wanted, operator=Operator(session.user, form.one("why")), answered=answered)
    sentences = await site.desk.act(keys, wish, again=form.one("again") == "yes")
    more = len(sentences) - NOTICE_LINES_MAX
    shown = [*sentences[:NOTICE_LINES_MAX], *([f"and {more} more"] if more > 0 else [])]
    one = keys[0] if len(keys) == 1 and form.one("from") == "letter" else None
    url = "/dead" if one is None else f"/dead/letter?letter={format_letter_key(*one)}"
    return redirect_with_notice(session, "\n".join(shown), url)


def _parse_answer(form: FormFields) -> StepAnswer | None:
    """Parse the step result that an operator supplies in place of the external system; `None` if the form has none.
    Raises `BadInput`."""
    step, answered, raised = form.one("step"), form.one("answered"), form.one("raised")
    arguments, number = form.one("arguments"), form.one("number") or "1"
    if not step:
        if answered or raised or arguments:
            raise BadInput("the step is missing: give the name of its function")
        return None
    if bool(answered) == bool(raised):
        raise BadInput("give either what the step returned or what it raised")
    if arguments and not raised:
        raise BadInput("arguments belong to an exception: give its name, too")
    if not (number.isascii() and number.isdigit() and len(number) < 7 and int(number) >= 1):
        raise BadInput("the number of the call must be 1 or more")
    text = (arguments or "[]") if raised else answered
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput('the result is no JSON: put text in double quotes, for example "ch-1"') from None
    return StepAnswer(step=step, number=int(number), value=json.dumps(value), raised=raised or None)


DEAD_LETTER_ROUTES = [
    Route("/dead", letters),
    Route("/dead/letter", letter),
    Route("/dead/act", act, methods=["POST"]),
]


# -------------------------------------------------------------------- control pages


ENTRIES_PER_PAGE = 100
_UNITS_S = {"m": 60, "h": 3600, "d": 86400}


async def controls(request: Request) -> Response:
    """Show all active controls, and forms to set more."""
    site = get_site(request)
    found = await site.desk.controls()
    return site.render(
        request,
        "controls.html.j2",
        found=found,
        books=found.value or (),
        words=describe_switch,
        target=_list_fields_to_end,
    )


def _list_fields_to_end(switch: Switch) -> list[tuple[str, str]]:
    """Return the fields of a form that ends a control."""
    fields = [("kind", switch.kind), ("off", "yes")]
    if switch.kind == "flag":
        return [("kind", "flag"), ("flag", switch.flag), ("percent", "0"), ("saga", switch.saga or "")]
    return [*fields, *((what, name) for what in ("handler", "event", "resource") if (name := getattr(switch, what)))]


async def switch(request: Request) -> Response:
    """Set or end the control that the form describes."""
    site = get_site(request)
    form, session = await site.read_form(request)
    service, why = form.one("service"), form.one("why")
    known = (await site.desk.controls()).value or ()
    if service not in (book.service for book in known):
        raise BadInput(f"no service {service} has a store here")
    if not why:
        raise BadInput("a reason is missing: it is recorded in the control log")
    sentence = await site.desk.switch(service, parse_switch(form, site.clock), Operator(session.user, why))
    return redirect_with_notice(session, sentence, "/controls")


def parse_switch(form: FormFields, clock: Clock) -> Switch:
    """Parse the control that a form describes. Raises `BadInput`. A control that is not possible is refused by the
    service itself.
    """
    kind, until = form.one("kind"), _parse_until(form.one("until"), clock)
    if kind not in KINDS:
        raise BadInput("the form has no control: a flag, a pause, a limit or a route")
    if kind == "flag":
        saga = form.one("saga") or None
        percent = _parse_decimal(form.one("percent"), "percent")
        return Switch(flag=form.one("flag"), percent=100.0 if percent is None else percent, saga=saga, until=until)
    at_once = _parse_decimal(form.one("at_once"), "at once")
    if at_once is not None and at_once != int(at_once):
        raise BadInput("the number of calls or runs at once must be a whole number")
    return Switch(
        kind=kind,
        off=form.one("off") == "yes",
        until=until,
        handler=form.one("handler") or None,
        event=form.one("event") or None,
        resource=form.one("resource") or None,
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
    """Parse the time at which a control ends by itself: a duration from now, or RFC 3339."""
    if not text:
        return None
    said = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    try:
        return iso(clock.now_ms() + int(said[1]) * _UNITS_S[said[2]] * 1000) if said else iso(from_iso(text))
    except (ValueError, OverflowError):
        raise BadInput(f"{text!r} is no time: give 30m, 2h, 3d or 2026-11-22T16:00:00Z") from None


async def audit(request: Request) -> Response:
    """Show the audit trail of one service, newest entry first, or the list of services to choose from."""
    site, asked = get_site(request), request.query_params
    found = await site.desk.controls()
    service = asked.get("service", "")
    book = next((each for each in found.value or () if each.service == service), None)
    if service and book is None and not found.is_coming:
        raise PageNotFound(f"no service {service} has a store here")
    at = parse_number(asked, "at", 1_000_000)
    rows, before, behind = slice_page(() if book is None else book.entries, at, ENTRIES_PER_PAGE)
    return site.render(
        request,
        "audit.html.j2",
        found=found,
        book=book,
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
