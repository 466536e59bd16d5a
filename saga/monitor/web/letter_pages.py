"""Pages of dead letters: groups with the same cause, the dead letters of a group, one dead letter, and the actions on
them."""

import json
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.errors import BadInput
from saga.messaging.operator_commands import StepAnswer, Wanted
from saga.monitor.web.guards import FormFields
from saga.monitor.web.letter_filters import GROUPINGS, LetterFilter, parse_letter_filter
from saga.monitor.web.operator_console import LETTERS_MAX, Snapshot
from saga.monitor.web.renewal import read_renewal
from saga.monitor.web.site import (
    PageNotFound,
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
from saga.ops.letter_groups import LetterRow, LetterTable, group_letters
from saga.ops.operator_commands import REPLAYS_MAX, CommandRequest
from saga.ops.selection import Operator
from saga.policies.retry import BLAMES

LETTERS_PER_PAGE = 50
GROUPS_PER_PAGE = 50
NOTICE_LINES_MAX = 12
WANTED: Mapping[str, Wanted] = {"replay": "replay", "discard": "discard", "resolve": "resolve"}
"""Commands about dead letters that the page can send."""


async def groups(request: Request) -> Response:
    """Show everything that may need a person, in groups with the same cause."""
    site, asked = get_site(request), request.query_params
    found, which = await site.desk.letters(), parse_letter_filter(asked)
    rows = which.select(found.value.rows) if found.value is not None else ()
    grouped = group_letters(rows, which.by)
    at = parse_number(asked, "at", 1_000_000)
    shown, before, behind = slice_page(grouped, at, GROUPS_PER_PAGE)
    return site.render(
        request,
        "letter_groups.html.j2",
        200,
        **_describe_list(request, found, which, rows),
        groups=shown,
        group_count=len(grouped),
        largest=max((each.count for each in grouped), default=0),
        at=at,
        groupings=GROUPINGS,
        bulks=site.desk.list_bulks(),
        before=None if before is None else link("/dead", **which.fields, at=before),
        behind=None if behind is None else link("/dead", **which.fields, at=behind),
        of_group=lambda path, group: link(path, **{**which.fields, "group": group.digest}),
    )


async def letters(request: Request) -> Response:
    """Show the dead letters that match the filter, newest first."""
    site, asked = get_site(request), request.query_params
    found, which = await site.desk.letters(), parse_letter_filter(asked)
    rows = which.select(found.value.rows) if found.value is not None else ()
    at = parse_number(asked, "at", 1_000_000)
    shown, before, behind = slice_page(rows, at, LETTERS_PER_PAGE)
    last = (len(rows) - 1) // LETTERS_PER_PAGE * LETTERS_PER_PAGE
    return site.render(
        request,
        "letters.html.j2",
        200,
        **_describe_list(request, found, which, rows),
        rows=shown,
        at=at,
        cause=rows[0].cause if which.group and rows else None,
        first=link("/dead/list", **which.fields) if at else None,
        last=link("/dead/list", **which.fields, at=last) if at < last else None,
        before=None if before is None else link("/dead/list", **which.fields, at=before),
        behind=None if behind is None else link("/dead/list", **which.fields, at=behind),
        may_send=list_possible_commands,
    )


def _describe_list(
    request: Request, found: Snapshot[LetterTable], which: LetterFilter, rows: Sequence[LetterRow]
) -> dict[str, object]:
    """Return the template values that the page of groups and the page of dead letters share."""
    known = found.value.items if found.value is not None else ()
    return {
        "found": found,
        "count": len(rows),
        "open_count": sum(row.item.is_open for row in rows),
        "blocking_count": sum(row.item.state == "blocks" for row in rows),
        "more": found.value is not None and found.value.more,
        "letters_max": LETTERS_MAX,
        "chosen": which.fields,
        "is_narrow": which.is_narrow,
        "services": sorted({each.letter.service for each in known} | ({which.service} if which.service else set())),
        "kinds": sorted({each.letter.what for each in known} | ({which.what} if which.what else set())),
        "blames": BLAMES,
        "renewal": read_renewal(request),
        "csv": link("/export/dead.csv", **which.fields),
        "json": link("/export/dead.json", **which.fields),
        "to": lambda path, **more: link(path, **{**which.fields, **more}),
    }


def list_possible_commands(each: AttentionItem) -> tuple[Wanted, ...]:
    """Return the commands that an operator may give for this item."""
    if not each.letter.saga:
        return ()
    if each.letter.what == "escalation":
        return ("resolve",) if each.is_open and each.letter.undoes is None else ()
    return tuple(WANTED.values()) if each.state == "blocks" else ()


async def letter(request: Request) -> Response:
    """Show one dead letter or escalation in full."""
    site, key = get_site(request), request.query_params.get("letter", "")
    try:
        service, id_ = parse_letter_key(key)
    except BadInput as why:
        raise PageNotFound("the address names no dead letter") from why
    item, found = await site.desk.letter(service, id_)
    if item is None and not found.is_coming:
        raise PageNotFound("\n".join([f"{service} has no dead letter {id_}: saga dead list", *found.troubles]))
    searches = request.query_params.get("message") == "search"
    payload = None if item is None else await site.desk.read_payload(item.letter, searches=searches)
    return site.render(
        request,
        "letter.html.j2",
        found=found,
        item=item,
        payload=payload,
        search=None if searches else link("/dead/letter", letter=key, message="search"),
        blames=BLAMES,
        wanted=() if item is None else list_possible_commands(item),
        facts=() if item is None else _list_facts(item.letter),
        alike=None if item is None else _link_alike(item, found),
        replays_max=REPLAYS_MAX,
    )


def _link_alike(item: AttentionItem, found: Snapshot[LetterTable]) -> tuple[int, str] | None:
    """Return how many dead letters have the same cause, and the address of a list of them. Return `None` if this is the
    only one."""
    rows = found.value.rows if found.value is not None else ()
    cause = next((row.cause for row in rows if row.item is item), None)
    same = [row for row in rows if row.cause == cause and (row.item.is_open or not item.is_open)]
    if len(same) < 2:
        return None
    [group] = group_letters(same, "reason")
    which = LetterFilter(group=group.digest, now="open" if item.is_open else "all")
    return len(same), link("/dead/list", **which.fields)


def _list_facts(letter: DeadLetter) -> Sequence[tuple[str, str]]:
    facts = {
        "service": letter.service,
        "handler": letter.handler,
        "event": letter.type,
        "message": letter.message,
        "owner of the event": letter.owner,
        "attempts": None if letter.attempts is None else str(letter.attempts),
        "who can fix it": next((words for blame, words in BLAMES.items() if blame == letter.blame), letter.blame),
        "where": letter.where,
        "state before the run": letter.state,
        "the original lies at": letter.whole,
    }
    return [(name, text) for name, text in facts.items() if text]


async def act(request: Request) -> Response:
    """Send a command to the services, for each item that was selected in the form."""
    site = get_site(request)
    form, session = await site.read_form(request)
    keys = [parse_letter_key(key) for key in dict.fromkeys(form.every("letter"))]
    wanted = WANTED.get(form.one("wanted"))
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
    url = "/dead/list" if one is None else f"/dead/letter?letter={format_letter_key(*one)}"
    return redirect_with_notice(session, "\n".join(shown), url)


def _parse_answer(form: FormFields) -> StepAnswer | None:
    """Parse the answer to a step that an operator gives in place of the external system. Return `None` if the form has
    none. Raises `BadInput` if it is incomplete or invalid."""
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
    Route("/dead", groups),
    Route("/dead/list", letters),
    Route("/dead/letter", letter),
    Route("/dead/act", act, methods=["POST"]),
]
