"""Rights that we have: asked for before anybody relies on them, so that all that is missing is told at once."""

from collections.abc import Collection
from typing import Any

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import GroupAuthorizationFailedError, IncompatibleBrokerVersion, NoBrokersAvailable
from aiokafka.protocol.api import Request
from aiokafka.protocol.group import HeartbeatRequest

from saga.broker.kafka.client import FAILED, failed
from saga.broker.kafka.requests import READ, UNKNOWN, WRITE, Topics

UNKNOWN_THERE = (NotImplementedError, IncompatibleBrokerVersion)
"""Errors of brokers that do not know the request."""


async def forbidden(
    reads: Collection[str], writes: Collection[str], groups: Collection[str], client: AIOKafkaClient
) -> list[str]:
    """Say what we may not do of this, each in a line with what to allow. Raises `BrokerError`."""
    try:
        return [*await _of_topics(reads, writes, client), *await _of_groups(groups, client)]
    except FAILED as why:
        raise failed(why, "asking what this user may do") from why


async def _of_topics(reads: Collection[str], writes: Collection[str], client: AIOKafkaClient) -> list[str]:
    try:
        answer = await _answered(Topics(sorted({*reads, *writes})), client)
    except UNKNOWN_THERE:  # brokers before 2.3 do not tell: it shows later
        return []
    return [
        f"topic {name}: this user may not {right.lower()} it: {_allow(right, 'topic', name)}"
        for name, allowed in sorted((name, allowed) for code, name, *_, allowed in answer.topics if code == 0)
        for right, bit, wanted in (("Read", READ, reads), ("Write", WRITE, writes))
        if name in wanted and allowed != UNKNOWN and not allowed & bit
    ]


async def _of_groups(groups: Collection[str], client: AIOKafkaClient) -> list[str]:
    """Ask for rights on groups by a sign of life of a member that there is not: brokers look at rights before they look
    for members."""
    problems = []
    for group in sorted(groups):
        answer = await _answered(HeartbeatRequest(group, -1, ""), client)
        if answer.error_code == GroupAuthorizationFailedError.errno:
            problems.append(f"group {group}: this user may not join it: {_allow('Read', 'group', group)}")
    return problems


async def _answered(request: Request, client: AIOKafkaClient) -> Any:
    """Ask the first broker that answers: one of them may be down. The answer's fields only aiokafka knows."""
    trouble: Exception = NoBrokersAvailable()
    for broker in client.cluster.brokers():
        try:
            return await client.send(broker.nodeId, request)
        except UNKNOWN_THERE:
            raise
        except FAILED as why:
            trouble = why
    raise trouble


def _allow(right: str, kind: str, name: str) -> str:
    return f"kafka-acls --add --allow-principal User:... --operation {right} --{kind} {name}"
