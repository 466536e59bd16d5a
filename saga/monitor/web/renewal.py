"""How a page renews itself: by script every few seconds, without script by the browser, or not while it is paused."""

from typing import NamedTuple

from markupsafe import Markup
from starlette.requests import Request

from saga.monitor.web.site import link

SCRIPT_S = 5
"""Seconds after which the script of the page asks for it again; `page.js` has the same number."""
PLAIN_S = 30
"""Seconds after which a browser without script loads the page again."""


class Renewal(NamedTuple):
    """Whether a page renews itself, and the address of the same page with the opposite."""

    is_paused: bool
    other: Markup
    script_s: int = SCRIPT_S
    plain_s: int = PLAIN_S


def read_renewal(request: Request) -> Renewal:
    """Read from the address of a page whether it is paused."""
    asked = dict(request.query_params)
    is_paused = asked.pop("renew", "") == "off"
    return Renewal(is_paused, link(request.url.path, **asked, renew="" if is_paused else "off"))
