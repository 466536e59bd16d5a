"""Servers whose addresses are in environment variables, such as those of a CI service or a compose file."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from saga.errors import SagaError
from saga.testing.processes.servers import ServerAddresses
from saga.testing.servers.faultless import FaultlessServers

KAFKA, COUCHBASE = "SAGA_TEST_KAFKA", "SAGA_TEST_COUCHBASE"
BUCKET, USERNAME, PASSWORD = "SAGA_TEST_BUCKET", "SAGA_TEST_USERNAME", "SAGA_TEST_PASSWORD"


def find_given(environment: Mapping[str, str]) -> ServerAddresses | None:
    """Find the addresses of servers in an environment; `None` if it has none.

    >>> given = find_given({"SAGA_TEST_KAFKA": "kafka:9092", "SAGA_TEST_COUCHBASE": "couchbase://db"})
    >>> given.kafka, given.couchbase, given.bucket
    ('kafka:9092', 'couchbase://db', 'saga')

    Raises `SagaError` if only one of the two servers is given.
    """
    kafka, couchbase = environment.get(KAFKA, "").strip(), environment.get(COUCHBASE, "").strip()
    if not kafka and not couchbase:
        return None
    if not kafka or not couchbase:
        raise SagaError(f"{KAFKA} and {COUCHBASE} belong together: {KAFKA if couchbase else COUCHBASE} is not set")
    return ServerAddresses(
        kafka=kafka,
        couchbase=couchbase,
        bucket=environment.get(BUCKET) or "saga",
        username=environment.get(USERNAME) or "saga",
        password=environment.get(PASSWORD) or "secret",
        outlives_world=True,
    )


@contextmanager
def given_servers(folder: Path) -> Iterator[FaultlessServers]:
    """Provide the servers whose addresses are in the environment. Raises `SagaError` if there are none."""
    addresses = find_given(os.environ)
    if addresses is None:
        raise SagaError(f"{KAFKA} and {COUCHBASE} are not set")
    yield FaultlessServers(addresses)
