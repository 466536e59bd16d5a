"""A broker that makes no topics for services: what they lack is reported together, and in time."""

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.port import find_topic_problems
from saga.configuration import wiring
from saga.configuration.settings import Settings
from saga.engine.lifecycle import ServiceOptions
from saga.engine.prepared_service import topics_of
from saga.errors import BrokerUnavailable, ConfigurationError
from saga.support.clock import SystemClock
from services.order import order
from services.payment import payment

CLOCK = SystemClock()
SERVICES = [order.declared, payment.declared]


class Strict(EmbeddedBroker):
    """It leaves the making of topics to people, as brokers do that run on servers."""

    creates_topics = False


class Silent(Strict):
    """It is open, and then says nothing more."""

    async def count_partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        await asyncio.Event().wait()
        raise AssertionError("it is not set")


async def started(broker: EmbeddedBroker) -> None:
    """Start services, which fails."""
    async with broker:
        await wiring.serve_all(
            SERVICES,
            broker,
            {},
            ServiceOptions(
                clock=CLOCK,
                report=lambda _: None,
                limits=wiring.limits_of(Settings()),
                stop=asyncio.Event(),
                open_s=1.0,
            ),
            modules=["services.order", "services.payment"],
        )


async def test_topics_that_several_services_lack_are_reported_together_and_each_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await started(Strict(tmp_path / "broker.db", clock=CLOCK))
    wanted = {topic.name for declared in SERVICES for topic in topics_of(declared)}
    assert {problem.partition(",")[0] for problem in caught.value.problems} == {
        f"topic {name} is missing" for name in wanted
    }
    assert len(caught.value.problems) == len(wanted)
    assert "topic payment.dead is missing, or hidden from this user, who needs Write on it" in caught.value.problems
    assert caught.value.heading.endswith(": saga topics apply services.order services.payment")


async def test_topics_that_are_as_wanted_are_no_problem(tmp_path: Path) -> None:
    async with Strict(tmp_path / "broker.db", clock=CLOCK) as broker:
        topics = topics_of(payment.declared)
        await broker.ensure_topics([topics[0]._replace(partitions=5), *topics[1:]])
        assert await find_topic_problems(topics[1:], broker) == []
        assert await find_topic_problems(topics, broker) == [
            f"topic {topics[0].name} has 5 partitions, the contracts want {topics[0].partitions}"
        ]


async def test_a_broker_that_never_answers_once_it_is_open_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(BrokerUnavailable, match="see whether it runs"):
        await CLOCK.within(5, started(Silent(tmp_path / "broker.db", clock=CLOCK)))
