"""One Kafka, one CouchbaseMock and one schema registry for all processes of a test run: the first that wants it starts
it, and it ends with the last.

Each user of a server holds a shared lock on its file, which the system takes back however the process ends; the
server's leash waits for the lock to be free. So nothing is left over when a run is killed.
"""

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from saga.testing.servers.couchbase import CouchbaseMock, mock_answers
from saga.testing.servers.kafka import KafkaServer, kafka_answers
from tests.servers.registry import RegistryServer, registry_answers

T = TypeVar("T")


@contextmanager
def shared_kafka(folder: Path) -> Iterator[str]:
    """The address of the Kafka that all who name `folder` share."""

    def start(place: Path, users: Path) -> str:
        return KafkaServer.start(place, while_locked=users).address

    with _shared(folder, "kafka", start, kafka_answers) as address:
        yield address


@contextmanager
def shared_couchbase(folder: Path) -> Iterator[CouchbaseMock]:
    """The mock that all who name `folder` share: no faults in it, please, and keys of your own."""

    def start(place: Path, users: Path) -> tuple[str, str]:
        mock = CouchbaseMock.start(place, while_locked=users)
        return mock.http, mock.address

    with _shared(folder, "couchbase", start, lambda addresses: mock_answers(addresses[0])) as (http, address):
        yield CouchbaseMock(http, address, None)


@contextmanager
def shared_registry(folder: Path) -> Iterator[RegistryServer]:
    """The schema registry that all who name `folder` share: subjects of your own, please."""

    def start(place: Path, users: Path) -> str:
        return RegistryServer.start(place, while_locked=users).url

    with _shared(folder, "registry", start, registry_answers) as url:
        yield RegistryServer(url, None)


@contextmanager
def _shared(folder: Path, name: str, start: Callable[[Path, Path], T], answers: Callable[[T], bool]) -> Iterator[T]:
    folder.mkdir(parents=True, exist_ok=True)
    users, address_file = folder / f"{name}.users", folder / f"{name}.address"
    with users.open("ab") as using, (folder / f"{name}.starting").open("ab") as starting:
        fcntl.flock(using, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_EX)
        try:
            where: T | None = json.loads(address_file.read_text()) if address_file.exists() else None
            if where is None or not answers(where):
                place = folder / f"{name}-{len(list(folder.glob(f'{name}-*')))}"
                where = start(place, users)
                address_file.write_text(json.dumps(where))
        finally:
            fcntl.flock(starting, fcntl.LOCK_UN)
        yield where
