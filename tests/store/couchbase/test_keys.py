"""Keys that Couchbase cannot take as they are, and settings and addresses that cannot work."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from saga.errors import StoreError, StoreUnavailable
from saga.store.couchbase.adapter import CouchbaseSettings
from saga.store.couchbase.listing import list_keys
from saga.store.couchbase.store import (
    HEAD_BYTES,
    STORED_KEY_BYTES_MAX,
    is_shortened,
    stored_key,
    stored_prefix,
    unwrap_content,
    unwrap_key,
    wrap_content,
)
from saga.store.port import Document
from saga.support.clock import SystemClock
from tests.store.couchbase.conftest import Stores

LONG = "payment::" + "ü" * 200
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=400)


@given(KEYS, KEYS)
def test_keys_stay_apart_and_fit(one: str, other: str) -> None:
    assert len(stored_key(one).encode()) <= STORED_KEY_BYTES_MAX
    assert (stored_key(one) == stored_key(other)) == (one == other)


@given(KEYS, st.integers(0, 400))
def test_a_stored_key_begins_as_the_stored_prefix_of_its_beginnings(key: str, length: int) -> None:
    assert stored_key(key).startswith(stored_prefix(key[:length]))


def test_a_key_of_the_greatest_length_is_stored_as_it_is() -> None:
    assert stored_key("x" * STORED_KEY_BYTES_MAX) == "x" * STORED_KEY_BYTES_MAX
    assert is_shortened(stored_key("x" * (STORED_KEY_BYTES_MAX + 1)))


def test_a_short_key_that_looks_shortened_is_not_taken_for_another_one() -> None:
    disguised = stored_key(LONG)
    assert stored_key(disguised) != disguised
    assert is_shortened(stored_key(disguised))


@given(KEYS, st.sampled_from([b"1", b'{"a":1}', b" [1, 2] \n", b'"}"', b"{}"]))
def test_a_wrapped_document_is_unwrapped_byte_by_byte(key: str, content: bytes) -> None:
    assert unwrap_content(key, wrap_content(key, content)) == content
    assert unwrap_key(wrap_content(key, content)) == key


def test_a_document_of_another_key_is_refused() -> None:
    with pytest.raises(StoreError, match="belongs to another key") as refused:
        unwrap_content("a", wrap_content("b", b"1"))
    assert not isinstance(refused.value, StoreUnavailable), "waiting would mend nothing"
    for content in (b"[]", b'{"key":"\xff"}', b'{"key":' + b"[" * 10_000):
        with pytest.raises(StoreError, match="does not say which key"):
            unwrap_key(content)


# -------------------------------------------------------------------- on the server


async def test_a_document_with_a_long_key_is_like_any_other(stores: Stores) -> None:
    async with stores() as store:
        cas = await store.insert("saga", LONG, b'{"a":1}')
        assert await store.get("saga", LONG) == Document(b'{"a":1}', cas)
        cas = await store.replace("saga", LONG, b"2", cas=cas)
        assert await store.get("saga", LONG) == Document(b"2", cas)
        assert await store.get("saga", LONG + "x") is None
        await store.remove("saga", LONG, cas=cas)
        assert await store.get("saga", LONG) is None


async def test_a_scan_gives_long_keys_as_they_were_written_and_in_their_order(stores: Stores) -> None:
    head = "x" * HEAD_BYTES
    keys = sorted([f"{head}{n:03}{'y' * 40}" for n in range(20)] + [f"{head[:-1]}", f"{head}0", "y", LONG])
    async with stores() as store:
        for key in keys:
            await store.insert("saga", key, json.dumps(key).encode())
        assert [key async for key, _ in store.scan("saga")] == keys
        found = [(key, document.content) async for key, document in store.scan("saga", f"{head}01")]
        assert found == [(key, json.dumps(key).encode()) for key in keys if key.startswith(f"{head}01")]
        assert len(found) == 10


# -------------------------------------------------------------------- settings


def working() -> CouchbaseSettings:
    return CouchbaseSettings(connection="couchbase://db", bucket="shop", username="payment", password=lambda: "secret")


def test_settings_never_show_the_password() -> None:
    assert "secret" not in repr(working())
    assert "secret" not in working().where


@pytest.mark.parametrize(
    ("scope", "collection", "by_collection"),
    [(None, None, False), ("s", None, True), ("s", "c", False), (None, "c", False)],
)
def test_each_collection_has_its_own_only_in_a_scope_without_collection(
    scope: str | None, collection: str | None, by_collection: bool
) -> None:
    assert replace(working(), scope=scope, collection=collection).by_collection == by_collection


async def test_the_process_that_lists_keys_gets_the_address_and_the_credentials() -> None:
    nowhere = replace(working(), connection="couchbase://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match=r"The store couchbase://127\.0\.0\.1:9/shop cannot be used now"):
        [key async for key in list_keys(nowhere, "saga", "payment::", SystemClock())]
