"""The embedded broker keeps the promises of the port."""

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.broker.embedded.sums import row_sum
from saga.clock import SystemClock
from saga.messages import Partition, Record
from saga.testing.conformance.broker import BrokerConformance
from saga.testing.conformance.broker_suite import Connect, Remove
from saga.testing.conformance.unreadable_records import Damage


class TestEmbeddedBroker(BrokerConformance):
    @pytest.fixture(params=[b"\xff" * 8, b"\x91\x92\xa1\xff\xc4\x00", b"\x93", "text"])
    def damage(self, tmp_path: Path, request: pytest.FixtureRequest) -> Damage:
        """By another hand: headers that cannot be decoded. A page of the file that is damaged is an error of SQLite."""

        def damage(record: Record) -> Callable[[], None]:
            with sqlite3.connect(tmp_path / "broker.db", isolation_level=None) as shell:
                topic = "SELECT first_log FROM topics WHERE name = ?"
                ((first,),) = shell.execute(topic, (record.topic,)).fetchall()
                write = f"UPDATE log_{first + record.partition} SET headers = ? WHERE offset = ?"
                shell.execute(write, (request.param, record.offset))

            def mend() -> None:
                with sqlite3.connect(tmp_path / "broker.db", isolation_level=None) as shell:
                    shell.execute(write, (None, record.offset))
                shell.close()

            shell.close()
            return mend

        return damage

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
                    row = (offset, row_sum(first + number, offset), first + number)
                    file.execute("UPDATE logs SET oldest = ?, oldest_sum = ? WHERE id = ?", row)
            file.close()

        return removed
