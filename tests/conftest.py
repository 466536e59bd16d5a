"""Fixtures and hooks for all tests."""

from tests.servers.fixtures import (
    couchbase_mock,
    kafka_address,
    kafka_data,
    pytest_terminal_summary,
    pytest_xdist_make_scheduler,
    server_jars,
)

__all__ = [
    "couchbase_mock",
    "kafka_address",
    "kafka_data",
    "pytest_terminal_summary",
    "pytest_xdist_make_scheduler",
    "server_jars",
]
