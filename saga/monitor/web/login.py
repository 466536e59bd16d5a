"""Login for reading: with `SAGA_MONITOR_READ=login` only users can read pages, JSON and metrics.

People sign in on the page. Scripts and Prometheus send name and password with each request (HTTP Basic). With these
they can read but never act, because an action needs the secret of a form.
"""

import base64
import binascii
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from saga.monitor.web.site import name_cookie
from saga.monitor.web.users import Sessions, TooManySignIns

OPEN_PATHS = ("/sign-in", "/assets/")
"""Prefixes of the paths that can be read without a login."""
SCRIPT_PATHS = ("/api/", "/export/", "/metrics")
"""Prefixes of the paths for scripts, which cannot sign in on a page."""
CHALLENGE = {"www-authenticate": 'Basic realm="saga monitor", charset="UTF-8"'}


class LoginMiddleware:
    """ASGI middleware that passes on requests of users only."""

    def __init__(self, app: ASGIApp, sessions: Sessions) -> None:
        self._app, self._sessions = app, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if it comes from a user. Otherwise refuse it, or redirect it to the sign-in page."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        path, is_script = request.url.path, request.url.path.startswith(SCRIPT_PATHS)
        try:
            if path.startswith(OPEN_PATHS) or await self._is_user(request, is_script):
                await self._app(scope, receive, send)
                return
        except TooManySignIns as why:
            await PlainTextResponse(f"{why}\n", 429)(scope, receive, send)
            return
        if is_script:
            error = {"error": "this monitor is for users: send name and password"}
            await JSONResponse(error, 401, headers=CHALLENGE)(scope, receive, send)
        elif request.method in ("GET", "HEAD"):
            asked = path + (f"?{request.url.query}" if request.url.query else "")
            await RedirectResponse(f"/sign-in?back={quote(asked, safe='')}", 303)(scope, receive, send)
        else:
            await PlainTextResponse("you are not signed in: sign in, then try again\n", 403)(scope, receive, send)

    async def _is_user(self, request: Request, is_script: bool) -> bool:
        if self._sessions.get(request.cookies.get(name_cookie(request))) is not None:
            return True
        given = _parse_basic(request.headers.get("authorization", "")) if is_script else None
        if given is None:
            return False
        return await self._sessions.check(*given, "" if request.client is None else request.client.host)


def _parse_basic(header: str) -> tuple[str, str] | None:
    """Parse name and password in an Authorization header. Return `None` if it has none.

    >>> _parse_basic("Basic YWRhOmNvcnJlY3QgaG9yc2U=")
    ('ada', 'correct horse')
    >>> _parse_basic("Bearer abc"), _parse_basic("Basic !"), _parse_basic("Basic YWRh")
    (None, None, None)
    """
    kind, _, text = header.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return (name, password) if colon else None
