"""`saga audit`: all that operators have done to a service, in the order of time, with the evidence."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from saga.messages import Outgoing, Partition
from saga.messaging import operator_commands
from saga.messaging.names import command_topic, dead_letter_topic
from saga.ops import audit
from tests.broker.removal import removal_from
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, the_broker
from tests.cli.test_dead import blocked, mend, until
from tests.cli.test_dead import dead as dead
from tests.cli.test_dead import kiln as kiln
from tests.cli.test_missing_topics import Running

BY = ("--who", "ada", "--why", "the kiln is hot")


def audit_entries(saga: Call, service: str, *args: str, exit_code: int = 0) -> list[dict[str, Any]]:
    audited = saga("audit", service, *args, "--json")
    assert audited.exit_code == exit_code, audited.output
    return [json.loads(line) for line in audited.stdout.splitlines()]


def publish(*records: Outgoing) -> None:
    async def published() -> None:
        async with the_broker() as broker:
            await broker.publish(records)

    asyncio.run(published())


def dead_id(saga: Call, cup: str) -> str:
    letters: Sequence[dict[str, str]] = json.loads(saga("dead", "list", "--json").stdout)["letters"]
    (id_,) = [letter["id"] for letter in letters if (letter["saga"], letter["now"]) == (cup, "blocks")]
    return id_


def a_command(service: str, cup: str, dead: str, who: str) -> Outgoing:
    now_ms = CLOCK.now_ms()
    return operator_commands.command_to_record(
        service, cup, "replay", operator_commands.CommandValue(dead=dead, who=who, why="to see"), now_ms
    )


def test_all_actions_of_operators_are_listed_in_order_of_time_with_their_result(
    dead: Running, saga: Call, pottery_on: Pottery, kiln: str
) -> None:
    service, first = pottery_on.service, dead_id(saga, "cup-1")
    mend(pottery_on, "cup-1")
    assert saga("dead", "replay", service, "--saga", "cup-1", *BY).exit_code == 0
    assert saga("dead", "replay", service, "--saga", "cup-3", "--who", "eve", "--why", "again").exit_code == 1
    publish(a_command(service, "cup-1", first, "bob"))
    assert saga("dead", "discard", service, "--saga", "cup-2", *BY).exit_code == 0
    assert saga("control", "flag", service, "blue", "--percent", "10", *BY, "--within", "30").exit_code == 0
    until(lambda: len(audit_entries(saga, service)) == 5 and audit_entries(saga, service)[2]["shown_by"] == "history")
    dead.kill()
    dead.wait()
    publish(a_command(service, "cup-9", "dead-9", "bob"))
    moved = ("offsets", "reset", service, "--topic", pottery_on.topic, "--module", kiln, "--to", "earliest")
    until(lambda: saga(*moved, "--who", "eve", "--why", "once more").exit_code == 0)

    acts = audit_entries(saga, service)
    assert [(act["kind"], act["who"], act["saga"], act["shown_by"]) for act in acts] == [
        ("replay", "ada", "cup-1", "history"),
        ("replay", "eve", "cup-3", "history"),
        ("replay", "bob", "cup-1", "history"),
        ("discard", "ada", "cup-2", "history"),
        ("switch", "ada", None, "book"),
        ("replay", "bob", "cup-9", "topic"),
        ("move", "eve", None, "topic"),
    ]
    assert [act["became"].partition(":")[0] for act in acts] == [
        "replayed", "replayed", "refused", "discarded", "switched", audit.NOT_APPLIED_YET.partition(":")[0], "moved"
    ]  # fmt: skip
    assert "it may have gone before" in acts[2]["became"]
    assert acts[0]["what"] == f"replay of {first} in cup-1"
    assert acts[4]["switch"]["flag"] == "blue"
    assert f"{pottery_on.topic}/" in acts[6]["what"]
    assert [act["time"] for act in acts] == sorted(act["time"] for act in acts)

    for args, kinds in (
        (("--kind", "move", "--kind", "discard"), ["discard", "move"]),
        (("--saga", "cup-1"), ["replay", "replay"]),
        (("--who", "eve"), ["replay", "move"]),
        (("--since", acts[4]["time"], "--who", "bob"), ["replay"]),
        (("--since", "0s"), []),
        (("--limit", "2"), ["replay", "move"]),
    ):
        assert [act["kind"] for act in audit_entries(saga, service, *args)] == kinds
    text = saga("audit", service, "--limit", "1").stdout.splitlines()
    assert "  eve: once more  moved (topic)" in text[0]
    assert text[1] == "and 6 older: raise --limit to see them"
    cut = saga("audit", service, "--limit", "1", "--json")
    assert (len(cut.stdout.splitlines()), cut.stderr) == (1, "and 6 older: raise --limit to see them\n")
    assert text[2].startswith("the control log has 1 entries, the last digest is ")


def remove(service: str, before: int) -> None:
    async def removed() -> None:
        await removal_from(Path(".saga") / "broker.db")({Partition(command_topic(service), 0): before})

    asyncio.run(removed())


@pytest.mark.parametrize("pottery_on", ["embedded"], indirect=True)
def test_contradictions_to_the_record_are_reported(dead: Running, saga: Call, pottery_on: Pottery) -> None:
    service, id_ = pottery_on.service, dead_id(saga, "cup-1")
    mend(pottery_on, "cup-1")
    assert saga("dead", "replay", service, "--saga", "cup-1", *BY).exit_code == 0
    until(lambda: "cup-1" not in blocked(saga))
    dead.kill()
    dead.wait()
    publish(Outgoing(command_topic(service), b"cup-1", b"\xff{", (("ce_type", b"saga.replay"),)))
    noted = saga("audit", service)
    assert noted.exit_code == 0, "an unreadable command has had no effect"
    assert f"1 record on {command_topic(service)} that are no commands" in noted.stderr

    headers = (("dead_id", b"dead-7-discarded"), ("dead_what", b"discarded"), ("dead_reason", b"eve\x1b[2J wants it"))
    publish(Outgoing(dead_letter_topic(service), b"cup-7", b"", headers))
    forged = saga("audit", service)
    assert forged.exit_code == 1
    assert "1 end of dead letters" in forged.stderr
    assert "discard of dead-7 in cup-7  (not known): eve\\x1b[2J wants it  discarded (topic)" in forged.stdout

    remove(service, 1)
    gone = saga("audit", service)
    assert gone.exit_code == 1
    assert f"{command_topic(service)}/0 begins at offset 1: earlier records were removed" in gone.stderr
    assert "2 ends of dead letters" in gone.stderr
    assert f"{id_}-replayed" not in gone.stdout
    assert f"replay of {id_} in cup-1  (not known): it is tried again: ada wants it: the kiln is hot" in gone.stdout


@pytest.mark.parametrize("pottery_on", ["embedded"], indirect=True)
def test_a_command_that_differs_from_the_history_is_found(dead: Running, saga: Call, pottery_on: Pottery) -> None:
    service, id_ = pottery_on.service, dead_id(saga, "cup-1")
    mend(pottery_on, "cup-1")
    genuine = a_command(service, "cup-1", id_, "ada")
    publish(genuine)
    until(lambda: "cup-1" not in blocked(saga))
    dead.kill()
    dead.wait()
    assert genuine.value is not None
    publish(genuine._replace(value=genuine.value.replace(b"ada", b"eve")))
    assert [act["who"] for act in audit_entries(saga, service)] == ["ada"], "the first one counts, as with the service"
    remove(service, 1)
    audited = saga("audit", service)
    assert audited.exit_code == 1
    assert "the saga's history says 'ada wants it: to see'" in audited.stderr


def test_an_audit_without_the_topics_is_reported_as_incomplete(shop: Path, saga: Call) -> None:
    audited = saga("audit", "payment")
    assert audited.exit_code == 1, "without the topics it may not be complete"
    assert "commands and moves of offsets are unknown, as there is no file" in audited.stderr
    assert saga("audit", "nobody").exit_code == 2
