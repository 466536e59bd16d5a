"""Ids of the logs of topics: Kafka gives each topic one when it is created, and a topic of the same name another one.

A position counts in one log alone. Fetches and commits go by the names of topics, so a topic that is deleted and
created again looks the same in them: who has read to offset 50 goes on at offset 50 of the new log, past all that lies
before it. So each client looks at the ids now and then.
"""

from collections.abc import Collection, Mapping
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import IncompatibleBrokerVersion, NoBrokersAvailable
from aiokafka.protocol.api import Request

from saga.broker.kafka.client import FAILED
from saga.broker.kafka.requests import Ids
from saga.support.clock import Clock

LOOK_EVERY_S = 5.0
"""Pause between two looks at the ids of the topics that a client reads."""
UNKNOWN_THERE = (NotImplementedError, IncompatibleBrokerVersion)
"""Errors of brokers that do not know the request."""


async def ask_any_broker(request: Request, client: AIOKafkaClient) -> Any:
    """Ask the first broker that answers: one of them may be down. The answer's fields only aiokafka knows. Raises one
    of `FAILED`, or of `UNKNOWN_THERE`."""
    trouble: Exception = NoBrokersAvailable()
    for broker in client.cluster.brokers():
        try:
            return await client.send(broker.nodeId, request)
        except UNKNOWN_THERE:
            raise
        except FAILED as why:
            trouble = why
    raise trouble


async def log_ids(topics: Collection[str], client: AIOKafkaClient) -> Mapping[str, str]:
    """Ask for the ids of these topics; those that are not there, or hidden, are left out, and all of them by brokers
    before Kafka 2.8. Raises one of `FAILED`."""
    if not topics:
        return {}
    try:
        answer = await ask_any_broker(Ids(sorted(topics)), client)
    except UNKNOWN_THERE:
        return {}
    return {topic: id_ for code, topic, id_, *_ in answer.topics if code == 0 and id_}


class LogIds(dict[str, str]):
    """Ids of the logs that a client reads, by topic. An id that was replaced never comes back: a broker that has not
    heard of the new topic yet still tells the old id."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock, self._gone, self._look_s = clock, set[str](), 0.0

    async def learn(self, topics: Collection[str], client: AIOKafkaClient) -> list[str]:
        """Ask for the ids; return the topics whose log is another than the one that was known. Raises one of
        `FAILED`."""
        self._look_s = self._clock.monotonic_s() + LOOK_EVERY_S
        replaced = []
        for topic, id_ in (await log_ids(topics, client)).items():
            known = self.get(topic)
            if id_ == known or id_ in self._gone:
                continue
            if known is not None:
                self._gone.add(known)
                replaced.append(topic)
            self[topic] = id_
        return replaced

    def is_due(self) -> bool:
        """Return whether it is time to look at them again."""
        return self._clock.monotonic_s() >= self._look_s
