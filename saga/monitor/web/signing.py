"""Pages of signing in and out."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from saga.monitor.web.guards import form_of
from saga.monitor.web.site import NotAllowed, cookie_of, site_of


async def sign_in(request: Request) -> Response:
    """Form for name and password; and who has sent it."""
    site = site_of(request)
    if not site.sessions.may_begin:
        raise NotAllowed("nobody can sign in here: SAGA_MONITOR_USERS names no file of users, so this page only shows")
    if request.method != "POST":
        return site.page(request, "sign_in.html.j2", wrong=False, back=_ours(request.query_params.get("back", "")))
    form = await form_of(request)
    cookie, address = cookie_of(request), "" if request.client is None else request.client.host
    secret = await site.sessions.begin(form.one("name"), form.one("password"), address)
    back = _ours(form.one("back"))
    if secret is None:
        return site.page(request, "sign_in.html.j2", 403, wrong=True, back=back)
    if (old := request.cookies.get(cookie)) is not None:
        site.sessions.end(old)
    answer = RedirectResponse(back, 303)
    answer.set_cookie(cookie, secret, httponly=True, samesite="lax", secure=request.url.scheme == "https", path="/")
    return answer


def _ours(path: str) -> str:
    r"""Path of a page here; the first one for anything else.

    >>> _ours("/dead?at=50"), _ours("//evil.example/"), _ours("https://evil.example"), _ours("/\\evil.example")
    ('/dead?at=50', '/', '/', '/')
    """
    is_ours = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isascii() and path.isprintable()
    return path if is_ours else "/"


async def sign_out(request: Request) -> Response:
    """End of a session."""
    site = site_of(request)
    await site.form(request)
    cookie = cookie_of(request)
    site.sessions.end(request.cookies.get(cookie, ""))
    answer = RedirectResponse("/", 303)
    answer.delete_cookie(cookie, path="/", secure=request.url.scheme == "https", httponly=True, samesite="lax")
    return answer


ROUTES = [Route("/sign-in", sign_in, methods=["GET", "POST"]), Route("/sign-out", sign_out, methods=["POST"])]
