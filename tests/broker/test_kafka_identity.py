"""Members of different services and stores in one group on Kafka that did not see one another before they joined."""

import pytest
from msgspec.structs import replace

from saga.broker.kafka import client
from saga.broker.kafka.adapter import KafkaSettings
from saga.broker.kafka.administration import KafkaAdministration
from saga.broker.kafka.broker import KafkaBroker
from saga.broker.port import MemberIdentity, Subscription
from saga.errors import ConfigurationError
from saga.messages import Partition, Record, Topic
from saga.testing.conformance.broker_suite import RecordingListener, event
from tests.broker.waiting import CLOCK, until

OURS = MemberIdentity(service="payment", store="1", worker="here:1")
THEIRS = replace(OURS, store="2", worker="there:2")


async def test_a_member_that_joined_unseen_is_refused_before_it_reads_and_the_other_reports_it(
    kafka_settings: KafkaSettings, kafka_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if both had looked before either of them joined."""
    first, second = RecordingListener(), RecordingListener()
    async with KafkaAdministration(kafka_settings, clock=CLOCK) as one, KafkaBroker(kafka_settings, clock=CLOCK) as two:
        await one.ensure_topics([Topic(kafka_topic, 4)])
        async with one.join(Subscription(kafka_topic, [kafka_topic], identity=OURS), first) as ours:
            await until(lambda: len(first.has) == 4)
            assert (await one.describe_group(kafka_topic)).identities == {OURS}

            async def find_no_members(*_: object) -> list[MemberIdentity | None]:
                return []

            monkeypatch.setattr(client, "fetch_identities", find_no_members)
            async with two.join(Subscription(kafka_topic, [kafka_topic], identity=THEIRS), second) as theirs:
                with pytest.raises(ConfigurationError, match="belongs to another service or store"):
                    await theirs.poll([Partition(kafka_topic, n) for n in range(4)], records_max=1, timeout_s=20)
                assert not second.partitions_of("assigned")
                await until(
                    lambda: ours.disagreeing_members() == ("service 'payment' in process 'there:2' with store '2'",)
                )
                assert (await one.describe_group(kafka_topic)).identities == {OURS, THEIRS}
            await until(lambda: not ours.disagreeing_members() and len(first.has) == 4)
            await one.publish([event(kafka_topic, "k", "goes on")])
            records: list[Record] = []
            while not records:
                records = list(await ours.poll(list(first.has), records_max=10, timeout_s=1))
            assert [record.value for record in records] == [b"goes on"]
