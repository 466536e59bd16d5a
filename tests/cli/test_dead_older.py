"""`saga dead replay --older`: what came later than a service remembers is handled as new, if a person wants it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from saga.engine.persistence import dead_letters
from saga.messages import Outgoing, Position
from saga.support.clock import iso
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery
from tests.cli.test_dead import BY, SOURCE, mend, until
from tests.cli.test_listing import NOW_MS, a_letter, publish_letters
from tests.cli.test_missing_topics import running
from tests.progress.pieces import a_message


@pytest.fixture
def late(pottery_on: Pottery, saga: Call) -> Iterator[None]:
    """A potter who remembers a saga for two seconds, and hears of two cups after four."""
    name = f"{pottery_on.module}_late"
    source = SOURCE.format(module=pottery_on.module, service=pottery_on.service)
    forgetful = source.replace("potter = Service(", "from datetime import timedelta\n\npotter = Service(")
    forgetful = forgetful.replace(
        f'("{pottery_on.service}")', f'("{pottery_on.service}", retention=timedelta(seconds=2))'
    )
    (pottery_on.folder / f"{name}.py").write_text(forgetful)
    mend(pottery_on, "cup-1")
    assert saga("topics", "apply", name).exit_code == 0
    lines = "\n".join(json.dumps({"cup_id": f"cup-{n}"}) for n in (1, 2))
    assert saga("publish", "CupOrdered", stdin=lines).exit_code == 0
    end_s = CLOCK.monotonic_s() + 4
    until(lambda: CLOCK.monotonic_s() > end_s)
    with running(name):
        until(lambda: len(listed_ids(saga)) == 2)
        yield


def listed_ids(saga: Call) -> dict[str, str]:
    """State of each dead letter, by its saga."""
    listed = saga("dead", "list", "--all", "--json")
    letters = json.loads(listed.stdout)["letters"] if listed.exit_code != 2 else []
    return {each["saga"]: each["now"] for each in letters if each["reason"].startswith("older than the retention")}


def test_a_message_that_was_too_old_is_handled_as_new_once(late: None, saga: Call, pottery_on: Pottery) -> None:
    service = pottery_on.service
    assert saga("dead", "replay", service, "--saga", "cup-1", *BY).exit_code == 1, "it blocks nothing"
    meant = saga("dead", "replay", service, "--all", "--older", *BY, "--dry-run")
    assert meant.exit_code == 0, meant.output
    assert meant.stdout.count("would be handled as new: older than the retention") == 2
    done = saga("dead", "replay", service, "--saga", "cup-1", "--older", *BY)
    assert done.exit_code == 0, done.output
    assert "cup-1" in done.stdout
    assert "replayed, then handled: ada wants it: the kiln is hot" in done.stdout
    assert listed_ids(saga) == {"cup-1": "replayed", "cup-2": "-"}
    assert saga("dead", "replay", service, "--saga", "cup-1", "--older", *BY).exit_code == 1, "it is replayed"
    died = saga("dead", "replay", service, "--saga", "cup-2", "--older", *BY)
    assert (died.exit_code, "replayed, then dead" in died.stdout) == (1, True)


def test_messages_beyond_the_limit_are_reported_and_selected_by_the_next_command(shop: Path, saga: Call) -> None:
    messages = [replace(a_message("A", f"late-{n}"), saga=f"s-{n}", time=iso(NOW_MS + n)) for n in range(5)]
    late = [dead_letters.from_forgotten("payment", each, Position("orders", 0, 3), None) for each in messages]
    publish_letters(shop, *late)
    command = ("dead", "replay", "payment", "--reason", "older than", "--older", "--dry-run", *BY)
    first = saga(*command, "--limit", "3")
    assert first.exit_code == 1
    assert [line.split()[1] for line in first.stdout.splitlines()] == ["s-4", "s-3", "s-2"]
    assert "there are more than 3 messages older than the retention" in first.stderr
    ends = [
        dead_letters.to_outgoing(
            "payment", a_letter(n, "replayed", f"{dead_id(each)}-replayed"), iso(NOW_MS), "-", None
        )
        for n, each in enumerate(late[2:], 1)
    ]
    publish_letters(shop, *ends)
    second = saga(*command, "--limit", "3")
    assert (second.exit_code, second.stderr) == (0, "")
    assert [line.split()[1] for line in second.stdout.splitlines()] == ["s-1", "s-0"], "ends do not count"


def dead_id(letter: Outgoing) -> str:
    return (dict(letter.headers)["dead_id"] or b"").decode()


def test_discarding_knows_no_such_option(saga: Call) -> None:
    assert saga("dead", "discard", "payment", "--all", "--older", *BY).exit_code == 2
