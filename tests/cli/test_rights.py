"""Tools and services as a user with few rights: errors name the missing right and how to grant it. And as a user who
has exactly the rights that `saga access kafka` prints."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from itertools import zip_longest
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from click.testing import Result

from saga import Client
from saga.broker.port import Broker
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.contracts import codec
from saga.contracts.library import binding_of
from saga.errors import ConfigurationError, SagaError
from saga.messages import Message
from saga.messaging.envelope import to_record
from saga.messaging.names import TRANSITIONS
from saga.ops import audit
from saga.ops.dead_letters import read_dead_letters
from saga.telemetry.events import Handled, Stuck, TelemetryEvent, Unavailable
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, handled, the_broker
from tests.cli.test_dead import until
from tests.cli.test_missing_topics import A_CUP, WITHIN_S, refused, running
from tests.servers.plain_clients import started
from tests.servers.rights import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CREATE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    PASSWORD,
    READ,
    TOPIC,
    USER,
    WRITE,
    Guarded,
    Right,
    guarded_kafka,
    rights_in,
)


@pytest.fixture(scope="module")
def guarded(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_kafka(tmp_path_factory.mktemp("kafka")) as guarded:
        yield guarded


def use_all_rights(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on as a user with all rights."""
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
        "published": Right(TOPIC, TRANSITIONS, WRITE),
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
    use_all_rights(guarded, monkeypatch)
    assert saga("topics", "apply", embedded_pottery.module).exit_code == 0
    as_potter(guarded, monkeypatch)
    return embedded_pottery


def test_a_user_with_too_few_rights_learns_what_is_missing(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    allowed = guarded.allow(
        Right(TOPIC, pottery.topic, READ),
        Right(TOPIC, pottery.sold, DESCRIBE),
        Right(TOPIC, pottery.made, WRITE),
        Right(TOPIC, pottery.dead, WRITE),
        Right(TOPIC, pottery.commands, READ),
        Right(GROUP, pottery.service, READ),
        Right(TOPIC, TRANSITIONS, WRITE),
        *(Right(TOPIC, wake, operation) for wake in pottery.wakes for operation in (READ, WRITE)),
    )
    asyncio.run(allowed)
    result = saga("doctor", pottery.module)
    assert result.exit_code == 1, result.output
    errors = [line for line in result.stdout.splitlines() if line.startswith("error")]
    assert errors == [f"error    {pottery.sold}: this user may not read it, but {pottery.service} must"]
    (unseen,) = [line for line in result.stdout.splitlines() if line.endswith(": this user may not see its settings")]
    assert unseen.startswith("warning  ")
    assert "DescribeConfigs on the cluster" in result.stdout
    assert "no record could be written as a probe" in result.stdout


def test_a_plan_is_not_made_of_what_may_not_be_seen(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    asyncio.run(guarded.allow(Right(TOPIC, pottery.topic, READ), Right(TOPIC, pottery.dead, WRITE)))
    result = saga("topics", "plan", pottery.module)
    assert result.exit_code == 2
    assert "DescribeConfigs" in result.stderr
    assert result.stdout == ""


def test_a_group_that_may_not_be_described_is_reported_as_such(saga: Call, guarded: Guarded, pottery: Pottery) -> None:
    asyncio.run(guarded.allow(Right(TOPIC, pottery.topic, READ), Right(TOPIC, pottery.dead, WRITE)))
    result = saga("offsets", "show", pottery.service)
    assert result.exit_code == 2
    assert "allowed Read on the group" in result.stderr


# -------------------------------------------------------------------- services


def test_a_service_that_may_too_little_ends_at_once_and_names_each_right(guarded: Guarded, pottery: Pottery) -> None:
    rights = needed(pottery)
    for name in ("topic", "made"):
        rights[name] = rights[name]._replace(operation=DESCRIBE)
    asyncio.run(guarded.allow(*rights.values()))
    message = refused("run", pottery.module)
    allow = "kafka-acls.sh --add --allow-principal User:... --operation"
    assert [line.strip() for line in message.splitlines() if "topic" in line] == [
        f"- topic {pottery.topic}: this user may not read it: {allow} Read --topic {pottery.topic}",
        f"- topic {pottery.made}: this user may not write it: {allow} Write --topic {pottery.made}",
    ]


def test_a_topic_that_is_hidden_from_a_service_is_named_with_the_right_it_takes(
    guarded: Guarded, pottery: Pottery
) -> None:
    rights = needed(pottery)
    asyncio.run(guarded.allow(*(rights[name] for name in ("topic", "dead", "commands", "group"))))
    message = refused("run", pottery.module)
    assert f"topic {pottery.made} is missing, or hidden from this user, who needs Write on it" in message
    assert f"topic {pottery.sold} is missing, or hidden from this user, who needs Read on it" in message


def test_a_service_that_may_not_be_in_its_group_ends_and_names_the_group(guarded: Guarded, pottery: Pottery) -> None:
    rights = needed(pottery)
    asyncio.run(guarded.allow(*(rights[name] for name in ("topic", "sold", "made", "dead", "commands"))))
    message = refused("run", pottery.module)
    assert f"group {pottery.service}: this user may not join it" in message
    assert f"--operation Read --group {pottery.service}" in message


def test_a_client_that_may_not_write_gets_that_error_and_publishes_nothing(guarded: Guarded, pottery: Pottery) -> None:
    asyncio.run(guarded.allow(*needed(pottery).values()))
    message = refused("publish", "CupOrdered", stdin=A_CUP)
    assert "nothing was published" in message
    assert f"--operation Write --topic {pottery.topic}" in message


@pytest.mark.slow
def test_a_service_whose_rights_are_revoked_waits_and_continues_when_it_has_them_again(
    guarded: Guarded, pottery: Pottery, saga: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = needed(pottery)
    taken = [rights[name] for name in ("topic", "made", "group")]
    asyncio.run(guarded.allow(*rights.values()))

    def order(cup: str) -> None:
        use_all_rights(guarded, monkeypatch)
        assert saga("publish", "CupOrdered", stdin=A_CUP.replace("cup-1", cup)).exit_code == 0

    def made() -> set[bytes | None]:
        """Cups that were reported: twice, perhaps, for one whose offset could not be committed is looked at again."""

        async def keys() -> set[bytes | None]:
            async with the_broker() as broker:
                return {record.key async for record in broker.scan(pottery.made)}

        return asyncio.run(keys())

    with running(pottery.module) as process:
        order("cup-1")
        until(lambda: made() == {b"cup-1"}, process.read_log)
        asyncio.run(guarded.take(*taken))
        order("cup-2")
        until(lambda: "allowed" in process.read_log(), process.read_log)
        assert pottery.service in next(line for line in process.read_log().splitlines() if "allowed" in line)
        assert process.poll() is None
        asyncio.run(guarded.allow(*taken))
        until(lambda: made() == {b"cup-1", b"cup-2"}, process.read_log)


# -------------------------------------------------------------------- what `saga access` prints

MODULE = """
from datetime import timedelta
from pathlib import Path

from saga import Later, Retry
from saga.errors import Permanent
from {module} import CupMade, CupOrdered, CupSold
from saga import Saga, Service

potter = Service("{service}")


@potter.handler(retry=Retry(attempts_max=1))
async def make(ordered: CupOrdered) -> CupMade:
    if ordered.cup_id == "broken" and not Path("mended").exists():
        raise Permanent("there is a crack in it")
    return CupMade(cup_id=ordered.cup_id)


@potter.handler
async def wrap(sold: CupSold, saga: Saga[None]) -> None | Later:
    return None if saga.elapsed else Later(after=timedelta(seconds=0.2))


@potter.deadline(within=timedelta(days=20))
async def tidy_up(ordered: CupOrdered) -> None:
    return None
"""


@pytest.fixture
def allowed(saga: Call, guarded: Guarded) -> Callable[..., Sequence[Right]]:
    """Gives the user the rights that `saga access kafka` prints, and takes all others away."""

    def allow(*args: str) -> Sequence[Right]:
        printed = saga("access", "kafka", *args, "--principal", f"User:{USER}")
        assert printed.exit_code == 0, printed.stderr
        heading, *commands = printed.stdout.splitlines()
        assert heading.startswith(f"# User:{USER}: ")
        rights = [right for command in commands for right in rights_in(command)]
        assert len(set(rights)) == len(rights)
        asyncio.run(guarded.take_all())
        asyncio.run(guarded.allow(*rights))
        return rights

    return allow


def of_potter(guarded: Guarded) -> Settings:
    """Settings of the user, of whomever the environment speaks."""
    return Settings.read(
        {
            "SAGA_BROKER": f"kafka://{guarded.address}",
            "SAGA_KAFKA_SASL": "plain",
            "SAGA_KAFKA_CLEARTEXT": "true",
            "SAGA_KAFKA_USERNAME": USER,
            "SAGA_KAFKA_PASSWORD": PASSWORD,
        }
    )


def test_a_service_with_exactly_the_printed_rights_runs_dead_letters_wakes_and_commands_included(
    saga: Call,
    guarded: Guarded,
    pottery: Pottery,
    allowed: Callable[..., Sequence[Right]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = f"waiting_{pottery.module}"
    Path(f"{module}.py").write_text(MODULE.format(module=pottery.module, service=pottery.service))
    allowed(module)
    moments: list[TelemetryEvent] = []

    async def until_done(*done: tuple[str, str]) -> None:
        """Return when handlers have ended so."""
        while set(done) - {entry[:2] for each in moments if isinstance(each, Handled) for entry in each.outcomes}:
            await CLOCK.sleep(0.05)

    async def run() -> None:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wiring.run(wiring.load_services([module]), of_potter(guarded), moments.append, stop))
            use_all_rights(guarded, monkeypatch)
            ordered = "CupOrdered --principal user:4711"
            for event, cup in ((ordered, "cup-1"), ("CupSold", "cup-1"), (ordered, "broken")):
                line = A_CUP.replace("cup-1", cup)
                published = await asyncio.to_thread(saga, "publish", *event.split(), stdin=line)
                assert published.exit_code == 0
            await CLOCK.within(WITHIN_S, until_done(("make", "handled"), ("make", "dead"), ("wrap", "handled")))
            await asyncio.to_thread(Path("mended").touch)
            who = ("--who", "ada", "--why", "mended")
            replayed = await asyncio.to_thread(saga, "dead", "replay", pottery.service, "--all", *who)
            assert replayed.exit_code == 0, replayed.output
            stop.set()

    asyncio.run(run())
    assert not [moment for moment in moments if isinstance(moment, Unavailable | Stuck)]
    began = {(each.type, each.principal) for each in moments if isinstance(each, Handled)}
    assert began >= {("CupOrdered", "user:4711"), ("CupSold", None)}


def test_for_each_printed_right_that_is_missing_the_service_does_not_start_and_names_it(
    guarded: Guarded, pottery: Pottery, allowed: Callable[..., Sequence[Right]]
) -> None:
    rights = allowed(pottery.module)
    assert set(rights) == set(needed(pottery).values())
    by_name: dict[str, list[Right]] = {}
    for right in rights:
        by_name.setdefault(right.name, []).append(right)

    async def problems(broker: Broker) -> Sequence[str]:
        try:
            await wiring.with_topics(
                wiring.load_services([pottery.module]), broker, [], CLOCK, 14, of_potter(guarded).transition_topic
            )
        except ConfigurationError as why:
            return why.problems
        return []

    async def wait_for_problems(broker: Broker, *words: str) -> None:
        """Return when there are as many problems as words, each with its word."""
        while [word in problem for word, problem in zip_longest(words, await problems(broker), fillvalue="")] != [
            True
        ] * len(words):
            await CLOCK.sleep(0.02)

    async def each() -> None:
        async with wiring.open_broker(None, CLOCK, of_potter(guarded)) as broker:
            for name, several in by_name.items():
                await guarded.take(*several)
                await CLOCK.within(
                    WITHIN_S, wait_for_problems(broker, f"--group {name}" if several[0].kind == GROUP else name)
                )
                await guarded.allow(*several)
                await CLOCK.within(WITHIN_S, wait_for_problems(broker))

    asyncio.run(each())


def ended(saga: Call, *args: str, code: int, word: str = "", stdin: str | None = None) -> Result:
    """Call a command until it ends with this code and says this: brokers hear of some rights a moment later."""
    deadline_s = CLOCK.monotonic_s() + WITHIN_S
    while True:
        result = saga(*args, stdin=stdin)
        if result.exit_code == code and word in result.output:
            return result
        assert CLOCK.monotonic_s() < deadline_s, f"{result.exit_code}: {result.output}"


NO_PRODUCER = "Write on the topics that it publishes to"
"""Words about a user who may write nowhere: Kafka gives him no producer."""


def right_on(rights: Sequence[Right], name: str, operation: int) -> Right:
    """The one of these rights."""
    (found,) = [right for right in rights if (right.name, right.operation) == (name, operation)]
    return found


def test_a_client_with_exactly_the_printed_rights_publishes_and_without_them_gets_an_error(
    saga: Call, guarded: Guarded, pottery: Pottery, allowed: Callable[..., Sequence[Right]]
) -> None:
    rights = allowed(pottery.module, "--for", "client", "--event", "CupOrdered")
    assert rights == [Right(TOPIC, pottery.topic, WRITE)]
    assert saga("publish", "CupOrdered", stdin=A_CUP).exit_code == 0
    assert pottery.sold in saga("publish", "CupSold", stdin=A_CUP).output
    asyncio.run(guarded.take(*rights))
    ended(saga, "publish", "CupOrdered", stdin=A_CUP, code=2, word=NO_PRODUCER)


def test_a_client_with_exactly_the_printed_rights_asks_and_listens_and_without_them_gets_an_error(
    guarded: Guarded, pottery: Pottery, allowed: Callable[..., Sequence[Right]], monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = pottery.folder / "contracts" / pottery.made / "CupMade.v1.avsc"
    contract.write_text(
        contract.read_text().replace('"owner"', '"outcome": "success", "consumed_by": "external", "owner"')
    )
    module = pottery.declare(memory_days=30)
    made = import_module(module).CupMade(cup_id="cup-1")
    message = Message(
        id="CupMade-1", type="CupMade", schema=made.__contract__, saga="cup-1", source=pottery.service,
        time="2026-01-01T00:00:00.000Z", value=codec.encode(made),
    )  # fmt: skip

    async def publish_message() -> None:
        async with the_broker() as broker:
            await broker.publish([to_record(message, binding_of(type(made)).contract)])

    async def heard(group: str | None = None) -> object:
        async with Client() as client:
            if group is None:
                return await client.outcome("cup-1", type(made), within=timedelta(0))
            async with client.listen(type(made), group=group) as events:
                return await CLOCK.within(WITHIN_S, anext(events))

    def refused_with(word: str, group: str | None = None) -> None:
        """Ask until it is refused: brokers hear of rights that are taken a moment later."""

        def is_refused() -> bool:
            try:
                asyncio.run(heard(group))
            except SagaError as why:
                return word in str(why)
            return False

        until(is_refused)

    use_all_rights(guarded, monkeypatch)
    asyncio.run(publish_message())
    as_potter(guarded, monkeypatch)
    rights = allowed(module, "--for", "client", "--event", "CupMade", "--group", "mailer")
    reads, joins = Right(TOPIC, pottery.made, READ), Right(GROUP, "client.mailer", READ)
    assert set(rights) == {reads, joins, Right(CLUSTER, "kafka-cluster", IDEMPOTENT_WRITE)}
    assert asyncio.run(heard()) == made
    assert asyncio.run(heard("mailer")) == made
    refused_with("client.other", "other")
    asyncio.run(guarded.take(reads))
    refused_with(pottery.made)


def test_an_operator_with_exactly_the_printed_rights_reads_and_commands_and_without_one_gets_an_error(
    saga: Call,
    guarded: Guarded,
    pottery: Pottery,
    allowed: Callable[..., Sequence[Right]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_all_rights(guarded, monkeypatch)
    asyncio.run(handled(pottery, {0: 1}, each=1))
    as_potter(guarded, monkeypatch)
    rights = allowed(pottery.module, "--for", "operator")
    flag = ("control", "flag", pottery.service, "glaze", "--who", "ada", "--why", "try", "--percent", "10")
    quickly = ("--within", "0", "--store", "sqlite:///none/{service}.db")
    show = ("offsets", "show", pottery.service)

    def trouble() -> str | None:
        return asyncio.run(read_dead_letters([pottery.service], of_potter(guarded), CLOCK)).problem

    shown = saga(*show)
    assert (shown.exit_code, pottery.topic in shown.stdout) == (0, True), shown.output
    sent = saga(*flag, *quickly)
    assert sent.exit_code == 1, sent.output  # the service does not run
    assert trouble() is None

    dead, commands, group = (
        right_on(rights, pottery.dead, READ),
        right_on(rights, pottery.commands, WRITE),
        right_on(rights, pottery.service, DESCRIBE),
    )

    def unaudited() -> Sequence[str]:
        return asyncio.run(audit.read_topic_records(pottery.service, of_potter(guarded), CLOCK)).wrong

    assert unaudited() == []
    asyncio.run(guarded.take(right_on(rights, pottery.commands, READ)))
    (why,) = unaudited()
    assert why.startswith("not all commands and moves of offsets could be read: ")
    assert pottery.commands in why
    asyncio.run(guarded.take(dead))
    assert f"topic {pottery.dead} is missing, or hidden from this user, who needs Read on it" == trouble()
    asyncio.run(guarded.take(right_on(rights, pottery.topic, DESCRIBE)))
    assert pottery.topic not in saga(*show).stdout, "Kafka keeps silent of the positions there"
    asyncio.run(guarded.take(group))
    ended(saga, *show, code=2, word="Read on the group")
    asyncio.run(guarded.take(commands))
    ended(saga, *flag, *quickly, code=2, word=NO_PRODUCER)


def test_an_administrator_with_exactly_the_printed_rights_makes_topics_and_moves_positions(
    saga: Call,
    guarded: Guarded,
    pottery: Pottery,
    allowed: Callable[..., Sequence[Right]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_all_rights(guarded, monkeypatch)
    asyncio.run(handled(pottery, {0: 1}, each=1))
    stranger = f"stranger-to-{pottery.service}"
    asyncio.run(handled(replace(pottery, service=stranger, topic=pottery.sold), {0: 1}, each=1))
    as_potter(guarded, monkeypatch)
    rights = allowed(pottery.module, "--for", "administrator")
    move = ["offsets", "reset", pottery.service, "--module", pottery.module, "--topic", pottery.topic]
    move += ["--to", "earliest", "--who", "ada", "--why", "again"]
    pottery.agree(pottery.sold, partitions=2, retention_days=3)
    changed = saga("topics", "apply", pottery.declare(memory_days=30))
    assert changed.exit_code == 0, changed.output
    pottery.agree(pottery.sold, partitions=4, retention_days=5)
    module = pottery.declare(memory_days=30)

    for operation, name, args, word in (
        (READ, pottery.service, move, "Read on the group"),
        (WRITE, pottery.dead, move, NO_PRODUCER),
        (READ, pottery.topic, move, pottery.topic),
        (ALTER_CONFIGS, pottery.sold, ("topics", "plan", module), "DescribeConfigs on these topics"),
    ):
        right = right_on(rights, name, operation)
        asyncio.run(guarded.take(right))
        ended(saga, *args, code=2, word=word)
        asyncio.run(guarded.allow(right))
    assert f"{stranger} has not handled 1 record" in saga("topics", "plan", module).stdout
    asyncio.run(guarded.take(right_on(rights, "*", DESCRIBE), right_on(rights, pottery.sold, ALTER)))
    ended(saga, "topics", "apply", module, code=2, word=pottery.sold)  # groups of others are not seen any more
    asyncio.run(guarded.allow(right_on(rights, pottery.sold, ALTER)))
    ended(saga, "topics", "apply", module, code=0, word="4 partitions")
    ended(saga, *move, code=0)


def test_without_the_right_to_create_a_topic_that_is_missing_it_is_named(
    saga: Call,
    guarded: Guarded,
    embedded_pottery: Pottery,
    allowed: Callable[..., Sequence[Right]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("REPLICATION", "MIN_INSYNC"):
        monkeypatch.setenv(f"SAGA_KAFKA_{name}", "1")
    as_potter(guarded, monkeypatch)
    rights = allowed(embedded_pottery.module, "--for", "administrator")
    planned = ended(saga, "topics", "plan", embedded_pottery.module, code=0)
    assert planned.stdout.count("create") == len(embedded_pottery.topics)
    asyncio.run(guarded.take(right_on(rights, embedded_pottery.made, CREATE)))
    ended(saga, "topics", "apply", embedded_pottery.module, code=2, word=embedded_pottery.made)


def test_the_doctor_with_exactly_the_printed_rights_sees_everything_and_reports_what_it_does_not(
    saga: Call, guarded: Guarded, pottery: Pottery, allowed: Callable[..., Sequence[Right]]
) -> None:
    rights = allowed(pottery.module, "--for", "doctor")
    unseen = ("may not", "cannot be seen", "no record could be written")

    def findings() -> str:
        return saga("doctor", pottery.module).stdout

    assert not [word for word in unseen if word in findings()]
    taken = (
        (DESCRIBE_CONFIGS, pottery.topic, f"{pottery.topic}: this user may not see its settings"),
        (DESCRIBE_CONFIGS, "kafka-cluster", "DescribeConfigs on the cluster"),
        (READ, "saga.doctor", "no record could be written as a probe"),
    )
    asyncio.run(guarded.take(*(right_on(rights, name, operation) for operation, name, _ in taken)))
    for *_, word in taken:
        ended(saga, "doctor", pottery.module, code=0, word=word)
    asyncio.run(guarded.allow(right_on(rights, "saga.doctor", READ)))
    asyncio.run(guarded.take(right_on(rights, "saga.doctor", WRITE)))
    ended(saga, "doctor", pottery.module, code=0, word="writing to saga.doctor and reading it: TopicAuthorization")


async def handle_a_cup(address: str, pottery: Pottery) -> None:
    """Leave what a service leaves that has handled a message and has a dead letter: an offset, and a record."""
    async with started(AIOKafkaProducer(bootstrap_servers=address)) as producer:
        at = await producer.send_and_wait(pottery.topic, b"a cup")
        await producer.send_and_wait(pottery.dead, b"of another saga")
    async with started(AIOKafkaConsumer(bootstrap_servers=address, group_id=pottery.service)) as consumer:
        place = TopicPartition(pottery.topic, at.partition)
        consumer.assign([place])
        await consumer.commit({place: at.offset + 1})


def test_the_doctor_finds_a_lost_store_with_exactly_the_printed_rights_or_says_what_it_may_not_read(
    saga: Call, guarded: Guarded, pottery: Pottery, allowed: Callable[..., Sequence[Right]]
) -> None:
    rights = allowed(pottery.module, "--for", "doctor")
    asyncio.run(handle_a_cup(guarded.kafka.address, pottery))
    ended(saga, "doctor", pottery.module, code=1, word="its store is empty, but its group has handled messages")
    asyncio.run(guarded.take(right_on(rights, pottery.dead, READ)))
    ended(saga, "doctor", pottery.module, code=0, word="its store and its log cannot be compared")
