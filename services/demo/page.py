"""The monitor's page beside the services of the demonstration: it shows their orders while they run, and none of them
waits for it."""

import re
import subprocess
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from services.demo.fleet import ROOT, Fleet

HOST, PORT = "127.0.0.1", 8642
"""Place where the page is shown."""
_SHOWN = re.compile(r"the monitor answers at (http://\S+)")


class Page:
    """Process of a monitor that reads what a fleet tells.

    Leaving the `with` block kills it: it is a reader, and holds nothing that could be lost.
    """

    def __init__(self, fleet: Fleet, port: int = PORT) -> None:
        """`port`: where it is shown, unless another process listens there; then it is any that is free."""
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
        """Start it; it is shown soon after. `more`: variables of its environment."""
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
        """Address at which it is shown, or the reason why it is not; `None`: it is not known yet."""
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
