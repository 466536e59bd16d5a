"""`saga dead`: what blocks sagas is listed, replayed and discarded, while the service runs, and while it does not."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests import waiting
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery
from tests.cli.test_missing_topics import Running, running

WITHIN_S = 40.0
SOURCE = """
from pathlib import Path

from {module} import CupMade, CupOrdered, CupSold

from saga import Retry, Saga, Service

potter = Service("{service}")


@potter.handler(retry=Retry(attempts_max=1))
async def make(ordered: CupOrdered) -> CupMade:
    if ordered.cup_id not in Path("mended").read_text().split():
        raise RuntimeError("the kiln is cold")
    return CupMade(cup_id=ordered.cup_id)


@potter.handler
async def forget(sold: CupSold, saga: Saga) -> None:
    await saga.flag("blue")
"""
BY = ("--who", "ada", "--why", "the kiln is hot")


@pytest.fixture
def kiln(pottery_on: Pottery, saga: Call) -> str:
    """Module of a potter whose kiln fails for all cups that are not named in the file `mended`."""
    name = f"{pottery_on.module}_kiln"
    source = SOURCE.format(module=pottery_on.module, service=pottery_on.service)
    (pottery_on.folder / f"{name}.py").write_text(source)
    (pottery_on.folder / "mended").write_text("")
    assert saga("topics", "apply", name).exit_code == 0
    return name


def mend(pottery: Pottery, *cups: str) -> None:
    (pottery.folder / "mended").write_text(" ".join(cups))


def until(holds: Callable[[], bool], last: Callable[[], object] = str) -> None:
    """Wait for it. `last`: what was seen last, for the error."""
    waiting.until(holds, WITHIN_S, last)


def blocked(saga: Call) -> set[str]:
    """Sagas that a dead letter blocks."""
    return {letter["saga"] for letter in letters(saga) if letter["now"] == "blocks"}


def with_letters(saga: Call) -> set[str]:
    """Of those sagas, the ones whose letter is on its topic, too: that comes later, and there alone it has an owner."""
    return {letter["saga"] for letter in letters(saga) if letter["now"] == "blocks" and letter["owner"]}


def letters(saga: Call, *chosen: str) -> list[dict[str, Any]]:
    """All that `saga dead list` shows of what is chosen; nothing while there is no store."""
    listed = saga("dead", "list", "--all", "--json", *chosen)
    shown: list[dict[str, Any]] = [] if listed.exit_code == 2 else json.loads(listed.stdout)["letters"]
    return shown


@pytest.fixture
def dead(pottery_on: Pottery, kiln: str, saga: Call) -> Iterator[Running]:
    """The potter runs, and three cups have died; all of it is published."""
    with running(kiln) as process:
        lines = "\n".join(json.dumps({"cup_id": f"cup-{n}"}) for n in (1, 2, 3))
        assert saga("publish", "CupOrdered", stdin=lines).exit_code == 0
        until(lambda: len(with_letters(saga)) == 3)
        yield process


def outcomes(saga: Call, cup: str) -> list[str]:
    return [line["outcome"] for line in json.loads(saga("sagas", "show", cup, "--json").stdout)["timeline"]]


def test_dead_letters_are_replayed_by_what_they_have_in_common(dead: Running, saga: Call, pottery_on: Pottery) -> None:
    service = pottery_on.service
    mend(pottery_on, "cup-1", "cup-2")
    meant = saga("dead", "replay", service, "--reason", "kiln is cold", *BY, "--dry-run")
    assert meant.exit_code == 0, meant.output
    assert len(meant.stdout.splitlines()) == 3
    assert all("make  would be replayed: RuntimeError: the kiln is cold" in line for line in meant.stdout.splitlines())
    assert len(blocked(saga)) == 3, "nothing was done"
    for wanted in ("replay", "discard"):
        cut = saga("dead", wanted, service, "--all", "--limit", "2", *BY, "--dry-run")
        assert (cut.exit_code, len(cut.stdout.splitlines())) == (1, 2), "it does not count as done"
        assert "there are more than 2 sagas: repeat the command for the rest, or raise --limit" in cut.stderr
        assert saga("dead", wanted, service, "--all", "--limit", "3", *BY, "--dry-run").exit_code == 0
    for owner, count in (("shop", 3), ("nobody", 0)):
        theirs = saga("dead", "replay", service, "--owner", owner, *BY, "--dry-run")
        assert (theirs.exit_code, len(theirs.stdout.splitlines())) == (0 if count else 1, count), theirs.output
    one = saga("dead", "replay", service, "--saga", "cup-1", *BY)
    assert (one.exit_code, one.stdout) == (
        0, f"{service}  cup-1  make  replayed, then handled: ada wants it: the kiln is hot\n"
    )  # fmt: skip
    assert outcomes(saga, "cup-1") == ["dead", "replayed", "handled"]
    rest = saga("dead", "replay", service, "--all", *BY, "--json")
    states = {line["saga"]: line["state"] for line in map(json.loads, rest.stdout.splitlines())}
    assert states == {"cup-2": "replayed, then handled", "cup-3": "replayed, then dead"}
    assert rest.exit_code == 1, "one of them died again"
    assert blocked(saga) == {"cup-3"}

    def shown() -> list[str]:
        result = saga("dead", "show", "cup-3")
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    def kinds() -> list[str]:
        return [line.split("  ")[0] for line in shown() if not line.startswith(" ")]

    until(lambda: kinds() == ["dead letter", "replayed", "dead letter"], last=kinds)  # all of it is reported
    lines = shown()
    assert "  remedy   look why 1 attempts failed; fix the cause, then retry it: saga dead replay" in lines
    assert any(line.startswith("  through  ") and line.endswith(" in make") for line in lines)
    assert {"  class    our code", "  owner    shop"} < set(lines)
    [first, *_] = json.loads(saga("dead", "show", "cup-3", "--json").stdout)["letters"]
    assert (first["class"], first["owner"], first["now"]) == ("code", "shop", "replayed")
    assert ["ce_subject", "cup-3"] in first["headers"]
    assert saga("dead", "show", "cup-1").exit_code == 0
    assert saga("dead", "show", "cup-9").exit_code == 1


def test_dead_letters_are_replayed_at_a_rate_and_counted_at_the_end(
    dead: Running, saga: Call, pottery_on: Pottery
) -> None:
    mend(pottery_on, "cup-1", "cup-2")
    done = saga("dead", "replay", pottery_on.service, "--all", "--rate", "50", *BY, "--json")
    told = {line["saga"]: line["state"] for line in map(json.loads, done.stdout.splitlines())}
    assert told == dict.fromkeys(("cup-1", "cup-2"), "replayed, then handled") | {"cup-3": "replayed, then dead"}
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1] == "saga: 3 of 3: 2 done, 1 refused or failed again"
    mend(pottery_on, "cup-3")
    rest = saga("dead", "replay", pottery_on.service, "--all", "--rate", "0.5", *BY)
    assert (rest.exit_code, rest.stderr) == (0, "saga: 1 of 1: 1 done\n")
    assert outcomes(saga, "cup-3")[-1] == "handled"


def test_a_rate_is_for_commands_to_what_blocks_a_saga(saga: Call, shop: Path) -> None:
    for args, told in (
        (("--rate", "nan"), "--rate nan: the rate must be a number from 0.01 to 200 a second"),
        (("--rate", "5", "--older"), "--rate is for dead letters that block a saga: leave out --older"),
    ):
        refused = saga("dead", "replay", "payment", "--all", *BY, *args)
        assert (refused.exit_code, told in refused.stderr) == (2, True)


def test_a_command_waits_for_a_service_that_was_killed(
    dead: Running, kiln: str, saga: Call, pottery_on: Pottery
) -> None:
    dead.kill()
    dead.wait()
    mend(pottery_on, "cup-1")
    sent = saga("dead", "replay", pottery_on.service, "--saga", "cup-1", *BY, "--within", "0")
    assert sent.exit_code == 1
    assert "cup-1  make  not yet: " in sent.stdout
    assert "does it run?" in sent.stdout
    with running(kiln):
        until(lambda: outcomes(saga, "cup-1") == ["dead", "replayed", "handled"])


def test_a_discarded_message_never_runs_and_blocks_nothing(dead: Running, saga: Call, pottery_on: Pottery) -> None:
    service = pottery_on.service
    typed = saga("dead", "discard", service, "--saga", "cup-2", "--saga", "cop-3", "--dry-run", *BY)
    assert (typed.exit_code, "cop-3" in typed.stderr) == (1, True), typed.output
    now_listed = saga("dead", "list")
    assert (now_listed.exit_code, now_listed.stdout.count("  blocks  ")) == (1, 3), now_listed.output
    done = saga("dead", "discard", service, "--saga", "cup-2", "--saga", "cup-3", *BY)
    assert done.exit_code == 0, done.output
    assert sorted(done.stdout.splitlines()) == [
        f"{service}  {cup}  make  discarded: ada wants it: the kiln is hot" for cup in ("cup-2", "cup-3")
    ]
    assert blocked(saga) == {"cup-1"}
    assert outcomes(saga, "cup-2") == ["dead", "discarded"]

    def now() -> dict[str, str]:
        return {letter["saga"]: letter["now"] for letter in letters(saga) if letter["what"] == "dead letter"}

    # How it ended is reported after it is written.
    until(lambda: now() == {"cup-1": "blocks", "cup-2": "discarded", "cup-3": "discarded"}, last=lambda: str(now()))
    assert saga("dead", "replay", service, "--saga", "cup-2", *BY).exit_code == 1, "nothing of it is left"
    still = json.loads(saga("dead", "list", "--json").stdout)["letters"]
    assert {(letter["saga"], letter["now"]) for letter in still} == {("cup-1", "blocks")}, "--all lists what has ended"


def test_repeatedly_failing_dead_letters_must_be_replayed_by_name(
    dead: Running, saga: Call, pottery_on: Pottery
) -> None:
    service = pottery_on.service

    def again(*more: str) -> Result:
        return saga("dead", "replay", service, "--saga", "cup-1", *BY, *more)

    for _ in range(5):
        assert "replayed, then dead" in again().stdout
    refused = again()
    assert refused.exit_code == 1
    assert f"cup-1 had 5 replays in {service} already" in refused.stderr
    assert outcomes(saga, "cup-1").count("replayed") == 5
    assert "replayed, then dead" in again("--again").stdout


# -------------------------------------------------------------------- asked wrongly


@pytest.mark.parametrize("wanted", ["replay", "discard"])
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("payment", *BY),
            "select something: --saga, --handler, --type, --reason, --class, --owner, --before, --age, or --all",
        ),
        (("payment", "--all", "--who", "ada", "--why", " "), "--why is needed for the audit: give it"),
        (("payment", "--all", "--who", "ada"), "Missing option '--why'"),
        (("payment", "--before", "yesterday", *BY), "--before yesterday: give a time as 2026-11-22T16:00:00Z"),
        (("payment", "--age", "2 hours", *BY), "--age 2 hours: give a time as 90s, 30m, 2h or 3d"),
        (("payment", "--age", "2h", "--before", "2026-11-22T16:00:00Z", *BY), "mean the same: give one of them"),
    ],
)
def test_a_command_needs_a_selection_and_a_reason(
    saga: Call, shop: Path, wanted: str, args: tuple[str, ...], message: str
) -> None:
    result = saga("dead", wanted, *args)
    assert result.exit_code == 2
    assert message in result.stderr


def test_dead_letters_are_selected_from_the_stores_alone(saga: Call, shop: Path) -> None:
    def meant(*args: str) -> list[str]:
        result = saga("dead", "replay", "payment", *args, *BY, "--dry-run", "--json")
        return [json.loads(line)["saga"] for line in result.stdout.splitlines()]

    for args in (
        ("--all",),
        ("--handler", "reserve"),
        ("--type", "OrderPlaced"),
        ("--reason", "such cards"),
        ("--class", "outside"),
    ):
        assert meant(*args) == ["order-3"], args
    for args in (
        ("--handler", "capture"),
        ("--type", "OrderConfirmed"),
        ("--reason", "no such reason"),
        ("--class", "code"),
        ("--saga", "order-1"),
        ("--before", "2020-01-01T00:00:00Z"),
    ):
        assert meant(*args) == [], args
    assert meant("--before", "2100-01-01T00:00:00Z") == ["order-3"]
    nothing = saga("dead", "replay", "order", "--all", *BY)
    assert nothing.exit_code == 1
    assert "no dead letter is selected" in nothing.stderr


def test_a_reason_that_is_too_long_is_refused_before_anything_is_sent(saga: Call, shop: Path) -> None:
    result = saga("dead", "replay", "payment", "--all", "--who", "ada", "--why", "x" * 501)
    assert result.exit_code == 2
    assert "'why' has 501 characters, and may have 500" in result.stderr
