"""Fixtures and hooks for all tests."""

from hypothesis import HealthCheck, settings

from tests.servers.fixtures import (
    couchbase_mock,
    kafka_address,
    kafka_data,
    pytest_terminal_summary,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
    server_jars,
)

__all__ = [
    "couchbase_mock",
    "kafka_address",
    "kafka_data",
    "pytest_terminal_summary",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
    "server_jars",
]

# A busy machine is no mistake of a test.
settings.register_profile("here", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")
