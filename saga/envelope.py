"""CloudEvents in binary mode over the broker's headers: a message as a record, and a record as a message."""

import re
from datetime import datetime
from functools import lru_cache

from saga.clock import from_iso, iso
from saga.errors import BadInput
from saga.messages import Message, Outgoing, Record

CONTENT_TYPE = b"application/avro"
_FIXED = (("content-type", CONTENT_TYPE), ("ce_specversion", b"1.0"))
_OURS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z").fullmatch


def headers_of(message: Message) -> tuple[tuple[str, bytes], ...]:
    """The envelope of a message as headers."""
    headers = [
        ("ce_type", message.type.encode()),  # first: it decides whether the rest is looked at
        ("ce_id", message.id.encode()),
        ("ce_source", message.source.encode()),
        ("ce_time", message.time.encode()),
        ("ce_subject", message.saga.encode()),
        ("ce_dataschema", message.schema.encode()),
        *_FIXED,
    ]
    if message.started is not None:
        headers.append(("ce_sagastart", message.started.encode()))
    if message.trace is not None:
        headers.append(("traceparent", message.trace.encode()))
    return tuple(headers)


def to_record(message: Message, topic: str) -> Outgoing:
    """The message as it is published; its saga id is the key."""
    return Outgoing(topic, message.saga.encode(), message.value, headers_of(message))


def type_of(record: Record) -> str | None:
    """The contract's record name, as the header says it; `None` if it does not."""
    for name, value in record.headers:
        if name == "ce_type":
            return _last_part(value)
    return None


@lru_cache(maxsize=1024)  # there are not many types
def _last_part(name: bytes) -> str:
    return name.decode("utf-8", "replace").rpartition(".")[2]


def to_message(record: Record, *, type_: str, schema: str) -> Message:
    """The message in a record whose type and schema are known. What a foreign sender left out is made up for.

    Raises `BadInput`: no value; no key, or one that is not the subject; a header that is no text.
    """
    if not record.value:
        raise BadInput("the message is empty: it has no value to decode")
    if not record.key:
        raise BadInput("the message has no key: its key must be the saga id")
    try:
        saga = record.key.decode()
        given = {name: value.decode() for name, value in record.headers if value is not None}
    except UnicodeDecodeError as why:
        raise BadInput(f"the key or a header of the message is not UTF-8: {why}") from why
    subject = given.get("ce_subject", saga)
    if subject != saga:
        raise BadInput(f"the message's key {saga!r} is not its subject {subject!r}: both must be the saga id")
    started = given.get("ce_sagastart")
    return Message(
        id=given.get("ce_id") or f"{record.topic}/{record.partition}/{record.offset}",
        type=type_,
        schema=given.get("ce_dataschema", schema),
        saga=saga,
        source=given.get("ce_source", "unknown"),
        time=_time(given["ce_time"], "ce_time") if "ce_time" in given else iso(record.time_ms),
        value=record.value,
        started=None if started is None else _time(started, "ce_sagastart"),
        trace=given.get("traceparent"),
    )


@lru_cache(maxsize=1024)  # a saga's start comes with each of its messages, and is often the time of the first
def _time(text: str, header: str) -> str:
    """In the one form that sorts as the times do."""
    try:
        if _OURS(text):
            datetime.fromisoformat(text)  # only that it is one: the digits alone do not say so
            return text
        return iso(from_iso(text))
    except ValueError as why:
        raise BadInput(f"the header {header} is no RFC 3339 time: {text!r}") from why
