"""Assignor of a consumer group that tells each member which services and stores the others work for.

Kafka hands the subscription of every member to one of them, the leader, and nobody else sees it. So the leader puts the
identities that it finds there beside each member's partitions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

from saga.broker.identity import MemberIdentity, decode, encode

TOLD_MAX = 16
"""Most identities that are told: of each service and store one, and a group with so many of them is in no order."""


class IdentityAssignor(RangePartitionAssignor):  # type: ignore[misc]  # aiokafka has no types
    """Assignor "range" of aiokafka, which members of earlier releases have as well. aiokafka is made for classes here,
    and an object does, too: each consumer has its own, for several services may run in one process."""

    def __init__(self, identity: MemberIdentity | None) -> None:
        self._identity = identity
        self.members: Sequence[MemberIdentity] = ()
        """Identities in the group, one of each service and store, as of the last assignment."""

    def metadata(self, topics: Iterable[str]) -> Any:
        return ConsumerProtocolMemberMetadata(self.version, list(topics), encode(self._identity))

    def assign(self, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
        assigned = RangePartitionAssignor.assign(cluster, members)
        told = _encode_members(decode(member.user_data) for member in members.values())
        return {
            id_: ConsumerProtocolMemberAssignment(each.version, each.assignment, told) for id_, each in assigned.items()
        }

    def on_assignment(self, assignment: Any) -> None:
        self.members = _decode_members(assignment.user_data)


def _encode_members(identities: Iterable[MemberIdentity | None]) -> bytes:
    known = {(each.service, each.store): each for each in identities if each is not None}
    return msgspec.json.encode([encode(each) for each in list(known.values())[:TOLD_MAX]]) if known else b""


def _decode_members(told: bytes | None) -> list[MemberIdentity]:
    """Identities that a leader told; none where it is of an earlier release, or another program."""
    if not told:
        return []
    try:
        encoded = msgspec.json.decode(told, type=list[bytes])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [identity for each in encoded if (identity := decode(each)) is not None]
