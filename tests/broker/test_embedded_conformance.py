"""The embedded broker keeps the promises of the port."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from saga.broker.embedded.broker import EmbeddedBroker
from saga.messages import Record
from saga.support.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance, Damage
from saga.testing.conformance.broker_suite import Connect, Remove
from tests.broker.removal import removal_from


class TestEmbeddedBroker(BrokerConformance):
    within_s = 60.0

    @pytest.fixture(params=[b"\xff" * 8, b"\x91\x92\xa1\xff\xc4\x00", b"\x93", "text"])
    def damage(self, tmp_path: Path, request: pytest.FixtureRequest) -> Damage:
        """By another hand: headers that cannot be decoded. A damaged page of the file is an error of SQLite."""

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
        return removal_from(tmp_path / "broker.db")
