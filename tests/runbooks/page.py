"""A page of docs/runbooks, run as it is written: its commands are called in a folder with a service that is in trouble.

Between the commands a page has marks, comments that no reader sees: there the test does what the outside does, for
example has the bank answer again.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from urllib.request import urlopen

from saga.testing.servers.server import free_ports
from tests import waiting
from tests.docs.markdown import ROOT

PAGES = ROOT / "docs" / "runbooks"
SHOWS_WITHIN_S, CALL_S_MAX = 75.0, 60.0
LOOK_S = 0.3
PORTS = ("localhost:8080", "localhost:8081")
"""Where the pages look at metrics, and where a second process answers; a test has ports of its own."""

_PART = re.compile(
    r"^ *```(?P<language>\w+)\n(?P<body>.*?)^ *```$|^ *<!-- (?P<mark>[^>]+) -->$", re.MULTILINE | re.DOTALL
)


@dataclass
class Place:
    """A folder with the payment service, its files, and what runs there."""

    folder: Path
    extra: Mapping[str, str] = field(default_factory=dict)
    """Settings besides the defaults."""
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    shells: list[int] = field(default_factory=list)
    """Process groups of the commands: what a page leaves running is in one of them."""

    def __post_init__(self) -> None:
        self.ports = free_ports(len(PORTS))
        shutil.copytree(ROOT / "contracts", self.folder / "contracts")
        package = self.folder / "services" / "payment"
        package.mkdir(parents=True)
        (self.folder / "services" / "__init__.py").write_text('"""Services in trouble."""\n')
        shutil.copy(ROOT / "services" / "payment" / "events.py", package / "events.py")
        self.deploy("payment_service.py")
        self.bank("open")
        (self.folder / "bin").mkdir()
        self.commands_run_as({})

    def commands_run_as(self, users: Mapping[str, str]) -> None:
        """Have each command of `saga` run as the user of the broker who is named for its first words."""
        command = self.folder / "bin" / "saga"
        cases = "".join(f'  "{words} "*) export SAGA_KAFKA_USERNAME={user} ;;\n' for words, user in users.items())
        refused = '  *) echo "no page says who runs saga $*" >&2; exit 70 ;;\n' if users else ""
        called = shlex.join([sys.executable, "-m", "saga.cli.main"])
        command.write_text(f'#!/bin/bash\ncase "$* " in\n{cases}{refused}esac\nexec {called} "$@"\n')
        command.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SAGA_", "PYTEST_"))}
        path = os.pathsep.join([str(self.folder / "bin"), str(Path(sys.executable).parent), kept["PATH"]])
        paths = f"{self.folder}{os.pathsep}{ROOT}"
        given = {"PATH": path, "PYTHONPATH": paths, "COLUMNS": "200"}
        settings = {"SAGA_LOG": "json", "SAGA_HTTP": f"localhost:{self.ports[0]}"}
        return {**kept, **given, **settings, **self.extra}

    def deploy(self, source: str, limits: str = "") -> None:
        """Put a version of the service in its place. `limits`: more of what its resource is declared with."""
        code = (Path(__file__).parent / source).read_text().replace("timeout_s=5", f"timeout_s=5{limits}")
        (self.folder / "services" / "payment" / "__init__.py").write_text(code)

    def bank(self, how: str) -> None:
        """Have the bank be `open`, `away`, `closed` to us for ever, or `slow`."""
        (self.folder / "bank").write_text(how)

    def call(self, script: str) -> tuple[int, str]:
        """Exit code and output of commands as a page has them."""
        for port, own in zip(PORTS, self.ports, strict=True):
            script = script.replace(port, f"localhost:{own}")
        with subprocess.Popen(
            ["bash", "-uc", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            self.shells.append(process.pid)
            printed, _ = process.communicate(timeout=CALL_S_MAX)
        return process.returncode, printed

    def start(self) -> None:
        """Start the service."""
        with (self.folder / "payment.log").open("ab") as log:
            process = subprocess.Popen(
                [self.folder / "bin" / "saga", "run", "services.payment"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.running.append(process)
        waiting.until(lambda: process.poll() is not None or self._is_live(), SHOWS_WITHIN_S, self.log)

    def _is_live(self) -> bool:
        """Whether the service answers: a look that costs less than a command."""
        try:
            with urlopen(f"http://localhost:{self.ports[0]}/health/live", timeout=CALL_S_MAX):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """Stop what runs, as an orchestrator does."""
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(30)
        self.running.clear()

    def leave(self) -> None:
        """Stop what runs, and what a page has left running: a member that is killed stays in its group for a while,
        where the next test would meet it."""
        self.stop()
        for group in self.shells:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        waiting.until(lambda: not any(map(_is_there, self.shells)), CALL_S_MAX)

    def end(self) -> None:
        """Kill what still runs."""
        for process in self.running:
            process.kill()
            process.wait()
        for group in self.shells:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    def publish(self, *orders: str) -> None:
        """Have customers place orders."""
        lines = "\n".join(
            f'{{"order_id": "{order}", "customer_id": "c-1", "sku": "tea", "quantity": 1, "total": "9.80", '
            f'"card": "visa-1", "address": "Kiel"}}'
            for order in orders
        )
        status, printed = self.call(f"saga publish OrderPlaced <<'END'\n{lines}\nEND\n")
        assert status == 0, printed

    def shows(self, script: str, expected: str) -> None:
        """Call the commands until they print these lines, `...` standing for anything."""
        seen = ""

        def is_there() -> bool:
            nonlocal seen
            _, printed = self.call(script)
            missing = first_missing(expected, printed)
            seen = f"{script}\nnever printed {missing!r}, but:\n{printed}\n"
            return missing is None

        waiting.until(is_there, SHOWS_WITHIN_S, lambda: seen + self.log(), pause_s=LOOK_S)

    def log(self) -> str:
        """Return the end of the service's output."""
        log = self.folder / "payment.log"
        return log.read_text("utf-8", "replace")[-4000:] if log.exists() else "it has not run"


def _is_there(group: int) -> bool:
    """Whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def follow(page: str, place: Place, marks: Mapping[str, Callable[[], None]]) -> None:
    """Do what the page says. Each of its marks is to be among `marks`, and the other way round."""
    parts = list(_PART.finditer((PAGES / page).read_text("utf-8")))
    assert [part["mark"] for part in parts if part["mark"]] == list(marks), f"{page} has other marks"
    for part, next_ in zip(parts, [*parts[1:], None], strict=True):
        script = dedent(part["body"] or "")
        if part["mark"]:
            marks[part["mark"]]()
        elif part["language"] == "sh":
            if next_ is not None and next_["language"] == "text":
                place.shows(script, dedent(next_["body"]))
            else:
                status, printed = place.call(script)
                assert status == 0, f"{page}: {script}\nended with {status}:\n{printed}\n{place.log()}"


def first_missing(expected: str, printed: str) -> str | None:
    """The first expected line that no line of the output matches, in order; `...` stands for anything."""
    lines = (" ".join(line.split()) for line in printed.splitlines())
    for wanted in expected.splitlines():
        pattern = re.compile(".*".join(re.escape(" ".join(piece.split())) for piece in wanted.split("...")))
        if not any(pattern.fullmatch(line) for line in lines):
            return wanted
    return None
