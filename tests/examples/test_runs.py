"""Each example runs as its page says."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, blocks

PAGE = (ROOT / "docs/start/examples.md").read_text("utf-8")
RUN_S_MAX = 100


@pytest.mark.timeout(RUN_S_MAX + 20)
@pytest.mark.parametrize("name", ["travel", "loan"])
def test_the_example_prints_what_its_page_shows(name: str, tmp_path: Path) -> None:
    (shown,) = (each.body for each in blocks(PAGE) if each.body.startswith(f"$ make {name}\n"))
    run = subprocess.run(
        [sys.executable, "-m", f"examples.{name}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    printed = run.stdout.splitlines()
    expected = [line for line in shown.splitlines()[1:] if line != "..."]
    assert [line for line in printed if line in expected] == expected, run.stdout
    if name == "travel":
        assert printed == expected
