"""Application that serves the monitor's page and its answers in JSON: routes, and what becomes of errors."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from saga.configuration.settings import Settings
from saga.errors import BadInput, SagaError
from saga.monitor.views import Views
from saga.monitor.web import answers, control_pages, letter_pages, metrics, saga_pages, signing
from saga.monitor.web.desk import open_desk
from saga.monitor.web.guards import Guarded
from saga.monitor.web.site import NotAllowed, Site, Unknown, environment, site_of
from saga.monitor.web.users import Sessions, TooMany
from saga.support.clock import Clock

log = logging.getLogger("saga.monitor")
ASSETS = Path(__file__).with_name("assets")


def app(views: Views | None, settings: Settings, clock: Clock, *, addresses: Sequence[str] = ()) -> Starlette:
    """The application. `views`: what services told, folded; `None`: the pages that need it are left out. `addresses`:
    stores to read, in the place of the setting.

    Raises `ConfigurationError`: the file of users cannot be used.
    """
    sessions = Sessions(settings.monitor_users, clock)
    hosts = [name.strip() for name in settings.monitor_hosts.split(",") if name.strip()]

    @asynccontextmanager
    async def lifespan(made: Starlette) -> AsyncIterator[None]:
        async with open_desk(settings, clock, addresses) as desk:
            made.state.site = Site(views, desk, sessions, clock, environment())
            yield

    return Starlette(
        routes=_routes(views is not None),
        middleware=[Middleware(Guarded, hosts=hosts)],
        exception_handlers={
            SagaError: _on_error,
            HTTPException: _on_http,
            ClientDisconnect: _on_gone,
            Exception: _on_defect,
        },
        lifespan=lifespan,
    )


def _routes(has_views: bool) -> list[BaseRoute]:
    """Routes; those of what services told only where that is folded."""
    folded = [*saga_pages.FOLDED, *answers.ROUTES] if has_views else []
    return [
        Route("/", _first),
        *folded,
        *saga_pages.ROUTES,
        *letter_pages.ROUTES,
        *control_pages.ROUTES,
        *metrics.ROUTES,
        *signing.ROUTES,
        Mount("/assets", StaticFiles(directory=ASSETS)),
    ]


async def _first(request: Request) -> Response:
    return RedirectResponse("/sagas" if site_of(request).views is not None else "/dead", 303)


def _told(request: Request, status: int, what: str, *lines: str) -> Response:
    return site_of(request).page(request, "error.html.j2", status, what=what, lines=lines)


async def _on_error(request: Request, why: Exception) -> Response:
    """Page that says what is wrong, and what to do."""
    lines = str(why).split("\n")
    match why:
        case Unknown():
            return _told(request, 404, "That is not here", *lines)
        case NotAllowed():
            return _told(request, 403, "That is not allowed", *lines)
        case TooMany():
            return _told(request, 429, "Too many at once", *lines)
        case BadInput():
            return _told(request, 400, "That cannot be done", *lines)
        case _:
            return _told(request, 503, "That cannot be read or done now", *lines)


async def _on_http(request: Request, why: Exception) -> Response:
    assert isinstance(why, HTTPException)
    if why.status_code == 404:
        return _told(request, 404, "That is not here", "there is no such page")
    return _told(request, why.status_code, "That cannot be done", why.detail)


async def _on_gone(request: Request, why: Exception) -> Response:
    """Answer for nobody: whoever asked has gone away in the middle, which is no defect of ours."""
    return Response(status_code=400)


async def _on_defect(request: Request, why: Exception) -> Response:
    log.error("the monitor's page failed", exc_info=why)
    return _told(request, 500, "The page itself has failed", "its log says why; the services know nothing of it")
