"""Identity of members of a group: what is compared, and what others state."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from saga.broker.kafka import consumers
from saga.broker.kafka.administration import _describe_group
from saga.broker.kafka.client import read_identity
from saga.broker.kafka.consumers import IDENTITIES_MAX
from saga.broker.port import (
    TEXT_MAX,
    MemberIdentity,
    decode_identity,
    disagreement_error,
    encode_identity,
    find_disagreeing,
)

OURS = MemberIdentity(service="payment", store="1a", worker="here:7")


def test_service_and_store_are_compared_and_the_process_is_not() -> None:
    fellow, other_store, other_service = (
        replace(OURS, worker="there:8"),
        replace(OURS, store="2b"),
        replace(OURS, service="payments"),
    )
    assert find_disagreeing(OURS, [OURS, fellow, None]) == ()
    assert find_disagreeing(OURS, [fellow, other_store, other_service, other_store]) == (
        "service 'payment' in process 'here:7' with store '2b'",
        "service 'payments' in process 'here:7' with store '1a'",
    )
    assert find_disagreeing(None, [OURS]) == ()
    assert str(replace(OURS, worker="")) == "service 'payment' with store '1a'"


def test_the_refusal_names_both_sides_and_what_to_do() -> None:
    error = disagreement_error("payment", OURS, ["somebody"])
    assert error.problems == ("somebody",)
    for part in ("group 'payment'", "'1a'", "SAGA_STORE", "its own broker"):
        assert part in error.heading


@pytest.mark.parametrize(
    "subscription",
    [b"", b"\0", b"\0\0", b"{}" * 20, b"\0\0" + b"\xff" * 8, b"\0\1\0\0\0\1\0\2\xff\xfe" + b"\xff" * 4],
)
def test_a_subscription_that_cannot_be_decoded_names_no_topics_and_no_identity(subscription: bytes) -> None:
    """Another program may be a member of the group, or of a group that a tool lists."""
    assert read_identity(subscription) is None
    members = [("id", "client", "/10.0.0.7", subscription, b"")]
    fetched = SimpleNamespace(error_code=0, topics=[])
    described = _describe_group((0, "other", "Stable", "consumer", "range", members), fetched, {})
    assert described.members == ("client at 10.0.0.7",)
    assert not described.reads


@given(st.from_type(MemberIdentity))
def test_an_identity_is_read_as_it_was_stated(identity: MemberIdentity) -> None:
    is_short = max(map(len, (identity.service, identity.store, identity.worker))) <= TEXT_MAX
    assert decode_identity(encode_identity(identity)) == (identity if is_short else None)


@pytest.mark.parametrize("stated", [None, b"", b"\xff", b"{}", b"[]", b'{"service": 1, "store": "x"}', b"[" * 9999])
def test_member_metadata_of_other_programs_is_no_identity(stated: bytes | None) -> None:
    assert decode_identity(stated) is None
    assert consumers._decode_members(stated) == []


@given(st.binary())
def test_malformed_member_metadata_raises_no_error(stated: bytes) -> None:
    decode_identity(stated)
    consumers._decode_members(stated)


def test_a_leader_shares_one_member_of_each_service_and_store_and_not_too_many() -> None:
    many = [replace(OURS, worker=f"here:{n}") for n in range(100)]
    assert len(consumers._decode_members(consumers._encode_members([*many, None]))) == 1
    assert consumers._encode_members([None, None]) == b""
    different = [replace(OURS, store=str(n)) for n in range(100)]
    assert len(consumers._decode_members(consumers._encode_members(different))) == IDENTITIES_MAX
