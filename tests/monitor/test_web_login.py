"""Reading by login: who is no user sees nothing, scripts send name and password, and neither can act without a form."""

import base64
from pathlib import Path

import pytest

from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from saga.monitor.web import users
from saga.monitor.web.app import create_app
from saga.monitor.web.users import SCRIPTS_MAX, HashedPassword, Sessions, format_user_line
from saga.testing.trials import TrialClock
from tests.monitor.asking import CLOCK, browsing
from tests.monitor.fixed_views import FixedViews
from tests.monitor.test_web_pages import PAGES

PASSWORD = "correct horse"
API = ("/api/sagas", "/api/stuck", "/api/rates", "/api/errors", "/api/hot", "/api/trace/order-1", "/metrics")
EXPORTS = ("/export/sagas.csv", "/export/stuck.json", "/export/dead.csv")


@pytest.fixture
def closed(shop: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a page that only users may read; rex may not act."""
    monkeypatch.setattr(users, "COST", 2)
    (shop / "users").write_text(format_user_line("rex", PASSWORD, "read"))
    return Settings(monitor_users="users", monitor_read="login")


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


async def test_nothing_is_read_without_a_login(closed: Settings) -> None:
    async with browsing(closed, FixedViews("order-secret")) as browser:
        for path in (*PAGES, "/", "/overview", "/saga?id=order-secret", "/dead/letter?letter=a/b", "/no-such-page"):
            answer = await browser.client.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/sign-in?back=%2F"), path
            assert "order-secret" not in answer.text
        for path in (*API, *EXPORTS):
            answer = await browser.client.get(path)
            assert (answer.status_code, answer.headers["www-authenticate"][:5]) == (401, "Basic"), path
            assert "order-secret" not in answer.text
            assert "content-security-policy" in answer.headers
        for path in ("/dead/act", "/dead/bulk/start", "/controls/switch", "/sign-out"):
            assert (await browser.post(path, [])).status_code == 403, path
        assert (await browser.client.get("/assets/style.css")).status_code == 200
        page = await browser.get("/sign-in?back=/stuck")
        assert "order-secret" not in page.text


async def test_a_user_reads_everything_after_signing_in_and_nothing_after_signing_out(closed: Settings) -> None:
    async with browsing(closed, FixedViews("order-")) as browser:
        answer = await browser.client.get("/stuck?why=dead")
        assert answer.headers["location"] == "/sign-in?back=%2Fstuck%3Fwhy%3Ddead"
        await browser.sign_in("rex", PASSWORD)
        for path in (*PAGES, *API[:-2], *EXPORTS):
            assert (await browser.client.get(path)).status_code == 200, path
        out = next(form for form in (await browser.get("/stuck")).forms if form.action == "/sign-out")
        await browser.send(out)
        assert (await browser.client.get("/stuck")).status_code == 303


async def test_scripts_send_name_and_password_and_can_only_read(
    closed: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = list[str]()
    is_of = HashedPassword.is_of

    def counting(self: HashedPassword, password: str) -> bool:
        checked.append(password)
        return is_of(self, password)

    monkeypatch.setattr(HashedPassword, "is_of", counting)
    async with browsing(closed, FixedViews("order-")) as browser:
        for path in (*API[:-2], *EXPORTS, "/metrics"):
            answer = await browser.client.get(path, headers=basic("rex", PASSWORD))
            assert answer.status_code == 200, path
            assert "set-cookie" not in answer.headers
        assert checked == [PASSWORD], "a password is hashed once, not for each request"
        page = await browser.client.get("/stuck", headers=basic("rex", PASSWORD))
        assert page.status_code == 303, "pages are for people who signed in"
        monkeypatch.setattr(users, "WRONG_S", 0.0)
        for name, password in (("rex", "wrong"), ("eve", PASSWORD), ("", "")):
            assert (await browser.client.get("/api/stuck", headers=basic(name, password))).status_code == 401
        for header in ("Basic !", "Basic", "Bearer x", "Basic " + base64.b64encode(b"rex").decode()):
            assert (await browser.client.get("/metrics", headers={"authorization": header})).status_code == 401, header
        acted = await browser.post("/dead/act", [("wanted", "replay")], **basic("rex", PASSWORD))
        assert acted.status_code == 403


async def test_a_script_is_refused_as_soon_as_its_user_is_removed(closed: Settings, folder: Path) -> None:
    async with browsing(closed, FixedViews("order-")) as browser:
        assert (await browser.client.get("/api/stuck", headers=basic("rex", PASSWORD))).status_code == 200
        _clear(folder)
        users_left = await browser.client.get("/api/stuck", headers=basic("rex", PASSWORD))
        assert users_left.status_code == 401


def _clear(folder: Path) -> None:
    (folder / "users").write_text("")


async def test_only_so_many_scripts_are_remembered(closed: Settings, folder: Path) -> None:
    lines = [format_user_line(f"u{n}", PASSWORD) for n in range(SCRIPTS_MAX + 5)]
    _write_lines(folder, lines)
    sessions = Sessions("users", TrialClock())
    for n in range(SCRIPTS_MAX + 5):
        assert await sessions.check(f"u{n}", PASSWORD)
    assert len(sessions._checked) == SCRIPTS_MAX
    assert len(sessions._sessions) == SCRIPTS_MAX


def _write_lines(folder: Path, lines: list[str]) -> None:
    (folder / "users").write_text("\n".join(lines))


def test_a_login_without_users_is_refused_at_the_start(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="names no file of users"):
        create_app(None, Settings(monitor_read="login"), CLOCK)
