"""`saga topics`: the changes that make topics match the contracts, printed and applied."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from saga.broker.administration import DATED_BY, DAY_MS, Administration, TopicDescription
from saga.messages import Topic
from saga.ops.topic_plans import TopicReader, TopicStep, apply, describe_duration, has_retention, plan
from tests.cli.conftest import Call
from tests.cli.pottery_service import Pottery, a_worker, handled, the_broker

HOUR_MS = 3_600_000


def found(pottery: Pottery) -> Mapping[str, tuple[int, int | None]]:
    """Partitions and retention of each topic."""

    async def asked() -> Mapping[str, tuple[int, int | None]]:
        async with the_broker() as broker:
            there = await broker.describe_topics(pottery.topics)
        return {name: (each.partitions, each.retention_ms) for name, each in there.items()}

    return asyncio.run(asked())


def as_agreed(pottery: Pottery, partitions: int = 2) -> Mapping[str, tuple[int, int | None]]:
    agreed = dict.fromkeys([pottery.topic, pottery.made, pottery.sold], (partitions, 7 * DAY_MS))
    now, *later = pottery.wakes
    wakes = {now: (12, None), **dict.fromkeys(later, (1, None))}
    return {**agreed, pottery.dead: (12, None), pottery.commands: (1, None), **wakes}


# -------------------------------------------------------------------- on each broker


def test_a_plan_lists_what_would_be_made_and_makes_nothing(saga: Call, pottery_on: Pottery) -> None:
    planned = saga("topics", "plan", pottery_on.module)
    assert planned.exit_code == 0, planned.output
    lines = [" ".join(line.split()) for line in planned.stdout.splitlines()]
    assert f"create {pottery_on.topic} 2 partitions, kept 7 days" in lines
    assert f"create {pottery_on.dead} 12 partitions, kept for ever" in lines
    assert f"create {pottery_on.commands} 1 partition, kept for ever" in lines
    now, *later = pottery_on.wakes
    assert f"create {now} 12 partitions, kept for ever" in lines
    assert {f"create {wake} 1 partition, kept for ever" for wake in later} < set(lines)
    assert len(lines) == 12
    if not (pottery_on.folder / ".saga" / "broker.db").exists():
        return  # not even the broker was made
    assert found(pottery_on) == {}


def test_apply_makes_topics_as_the_contracts_say_once(saga: Call, pottery_on: Pottery) -> None:
    applied = saga("topics", "apply", pottery_on.module, "--json")
    assert applied.exit_code == 0, applied.output
    report = json.loads(applied.stdout)
    assert report["applied"]
    assert {topic["doing"] for topic in report["topics"]} == {"create"}
    assert found(pottery_on) == as_agreed(pottery_on)
    again = saga("topics", "apply", pottery_on.module, "--json")
    assert again.exit_code == 0, again.output
    assert {topic["doing"] for topic in json.loads(again.stdout)["topics"]} == {"nothing"}
    assert found(pottery_on) == as_agreed(pottery_on)


def test_another_retention_is_reported_and_set(saga: Call, pottery_on: Pottery) -> None:
    saga("topics", "apply", pottery_on.module)
    pottery_on.agree(pottery_on.made, partitions=2, retention_days=None)
    pottery_on.agree(pottery_on.sold, partitions=2, retention_days=0.5)
    module = pottery_on.declare(30)
    planned = saga("topics", "plan", module)
    assert planned.exit_code == 0, planned.output
    lines = [" ".join(line.split()) for line in planned.stdout.splitlines()]
    assert f"change {pottery_on.made} kept for ever instead of 7 days" in lines
    assert f"change {pottery_on.sold} kept 12 hours instead of 7 days" in lines
    assert found(pottery_on) == as_agreed(pottery_on)
    applied = saga("topics", "apply", module)
    assert applied.exit_code == 0, applied.output
    assert f"changed   {pottery_on.made}" in applied.stdout
    changed = {pottery_on.made: (2, None), pottery_on.sold: (2, 12 * HOUR_MS)}
    assert found(pottery_on) == {**as_agreed(pottery_on), **changed}


def test_fewer_partitions_are_refused_and_nothing_else_is_done(saga: Call, pottery_on: Pottery) -> None:
    saga("topics", "apply", pottery_on.module)
    pottery_on.agree(pottery_on.topic, partitions=1, retention_days=7)
    pottery_on.agree(pottery_on.made, partitions=2, retention_days=1)
    module = pottery_on.declare(30)
    for command in ("plan", "apply"):
        refused = saga("topics", command, module)
        assert refused.exit_code == 1
        line = next(line for line in refused.stdout.splitlines() if pottery_on.topic in line.split())
        assert line.startswith("refused")
        assert "never gets fewer partitions" in line
        assert found(pottery_on) == as_agreed(pottery_on)


def test_the_embedded_broker_gives_no_more_partitions(saga: Call, embedded_pottery: Pottery) -> None:
    saga("topics", "apply", embedded_pottery.module)
    embedded_pottery.agree(embedded_pottery.topic, partitions=3, retention_days=7)
    refused = saga("topics", "apply", embedded_pottery.declare(30), "--json")
    assert refused.exit_code == 1
    report = json.loads(refused.stdout)
    assert not report["applied"]
    [reason] = [topic["refused"] for topic in report["topics"] if topic["refused"]]
    assert "topics of the embedded broker keep their partitions" in reason
    assert found(embedded_pottery) == as_agreed(embedded_pottery)


# -------------------------------------------------------------------- more partitions, on Kafka


async def test_partitions_grow_only_when_all_is_handled_and_no_member_is_there(
    saga: Call, kafka_pottery: Pottery
) -> None:
    async def called(command: str) -> tuple[int, str]:
        result = await asyncio.to_thread(saga, "topics", command, module)
        line = next(line for line in result.stdout.splitlines() if kafka_pottery.topic in line.split())
        return result.exit_code, " ".join(line.split())

    module = kafka_pottery.module
    await asyncio.to_thread(saga, "topics", "apply", module)
    await handled(kafka_pottery, {0: 2, 1: 3})
    for topic in (kafka_pottery.topic, kafka_pottery.made, kafka_pottery.sold):
        kafka_pottery.agree(topic, partitions=5, retention_days=7)
    module = kafka_pottery.declare(30)

    code, line = await called("apply")
    assert (code, line.split()[0]) == (1, "refused")
    assert f"{kafka_pottery.service} has not handled 1 record" in line

    async with a_worker(kafka_pottery, {0: 3, 1: 3}):
        code, line = await called("apply")
        assert (code, line.split()[0]) == (1, "refused")
        assert f"{kafka_pottery.service} has 1 member" in line
    assert await asyncio.to_thread(found, kafka_pottery) == as_agreed(kafka_pottery)

    code, line = await called("plan")
    assert (code, line.split()[0]) == (0, "change")
    assert "5 partitions instead of 2, only with the group drained" in line
    assert await asyncio.to_thread(found, kafka_pottery) == as_agreed(kafka_pottery)
    assert (await called("apply"))[0] == 0
    assert await asyncio.to_thread(found, kafka_pottery) == as_agreed(kafka_pottery, partitions=5)


async def test_a_service_that_only_writes_a_topic_prevents_more_partitions(saga: Call, kafka_pottery: Pottery) -> None:
    await asyncio.to_thread(saga, "topics", "apply", kafka_pottery.module)
    kafka_pottery.agree(kafka_pottery.made, partitions=5, retention_days=7)
    module = kafka_pottery.declare(30)
    async with a_worker(kafka_pottery, {}):
        refused = await asyncio.to_thread(saga, "topics", "plan", module)
    assert refused.exit_code == 1
    line = next(line for line in refused.stdout.splitlines() if kafka_pottery.made in line.split())
    assert f"{kafka_pottery.service} has 1 member" in line


# -------------------------------------------------------------------- decided

CUPS = Topic("cups", 4, 7)


@pytest.mark.parametrize(
    ("there", "readers", "doing", "refused"),
    [
        (TopicDescription(4, 7 * DAY_MS), {}, ["nothing"], None),
        (TopicDescription(4, 7 * DAY_MS + 1), {}, ["nothing"], None),
        (TopicDescription(4, 7 * DAY_MS + 2), {}, ["retention"], None),
        (TopicDescription(4, None), {}, ["retention"], None),
        (TopicDescription(4, 7 * DAY_MS, settings={DATED_BY: "LogAppendTime"}), {}, ["nothing"], None),
        (TopicDescription(4, 7 * DAY_MS, settings={DATED_BY: "CreateTime"}), {}, ["dates"], None),
        (TopicDescription(2, 7 * DAY_MS), {}, ["partitions"], None),
        (TopicDescription(2, 7 * DAY_MS), {"potter": TopicReader(0, 0)}, ["partitions"], None),
        (TopicDescription(2, 7 * DAY_MS), {"potter": TopicReader(2, 0)}, ["partitions"], "potter has 2 members"),
        (
            TopicDescription(2, 7 * DAY_MS),
            {"potter": TopicReader(0, 3)},
            ["partitions"],
            "potter has not handled 3 records",
        ),
        (TopicDescription(2, 1), {"potter": TopicReader(1, 0)}, ["retention", "partitions"], "potter has 1 member"),
        (TopicDescription(5, 7 * DAY_MS), {}, ["partitions"], "fewer"),
    ],
)
def test_each_difference_is_a_step(
    there: TopicDescription, readers: Mapping[str, TopicReader], doing: list[str], refused: str | None
) -> None:
    steps = plan([CUPS], {"cups": there}, {"cups": readers}, can_grow=True)
    assert [step.doing for step in steps] == doing
    reasons = [step.refused for step in steps if step.refused]
    assert reasons == [] if refused is None else refused in reasons[0]


def test_for_ever_is_only_kept_by_for_ever() -> None:
    for_ever = Topic("cups", retention_days=None)
    assert has_retention(for_ever, TopicDescription(12, None))
    assert not has_retention(for_ever, TopicDescription(12, 10**15))
    assert not has_retention(CUPS, TopicDescription(4, None))


async def test_a_plan_with_a_refused_change_changes_nothing() -> None:
    class Untouched:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was called")

    untouched: Administration = Untouched()  # type: ignore[assignment]  # that is what it shows
    create = TopicStep(topic=CUPS, doing="create", says="")
    await apply([create, TopicStep(topic=Topic("mugs"), doing="partitions", says="", refused="no")], untouched)
    with pytest.raises(AssertionError, match="ensure"):
        await apply([create], untouched)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 milliseconds"), (1, "1 millisecond"), (36 * HOUR_MS, "1.5 days"), (90_000, "1.5 minutes")]
)
def test_times_are_printed_in_words(ms: float, text: str) -> None:
    assert describe_duration(ms) == text


def test_the_topic_of_transition_events_is_made_and_kept_according_to_the_settings(
    saga: Call, embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def transition_topic_actions(command: str) -> list[list[str]]:
        lines = saga("topics", command, embedded_pottery.module).stdout.splitlines()
        return [line.split()[:1] + line.split()[2:] for line in lines if " saga.transitions " in line]

    assert transition_topic_actions("plan") == [["create", "12", "partitions,", "kept", "7", "days"]]
    assert transition_topic_actions("apply")[0][0] == "created"
    monkeypatch.setenv("SAGA_TRANSITIONS_DAYS", "30")
    assert transition_topic_actions("plan") == [["change", "kept", "30", "days", "instead", "of", "7", "days"]]
    monkeypatch.setenv("SAGA_TRANSITIONS", "off")
    assert transition_topic_actions("plan") == []
