"""Guards in front of every page. They check which host name is requested and who may send a form, and tell browsers
what the page may do.

Pages from the internet can reach this site through the browser of its user, even if the site listens only on the user's
own machine. Such a page may send a form to this site, or let its own host name point to the address of this machine. So
host names are checked, and forms are accepted only from our own pages, with a secret of the session.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from saga.errors import BadInput

FORM_BYTES_MAX = 1 << 18
"""Maximum size of a form in bytes. A form may contain a step result of 64 KiB, and its encoding triples that size."""
FIELDS_MAX = 2000
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with `no-referrer` browsers would send forms with the origin `null`
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
"""Headers that every response gets."""
_PORT = re.compile(r":[0-9]{1,5}$")


class GuardMiddleware:
    """ASGI middleware with the guards of an application."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] = ()) -> None:
        self._app, self._hosts = app, frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name.lower() for name, _ in message["headers"]}
                more = [] if b"cache-control" in there else [(b"cache-control", b"no-store")]
                message = {**message, "headers": [*message["headers"], *HEADERS, *more]}
            await send(message)

        request = Request(scope)
        refused = self._find_refusal(request)
        answer = self._app if refused is None else PlainTextResponse(f"{refused}\n", status_code=403)
        await answer(scope, receive, with_headers)

    def _find_refusal(self, request: Request) -> str | None:
        host = request.headers.get("host", "")
        if not is_known_host(host, self._hosts):
            return (
                "this host name is not allowed: use the IP address, or have the operator of the monitor add the name "
                "to SAGA_MONITOR_HOSTS"
            )
        if request.method in ("GET", "HEAD"):
            return None
        if request.headers.get("origin", "").partition("://")[2].lower() != host.lower():
            return "forms must come from a page of this monitor"
        return None


def is_known_host(host: str, hosts: Collection[str]) -> bool:
    """Return whether a request with this Host header may be answered.

    `localhost`, IP addresses and the names in `hosts` are allowed. IP addresses are safe, because a site needs a name
    of its own to redirect a browser to this server (DNS rebinding).
    """
    name = _PORT.sub("", host).lower()
    if name == "localhost" or name in hosts:
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class FormFields:
    """The fields of a form, as they were received."""

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self._fields = [*fields]

    def one(self, name: str) -> str:
        """Return the value of a field, without surrounding spaces; empty if the field is missing."""
        return next((value.strip() for field, value in self._fields if field == name), "")

    def every(self, name: str) -> list[str]:
        """Return the values of all fields with this name."""
        return [value for field, value in self._fields if field == name]


async def read_form(request: Request) -> FormFields:
    """Read the form of a request. Raises `BadInput` if it is malformed or too large."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise BadInput("this is no form of this page")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise BadInput(f"the form has more than {FORM_BYTES_MAX} bytes")
    try:
        return FormFields(parse_qsl(body.decode("latin-1"), keep_blank_values=True, max_num_fields=FIELDS_MAX))
    except ValueError as why:
        raise BadInput(f"the form cannot be read: {why}") from why
