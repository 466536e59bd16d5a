"""`saga offsets`: shown as they are; moved when nothing is lost by it and nothing comes twice, or not at all."""

import asyncio
import json
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from pathlib import Path

import pytest
from click.testing import Result

from saga.broker.administration import OffsetBounds
from saga.broker.embedded.broker import EmbeddedAdministration
from saga.broker.port import Subscription
from saga.errors import BrokerError, BrokerUnavailable
from saga.messages import Outgoing, Partition, Record, Topic, texts_of
from saga.ops import offsets
from saga.ops.offsets import (
    MOVED,
    STAYED,
    OffsetMove,
    PartitionState,
    encode_moves,
    is_backward,
    is_unread,
    plan_moves,
    read_manual_moves,
    refuse_move,
)
from saga.ops.selection import Operator
from saga.testing.conformance.broker_suite import RecordingListener
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, a_worker, handled, the_broker

WHO = ("--who", "ada", "--why", "the kiln was cold")

ADA = Operator("ada", "cold")


@pytest.fixture
def pottery(pottery_on: Pottery) -> Pottery:
    """With three records in each of two partitions, two of which are handled in the first and three in the second."""
    asyncio.run(handled(pottery_on, {0: 2, 1: 3}))
    return pottery_on


def positions_of(pottery: Pottery) -> Mapping[int, int]:
    async def asked() -> Mapping[int, int]:
        async with the_broker() as broker:
            group = await broker.describe_group(pottery.service)
        return {partition.number: at for partition, at in group.positions.items()}

    return asyncio.run(asked())


def records_on(topic: str) -> list[Record]:
    async def scanned() -> list[Record]:
        async with the_broker() as broker:
            return [record async for record in broker.scan(topic)] if await broker.describe_topics([topic]) else []

    return asyncio.run(scanned())


def move(saga: Call, pottery: Pottery, *args: str, module: str | None = "") -> Result:
    named = () if module is None else ("--module", module or pottery.module)
    return saga("offsets", "reset", pottery.service, "--topic", pottery.topic, *named, *WHO, *args)


# -------------------------------------------------------------------- shown


def test_positions_are_shown_with_their_lag(saga: Call, pottery: Pottery) -> None:
    shown = saga("offsets", "show", pottery.service)
    assert shown.exit_code == 0, shown.output
    first, *lines = shown.stdout.splitlines()
    assert first == f"{pottery.service}: no members, 1 not handled"
    assert [line.split() for line in lines] == [
        ["TOPIC", "PARTITION", "POSITION", "END", "LAG"],
        [pottery.topic, "0", "2", "3", "1"],
        [pottery.topic, "1", "3", "3", "0"],
    ]
    [report] = json.loads(saga("offsets", "show", pottery.service, "--json").stdout)["services"]
    assert (report["service"], report["members"], report["lag"]) == (pottery.service, [], 1)
    assert report["partitions"][0] == {
        "topic": pottery.topic,
        "partition": 0,
        "position": 2,
        "begin": 0,
        "end": 3,
        "lag": 1,
    }


async def test_members_are_shown(saga: Call, pottery_on: Pottery) -> None:
    await handled(pottery_on, {0: 2})
    async with a_worker(pottery_on, {}):
        shown = await asyncio.to_thread(saga, "offsets", "show", pottery_on.service)
    assert shown.stdout.startswith(f"{pottery_on.service}: 1 member, ")
    assert "\n  member " in shown.stdout


def test_a_service_that_never_ran_is_reported(saga: Call, pottery: Pottery) -> None:
    shown = saga("offsets", "show", pottery.service, "no-such-service")
    assert shown.exit_code == 1
    assert shown.stdout.startswith(pottery.service)
    assert "no-such-service" in shown.stderr


def test_looking_makes_no_broker(saga: Call, embedded_pottery: Pottery) -> None:
    for command in (("show", "potter"), ("reset", "potter", "--topic", "cups", "--to", "latest", *WHO)):
        result = saga("offsets", *command)
        assert result.exit_code == 2
        assert "run a service first" in result.stderr
    assert not (embedded_pottery.folder / ".saga" / "broker.db").exists()


# -------------------------------------------------------------------- moved


def test_positions_go_back_and_the_move_is_recorded(saga: Call, pottery: Pottery) -> None:
    result = move(saga, pottery, "--to", "earliest")
    assert result.exit_code == 0, result.output
    assert f"{pottery.topic}/0  2 -> 0" in result.stdout
    assert f"{pottery.topic}/1  3 -> 0" in result.stdout
    assert positions_of(pottery) == {0: 0, 1: 0}
    [record] = records_on(pottery.dead)
    assert json.loads(record.value or b"") == {
        "service": pottery.service,
        "who": "ada",
        "why": "the kiln was cold",
        "moves": [
            {"topic": pottery.topic, "partition": 0, "from": 2, "to": 0},
            {"topic": pottery.topic, "partition": 1, "from": 3, "to": 0},
        ],
    }
    headers = dict(record.headers)
    assert (headers["dead_what"], headers["dead_who"]) == (b"position moved", b"ada")
    assert headers["dead_service"] == pottery.service.encode()


def test_before_its_first_start_an_operator_sets_where_a_service_begins(saga: Call, pottery_on: Pottery) -> None:
    async def published() -> None:
        async with the_broker() as broker:
            await broker.ensure_topics([Topic(pottery_on.topic, 2)])
            await broker.publish([Outgoing(pottery_on.topic, f"cup-{n}".encode(), b"old", ()) for n in range(9)])

    asyncio.run(published())
    moved = move(saga, pottery_on, "--to", "latest", module=None)
    assert moved.exit_code == 0, moved.output
    assert sum(positions_of(pottery_on).values()) == 9
    assert [texts_of(each.headers)["dead_what"] for each in records_on(pottery_on.dead)] == [MOVED]


def test_a_partition_that_was_added_to_a_topic_is_not_skipped() -> None:
    states = {
        Partition("t", 0): PartitionState(OffsetBounds(0, 9), 9),
        Partition("t", 1): PartitionState(OffsetBounds(0, 9), None),
    }
    assert not is_unread(states)
    assert is_unread({at: state._replace(offset=None) for at, state in states.items()})
    unread = states[Partition("t", 1)]
    assert refuse_move(unread, 9, 0) == (
        "9 records from 0 on are not handled, and would be skipped: have the service handle them; a message that it "
        "cannot handle becomes a dead letter"
    )
    assert refuse_move(unread, 9, 0, unread=True) is None
    assert refuse_move(unread, 10, 0, unread=True) == "it ends at 9"


def test_one_partition_moves_alone(saga: Call, pottery: Pottery) -> None:
    result = move(saga, pottery, "--partition", "1", "--to", "1", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["moved"] == [{"topic": pottery.topic, "partition": 1, "from": 3, "to": 1}]
    assert positions_of(pottery) == {0: 2, 1: 1}


def test_positions_go_back_to_a_time(saga: Call, pottery: Pottery) -> None:
    result = move(saga, pottery, "--to", "2020-01-01T00:00:00Z")
    assert result.exit_code == 0, result.output
    assert positions_of(pottery) == {0: 0, 1: 0}


def test_a_position_that_is_there_already_is_not_recorded(saga: Call, pottery: Pottery) -> None:
    result = move(saga, pottery, "--partition", "1", "--to", "latest", module=None)
    assert result.exit_code == 0, result.output
    assert "there already" in result.stdout
    assert records_on(pottery.dead) == []


def test_nothing_unhandled_is_skipped(saga: Call, pottery: Pottery) -> None:
    result = move(saga, pottery, "--to", "latest")
    assert result.exit_code == 1
    assert f"{pottery.topic}/0 cannot move: 1 records from 2 on are not handled" in result.stderr
    assert positions_of(pottery) == {0: 2, 1: 3}
    assert records_on(pottery.dead) == []


def test_a_move_refused_for_one_partition_moves_none(saga: Call, pottery: Pottery) -> None:
    result = move(saga, pottery, "--to", "2100-01-01T00:00:00Z", "--json")  # the end: backwards nowhere, too far in 0
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["moved"] == []
    assert [refused["partition"] for refused in report["refused"]] == [0]
    assert positions_of(pottery) == {0: 2, 1: 3}


def test_nothing_goes_back_behind_the_memory(saga: Call, pottery: Pottery) -> None:
    forgetful = pottery.declare(memory_days=1 / 86_400)  # a second, the least there is
    asyncio.run(CLOCK.sleep(1.01))
    result = move(saga, pottery, "--to", "earliest", module=forgetful)
    assert result.exit_code == 1
    assert "older than the service's retention" in result.stderr
    assert positions_of(pottery) == {0: 2, 1: 3}


def test_going_back_needs_to_know_the_memory(saga: Call, pottery: Pottery) -> None:
    result = move(saga, pottery, "--to", "earliest", module=None)
    assert result.exit_code == 2
    assert "--module" in result.stderr
    assert positions_of(pottery) == {0: 2, 1: 3}


async def test_nothing_moves_while_the_service_runs(saga: Call, pottery_on: Pottery) -> None:
    await handled(pottery_on, {0: 2, 1: 3})
    async with a_worker(pottery_on, {}):
        result = await asyncio.to_thread(move, saga, pottery_on, "--to", "earliest")
    assert result.exit_code == 1
    assert "stop all its processes first" in result.stderr


async def test_a_service_that_begins_in_the_very_moment_keeps_its_positions(pottery_on: Pottery) -> None:
    await handled(pottery_on, {0: 2, 1: 3})
    going = [OffsetMove(Partition(pottery_on.topic, 0), 2, 0)]
    async with a_worker(pottery_on, {}), the_broker() as broker:
        with pytest.raises(BrokerError, match="has members"):
            await offsets.move_offsets(pottery_on.service, going, operator=ADA, broker=broker, clock=CLOCK)
        assert (await broker.describe_group(pottery_on.service)).positions[going[0].partition] == 2
        recorded = [texts_of(record.headers)["dead_what"] async for record in broker.scan(pottery_on.dead)]
    assert recorded == [MOVED, STAYED]


class Interrupted(EmbeddedAdministration):
    """Does not answer when positions are moved; in the meantime it has moved some of them."""

    moved: Collection[int]

    async def move_positions(self, group: str, positions: Mapping[Partition, int]) -> None:
        await super().move_positions(group, {p: to for p, to in positions.items() if p.number in self.moved})
        raise BrokerUnavailable("no answer")


@pytest.mark.parametrize(("moved", "stayed"), [({0, 1}, []), ({0}, [1]), ((), [0, 1])])
async def test_a_move_without_an_answer_records_the_unmoved_offsets(
    embedded_pottery: Pottery, moved: Collection[int], stayed: list[int]
) -> None:
    await handled(embedded_pottery, {0: 2, 1: 3})
    going = [OffsetMove(Partition(embedded_pottery.topic, number), at, 0) for number, at in ((0, 2), (1, 3))]
    async with Interrupted(Path(".saga/broker.db"), clock=CLOCK) as broker:
        broker.moved = moved
        with pytest.raises(BrokerUnavailable) if stayed else nullcontext():
            await offsets.move_offsets(embedded_pottery.service, going, operator=ADA, broker=broker, clock=CLOCK)
        first, *rest = [record async for record in broker.scan(embedded_pottery.dead)]
    assert texts_of(first.headers)["dead_what"] == MOVED
    assert [texts_of(record.headers)["dead_what"] for record in rest] == [STAYED][: len(stayed)]
    partitions = [move["partition"] for record in rest for move in json.loads(record.value or b"")["moves"]]
    assert partitions == stayed


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--to", "yesterday"), "say earliest, latest, an offset, or a time"),
        (("--to", "2026-11-21T08:00:00"), "has no time zone"),
        (("--to", "1"), "--partition"),
        (("--to", "latest", "--partition", "7"), "there is no"),
        (("--to", "latest", "--who", " "), "--who"),
    ],
)
def test_wrong_arguments_are_reported_with_the_right_ones(
    saga: Call, pottery: Pottery, args: tuple[str, ...], says: str
) -> None:
    result = move(saga, pottery, *args)
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_topic_that_the_service_does_not_read_is_refused(saga: Call, pottery: Pottery) -> None:
    before = positions_of(pottery)
    args = ("--topic", pottery.made, "--to", "latest", *WHO, "--module", pottery.module)
    result = saga("offsets", "reset", pottery.service, *args)
    assert result.exit_code == 2
    assert f"{pottery.service} does not read {pottery.made}; it reads {pottery.topic}, " in result.stderr
    assert positions_of(pottery) == before


def test_the_module_has_to_declare_the_service(saga: Call, pottery: Pottery) -> None:
    result = saga("offsets", "reset", "other", "--topic", "a", "--to", "latest", *WHO, "--module", pottery.module)
    assert result.exit_code == 2
    assert f"declares {pottery.service}, and no service other" in result.stderr


# -------------------------------------------------------------------- decided


@pytest.mark.parametrize(
    ("bounds", "position", "floor", "to", "says"),
    [
        ((0, 10), 5, 0, 5, None),
        ((0, 10), 5, 0, 4, None),
        ((0, 10), 5, 4, 4, None),
        ((0, 10), 5, 5, 4, "older than the service's retention"),
        ((0, 10), 5, 0, 6, "1 records from 5 on"),
        ((0, 10), 5, 0, 11, "it ends at 10"),
        ((3, 10), 5, 0, 2, "its oldest record is 3"),
        ((3, 10), 1, 0, 3, None),  # what lay before was removed
        ((3, 10), 1, 0, 4, "1 records from 3 on"),
        ((3, 10), None, 10, 3, None),
        ((3, 10), None, 0, 4, "1 records from 3 on"),
        ((0, 10), 12, 0, 10, None),  # the log has lost some
        ((0, 10), 12, 0, 11, "it ends at 10"),
    ],
)
def test_each_reason_to_refuse(
    bounds: tuple[int, int], position: int | None, floor: int, to: int, says: str | None
) -> None:
    reason = refuse_move(PartitionState(OffsetBounds(*bounds), position), to, floor)
    assert reason is None if says is None else says in (reason or "")


def test_only_who_was_further_goes_back() -> None:
    assert is_backward(PartitionState(OffsetBounds(0, 10), 5), 4)
    assert not is_backward(PartitionState(OffsetBounds(0, 10), 5), 5)
    assert not is_backward(PartitionState(OffsetBounds(0, 10), None), 0)


def test_an_offset_already_at_the_target_does_not_move() -> None:
    places = {
        Partition("cups", 0): PartitionState(OffsetBounds(0, 10), 5),
        Partition("cups", 1): PartitionState(OffsetBounds(3, 10), None),
        Partition("cups", 2): PartitionState(OffsetBounds(3, 10), 1),
    }
    assert plan_moves(places, {Partition("cups", 0): 5, Partition("cups", 1): 3, Partition("cups", 2): 3}) == [
        OffsetMove(Partition("cups", 2), 1, 3)
    ]


def test_two_moves_have_different_ids() -> None:
    going = [OffsetMove(Partition("cups", 0), 5, 4)]
    ids = {
        dict(encode_moves(what, "potter", going, Operator("ada", why), now_ms).headers)["dead_id"]
        for what in (MOVED, STAYED)
        for why in ("a", "b")
        for now_ms in (1, 2)
    }
    assert len(ids) == 8


@pytest.mark.parametrize("value", [b"", b'{"moves":[{"topic":"\xff","partition":0,"to":7}]}', b"[" * 100_000])
async def test_a_record_of_a_move_that_is_none_is_passed_over(tmp_path: Path, value: bytes) -> None:
    """Any client may write to the topic."""
    going = [OffsetMove(Partition("cups", 0), 5, 4)]
    moved = encode_moves(MOVED, "potter", going, Operator("ada", "why"), 1)
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        await broker.ensure_topics([Topic(moved.topic, 1)])
        await broker.publish([moved._replace(value=value), moved])
        assert await read_manual_moves("potter", broker) == {Partition("cups", 0): 4}


async def test_a_move_that_the_broker_refused_is_none(tmp_path: Path) -> None:
    at = Partition("cups", 0)
    made = [(MOVED, 4), (MOVED, 9), (STAYED, 9), (STAYED, 7)]
    async with EmbeddedAdministration(tmp_path / "broker.db", clock=CLOCK) as broker:
        records = [encode_moves(what, "potter", [OffsetMove(at, 5, to)], ADA, 1) for what, to in made]
        await broker.ensure_topics([Topic(records[0].topic, 1)])
        await broker.publish(records)
        assert await read_manual_moves("potter", broker) == {at: 4}


# -------------------------------------------------------------------- stepping over what cannot be read


def skip(saga: Call, pottery: Pottery, partition: int, *args: str) -> Result:
    place = ("--topic", pottery.topic, "--partition", f"{partition}")
    return saga("offsets", "skip", pottery.service, *place, *WHO, *args)


def spoil(pottery: Pottery, partition: int, *offsets: int) -> None:
    """Spoil records of the embedded broker."""

    async def spoilt() -> None:
        async with the_broker() as broker:
            assert isinstance(broker, EmbeddedAdministration)
            log = broker._read_topics()[pottery.topic].first_log + partition
            for offset in offsets:
                broker.connection.execute(f"UPDATE log_{log} SET headers = x'ffff' WHERE offset = ?", (offset,))

    asyncio.run(spoilt())


@pytest.fixture
def halted(embedded_pottery: Pottery) -> Pottery:
    """Stands at 1 of partition 0, which cannot be read."""
    asyncio.run(handled(embedded_pottery, {0: 1, 1: 3}))
    spoil(embedded_pottery, 0, 1)
    return embedded_pottery


def test_an_unreadable_record_is_skipped_and_recorded_with_what_is_known(saga: Call, halted: Pottery) -> None:
    result = skip(saga, halted, 0, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["moved"] == [{"topic": halted.topic, "partition": 0, "from": 1, "to": 2}]
    assert (report["unreadable"]["begin"], report["unreadable"]["end"]) == (1, 2)
    assert positions_of(halted) == {0: 2, 1: 3}
    (record,) = records_on(halted.dead)
    assert "the kiln was cold (could not be read: offsets 1 to 1" in json.loads(record.value or b"")["why"]


def test_a_readable_record_is_not_skipped(saga: Call, halted: Pottery) -> None:
    assert skip(saga, halted, 0).exit_code == 0
    result = skip(saga, halted, 0)
    assert result.exit_code == 1
    assert f"{halted.topic}/0 cannot move: offset 2" in result.stderr
    assert "can be read: start it" in result.stderr
    assert positions_of(halted) == {0: 2, 1: 3}


@pytest.mark.parametrize(
    "options", [("--who", "ada"), ("--why", "x"), ("--who", " ", "--why", "x"), (*WHO[:2], "--why", "")]
)
def test_nothing_is_stepped_over_without_a_name_and_a_reason(
    saga: Call, halted: Pottery, options: tuple[str, ...]
) -> None:
    place = ("--topic", halted.topic, "--partition", "0")
    assert saga("offsets", "skip", halted.service, *place, *options).exit_code == 2
    assert positions_of(halted) == {0: 1, 1: 3}
    assert records_on(halted.dead) == []


def test_nothing_is_stepped_over_in_a_partition_that_is_not_there(saga: Call, halted: Pottery) -> None:
    assert skip(saga, halted, 7).exit_code == 2


async def test_nothing_is_stepped_over_while_the_service_runs(saga: Call, pottery_on: Pottery) -> None:
    await handled(pottery_on, {0: 1, 1: 3})
    async with a_worker(pottery_on, {}):
        result = await asyncio.to_thread(skip, saga, pottery_on, 0)
    assert result.exit_code == 1
    assert "stop all its processes first" in result.stderr


# -------------------------------------------------------------------- forgotten


def test_a_service_that_never_comes_back_is_forgotten(saga: Call, embedded_pottery: Pottery) -> None:
    pottery = embedded_pottery
    asyncio.run(handled(pottery, {0: 2, 1: 3}))
    forgotten = saga("offsets", "delete", pottery.service)
    assert forgotten.exit_code == 0, forgotten.output
    assert forgotten.stdout == f"the offsets of {pottery.service} are deleted; it had not handled 1 record\n"
    again = saga("offsets", "delete", pottery.service)
    assert again.exit_code == 1
    assert f"no service {pottery.service} has ever read anything here" in again.output


def test_a_service_that_runs_is_not_forgotten_and_kafka_forgets_by_itself(saga: Call, pottery: Pottery) -> None:
    async def asked() -> Result:
        async with (
            the_broker() as broker,
            broker.join(Subscription(pottery.service, [pottery.topic]), RecordingListener()),
        ):
            return await asyncio.to_thread(saga, "offsets", "delete", pottery.service)

    result = asyncio.run(asked())
    assert result.exit_code == 1
    assert "stop the service first" in result.output or "Kafka forgets a group without members" in result.output
    assert positions_of(pottery)
