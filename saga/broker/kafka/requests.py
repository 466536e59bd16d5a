"""Requests that aiokafka has no classes for: to change one setting of a topic, and what we are allowed on topics.

aiokafka can only replace all settings of a topic at once, which takes back what somebody else sets in the meantime.
"""

from collections.abc import Sequence

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int8, Int16, Int32, Schema, String

TOPIC, SET = 2, 0
"""Codes of what is changed, and how: a topic's setting is set."""
READ, WRITE = 1 << 3, 1 << 4
"""Bits of rights on a topic: to read it, to write it."""
UNKNOWN = -(1 << 31)
"""Rights that a broker names if it was not asked."""

_TEXT = String("utf-8")


class ChangedResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    """Answer for each topic whether it was changed."""

    API_KEY = 44
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "resources",
            Array(("error_code", Int16), ("error_message", _TEXT), ("resource_type", Int8), ("resource_name", _TEXT)),
        ),
    )


class ChangeStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """Form on the wire: IncrementalAlterConfigs."""

    API_KEY = 44
    API_VERSION = 0
    RESPONSE_TYPE = ChangedResponse
    SCHEMA = Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", _TEXT),
                ("configs", Array(("name", _TEXT), ("operation", Int8), ("value", _TEXT))),
            ),
        ),
        ("validate_only", Boolean),
    )


class Change(Request[ChangeStruct]):  # type: ignore[misc]  # aiokafka has no types
    """Request to give one setting of a topic another value; all others stay."""

    API_KEY = 44

    def __init__(self, topic: str, name: str, value: str) -> None:
        self._topic, self._name, self._value = topic, name, value

    def build(self, request_struct_class: type[ChangeStruct]) -> ChangeStruct:
        return request_struct_class([(TOPIC, self._topic, [(self._name, SET, self._value)])], False)


class TopicsResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    """Answer with all topics, and what we are allowed on each."""

    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", Array(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT))),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", _TEXT),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("allowed", Int32),
            ),
        ),
        ("allowed", Int32),
    )


class TopicsStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """Form on the wire: Metadata."""

    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = TopicsResponse
    SCHEMA = Schema(
        ("topics", Array(_TEXT)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class Topics(Request[TopicsStruct]):  # type: ignore[misc]  # aiokafka has no types
    """Request for all topics that makes none."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str] | None = None) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[TopicsStruct]) -> TopicsStruct:
        return request_struct_class(self._topics, False, False, True)
