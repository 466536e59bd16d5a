"""Check that aiokafka still has the private names that we use: made when a client has started.

Without it a release of aiokafka that calls something otherwise would look like a broker that cannot be reached, for
ever: an `AttributeError` is also what aiokafka raises when what it has closed is used.
"""

import inspect
from collections.abc import Callable, Iterable
from operator import attrgetter

import aiokafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.conn import AIOKafkaConnection
from aiokafka.consumer.fetcher import Fetcher, FetchResult
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import TopicPartitionState

from saga.errors import BrokerError

CLIENT = (
    *("_conns", "_md_update_fut", "_sasl_plain_password", "_sync_task", "_metadata_max_age_ms", "add_topic"),
    *("cluster", "coordinator_lookup", "fetch_all_metadata", "force_metadata_update", "get_random_node", "send"),
)
PRODUCER = (
    *("client", "_closed", "_sender.sender_task", "_sender._sender_task"),
    *("_message_accumulator.fail_all", "_message_accumulator.reenqueue", "_message_accumulator.add_message"),
    *("_message_accumulator._batches", "_message_accumulator._pending_batches"),
)
CONSUMER = (
    *("_client", "_coordinator", "_fetcher._fetch_task", "_fetcher._pending_tasks", "_fetcher._records"),
    *("_fetcher._client", "_fetcher._loop", "_fetcher._subscriptions", "_fetcher._prefetch_backoff"),
    *("_fetcher._retry_backoff", "_fetcher.error_future", "_fetcher.seek_to", "_subscription.subscription"),
    *("_fetch_min_bytes", "_fetch_max_bytes", "_fetch_max_wait_ms", "_max_partition_fetch_bytes"),
    *("_consumer_timeout", "_retry_backoff_ms", "_auto_offset_reset", "_isolation_level"),
)
OF_A_GROUP = (
    *("_coordinator._coordination_task", "_coordinator._heartbeat_task", "_coordinator._commit_refresh_task"),
    *("_coordinator._group_instance_id", "_coordinator.check_errors", "_coordinator.coordinator_id"),
    *("_coordinator.fetch_committed_offsets", "_coordinator.generation", "_coordinator.group_id"),
    "_coordinator.member_id",
)
OF_NO_GROUP = ("_coordinator._reset_committed_task",)
TAKES: tuple[tuple[Callable[..., object], tuple[str, ...]], ...] = (
    (AIOKafkaConnection.send, ("self", "request", "expect_response")),
    (Fetcher._proc_fetch_request, ("self", "assignment", "node_id", "request")),
    (FetchResult.__init__, ("self", "tp", "assignment", "partition_records", "backoff")),
    (TopicPartitionState.pause, ("self",)),
    (TopicPartitionState.resume, ("self",)),
)
"""Private functions that we replace or call, each with the names of its parameters."""


def check_producer(producer: AIOKafkaProducer) -> None:
    """Check a producer, and its client. Raises `BrokerError` if aiokafka has become another one."""
    _check([*_missing(producer, PRODUCER), *_missing(producer.client, CLIENT)])


def check_consumer(consumer: AIOKafkaConsumer) -> None:
    """Check a consumer, as `check_producer` checks a producer."""
    others = [
        f"{of.__qualname__}({', '.join(names)})"
        for of, names in TAKES
        if tuple(inspect.signature(of).parameters) != names
    ]
    of_its_kind = OF_A_GROUP if isinstance(consumer._coordinator, GroupCoordinator) else OF_NO_GROUP
    _check([*_missing(consumer, (*CONSUMER, *of_its_kind)), *others])


def _missing(root: object, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        try:
            attrgetter(name)(root)
        except AttributeError:
            yield f"{type(root).__name__}.{name}"


def _check(missing: list[str]) -> None:
    if missing:
        raise BrokerError(
            f"aiokafka {aiokafka.__version__} has become another one: {', '.join(missing)}: this release of saga needs "
            "them as they were: pip install 'saga-choreography[kafka]' brings an aiokafka that has them"
        )
