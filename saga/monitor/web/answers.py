"""Answers of the monitor in JSON, for commands and scripts: what services told, folded."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from saga.monitor.views import PAGE_MAX, Page
from saga.monitor.web.saga_pages import filter_of, views_of
from saga.monitor.web.site import number_in, site_of


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def sagas(request: Request) -> Response:
    """Page of sagas, by the same filters as the page for people; `limit` and `after` say which part."""
    site, asked = site_of(request), request.query_params
    chosen = {name: asked.get(name, "") for name in ("text", "service", "outcome", "age", "state")}
    if chosen["state"] == "escalated":
        return _json({"error": "escalations are no part of what services tell: saga dead list --json has them"}, 400)
    limit = number_in(asked, "limit", PAGE_MAX) or 50
    page = Page(limit=limit, after=asked.get("after", ""))
    return _json(views_of(site).sagas(filter_of(chosen, site.clock.now_ms()), page))


async def trace(request: Request) -> Response:
    """One saga across all services."""
    site, id_ = site_of(request), request.path_params["saga"]
    found = views_of(site).saga(id_, site.clock.now_ms())
    return _json({"error": "nothing was told of this saga"}, 404) if found is None else _json(found)


async def stuck(request: Request) -> Response:
    """Sagas that are stuck now."""
    site = site_of(request)
    return _json(views_of(site).stuck(site.clock.now_ms()))


async def rates(request: Request) -> Response:
    """Rates of all handlers."""
    return _json(views_of(site_of(request)).rates())


async def errors(request: Request) -> Response:
    """Failures by class."""
    return _json(views_of(site_of(request)).errors())


async def hot(request: Request) -> Response:
    """Hot keys and partitions."""
    return _json(views_of(site_of(request)).hot())


ROUTES = [
    Route("/api/sagas", sagas),
    Route("/api/trace/{saga:path}", trace),
    Route("/api/stuck", stuck),
    Route("/api/rates", rates),
    Route("/api/errors", errors),
    Route("/api/hot", hot),
]
