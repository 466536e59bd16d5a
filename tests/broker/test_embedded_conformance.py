"""The embedded broker keeps the promises of the port."""

from pathlib import Path

import pytest

from saga.broker.embedded import EmbeddedBroker
from saga.clock import SystemClock
from saga.testing.conformance.broker import BrokerConformance, Connect


class TestEmbeddedBroker(BrokerConformance):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda: EmbeddedBroker(tmp_path / "broker.db", clock=SystemClock())
