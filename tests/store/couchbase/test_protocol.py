"""Requests to Couchbase, and answers that CouchbaseMock never gives: see `node`."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from saga.errors import Ambiguous, ConfigurationError, SagaError, StoreError, StoreUnavailable
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.store import CouchbaseStore, stored_key
from saga.store.port import Document
from tests.store.conftest import SettableClock
from tests.store.couchbase.node import WRITES, Node, Op, Status

MAJORITY, PERSIST_TO_MAJORITY = 1, 3
DAY_S = 86_400
IN_SCOPE = ["_default._default", "payment.saga", "payment.saga-archive", "payment.stock"]


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with Node().serving() as node:
        yield node


@pytest.fixture
def settings(node: Node) -> CouchbaseSettings:
    return CouchbaseSettings(
        connection=f"couchbase://127.0.0.1:{node.port}",
        bucket="shop",
        username="payment",
        password=lambda: "secret",
        kv_s=1.0,
        durable_s=2.0,
    )


async def refusal(settings: CouchbaseSettings, clock: SettableClock) -> SagaError:
    began_s = time.monotonic()
    with pytest.raises(SagaError) as refused:
        await CouchbaseStore(settings, clock=clock).__aenter__()
    assert time.monotonic() - began_s < 15
    assert "secret" not in str(refused.value)
    return refused.value


# -------------------------------------------------------------------- what is sent


async def test_each_write_is_as_durable_as_is_set(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    async with CouchbaseStore(replace(settings, durability="persistToMajority"), clock=clock) as store:
        cas = await store.insert("saga", "a", b"0")
        cas = await store.replace("saga", "a", b"1", cas=cas)
        cas = await store.replace("saga", "a", b"2", cas=cas, keep_expiry=True)
        await store.remove("saga", "a", cas=cas)
    sent = node.of_documents(*WRITES)
    assert [asked.op for asked in sent] == [Op.INSERT, Op.REPLACE, Op.REPLACE, Op.REMOVE]
    assert {asked.durability for asked in sent} == {PERSIST_TO_MAJORITY}
    assert {asked.durability_ms for asked in sent} == {1800}  # nine tenths of what we wait: the server gives up first


async def test_a_durable_write_is_the_default(node: Node, settings: CouchbaseSettings, clock: SettableClock) -> None:
    async with CouchbaseStore(settings, clock=clock) as store:
        await store.insert("saga", "a", b"0")
    assert {asked.durability for asked in node.asked if asked.op in WRITES} == {MAJORITY}  # the probes too


async def test_expiry_is_stated_on_each_write(node: Node, settings: CouchbaseSettings, clock: SettableClock) -> None:
    async with CouchbaseStore(settings, clock=clock) as store:
        cas = await store.insert("saga", "a", b"0", expiry_s=1.2)
        cas = await store.replace("saga", "a", b"1", cas=cas)
        cas = await store.replace("saga", "a", b"1", cas=cas, expiry_s=29 * DAY_S)
        cas = await store.replace("saga", "a", b"1", cas=cas, keep_expiry=True)
        await store.replace("saga", "a", b"1", cas=cas, expiry_s=30 * DAY_S)
    *sent, last = node.of_documents(*WRITES)
    expiries = [(asked.expiry, asked.keeps_expiry) for asked in sent]
    assert expiries == [(2, False), (0, False), (29 * DAY_S, False), (0, True)]
    assert abs(last.expiry - (clock.now_ms() // 1000 + 30 * DAY_S)) < 5  # from 30 days on as a point in time


async def test_content_is_sent_as_it_is(node: Node, settings: CouchbaseSettings, clock: SettableClock) -> None:
    content = b' {"a" : "\xc3\xbc"}\n'
    async with CouchbaseStore(settings, clock=clock) as store:
        cas = await store.insert("saga", "a", content)
        assert await store.get("saga", "a") == Document(content, cas)
    assert [asked.content for asked in node.of_documents(Op.INSERT)] == [content]
    assert [asked.key for asked in node.of_documents(Op.INSERT)] == ["saga::a"]


@pytest.mark.parametrize("form", [0, 1, 0x01_00_00_00, 0x03_00_00_00, 0x04_00_00_00, 0x7F_00_00_00])
async def test_a_document_in_another_format_is_returned_unchanged_and_is_no_outage(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, form: int
) -> None:
    """Else one such document would make the whole service look as if its store were away."""
    async with CouchbaseStore(settings, clock=clock) as store:
        for key in ("a", "b"):
            cas = await store.insert("saga", key, b"0")
        place = next(place for place in node.documents if place[1].endswith("a"))
        node.documents[place], node.forms[place] = (b"\xff\x00", cas), form
        assert await store.get("saga", "a") == Document(b"\xff\x00", cas)
        assert [(key, document.content) async for key, document in store.scan("saga")] == [
            ("a", b"\xff\x00"),
            ("b", b"0"),
        ]


async def test_a_long_key_under_which_something_else_lies_is_no_outage_and_ends_no_scan(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    long = "x" * 300
    async with CouchbaseStore(settings, clock=clock) as store:
        for key in ("a", long):
            await store.insert("saga", key, b"0")
        place = next(place for place in node.documents if "xxx" in place[1])
        node.documents[place] = b"\xff", node.documents[place][1]
        with pytest.raises(StoreError, match="belongs to another key") as refused:
            await store.get("saga", long)
        assert not isinstance(refused.value, StoreUnavailable)
        found = {key: document.content async for key, document in store.scan("saga")}
    assert found == {"a": b"0", stored_key(f"saga::{long}").removeprefix("saga::"): b"\xff"}


async def test_each_store_operation_sends_one_request(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    async with CouchbaseStore(settings, clock=clock) as store:
        node.asked.clear()
        cas = await store.insert("stock", "a", b"0")
        await store.get("stock", "a")
        await store.replace("stock", "a", b"1", cas=cas)
    assert [asked.op for asked in node.asked] == [Op.INSERT, Op.GET, Op.REPLACE]


# -------------------------------------------------------------------- collections


async def test_in_a_scope_each_collection_is_one_of_couchbase(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    node.collections = IN_SCOPE
    async with CouchbaseStore(replace(settings, scope="payment"), clock=clock) as store:
        for collection in ("saga", "saga-archive", "stock"):
            await store.insert(collection, "a", b"0")
    assert [(asked.collection, asked.key) for asked in node.of_documents(Op.INSERT)] == [
        ("payment.saga", "a"),
        ("payment.saga-archive", "a"),
        ("payment.stock", "a"),
    ]


async def test_in_a_collection_that_is_named_all_are_together(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    node.collections = IN_SCOPE
    async with CouchbaseStore(replace(settings, scope="payment", collection="saga"), clock=clock) as store:
        await store.insert("stock", "a", b"0")
    assert [(asked.collection, asked.key) for asked in node.of_documents(Op.INSERT)] == [("payment.saga", "stock::a")]


@pytest.mark.parametrize("missing", ["payment.saga", "payment.saga-archive"])
async def test_a_missing_collection_is_reported_at_the_start_with_the_command_that_makes_it(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, missing: str
) -> None:
    node.collections = [name for name in IN_SCOPE if name != missing]
    error = await refusal(replace(settings, scope="payment"), clock)
    assert isinstance(error, ConfigurationError)
    assert f"--bucket shop --create-collection {missing}`" in str(error)


async def test_a_collection_that_is_missing_later_is_reported_and_nothing_was_written(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    node.collections = IN_SCOPE[:-1]
    async with CouchbaseStore(replace(settings, scope="payment"), clock=clock) as store:
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match=r"--create-collection payment\.stock`"):
                await store.insert("stock", "a", b"0")
        node.collections.append("payment.stock")
        await store.insert("stock", "a", b"0")


# -------------------------------------------------------------------- refusals


async def test_a_wrong_password_is_reported(node: Node, settings: CouchbaseSettings, clock: SettableClock) -> None:
    error = await refusal(replace(settings, password=lambda: "secretly wrong"), clock)
    assert isinstance(error, ConfigurationError)
    assert "refuses user 'payment' with this password" in str(error)


@pytest.mark.parametrize(("op", "role"), [(Op.GET, "data_reader"), (Op.INSERT, "data_writer")])
async def test_a_missing_role_is_reported(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, op: Op, role: str
) -> None:
    node.answers[op] = Status.NO_ACCESS
    error = await refusal(settings, clock)
    assert isinstance(error, ConfigurationError)
    assert f"give the user the role {role}" in str(error)


@pytest.mark.parametrize("status", [Status.DURABILITY_IMPOSSIBLE, Status.DURABILITY_INVALID])
async def test_durability_that_the_nodes_cannot_give_is_reported_with_the_name_of_the_setting(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, status: Status
) -> None:
    node.durable_answer = status
    error = await refusal(settings, clock)
    assert isinstance(error, ConfigurationError)
    assert "SAGA_STORE_DURABILITY=none" in str(error)
    assert not node.documents


async def test_durability_that_is_impossible_later_refuses_writes_until_nodes_are_back(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    async with CouchbaseStore(settings, clock=clock) as store:
        node.durable_answer = Status.DURABILITY_IMPOSSIBLE
        with pytest.raises(StoreUnavailable, match=r"too few nodes up for a durable write .* nothing was written"):
            await store.insert("saga", "a", b"0")
        node.durable_answer = None
        await store.insert("saga", "a", b"0")


async def test_a_durable_write_whose_end_the_server_does_not_know_is_ambiguous(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    async with CouchbaseStore(settings, clock=clock) as store:
        node.durable_answer = Status.WRITE_AMBIGUOUS
        with pytest.raises(Ambiguous, match="does not know whether enough nodes have the write"):
            await store.insert("saga", "a", b"0")


@pytest.mark.parametrize("status", [Status.LOCKED, Status.TEMPORARY_FAILURE, Status.WRITE_IN_PROGRESS])
async def test_a_write_that_is_refused_until_time_runs_out_does_not_claim_to_know(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, status: Status
) -> None:
    """The SDK raises another class for each, all with the code of a timeout."""
    async with CouchbaseStore(settings, clock=clock) as store:
        cas = await store.insert("saga", "a", b"0")
        node.answers[Op.REPLACE] = status
        began_s = time.monotonic()
        with pytest.raises((Ambiguous, StoreUnavailable)) as raised:
            await store.replace("saga", "a", b"1", cas=cas)
        assert time.monotonic() - began_s < settings.durable_s + 6
        assert isinstance(raised.value, Ambiguous) == (" 13 " in str(raised.value))
        assert len(node.of_documents(Op.REPLACE)) > 3  # it was tried again
        del node.answers[Op.REPLACE]
        assert await store.get("saga", "a") == Document(b"0", cas)


# -------------------------------------------------------------------- passwords


async def test_a_password_that_changed_is_used_for_the_next_connection(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    passwords = ["secret"]
    async with CouchbaseStore(replace(settings, password=lambda: passwords[-1]), clock=clock) as store:
        await store.insert("saga", "a", b"0")
        node.password = "another"
        passwords.append("another")
        await store.insert("saga", "b", b"0")  # an open connection stays what it was
        node.hang_up()
        for _ in range(10):
            try:
                document = await store.get("saga", "b")
            except StoreUnavailable:
                continue
            break
        assert document is not None


async def test_a_password_that_cannot_be_read_is_reported(
    settings: CouchbaseSettings, clock: SettableClock, tmp_path: Path
) -> None:
    error = await refusal(replace(settings, password=(tmp_path / "password").read_text), clock)
    assert isinstance(error, ConfigurationError)
    assert "the password cannot be read" in str(error)


@pytest.mark.parametrize(
    "why", [ValueError("it is sealed"), UnicodeDecodeError("utf-8", b"x", 0, 1, "x"), SystemExit(3)]
)
async def test_a_password_error_is_reported_and_hides_no_write_result(
    node: Node, settings: CouchbaseSettings, clock: SettableClock, why: BaseException
) -> None:
    """The file may be half written, the function anybody's: what became of a write matters more."""
    trouble: list[BaseException] = [why]

    def password() -> str:
        for each in trouble:
            raise each
        return "secret"

    settings = replace(settings, password=password)
    error = await refusal(settings, clock)
    assert isinstance(error, ConfigurationError)
    assert f"the password cannot be read: {type(why).__name__}" in str(error)
    trouble.clear()
    async with CouchbaseStore(settings, clock=clock) as store:
        trouble.append(why)
        node.durable_answer = Status.WRITE_AMBIGUOUS
        with pytest.raises(Ambiguous):
            await store.insert("saga", "a", b"0")
        with pytest.raises(StoreUnavailable, match="the password cannot be read"):
            assert [key async for key, _ in store.scan("saga")] == []


# -------------------------------------------------------------------- scans


async def test_a_scan_lists_what_the_server_has(settings: CouchbaseSettings, clock: SettableClock) -> None:
    keys = sorted([f"order::{n:03}" for n in range(150)] + ["order", "ordes", "a\U0010ffff", "order::" + "x" * 300])
    patient = replace(settings, kv_s=30.0)  # the node answers 150 reads at once in the same event loop
    async with CouchbaseStore(patient, clock=clock) as store:
        for key in reversed(keys):
            await store.insert("saga", key, b'"%d"' % len(key))
        await store.insert("stock", "order::001", b"0")
        assert [key async for key, _ in store.scan("saga")] == keys
        found = {key: document.content async for key, document in store.scan("saga", "order::")}
        assert found == {key: b'"%d"' % len(key) for key in keys if key.startswith("order::")}


async def test_in_a_scope_a_scan_is_of_one_collection(
    node: Node, settings: CouchbaseSettings, clock: SettableClock
) -> None:
    node.collections = IN_SCOPE
    async with CouchbaseStore(replace(settings, scope="payment"), clock=clock) as store:
        for key in ("a", "b", "ä"):
            await store.insert("saga", key, b"0")
        await store.insert("stock", "c", b"0")
        assert [key async for key, _ in store.scan("saga")] == ["a", "b", "ä"]
        assert [key async for key, _ in store.scan("stock", "c")] == ["c"]
