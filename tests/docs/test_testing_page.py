"""The pages about testing are run as a reader would, in the tutorial's folder: what it shows is what is printed."""

import os
import re
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import get_args

import pytest

from saga.engine.execution.document_updates import PRUNE_FROM
from saga.testing.fault_plans import KINDS
from saga.testing.invariants.checks import UNSEEN_IN_PARTIAL
from saga.testing.invariants.evidence import Invariant
from saga.testing.processes.faults import LEFT_OUT
from saga.testing.processes.process_world import UNNAMED
from tests.docs.markdown import ROOT, Block, blocks
from tests.docs.test_tutorial import PAGES as TUTORIAL_PAGES
from tests.docs.test_tutorial import first_missing

PAGES = [
    f"docs/guides/testing/{name}.md" for name in ("README", "worlds", "failures", "crashes", "properties", "processes")
]
PAGE = "\n".join((ROOT / page).read_text("utf-8") for page in PAGES)
TUTORIAL = "\n".join((ROOT / page).read_text("utf-8") for page in TUTORIAL_PAGES).partition("\n## 8. ")[0]
"""Chapters behind which the page begins: the last one changes what was made in them."""
CALL_S_MAX = 200.0
WITHOUT = "-p no:asyncio -p no:xdist -p no:hypothesispytest"
"""Plugins that the page does not need. The first, without settings, complains; the others take their time to load."""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """The folder in which the tutorial ends, as far as tests need it: its files, and the classes of its events."""
    for block in blocks(TUTORIAL):
        if block.title is not None:
            _write(tmp_path, block)
        elif block.language == "sh" and "saga contracts generate" in block.body:
            status, printed = _call(tmp_path, block.body)
            assert status == 0, printed
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_page_does_what_it_says(shop: Path) -> None:
    shown = blocks(PAGE)
    for block, next_ in zip_longest(shown, shown[1:]):
        if block.title is not None:
            _write(shop, block)
        elif block.language == "sh":
            status, printed = _call(shop, block.body)
            if next_ is not None and next_.title is None and next_.language in ("text", "python"):
                missing = first_missing(next_.body, printed)
                assert missing is None, f"{block.body}\nnever printed {missing!r}, but:\n{printed}"
            else:
                assert status == 0, f"{block.body}\nended with {status}:\n{printed}"


def test_the_page_has_every_kind_of_fault_and_every_invariant() -> None:
    rows = re.findall(r"^\| `([a-z ]+)` \|", PAGE, re.MULTILINE)
    assert rows == [*get_args(Invariant), *KINDS, *LEFT_OUT]


def test_the_page_gives_the_reasons_for_which_faults_are_left_out() -> None:
    rows = re.findall(r"^\| `([a-z ]+)` \| ([^|]+) \|$", PAGE, re.MULTILINE)
    reasons = {kind: why for kind, why in rows if kind in LEFT_OUT}
    assert reasons == LEFT_OUT


def test_the_page_names_all_that_real_processes_do_not_show() -> None:
    rows = re.findall(r"^\| ([a-z ]+) \| (?:`[a-z]+`(?:, )?)+ \| [^|]+ \|$", PAGE, re.MULTILINE)
    assert tuple(rows) == (*UNSEEN_IN_PARTIAL, UNNAMED)
    assert f"more than {PRUNE_FROM // 2} updates" in PAGE


def _write(folder: Path, block: Block) -> None:
    assert block.title is not None
    file = folder / block.title
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.body, "utf-8")


def _call(folder: Path, script: str) -> tuple[int, str]:
    """Exit code of the commands, and their output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SAGA_", "PYTEST_"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    environment["PYTEST_ADDOPTS"] = WITHOUT
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=CALL_S_MAX,
        check=False,
    )
    return done.returncode, done.stdout
