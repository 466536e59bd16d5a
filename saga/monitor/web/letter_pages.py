"""Pages of what needs a person: all letters, one letter, and what a person wants done."""

import json
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.errors import BadInput
from saga.messaging.operator_commands import Answered, Wanted
from saga.monitor.web.desk import LETTERS_MAX
from saga.monitor.web.guards import Form
from saga.monitor.web.site import Unknown, key_of, letter_named, link, number_in, portion, seen_after, site_of
from saga.ops.attention import AttentionItem
from saga.ops.dead_letters import DeadLetter
from saga.ops.operator_commands import REPLAYS_MAX, CommandRequest
from saga.ops.selection import Operator
from saga.policies.blame import BLAMES

PER_PAGE = 50
NOTICE_LINES_MAX = 12
_WANTED: Mapping[str, Wanted] = {"replay": "replay", "discard": "discard", "resolve": "resolve"}


async def letters(request: Request) -> Response:
    """Everything that needs a person, with what it is filtered by."""
    site, asked = site_of(request), request.query_params
    found = await site.desk.letters()
    told = found.value.items if found.value is not None else ()
    chosen = {name: asked.get(name, "") for name in ("text", "service", "class", "what", "now")}
    if "now" not in asked:
        chosen["now"] = "open"
    meant = [each for each in told if _holds(each, chosen)]
    at = number_in(asked, "at", 1_000_000)
    rows, before, behind = portion(meant, at, PER_PAGE)
    return site.page(
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
        may_act=may_act,
    )


def _holds(each: AttentionItem, chosen: dict[str, str]) -> bool:
    letter = each.letter
    text = chosen["text"]
    return (
        (not text or any(text in (said or "") for said in (letter.saga, letter.reason, letter.type, letter.id)))
        and chosen["service"] in ("", letter.service)
        and chosen["class"] in ("", letter.blame)
        and chosen["what"] in ("", letter.what)
        and (chosen["now"] != "open" or each.is_open)
    )


def may_act(each: AttentionItem) -> tuple[Wanted, ...]:
    """Wishes that a person may have about a letter."""
    if not each.letter.saga:
        return ()
    if each.letter.what == "escalation":
        return ("resolve",) if each.is_open and each.letter.undoes is None else ()
    return tuple(_WANTED.values()) if each.state == "blocks" else ()


async def letter(request: Request) -> Response:
    """One letter whole."""
    site, key = site_of(request), request.query_params.get("letter", "")
    try:
        service, id_ = letter_named(key)
    except BadInput as why:
        raise Unknown("the address names no letter") from why
    told, found = await site.desk.letter(service, id_)
    if told is None and not found.is_coming:
        raise Unknown("\n".join([f"no letter {id_} of {service} is among the newest: saga dead list", *found.troubles]))
    return site.page(
        request,
        "letter.html.j2",
        found=found,
        told=told,
        blames=BLAMES,
        wanted=() if told is None else may_act(told),
        facts=() if told is None else _facts(told.letter),
        replays_max=REPLAYS_MAX,
    )


def _facts(said: DeadLetter) -> Sequence[tuple[str, str]]:
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
    """Have services do what the form says with the letters that it names."""
    site = site_of(request)
    form, session = await site.form(request)
    keys = [letter_named(key) for key in dict.fromkeys(form.every("letter"))]
    wanted = _WANTED.get(form.one("wanted"))
    if not keys:
        raise BadInput("no letter is chosen: mark those that are meant")
    if wanted is None:
        raise BadInput("the form does not say what is wanted: replay, discard or resolve")
    if not form.one("why"):
        raise BadInput("a reason is missing: it stands in the history of the saga")
    answered = _answered(form) if wanted == "resolve" else None
    if answered is not None and len(keys) > 1:
        raise BadInput("an answer is for one letter: choose one")
    wish = CommandRequest(wanted=wanted, operator=Operator(session.user, form.one("why")), answered=answered)
    sentences = await site.desk.act(keys, wish, again=form.one("again") == "yes")
    more = len(sentences) - NOTICE_LINES_MAX
    shown = [*sentences[:NOTICE_LINES_MAX], *([f"and {more} more"] if more > 0 else [])]
    one = keys[0] if len(keys) == 1 and form.one("from") == "letter" else None
    url = "/dead" if one is None else f"/dead/letter?letter={key_of(*one)}"
    return seen_after(session, "\n".join(shown), url)


def _answered(form: Form) -> Answered | None:
    """Answer that a person gives in the place of the outside; `None` if the form has none. Raises `BadInput`."""
    step, answered, raised = form.one("step"), form.one("answered"), form.one("raised")
    arguments, number = form.one("arguments"), form.one("number") or "1"
    if not step:
        if answered or raised or arguments:
            raise BadInput("the answer names no step: say which function it answers for")
        return None
    if bool(answered) == bool(raised):
        raise BadInput("say what the step returned, or what it raised: one of them")
    if arguments and not raised:
        raise BadInput("arguments are those of the exception: name it, too")
    if not (number.isascii() and number.isdigit() and len(number) < 7 and int(number) >= 1):
        raise BadInput("the number of the call is 1 or more")
    text = (arguments or "[]") if raised else answered
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput('the answer is no JSON: a text stands in double quotes, as "ch-1"') from None
    return Answered(step=step, number=int(number), value=json.dumps(value), raised=raised or None)


ROUTES = [
    Route("/dead", letters),
    Route("/dead/letter", letter),
    Route("/dead/act", act, methods=["POST"]),
]
