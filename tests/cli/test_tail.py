"""`saga topics tail`: what it shows of each kind of record, and of which, on both brokers; and that it continues."""

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from saga.messages import Outgoing, Topic
from saga.support.clock import from_iso, iso
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, the_broker
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import command, environment


def write(*records: Outgoing, topics: Sequence[Topic] = ()) -> None:
    async def written() -> None:
        async with the_broker() as broker:
            await broker.ensure_topics(topics)
            await broker.publish(records)

    asyncio.run(written())


def published(saga: Call, *cups: str) -> None:
    lines = "\n".join(json.dumps({"cup_id": cup}) for cup in cups)
    assert saga("publish", "CupOrdered", stdin=lines).exit_code == 0


def with_topics(saga: Call, pottery: Pottery) -> None:
    assert saga("topics", "apply", pottery.module).exit_code == 0


def test_a_topic_is_printed_record_by_record_with_the_fields_of_its_events(saga: Call, pottery_on: Pottery) -> None:
    with_topics(saga, pottery_on)
    published(saga, "cup-1", "cup-2", "cup-3")
    result = saga("topics", "tail", pottery_on.topic, "--no-follow", "--json")
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert {record["key"]: record["fields"] for record in records} == {
        cup: {"cup_id": cup} for cup in ("cup-1", "cup-2", "cup-3")
    }
    assert {(record["type"], record["source"], record["topic"]) for record in records} == {
        ("CupOrdered", "client", pottery_on.topic)
    }
    text = saga("topics", "tail", pottery_on.topic, "--no-follow").stdout.splitlines()
    assert len(text) == 6
    [one] = [line for line in text if "  cup-2  CupOrdered from client  client|CupOrdered-" in line]
    assert f"  {pottery_on.topic}/" in one
    assert text[text.index(one) + 1] == '    {"cup_id": "cup-2"}'


def test_a_saga_is_printed_from_all_topics_and_nothing_of_another(saga: Call, pottery_on: Pottery) -> None:
    with_topics(saga, pottery_on)
    published(saga, "cup-1", "cup-2")
    write(Outgoing(pottery_on.sold, b"cup-2", b"{}", ()), Outgoing(pottery_on.sold, b"cup-1", b"{}", ()))
    result = saga("topics", "tail", "cup-2", "--no-follow", "--json")
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert sorted((record["topic"], record["key"]) for record in records) == [
        (pottery_on.topic, "cup-2"), (pottery_on.sold, "cup-2")
    ]  # fmt: skip
    unknown = saga("topics", "tail", "cup-9", "--no-follow")
    assert (unknown.exit_code, unknown.stdout, unknown.stderr) == (1, "", "there is no record of cup-9\n")


def test_an_unreadable_record_is_printed_with_the_reason_among_the_others(
    saga: Call, embedded_pottery: Pottery
) -> None:
    topic = embedded_pottery.topic
    write(
        Outgoing(topic, b"cup-1", b"\xc3\x01........", ()),
        Outgoing(topic, b"cup-\x1b[2J", None, ()),
        Outgoing(topic, b"cup-1", b'{"cup_id": "cup-1", "secret": 1}', (("ce_type", b"Nonsense"),)),
        Outgoing(topic, b"cup-1", b"{", (("ce_type", b"CupOrdered"), ("content-type", b"application/json"))),
        Outgoing(
            topic, b"cup-1", b'{"cup_id": "cup-1"}', (("ce_type", b"CupOrdered"), ("content-type", b"application/json"))
        ),
        topics=[Topic(topic, 1)],
    )
    result = saga("topics", "tail", topic, "--no-follow", "--json")
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [record["offset"] for record in records] == [0, 1, 2, 3, 4]
    assert [record["fields"] for record in records] == [None, None, None, None, {"cup_id": "cup-1"}]
    assert "has the fingerprint" in records[0]["problem"]
    assert records[1]["problem"] == "it is a tombstone: it has no value"
    assert records[2]["problem"].startswith("no contract Nonsense is in ")
    assert "JSON" in records[3]["problem"]
    text = saga("topics", "tail", topic, "--no-follow").stdout
    assert "\x1b" not in text
    assert "secret" not in text


def test_a_damaged_record_is_printed_and_blocks_nothing_else(saga: Call, embedded_pottery: Pottery) -> None:
    topic = embedded_pottery.topic
    write(topics=[Topic(topic, 2)])
    published(saga, *(f"cup-{n}" for n in range(20)))
    whole = saga("topics", "tail", topic, "--no-follow", "--json").stdout.splitlines()

    async def damaged() -> int:
        async with the_broker() as broker:
            kept = broker._find_topic(topic)  # type: ignore[attr-defined]  # of the embedded broker
            connection = broker.connection  # type: ignore[attr-defined]
            connection.execute(f"UPDATE log_{kept.first_log} SET value = 'x' WHERE offset = 1")
            return (await broker.fetch_bounds([topic]))[next(iter(await broker.fetch_bounds([topic])))].end

    behind = asyncio.run(damaged()) - 1
    result = saga("topics", "tail", topic, "--no-follow", "--json")
    assert result.exit_code == 0, result.output
    assert len(result.stdout.splitlines()) == len(whole) - behind
    assert f"{topic}/0" in result.stderr


def test_sensitive_values_are_hidden_and_dead_letters_and_controls_are_printed(saga: Call, shop: Path) -> None:
    order = {
        "order_id": "order-9", "customer_id": "c-1", "sku": "tea", "quantity": 1, "total": "9.80",
        "card": "4242-4242", "address": "Kiel",
    }  # fmt: skip
    assert saga("publish", "OrderPlaced", stdin=json.dumps(order)).exit_code == 0
    dead = (
        ("ce_type", b"OrderPlaced"), ("dead_id", b"dead-1"), ("dead_what", b"dead letter"),
        ("dead_reason", b"the bank is gone"), ("dead_message", b"m-1"),
    )  # fmt: skip
    wake = (("ce_type", b"saga.wake"), ("ce_id", b"w-1"))
    write(
        Outgoing("payment.dead", b"order-9", b"4242-4242", dead),
        Outgoing("payment.wake.now", b"order-9", b'{"due_ms": 17}', wake),
        Outgoing("payment.wake.now", b"order-9", b"[]", wake),
        topics=[Topic("payment.dead", 1), Topic("payment.wake.now", 1)],
    )
    [placed] = [
        json.loads(line) for line in saga("topics", "tail", "order-9", "--no-follow", "--json").stdout.splitlines()
    ]
    assert placed["fields"] == {**order, "card": "***", "address": "***"}
    letter = saga("topics", "tail", "payment.dead", "--no-follow").stdout
    assert "OrderPlaced from payment  dead-1\n    (dead letter: the bank is gone)\n" in letter
    wakes = saga("topics", "tail", "payment.wake.now", "--no-follow").stdout
    assert '    {"due_ms": 17}\n' in wakes
    assert "    (its value is not a JSON object)\n" in wakes
    assert "4242-4242" not in letter + wakes


def test_since_leaves_out_what_is_older(saga: Call, pottery_on: Pottery) -> None:
    with_topics(saga, pottery_on)
    published(saga, "cup-1")
    record = json.loads(saga("topics", "tail", "cup-1", "--no-follow", "--json").stdout)
    asyncio.run(CLOCK.sleep(0.01))  # the log's times are milliseconds
    published(saga, "cup-2")
    later = iso(from_iso(record["time"]) + 1)
    [line] = saga("topics", "tail", pottery_on.topic, "--no-follow", "--since", later, "--json").stdout.splitlines()
    assert json.loads(line)["key"] == "cup-2"
    assert saga("topics", "tail", pottery_on.topic, "--no-follow", "--since", "1h").exit_code == 0
    assert (
        saga("topics", "tail", pottery_on.topic, "--no-follow", "--since", iso(CLOCK.now_ms() + 3_600_000)).exit_code
        == 1
    )
    assert "--since soon: give a time" in saga("topics", "tail", pottery_on.topic, "--since", "soon").stderr


def test_tail_follows_new_records_until_it_is_stopped(saga: Call, pottery_on: Pottery, tmp_path: Path) -> None:
    with_topics(saga, pottery_on)
    published(saga, "cup-1")
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = subprocess.Popen(command("topics", "tail", "cup-1", "--json"), stdout=file, env=environment())
    try:
        until(lambda: len(out.read_text().splitlines()) == 1)
        published(saga, "cup-2")
        write(Outgoing(pottery_on.sold, b"cup-1", b"x", ()))
        until(lambda: len(out.read_text().splitlines()) == 2)
        process.send_signal(2)
        assert process.wait(40) == 0
    finally:
        process.kill()
        process.wait()
    assert [json.loads(line)["topic"] for line in out.read_text().splitlines()] == [pottery_on.topic, pottery_on.sold]


def test_a_name_that_is_neither_a_topic_nor_a_saga_is_an_error(saga: Call, embedded_pottery: Pottery) -> None:
    missing = saga("topics", "tail", "cups")
    assert (missing.exit_code, "does not exist" in missing.stderr) == (2, True)
    write(topics=[Topic("elsewhere", 1)])
    result = saga("topics", "tail", "cup-1")
    assert result.exit_code == 2
    assert f"there is no topic cup-1, and no topic of the contracts in {embedded_pottery.folder}" in result.stderr


def test_a_saga_that_is_called_like_a_topic_is_meant_with_its_option(saga: Call, embedded_pottery: Pottery) -> None:
    write(topics=[Topic("cup-1", 1)])
    published(saga, "cup-1")
    assert saga("topics", "tail", "cup-1", "--no-follow").exit_code == 1, "the topic is empty"
    result = saga("topics", "tail", "cup-1", "--saga", "--no-follow", "--json")
    assert json.loads(result.stdout)["topic"] == embedded_pottery.topic
