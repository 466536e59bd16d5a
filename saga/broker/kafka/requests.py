"""Requests that aiokafka lacks: change one setting of a topic, ask for our rights on topics, and ask for their ids.

aiokafka can only replace all settings of a topic at once, which reverts what somebody else sets in the meantime.
"""

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from io import BytesIO

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

TOPIC, SET = 2, 0
"""Codes of what is changed, and how: a topic's setting is set."""
READ, WRITE = 1 << 3, 1 << 4
"""Bits of rights on a topic: to read it, to write it."""
UNKNOWN = -(1 << 31)
"""Rights that a broker names if it was not asked."""

_TEXT, _COMPACT = String("utf-8"), CompactString("utf-8")
_TAGS = ("tags", TaggedFields)
NO_ID = bytes(16)
"""Id of a topic that has none."""


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


class ChangeConfigs(Request[ChangeStruct]):  # type: ignore[misc]  # aiokafka has no types
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


class Uuid(AbstractType[str]):  # type: ignore[misc]  # aiokafka has no types
    """Id as Kafka's own tools print it, 22 characters; empty for none."""

    @classmethod
    def encode(cls, value: str) -> bytes:
        """Write no id: topics are asked for by name."""
        return NO_ID

    @classmethod
    def decode(cls, data: BytesIO) -> str:
        read = data.read(len(NO_ID))
        return "" if read == NO_ID else urlsafe_b64encode(read).decode().rstrip("=")


class IdsResponse(Response):  # type: ignore[misc]  # aiokafka has no types
    """Answer with topics and their ids."""

    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(("node_id", Int32), ("host", _COMPACT), ("port", Int32), ("rack", _COMPACT), _TAGS)),
        ("cluster_id", _COMPACT),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", _COMPACT),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        _TAGS,
                    ),
                ),
                ("allowed", Int32),
                _TAGS,
            ),
        ),
        ("allowed", Int32),
        _TAGS,
    )


class IdsStruct(RequestStruct):  # type: ignore[misc]  # aiokafka has no types
    """Form on the wire: Metadata of the first version that has ids."""

    API_KEY = 3
    API_VERSION = 10
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = IdsResponse
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("topic", _COMPACT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class Ids(Request[IdsStruct]):  # type: ignore[misc]  # aiokafka has no types
    """Request for the ids of topics that makes none. Brokers know it from Kafka 2.8 on."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[IdsStruct]) -> IdsStruct:
        return request_struct_class([("", topic, {}) for topic in self._topics], False, False, False, {})
