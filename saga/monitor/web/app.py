"""The application that serves the monitor's pages and its JSON API: its routes, and its responses to errors."""

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from saga.configuration.settings import Settings
from saga.errors import BadInput, ConfigurationError, SagaError
from saga.monitor.views import PAGE_MAX, PageRequest, Views
from saga.monitor.web import (
    bulk_pages,
    exports,
    graph_page,
    letter_pages,
    overview_page,
    pages,
    saga_page,
    search_pages,
)
from saga.monitor.web.guards import GuardMiddleware, read_form
from saga.monitor.web.letter_filters import is_open_escalation
from saga.monitor.web.login import LoginMiddleware
from saga.monitor.web.operator_console import open_console
from saga.monitor.web.search_pages import SAGA_FIELDS, parse_filter, parse_stuck_filter
from saga.monitor.web.service_watch import open_watch
from saga.monitor.web.site import (
    NotAllowed,
    PageNotFound,
    Site,
    build_environment,
    get_site,
    get_views,
    name_cookie,
    parse_number,
)
from saga.monitor.web.users import Sessions, TooManySignIns
from saga.ops.attention import AttentionItem
from saga.support.clock import Clock

log = logging.getLogger("saga.monitor")
ASSETS = Path(__file__).with_name("assets")


def create_app(views: Views | None, settings: Settings, clock: Clock, *, addresses: Sequence[str] = ()) -> Starlette:
    """Create the application.

    Args:
        views: Views of the read model. With `None`, the pages that need it are left out.
        addresses: Addresses of stores to read. If this is empty, the setting `SAGA_STORE` is used.

    Raises:
        ConfigurationError: The file of users cannot be used, or reading needs a login and no file of users is
            configured.
    """
    sessions = Sessions(settings.monitor_users, clock)
    hosts = [name.strip() for name in settings.monitor_hosts.split(",") if name.strip()]
    middleware = [Middleware(GuardMiddleware, hosts=hosts)]
    if settings.monitor_read == "login":
        if not sessions.may_begin:
            problem = "SAGA_MONITOR_READ is login, but SAGA_MONITOR_USERS names no file of users"
            raise ConfigurationError("the monitor cannot be opened by any user:", [problem])
        middleware.append(Middleware(LoginMiddleware, sessions=sessions))

    @asynccontextmanager
    async def lifespan(made: Starlette) -> AsyncIterator[None]:
        async with open_console(settings, clock, addresses) as desk, open_watch(settings, clock) as watch:
            made.state.site = Site(views, desk, sessions, clock, build_environment(), watch, settings.docs)
            yield

    return Starlette(
        routes=_list_routes(views is not None),
        middleware=middleware,
        exception_handlers={
            SagaError: _on_error,
            HTTPException: _on_http,
            ClientDisconnect: _on_gone,
            Exception: _on_defect,
        },
        lifespan=lifespan,
    )


def _list_routes(has_views: bool) -> list[BaseRoute]:
    """List the routes. Routes that need the read model are included only if there is one."""
    folded = (
        [
            *overview_page.OVERVIEW_ROUTES,
            *search_pages.SEARCH_ROUTES,
            *pages.READ_MODEL_ROUTES,
            *API_ROUTES,
        ]
        if has_views
        else []
    )
    return [
        Route("/", _redirect_to_first_page),
        *folded,
        *saga_page.SAGA_ROUTES,
        *graph_page.GRAPH_ROUTES,
        *letter_pages.DEAD_LETTER_ROUTES,
        *bulk_pages.BULK_ROUTES,
        *exports.EXPORT_ROUTES,
        *pages.CONTROL_ROUTES,
        *METRICS_ROUTES,
        *SIGN_IN_ROUTES,
        Mount("/assets", StaticFiles(directory=ASSETS)),
    ]


async def _redirect_to_first_page(request: Request) -> Response:
    return RedirectResponse("/overview" if get_site(request).views is not None else "/dead", 303)


def _render_error(request: Request, status: int, what: str, *lines: str, saga: str = "") -> Response:
    return get_site(request).render(request, "error.html.j2", status, what=what, lines=lines, saga=saga)


async def _on_error(request: Request, why: Exception) -> Response:
    """Respond with a page that describes the error and what to do."""
    lines = str(why).split("\n")
    match why:
        case PageNotFound():
            return _render_error(request, 404, "Not found", *lines, saga=why.saga)
        case NotAllowed():
            return _render_error(request, 403, "Not allowed", *lines)
        case TooManySignIns():
            return _render_error(request, 429, "Too many requests", *lines)
        case BadInput():
            return _render_error(request, 400, "Not possible", *lines)
        case _:
            return _render_error(request, 503, "Not available now", *lines)


async def _on_http(request: Request, why: Exception) -> Response:
    assert isinstance(why, HTTPException)
    if why.status_code == 404:
        return _render_error(request, 404, "Not found", "there is no such page")
    return _render_error(request, why.status_code, "Not possible", why.detail)


async def _on_gone(request: Request, why: Exception) -> Response:
    """Return a response that is never delivered, because the client has disconnected. This is not an error of the
    server."""
    return Response(status_code=400)


async def _on_defect(request: Request, why: Exception) -> Response:
    log.error("the monitor's page failed", exc_info=why)
    return _render_error(
        request, 500, "The page itself has failed", "its log says why; the services know nothing of it"
    )


# -------------------------------------------------------------------- answers


def _respond(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def sagas(request: Request) -> Response:
    """Return a page of sagas as JSON, with the same filters as the HTML page. `limit` and `after` select the page."""
    site, asked = get_site(request), request.query_params
    chosen = {name: asked.get(name, "") for name in SAGA_FIELDS}
    if chosen["state"] == "escalated":
        return _respond(
            {"error": "escalations are not part of the transition events: saga dead list --json lists them"}, 400
        )
    limit = parse_number(asked, "limit", PAGE_MAX) or 50
    page = PageRequest(limit=limit, after=asked.get("after", ""))
    return _respond(get_views(site).sagas(parse_filter(chosen, site.clock.now_ms()), page))


async def trace(request: Request) -> Response:
    """Return one saga across all services."""
    site, id_ = get_site(request), request.path_params["saga"]
    found = get_views(site).saga(id_, site.clock.now_ms())
    return _respond({"error": "no transition of this saga was reported"}, 404) if found is None else _respond(found)


async def stuck(request: Request) -> Response:
    """Return a page of the sagas that are stuck now, and the numbers of all stuck sagas."""
    site, asked = get_site(request), request.query_params
    page = PageRequest(limit=parse_number(asked, "limit", PAGE_MAX) or PAGE_MAX, after=asked.get("after", ""))
    return _respond(get_views(site).stuck(site.clock.now_ms(), parse_stuck_filter(asked), page))


async def rates(request: Request) -> Response:
    """Return the rates of all handlers."""
    return _respond(get_views(get_site(request)).rates())


async def errors(request: Request) -> Response:
    """Return failures by class."""
    return _respond(get_views(get_site(request)).errors())


async def hot(request: Request) -> Response:
    """Return hot sagas and partitions."""
    return _respond(get_views(get_site(request)).hot())


API_ROUTES = [
    Route("/api/sagas", sagas),
    Route("/api/trace/{saga:path}", trace),
    Route("/api/stuck", stuck),
    Route("/api/rates", rates),
    Route("/api/errors", errors),
    Route("/api/hot", hot),
]


# -------------------------------------------------------------------- metrics


OPEN_DEAD_LETTERS = "saga_open_dead_letters"
OPEN_ESCALATIONS = "saga_open_escalations"
AGE_S = "saga_open_letters_age_seconds"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def count_by_service(letters: Iterable[AttentionItem]) -> Mapping[str, int]:
    """Count the items of each service."""
    return Counter(each.letter.service for each in letters)


async def metrics(request: Request) -> Response:
    """Return metrics: the open dead letters and escalations of each service when they were last read, and how long ago
    that was."""
    found = await get_site(request).desk.letters()
    lines = list[str]()
    if found.value is not None:  # what was not read has no age
        lines += _format_gauge(AGE_S, "Seconds since the letters were read.", {"": round(found.age_s, 3)})
        items = found.value.items
        dead = count_by_service(each for each in items if each.state == "blocks")
        escalated = count_by_service(filter(is_open_escalation, items))
        lines += _format_gauge(OPEN_DEAD_LETTERS, "Dead letters that block a saga until a person acts.", dead)
        lines += _format_gauge(OPEN_ESCALATIONS, "What cannot be undone until a person acts.", escalated)
    return PlainTextResponse("\n".join([*lines, ""]), headers={"content-type": CONTENT_TYPE})


def _format_gauge(name: str, meaning: str, values: Mapping[str, float]) -> Iterator[str]:
    """Format a gauge with one value per service in Prometheus' text format. If the name of the service is empty, the
    label is left out."""
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} gauge"
    for service, value in sorted(values.items()):
        escaped = service.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        yield f'{name}{{service="{escaped}"}} {value}' if service else f"{name} {value}"


METRICS_ROUTES = [Route("/metrics", metrics)]


# -------------------------------------------------------------------- signing


async def sign_in(request: Request) -> Response:
    """Show the sign-in form. If the form was sent, sign in the user."""
    site = get_site(request)
    if not site.sessions.may_begin:
        raise NotAllowed(
            "sign-in is not possible: SAGA_MONITOR_USERS names no file of users, so this page is read-only"
        )
    if request.method != "POST":
        return site.render(
            request, "sign_in.html.j2", wrong=False, back=_accept_own_path(request.query_params.get("back", ""))
        )
    form = await read_form(request)
    cookie, address = name_cookie(request), "" if request.client is None else request.client.host
    secret = await site.sessions.begin(form.one("name"), form.one("password"), address)
    back = _accept_own_path(form.one("back"))
    if secret is None:
        return site.render(request, "sign_in.html.j2", 403, wrong=True, back=back)
    if (old := request.cookies.get(cookie)) is not None:
        site.sessions.end(old)
    answer = RedirectResponse(back, 303)
    answer.set_cookie(cookie, secret, httponly=True, samesite="lax", secure=request.url.scheme == "https", path="/")
    return answer


def _accept_own_path(path: str) -> str:
    r"""Return the path if it belongs to this site, otherwise the path of the first page. So a link cannot lead a user
    to another site.

    >>> paths = "/dead?at=50", "//evil.example/", "https://evil.example", "/\\evil.example"
    >>> [_accept_own_path(path) for path in paths]
    ['/dead?at=50', '/', '/', '/']
    """
    is_ours = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isascii() and path.isprintable()
    return path if is_ours else "/"


async def sign_out(request: Request) -> Response:
    """End the user's session."""
    site = get_site(request)
    await site.read_form(request, acts=False)
    cookie = name_cookie(request)
    site.sessions.end(request.cookies.get(cookie, ""))
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(cookie, path="/", secure=request.url.scheme == "https", httponly=True, samesite="lax")
    return answer


SIGN_IN_ROUTES = [Route("/sign-in", sign_in, methods=["GET", "POST"]), Route("/sign-out", sign_out, methods=["POST"])]
