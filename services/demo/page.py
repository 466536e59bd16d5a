"""Run the monitor's page next to the demonstration. The page shows the orders while they run. The services do not
depend on it."""

import re
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from services.demo.fleet import ROOT, Fleet

HOST, PORT = "127.0.0.1", 8642
"""Address of the page."""
_SHOWN = re.compile(r"the monitor answers at (http://\S+)")


class Page:
    """The process of a monitor, which reads the transition events of the services.

    At the end of the `with` block the process is killed. It only reads, so nothing is lost.
    """

    def __init__(self, fleet: Fleet, port: int = PORT) -> None:
        """Store the parameters. `port`: port of the page. If it is in use, a free port is chosen."""
        self.log = fleet.folder / "page.log"
        self._environment: Mapping[str, str] = {**fleet.environment, "PYTHONUNBUFFERED": "1"}
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, why: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self, **more: str) -> None:
        """Start the process. The page can be opened soon after. `more`: additional environment variables."""
        self._environment = {**self._environment, **more}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "saga.cli.main", "monitor", "run", "--listen", f"{HOST}:{self._port}"],
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def news(self) -> str | None:
        """Return a sentence with the address of the page, or with the reason why there is no page; `None` while neither
        is known."""
        log = self.log.read_text("utf-8", "replace")
        if found := _SHOWN.search(log):
            return f"a page shows them at {found[1]}, as long as this runs"
        if self._process is None or self._process.poll() is None:
            return None
        if self._port:
            self._port = 0
            self.start()
            return None
        return f"no page shows them: {' '.join(log.split())}"
