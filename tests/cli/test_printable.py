"""Whatever comes from outside is printed escaped, by every command: no text takes over a terminal or forges a line."""

import ast
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from saga.cli.main import COMMANDS
from saga.cli.printing import LIBRARY_LINES_MAX, print_error, print_lines
from saga.messaging.names import PROGRESS
from saga.progress.document import progress_key
from saga.store.sqlite.store import SqliteStore
from saga.support.clock import SystemClock
from tests.cli.conftest import ROOT, Call

FORGED = "all is well"
HOSTILE = f"x\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\u2066\u200b\u2028\u0085\x00\x7f\n{FORGED}"
"""Clears, colours, renames, overwrites, turns around, hides, and begins a line of its own."""


def is_safe(output: str) -> bool:
    lines = output.split("\n")
    return all(line.isprintable() for line in lines) and not any(line.startswith(FORGED) for line in lines)


@pytest.fixture
def hostile(shop: Path) -> Path:
    """The folder with one saga more, known to payment: its id, and every text about it, are hostile."""
    escaped = json.dumps(HOSTILE)[1:-1]

    async def planted() -> None:
        async with SqliteStore(shop / ".saga" / "payment.db", clock=SystemClock()) as store:
            found = await store.get(PROGRESS, progress_key("payment", "order-3"))
            assert found is not None
            text = found.content.decode()
            for word in ("order-3", "the bank does not know such cards", "OrderPlaced", "reserve"):
                assert word in text
                text = text.replace(word, escaped)
            await store.insert(PROGRESS, progress_key("payment", HOSTILE), text.encode())

    asyncio.run(planted())
    return shop


@pytest.mark.parametrize(
    ("args", "stdin"),
    [
        (
            (
                "sagas",
                "list",
            ),
            "",
        ),
        (("sagas", "list", "--json"), ""),
        (("sagas", "list", "--store", f"sqlite:///{HOSTILE}"), ""),
        (("dead", "list"), ""),
        (("dead", "show", HOSTILE), ""),
        (("dead", "show", f"{HOSTILE}?"), ""),
        (("dead", "replay", "payment", "--all", "--who", "a", "--why", "b", "--dry-run"), ""),
        (("dead", "replay", HOSTILE, "--saga", HOSTILE, "--who", "a", "--why", "b"), ""),
        (("dead", "discard", "payment", "--before", HOSTILE, "--who", "a", "--why", "b"), ""),
        (("sagas", "show", HOSTILE), ""),
        (("sagas", "show", HOSTILE, "--json"), ""),
        (("sagas", "show", HOSTILE, "--transition", "0", "--service", "payment"), ""),
        (("sagas", "show", f"{HOSTILE}?"), ""),
        (("new", "project", HOSTILE), ""),
        (("new", "service", HOSTILE, "--hears", HOSTILE), ""),
        (("dev", HOSTILE.replace("\x00", "")), ""),
        (("topics", "tail", HOSTILE, "--no-follow"), ""),
        (("topics", "tail", "orders", "--since", HOSTILE), ""),
        (("monitor", "run", "--listen", HOSTILE), ""),
        (("monitor", "trace", HOSTILE), ""),
        (("monitor", "stuck", "--monitor", HOSTILE), ""),
        (
            (
                "monitor",
                "rates",
            ),
            "",
        ),
        (("monitor", "password", HOSTILE), "long enough 4711\nlong enough 4711\n"),
        (
            (
                "sagas",
                "verify",
            ),
            "",
        ),
        (("sagas", "verify", HOSTILE, "--json"), ""),
        (("sagas", "verify", f"{HOSTILE}?"), ""),
        (("publish", HOSTILE), ""),
        (("publish", "OrderPlaced"), json.dumps({HOSTILE: HOSTILE}) + "\n" + HOSTILE),
        (("publish", "OrderPlaced", "--file", HOSTILE.replace("\x00", "")), ""),
        (("offsets", "show", HOSTILE), ""),
        (("offsets", "reset", "payment", "--topic", HOSTILE, "--to", HOSTILE, "--who", "a", "--why", "b"), ""),
        (("offsets", "reset", "payment", "--topic", "orders", "--to", "earliest", "--who", "a", "--why", " "), ""),
        (("topics", "plan", HOSTILE.replace("\x00", "")), ""),
        (("access", "kafka", "services.payment", "--principal", f"User:{HOSTILE}"), ""),
        (("access", "kafka", "services.payment", "--for", "client", "--event", HOSTILE), ""),
        (("access", "couchbase", "services.payment", "--user", HOSTILE, "--store", "couchbase://db/shop"), ""),
        (("changes", "connector", HOSTILE.replace("\x00", "")), ""),
        (("changes", "connector", "services.payment", "--user", HOSTILE, "--store", f"couchbase://{HOSTILE}"), ""),
        (("doctor", "services.payment", HOSTILE.replace("\x00", "")), ""),
        (("run", HOSTILE.replace("\x00", "")), ""),
        (("sagas", "repair", HOSTILE.replace("\x00", "")), ""),
        (("sagas", "repair", "services.payment", "--saga", HOSTILE, "--dry-run"), ""),
        (("sagas", "rebuild", HOSTILE.replace("\x00", "")), ""),
        (("dead", "resolve", HOSTILE, "--step", HOSTILE, "--answered", HOSTILE, "--who", "a", "--why", "b"), ""),
        (("control", "flag", "payment", HOSTILE, "--percent", "1", "--until", HOSTILE, "--who", "a", "--why", "b"), ""),
        (("keys", "new", "--who", HOSTILE, "--why", HOSTILE), ""),
        (("keys", "log"), ""),
        (("keys", "forget", HOSTILE, "--who", HOSTILE, "--why", HOSTILE), ""),
        (("control", "show", HOSTILE), ""),
        (("dead", "release", HOSTILE, "--saga", HOSTILE, "--who", HOSTILE, "--why", HOSTILE, "--dry-run"), ""),
        (("audit", HOSTILE), ""),
        (("contracts", "generate", "events.py", HOSTILE), ""),
        (("contracts", "check"), ""),
        (("docs", "build", f"{HOSTILE}/site".replace("\x00", "")), ""),
        (("manifest", HOSTILE.replace("\x00", "")), ""),
        (("check", HOSTILE.replace("\x00", "")), ""),
        (("check", "services.payment", "--accepted", HOSTILE.replace("\x00", "")), ""),
        (("deploy", "check", HOSTILE.replace("\x00", "")), ""),
        (("describe", HOSTILE), ""),
        (("describe", "payment", HOSTILE.replace("\x00", "")), ""),
        (("explain", HOSTILE), ""),
        (("explain", HOSTILE, "--json"), ""),
        (("explain", f"{HOSTILE}?"), ""),
        (("graph", HOSTILE.replace("\x00", "")), ""),
        (("graph", "--from", HOSTILE), ""),
        (("graph", "--service", HOSTILE), ""),
        (("graph", "--title", HOSTILE, "services.payment"), ""),
        (("manifest", "--check", "services.payment", "--folder", HOSTILE.replace("\x00", "")), ""),
        ((HOSTILE,), ""),
    ],
    ids=lambda value: " ".join(value[:2]).partition("x\x1b")[0] if isinstance(value, tuple) else "",
)
def test_no_command_prints_what_a_terminal_obeys(args: tuple[str, ...], stdin: str, hostile: Path, saga: Call) -> None:
    assert saga("contracts", "generate", "events.py", "OrderPlaced").exit_code == 0
    with (hostile / "events.py").open("a") as generated:
        generated.write(f"# {HOSTILE.replace(FORGED, '# ' + FORGED)}\n".replace("\x00", ""))
    result = saga(*args, stdin=stdin)
    assert result.stdout + result.stderr, "it says something"
    assert is_safe(result.stdout), result.stdout
    assert is_safe(result.stderr), result.stderr


def test_every_command_is_fed() -> None:
    (mark,) = (m for m in test_no_command_prints_what_a_terminal_obeys.pytestmark if m.name == "parametrize")  # type: ignore[attr-defined]
    assert {args[0] for args, _ in mark.args[1]} >= set(COMMANDS)


def test_printed_text_stays_readable(hostile: Path, saga: Call) -> None:
    shown = saga("sagas", "show", HOSTILE).stdout
    assert r"saga x\x1b[2J\x1b]0;title\x07\r\x9b31m\u202e\u2066\u200b\u2028\x85\x00\x7f\nall is well" in shown
    assert json.loads(saga("sagas", "show", HOSTILE, "--json").stdout)["saga"] == HOSTILE


def test_a_line_cannot_become_two_and_trouble_of_several_lines_is_indented(capfd: pytest.CaptureFixture[str]) -> None:
    print_lines("one", HOSTILE)
    print_error(f"nothing was started:\n  - a problem\n{FORGED}")
    out, err = capfd.readouterr()
    assert out.count("\n") == 2
    assert err == "saga: nothing was started:\n  - a problem\n  all is well\n"


def test_only_one_module_of_the_commands_prints() -> None:
    prints = {
        path.name
        for path in (ROOT / "saga" / "cli").glob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in ("echo", "secho", "write", "echo_via_pager")
        if not (path.name == "publish.py" and ast.unparse(node) == "spool.write")
    }
    assert prints == {"printing.py"}


def test_the_traceback_of_a_defect_is_escaped_too() -> None:
    code = (
        "import saga.cli.main as m, click\n"
        "@m.main.command('fails')\n"
        f"def fails(): raise RuntimeError({HOSTILE!r})\n"
        "m.COMMANDS['fails'] = ('__main__:fails', '')\n"
        "m.main(['fails'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 1
    assert r"RuntimeError: x\x1b[2J" in run.stderr
    assert all(line.isprintable() for line in run.stderr.split("\n"))


def test_the_output_of_a_library_is_escaped_and_bounded_in_every_command() -> None:
    code = (
        "import saga.cli.main as m, click, logging\n"
        "@m.main.command('says')\n"
        f"def says(): [logging.getLogger('driver').error('%d %s', n, {HOSTILE!r}) for n in range(500)]\n"
        "m.COMMANDS['says'] = ('__main__:says', '')\n"
        "m.main(['says'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0
    assert r"saga: driver: 0 x\x1b[2J" in run.stderr
    assert is_safe(run.stderr)
    assert run.stderr.count("\n") == 2 * LIBRARY_LINES_MAX + 1


def test_errors_that_no_caller_gets_and_the_end_of_a_thread_are_escaped_and_bounded_too() -> None:
    code = (
        "import saga.cli.main as m, threading\n"
        "class Odd:\n"
        f"    def __del__(self): raise RuntimeError({HOSTILE!r})\n"
        f"def ends(): raise RuntimeError({HOSTILE!r})\n"
        "@m.main.command('odd')\n"
        "def odd():\n"
        "    for _ in range(200): Odd()\n"
        "    for _ in range(200): (t := threading.Thread(target=ends)).start(); t.join()\n"
        "m.COMMANDS['odd'] = ('__main__:odd', '')\n"
        "m.main(['odd'])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0
    assert r"saga: python: a thread has ended with an exception: RuntimeError: x\x1b[2J" in run.stderr
    assert is_safe(run.stderr)
    assert run.stderr.count("\n") == 2 * (2 * LIBRARY_LINES_MAX + 1)


def test_a_terminal_of_another_encoding_ends_no_command(folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "saga.cli.main", "contracts", "generate", "東.py", "OrderPlaced"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1:strict"},
    )
    assert (run.returncode, run.stdout) == (0, "\\u6771.py written\n")
