"""SAGA_HOOK at `saga run`: a command is called for what needs a person."""

import json
import sys

import pytest

from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.errors import ConfigurationError
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_dead import kiln as kiln
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import running


def test_a_service_calls_its_people_once_for_each_saga_that_waits_for_them(
    pottery_on: Pottery, kiln: str, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    pager, pages = pottery_on.folder / "pager.py", pottery_on.folder / "pages"
    pager.write_text(f"import sys\nopen({str(pages)!r}, 'a').write(sys.stdin.read() + '\\t' + sys.argv[2] + '\\n')\n")
    (pottery_on.folder / "key").write_text("secret\n")
    pages.write_text("")
    monkeypatch.setenv("SAGA_HOOK", f"command:{sys.executable} {pager}")
    monkeypatch.setenv("SAGA_HOOK_SECRET_FILE", str(pottery_on.folder / "key"))
    with running(kiln):
        lines = "\n".join(json.dumps({"cup_id": f"cup-{n}"}) for n in (1, 2))
        assert saga("publish", "CupOrdered", stdin=lines).exit_code == 0
        until(lambda: len(pages.read_text().splitlines()) == 2)
    calls = [line.partition("\t") for line in pages.read_text().splitlines()]
    assert {json.loads(body)["saga"] for body, _, _ in calls} == {"cup-1", "cup-2"}
    assert {json.loads(body)["reason"] for body, _, _ in calls} == {"RuntimeError: the kiln is cold"}
    assert all(proof.startswith("t=") and ",v1=" in proof for _, _, proof in calls)


def test_an_empty_key_is_reported_at_the_start(pottery_on: Pottery) -> None:
    (pottery_on.folder / "key").write_text(" \n")
    settings = Settings.read({"SAGA_HOOK_SECRET_FILE": str(pottery_on.folder / "key"), "SAGA_HOOK": "command:true"})
    with pytest.raises(ConfigurationError, match="SAGA_HOOK_SECRET_FILE is empty"):
        wiring._secret_in(settings.hook_secret_file)
