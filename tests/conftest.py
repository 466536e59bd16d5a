"""Fixtures and hooks for all tests."""

from tests.servers.fixtures import (
    couchbase_mock,
    kafka_address,
    kafka_data,
    pytest_collection_modifyitems,
    pytest_terminal_summary,
    server_jars,
)

__all__ = [
    "couchbase_mock",
    "kafka_address",
    "kafka_data",
    "pytest_collection_modifyitems",
    "pytest_terminal_summary",
    "server_jars",
]
