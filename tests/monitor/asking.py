"""Browser of the tests: asks the monitor's page without a socket, keeps cookies, sends the forms that a page has."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode

import httpx

from saga.configuration.settings import Settings
from saga.monitor.views import Views
from saga.monitor.web.app import create_app
from saga.support.clock import SystemClock

CLOCK = SystemClock()
HOST = "127.0.0.1:8090"
WITHIN_S = 40.0
VOID = frozenset({"meta", "link", "input", "br", "rect", "wbr"})


@dataclass
class Sent:
    """Form of a page, as a browser would send it."""

    action: str
    fields: list[tuple[str, str]] = field(default_factory=list)


class Seen(HTMLParser):
    """Page as a browser reads it: its elements, its text, its forms."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.forms: list[Sent] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        known = dict(attrs)
        self.elements.append((tag, known))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "form":
            self.forms.append(Sent(known.get("action") or ""))
        name = known.get("name")
        if name and self.forms and tag == "input" and known.get("type") not in ("checkbox", "search"):
            self.forms[-1].fields.append((name, known.get("value") or ""))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text, with single spaces."""
        return " ".join(" ".join(self.words).split())

    def links(self, begins: str) -> list[str]:
        """Addresses of links that begin so."""
        return [
            href for tag, attrs in self.elements if tag == "a" and (href := attrs.get("href") or "").startswith(begins)
        ]


@dataclass
class Browser:
    """One person's browser."""

    client: httpx.AsyncClient

    async def get(self, path: str, status: int = 200) -> Seen:
        """Page at a path, once what it shows has been read."""
        end_s = CLOCK.monotonic_s() + WITHIN_S
        while True:
            answer = await self.client.get(path)
            assert answer.status_code == status, (path, answer.status_code, answer.text)
            seen = Seen(answer.text)
            if not any("data-coming" in attrs for _, attrs in seen.elements):
                assert seen.open == []
                return seen
            assert CLOCK.monotonic_s() < end_s, answer.text
            await CLOCK.sleep(0.05)

    async def send(self, form: Sent, *more: tuple[str, str], status: int = 303) -> httpx.Response:
        """Send a form, some fields filled in by a person, and one button pressed."""
        filled = {name for name, _ in more}
        fields = [*((name, value) for name, value in form.fields if name not in filled), *more]
        answer = await self.post(form.action, fields)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer

    async def post(self, path: str, fields: Sequence[tuple[str, str]], **headers: str) -> httpx.Response:
        """Send fields as a form of the page does."""
        kind = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{HOST}"}
        return await self.client.post(path, content=urlencode(fields), headers={**kind, **headers})

    async def sign_in(self, name: str, password: str, status: int = 303) -> httpx.Response:
        """Sign in by the form of the page."""
        page = await self.get("/sign-in")
        form = next(form for form in page.forms if form.action == "/sign-in")
        return await self.send(form, ("name", name), ("password", password), status=status)


@asynccontextmanager
async def browsing(settings: Settings, views: Views | None = None, *addresses: str) -> AsyncIterator[Browser]:
    """Browser in front of a page with these settings."""
    made = create_app(views, settings, CLOCK, addresses=addresses)
    async with made.router.lifespan_context(made):
        transport = httpx.ASGITransport(app=made, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            yield Browser(client)
