"""Check at the start, with clear errors, that Kafka can be reached, accepts our credentials and grants our rights.

aiokafka itself reports a wrong password and a wrong address in the same way.
"""

from collections.abc import Collection

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import create_conn
from aiokafka.errors import (
    BrokerNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
)
from aiokafka.protocol.group import HeartbeatRequest
from aiokafka.protocol.metadata import MetadataRequest

from saga.broker.acls import AclRight, grant_command
from saga.broker.adapter import ClientOptions
from saga.broker.kafka.client import FAILED, to_broker_error
from saga.broker.kafka.positions import UNKNOWN_THERE, ask_any_broker
from saga.broker.kafka.requests import READ, UNKNOWN, WRITE, Topics
from saga.broker.kafka.settings import KafkaAccess, KafkaSettings, explain_refusal
from saga.errors import BrokerError, BrokerUnavailable
from saga.support.clock import Clock

LOOK_S = 0.1
"""Pause before a server that knows of no broker is asked again."""


async def check(settings: KafkaSettings, access: KafkaAccess, clock: Clock) -> None:
    """Return when one of the servers lets us in. Raises `BrokerError` that says of each what is wrong."""
    options = access.options
    share_s = settings.connect_s / (len(settings.servers) + 1)
    troubles: list[BrokerError] = []
    for server in settings.servers:
        try:
            await clock.within(share_s, _greeted(server, options, share_s, clock))
        except (OSError, KafkaError) as why:
            if access.trouble:
                raise BrokerUnavailable(f"Kafka at {server}: {access.trouble}") from why
            troubles.append(explain_refusal(why, server, settings))
        else:
            return
    for trouble in troubles:
        if not isinstance(trouble, BrokerUnavailable):
            raise trouble  # who is not let in need not look further
    raise BrokerUnavailable("; ".join(str(trouble) for trouble in troubles))


async def _greeted(server: str, options: ClientOptions, seconds: float, clock: Clock) -> None:
    """Return when the server lets us in, and knows of a broker that is up: when its only one was frozen for longer than
    its session, it knows of none for some 30 ms."""
    end_s = clock.monotonic_s() + seconds - LOOK_S
    host, _, port = server.rpartition(":")
    connection = await create_conn(
        host.strip("[]"),
        int(port),
        request_timeout_ms=int(seconds * 1000),
        **{name: value for name, value in options.items() if name != "bootstrap_servers"},
    )
    try:
        # Who has shown a bad token is told so by the first request, and not before.
        while not (await connection.send(MetadataRequest([]))).brokers:
            if clock.monotonic_s() >= end_s:
                raise BrokerNotAvailableError("it knows of no broker that is up")
            await clock.sleep(LOOK_S)
    finally:
        await connection.close()


async def forbidden(
    reads: Collection[str], writes: Collection[str], groups: Collection[str], client: AIOKafkaClient
) -> list[str]:
    """Say what we may not do of this, each in a line with what to allow. Raises `BrokerError`."""
    try:
        return [*await _of_topics(reads, writes, client), *await _of_groups(groups, client)]
    except FAILED as why:
        raise to_broker_error(why, "asking what this user may do") from why


async def _of_topics(reads: Collection[str], writes: Collection[str], client: AIOKafkaClient) -> list[str]:
    try:
        answer = await ask_any_broker(Topics(sorted({*reads, *writes})), client)
    except UNKNOWN_THERE:  # brokers before 2.3 do not tell: it shows later
        return []
    return [
        f"topic {name}: this user may not {right.lower()} it: {grant_command(AclRight(right, 'topic', name))}"
        for name, allowed in sorted((name, allowed) for code, name, *_, allowed in answer.topics if code == 0)
        for right, bit, wanted in (("Read", READ, reads), ("Write", WRITE, writes))
        if name in wanted and allowed != UNKNOWN and not allowed & bit
    ]


async def _of_groups(groups: Collection[str], client: AIOKafkaClient) -> list[str]:
    """Ask for rights on groups by a sign of life of a member that there is not: brokers look at rights before they look
    for members."""
    problems = []
    for group in sorted(groups):
        answer = await ask_any_broker(HeartbeatRequest(group, -1, ""), client)
        if answer.error_code == GroupAuthorizationFailedError.errno:
            problems.append(
                f"group {group}: this user may not join it: {grant_command(AclRight('Read', 'group', group))}"
            )
    return problems
