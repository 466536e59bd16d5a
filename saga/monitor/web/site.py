"""The site: what all pages of the monitor share, and how templates show text from outside."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import compare_digest
from typing import Any
from urllib.parse import quote, unquote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from saga.errors import BadInput, SagaError
from saga.monitor.views import Views
from saga.monitor.web.guards import FormFields, read_form
from saga.monitor.web.operator_console import OperatorConsole
from saga.monitor.web.service_watch import ServiceWatch
from saga.monitor.web.users import Session, Sessions
from saga.support.clock import LATEST_MS, Clock, from_iso, iso
from saga.support.printable import printable, shorten

TEMPLATES = Path(__file__).with_name("templates")
COOKIE = "saga_session"
"""Base of the session cookie's name. See `name_cookie`."""
LIVE = "x-live"
"""Request header that a page's automatic refresh sends. Such a request must not use up a notice, because a notice is
shown only once."""
CELL_BYTES_MAX = 2000
"""Maximum length in bytes of a string that is shown in one place of a page. Longer strings are cut."""
_SPACES = re.compile(r"[ \t\r\n]+")


class PageNotFound(SagaError):
    """Raised if something does not exist. The response has status 404."""

    def __init__(self, text: str, saga: str = "") -> None:
        super().__init__(text)
        self.saga = saga
        """Id of the saga that was looked for; empty if it was something else."""


class NotAllowed(SagaError):
    """Raised if an action needs a signed-in user, or one who may act. The response has status 403."""


@dataclass(frozen=True, slots=True)
class Site:
    """What all pages share."""

    views: Views | None
    """Views of the read model; `None` if the pages that need it are left out."""
    desk: OperatorConsole
    sessions: Sessions
    clock: Clock
    environment: Environment
    watch: ServiceWatch
    """Knows which services run."""
    docs: str = ""
    """Address of the documentation, with the placeholder `{page}`; empty if none is configured."""

    def get_session(self, request: Request) -> Session | None:
        """Return the session of the request; `None` if no user is signed in."""
        return self.sessions.get(request.cookies.get(name_cookie(request)))

    def render(self, request: Request, template: str, status: int = 200, **values: object) -> Response:
        """Render a template as the response."""
        session = self.get_session(request)
        notice = ""
        if session is not None and LIVE not in request.headers:
            notice, session.notice = session.notice, ""
        text = self.environment.get_template(template).render(
            path=request.url.path,
            asked=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            session=session,
            may_sign_in=self.sessions.may_begin,
            may_act=session is not None and session.may_act,
            has_views=self.views is not None,
            notice=notice,
            now_ms=self.clock.now_ms(),
            **values,
        )
        return HTMLResponse(text, status)

    async def read_form(self, request: Request, *, acts: bool = True) -> tuple[FormFields, Session]:
        """Read a form that a signed-in user sent from a page of the current session.

        Args:
            acts: True if only users who may act can send this form.

        Raises:
            NotAllowed: No user is signed in, the user may not send this form, or the form is from another session.
            BadInput: The form is malformed or too large.
        """
        session = self.get_session(request)
        if session is None:
            raise NotAllowed("you are not signed in: sign in, then try again")
        if acts and not session.may_act:
            raise NotAllowed(f"{session.user} may only read: an operator with the role act can do this")
        form = await read_form(request)
        if not equals_secret(form.one("form"), session.form):
            raise NotAllowed("the form belongs to another session: reload the page, then try again")
        return form, session


def get_site(request: Request) -> Site:
    """Return the site of the application that serves the request."""
    site = request.app.state.site
    assert isinstance(site, Site)
    return site


def get_views(site: Site) -> Views:
    """Return the site's views of the read model. The site must have one."""
    assert site.views is not None, "its routes are there only with it"
    return site.views


def redirect_with_notice(session: Session, notice: str, url: str) -> Response:
    """Redirect to another page. The notice is shown there, once."""
    session.notice = notice
    return RedirectResponse(url, 303)


def equals_secret(one: str, other: str) -> bool:
    """Compare two secrets in constant time."""
    return compare_digest(one.encode("utf-8", "replace"), other.encode())


# ---------------------------------------------------------------- templates


def build_environment() -> Environment:
    """Build the environment of the templates. It escapes every value."""
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"link": link, "key": format_letter_key, "LONGEST": CELL_BYTES_MAX}
    made.filters |= {
        "when": format_time,
        "ago": format_age,
        "span": format_duration,
        "ms": parse_time,
        "grouped": format_count,
        "list_twice": _to_option,
        "json": _to_json,
    }
    return made


def _to_option(value: str) -> tuple[str, str]:
    """Return a form option whose label is its value."""
    return value, value


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _finalize(value: object) -> object:
    """Prepare a string for display: put it on one line, replace invisible characters, and cut it if it is too long.
    Other values are returned unchanged."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(shorten(_SPACES.sub(" ", value), CELL_BYTES_MAX))
    return value


def link(path: str, /, **query: object) -> Markup:
    """Return a link to one of our pages. It is pure ASCII, whatever characters the parameters contain.

    The names of parameters may come from a request, so they are quoted like the values.

    >>> link("/saga", id="a&b/ü")
    Markup('/saga?id=a%26b%2F%C3%BC')
    >>> link("/saga", **{"path": 1, '"><b>': 2})
    Markup('/saga?path=1&amp;%22%3E%3Cb%3E=2')
    """
    asked = "&amp;".join(
        f"{quote_for_form(name)}={quote_for_form(str(value))}"
        for name, value in query.items()
        if value not in ("", None, False)
    )
    return Markup(path + (f"?{asked}" if asked else ""))


def quote_for_form(text: str) -> str:
    """Quote a string for an address or a form, as ASCII without spaces, so that neither a template nor a browser
    changes it."""
    return quote(text, safe="", errors="backslashreplace")


def format_letter_key(service: str, id_: str) -> Markup:
    """Format the key of a dead letter for forms and links."""
    return Markup(f"{quote_for_form(service)}/{quote_for_form(id_)}")


def parse_letter_key(key: str) -> tuple[str, str]:
    """Parse service and id from the key of a dead letter. Raises `BadInput` if the key is malformed."""
    service, separator, id_ = key.partition("/")
    if not separator or not service or not id_:
        raise BadInput("the form names no dead letter: reload the page")
    return unquote(service), unquote(id_)


def parse_time(text: str | None) -> int | None:
    """Parse an RFC 3339 time to milliseconds since 1970. Return `None` for any other text."""
    try:
        return None if not text else from_iso(text)
    except (ValueError, OverflowError):
        return None


def format_time(ms: int | None) -> Markup:
    """Format a time in UTC with milliseconds. If scripts run, the page shows it in the reader's time zone.

    >>> print(format_time(1_795_270_000_123))
    <time datetime="2026-11-21T14:06:40.123Z" title="2026-11-21 14:06:40.123 UTC">2026-11-21 14:06:40.123</time>
    """
    if ms is None or not 0 <= ms <= LATEST_MS:
        return Markup('<span class="soft">-</span>')
    text = iso(ms)
    shown = f"{text[:10]} {text[11:23]}"
    return Markup(f'<time datetime="{text}" title="{shown} UTC">{shown}</time>')


def format_duration(ms: float | None) -> str:
    """Format a duration for people, in a unit that fits its length.

    >>> [format_duration(each) for each in (0, 4.31, 1500, 90_000, 7_200_000, 200_000_000, None)]
    ['0 ms', '4.3 ms', '1.5 s', '90 s', '2.0 h', '2.3 d', '-']
    """
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{ms:.1f} ms" if 0 < ms < 10 else f"{ms:.0f} ms"
    for unit, size, until in (("s", 1000, 120), ("min", 60_000, 120), ("h", 3_600_000, 48)):
        if ms / size < until:
            return f"{ms / size:.1f} {unit}" if ms / size < 10 else f"{ms / size:.0f} {unit}"
    return f"{ms / 86_400_000:.1f} d"


def format_count(count: int) -> str:
    """Format a number with thousands separators.

    >>> format_count(12_345)
    '12,345'
    """
    return f"{count:,}"


def format_age(ms: int | None, now_ms: int) -> str:
    """Format how long ago `ms` was, for people.

    >>> format_age(1000, 61_000), format_age(2000, 1000)
    ('60 s ago', 'in the future')
    """
    if ms is None:
        return "-"
    return f"{format_duration(now_ms - ms)} ago" if ms <= now_ms else "in the future"


def parse_number(values: Mapping[str, str] | Any, name: str, most: int) -> int:
    """Parse a whole number in a query. Return 0 if it is missing, malformed or greater than `most`."""
    text = str(values.get(name, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most else 0


def slice_page(items: Sequence[Any], at: int, size: int) -> tuple[Sequence[Any], int | None, int | None]:
    """Return the part of a list that begins at `at`, and the positions at which the parts before and after it begin
    (`None` if there is no such part).

    >>> slice_page("abcdefg", 3, 3)
    ('def', 0, 6)
    """
    before = max(0, at - size) if at else None
    return items[at : at + size], before, at + size if at + size < len(items) else None


def name_cookie(request: Request) -> str:
    """Return the name of the session cookie.

    It contains the port, because browsers send the cookies of a host to all of its ports. Over TLS it also has a
    prefix. With this prefix, browsers accept the cookie only from this host, and only over TLS.
    """
    port = f"_{request.url.port}" if request.url.port else ""
    return f"{'__Host-' if request.url.scheme == 'https' else ''}{COOKIE}{port}"
