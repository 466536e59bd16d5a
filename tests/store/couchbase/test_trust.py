"""Trust of a client of Couchbase, and what it tells of its password to those it cannot know."""

import asyncio
import os
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from saga.errors import SagaError
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.store import CouchbaseStore
from saga.support.clock import SystemClock
from tests.broker.waiting import until
from tests.servers.listening import listening
from tests.servers.trusted_tls import impostor
from tests.store.couchbase.node import Node

PASSWORD = "s3cr3t-hunter2"
HEADER = ">BBHBBHIIQ"
HELLO, SASL_MECHANISMS, SASL_AUTH = 0x1F, 0x20, 0x21
REFUSED, UNKNOWN = 0x20, 0x81
CONNECTS = """
import asyncio, os, sys
from pathlib import Path
from saga.support.clock import SystemClock
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.store import CouchbaseStore

async def connect():
    store = CouchbaseStore(
        CouchbaseSettings(
            connection=sys.argv[1], bucket="b", username="ada", password=lambda: "x", durability="none",
            ca_file=Path(sys.argv[2]) if sys.argv[2] else None,
        ),
        clock=SystemClock(),
    )
    opening = asyncio.ensure_future(store.__aenter__())
    await asyncio.wait([opening], timeout=float(sys.argv[3]))
    os._exit(0)  # what the driver would wait for at its end is of no interest

asyncio.run(connect())
"""


def settings(connection: str) -> CouchbaseSettings:
    return CouchbaseSettings(
        connection=connection, bucket="b", username="ada", password=lambda: PASSWORD, durability="none"
    )


async def test_a_server_without_tls_that_asks_for_the_bare_password_does_not_get_it() -> None:
    """So a couchbase:// needs no consent: the driver proves that it knows the password (SCRAM), or gives up."""
    requests: list[tuple[int, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while header := await reader.read(24):
            _, code, key, *_, length, opaque, _ = struct.unpack(HEADER, header)
            body = await reader.readexactly(length)
            requests.append((code, body))
            answers = {HELLO: (0, body[key:]), SASL_MECHANISMS: (0, b"PLAIN"), SASL_AUTH: (REFUSED, b"")}
            status, answer = answers.get(code, (UNKNOWN, b""))
            writer.write(struct.pack(HEADER, 0x81, code, 0, 0, 0, status, len(answer), opaque, 0) + answer)

    async with listening(serve) as port:
        with pytest.raises(SagaError, match="refuses user 'ada'"):
            async with CouchbaseStore(settings(f"couchbase://127.0.0.1:{port}"), clock=SystemClock()):
                pass
    shown = [body for code, body in requests if code == SASL_AUTH]
    assert shown
    assert all(body.startswith(b"SCRAM-SHA") for body in shown)
    assert not any(PASSWORD.encode() in body for _, body in requests)


async def test_without_tls_the_driver_reports_no_telemetry_because_that_needs_the_bare_password() -> None:
    """Couchbase Server 8 takes reports of the driver about itself, over HTTP with the password in a header."""
    async with Node(password=PASSWORD).serving() as node:
        connects = replace(settings(f"couchbase://127.0.0.1:{node.port}"), bucket="shop")
        async with CouchbaseStore(connects, clock=SystemClock()) as store:
            await store.get("saga", "a")
            assert node.asked_of_management == []


async def test_an_authority_of_ones_own_is_the_only_one(tmp_path: Path) -> None:
    async with impostor(tmp_path) as found:
        for ca, is_trusted, tries_s in ((found.ours, False, "2"), (found.of_the_system, True, "60")):
            found.heard.clear()
            command = [sys.executable, "-c", CONNECTS, f"couchbases://127.0.0.1:{found.port}", str(ca), tries_s]
            process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL, env=os.environ)
            try:
                if is_trusted:
                    await until(lambda: found.heard)
                else:
                    assert await process.wait() == 0
                    assert not found.heard
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()
