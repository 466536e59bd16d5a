"""A CouchbaseMock for each module of tests, emptied before each test, and stores on it.

What it cannot do and a real server can, so that no test here shows it: durable writes, collections, range scans, users.
"""

import asyncio
import base64
import json
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import pytest

from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.store import CouchbaseStore
from saga.testing.servers.couchbase import BUCKET, CouchbaseMock
from tests.servers.connections import wait_until_left
from tests.store.conftest import SettableClock

Stores: TypeAlias = Callable[[], CouchbaseStore]

DESIGN = f"/{BUCKET}/_design/keys"
LEFT_S = 20.0
LIST = {"views": {"all": {"map": "function(doc, meta) { emit(meta.id, null) }"}}}


class ListedStore(CouchbaseStore):
    """With the list of keys from a view: the mock has views, and no range scans."""

    http: str

    async def _stored_keys(self, name: str, prefix: str) -> AsyncIterator[str]:
        answer = await asyncio.to_thread(asked, self.http, f"{DESIGN}/_view/all?stale=false")
        for row in json.loads(answer)["rows"]:
            if row["id"].startswith(prefix):
                yield row["id"]


def asked(http: str, path: str, *, method: str = "GET", body: object = None) -> bytes:
    """Answer of the mock over HTTP."""
    request = urllib.request.Request(http + path, method=method)
    request.add_header("Authorization", "Basic " + base64.b64encode(b"Administrator:password").decode())
    request.add_header("Content-Type", "application/json")
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(request, data, timeout=10) as answer:
        content: bytes = answer.read()
    return content


def settings_for(mock: CouchbaseMock) -> CouchbaseSettings:
    return CouchbaseSettings(
        connection=mock.address, bucket=BUCKET, username="payment", password=lambda: "secret", durability="none"
    )


@pytest.fixture(scope="module")
def mock(server_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CouchbaseMock]:
    """One of this module's own: its time is moved, and it is frozen."""
    mock = CouchbaseMock.start(tmp_path_factory.mktemp("couchbase"))
    try:
        asked(mock.http, DESIGN, method="PUT", body=LIST)
        yield mock
    finally:
        mock.stop()


@pytest.fixture
def settings(mock: CouchbaseMock) -> CouchbaseSettings:
    """Settings of the mock, emptied once no client can write into it any more.

    A write that earlier tests gave up waiting for, such as while it was frozen, may still be under way: the mock reads
    24 bytes of each connection at a time, and empties itself in another thread.
    """
    wait_until_left(mock, LEFT_S)
    asked(mock.http, f"/pools/default/buckets/{BUCKET}/controller/doFlush", method="POST")
    return settings_for(mock)


@pytest.fixture
def stores(mock: CouchbaseMock, settings: CouchbaseSettings, clock: SettableClock) -> Stores:
    """Each call gives another store on the same place."""

    def store() -> CouchbaseStore:
        store = ListedStore(settings, clock=clock)
        store.http = mock.http
        return store

    return store


@pytest.fixture
def impatient(settings: CouchbaseSettings) -> CouchbaseSettings:
    """The same with short times, for what never answers."""
    return replace(settings, kv_s=1.0)
