"""`saga doctor`: its findings on sound and unsound brokers and stores, and how soon it reports that one is down."""

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

from saga.broker.adapter import Copies
from saga.broker.administration import DAY_MS, GroupDescription, InactiveGroup, OffsetBounds, TopicDescription
from saga.broker.port import MemberIdentity, Subscription
from saga.configuration.settings import Settings
from saga.declarations.values import Declared
from saga.messages import Outgoing, Partition, Topic
from saga.messaging.names import timer_topic
from saga.ops import findings
from saga.ops.offsets import PartitionState
from saga.ops.topic_plans import TopicNeeds
from saga.store.couchbase.adapter import COUCHBASE, CouchbaseOptions
from saga.store.sqlite.store import SqliteStore
from saga.support.settings import Finding, Severity
from saga.testing.conformance.broker_suite import RecordingListener
from saga.testing.servers.couchbase import BUCKET, CouchbaseMock
from saga.testing.servers.kafka import KafkaServer
from saga.testing.servers.server import free_ports
from tests.broker.waiting import until
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, the_broker

PLAIN = """
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller},PLAIN://127.0.0.1:%(plain)d
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PLAIN://127.0.0.1:%(plain)d
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PLAIN:SASL_PLAINTEXT
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_saga="sesame";
auto.create.topics.enable=true
offsets.retention.minutes=60
"""


def found_by(saga: Call, *modules: str, exit_code: int) -> list[Finding]:
    result = saga("doctor", *modules, "--json")
    assert result.exit_code == exit_code, result.output
    report = json.loads(result.stdout)
    found = [Finding(**finding) for finding in report["findings"]]
    assert report["errors"] == len([each for each in found if each.severity == "error"])
    assert report["warnings"] == len([each for each in found if each.severity == "warning"])
    assert report["reached"] is (exit_code != 2)
    assert all(each.risk and each.remedy for each in found if each.severity != "ok")
    return found


def wrong(found: list[Finding]) -> list[str]:
    return [f"{each.severity} {each.about}: {each.what}" for each in found if each.severity != "ok"]


# -------------------------------------------------------------------- all is well


def test_before_anything_is_there_all_is_well_and_nothing_is_made(saga: Call, embedded_pottery: Pottery) -> None:
    found = found_by(saga, embedded_pottery.module, exit_code=0)
    assert wrong(found) == []
    assert [each.what for each in found] == [
        "it does not exist yet: the first service creates it",
        "it does not exist yet: the service creates it",
    ]
    assert list((embedded_pottery.folder / ".saga").iterdir()) == []


def test_a_folder_that_may_not_be_written_is_reported(
    saga: Call, embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)  # tests may run as root, who may everything
    assert [each.what for each in found_by(saga, embedded_pottery.module, exit_code=1) if each.severity == "error"] == [
        f"{embedded_pottery.folder / '.saga'} may not be written"
    ]


def test_sound_files_are_reported_as_such(saga: Call, embedded_pottery: Pottery) -> None:
    async def made() -> None:
        async with SqliteStore(Path(".saga") / f"{embedded_pottery.service}.db", clock=CLOCK):
            pass

    saga("topics", "apply", embedded_pottery.module)
    asyncio.run(made())
    found = found_by(saga, embedded_pottery.module, exit_code=0)
    assert wrong(found) == []
    assert "it writes, reads and removes; every write is on disk" in [each.what for each in found]
    shown = saga("doctor", embedded_pottery.module)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == "no errors, no warnings"


def test_on_kafka_only_what_was_asked_for_by_name_is_warned_of(saga: Call, kafka_pottery: Pottery) -> None:
    saga("topics", "apply", kafka_pottery.module)
    found = found_by(saga, kafka_pottery.module, exit_code=0)
    asked = ("1 broker has each record, as SAGA_KAFKA_REPLICATION requires",
             "min.insync.replicas is 1, as SAGA_KAFKA_MIN_INSYNC requires")  # fmt: skip
    assert set(wrong(found)) == {f"warning {topic}: {what}" for topic in kafka_pottery.topics for what in asked}
    fine = [each.what for each in found if each.severity == "ok"]
    assert "a record was written and read back" in fine
    assert "its clock agrees with this machine, within 2 seconds" in fine
    shown = saga("doctor", kafka_pottery.module).stdout.splitlines()
    warnings = [line for line in shown if line.startswith("warning")]
    assert [line.rpartition(": ")[2] for line in warnings] == list(asked)  # once each, and not for each topic
    (others, _) = [line.partition(": ")[2].split(", ") for line in shown if line.startswith("         also for:")]
    named = warnings[0].removeprefix("warning  ").partition(" and ")[0].split(", ")
    assert sorted([*named, *others]) == sorted(kafka_pottery.topics)
    assert "--entity-name NAME --add-config min.insync.replicas=2" in "\n".join(shown)
    assert shown[-1] == f"no errors, {len(asked) * len(kafka_pottery.topics)} warnings"


# -------------------------------------------------------------------- whose group it is, and where a service begins


def test_a_service_that_was_never_here_has_to_say_where_it_begins(saga: Call, embedded_pottery: Pottery) -> None:
    async def published() -> None:
        async with the_broker() as broker:
            await broker.publish([Outgoing(embedded_pottery.topic, b"cup-1", b"old", ())])

    saga("topics", "apply", embedded_pottery.module)
    assert wrong(found_by(saga, embedded_pottery.module, exit_code=0)) == []
    asyncio.run(published())
    (found,) = [each for each in found_by(saga, embedded_pottery.module, exit_code=1) if each.severity == "error"]
    assert found.what == "it has never run here, it does not declare where it starts, and its topics hold 1 record"
    assert f'Service("{embedded_pottery.service}", start="now")' in found.remedy
    result = saga("offsets", "reset", embedded_pottery.service, "--topic", embedded_pottery.topic, "--to", "latest",
                "--who", "ada", "--why", "it is new")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert wrong(found_by(saga, embedded_pottery.module, exit_code=0)) == []


async def test_members_with_another_store_are_found(pottery_on: Pottery) -> None:
    declared = Declared(name=pottery_on.service, state=None, retention=timedelta(days=30))
    theirs = MemberIdentity(service=pottery_on.service, store="theirs", worker="there:2")
    listener = RecordingListener()
    async with the_broker() as broker:
        await broker.ensure_topics([Topic(pottery_on.topic, 2)])
        async with broker.join(Subscription(pottery_on.service, [pottery_on.topic], identity=theirs), listener):
            await until(lambda: len(listener.has) == 2)
            group = await broker.describe_group(pottery_on.service)
    for store, message in (("ours", "this store is 'ours'"), (None, "has never run on the store of these settings")):
        (found,) = findings.check_members(declared, group, store)
        assert found.severity == "error"
        assert f"service '{pottery_on.service}' in process 'there:2' with store 'theirs'" in found.what
        assert message in found.what
    assert not list(findings.check_members(declared, group, "theirs"))


@pytest.mark.parametrize(
    ("start", "group", "records", "store"),
    [
        ("beginning", GroupDescription(), 7, None),
        (None, GroupDescription(), 0, None),
        (None, GroupDescription(), 7, "a store"),
        (None, GroupDescription(positions={Partition("t", 0): 3}), 7, None),
        (None, GroupDescription(members=("somebody",)), 7, None),
    ],
)
def test_no_finding_on_where_to_begin_for_a_service_that_has_run_or_declared_it(
    start: Literal["beginning"] | None, group: GroupDescription, records: int, store: str | None
) -> None:
    declared = Declared(name="payment", state=None, retention=timedelta(days=30), start=start)
    assert not list(findings.check_first_start(declared, group, records, store))
    assert list(findings.check_first_start(replace(declared, start=None), GroupDescription(), 7, None))


def test_messages_that_wait_while_no_worker_runs_are_reported(saga: Call, pottery_on: Pottery) -> None:
    async def published() -> None:
        async with the_broker() as broker:
            await broker.publish([Outgoing(pottery_on.topic, b"cup-1", b"new", ())])

    saga("topics", "apply", pottery_on.module)
    asyncio.run(published())
    moved = saga("offsets", "reset", pottery_on.service, "--topic", pottery_on.topic, "--to", "latest",
                 "--who", "ada", "--why", "it is new")  # fmt: skip
    assert moved.exit_code == 0, moved.output
    says = f"{pottery_on.service}: none of its processes runs, and it has not handled 1 record"
    assert says not in saga("doctor", pottery_on.module).stdout
    asyncio.run(published())
    shown = saga("doctor", pottery_on.module).stdout.splitlines()
    first = next(line for line in shown if line.startswith("warning"))
    assert first == f"warning  {says}"


def test_no_worker_is_required_where_nothing_waits_or_nothing_ever_ran() -> None:
    partition = Partition("cups", 0)
    behind, done = ({partition: PartitionState(OffsetBounds(0, 9), position)} for position in (4, 9))
    gone = GroupDescription(positions={partition: 4})
    assert len(list(findings.check_waiting(POTTER, gone, behind))) == 1
    assert not list(findings.check_waiting(POTTER, gone, done))
    assert not list(findings.check_waiting(POTTER, GroupDescription(), behind))
    assert not list(findings.check_waiting(POTTER, gone._replace(members=("somebody",)), behind))
    timers = {Partition(timer_topic("potter", "1m"), 0): PartitionState(OffsetBounds(0, 9), 4)}
    assert not list(findings.check_waiting(POTTER, gone, timers))


def test_findings_are_sorted_by_severity_and_grouped() -> None:
    def finding(severity: Severity, about: str, what: str) -> Finding:
        return Finding(severity, about, what, "loss", f"alter {about}")

    found = [
        finding("ok", "a", "fine"),
        *(finding("warning", name, "everywhere") for name in ("a", "a-2", "b")),
        finding("warning", "b", "here alone"),
        *(finding("error", name, "also everywhere") for name in ("a", "b")),
        finding("error", "b", "broken"),
    ]
    groups = findings.group_findings(found)
    assert [(each.finding.severity, each.finding.what, each.about) for each in groups] == [
        ("error", "broken", ("b",)),
        ("error", "also everywhere", ("a", "b")),
        ("warning", "here alone", ("b",)),
        ("warning", "everywhere", ("a", "a-2", "b")),
        ("ok", "fine", ("a",)),
    ]
    assert [each.finding.remedy for each in groups] == ["alter b", "alter NAME", "alter b", "alter NAME", "alter a"]


# -------------------------------------------------------------------- all is not well


def test_an_unsafe_topic_setting_that_was_not_chosen_explicitly_is_an_error(
    saga: Call, kafka_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    saga("topics", "apply", kafka_pottery.module)
    saga("doctor", kafka_pottery.module)  # the topic of its probe is made as the one broker can
    monkeypatch.delenv("SAGA_KAFKA_REPLICATION")
    monkeypatch.delenv("SAGA_KAFKA_MIN_INSYNC")
    found = wrong(found_by(saga, kafka_pottery.module, exit_code=1))
    assert f"error {kafka_pottery.topic}: 1 broker has each record, but 3 should" in found
    assert f"error {kafka_pottery.topic}: min.insync.replicas is 1, but should be 2" in found
    shown = saga("doctor", kafka_pottery.module)
    assert shown.exit_code == 1
    assert "         at risk: the loss of a broker loses acknowledged messages\n" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "24 errors, no warnings"


def test_topics_that_are_missing_or_different_are_reported(saga: Call, pottery_on: Pottery) -> None:
    async def made() -> None:
        async with the_broker() as broker:
            await broker.ensure_topics([Topic(pottery_on.topic, 3, 7), Topic(pottery_on.made, 2, 60)])
            await broker.ensure_topics([Topic(pottery_on.dead, 12, 1)])

    asyncio.run(made())
    listed = found_by(saga, pottery_on.module, exit_code=1)
    found = wrong(listed)
    missing = [each.what for each in listed if each.about == pottery_on.sold]
    if Settings.from_environment().broker.startswith("kafka"):  # there no service makes a topic
        assert missing == ["the topic does not exist, or this user may not see it"]
        assert f"error {pottery_on.sold}: {missing[0]}" in found
    else:
        assert missing == ["it does not exist yet: the first service that needs it creates it"]
    assert f"error {pottery_on.topic}: 3 partitions, but the contracts require 2" in found
    assert f"warning {pottery_on.made}: kept 60 days, but should be kept 7 days" in found
    assert f"error {pottery_on.dead}: kept 1 day, but should be kept for ever" in found


def test_settings_of_brokers_are_looked_at(
    saga: Call, server_jars: Path, embedded_pottery: Pottery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (plain,) = free_ports(1)
    kafka = KafkaServer.start(tmp_path / "kafka", extra=PLAIN % {"plain": plain})
    try:
        for name, value in (
            ("KAFKA_REPLICATION", "1"),
            ("KAFKA_MIN_INSYNC", "1"),
            ("BROKER", f"kafka://{kafka.address}"),
        ):
            monkeypatch.setenv(f"SAGA_{name}", value)
        saga("topics", "apply", embedded_pottery.module)
        found = wrong(found_by(saga, embedded_pottery.module, exit_code=0))
        assert "warning broker 1: auto.create.topics.enable is true" in found
        assert "warning broker 1: offsets.retention.minutes is 60, but topics are kept 7 days" in found

        for name, value in (("SASL", "plain"), ("CLEARTEXT", "yes"), ("USERNAME", "saga"), ("PASSWORD", "wrong")):
            monkeypatch.setenv(f"SAGA_KAFKA_{name}", value)
        monkeypatch.setenv("SAGA_BROKER", f"kafka://127.0.0.1:{plain}")
        began_s = CLOCK.monotonic_s()
        [refused] = wrong(found_by(saga, embedded_pottery.module, exit_code=2))
        assert CLOCK.monotonic_s() - began_s < 15
        assert "check user and password" in refused
        monkeypatch.setenv("SAGA_KAFKA_PASSWORD", "sesame")
        found_by(saga, embedded_pottery.module, exit_code=0)
    finally:
        kafka.kill()


# -------------------------------------------------------------------- what is down


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that takes connections and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_broker_that_is_down_is_reported_at_once(
    saga: Call, embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    (closed_port,) = free_ports(1)
    monkeypatch.setenv("SAGA_BROKER", f"kafka://127.0.0.1:{closed_port}")
    [down] = wrong(found_by(saga, embedded_pottery.module, exit_code=2))
    assert down.startswith(f"error broker kafka://127.0.0.1:{closed_port}: it cannot be used")


def test_a_broker_that_never_answers_is_reported_in_time(
    saga: Call, embedded_pottery: Pottery, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_BROKER", f"kafka://127.0.0.1:{silent}")
    began_s = CLOCK.monotonic_s()
    [down] = wrong(found_by(saga, embedded_pottery.module, exit_code=2))
    assert CLOCK.monotonic_s() - began_s < 15
    assert "no answer" in down


def test_a_store_that_is_no_store_is_reported(saga: Call, embedded_pottery: Pottery) -> None:
    (embedded_pottery.folder / ".saga" / f"{embedded_pottery.service}.db").write_text("not a database, by any means")
    [broken] = wrong(found_by(saga, embedded_pottery.module, exit_code=2))
    assert broken.startswith(f"error store sqlite:///.saga/{embedded_pottery.service}.db: it cannot be used")


@pytest.fixture
def on_couchbase(embedded_pottery: Pottery, couchbase_mock: CouchbaseMock, monkeypatch: pytest.MonkeyPatch) -> Pottery:
    monkeypatch.setenv("SAGA_STORE", f"{couchbase_mock.address}/{BUCKET}")
    monkeypatch.setenv("SAGA_STORE_DURABILITY", "none")
    monkeypatch.setenv("SAGA_COUCHBASE_USERNAME", "payment")
    monkeypatch.setenv("SAGA_COUCHBASE_PASSWORD", "secret")
    return embedded_pottery


def test_a_couchbase_without_durability_is_warned_of(saga: Call, on_couchbase: Pottery) -> None:
    [less] = wrong(found_by(saga, on_couchbase.module, exit_code=0))
    assert "it writes, reads and removes; durability none, as SAGA_STORE_DURABILITY asks for" in less


def test_a_missing_bucket_is_reported_in_time(
    saga: Call, on_couchbase: Pottery, couchbase_mock: CouchbaseMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAGA_STORE", f"{couchbase_mock.address}/nowhere")
    began_s = CLOCK.monotonic_s()
    [missing] = wrong(found_by(saga, on_couchbase.module, exit_code=2))
    assert CLOCK.monotonic_s() - began_s < 15
    assert "'nowhere'" in missing


# -------------------------------------------------------------------- decided

POTTER = Declared(name="potter", state=None, retention=timedelta(days=30))
CUPS = TopicNeeds(topic=Topic("cups", 4, 7), readers=(POTTER,), writers=())
LETTERS = TopicNeeds(topic=Topic("potter.dead", 12, None), readers=(), writers=(POTTER,))
SOUND = TopicDescription(4, 7 * DAY_MS, 3, 3, {"min.insync.replicas": "2"}, frozenset({"read", "write"}))


def about(wanted: TopicNeeds, found: TopicDescription | None, replication: int = 3, in_sync: int = 2) -> list[str]:
    return [
        f"{each.severity} {each.what}"
        for each in findings.check_topic(wanted, found, findings.TopicRequirements(Copies(replication, in_sync)))
    ]


def test_a_sound_topic_has_no_findings() -> None:
    assert about(CUPS, SOUND) == []
    assert about(CUPS, TopicDescription(4, 7 * DAY_MS)) == []  # a log without replicas and without authentication


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (SOUND._replace(partitions=5), "error 5 partitions, but the contracts require 4"),
        (SOUND._replace(retention_ms=DAY_MS), "warning kept 1 day, but should be kept 7 days"),
        (SOUND._replace(in_sync=2), "warning only 2 of 3 replicas of a partition are up to date"),
        (SOUND._replace(settings={"min.insync.replicas": "1"}), "error min.insync.replicas is 1, but should be 2"),
        (SOUND._replace(settings={"min.insync.replicas": "3"}), "warning min.insync.replicas is 3, of 3 replicas"),
        (SOUND._replace(settings={"cleanup.policy": "delete,compact"}), "error cleanup.policy is delete,compact"),
        (SOUND._replace(settings={"retention.bytes": "1000"}), "error retention.bytes is 1000"),
        (
            SOUND._replace(settings={"unclean.leader.election.enable": "true"}),
            "error unclean leader election is on",
        ),
        (
            SOUND._replace(settings={"message.timestamp.type": "CreateTime"}),
            "warning message.timestamp.type is CreateTime",
        ),
        (
            SOUND._replace(settings={"max.message.bytes": "1000"}),
            "error max.message.bytes is 1000, but SAGA_RECORD_BYTES_MAX is 1000000",
        ),
        (SOUND._replace(may=frozenset({"write"})), "error this user may not read it, but potter must"),
    ],
)
def test_each_thing_that_is_wrong_with_a_topic_is_found_alone(found: TopicDescription, says: str) -> None:
    assert about(CUPS, found) == [says]


def test_a_topic_of_timers_has_to_be_dated_by_the_log() -> None:
    wakes = TopicNeeds(topic=Topic("potter.wake.1h", 4, 7), readers=(POTTER,), writers=(POTTER,))
    found = SOUND._replace(settings={"message.timestamp.type": "CreateTime"})
    assert about(wakes, found) == ["error message.timestamp.type is CreateTime"]
    assert about(wakes, SOUND._replace(settings={"message.timestamp.type": "LogAppendTime"})) == []


def test_a_missing_topic_is_reported_with_what_happens_without_it() -> None:
    [finding] = findings.check_topic(CUPS, None, findings.TopicRequirements())
    assert finding.severity == "error"
    assert finding.risk.startswith("no service that reads or writes it starts")
    [fine] = findings.check_topic(CUPS, None, findings.TopicRequirements(creates_topics=True))
    assert fine.severity == "ok"


def test_a_topic_accepts_records_of_the_size_in_the_settings() -> None:
    asked = findings.TopicRequirements(record_bytes_max=2_000_000)
    [finding] = findings.check_topic(CUPS, SOUND._replace(settings={"max.message.bytes": "1048588"}), asked)
    assert finding.what == "max.message.bytes is 1048588, but SAGA_RECORD_BYTES_MAX is 2000000"
    assert finding.remedy.endswith("max.message.bytes=2000000; or SAGA_RECORD_BYTES_MAX=1048588 everywhere")
    assert not list(findings.check_topic(CUPS, SOUND._replace(settings={"max.message.bytes": "2000000"}), asked))


def test_a_topic_kept_for_longer_than_sagas_are_remembered_is_reported() -> None:
    says = "but potter remembers a saga for 30 days only"
    assert about(_kept(60), SOUND._replace(retention_ms=60 * DAY_MS)) == [f"warning kept 60 days, {says}"]
    assert about(_kept(None), SOUND._replace(retention_ms=None)) == [f"warning kept for ever, {says}"]
    assert about(_kept(30), SOUND._replace(retention_ms=30 * DAY_MS)) == []


def _kept(days: float | None) -> TopicNeeds:
    return TopicNeeds(topic=Topic("cups", 4, days), readers=(POTTER,), writers=())


def test_dead_letters_that_vanish_are_an_error_and_need_no_reader() -> None:
    letters = TopicDescription(12, None, 3, 3, SOUND.settings, frozenset({"write"}))
    assert about(LETTERS, letters) == []
    assert about(LETTERS, letters._replace(retention_ms=DAY_MS)) == ["error kept 1 day, but should be kept for ever"]
    assert about(LETTERS, letters._replace(may=frozenset())) == ["error this user may not write it, but potter must"]


def test_fewer_replicas_are_a_warning_where_they_were_asked_for_by_name() -> None:
    one = SOUND._replace(replicas=1, in_sync=1, settings={"min.insync.replicas": "1"})
    assert all(each.startswith("warning") for each in about(CUPS, one, replication=1, in_sync=1))
    assert len(about(CUPS, one, replication=1, in_sync=1)) == 2
    assert about(CUPS, SOUND, replication=5) == ["warning 3 brokers have each record, but 5 should"]


def test_two_replicas_are_too_few() -> None:
    assert about(CUPS, SOUND._replace(replicas=2, in_sync=2)) == [
        "error 2 brokers have each record, but 3 should",
        "warning min.insync.replicas is 2, of 2 replicas",
    ]


@pytest.mark.parametrize(
    ("replicas", "least", "to_do"),
    [(3, 1, "kafka-configs"), (3, 3, "kafka-configs"), (1, 1, "first give"), (2, 1, "first give"), (2, 2, "give")],
)
def test_after_the_advised_change_publishing_works_while_a_broker_is_away(
    replicas: int, least: int, to_do: str
) -> None:
    found = SOUND._replace(replicas=replicas, in_sync=replicas, settings={"min.insync.replicas": str(least)})
    [remedy] = [
        each.remedy
        for each in findings.check_topic(CUPS, found, findings.TopicRequirements())
        if each.what.startswith("min.insync.replicas")
    ]
    assert remedy.startswith(to_do)
    assert remedy.endswith("to 3" if to_do == "give" else "min.insync.replicas=2")


def test_topics_of_different_numbers_of_partitions_are_reported() -> None:
    reads = frozenset({"cups", "mugs"})
    same = {"cups": SOUND, "mugs": SOUND, "other": SOUND._replace(partitions=9)}
    assert list(findings.check_partitions(POTTER, same, reads)) == []
    [finding] = findings.check_partitions(POTTER, {**same, "mugs": SOUND._replace(partitions=5)}, reads)
    assert "cups 4, mugs 5" in finding.what


def test_positions_outside_the_log_are_errors() -> None:
    def position_findings(position: int | None) -> list[str]:
        places = {Partition("cups", 1): PartitionState(OffsetBounds(10, 20), position)}
        return [f"{each.severity} {each.what}" for each in findings.check_positions(POTTER, places)]

    assert position_findings(None) == position_findings(10) == position_findings(20) == []
    assert position_findings(7) == ["error 3 records of cups/1 were removed before they were handled"]
    assert position_findings(21) == ["error its position in cups/1 is 21, but the log ends at 20"]


@pytest.mark.parametrize(
    ("away", "says"),
    [
        (InactiveGroup("potter", DAY_MS - 1, 7, False), None),
        (InactiveGroup("potter", 2 * DAY_MS, 0, False), None),
        (
            InactiveGroup("potter", 2 * DAY_MS, 1, False),
            "these records stay beyond the retention of their topics, and the file grows",
        ),
        (
            InactiveGroup("potter", 31 * DAY_MS, 7, True),
            "records past their retention are removed, although it has not handled them",
        ),
    ],
)
def test_a_group_that_is_away_is_named_with_what_it_has_not_handled(away: InactiveGroup, says: str | None) -> None:
    found = list(findings.check_inactive_group(away))
    assert [each.severity for each in found] == ([] if says is None else ["warning"])
    for each in found:
        assert (each.about, each.remedy) == (
            "group potter",
            "start it; if it is gone for good: saga offsets delete potter",
        )
        assert says is not None
        assert each.risk.startswith(says)


def test_brokers_that_forget_offsets_too_soon_are_reported() -> None:
    day = {"offsets.retention.minutes": "1440"}
    assert list(findings.check_server("1", day, DAY_MS)) == []
    assert len(list(findings.check_server("1", day, DAY_MS + 1))) == 1
    [finding] = findings.check_server("1", day, None)
    assert finding.remedy == "set offsets.retention.minutes=2147483647 in its configuration"
    assert list(findings.check_server("1", {"offsets.retention.minutes": "2147483647"}, None)) == []
    assert list(findings.check_server("1", {}, 7 * DAY_MS)) == []


def test_the_clock_of_a_couchbase_is_in_the_version_of_a_document() -> None:
    now_ms = 1_795_270_000_123

    def store_clock_severities(cas: int) -> list[str]:
        server_ms = COUCHBASE.version_time_ms(cas)
        return [each.severity for each in findings.check_store_clock("store", server_ms, now_ms - 5, now_ms + 5)]

    assert store_clock_severities(now_ms * 1_000_000 + 999_999) == ["ok"]
    assert store_clock_severities((now_ms + 10_000) * 1_000_000) == ["warning"]
    assert store_clock_severities((now_ms - 90_000) * 1_000_000) == ["error"]
    assert store_clock_severities(5) == []  # a version that is a plain number, as that of CouchbaseMock
    assert (
        list(findings.check_store_clock("store", None, now_ms - 5, now_ms + 5)) == []
    )  # of a store that tells no time


@pytest.mark.parametrize(
    ("ahead_ms", "severity", "says"),
    [
        (2_000, "ok", "agrees with this machine"),
        (-2_000, "ok", "agrees with this machine"),
        (2_001, "warning", "ahead of"),
        (-60_000, "warning", "1 minute behind"),
        (60_001, "error", "ahead of"),
        (-86_400_000, "error", "1 day behind"),
    ],
)
def test_clocks_that_differ_are_reported(ahead_ms: int, severity: str, says: str) -> None:
    finding = findings.report_clock("broker", ahead_ms)
    assert finding.severity == severity
    assert says in finding.what


def test_durability_that_was_asked_for_is_fine() -> None:
    assert COUCHBASE.report_probe(Settings(), "store").severity == "ok"
    none = Settings(options=(CouchbaseOptions(store_durability="none"),))
    assert COUCHBASE.report_probe(none, "store").severity == "warning"


def test_the_doctor_says_where_it_did_not_ask_whether_a_bucket_evicts() -> None:
    for durability in ("majority", "none"):
        options = (CouchbaseOptions(store_durability=durability),)
        plain, tls = [Settings(store=f"{scheme}://db/shop", options=options) for scheme in ("couchbase", "couchbases")]
        assert "evicts was not asked" in COUCHBASE.report_probe(plain, "store").what
        assert "evicts" not in COUCHBASE.report_probe(tls, "store").what


def test_hidden_broker_settings_give_no_finding() -> None:
    hidden = SOUND._replace(retention_ms=None, settings={}, hidden=True)
    assert about(CUPS, hidden) == ["warning this user may not see its settings"]


def test_the_topic_of_transition_events_is_checked_if_they_are_published(
    saga: Call, embedded_pottery: Pottery, monkeypatch: pytest.MonkeyPatch
) -> None:
    saga("topics", "apply", embedded_pottery.module)

    def about() -> list[tuple[str, str]]:
        found = json.loads(saga("doctor", embedded_pottery.module, "--json").stdout)["findings"]
        return [(each["severity"], each["what"]) for each in found if each["about"] == "saga.transitions"]

    assert about() == [("ok", "as the contracts require")]
    monkeypatch.setenv("SAGA_TRANSITIONS_DAYS", "30")
    assert about() == [("warning", "kept 7 days, but should be kept 30 days")]
    monkeypatch.setenv("SAGA_TRANSITIONS", "off")
    assert about() == []
