"""The embedded broker keeps the promises of the port."""

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from saga.broker.embedded import EmbeddedBroker
from saga.clock import SystemClock
from saga.messages import Partition
from saga.testing.conformance.broker import BrokerConformance
from saga.testing.conformance.ground import Connect, Remove


class TestEmbeddedBroker(BrokerConformance):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda: EmbeddedBroker(tmp_path / "broker.db", clock=SystemClock())

    @pytest.fixture
    def remove(self, tmp_path: Path) -> Remove:
        """Retention itself spares what a known group has not committed; a person with a database tool does not."""

        async def removed(before: Mapping[Partition, int]) -> None:
            with sqlite3.connect(tmp_path / "broker.db") as file:
                for (topic, number), offset in before.items():
                    ((first,),) = file.execute("SELECT first_log FROM topics WHERE name = ?", (topic,)).fetchall()
                    file.execute(f"DELETE FROM log_{first + number} WHERE offset < ?", (offset,))
                    file.execute("UPDATE logs SET oldest = ? WHERE id = ?", (offset, first + number))
            file.close()

        return removed
