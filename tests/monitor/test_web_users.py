"""Signing in on the monitor's page: who may, for how long, and what no user may."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from saga.cli.main import main
from saga.configuration.settings import Settings
from saga.errors import BadInput, ConfigurationError
from saga.monitor.web import users
from saga.monitor.web.users import SESSION_S, SESSIONS_MAX, Sessions, TooManySignIns, format_user_line, load_users
from saga.testing.trials import TrialClock
from tests.monitor.asking import HOST, browsing

PASSWORD = "correct horse"


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "COST", 2)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """File in which ada is the only user."""
    path = tmp_path / "users"
    path.write_text(f"# who may act\n\n{format_user_line('ada', PASSWORD)}\n")
    return path


def _read_line(file: Path, name: str) -> str:
    return next(line for line in file.read_text().splitlines() if line.startswith(f"{name}:"))


def _write(file: Path, text: str) -> None:
    file.write_text(text)


def test_the_command_prints_a_line_with_which_one_can_sign_in(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["monitor", "password", "ada"], input=f"{PASSWORD}\n", prog_name="saga")
    assert done.exit_code == 0, done.output
    assert PASSWORD not in done.output
    path = tmp_path / "users"
    path.write_text(done.stdout)
    hashed = load_users(str(path))["ada"]
    assert hashed.is_of(PASSWORD)
    assert not hashed.is_of(f"{PASSWORD} ")
    assert format_user_line("ada", PASSWORD) != format_user_line("ada", PASSWORD), "each has a salt of its own"


def test_a_user_has_the_role_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "users"
    lines = [
        CliRunner().invoke(main, ["monitor", "password", name, *role], input=f"{PASSWORD}\n", prog_name="saga").stdout
        for name, role in (("ada", []), ("eve", ["--role", "act"]), ("rex", ["--role", "read"]))
    ]
    path.write_text("".join(lines))
    assert {name: hashed.role for name, hashed in load_users(str(path)).items()} == {
        "ada": "act", "eve": "act", "rex": "read"
    }  # fmt: skip
    for wrong in (":admin", ":", ":read:act"):
        path.write_text(lines[0].strip() + wrong)
        with pytest.raises(ConfigurationError, match="not a user line"):
            load_users(str(path))


async def test_a_session_ends_when_the_role_of_its_user_changes(file: Path) -> None:
    sessions = Sessions(str(file), TrialClock())
    secret = await sessions.begin("ada", PASSWORD)
    session = sessions.get(secret)
    assert session is not None
    assert session.may_act
    _write(file, f"{_read_line(file, 'ada')}:read")
    assert sessions.get(secret) is None
    session = sessions.get(await sessions.begin("ada", PASSWORD))
    assert session is not None
    assert not session.may_act


@pytest.mark.parametrize(
    ("name", "password", "why"),
    [("a:b", PASSWORD, "is no valid name"), ("", PASSWORD, "is no valid name"), ("ada", "short", "this one has 5")],
)
def test_what_cannot_be_a_user_is_refused(name: str, password: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        format_user_line(name, password)
    done = CliRunner().invoke(main, ["monitor", "password", name], input=f"{password}\n", prog_name="saga")
    assert done.exit_code == 2
    assert why in done.output


def test_all_that_is_wrong_with_the_file_is_reported_at_once_and_none_of_its_content(file: Path) -> None:
    good = format_user_line("ada", PASSWORD)
    greedy = ":".join([*good.replace("ada", "eve").split(":")[:2], str(1 << 24), *good.split(":")[3:]])
    odd = good.replace("ada", "bob").replace(":2:", ":3:")
    bare = "carl:scrypt:2:8:1::"
    file.write_text("\n".join([good, good, "dan:my password", greedy, odd, bare]))
    with pytest.raises(ConfigurationError) as caught:
        Sessions(str(file), TrialClock())
    assert [problem.removeprefix(f"{file}, line ").partition(":")[0] for problem in caught.value.problems] == [
        "2", "3", "4", "5", "6"
    ]  # fmt: skip
    assert "ada occurs twice" in caught.value.problems[0]
    assert "my password" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="No such file"):
        load_users(f"{file}-gone")


async def test_a_session_ends_by_time_by_another_password_and_with_its_user(file: Path) -> None:
    clock = TrialClock()
    sessions = Sessions(str(file), clock)
    secrets = [await sessions.begin("ada", PASSWORD) for _ in range(2)]
    assert None not in secrets
    assert len({*secrets}) == 2
    session = sessions.get(secrets[0])
    assert session is not None
    assert session.user == "ada"
    assert sessions.get("") is None
    assert sessions.get(None) is None
    assert sessions.get("another") is None
    sessions.end(secrets[0] or "")
    assert sessions.get(secrets[0]) is None
    _write(file, format_user_line("ada", f"{PASSWORD} 2"))
    assert sessions.get(secrets[1]) is None, "the password is another"
    third = await sessions.begin("ada", f"{PASSWORD} 2")
    await clock.sleep(SESSION_S - 1)
    assert sessions.get(third) is not None
    await clock.sleep(2)
    assert sessions.get(third) is None, "its time is over"
    fourth = await sessions.begin("ada", f"{PASSWORD} 2")
    _write(file, "damaged")
    assert sessions.get(fourth) is None, "it is not known"


async def test_a_wrong_password_costs_time_and_a_crowd_is_sent_away(file: Path) -> None:
    clock = TrialClock()
    sessions = Sessions(str(file), clock)
    began_s = clock.monotonic_s()
    assert await sessions.begin("ada", "wrong") is None
    assert await sessions.begin("eve", PASSWORD) is None
    assert await sessions.begin("ada", PASSWORD + "x" * 2000) is None
    assert clock.monotonic_s() - began_s >= 3 * users.WRONG_S
    crowd = await asyncio.gather(*(sessions.begin("ada", "wrong") for _ in range(13)), return_exceptions=True)
    assert [type(each) for each in crowd].count(TooManySignIns) == 3
    assert await sessions.begin("ada", PASSWORD) is not None


async def test_guessing_passwords_locks_no_other_user_out(file: Path) -> None:
    """Guesses at one name, and at names that are made up, from one address: others sign in meanwhile."""
    clock = Standing()
    sessions = Sessions(str(file), clock)
    names = ["ada"] * 30 + [f"name-{n}" for n in range(3)]
    guesses = [asyncio.create_task(sessions.begin(name, "wrong", "10.0.0.66")) for name in names]  # noqa: TID251
    await asyncio.sleep(0)  # noqa: TID251 - until they are in line
    assert await sessions.begin("ada", PASSWORD, "10.0.0.7") is not None
    clock.may_go_on.set()
    ended = await asyncio.gather(*guesses, return_exceptions=True)
    assert [type(each) for each in ended].count(TooManySignIns) == 20
    assert [each for each in ended[21:] if each is not None] == []
    assert sessions._lines == {}


class Standing(TrialClock):
    """Clock on which the pause behind a wrong password lasts until it may end."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        await self.may_go_on.wait()


async def test_of_a_crowd_the_newest_is_let_in_and_the_oldest_sent_away(file: Path) -> None:
    clock = Standing()
    sessions = Sessions(str(file), clock)
    crowd = [asyncio.create_task(sessions.begin("ada", "wrong")) for _ in range(users.WAITING_MAX)]  # noqa: TID251
    await asyncio.sleep(0)  # noqa: TID251 - until they are in line
    mine = asyncio.create_task(sessions.begin("ada", PASSWORD))  # noqa: TID251
    crowd[-1].cancel()  # who goes away gives up the place in the line
    clock.may_go_on.set()
    assert await mine is not None
    ended = await asyncio.gather(*crowd, return_exceptions=True)
    assert [type(each) for each in ended].count(TooManySignIns) == 1
    assert isinstance(ended[-1], asyncio.CancelledError)
    assert await sessions.begin("ada", PASSWORD) is not None


async def test_so_many_names_are_tried_at_once_at_most(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "LINES_MAX", 5)
    sessions = Sessions(str(file), TrialClock())
    ended = await asyncio.gather(*(sessions.begin(f"name-{n}", "wrong") for n in range(9)), return_exceptions=True)
    assert [type(each) for each in ended].count(TooManySignIns) == 4


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666, 0o777])
def test_a_file_that_others_may_write_is_refused(mode: int, file: Path) -> None:
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match="other users may write to it, and so sign in as any user; chmod go-w"):
        Sessions(str(file), TrialClock())


def test_a_file_that_others_may_read_is_reported(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.chmod(0o644)
    Sessions(str(file), TrialClock())
    assert "other users may read" in caplog.text
    caplog.clear()
    file.chmod(0o640)
    Sessions(str(file), TrialClock())
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://127.0.0.1:8090", "saga_session_8090"),
        ("http://127.0.0.1", "saga_session"),
        ("https://monitor.example:8443", "__Host-saga_session_8443"),
        ("https://monitor.example", "__Host-saga_session"),
    ],
)
async def test_a_session_is_of_one_host_and_port(url: str, name: str, folder: Path, file: Path) -> None:
    settings = Settings(monitor_users=str(file), monitor_hosts="monitor.example")
    async with browsing(settings) as browser:
        fields = {"name": "ada", "password": PASSWORD}
        done = await browser.client.post(f"{url}/sign-in", data=fields, headers={"origin": url})
        cookie, _, rest = done.headers["set-cookie"].partition("=")
        assert cookie == name
        assert ("Secure" in rest) == url.startswith("https")
        assert "Path=/" in rest
        assert "Domain" not in rest
        secret = rest.partition(";")[0]
        there = await browser.client.get(f"{url}/dead", headers={"cookie": f"{name}={secret}"})
        assert "Sign out" in there.text
        for other in {"saga_session", "saga_session_8090", "saga_session_1"} - {name}:
            elsewhere = await browser.client.get(f"{url}/dead", headers={"cookie": f"{other}={secret}"})
            assert "Sign out" not in elsewhere.text


async def test_sessions_are_so_many_at_most(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users, "SESSIONS_MAX", 3)
    assert SESSIONS_MAX > 3
    sessions = Sessions(str(file), TrialClock())
    secrets = [await sessions.begin("ada", PASSWORD) for _ in range(5)]
    assert [sessions.get(secret) is not None for secret in secrets] == [False, False, True, True, True]


async def test_without_a_file_of_users_the_page_only_shows(folder: Path) -> None:
    async with browsing(Settings()) as browser:
        page = await browser.get("/dead/list", 200)
        assert "read-only" in page.text
        assert not [form for form in page.forms if form.action.startswith("/dead/act")]
        refused = await browser.get("/sign-in", 403)
        assert "SAGA_MONITOR_USERS names no file of users" in refused.text
        for path in ("/dead/act", "/controls/switch", "/sign-out"):
            assert (await browser.post(path, [])).status_code == 403


async def test_who_signs_in_is_named_and_may_sign_out(folder: Path, file: Path) -> None:
    async with browsing(Settings(monitor_users=str(file))) as browser:
        wrong = await browser.sign_in("ada", "wrong horse", 403)
        assert "Wrong name or password" in wrong.text
        assert "set-cookie" not in wrong.headers
        page = await browser.get("/dead/list")
        [to_sign_in] = page.links("/sign-in")
        assert to_sign_in == "/sign-in?back=%2Fdead%2Flist"
        form = next(form for form in (await browser.get(to_sign_in)).forms if form.action == "/sign-in")
        done = await browser.send(form, ("name", "ada"), ("password", PASSWORD))
        assert done.headers["location"] == "/dead/list"
        cookie = done.headers["set-cookie"]
        assert {"HttpOnly", "SameSite=lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        page = await browser.get("/dead/list")
        assert "ada Sign out" in page.text
        out = next(form for form in page.forms if form.action == "/sign-out")
        forged = await browser.post("/sign-out", [("form", "x")])
        assert forged.status_code == 403
        assert "ada" in (await browser.get("/dead/list")).text
        await browser.send(out)
        assert "ada" not in (await browser.get("/dead/list")).text


async def test_signing_in_leads_to_no_other_site(folder: Path, file: Path) -> None:
    async with browsing(Settings(monitor_users=str(file))) as browser:
        for back in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\r\nx: y"):
            fields = [("name", "ada"), ("password", PASSWORD), ("back", back)]
            done = await browser.post("/sign-in", fields)
            assert (done.status_code, done.headers["location"]) == (303, "/"), back


async def test_a_form_comes_from_a_page_of_this_host_alone(folder: Path, file: Path) -> None:
    settings = Settings(monitor_users=str(file), monitor_hosts="monitor.example")
    async with browsing(settings) as browser:
        fields = [("name", "ada"), ("password", PASSWORD)]
        for origin in ("https://evil.example", "null", "", f"http://{HOST}.evil.example", "http://127.0.0.1:1"):
            assert (await browser.post("/sign-in", fields, origin=origin)).status_code == 403, origin
        assert (await browser.post("/sign-in", fields, origin=f"https://{HOST}")).status_code == 303, "behind TLS"
        for host, status in (
            ("monitor.example", 303),
            ("evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("", 403),
        ):
            assert (await browser.client.get("/", headers={"host": host})).status_code == status, host
        odd = await browser.post("/sign-in", fields, **{"content-type": "text/plain"})
        assert odd.status_code == 400
        large = await browser.post("/sign-in", [("name", "x" * 300_000)])
        assert (large.status_code, "more than 262144 bytes" in large.text) == (400, True)
        many = await browser.post("/sign-in", [("name", "x")] * 3000)
        assert many.status_code == 400
