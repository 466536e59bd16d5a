"""Missing topics on Kafka: services and clients create none, and report in time which are missing and the command that
creates them."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from saga.broker.administration import TopicDescription
from tests.cli.conftest import ROOT, Call
from tests.cli.pottery_service import CLOCK, Pottery, the_broker
from tests.cli.slow_saga import SLOW_S

START_S_MAX = 15.0
WITHIN_S = 60.0
STOP_S_MAX = 60.0
A_CUP = json.dumps({"cup_id": "cup-1"})


def command(*args: str) -> list[str]:
    is_slow = args[0] == "run" and SLOW_S in os.environ
    return [sys.executable, "-m", "tests.cli.slow_saga" if is_slow else "saga.cli.main", *args]


def refused(*args: str, stdin: str = "") -> str:
    """Error of a command that cannot start. It must say it in time, with exit code 2."""
    ended = subprocess.run(
        command(*args), input=stdin, capture_output=True, text=True, timeout=START_S_MAX, check=False, env=environment()
    )
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.stderr


def environment() -> Mapping[str, str]:
    return {**os.environ, "SAGA_LOG": "json", **({"PYTHONPATH": str(ROOT)} if SLOW_S in os.environ else {})}


def found(*topics: str) -> Mapping[str, TopicDescription]:
    async def looked() -> Mapping[str, TopicDescription]:
        async with the_broker() as broker:
            return await broker.describe_topics(topics)

    return asyncio.run(looked())


class Running(subprocess.Popen[bytes]):
    """Process of `saga run`. Its output goes into a file: into a pipe that is not read it would, once that is
    full, wait for ever."""

    def __init__(self, module: str, log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            super().__init__(command("run", module), stderr=file, env=environment())

    def read_log(self) -> str:
        return self._log.read_text("utf-8", "replace")


@contextmanager
def running(module: str) -> Iterator[Running]:
    with TemporaryDirectory() as place:
        process = Running(module, Path(place) / "log")
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_a_service_names_all_topics_that_are_missing_and_makes_none(kafka_pottery: Pottery) -> None:
    topics = kafka_pottery.topics
    message = refused("run", kafka_pottery.module)
    assert f"saga topics apply {kafka_pottery.module}\n" in message
    assert [f"topic {topic} is missing" in message for topic in topics] == [True] * 12
    assert found(*topics) == {}


def test_a_service_names_the_topic_that_has_other_partitions(kafka_pottery: Pottery, saga: Call) -> None:
    assert saga("topics", "apply", kafka_pottery.module).exit_code == 0
    kafka_pottery.agree(kafka_pottery.made, partitions=5)
    module = kafka_pottery.declare(memory_days=30)
    message = refused("run", module)
    assert f"saga topics apply {module}\n" in message
    assert [line for line in message.splitlines() if "topic " in line] == [
        f"  - topic {kafka_pottery.made} has 2 partitions, the contracts want 5"
    ]
    assert found(kafka_pottery.made)[kafka_pottery.made].partitions == 2


def test_publishing_to_a_topic_that_is_missing_names_the_command_and_makes_none(kafka_pottery: Pottery) -> None:
    message = refused("publish", "CupOrdered", stdin=A_CUP)
    assert "nothing was published" in message
    assert "saga topics apply" in message
    assert f"topic {kafka_pottery.topic} is missing" in message
    assert found(kafka_pottery.topic) == {}


def test_once_the_topics_are_there_the_service_runs(kafka_pottery: Pottery, saga: Call) -> None:
    async def made() -> list[bytes]:
        async with the_broker() as broker:
            while not (keys := [record.key async for record in broker.scan(kafka_pottery.made)]):
                assert process.poll() is None, process.read_log()
                await CLOCK.sleep(0.1)
            return [key for key in keys if key is not None]

    assert saga("topics", "apply", kafka_pottery.module).exit_code == 0
    assert saga("publish", "CupOrdered", stdin=A_CUP).exit_code == 0
    with running(kafka_pottery.module) as process:
        assert asyncio.run(CLOCK.within(WITHIN_S, made())) == [b"cup-1"]
        process.terminate()
        assert process.wait(STOP_S_MAX) == 0


def test_with_the_embedded_broker_services_and_clients_make_what_they_miss(
    embedded_pottery: Pottery, saga: Call
) -> None:
    assert saga("publish", "CupOrdered", stdin=A_CUP).exit_code == 0
    topics = [embedded_pottery.topic, embedded_pottery.made, embedded_pottery.sold, embedded_pottery.dead]
    assert found(*topics).keys() == {embedded_pottery.topic}
    with running(embedded_pottery.module) as process:

        async def all_made() -> None:
            async with the_broker() as broker:
                while (await broker.describe_topics(topics)).keys() != set(topics):
                    assert process.poll() is None, process.read_log()
                    await CLOCK.sleep(0.05)

        asyncio.run(CLOCK.within(WITHIN_S, all_made()))
