"""Tools and services as a user who may little: what is not allowed is told, with what to allow."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, the_broker
from tests.cli.test_missing_topics import A_CUP, WITHIN_S, refused, running
from tests.servers.rights import DESCRIBE, GROUP, PASSWORD, READ, TOPIC, USER, WRITE, Guarded, Right, guarded_kafka


@pytest.fixture(scope="module")
def guarded(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_kafka(tmp_path_factory.mktemp("kafka")) as guarded:
        yield guarded


def as_anybody(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on as somebody who may everything."""
    monkeypatch.setenv("SAGA_BROKER", f"kafka://{guarded.kafka.address}")
    for name in ("SASL", "CLEARTEXT", "USERNAME", "PASSWORD"):
        monkeypatch.delenv(f"SAGA_KAFKA_{name}", raising=False)


def as_potter(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on as the user who may what was allowed."""
    monkeypatch.setenv("SAGA_BROKER", f"kafka://{guarded.address}")
    for name, value in (
        ("SASL", "plain"),
        ("CLEARTEXT", "true"),
        ("USERNAME", USER),
        ("PASSWORD", PASSWORD),
    ):
        monkeypatch.setenv(f"SAGA_KAFKA_{name}", value)


def needed(pottery: Pottery) -> dict[str, Right]:
    """All that its service does, by a name for each."""
    return {
        "topic": Right(TOPIC, pottery.topic, READ),
        "sold": Right(TOPIC, pottery.sold, READ),
        "made": Right(TOPIC, pottery.made, WRITE),
        "dead": Right(TOPIC, pottery.dead, WRITE),
        "commands": Right(TOPIC, pottery.commands, READ),
        "group": Right(GROUP, pottery.service, READ),
        **{
            f"{operation} {wake}": Right(TOPIC, wake, operation)
            for wake in pottery.wakes
            for operation in (READ, WRITE)
        },
    }


@pytest.fixture
def pottery(guarded: Guarded, embedded_pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch) -> Pottery:
    """Its topics are there; from here on tools are a user who may nothing yet."""
    for name, value in (("REPLICATION", "1"), ("MIN_INSYNC", "1")):
        monkeypatch.setenv(f"SAGA_KAFKA_{name}", value)
    as_anybody(guarded, monkeypatch)
    assert saga("topics", "apply", embedded_pottery.module).exit_code == 0
    as_potter(guarded, monkeypatch)
    return embedded_pottery


def test_a_user_who_may_too_little_is_told_what_is_missing(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    allowed = guarded.allow(
        Right(TOPIC, pottery.topic, READ),
        Right(TOPIC, pottery.sold, DESCRIBE),
        Right(TOPIC, pottery.made, WRITE),
        Right(TOPIC, pottery.dead, WRITE),
        Right(TOPIC, pottery.commands, READ),
        Right(GROUP, pottery.service, READ),
        *(Right(TOPIC, wake, operation) for wake in pottery.wakes for operation in (READ, WRITE)),
    )
    asyncio.run(allowed)
    result = saga("doctor", pottery.module)
    assert result.exit_code == 1, result.output
    errors = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert errors == [f"error    {pottery.sold}: this user may not read it, and {pottery.service} has to"]
    assert f"warning  {pottery.topic}: this user may not see its settings" in result.stdout
    assert "DescribeConfigs on the cluster" in result.stdout
    assert "no record could be written as a probe" in result.stdout


def test_a_plan_is_not_made_of_what_may_not_be_seen(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    asyncio.run(guarded.allow(Right(TOPIC, pottery.topic, READ), Right(TOPIC, pottery.dead, WRITE)))
    result = saga("topics", "plan", pottery.module)
    assert result.exit_code == 2
    assert "DescribeConfigs" in result.stderr
    assert result.stdout == ""


def test_a_group_that_may_not_be_seen_is_told_as_such(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    asyncio.run(guarded.allow(Right(TOPIC, pottery.topic, READ), Right(TOPIC, pottery.dead, WRITE)))
    result = saga("positions", "show", pottery.service)
    assert result.exit_code == 2
    assert "allowed Read on the group" in result.stderr


# -------------------------------------------------------------------- services


def test_a_service_that_may_too_little_ends_at_once_and_names_each_right(guarded: Guarded, pottery: Pottery) -> None:
    rights = needed(pottery)
    for name in ("topic", "made"):
        rights[name] = rights[name]._replace(operation=DESCRIBE)
    asyncio.run(guarded.allow(*rights.values()))
    said = refused("run", pottery.module)
    allow = "kafka-acls --add --allow-principal User:... --operation"
    assert [line.strip() for line in said.splitlines() if "topic" in line] == [
        f"- topic {pottery.topic}: this user may not read it: {allow} Read --topic {pottery.topic}",
        f"- topic {pottery.made}: this user may not write it: {allow} Write --topic {pottery.made}",
    ]


def test_a_topic_that_is_hidden_from_a_service_is_named_with_the_right_it_takes(
    guarded: Guarded, pottery: Pottery
) -> None:
    rights = needed(pottery)
    asyncio.run(guarded.allow(*(rights[name] for name in ("topic", "dead", "commands", "group"))))
    said = refused("run", pottery.module)
    assert f"topic {pottery.made} is missing, or hidden from this user, who needs Write on it" in said
    assert f"topic {pottery.sold} is missing, or hidden from this user, who needs Read on it" in said


def test_a_service_that_may_not_be_in_its_group_ends_and_names_the_group(guarded: Guarded, pottery: Pottery) -> None:
    rights = needed(pottery)
    asyncio.run(guarded.allow(*(rights[name] for name in ("topic", "sold", "made", "dead", "commands"))))
    said = refused("run", pottery.module)
    assert f"group {pottery.service}: this user may not join it" in said
    assert f"--operation Read --group {pottery.service}" in said


def test_a_client_that_may_not_write_is_told_so_and_publishes_nothing(guarded: Guarded, pottery: Pottery) -> None:
    asyncio.run(guarded.allow(*needed(pottery).values()))
    said = refused("publish", "CupOrdered", stdin=A_CUP)
    assert "nothing was published" in said
    assert f"--operation Write --topic {pottery.topic}" in said


def test_a_service_whose_rights_are_taken_away_waits_and_goes_on_when_it_has_them_again(
    guarded: Guarded, pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = needed(pottery)
    taken = [rights[name] for name in ("topic", "made", "group")]
    asyncio.run(guarded.allow(*rights.values()))

    def order(cup: str) -> None:
        as_anybody(guarded, monkeypatch)
        assert saga("publish", "CupOrdered", stdin=A_CUP.replace("cup-1", cup)).exit_code == 0

    def made() -> list[bytes | None]:
        async def keys() -> list[bytes | None]:
            async with the_broker() as broker:
                return [record.key async for record in broker.scan(pottery.made)]

        return asyncio.run(keys())

    async def until_made(cups: list[bytes]) -> None:
        while await asyncio.to_thread(made) != cups:
            assert process.poll() is None, process.said()
            await CLOCK.sleep(0.1)

    async def until_told(word: str) -> None:
        while word not in process.said():
            await CLOCK.sleep(0.1)

    with running(pottery.module) as process:
        order("cup-1")
        asyncio.run(CLOCK.within(WITHIN_S, until_made([b"cup-1"])))
        asyncio.run(guarded.take(*taken))
        order("cup-2")
        asyncio.run(CLOCK.within(WITHIN_S, until_told("allowed")))
        assert pottery.service in next(line for line in process.said().splitlines() if "allowed" in line)
        assert process.poll() is None
        asyncio.run(guarded.allow(*taken))
        asyncio.run(CLOCK.within(WITHIN_S, until_made([b"cup-1", b"cup-2"])))
