"""Automatic refresh of a page, which users can pause. A script does it every few seconds. Without scripts, the browser
does it less often."""

from typing import NamedTuple

from markupsafe import Markup
from starlette.requests import Request

from saga.monitor.web.site import link

SCRIPT_S = 5
"""Seconds between two refreshes by the page's script. `page.js` contains the same number."""
PLAIN_S = 30
"""Seconds between two refreshes by a browser that runs no scripts."""


class Renewal(NamedTuple):
    """Whether the refresh of a page is paused, and the address of the same page with the opposite state."""

    is_paused: bool
    other: Markup
    script_s: int = SCRIPT_S
    plain_s: int = PLAIN_S


def read_renewal(request: Request) -> Renewal:
    """Read from the address of a page whether its refresh is paused."""
    asked = dict(request.query_params)
    is_paused = asked.pop("renew", "") == "off"
    return Renewal(is_paused, link(request.url.path, **asked, renew="" if is_paused else "off"))
