"""Records of changes as Couchbase's Kafka connector documents them, for tests: with the document as JSON, as its raw
handler with metadata writes them, and with the document as base64, as its default handler does through the JSON
converter."""

from base64 import b64encode

import msgspec
from msgspec import Raw, Struct


class ConnectorRecord(Struct, frozen=True, kw_only=True):
    """One record of the connector."""

    key: str
    cas: int
    """Version: nanoseconds since 1970, and unlike any other of the document."""
    number: int
    """Place in its part of the bucket."""
    revision: int
    """Number of this version among those of its document, removals counted."""
    content: bytes | None
    """JSON of the document; `None`: it is gone."""
    expired: bool = False

    def raw(self) -> bytes:
        """Record of `RawJsonWithMetadataSourceHandler`."""
        told = self._metadata()
        if self.content is not None:
            told["content"] = Raw(self.content)
        return msgspec.json.encode(told)

    def default(self, *, enveloped: bool) -> bytes:
        """Record of `DefaultSchemaSourceHandler` through `JsonConverter`. `enveloped`: with schemas."""
        told = self._metadata()
        told["content"] = None if self.content is None else b64encode(self.content).decode()
        if not enveloped:
            return msgspec.json.encode(told)
        return msgspec.json.encode({"schema": {"type": "struct", "name": "com.couchbase.DcpMessage"}, "payload": told})

    def _metadata(self) -> dict[str, object]:
        event = "mutation" if self.content is not None else "expiration" if self.expired else "deletion"
        there: dict[str, object] = {"expiration": 0, "flags": 33_554_432, "lockTime": 0}
        return {
            "event": event,
            "bucket": "shop",
            "partition": 17,
            "vBucketUuid": 77_000,
            "key": self.key,
            "cas": self.cas,
            "bySeqno": self.number,
            "revSeqno": self.revision,
            **(there if self.content is not None else {}),
        }
