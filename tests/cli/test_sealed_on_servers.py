"""Sealed values on real servers, of a subject who is forgotten then: what is left of her in a log and in a store."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from saga.contracts.encryption import decrypt_fields
from saga.contracts.library import Library
from saga.encryption.key_folder import KeyFolder
from saga.encryption.sensitive_fields import find_key_names
from saga.messaging.names import ARCHIVES, PROGRESS
from saga.progress.document import progress_key
from saga.progress.overflow import claim_key
from saga.testing.servers.couchbase import CouchbaseMock
from tests.cli.conftest import Call
from tests.cli.pottery_service import CLOCK, Pottery, the_broker
from tests.cli.test_dead import until
from tests.cli.test_each_boundary import on_couchbase, the_store
from tests.cli.test_keys import WHO
from tests.cli.test_missing_topics import running
from tests.cli.test_rebuild import handled_for_good
from tests.encryption.readable import can_be_read

LARGE = 200_000
"""Characters of a result that does not go into the progress."""
CLAIM = re.compile(rb'"claim":"([^"]+)"')
SOURCE = """
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from saga import Event, Saga, Service, sensitive, upcast


@dataclass(frozen=True, kw_only=True, slots=True)
class CupOrderedV1(Event):
    __contract__: ClassVar[str] = "{topic}/CupOrdered.v1"
    cup_id: str
    customer_id: str
    name: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CupOrdered(Event):
    __contract__: ClassVar[str] = "{topic}/CupOrdered.v2"
    cup_id: str
    customer_id: str
    inscription: str = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class CupMade(Event):
    __contract__: ClassVar[str] = "{made}/CupMade.v1"
    cup_id: str
    customer_id: str
    name: str = field(repr=False)


@dataclass(frozen=True)
class Kept:
    name: Annotated[str, sensitive] = ""


@upcast(CupOrdered, 1)
def older(order: CupOrderedV1) -> CupOrdered:
    return CupOrdered(cup_id=order.cup_id, customer_id=order.customer_id, inscription="for " + order.name)


async def drawn(inscription: str) -> Annotated[str, sensitive]:
    return inscription * ({large} // len(inscription))


potter = Service("{service}", state=Kept)


@potter.handler
async def make(ordered: CupOrdered, saga: Saga[Kept]) -> CupMade:
    drawing = await saga.step(drawn, ordered.inscription)
    saga.state = Kept(name=drawing[:20])
    return CupMade(cup_id=ordered.cup_id, customer_id=ordered.customer_id, name=drawing[:20])
"""


@pytest.fixture
def secret() -> str:
    """A name that is nowhere else on servers that tests share."""
    return f"Ada-{os.getpid()}-{os.urandom(6).hex()}"


@pytest.fixture
def potter(
    kafka_pottery: Pottery, couchbase_mock: CouchbaseMock, monkeypatch: pytest.MonkeyPatch, saga: Call
) -> Pottery:
    pottery = kafka_pottery
    on_couchbase(pottery, couchbase_mock, monkeypatch)
    monkeypatch.setenv("SAGA_KEYS", str(pottery.folder / "keys"))
    assert saga("topics", "apply", pottery.module).exit_code == 0
    agree(pottery, pottery.topic, "CupOrdered.v1", "name", owner="shop", produced_by="external", starts=True)
    agree(pottery, pottery.made, "CupMade.v1", "name", owner=pottery.service)
    pottery.declare(30)  # from now on these contracts are in force
    assert saga("keys", "new", *WHO).exit_code == 0
    return pottery


def agree(pottery: Pottery, topic: str, version: str, private: str, **terms: object) -> None:
    """Write what an event is, with one sensitive field."""
    names = [("cup_id", {}), ("customer_id", {}), (private, {"sensitive": True})]
    fields = [{"name": name, "type": "string", "doc": "It.", **marks} for name, marks in names]
    name = version.partition(".")[0]
    schema = {"type": "record", "name": name, "doc": "A cup.", "topic": topic, "key": "cup_id", **terms}
    path = pottery.folder / "contracts" / topic / f"{version}.avsc"
    path.write_text(json.dumps({**schema, "subject": "customer_id", "fields": fields}))


async def stored_values(service: str, cup: str) -> list[bytes]:
    """Documents of a saga: its progress, and the results that lie beside it."""
    async with the_store(service) as store:
        progress = await store.get(PROGRESS, progress_key(service, cup))
        if progress is None:
            return []
        claims = CLAIM.findall(progress.content)
        beside = [await store.get(ARCHIVES, claim_key(service, cup, claim.decode())) for claim in claims]
    return [progress.content, *(document.content for document in beside if document is not None)]


async def published_values(pottery: Pottery) -> list[bytes]:
    """Values of all records in the topics of the service."""
    async with the_broker() as broker:
        return [record.value or b"" for topic in pottery.topics async for record in broker.scan(topic)]


def test_a_customer_whom_nothing_can_be_read_of_once_she_is_forgotten(
    potter: Pottery, saga: Call, secret: str, kafka_data: Path
) -> None:
    cup = {"cup_id": "cup-1", "customer_id": "customer-1", "name": secret}
    assert saga("publish", "CupOrdered", stdin=json.dumps(cup)).exit_code == 0
    agree(
        potter,
        potter.topic,
        "CupOrdered.v2",
        "inscription",
        owner="shop",
        produced_by="external",
        starts=True,
        upcasts=[1],
    )
    name = f"{potter.declare(30)}_kiln"
    source = SOURCE.format(topic=potter.topic, made=potter.made, service=potter.service, large=LARGE)
    (potter.folder / f"{name}.py").write_text(source)

    with running(name):
        until(lambda: len(asyncio.run(stored_values(potter.service, "cup-1"))) == 2)
        until(lambda: handled_for_good(potter.service, potter.topic) == 1)

    contents = [*asyncio.run(stored_values(potter.service, "cup-1")), *asyncio.run(published_values(potter))]
    files = [path.read_bytes() for path in kafka_data.glob(f"{potter.topic}*/*.log")]
    assert len([content for content in contents if b"sealed:1:" in content]) == 4, (
        "events, progress, and what is beside"
    )
    assert len([file for file in files if b"sealed:1:" in file]) == 2
    assert not can_be_read(secret.encode(), *contents, *files)
    assert len(next(content for content in contents if b'"drawn"' not in content and len(content) > LARGE)) > LARGE

    keys = KeyFolder(potter.folder / "keys", CLOCK)
    (name,) = find_key_names(*contents, *files)
    library = Library.load(Path(os.environ["SAGA_CONTRACTS"]))
    events = [content for content in contents if content.startswith(b"\xc3\x01")]

    def read() -> list[bytes]:
        key = asyncio.run(KeyFolder(keys.folder, CLOCK).get_key(name))
        return [decrypt_fields(value, library, "cup-1", {name: key}.__getitem__) for value in events]

    assert [secret.encode() in value for value in read()] == [True, False]
    assert b"for Ada-" in read()[1]
    assert saga("keys", "forget", "customer-1", *WHO).exit_code == 0
    assert [b"erased" in value for value in read()] == [True, True]
    assert [path for path in (keys.folder / "subjects").rglob("*.json") if b"wrapped" in path.read_bytes()] == []
