"""A service of names that no other test has, so that it can use servers that tests share."""

import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from saga.broker.administration import Administration
from saga.broker.port import Subscription, partition_of
from saga.configuration.settings import Settings
from saga.messages import Outgoing, Partition, Topic
from saga.ops.sources import open_administration
from saga.support.clock import SystemClock
from saga.testing.conformance.broker_suite import RecordingListener
from tests.broker.waiting import until

CLOCK = SystemClock()
NUMBERS = itertools.count()
MODULE = """
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from saga import Event, Service


@dataclass(frozen=True, kw_only=True, slots=True)
class CupOrdered(Event):
    __contract__: ClassVar[str] = "{topic}/CupOrdered.v1"
    cup_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CupMade(Event):
    __contract__: ClassVar[str] = "{topic}-made/CupMade.v1"
    cup_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CupSold(Event):
    __contract__: ClassVar[str] = "{topic}-sold/CupSold.v1"
    cup_id: str


potter = Service("{service}", retention=timedelta(days={memory_days}))


@potter.handler
async def make(ordered: CupOrdered) -> CupMade:
    return CupMade(cup_id=ordered.cup_id)


@potter.handler
async def forget(sold: CupSold) -> None:
    return None
"""


@dataclass(frozen=True)
class Pottery:
    """One service that reads `topic` and `sold`, and writes `made`."""

    folder: Path
    module: str
    service: str
    topic: str

    @property
    def made(self) -> str:
        return f"{self.topic}-made"

    @property
    def sold(self) -> str:
        return f"{self.topic}-sold"

    @property
    def dead(self) -> str:
        return f"{self.service}.dead"

    @property
    def commands(self) -> str:
        return f"{self.service}.commands"

    @property
    def wakes(self) -> tuple[str, ...]:
        return tuple(f"{self.service}.wake.{tier}" for tier in ("now", "1m", "4m", "16m", "1h", "6h", "1d"))

    @property
    def topics(self) -> tuple[str, ...]:
        """All that the service reads or writes."""
        return self.topic, self.made, self.sold, self.dead, self.commands, *self.wakes

    def agree(self, topic: str, **terms: object) -> None:
        """Change what the contracts say of a topic."""
        (self.folder / "contracts" / topic / "topic.json").write_text(json.dumps(terms))

    def declare(self, memory_days: float) -> str:
        """The service as it is now, by contracts as they are now; the name of its module. Another one each time, and
        another folder of contracts: both are read once in the life of a process."""
        number = f"{os.getpid()}_{next(NUMBERS)}"
        contracts = shutil.copytree(self.folder / "contracts", self.folder / f"contracts_{number}")
        os.environ["SAGA_CONTRACTS"] = str(contracts)  # put back by who has set it for the test
        source = MODULE.format(topic=self.topic, service=self.service, memory_days=memory_days)
        (self.folder / f"potter_{number}.py").write_text(source)
        return f"potter_{number}"


def a_pottery(folder: Path, *, partitions: int = 2, memory_days: float = 30) -> Pottery:
    """With its contracts, in a folder that becomes the current one."""
    number = f"{os.getpid()}-{next(NUMBERS)}"
    pottery = Pottery(folder, "", f"potter-{number}", f"cups-{number}")
    for topic, name, terms in (
        (pottery.topic, "CupOrdered", {"owner": "shop", "produced_by": "external", "starts": True}),
        (pottery.made, "CupMade", {"owner": pottery.service}),
        (pottery.sold, "CupSold", {"owner": "shop", "produced_by": "external"}),
    ):
        schema = {
            "type": "record",
            "name": name,
            "doc": "A cup.",
            "topic": topic,
            "key": "cup_id",
            **terms,
            "fields": [{"name": "cup_id", "type": "string", "doc": "Which."}],
        }
        place = folder / "contracts" / topic
        place.mkdir(parents=True)
        (place / f"{name}.v1.avsc").write_text(json.dumps(schema))
        pottery.agree(topic, partitions=partitions, retention_days=7)
    return Pottery(folder, pottery.declare(memory_days), pottery.service, pottery.topic)


@asynccontextmanager
async def the_broker() -> AsyncIterator[Administration]:
    """The broker of the settings."""
    async with open_administration(Settings.from_environment(), CLOCK) as broker:
        yield broker


@asynccontextmanager
async def a_worker(pottery: Pottery, positions: Mapping[int, int]) -> AsyncIterator[None]:
    """A member of the service's group, which has everything of `topic` and has committed these positions."""
    async with the_broker() as broker:
        listener = RecordingListener()
        async with broker.join(Subscription(pottery.service, [pottery.topic]), listener) as membership:
            await until(lambda: listener.has)
            await membership.commit({Partition(pottery.topic, number): at for number, at in positions.items()})
            yield


async def handled(pottery: Pottery, positions: Mapping[int, int], *, each: int = 3, partitions: int = 2) -> None:
    """So many records in each partition of `topic`, of which the service has handled some."""
    async with the_broker() as broker:
        await broker.ensure_topics([Topic(pottery.topic, partitions)])
        wanted = dict.fromkeys(range(partitions), each)
        for n in itertools.count():
            key = f"cup-{n}".encode()
            number = partition_of(key, partitions)
            if wanted[number]:
                wanted[number] -= 1
                await broker.publish([Outgoing(pottery.topic, key, b"value", ())])
            if not any(wanted.values()):
                break
    async with a_worker(pottery, positions):
        pass
