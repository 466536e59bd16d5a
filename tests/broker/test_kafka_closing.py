"""A publisher that is closed leaves nothing behind; for all of this no broker is needed."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from saga.broker.kafka import client, producing
from saga.broker.kafka.producing import Publisher
from saga.broker.kafka.settings import Access, KafkaSettings
from saga.errors import BrokerUnavailable
from saga.testing.conformance.listening import event
from tests.broker.waiting import CLOCK


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_publisher_that_is_closed_asks_for_no_topic_any_more(
    monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """Whoever published has been told long ago; the brokers do not say which topics they have."""
    asked = list[asyncio.Task[Any] | None]()

    async def silent(*_: object) -> None:
        asked.append(asyncio.current_task())
        await asyncio.get_running_loop().create_future()

    async def another(_: Publisher) -> object:
        return SimpleNamespace(client=None, _sender=SimpleNamespace(sender_task=None))

    async def ended(*_: object) -> None: ...

    monkeypatch.setattr(client, "partitions_of", silent)
    monkeypatch.setattr(client, "end_producer", ended)
    monkeypatch.setattr(producing, "hand_over", lambda *_: None)
    monkeypatch.setattr(Publisher, "_started", another)
    settings = KafkaSettings(servers=("127.0.0.1:9",), publish_s=0.02)
    publisher = Publisher(settings, Access(settings), CLOCK)
    await publisher.open()
    for _ in range(1 + replaced):  # each time another producer, and nobody else is asked for what the first one was
        with pytest.raises(BrokerUnavailable, match="not acknowledged"):
            await publisher.publish([event("orders", "k", "v")])
    await publisher.close()
    assert len(asked) == 1 + replaced
    assert all(task is not None and task.cancelled() for task in asked)
    assert asyncio.all_tasks() == {asyncio.current_task()}
